"""Reads of words, Python objects and local variables in another process. All reads are bounded.

Unreadable memory raises Unreadable: only the caller knows for what the memory was needed. The objects are strings,
bytes, types, tuples, dicts and integers.
Source: unicodeobject.h, dictobject.c. In PyDictKeysObject, 3.11 and later state the kind of the entries; earlier
versions state the size of the table.

Local variables of a frame become bounded text, without running code of the target. Values of names that look secret are
not read unless the user asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyprof.interpreters.cpython.layout import NONE, Layout, ObjectLayout
from pyprof.model.address_space import ReadMemory
from pyprof.model.interpreter_reader_protocols import Gather, Span
from pyprof.model.untrusted_text import REDACTED, looks_secret, without_secrets

_U64 = struct.Struct("<Q").unpack
_U32 = struct.Struct("<I").unpack
ADDRESSES = 1 << 64
"""End of the address space, 2**64. The sum of an address from a target's memory and an offset may lie beyond it."""


class Unreadable(Exception):
    """The error that memory of the target cannot be read or no longer has its earlier contents. It never leaves the
    package cpython.
    """


class Memory:
    """A reader of a process's current memory. The process runs, so the contents may change a moment later."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read

    def change_space(self, read: ReadMemory) -> None:
        """Set the function that later reads use, for example after the process has called exec."""
        self._read = read

    def read_available(self, avma: int, size: int) -> bytes:
        """Return as much of a range of the target's memory as can be read."""
        return self._read(avma, size) if 0 < avma < ADDRESSES else b""

    def read_memory(self, avma: int, size: int) -> bytes:
        """Return all bytes of a range of the target's memory.

        Raises:
            Unreadable: A part of the range is missing.
        """
        data = self.read_available(avma, size)
        if len(data) != size:
            raise Unreadable(f"{size} bytes at {avma:#x}")
        return data

    def read_u64(self, avma: int) -> int:
        word: int = _U64(self.read_memory(avma, 8))[0]
        return word

    def read_u32(self, avma: int) -> int:
        word: int = _U32(self.read_memory(avma, 4))[0]
        return word

    def read_i32(self, avma: int) -> int:
        return int.from_bytes(self.read_memory(avma, 4), "little", signed=True)

    def read_words(self, avma: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.read_memory(avma, 8 * count))

    def read_c_string(self, avma: int, max_bytes: int = 256) -> str:
        """Read a NUL-terminated string from the target's memory."""
        data = self._read(avma, max_bytes) if avma > 0 else b""
        if not data:
            raise Unreadable(f"text at {avma:#x}")
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")


class Text(NamedTuple):
    """A range of a process's memory as it was at the time of a sample, when the BPF program copied it."""

    avma: int
    data: bytes


class CopiedMemory(Memory):
    """A reader of a process's memory that returns copies from the time of a sample. Where it has no copy, it reads the
    current memory.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(self._now)
        self._memory = memory
        self._copied: Sequence[Text] = ()

    def prefer_texts(self, texts: Sequence[Text]) -> None:
        """Set the copies of memory ranges that take precedence over current memory. They are searched one by one, so
        there must be few.
        """
        self._copied = texts

    def _now(self, avma: int, size: int) -> bytes:
        for start, there in self._copied:
            data = there[avma - start : avma - start + size] if start <= avma else b""
            if len(data) == size:
                return data
        return self._memory.read_available(avma, size)


def make_gather(memory: Memory) -> Gather:
    """Return a function that reads spans of a process that is not stopped (Gather in
    model.interpreter_reader_protocols).
    """

    def gather(spans: Sequence[Span]) -> memoryview:
        data = b""
        for avma, size in spans:
            try:
                data += memory.read_memory(avma, size)
            except Unreadable:
                break
        return memoryview(data)

    return gather


MAX_TEXT = 1 << 16
MAX_BYTES = 1 << 20
MAX_ITEMS = 1 << 16
_KEYS_HEAD = 32
"""Size in bytes of the head of a PyDictKeysObject in CPython 3.11 and later; it begins with the reference count."""
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2
"""Flags of a Python type: Py_TPFLAGS_MANAGED_DICT (3.11 and later), Py_TPFLAGS_INLINE_VALUES (3.13 and later)."""


class Objects:
    """A reader of Python objects in one process. `minor` is the minor version of CPython, for differences that are not
    in the layout.
    """

    def __init__(self, memory: Memory, layout: ObjectLayout, minor: int) -> None:
        self.memory = memory
        self.layout = layout
        self._minor = minor

    def is_alive(self, begin: bytes) -> bool:
        """Return True if a Python object has not been freed.

        A freed object keeps its contents except for the beginning: its reference count is 0, or an allocator has put an
        address there.

        Args:
            begin: The object's bytes up to its type.
        """
        if self.layout.type != 8:  # free-threaded: ob_ref_local, ob_ref_shared
            return begin[12:16] != b"\0\0\0\0" or int.from_bytes(begin[16:24], "little") >> 2 > 0
        count = int.from_bytes(begin[:8], "little")
        return count & 0xFFFF_FFFF > 0 and not count >> 32 & 0xFFFF

    def type_of(self, address: int) -> int:
        return self.memory.read_u64(address + self.layout.type)

    def type_name(self, type_address: int) -> str:
        return self.memory.read_c_string(self.memory.read_u64(type_address + self.layout.type_name))

    def read_str(self, address: int, max_characters: int = MAX_TEXT) -> str:
        """Return the text of a Python str in the target's memory.

        Raises:
            Unreadable: The object cannot be read, is not a str, or has more than `max_characters` characters.
        """
        length, state = self._text_head(address)
        if length > max_characters:
            raise Unreadable(f"str at {address:#x}")
        return self._letters(address, state, length)

    def read_str_head(self, address: int, letters: int, errors: str = "replace") -> str:
        """Return the first characters of a Python str in the target's memory.

        Args:
            letters: Maximum number of characters.
            errors: As in bytes.decode.

        Raises:
            Unreadable: The object cannot be read or is not a str.
        """
        length, state = self._text_head(address)
        return self._letters(address, state, min(length, letters), errors)

    def _text_head(self, address: int) -> tuple[int, int]:
        """Return the length and the state word of a Python str object."""
        length, state = self.layout.text_length, self.layout.text_state
        head = self.memory.read_memory(address, max(length + 8, state + 4))
        return int.from_bytes(head[length : length + 8], "little"), int.from_bytes(head[state : state + 4], "little")

    def _letters(self, address: int, state: int, length: int, errors: str = "replace") -> str:
        layout = self.layout
        kind = state >> layout.kind_shift & 7
        if kind not in (1, 2, 4) or not state & layout.compact:
            raise Unreadable(f"str at {address:#x}")
        start = address + (layout.text_ascii if state & layout.ascii else layout.text_compact)
        data = self.memory.read_memory(start, length * kind) if length else b""
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind], errors)

    def read_bytes_object(self, address: int, max_bytes: int = MAX_BYTES) -> bytes:
        size = self.memory.read_u64(address + self.layout.var_size)
        if size > max_bytes:
            raise Unreadable(f"bytes at {address:#x}")
        return self.memory.read_memory(address + self.layout.bytes_data, size) if size else b""

    def tuple_items(self, address: int, max_items: int = MAX_ITEMS) -> tuple[int, ...]:
        """Return the addresses of a Python tuple's items."""
        size = self.memory.read_u64(address + self.layout.var_size)
        if size > max_items:
            raise Unreadable(f"tuple at {address:#x}")
        return self.memory.read_words(address + self.layout.tuple_items, size) if size else ()

    def read_int(self, address: int) -> int:
        """Return the value of a Python int of at most three 30-bit digits."""
        layout, memory = self.layout, self.memory
        if layout.long_tag != NONE:
            tag = memory.read_u64(address + layout.long_tag)
            count, negative = tag >> 3, tag & 3 == 2
        else:
            signed = memory.read_u64(address + layout.var_size)
            negative = bool(signed >> 63)
            count = 2**64 - signed if negative else signed
        if count > 3:
            raise Unreadable(f"int at {address:#x}")
        value = sum(memory.read_u32(address + layout.long_digits + 4 * n) << 30 * n for n in range(count))
        return -value if negative else value

    def attributes(self, address: int) -> Iterator[tuple[int, int]]:
        """Yield (name address, value address) of a Python instance's attributes; its class must be written in Python.

        Raises:
            Unreadable: The instance cannot be read.
        """
        memory, layout = self.memory, self.layout
        kind = self.type_of(address)
        if self._minor < 11 or not memory.read_u64(kind + layout.type_flags) & _MANAGED_DICT:
            offset = memory.read_u64(kind + layout.dictoffset)
            if not 0 < offset < 1 << 16:
                return
            yield from self.dict_items(memory.read_u64(address + offset))
            return
        free_threaded = layout.type != 8
        held = memory.read_u64(address - (8 if free_threaded else 24))
        if self._minor == 11:
            values = memory.read_u64(address - 32)
        elif self._minor == 12:
            values, held = (held + 1, 0) if held & 1 else (0, held)
        else:
            inline = memory.read_u64(kind + layout.type_flags) & _INLINE_VALUES
            values = address + memory.read_u64(kind + layout.basicsize) if inline and not held else 0
        if not values:
            if held:
                yield from self.dict_items(held)
            return
        for at, (key, _) in enumerate(self._entries(memory.read_u64(kind + layout.cached_keys))):
            value = memory.read_u64(self.values_start(values) + 8 * at)
            if key and value:
                yield key, value

    def dict_items(self, address: int) -> Iterator[tuple[int, int]]:
        """Yield (key address, value address) of a Python dict in order. Split tables (of instances) keep their values
        separately.
        """
        keys = self.memory.read_u64(address + self.layout.dict_keys)
        values = self.memory.read_u64(address + self.layout.dict_values)
        for at, (key, value) in enumerate(self._entries(keys)):
            if values:
                value = self.memory.read_u64(self.values_start(values) + 8 * at)
            if key and value:
                yield key, value

    def dict_state(self, address: int) -> bytes:
        """Return the bytes of a Python dict that change when it gets a new key. A caller compares them to see if a dict
        must be read again.

        Raises:
            Unreadable: The dict cannot be read.
        """
        layout = self.layout
        head = self.memory.read_memory(address, max(layout.dict_keys, layout.dict_values) + 8)
        keys = int.from_bytes(head[layout.dict_keys : layout.dict_keys + 8], "little")
        return head[layout.type + 8 :] + self.memory.read_memory(keys + 8, _KEYS_HEAD - 8)

    def values_start(self, values: int) -> int:
        """Return the address of the items of a PyDictValues; since 3.13 they follow a header."""
        return values + (8 if self._minor >= 13 else 0)

    def _entries(self, keys: int) -> Iterator[tuple[int, int]]:
        memory = self.memory
        if self._minor >= 11:
            head = memory.read_memory(keys, _KEYS_HEAD)
            log2_index, kind = head[9], head[10]
            count = int.from_bytes(head[24:32], "little")
            start, size = keys + _KEYS_HEAD + (1 << log2_index), 24 if kind == 0 else 16
            if log2_index > 32:
                raise Unreadable(f"dict keys at {keys:#x}")
        else:
            # dk_refcnt, dk_size, dk_lookup, dk_usable, dk_nentries
            _, slots, _, _, count = memory.read_words(keys, 5)
            if slots > MAX_ITEMS or slots & slots - 1 or not slots:
                raise Unreadable(f"dict keys at {keys:#x}")
            width = 1 if slots <= 0xFF else 2 if slots <= 0xFFFF else 4
            start, size = keys + 40 + width * slots, 24
        if count > MAX_ITEMS:
            raise Unreadable(f"dict keys at {keys:#x}")
        data = memory.read_words(start, count * size // 8) if count else ()
        step = size // 8
        for at in range(step - 2, len(data), step):
            yield data[at], data[at + 1]


MAX_LOCALS = 64
MAX_SHOWN_ITEMS = 8
MAX_SHOWN_CHARACTERS = 80
MAX_DEPTH = 3
_READ_TEXT = 1024
"""Maximum number of characters or bytes that are read of a Python str or bytes variable. More are read than shown, so
that secrets are recognized.
"""


class LocalReader:
    """A reader of Python local variables in one process.

    With `redact`, the values of names that look secret are replaced.
    """

    def __init__(self, memory: Memory, layout: Layout, redact: bool) -> None:
        self._memory = memory
        self._layout = layout
        self._objects = Objects(memory, layout.object, layout.minor)
        self._redact = redact
        self._types: dict[int, str] = {}

    def read_locals(self, code: int, frame: int) -> dict[str, str]:
        """Return {name: repr} of a Python frame's local variables, without those that cannot be read.

        Args:
            code: avma of the frame's code object.
            frame: avma of the frame.
        """
        layout, found = self._layout, {}
        try:
            names = self._names(code)[:MAX_LOCALS]
            values = self._memory.read_words(frame + layout.frame.localsplus, len(names)) if names else ()
        except Unreadable:
            return {}
        for key, value in zip(names, values, strict=True):
            try:
                name = self._objects.read_str(key, 256)
                address = value & layout.frame.code_mask
                if address:
                    found[name] = REDACTED if self._redact and looks_secret(name) else self.format_object(address)
            except Unreadable:
                continue
        return found

    def _names(self, code: int) -> tuple[int, ...]:
        """Return the addresses of the names of a code object's local variables (localsplus). Before 3.11 cells and free
        variables have separate tables.
        """
        at = code + self._layout.code.names
        tables = (at,) if self._layout.minor >= 11 else (at, at + 16, at + 8)
        return tuple(
            name for table in tables for name in self._objects.tuple_items(self._memory.read_u64(table), 1 << 12)
        )

    def format_object(self, address: int, depth: int = 0) -> str:
        """Return a repr of limited length of the Python object at an address.

        Raises:
            Unreadable: The object cannot be read.
        """
        kind = self._type_name(address)
        objects, layout = self._objects, self._layout.object
        if kind == "NoneType":
            return "None"
        if kind == "bool":
            return str(bool(objects.read_int(address)))
        if kind == "int":
            return self._integer(address)
        if kind == "float":
            return repr(struct.unpack("<d", self._memory.read_memory(address + layout.float_value, 8))[0])
        if kind == "str":
            return _cut(repr(self._shown(self._beginning(address))))
        if kind == "bytes":
            size = min(self._memory.read_u64(address + layout.var_size), _READ_TEXT)
            data = self._memory.read_memory(address + layout.bytes_data, size) if size else b""
            return _cut(repr(self._shown(data.decode("latin-1")).encode("latin-1")))
        if kind == "cell" and depth <= MAX_DEPTH:
            held = self._memory.read_u64(address + layout.type + 8)
            return self.format_object(held, depth + 1) if held else "<empty cell>"
        if kind in ("tuple", "list", "dict") and depth < MAX_DEPTH:
            return self._container(kind, address, depth)
        return f"<{kind} at {address:#x}>"

    def _beginning(self, address: int) -> str:
        try:
            return self._objects.read_str_head(address, _READ_TEXT, "surrogatepass")
        except UnicodeDecodeError:
            return self._objects.read_str_head(address, _READ_TEXT)

    def _shown(self, text: str) -> str:
        return without_secrets(text) if self._redact else text

    def _integer(self, address: int) -> str:
        try:
            return str(self._objects.read_int(address))
        except Unreadable:
            return "<int of many digits>"

    def _container(self, kind: str, address: int, depth: int) -> str:
        if kind == "dict":
            return "{" + ", ".join(self._pairs(address, depth)) + "}"
        layout, memory = self._layout.object, self._memory
        size = memory.read_u64(address + layout.var_size)
        first = address + layout.tuple_items if kind == "tuple" else memory.read_u64(address + layout.list_items)
        count = min(size, MAX_SHOWN_ITEMS)
        items: list[str] = []
        for item in memory.read_words(first, count) if count else ():
            pair = kind == "tuple" and size == 2 and len(items) == 1
            secret = pair and self._redact and looks_secret(items[0])
            items.append(REDACTED if secret else self.format_object(item, depth + 1))
        if size > count:
            items.append(f"… {size} in all")
        if kind == "list":
            return "[" + ", ".join(items) + "]"
        return "(" + ", ".join(items) + (",)" if size == 1 else ")")

    def _pairs(self, address: int, depth: int) -> Iterator[str]:
        for nth, (key, value) in enumerate(self._objects.dict_items(address)):
            if nth == MAX_SHOWN_ITEMS:
                yield "…"
                return
            name = self.format_object(key, depth + 1)
            secret = self._redact and looks_secret(name)
            yield f"{name}: {REDACTED if secret else self.format_object(value, depth + 1)}"

    def _type_name(self, address: int) -> str:
        kind = self._objects.type_of(address)
        name = self._types.get(kind)
        if name is None:
            name = self._types[kind] = self._objects.type_name(kind)[:MAX_SHOWN_CHARACTERS]
        return name


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"
