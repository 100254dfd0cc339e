"""What a worker says of one file: its overview, its rows, where two of its sources differ. For `pyprof inspect`.

Each of the three is an errand (session/worker/messages.py): a value that the worker is sent, and that has no more than
the names that the user gave. Out: values in pieces, so that memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError, PyprofError, UsageError
from pyprof.objfile.breakpad.symbol_store import is_symbol_file
from pyprof.records import dataclass
from pyprof.tools.inspection import Difference, InspectedRow, Inspection
from pyprof.tools.symbol_inspection import SymbolInspection

PIECE = 1 << 7
"""Rows or differences of one piece: so many that it needs no memory file, of which hundreds may be under way."""
WRONG_FILE = "FILE is a program, a shared library, an object file (.o), a separate debug file or a Breakpad symbol file"


@dataclass(frozen=True, slots=True)
class FileToInspect:
    """path: of an object file or a symbol file. symbols: where a symbol file of it may be."""

    path: str
    symbols: tuple[str, ...] = ()

    def opened(self, diagnostics: Diagnostics) -> Inspection:
        """Raises UnsupportedArchitecture, UsageError, PyprofError."""
        try:
            if not is_symbol_file(self.path):
                return Inspection(self.path, self.symbols, diagnostics)
            if self.symbols:
                raise UsageError(f"--symbols: {self.path} is a symbol file itself")
            return SymbolInspection(self.path, diagnostics)
        except OSError as error:
            raise PyprofError(f"{self.path}: {error.strerror}") from error
        except FormatError as error:
            raise PyprofError(f"{self.path}: {error.message}", WRONG_FILE) from error


@dataclass(frozen=True, slots=True)
class ListedSection:
    """addr: svma."""

    name: str
    addr: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileOverview:
    """functions: source -> how many it covers, None: its index is broken. records, identity: see Inspection. missing:
    bytes that were cut off.
    """

    name: str
    arch: str
    build_id: str
    identity: str
    sections: tuple[ListedSection, ...]
    records: dict[str, int]
    functions: dict[str, int | None]
    problems: tuple[str, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class OverviewOf:
    """An errand of one piece."""

    file: FileToInspect

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FileOverview]:
        inspection = self.file.opened(diagnostics)
        functions = {name: inspection.count(name) for name in inspection.sources}
        yield FileOverview(
            inspection.name,
            inspection.arch.name,
            inspection.build_id,
            inspection.identity,
            tuple(ListedSection(s.name, s.addr, s.offset, s.size) for s in inspection.sections),
            inspection.records,
            functions,
            tuple(_problems(inspection)),
            inspection.missing,
        )


def _problems(inspection: Inspection) -> list[str]:
    wrong = [*inspection.broken.values(), *inspection.oddities]
    wrong += [f"{key} ({number})" for key, number in sorted(inspection.diagnostics.counts.items())]
    for problems in inspection.diagnostics.problems.values():
        wrong += [problem.text for problem in sorted(problems)]
    return wrong


@dataclass(frozen=True, slots=True)
class SomeRows:
    """names: of the functions that begin at these svma. The last piece has no rows: sources: those that were asked;
    broken: what went wrong, by source; missing: bytes that were cut off.
    """

    rows: tuple[InspectedRow, ...]
    names: dict[int, str]
    sources: tuple[str, ...] = ()
    broken: dict[str, str] | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class RowsOf:
    """An errand. source, function: only theirs, "" for all. pc: only the row of this svma."""

    file: FileToInspect
    source: str = ""
    function: str = ""
    pc: int | None = None

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeRows]:
        inspection = self.file.opened(diagnostics)
        names = [self.source] if self.source else inspection.row_sources
        ranges = self._ranges(inspection)
        rows = (row for row in inspection.rows(names, ranges) if self.pc is None or _holds(row, self.pc))
        for some in _in_pieces(self.file, rows):
            starts = {row.function_start for row in some} if ranges else ()
            yield SomeRows(some, {start: inspection.name_at(start) for start in starts})
        yield SomeRows((), {}, tuple(names), inspection.broken, inspection.missing)

    def _ranges(self, inspection: Inspection) -> list[tuple[int, int]] | None:
        """Of svma; None: all of the file."""
        if self.pc is not None:
            return [(self.pc, self.pc + 1)]
        if not self.function:
            return None
        ranges = inspection.named(self.function)
        if not ranges:
            raise UsageError(f"{self.file.path} names no function {self.function!r}", "pyprof inspect FILE --pc 0x…")
        return ranges


def _holds(row: InspectedRow, svma: int) -> bool:
    at = row.function_start + (svma - row.function_start) % row.repeat if row.repeat else svma
    return row.start <= at < row.end


@dataclass(frozen=True, slots=True)
class SomeDifferences:
    """The last piece has none. missing: see SomeRows."""

    differences: tuple[Difference, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True)
class DifferencesOf:
    """An errand. first, second: names of sources."""

    file: FileToInspect
    first: str
    second: str

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeDifferences]:
        inspection = self.file.opened(diagnostics)
        for some in _in_pieces(self.file, inspection.compare(self.first, self.second)):
            yield SomeDifferences(some)
        yield SomeDifferences((), inspection.missing)


Item = TypeVar("Item")


def _in_pieces(file: FileToInspect, items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Raises PyprofError where the file turns out to be broken."""
    rest = iter(items)
    try:
        while some := tuple(islice(rest, PIECE)):
            yield some
    except FormatError as error:
        raise PyprofError(f"{file.path}: {error.message}") from error
