"""Functions in V8: names, scripts and lines of JavaScript functions on its heap, and numbers of WebAssembly functions.

Each frame of WebAssembly holds its instance, which refers to the jump table of its module. The table has a jump to the
current code of each function of the module. Functions that are compiled when they are first called have another entry
each: it pushes the number of the function, which counts the imported ones, too.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.runtime_code.v8.heap import V8Heap, flag_word, smi

MAX_NAME = 512
"""Maximum length of the name of a function or a script in characters."""
MAX_SOURCE = 32 << 20
"""Maximum length in characters of a script whose source is read to count its lines."""
MAX_SOURCES = 256 << 20
"""Maximum number of characters of all scripts of a process that are read to count lines."""
MAX_LINES = 1 << 22
"""Maximum number of source lines in all JavaScript files of a process together."""
MAX_SCRIPTS = 1 << 12
MAX_FUNCTIONS = 1 << 16
MAX_LOCALS = 75
"""Number of local variables from which on V8 stores their names in a separate table instead of the ScopeInfo."""

ANONYMOUS = "(anonymous)"

_POSITION_AFTER = 3
"""Maximum number of fixed slots of a V8 ScopeInfo in the versions that store a function's position after its name.
Later versions have five slots and store it elsewhere.
"""
_CLASS_VARIABLE, _FUNCTION_NAME, _INFERRED_NAME = 1 << 10, 3 << 12, 1 << 14
"""Flags of a V8 ScopeInfo, each for a part that is present: the variable of a class, the function's name, a name that
V8 has inferred.
"""
_NEW_LINE = re.compile("\r\n|[\n\r\u2028\u2029]")


@dataclass(eq=False)
class JsScript:
    """A JavaScript source file or other script that V8 has loaded.

    Attributes:
        name: Path or URL, "" if it has none.
        line_ends: Position of each line's end, ascending; empty if unknown.
    """

    name: str
    line_ends: npt.NDArray[np.int64]

    def line_at(self, position: int) -> int:
        """Return the line of a position in a script, 0 if it is unknown."""
        if position < 0 or not len(self.line_ends):
            return 0
        return min(int(np.searchsorted(self.line_ends, position)), len(self.line_ends) - 1) + 1


@dataclass(eq=False)
class JsFunction:
    """A JavaScript function.

    Attributes:
        name: Name of the function; for a function without a name, the place where it begins.
        script: The script with the function, None for a function of V8 itself.
        line: Line in which the function begins, 0 if it is not known.
        key: The fields name and script of the SharedFunctionInfo when it was read. They show whether it still describes
            the same function.
        epoch: Number of the check at which the function was last compared.
    """

    name: str
    script: JsScript | None
    line: int
    key: tuple[int, int]
    epoch: int


class JsFunctions:
    """A cache of the JavaScript functions of one V8, by the address of their SharedFunctionInfo."""

    def __init__(self, heap: V8Heap) -> None:
        self._heap = heap
        self._known: dict[int, JsFunction] = {}
        self._scripts: dict[tuple[int, int, int], JsScript] = {}
        self._characters, self._lines = MAX_SOURCES, MAX_LINES
        self.epoch = 0
        """Number of the current check of cached data. A function that was compared in an earlier check is compared
        again before it is used.
        """

    @property
    def scripts(self) -> list[int]:
        """Pointers to the scripts of the cached functions, the most recently used first."""
        return list(dict.fromkeys(pointer for pointer, _, _ in reversed(self._scripts)))

    def find(self, pointer: int) -> JsFunction | None:
        """Return the function that the SharedFunctionInfo at an address describes, or None if there is none."""
        known = self._known.get(pointer)
        if known is not None and known.epoch == self.epoch:
            return known
        heap, at = self._heap, self._heap.layout.at
        try:
            if heap.type_of(pointer) != at["type_shared"]:
                return None
            key = heap.field(pointer, at["name"]), heap.field(pointer, at["script"])
            if known is not None and known.key == key:
                known.epoch = self.epoch
                return known
            found = self._read(pointer, key)
        except FormatError:
            return None
        if len(self._known) >= MAX_FUNCTIONS:
            self._known.clear()
        self._known[pointer] = found
        return found

    def _read(self, pointer: int, key: tuple[int, int]) -> JsFunction:
        name, start = self._name_and_start(pointer, key[0])
        script = self._script(key[1])
        line = script.line_at(start) if script is not None else 0
        if not name:
            name = f"{ANONYMOUS[:-1]}:{line})" if line else ANONYMOUS
        return JsFunction(name, script, line, key, self.epoch)

    def _name_and_start(self, pointer: int, named: int) -> tuple[str, int]:
        """Return the name of a JavaScript function, "" if it has none, and the position in the script at which it
        begins, or -1.
        """
        heap = self._heap
        if heap.is_string(named):
            return heap.text(named, MAX_NAME), self._uncompiled(pointer)[1]
        if not heap.has_type(named, "type_scope"):  # a small integer: no name
            return self._uncompiled(pointer)
        return self._of_scope(named)

    def _uncompiled(self, pointer: int) -> tuple[str, int]:
        """Return the inferred name and the start of a JavaScript function that is not compiled, or ("", -1)."""
        heap, at = self._heap, self._heap.layout.at
        data = heap.field(pointer, at["function_data"])
        kinds = at["type_uncompiled_first"], at["type_uncompiled_last"]
        if not data & 1 or not kinds[0] <= heap.type_of(data) <= kinds[1]:
            return "", -1
        name = heap.field(data, at["uncompiled_name"])
        start = heap.number((data & ~3) + at["uncompiled_start"])
        return heap.text(name, MAX_NAME) if heap.is_string(name) else "", start

    def _of_scope(self, pointer: int) -> tuple[str, int]:
        """Return the name and the start of a JavaScript function from its ScopeInfo."""
        heap, layout = self._heap, self._heap.layout

        def slot(index: int) -> int:
            return heap.field(pointer, 8 + 8 * index)

        first = layout.at["scope_first"]
        flags, locals_ = flag_word(slot(0)), smi(slot(layout.at["scope_locals"]))
        if locals_ is None or not 0 <= locals_ < 1 << 16:
            raise FormatError("V8", pointer, "a ScopeInfo that is not plausible")
        at = first + (locals_ if locals_ < MAX_LOCALS else 1) + locals_
        at += bool(flags & _CLASS_VARIABLE)
        name = ""
        if flags & _FUNCTION_NAME:
            word = slot(at)
            name = heap.text(word, MAX_NAME) if heap.is_string(word) else ""
            at += 2
        if flags & _INFERRED_NAME:
            word = slot(at)
            name = name or (heap.text(word, MAX_NAME) if heap.is_string(word) else "")
            at += 1
        place = first - 2 if first > _POSITION_AFTER else at
        start, end = smi(slot(place)), smi(slot(place + 1))
        plausible = start is not None and end is not None and 0 <= start <= end
        return name, start if plausible and start is not None else -1

    def _script(self, pointer: int) -> JsScript | None:
        heap, at = self._heap, self._heap.layout.at
        if not heap.has_type(pointer, "type_script"):
            return None
        named, source = heap.field(pointer, at["script_name"]), heap.field(pointer, at["script_source"])
        key = pointer, named, source
        found = self._scripts.get(key)
        if found is None:
            name = heap.text(named, MAX_NAME) if heap.is_string(named) else ""
            if len(self._scripts) >= MAX_SCRIPTS:
                self._scripts.clear()
                self._characters, self._lines = MAX_SOURCES, MAX_LINES
            found = self._scripts[key] = JsScript(name.removeprefix("file://"), self._line_ends(pointer, source))
        return found

    def _line_ends(self, pointer: int, source: int) -> npt.NDArray[np.int64]:
        heap, at = self._heap, self._heap.layout.at
        ends = heap.field(pointer, at["line_ends"])
        found = np.zeros(0, np.int64)
        with suppress(FormatError):
            if heap.has_type(ends, "type_fixed_array"):
                found = (np.frombuffer(heap.array(ends, self._lines), "<u8") >> np.uint64(32)).astype(np.int64)
            if not len(found):
                text = heap.text(source, min(MAX_SOURCE, self._characters))
                self._characters -= len(text)
                starts = (match.start() for match in islice(_NEW_LINE.finditer(text), self._lines))
                found = np.array([*starts, len(text)], np.int64)
        self._lines = max(self._lines - len(found), 0)
        return found


MAX_ENTRIES = 1 << 17
MAX_DEPTH = 64
"""Maximum nesting of JavaScript functions that are inlined into each other."""


def read_numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers of a compressed V8 table: seven bits in each byte, the lowest bits first. A truncated number is
    left out.
    """
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift = min(shift + 7, 63)
            continue
        yield value
        value = shift = 0


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


@dataclass(frozen=True, slots=True)
class JsPosition:
    """A position in a JavaScript script, and the inlined function to which it belongs.

    Attributes:
        offset: Position in the script, -1 if it is unknown.
        inlining: Number of the inlined function, -1 for the function itself.
    """

    offset: int
    inlining: int


def unpack_position(word: int) -> JsPosition:
    """Unpack a source position of V8. The word consists of a bit for external positions, the position plus 1, and the
    number of the inlined function plus 1.
    """
    offset = -1 if word & 1 else (word >> 1 & (1 << 30) - 1) - 1
    return JsPosition(offset, (word >> 31 & 0xFFFF) - 1)


class JsPositionTable:
    """The source positions of a piece of V8's code, by offset in the code."""

    def __init__(self, data: bytes) -> None:
        """Decode a V8 table of source positions. Each row of the table has the differences to its predecessor."""
        self._offsets: list[int] = []
        self._positions: list[int] = []
        offset, position = -1, 0
        numbers = read_numbers(data)
        for coded in numbers:
            difference = next(numbers, None)
            if difference is None or len(self._offsets) >= MAX_ENTRIES:
                break
            step = _signed(coded)
            offset += step if step >= 0 else -(step + 1)
            position += _signed(difference)
            self._offsets.append(offset)
            self._positions.append(position)

    def __len__(self) -> int:
        return len(self._offsets)

    def find(self, offset: int) -> JsPosition | None:
        """Return the source position of V8's code at an offset, or None."""
        at = bisect_right(self._offsets, offset) - 1
        return unpack_position(self._positions[at] & (1 << 64) - 1) if at >= 0 else None


MAX_TABLE = 1 << 20
"""Maximum number of bytes that are read of a WebAssembly module's jump table."""
MAX_FUNCTION = 1 << 20
"""Maximum distance in bytes from an address back to the start of its WebAssembly function."""
_INSTANCE = 512
"""Number of bytes of a WebAssembly instance in which the address of its jump table is searched."""
_LINE = 64
"""Size in bytes of a line of a WebAssembly jump table, and alignment of its code."""
_PAGE = 4096
_JUMP = 0xE9
_LAZY = re.compile(rb"\x68(....)\xe9....\x68(....)\xe9", re.DOTALL)
"""Pattern of two entries of a WebAssembly jump table for functions that are not compiled yet: push number; jmp."""
_ENTRY = re.compile(rb"\x55\x48\x89\xe5\x6a\x08", re.DOTALL)
"""Pattern of the first instructions of a WebAssembly function: push %rbp; mov %rsp,%rbp; push the mark of its frame."""

Read = Callable[[int, int], bytes]


def read_wasm_functions(read: Read, instance: int) -> dict[int, int]:
    """Return the function numbers of a WebAssembly instance, by the address of each function's code.

    The numbers are -1 if V8 has compiled all functions at once (Node.js 18): then nothing states how many functions are
    imported.

    Args:
        read: Function (address, size) that returns bytes of memory, fewer where they are not readable.
        instance: Tagged pointer to the instance.
    """
    data = read(instance & ~3, _INSTANCE)
    for word in np.frombuffer(data[: len(data) & ~7], "<u8").tolist():
        if not word or word % _LINE or word >> 47:
            continue
        table = read(word, MAX_TABLE)
        if table[:1] == bytes((_JUMP,)):
            return _parse_table(word, table)
    return {}


def _parse_table(start: int, data: bytes) -> dict[int, int]:
    stride = 8 if data[5:6] != bytes((_JUMP,)) and data[8:9] == bytes((_JUMP,)) else 5
    lines = np.arange(0, len(data) - _LINE + 1, _LINE)[:, None]
    slots = (lines + np.arange(0, _LINE - stride + 1, stride)).ravel()
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets[slots] != _JUMP)
    slots = slots[: int(ends[0]) if len(ends) else len(slots)]
    if not len(slots):
        return {}
    jumps = np.ascontiguousarray(octets[slots[:, None] + np.arange(1, 5)]).view("<i4")[:, 0].astype(np.int64)
    lazy = next(
        (
            struct.unpack("<I", found[1])[0]
            for found in _LAZY.finditer(data, int(slots[-1]) + stride)
            if struct.unpack("<I", found[2])[0] == struct.unpack("<I", found[1])[0] + 1
        ),
        -1,
    )
    targets = (start + slots + 5 + jumps).tolist()
    return {target: lazy + at if lazy >= 0 else -1 for at, target in enumerate(targets)}


def find_wasm_function(read: Read, functions: dict[int, int], pc: int) -> tuple[int, int] | None:
    """Return (start, number) of the WebAssembly function at an address, or None if the jump table does not lead to the
    code at the address.

    V8 may have compiled the function again since the code ran. The number is -1 if it is unknown.
    """
    page, base = b"", -1
    for start in range(pc & -_LINE, max(pc - MAX_FUNCTION, 0), -_LINE):
        if start in functions:
            return start, functions[start]
        if start & -_PAGE != base:
            base = start & -_PAGE
            page = read(base, _PAGE)
        if not page or _ENTRY.match(page, start - base):
            return None
    return None
