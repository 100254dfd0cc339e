"""Bounded reads of objects on V8's heap. The garbage collector moves them, so each read checks the object's type."""

from __future__ import annotations

from pyprof.errors import FormatError
from pyprof.model.modules import ReadMemory
from pyprof.runtime_code.v8.layout import V8Layout

MAX_PARTS = 64
"""Maximum number of objects that make up one string."""
MAX_MAPS = 1 << 12
_LIMIT = 1 << 47
_WORD = 8

_SEQUENTIAL, _CONS, _EXTERNAL, _SLICED, _THIN = 0, 1, 2, 3, 5
"""Representations of strings, the lowest three bits of their types."""
_ONE_BYTE = 8
"""Bit of a string's type: its characters have one byte."""


def smi(word: int) -> int | None:
    """Return the small integer that a word of V8's heap holds, or None."""
    if word & 0xFFFFFFFF:
        return None
    value = word >> 32
    return value - (1 << 32) if value >> 31 else value


def flag_word(word: int) -> int:
    """Return the flags in a slot, which V8 13.6 keeps as a plain number and earlier ones as a small integer."""
    return word >> 32 if word >> 32 else word


class V8Heap:
    """A reader of one V8's heap. Addresses are tagged pointers unless they are called avma."""

    def __init__(self, read: ReadMemory, layout: V8Layout) -> None:
        self._read = read
        self.layout = layout
        self._types: dict[int, int] = {}

    def renew(self, read: ReadMemory) -> None:
        """Read by another function from now on: that of the current address space."""
        self._read = read

    def forget_types(self) -> None:
        """Forget the types of objects, because memory may have been reused."""
        self._types.clear()

    def read(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of memory.

        Raises:
            FormatError: The bytes are not readable.
        """
        data = self._read(avma, size) if 0 < avma < _LIMIT - size else b""
        if len(data) != size:
            raise FormatError("V8", avma, f"{size} bytes at {avma:#x} are not readable")
        return data

    def read_available(self, avma: int, size: int) -> bytes:
        """Return the readable bytes from an address on, `size` at most."""
        return self._read(avma, size) if 0 < avma < _LIMIT - size else b""

    def word(self, avma: int) -> int:
        """Return the 64-bit word at an address.

        Raises:
            FormatError: The word is not readable.
        """
        return int.from_bytes(self.read(avma, _WORD), "little")

    def number(self, avma: int) -> int:
        """Return the unsigned 32-bit number at an address.

        Raises:
            FormatError: The number is not readable.
        """
        return int.from_bytes(self.read(avma, 4), "little")

    def field(self, pointer: int, offset: int) -> int:
        """Return the word at an offset of an object, without the mark of a weak reference.

        Raises:
            FormatError: The field is not readable.
        """
        word = self.word((pointer & ~3) + offset)
        return word & ~2 if word & 1 else word

    def resolve(self, pointer: int) -> int:
        """Return the current address of an object: the garbage collector leaves the new one in place of the map.

        Raises:
            FormatError: There is no object.
        """
        if not pointer & 1:
            raise FormatError("V8", pointer, "no pointer to an object")
        pointer = pointer & ~3 | 1
        first = self.word(pointer - 1)
        if first & 3:
            return pointer
        return first | 1

    def type_of(self, pointer: int) -> int:
        """Return the type of an object.

        Raises:
            FormatError: There is no object.
        """
        if not pointer & 1:
            raise FormatError("V8", pointer, "no pointer to an object")
        kind = self.word(pointer & ~3)
        found = self._types.get(kind)
        if found is None:
            at = self.layout.at
            if kind & 3 != 1:
                raise FormatError("V8", pointer, "an object without a map")
            if self.type_word(self.word(kind - 1)) != at["type_map"]:
                raise FormatError("V8", pointer, "an object whose map is none")
            found = self.type_word(kind)
            if len(self._types) >= MAX_MAPS:
                self._types.clear()
            self._types[kind] = found
        return found

    def type_word(self, kind: int) -> int:
        """Return the type that a map states for its objects.

        Raises:
            FormatError: The map is not readable.
        """
        return int.from_bytes(self.read((kind & ~3) + self.layout.at["instance_type"], 2), "little")

    def has_type(self, pointer: int, name: str) -> bool:
        """Return True if there is an object of a type, which `name` states as in V8Layout.at."""
        try:
            return self.type_of(pointer) == self.layout.at[name]
        except FormatError:
            return False

    def array(self, pointer: int, most: int) -> bytes:
        """Return the words of an array, or the first `most` of them.

        Raises:
            FormatError: The array is not readable or not plausible.
        """
        at = self.layout.at
        length = smi(self.field(pointer, at["array_length"]))
        if length is None or length < 0:
            raise FormatError("V8", pointer, "an array without a length")
        return self.read((pointer & ~3) + at["array_data"], min(length, most) * _WORD)

    def byte_array(self, pointer: int, most: int) -> bytes:
        """Return the content of an array of bytes.

        Raises:
            FormatError: The array is not readable, or longer than `most`.
        """
        at = self.layout.at
        length = smi(self.field(pointer, at["array_length"]))
        if length is None or not 0 <= length <= most:
            raise FormatError("V8", pointer, "an array of bytes without a plausible length")
        return self.read((pointer & ~3) + at["array_data"], length)

    def is_string(self, pointer: int) -> bool:
        try:
            return self.type_of(pointer) < self.layout.at["first_nonstring"]
        except FormatError:
            return False

    def text(self, pointer: int, most: int) -> str:
        """Return the first `most` characters of a string.

        Raises:
            FormatError: There is no string, or it has more than MAX_PARTS parts.
        """
        at = self.layout.at
        parts: list[str] = []
        todo = [(pointer, 0, most)]
        for _ in range(MAX_PARTS):
            if not todo or most <= 0:
                return "".join(parts)
            pointer, skipped, wanted = todo.pop()
            kind = self.type_of(pointer)
            if kind >= at["first_nonstring"]:
                raise FormatError("V8", pointer, "an object that is no string")
            length = self.number((pointer & ~3) + at["string_length"])
            shape = kind & 7
            if shape == _CONS:
                first = self.field(pointer, at["cons_first"])
                size = self.number((first & ~3) + at["string_length"])
                todo.append((self.field(pointer, at["cons_second"]), max(skipped - size, 0), wanted))
                if skipped < size:
                    todo.append((first, skipped, wanted))
            elif shape == _SLICED:
                offset = smi(self.field(pointer, at["sliced_offset"])) or 0
                todo.append((self.field(pointer, at["sliced_parent"]), skipped + offset, min(wanted, length - skipped)))
            elif shape == _THIN:
                todo.append((self.field(pointer, at["thin_actual"]), skipped, wanted))
            elif shape in (_SEQUENTIAL, _EXTERNAL):
                start = (pointer & ~3) + at["characters"]
                if shape == _EXTERNAL:
                    start = self.word((pointer & ~3) + at["external_resource"] + _WORD)
                width = 1 if kind & _ONE_BYTE else 2
                count = max(min(length - skipped, wanted, most), 0)
                data = self.read(start + skipped * width, count * width)
                parts.append(data.decode("latin-1" if width == 1 else "utf-16-le", "replace"))
                most -= count
            else:
                raise FormatError("V8", pointer, "a string of an unknown form")
        if todo:
            raise FormatError("V8", pointer, "a string of too many parts")
        return "".join(parts)
