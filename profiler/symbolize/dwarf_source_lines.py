"""Source places of addresses: the line number programs (DWARF 5, 6.2) of the units of one object file."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.symbolize import dwarf_attribute_forms as f
from pyprof.symbolize.dwarf_attribute_forms import Data, Deadline
from pyprof.symbolize.dwarf_inlined_functions import Inlines
from pyprof.symbolize.dwarf_units import COMP_DIR, DWO_NAME, GNU_DWO_NAME, MAX_OVERLAP, STMT_LIST, Dwarf, Unit

MAX_ROWS = 1 << 23
MAX_FILES = 1 << 18
_LINES = 1 << 32
"""Limit of line numbers. It packs the file and line of a row of a line table into one number: file * _LINES + line."""
_HIGHEST = 1 << 64
LNCT_PATH, LNCT_DIRECTORY_INDEX = 1, 2


class Sequence(NamedTuple):
    """A sequence of a DWARF line table: the rows with the numbers `first` to `last`, whose addresses ascend. Their code
    covers the addresses from `start` to `end`.
    """

    start: int
    end: int
    first: int
    last: int


class LineTable:
    """The DWARF line table of one unit. Its constructor raises FormatError."""

    def __init__(self, unit: Unit, deadline: Deadline) -> None:
        self._unit = unit
        self._addresses, self._rows = array("Q"), array("Q")  # an eighth of the memory of lists
        self._sequences: list[Sequence] = []
        self._directories: list[bytes] = []
        self._names: list[tuple[bytes, int]] = []
        if STMT_LIST in unit.top:
            self._read(unit.dwarf.line, unit.top[STMT_LIST][1], deadline)
        self._sequences.sort()
        self._starts = [sequence.start for sequence in self._sequences]

    def find(self, svma: int) -> tuple[str | None, int]:
        """Return (source file, line) of an address by the line table, (None, 0) if it states none."""
        at = bisect_right(self._starts, svma)
        for sequence in reversed(self._sequences[max(0, at - 8) : at]):
            if svma < sequence.end:
                row = bisect_right(self._addresses, svma, sequence.first, sequence.last) - 1
                file, line = divmod(self._rows[row], _LINES)
                return self.file(file), line
        return None, 0

    def rows_between(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (start, end, file number, line) for each row of the line table that covers a part of an address range.
        Addresses ascend within each sequence.
        """
        at = bisect_left(self._starts, end)
        for sequence in self._sequences[max(0, at - 8) : at]:
            if sequence.end <= start:
                continue
            first = max(bisect_right(self._addresses, start, sequence.first, sequence.last) - 1, sequence.first)
            for row in range(first, sequence.last):
                low = max(self._addresses[row], start)
                following = self._addresses[row + 1] if row + 1 < sequence.last else sequence.end
                if low >= end:
                    break
                if low < min(following, end):
                    yield low, min(following, end), *divmod(self._rows[row], _LINES)

    def file(self, index: int) -> str | None:
        """Return the path of a file by its number in a line table, which starts at 1 up to DWARF 4; None if it is
        invalid.
        """
        if self._version < 5:
            index -= 1
        if not 0 <= index < len(self._names):
            return None
        name, directory = self._names[index]
        if not name:
            return None
        comp_dir = self._unit.string(self._unit.top.get(COMP_DIR))
        parts = [name]
        if not name.startswith(b"/"):
            if 0 <= directory < len(self._directories):
                parts.insert(0, self._directories[directory])
            if not parts[0].startswith(b"/") and (directory or self._version < 5):
                parts.insert(0, comp_dir)
        return _normal(b"/".join(part for part in parts if part))

    _version = 5

    def _read(self, data: Data, at: int, deadline: Deadline) -> None:
        length, offset_size, at = data.unit_length(at)
        end = min(at + length, len(data))
        self._version, at = data.fixed(at, 2)
        if not 2 <= self._version <= 5:
            raise FormatError(data.name, at, f"line table version {self._version}")
        address_size = self._unit.shape.address_size
        if self._version >= 5:
            address_size, at = data.fixed(at, 1)
            at += 1
        header, at = data.fixed(at, offset_size)
        program = at + header
        step, at = data.fixed(at, 1)
        if self._version >= 4:
            at += 1
        at += 1
        base, at = data.fixed(at, 1)
        line_range, at = data.fixed(at, 1)
        opcode_base, at = data.fixed(at, 1)
        operands = [0, *data.bytes[at : at + max(opcode_base - 1, 0)]]
        at += opcode_base - 1
        if line_range == 0 or opcode_base == 0 or len(operands) < opcode_base:
            raise FormatError(data.name, at, "impossible line table header")
        if self._version >= 5:
            shape = f.FormSizes(5, offset_size, address_size)
            directories, at = self._entries(data, at, shape, deadline)
            self._directories = [path for path, _ in directories]
            self._names, at = self._entries(data, at, shape, deadline)
        else:
            self._old_names(data, at)
        base = base - 256 if base > 127 else base
        self._run(data, program, end, _Header(step, base, line_range, opcode_base, operands, address_size), deadline)

    def _old_names(self, data: Data, at: int) -> None:
        self._directories = [self._unit.string(self._unit.top.get(COMP_DIR))]
        while len(self._directories) < MAX_FILES:
            name, at = data.string(at)
            if not name:
                break
            self._directories.append(name)
        while len(self._names) < MAX_FILES:
            name, at = data.string(at)
            if not name:
                break
            directory, at = data.uleb(at)
            _, at = data.uleb(at)
            _, at = data.uleb(at)
            self._names.append((name, directory))

    def _entries(
        self, data: Data, at: int, shape: f.FormSizes, deadline: Deadline
    ) -> tuple[list[tuple[bytes, int]], int]:
        """Read (path, directory index) of each entry in a line table's list of directories or files (DWARF 5)."""
        count, at = data.fixed(at, 1)
        kinds = []
        for _ in range(count):
            kind, at = data.uleb(at)
            form, at = data.uleb(at)
            kinds.append((kind, form))
        count, at = data.uleb(at)
        if count > MAX_FILES or (count and not kinds):
            raise FormatError(data.name, at, f"{count} files")
        entries = []
        for number in range(count):
            if not number & 0xFFF:
                deadline.check()
            path, directory = b"", 0
            for kind, form in kinds:
                real, value, at = f.read_form(data, at, form, shape)
                if kind == LNCT_PATH:
                    path = data.string(value)[0] if real == f.STRING else self._unit.string((real, value))
                elif kind == LNCT_DIRECTORY_INDEX:
                    directory = value
            entries.append((path, directory))
        return entries, at

    def _run(self, data: Data, at: int, end: int, header: _Header, deadline: Deadline) -> None:  # noqa: C901
        """Run the state machine of a DWARF line number program. It ignores statement boundaries, columns and similar
        fields.
        """
        step, line_base, line_range, opcode_base, operands, address_size = header
        special = [
            ((op - opcode_base) // line_range * step, line_base + (op - opcode_base) % line_range) for op in range(256)
        ]
        code, addresses, rows = data.bytes, self._addresses, self._rows
        address, file, line = 0, 1, 1
        first, done = len(rows), 0
        while at < end:
            done += 1
            if not done & 0xFFFF:
                deadline.check()
            op = code[at]
            at += 1
            if op >= opcode_base:
                advance, delta = special[op]
                address += advance
                line += delta
                addresses.append(address % _HIGHEST)
                rows.append(file % _LINES * _LINES + line % _LINES)
            elif op == 1:
                addresses.append(address % _HIGHEST)
                rows.append(file % _LINES * _LINES + line % _LINES)
            elif op == 2:
                value, at = data.uleb(at)
                address += value * step
            elif op == 3:
                value, at = data.sleb(at)
                line += value
            elif op == 4:
                file, at = data.uleb(at)
            elif op == 8:
                address += special[255][0]
            elif op == 9:
                value, at = data.fixed(at, 2)
                address += value
            elif op == 0:
                length, at = data.uleb(at)
                following = at + length
                extended = code[at] if at < end else 0
                if extended == 1:
                    if len(rows) > first:
                        self._close(first, address)
                    address, file, line = 0, 1, 1
                    first = len(rows)
                elif extended == 2:
                    address, _ = data.fixed(at + 1, min(max(length - 1, 0), 8) or address_size)
                elif extended == 3 and len(self._names) < MAX_FILES:
                    name, after = data.string(at + 1)
                    directory, _ = data.uleb(after)
                    self._names.append((name, directory))
                at = following
            else:
                for _ in range(operands[op]):
                    _, at = data.uleb(at)
            if len(rows) > MAX_ROWS:
                raise FormatError(data.name, at, "too many lines")

    def _close(self, first: int, end: int) -> None:
        addresses = self._addresses
        last = len(addresses)
        if any(addresses[i] > addresses[i + 1] for i in range(first, last - 1)):
            order = sorted(range(first, last), key=addresses.__getitem__)
            self._rows[first:last] = array("Q", [self._rows[i] for i in order])
            addresses[first:last] = array("Q", [addresses[i] for i in order])
        if addresses[first] < end:
            self._sequences.append(Sequence(addresses[first], end, first, last))


class _Header(NamedTuple):
    step: int
    line_base: int
    line_range: int
    opcode_base: int
    operands: list[int]
    address_size: int


def _normal(path: bytes) -> str:
    """Remove "." and ".." from a path, which compilers leave in."""
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b".." and parts and parts[-1] != b"..":
            parts.pop()
        elif part and part != b".":
            parts.append(part)
    return ("/" if path.startswith(b"/") else "") + b"/".join(parts).decode("utf-8", "backslashreplace")


class SourcePlace(NamedTuple):
    """The source of one function at an address.

    Attributes:
        name: Linkage name, "" for the outermost function if it is unknown.
        file: Path of the file, None if it is unknown.
        line: Line number, 0 if it is unknown.
    """

    name: str
    file: str | None
    line: int


class SourceLines:
    """The lines and inlined functions of one object file, from its DWARF.

    Attributes:
        broken: Errors that were found.
        split: True if a unit has its entries in a .dwo file, which is not read.
    """

    def __init__(
        self, file: ObjectFile, shift: int = 0, find_alternate: Callable[[ObjectFile], ObjectFile | None] | None = None
    ) -> None:
        """Create a lookup of source lines in an object file with DWARF.

        Args:
            file: The file or its debug file.
            shift: Number to add to the debug file's addresses to get those of the file.
            find_alternate: Finds the file to which dwz moved common data.
        """
        self._dwarf = Dwarf(file, find_alternate)
        self._shift = shift
        self._ranges: list[tuple[int, int, int]] | None = None
        self._units: dict[int, tuple[LineTable | None, Inlines | None]] = {}
        self.broken: list[FormatError] = []
        self.split = False
        """True if a DWARF unit has its entries in a .dwo file, which is not read."""

    @property
    def units(self) -> int:
        """The number of DWARF units that have been read."""
        return len(self._units)

    def find(self, svma: int, deadline: Deadline) -> list[SourcePlace]:
        """Return the source places at a file address, the innermost first and the function that has the code last.

        Returns:
            [] if nothing is known.

        Raises:
            OutOfTime: The time limit was reached.
        """
        svma -= self._shift
        offset = self._unit_of(svma, deadline)
        if offset is None:
            return []
        if offset not in self._units:
            self._units[offset] = self._read(offset, deadline)
        lines, inlines = self._units[offset]
        try:
            file, line = lines.find(svma) if lines else (None, 0)
            name, chain = inlines.find(svma, deadline) if inlines else (b"", [])
        except FormatError as error:
            self.broken.append(error)
            return []
        places = []
        for inlined in reversed(chain):
            places.append(SourcePlace(_text(inlined.name), file, line))
            file = lines.file(inlined.call_file) if lines else None
            line = inlined.call_line
        places.append(SourcePlace(_text(name), file, line))
        return places

    def _unit_of(self, svma: int, deadline: Deadline) -> int | None:
        """Return the DWARF unit that has the code at an address.

        .debug_aranges is searched first. Other units are read only if it does not cover the address.
        """
        try:
            if (named := self._dwarf.aranges.find(svma)) is not None:
                return named
            if self._ranges is None:
                self._ranges = sorted(self._dwarf.other_ranges(deadline))
        except FormatError as error:
            self.broken.append(error)
            self._ranges = self._ranges or []
        at = bisect_right(self._ranges, (svma, _HIGHEST))
        for _, end, offset in reversed(self._ranges[max(0, at - MAX_OVERLAP) : at]):
            if svma < end:
                return offset
        return None

    def _read(self, offset: int, deadline: Deadline) -> tuple[LineTable | None, Inlines | None]:
        lines = inlines = None
        try:
            unit = self._dwarf.unit(offset)
            self.split = self.split or DWO_NAME in unit.top or GNU_DWO_NAME in unit.top
            lines = LineTable(unit, deadline)
            inlines = Inlines(unit, deadline)
        except FormatError as error:
            self.broken.append(error)
        return lines, inlines


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
