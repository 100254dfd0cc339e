"""One-shot tasks of `pyprof inspect` for a worker: the overview of a file, its rows, differences between two sources.

Each task is a value that is sent to the worker (session/worker/messages.py). It contains only the names that the user
gave. The results come in pieces, so that memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pyprof.errors import FormatError, PyprofError, UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.breakpad_symbol_search import is_symbol_file
from pyprof.problem_counters import Diagnostics
from pyprof.tools.unwind_table_inspection import Difference, InspectedRow, Inspection, SymbolInspection

PIECE = 1 << 7
"""Number of rows or differences in one piece of a worker's result. A piece of this size needs no memory file, and
hundreds of pieces may be on their way from the worker.
"""
WRONG_FILE = "FILE is a program, a shared library, an object file (.o), a separate debug file or a Breakpad symbol file"


@dataclass(frozen=True, slots=True)
class FileToInspect:
    """The file that the user has named for `pyprof inspect`.

    Attributes:
        path: Path of an object file or a symbol file.
        symbols: Files and folders that may have a symbol file for the object file.
    """

    path: str
    symbols: tuple[str, ...] = ()

    def open_file(self, diagnostics: Diagnostics) -> Inspection:
        """Open the file that `pyprof inspect` shows.

        Raises:
            UnsupportedArchitecture: There are no unwind rules for its machine.
            UsageError: `symbols` is given for a symbol file.
            PyprofError: The file cannot be read.
        """
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
    """A section of an inspected file. Its address is the one that the file states (svma)."""

    name: str
    addr: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileOverview:
    """The overview of a file that `pyprof inspect` shows: sections, sources, counts.

    Attributes:
        name: Name of the file.
        arch: Name of the architecture.
        build_id: Build ID, "" if there is none.
        identity: One line that identifies the file.
        sections: Sections of the file.
        records: Number of records by kind, for a symbol file.
        functions: Number of functions that each source covers, None if its index is broken.
        problems: Descriptions of errors.
        missing: Number of bytes by which the file is truncated.
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
    """A one-shot task for a worker that returns the overview of a file for `pyprof inspect`, in one piece."""

    file: FileToInspect

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FileOverview]:
        inspection = self.file.open_file(diagnostics)
        functions = {name: inspection.count_functions(name) for name in inspection.sources}
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
    """A piece of the unwind rows of a file. The last piece has no rows; instead it has the fields from `sources` on.

    Attributes:
        rows: The rows.
        names: Names of the functions, by their start address in the file.
        sources: Names of the sources that were read.
        broken: Error of each broken source.
        missing: Number of bytes by which the file is truncated.
    """

    rows: tuple[InspectedRow, ...]
    names: dict[int, str]
    sources: tuple[str, ...] = ()
    broken: dict[str, str] | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class RowsOf:
    """A one-shot task for a worker that returns unwind rows of a file for `pyprof inspect`.

    Attributes:
        file: The file.
        source: Name of the source whose rows are returned, "" for all sources.
        function: Name of the function whose rows are returned, "" for all functions.
        pc: Address in the file whose row is returned, None for all addresses.
    """

    file: FileToInspect
    source: str = ""
    function: str = ""
    pc: int | None = None

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeRows]:
        inspection = self.file.open_file(diagnostics)
        names = [self.source] if self.source else inspection.row_sources
        ranges = self._ranges(inspection)
        rows = (row for row in inspection.read_rows(names, ranges) if self.pc is None or _holds(row, self.pc))
        for some in _in_pieces(self.file, rows):
            starts = {row.function_start for row in some} if ranges else ()
            yield SomeRows(some, {start: inspection.name_at(start) for start in starts})
        yield SomeRows((), {}, tuple(names), inspection.broken, inspection.missing)

    def _ranges(self, inspection: Inspection) -> list[tuple[int, int]] | None:
        """Return the (start, end) ranges of file addresses whose unwind rows are wanted, or None for the whole file."""
        if self.pc is not None:
            return [(self.pc, self.pc + 1)]
        if not self.function:
            return None
        ranges = inspection.find_functions(self.function)
        if not ranges:
            raise UsageError(f"{self.file.path} names no function {self.function!r}", "pyprof inspect FILE --pc 0x…")
        return ranges


def _holds(row: InspectedRow, svma: int) -> bool:
    at = row.function_start + (svma - row.function_start) % row.repeat if row.repeat else svma
    return row.start <= at < row.end


@dataclass(frozen=True, slots=True)
class SomeDifferences:
    """A piece of the differences between two unwind sources. The last piece has no differences, but the number of bytes
    by which the file is truncated.
    """

    differences: tuple[Difference, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True)
class DifferencesOf:
    """A one-shot task for a worker that returns the differences between two unwind sources of a file, given by their
    names.
    """

    file: FileToInspect
    first: str
    second: str

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeDifferences]:
        inspection = self.file.open_file(diagnostics)
        for some in _in_pieces(self.file, inspection.compare_sources(self.first, self.second)):
            yield SomeDifferences(some)
        yield SomeDifferences((), inspection.missing)


Item = TypeVar("Item")


def _in_pieces(file: FileToInspect, items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Yield rows or differences in tuples of at most PIECE elements.

    Raises:
        PyprofError: The file is broken.
    """
    rest = iter(items)
    try:
        while some := tuple(islice(rest, PIECE)):
            yield some
    except FormatError as error:
        raise PyprofError(f"{file.path}: {error.message}") from error
