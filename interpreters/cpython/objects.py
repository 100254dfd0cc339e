"""Python objects in another process: strings, bytes, types, tuples, dicts, integers. All reads are bounded.

Source: unicodeobject.h, dictobject.c. In PyDictKeysObject, 3.11 and later state the kind of the entries; earlier
versions state the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.layout import NONE, ObjectLayout
from pyprof.interpreters.cpython.memory import Memory, Unreadable

MAX_TEXT = 1 << 16
MAX_BYTES = 1 << 20
MAX_ITEMS = 1 << 16
_KEYS_HEAD = 32
"""Size in bytes of the head of a PyDictKeysObject in CPython 3.11 and later; it begins with the reference count."""
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2
"""Flags of a Python type: Py_TPFLAGS_MANAGED_DICT (3.11 and later), Py_TPFLAGS_INLINE_VALUES (3.13 and later)."""


class Objects:
    """A reader of Python objects in one process; minor is the CPython version, for differences that are not offsets."""

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
        """Return the length and the state word of a Python str."""
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
        """Return bytes that change when a Python dict gets a new key.

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
