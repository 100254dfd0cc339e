"""The function table that Go's linker writes into every program: .gopclntab, stripped or not.

Go's runtime walks stacks and prints tracebacks with it. For each function it has a name, and for each pc the size of
the frame, the source line and the inlined calls. The header's magic number is that of the Go version that introduced
the layout: 1.2, 1.16, 1.18 or 1.20. Only 64-bit little-endian tables are read.

The table is read in small pieces, on demand: the index of functions at once (8 or 16 bytes each), everything else for
the functions that a caller asks for. Each offset comes from a foreign file and is checked.
Source: cmd/link/internal/ld/pcln.go, runtime/symtab.go and debug/gosym of Go 1.15 to 1.26.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.base import ObjectFile, Segment

NAME = ".gopclntab"

GO_1_2, GO_1_16, GO_1_18, GO_1_20 = 0xFFFFFFFB, 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
_HEADER = re.compile(rb"[\xf0\xf1\xfa\xfb]\xff\xff\xff\0\0[\x01\x02\x04][\x04\x08]", re.DOTALL)
HEADER_SIZE = 72

MAX_FUNCTIONS = 1 << 22
MAX_SEARCHED = 1 << 28
"""Maximum number of bytes of a file that are searched for the header of Go's function table if no section contains
it.
"""
MAX_STEPS = 1 << 16
"""Maximum number of changes of a property, such as the frame size, within one Go function."""
MAX_NAME = 1 << 12
MAX_FUNCDATA = 64
MAX_INLINED = 256
"""Maximum number of nested inlined calls at one address of a Go program."""
MAX_RELOCATIONS = 1 << 24

_CHUNK = 1 << 20
_FIRST_STEPS = 256
"""Number of bytes that are read first of a Go value table (a property of a function by pc). Most tables are shorter."""
_NO_OFFSET = 0xFFFFFFFF
_INLINE_INDEX, _INLINE_TREE = 2, 3
"""Go's numbers of the tables of inlined calls: PCDATA_InlTreeIndex and FUNCDATA_InlTree of Go 1.16 and later."""
_MODULE_TEXT = 176
_MODULE_FUNCDATA = (320, 304, 328, 312)
"""Offset of moduledata.text in Go's runtime, and possible offsets of moduledata.gofunc, which depend on the Go
version.
"""
_PROBES, _MAX_EXAMINED = 64, 1 << 12
"""Limits of the test whether a presumed base address of Go's inline trees is right. _PROBES is the number of trees that
must be valid, _MAX_EXAMINED the maximum number of functions in which they are searched.
"""
_MAX_KEPT = 64
"""Maximum number of decoded Go value tables that are cached. A full cache is cleared."""
_MAX_WRAPPERS = 4
_TOP_FRAME = 1
"""Flag funcFlag_TOPFRAME of Go: the function is the outermost of its stack."""


class _Layout(NamedTuple):
    """The layout of Go's function table in one Go version. All numbers are offsets in bytes.

    Attributes:
        names: Offset in the header of the offset of the names; the offsets of compilation units, files, values and
            functions follow. 0 if everything is relative to the table's start.
        wide: The index has 64-bit addresses, not 32-bit offsets from the text's start.
        fields: Offset in a function's record of the offset of its name.
        unit: Offset of the record's compilation unit, 0 if there is none.
        flags: Offset of the record's flags, 0 if there are none.
        funcdata: Offset of the number of FUNCDATA entries. The PCDATA entries begin after it.
        tree_entry: Size of an entry of the inline tree, 0 if inline trees are not read.
        tree_name: Offset of the name in an entry of the inline tree. The parent's pc follows it.
    """

    names: int
    wide: bool
    fields: int
    unit: int
    flags: int
    funcdata: int
    tree_entry: int
    tree_name: int


_LAYOUTS = {
    GO_1_2: _Layout(0, True, 8, 0, 0, 39, 0, 0),
    GO_1_16: _Layout(24, True, 8, 36, 0, 43, 0, 0),
    GO_1_18: _Layout(32, False, 4, 32, 37, 39, 20, 12),
    GO_1_20: _Layout(32, False, 4, 32, 41, 43, 16, 4),
}


class Steps(NamedTuple):
    """A property of a Go function by pc, such as its frame size: values[i] is valid from ends[i - 1] up to the address
    ends[i].
    """

    ends: list[int]
    values: list[int]

    def at(self, svma: int) -> int:
        """Return the value of the property (such as the frame size) at an address of the function, or -1."""
        at = bisect_right(self.ends, svma)
        return self.values[at] if at < len(self.values) else -1


@dataclass(frozen=True, slots=True)
class GoFunction:
    """One function of a Go program's function table.

    Attributes:
        start: First address in the file (svma).
        end: Address after the function.
        name: Name as in Go's tracebacks.
        outermost: The function is the first of its stack.
        record: Offset of the function's record from the table's start.
    """

    start: int
    end: int
    name: str
    outermost: bool
    record: int


class GoPlace(NamedTuple):
    """A source place in a Go program: a function, perhaps an inlined one, with the source line at an address."""

    name: str
    file: str | None
    line: int


class GoTable:
    """The function table (.gopclntab) of one Go program."""

    def __init__(self, file: ObjectFile, svma: int) -> None:
        """Read the header of Go's function table and the index of the functions.

        Args:
            file: The file.
            svma: Address of the table.

        Raises:
            FormatError: The table is broken, or its form is not known.
        """
        self._file = file
        self._svma = svma
        self._kept: dict[tuple[int, int], Steps] = {}
        head = bytes(self._bytes(0, HEADER_SIZE))
        magic, zero, self._quantum, word = struct.unpack_from("<IHBB", head)
        layout = _LAYOUTS.get(magic)
        if layout is None or zero or self._quantum not in (1, 2, 4):
            raise FormatError(NAME, 0, f"unknown version {magic:#x}")
        if word != 8:
            raise FormatError(NAME, 7, f"addresses of {word} bytes are not supported")
        self._layout = layout
        self.count = struct.unpack_from("<Q", head, 8)[0]
        if not 0 < self.count <= MAX_FUNCTIONS:
            raise FormatError(NAME, 8, f"{self.count} functions")
        self._names = self._units = self._files = self._values = self._functions = 0
        if layout.names:
            places = struct.unpack_from("<5Q", head, layout.names)
            if any(place >= 1 << 32 for place in places):
                raise FormatError(NAME, layout.names, "offset outside of the table")
            self._names, self._units, self._files, self._values, self._functions = places
        self._read_index(16 if not layout.names else self._functions)

    def _read_index(self, at: int) -> None:
        """Read start and record offset of all Go functions. The last entry is the end of the last function."""
        wide = self._layout.wide
        entry = 16 if wide else 8
        data = bytes(self._bytes(at, self.count * entry + entry // 2))
        index = np.frombuffer(data + bytes(entry // 2), "<u8" if wide else "<u4").reshape(-1, 2)
        start = index[:, 0].astype(np.uint64)
        if np.any(start[1:] < start[:-1]):
            raise FormatError(NAME, at, "functions do not ascend")
        self.text = 0 if wide else self._text()
        self._start: npt.NDArray[np.uint64] = start + np.uint64(self.text)
        self._record: npt.NDArray[np.uint64] = index[:-1, 1].astype(np.uint64)
        first = int(self._start[0])
        if not any(load.executable and load.vaddr <= first < load.vaddr + load.memsz for load in self._file.loads):
            raise FormatError(NAME, at, "functions outside of the code")
        if not wide:
            return
        last = self.count * 16 + at + 8
        self._files = int.from_bytes(self._bytes(last, 4), "little") if not self._layout.names else self._files

    def _text(self) -> int:
        """Return the address from which the index of Go functions counts: the address in the table's header, or since
        Go 1.26 in moduledata.
        """
        return self._pointer(self._svma + 24) or self._pointer(self._module + _MODULE_TEXT if self._module else 0)

    @property
    def has_inlined_calls(self) -> bool:
        """True if the inline trees of Go functions can be read."""
        return bool(self._layout.tree_entry and self._funcdata)

    @property
    def extents(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Start and end addresses of all Go functions, each of shape (n,) uint64."""
        return self._start[:-1], self._start[1:]

    def function_at(self, svma: int) -> GoFunction | None:
        """Return the Go function that covers a file address, or None.

        Raises:
            FormatError: The function's record is broken.
        """
        if not 0 <= svma < 1 << 63:
            return None
        at = int(np.searchsorted(self._start, np.uint64(svma), "right")) - 1
        return self.function(at) if 0 <= at < self.count else None

    def find_functions(self, name: bytes) -> list[GoFunction]:
        """Return the Go functions with a given name. There may be several, because an assembly function and its
        wrappers share a name.

        Tables before Go 1.16 are not searched.

        Raises:
            FormatError: The table is broken.
        """
        names = bytes(self._file.at_svma(self._svma + self._names, max(self._units - self._names, 0)))
        offset = names.find(b"\0" + name + b"\0") + 1
        last = int(self._record.max()) + self._layout.fields + 4
        if not offset or last > MAX_SEARCHED:
            return []
        records = np.frombuffer(self._bytes(self._functions, last), np.uint8)
        at = self._record.astype(np.int64)[:, None] + self._layout.fields + np.arange(4)
        found = np.flatnonzero(np.ascontiguousarray(records[at]).view("<u4")[:, 0] == offset)
        return [self.function(at) for at in found[:_MAX_WRAPPERS].tolist()]

    def function(self, at: int) -> GoFunction:
        """Return a Go function by its index (0 <= at < count).

        Raises:
            FormatError: The function's record is broken.
        """
        layout = self._layout
        record = self._functions + int(self._record[at])
        head = self._bytes(record, layout.funcdata + 1)
        start, end = int(self._start[at]), int(self._start[at + 1])
        entry = int.from_bytes(head[: 8 if layout.wide else 4], "little") + self.text
        if entry != start:
            raise FormatError(NAME, record, "record of another function")
        name = self._text_at(self._names + _word(head, layout.fields))
        outermost = bool(layout.flags) and bool(head[layout.flags] & _TOP_FRAME)
        return GoFunction(start, end, name, outermost, record)

    def frame_sizes(self, function: GoFunction) -> Steps:
        """Return the size in bytes of the Go function's frame at each pc, without the return address.

        Raises:
            FormatError: The table is broken.
        """
        return self._steps(function, self._field(function, 3))

    def places(self, function: GoFunction, svma: int) -> list[GoPlace]:
        """Return the source places of a Go function at a lookup pc, the innermost inlined function first and the
        function itself last.

        Raises:
            FormatError: The table is broken.
        """
        files, lines = (self._steps(function, self._field(function, which)) for which in (4, 5))
        index = self._inline_index(function)
        found: list[GoPlace] = []
        at = svma
        while index is not None and len(found) < MAX_INLINED and (number := index.at(at)) >= 0:
            entry = self._tree_entry(function, number)
            if entry is None:
                break
            name, parent = entry
            found.append(GoPlace(name, self._file_name(function, files.at(at)), max(lines.at(at), 0)))
            at = function.start + parent
        found.append(GoPlace(function.name, self._file_name(function, files.at(at)), max(lines.at(at), 0)))
        return found

    def _inline_index(self, function: GoFunction) -> Steps | None:
        layout = self._layout
        if not layout.tree_entry or not self._tree(function):
            return None
        if self._pcdata_count(function) <= _INLINE_INDEX:
            return None
        offset = _word(self._bytes(function.record + layout.funcdata + 1 + 4 * _INLINE_INDEX, 4), 0)
        return self._steps(function, offset) if offset else None

    def _pcdata_count(self, function: GoFunction) -> int:
        return self._field(function, 6)

    def _tree(self, function: GoFunction, base: int | None = None) -> int:
        """Return the address of the Go function's inline tree, 0 if it has none.

        Args:
            function: The function.
            base: Address from which FUNCDATA offsets count, None for that of moduledata.
        """
        layout, pcdata = self._layout, self._pcdata_count(function)
        count = self._bytes(function.record + layout.funcdata, 1)[0]
        if not _INLINE_TREE < count <= MAX_FUNCDATA or pcdata > MAX_FUNCDATA:
            return 0
        at = function.record + layout.funcdata + 1 + 4 * (pcdata + _INLINE_TREE)
        offset = _word(self._bytes(at, 4), 0)
        base = self._funcdata if base is None else base
        return base + offset if base and offset != _NO_OFFSET else 0

    def _tree_entry(self, function: GoFunction, number: int, base: int | None = None) -> tuple[str, int] | None:
        """Return (name, parent's pc) of an inlined Go call. The pc is relative to the function's start.

        The result is None if the entry is not one of an inline tree.
        """
        layout = self._layout
        tree = self._tree(function, base)
        data = self._file.at_svma(tree + number * layout.tree_entry, layout.tree_entry)
        if not tree or number >= MAX_STEPS or len(data) < layout.tree_entry:
            return None
        name, parent = struct.unpack_from("<ii", data, layout.tree_name)
        if not 0 <= parent < function.end - function.start or name < 0:
            return None
        if name and bytes(self._bytes(self._names + name - 1, 1)) != b"\0":
            return None
        return self._text_at(self._names + name), parent

    @cached_property
    def _funcdata(self) -> int:
        """The address from which Go's FUNCDATA offsets count, as moduledata states it; 0 if moduledata was not
        found.
        """
        for field in _MODULE_FUNCDATA if self._module else ():
            base = self._pointer(self._module + field)
            if base and self._has_trees(base):
                return base
        return 0

    def _has_trees(self, base: int) -> bool:
        """Return True if the inline trees of several Go functions are valid with this base address."""
        seen = 0
        for at in range(min(self.count, _MAX_EXAMINED)):
            function = self.function(at)
            if self._tree(function, base):
                if self._tree_entry(function, 0, base) is None:
                    return False
                seen += 1
                if seen == _PROBES:
                    break
        return seen > 0

    @cached_property
    def _module(self) -> int:
        """The address of Go's moduledata, which begins with the address of this function table; 0 if not found."""
        pointer = struct.pack("<Q", self._svma)
        for load in self._file.loads:
            if load.writable and not load.executable:
                for at, data in _chunks(self._file, load):
                    place = data.find(pointer)
                    while place >= 0:
                        svma = at + place
                        if svma % 8 == 0:
                            return svma
                        place = data.find(pointer, place + 1)
        if self._relocations is None:
            return 0
        found = np.flatnonzero(self._relocations["addend"] == self._svma)
        return int(self._relocations["offset"][found[0]]) if len(found) else 0

    @cached_property
    def _relocations(self) -> npt.NDArray[np.void] | None:
        """The dynamic relocations of a Go program, which hold the pointers if it is externally linked and
        position-independent.
        """
        section = self._file.sections.get(".rela.dyn")
        if section is None or section.size > MAX_RELOCATIONS * 24:
            return None
        data = self._file.section(".rela.dyn")
        layout = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<u8")])
        return None if data is None else np.frombuffer(data, layout, len(data) // 24)

    def _pointer(self, svma: int) -> int:
        """Return the pointer that a Go program's file holds at an address. If the word is zero, its relocation gives
        the pointer.
        """
        data = self._file.at_svma(svma, 8)
        value = int.from_bytes(data, "little") if len(data) == 8 else 0
        if not value and svma and self._relocations is not None:
            found = np.flatnonzero(self._relocations["offset"] == svma)
            value = int(self._relocations["addend"][found[0]]) if len(found) else 0
        return value if value < 1 << 63 else 0

    def _field(self, function: GoFunction, number: int) -> int:
        """Return a field of a Go function's record: 3 pcsp, 4 pcfile, 5 pcln, 6 number of PCDATA tables."""
        return _word(self._bytes(function.record + self._layout.fields + 4 * number, 4), 0)

    def _file_name(self, function: GoFunction, number: int) -> str | None:
        if number < 0:
            return None
        unit = self._layout.unit
        if not unit:  # numbers count from 1 into a table of offsets
            return self._text_at(_word(self._bytes(self._files + 4 * number, 4), 0))
        first = _word(self._bytes(function.record + unit, 4), 0)
        offset = _word(self._bytes(self._units + 4 * (first + number), 4), 0)
        return None if offset == _NO_OFFSET else self._text_at(self._files + offset)

    def _text_at(self, offset: int) -> str:
        data = bytes(self._file.at_svma(self._svma + offset, MAX_NAME))
        return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def _steps(self, function: GoFunction, offset: int) -> Steps:
        """Return the values of a Go value table by pc, decoded or from the cache.

        The table consists of pairs: a change of the value (signed), and of the pc (in instructions).

        Args:
            function: The function.
            offset: Offset of the table among all value tables, 0 for none.
        """
        known = self._kept.get((function.start, offset))
        if known is not None:
            return known
        steps = Steps([], [])
        if not offset:
            return steps
        at, size = self._values + offset, _FIRST_STEPS
        while not self._decode(function, bytes(self._file.at_svma(self._svma + at, size)), size, steps):
            size *= 16
            if size > MAX_STEPS * 16:
                raise FormatError(NAME, at, "values without an end")
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[function.start, offset] = steps
        return steps

    def _decode(self, function: GoFunction, data: bytes, size: int, steps: Steps) -> bool:
        """Decode a Go value table (such as pcsp: the frame size by pc) from its first bytes.

        Args:
            function: The function.
            data: The first bytes of the table.
            size: Number of bytes that were requested. Fewer in `data` mean the end of the file.
            steps: Receives the values, which replace its former contents.

        Returns:
            False if the table is longer than `data`. The caller must then call this again with more bytes.

        Raises:
            FormatError: The table is broken.
        """
        steps.ends.clear()
        steps.values.clear()
        value, pc, at = -1, function.start, 0
        while pc < function.end:
            change, at = _varint(data, at)
            if change == 0 and at >= 0 and steps.ends:
                return True
            length, at = _varint(data, at) if at >= 0 else (0, -1)
            if at < 0:
                if len(data) < size:
                    raise FormatError(NAME, self._values, "values past the end of the table")
                return False
            value += -(change >> 1) - 1 if change & 1 else change >> 1
            pc += length * self._quantum
            steps.ends.append(min(pc, function.end))
            steps.values.append(value)
            if not length or len(steps.ends) > MAX_STEPS:
                raise FormatError(NAME, self._values, "values that do not ascend")
        return True

    def _bytes(self, offset: int, size: int) -> memoryview:
        """Return bytes of Go's function table.

        Raises:
            FormatError: The file does not have them.
        """
        data = self._file.at_svma(self._svma + offset, size)
        if len(data) < size:
            raise FormatError(NAME, offset, "past the end of the table")
        return data


def _word(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length number of Go and return (value, offset after it). The offset is -1 if the data ends
    inside the number.
    """
    value = shift = 0
    while 0 <= at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF, at
        shift += 7
    return 0, -1


def search_go_table(file: ObjectFile) -> int | None:
    """Search a Go program for the header of its function table, and return the table's address or None.

    The search serves programs without section headers, and those whose linker merged .gopclntab into another section.
    """
    for load in file.loads:
        for at, data in _chunks(file, load):
            for found in _HEADER.finditer(data):
                svma = at + found.start()
                if _is_table(file, svma):
                    return svma
    return None


def _is_table(file: ObjectFile, svma: int) -> bool:
    try:
        return bool(GoTable(file, svma).function(0).name)
    except FormatError:
        return False


def _chunks(file: ObjectFile, load: Segment) -> Iterator[tuple[int, bytes]]:
    """Yield (address, bytes) of a segment in pieces, which overlap enough for a header or a pointer at each border."""
    for at in range(0, min(load.filesz, MAX_SEARCHED), _CHUNK):
        yield load.vaddr + at, bytes(file.at_svma(load.vaddr + at, _CHUNK + 8))
