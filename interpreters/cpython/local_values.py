"""Local variables of a frame as bounded text, without running code of the target.

Values of names that look secret are not read unless the user asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyprof.interpreters.cpython.layout import Layout
from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.objects import Objects
from pyprof.model.secret_text import REDACTED, looks_secret, without_secrets

MAX_LOCALS = 64
MAX_ITEMS = 8
MAX_TEXT = 80
MAX_DEPTH = 3
_READ_TEXT = 1024
"""Maximum number of characters or bytes that are read of a variable's text, to find what of it is secret."""


class LocalReader:
    """A reader of Python local variables in one process.

    redact replaces the values of names that look secret.
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
        count = min(size, MAX_ITEMS)
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
            if nth == MAX_ITEMS:
                yield "…"
                return
            name = self.format_object(key, depth + 1)
            secret = self._redact and looks_secret(name)
            yield f"{name}: {REDACTED if secret else self.format_object(value, depth + 1)}"

    def _type_name(self, address: int) -> str:
        kind = self._objects.type_of(address)
        name = self._types.get(kind)
        if name is None:
            name = self._types[kind] = self._objects.type_name(kind)[:MAX_TEXT]
        return name


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
