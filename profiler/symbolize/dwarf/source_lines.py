"""Source places of addresses in one object file, from units that are read on demand and cached."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.symbolize.dwarf.cursor import Deadline
from pyprof.symbolize.dwarf.inlined_functions import Inlines
from pyprof.symbolize.dwarf.line_table import LineTable
from pyprof.symbolize.dwarf.units import DWO_NAME, GNU_DWO_NAME, MAX_OVERLAP, Dwarf

_HIGHEST = 1 << 64


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
        """Return the DWARF unit of an address by .debug_aranges.

        Other units are read only if that does not cover the address.
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
