"""FUNC records of a symbol file from DWARF: functions with their lines and inlined calls, unit by unit.

The bodies of functions are written to a temporary file until all units are read, so that memory does not grow with the
binary. Files and inlined functions are numbered in the order of their use.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.file_access import current_opener
from pyprof.symbolize.dwarf.cursor import Deadline
from pyprof.symbolize.dwarf.inlined_functions import Inlined, Inlines, Subprogram
from pyprof.symbolize.dwarf.line_table import LineTable
from pyprof.symbolize.dwarf.units import Dwarf, Ranges

MAX_RANGES = 200
"""Maximum number of ranges in one Breakpad INLINE record. Breakpad reads at most 512 words of it."""

NO_FILE = -1
NO_DEADLINE = Deadline(None)


class _Body(NamedTuple):
    """A function of a Breakpad symbol file that is being written.

    Attributes:
        address: Address relative to the load address.
        size: Size in bytes.
        name: Number of its name.
        own: Number of the function's name in DWARF.
        offset: Offset of its lines and calls in the temporary file.
        length: Length of its lines and calls in bytes.
    """

    address: int
    size: int
    name: int
    own: int
    offset: int
    length: int


class Functions:
    """All functions in a file's DWARF, as a Breakpad symbol file states them. Addresses are relative to the load
    address.

    Attributes:
        files: Paths by number.
        origins: Names of inlined functions by number.
        names: Names of functions by number.
        left_out: Number of functions and units that were left out, by reason.
    """

    def __init__(
        self,
        file: ObjectFile,
        symbol: Callable[[int], str],
        find_alternate: Callable[[ObjectFile], ObjectFile | None] | None = None,
    ) -> None:
        """Read all functions of an object file's DWARF.

        Args:
            file: The file with the DWARF.
            symbol: Returns the name of the symbol that begins at an address, "" if there is none. It has priority over
                DWARF's name, which is short for functions without a linkage name.
            find_alternate: Finds the file with DWARF that dwz has moved.
        """
        self._symbol = symbol
        self._base = file.min_vaddr
        self._code = [(s.vaddr, s.vaddr + s.memsz) for s in file.loads if s.executable]
        self._numbers: dict[str, int] = {}
        self._origin_numbers: dict[str, int] = {}
        self._name_numbers: dict[str, int] = {}
        self._bodies: list[_Body] = []
        self._spool = os.fdopen(current_opener().create_scratch_file(), "w+b")
        self.left_out: Counter[str] = Counter()
        dwarf = Dwarf(file, find_alternate)
        for offset in dwarf.offsets:
            try:
                self._read_unit(dwarf, offset)
            except FormatError:
                self.left_out["units with broken DWARF"] += 1
        self._bodies.sort(key=lambda body: body.address)

    def close(self) -> None:
        self._spool.close()

    @property
    def files(self) -> list[str]:
        return list(self._numbers)

    @property
    def origins(self) -> list[str]:
        return list(self._origin_numbers)

    @property
    def names(self) -> list[str]:
        return list(self._name_numbers)

    def records(self, shown: Callable[[str], str]) -> Iterator[bytes]:
        """Yield Breakpad FUNC records with their lines and calls, ascending.

        Of several at one address, the first is used, marked "m".
        """
        names = self.names
        bodies = self._bodies
        at = 0
        while at < len(bodies):
            body, same = bodies[at], at + 1
            while same < len(bodies) and bodies[same].address == body.address:
                same += 1
            multiple = "m " * any(other.own != body.own for other in bodies[at + 1 : same])
            head = f"FUNC {multiple}{body.address:x} {body.size:x} 0 {shown(names[body.name])}\n"
            self._spool.seek(body.offset)
            yield head.encode("utf-8", "backslashreplace") + self._spool.read(body.length)
            at = same

    def extents(self) -> list[tuple[int, int]]:
        """Return (start, end) of all functions of the file's DWARF, ascending."""
        return [(body.address, body.address + body.size) for body in self._bodies]

    def _read_unit(self, dwarf: Dwarf, offset: int) -> None:
        unit = dwarf.unit(offset)
        lines, inlines = LineTable(unit, NO_DEADLINE), Inlines(unit, NO_DEADLINE)
        for start, end, function in inlines.functions():
            if not any(low <= start and end <= high for low, high in self._code):
                continue  # the linker dropped the function
            own = _text(inlines.name(function, NO_DEADLINE))
            name = self._symbol(start - self._base) or own
            if not name:
                self.left_out["functions without a name"] += 1
                continue
            body = "".join(
                [*self._calls(inlines, lines, function, start, end), *self._lines(lines, start, end)]
            ).encode()
            place = self._spool.tell()
            self._spool.write(body)
            number, own_number = (self._name_numbers.setdefault(n, len(self._name_numbers)) for n in (name, own))
            self._bodies.append(_Body(start - self._base, end - start, number, own_number, place, len(body)))

    def _lines(self, lines: LineTable, start: int, end: int) -> Iterator[str]:
        """Yield Breakpad line records of a function, with adjacent records of the same line joined."""
        pending: tuple[int, int, int, int] | None = None
        for low, high, file, line in sorted(lines.rows_between(start, end)):
            number = self._file(lines.file(file))
            if line <= 0 or number == NO_FILE:
                continue
            if pending and pending[1] == low and pending[2:] == (line, number):
                pending = (pending[0], high, line, number)
                continue
            if pending:
                yield self._line(*pending)
            pending = (low, high, line, number)
        if pending:
            yield self._line(*pending)

    def _line(self, low: int, high: int, line: int, file: int) -> str:
        return f"{low - self._base:x} {high - low:x} {line} {file}\n"

    def _calls(self, inlines: Inlines, lines: LineTable, function: Subprogram, start: int, end: int) -> Iterator[str]:
        """Yield the Breakpad INLINE records of a function in the order of the entries: each follows the one around
        it.
        """
        depths: list[int] = []
        for call in inlines.calls(function, NO_DEADLINE):
            depth = depths[call.parent] + 1 if call.parent >= 0 else 0
            depths.append(depth)
            ranges = _clipped(call.ranges, start, end)
            for at in range(0, len(ranges), MAX_RANGES):
                yield self._call(call, depth, lines, ranges[at : at + MAX_RANGES])

    def _call(self, call: Inlined, depth: int, lines: LineTable, ranges: Ranges) -> str:
        origin = self._origin_numbers.setdefault(_text(call.name) or "[inlined]", len(self._origin_numbers))
        file = self._file(lines.file(call.call_file))
        words = " ".join(f"{low - self._base:x} {high - low:x}" for low, high in ranges)
        return f"INLINE {depth} {call.call_line} {file} {origin} {words}\n"

    def _file(self, path: str | None) -> int:
        return NO_FILE if path is None else self._numbers.setdefault(path, len(self._numbers))


def _clipped(ranges: Ranges, start: int, end: int) -> Ranges:
    return [(max(low, start), min(high, end)) for low, high in ranges if low < end and high > start]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
