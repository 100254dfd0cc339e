"""The content of one file's unwind tables or of a symbol file, for `pyprof inspect`.

For unwind tables, the content is counts, rows, and differences between two sources. For a symbol file, it is the number
of records of each kind, and its unwind rules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from pyprof.errors import FormatError, UnsupportedArchitecture, UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch, breakpad_arch
from pyprof.objfile.base import Section
from pyprof.objfile.breakpad_records import WinRecord
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.breakpad_symbol_search import SymbolStore, open_symbol_file
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi
from pyprof.unwind.module_unwind_sources import READERS, add_symbol_reader
from pyprof.unwind.rule_text import RuleWords, format_rule_fields
from pyprof.unwind.rules import FunctionRows, Source


@dataclass(frozen=True, slots=True)
class InspectedRow:
    """One row of an unwind table of an inspected file. In a function whose rows repeat, start and end are addresses in
    the first block.
    """

    start: int
    end: int
    source: str
    function_start: int
    repeat: int
    words: RuleWords

    def to_json(self) -> dict[str, object]:
        words = self.words
        return {
            "start": f"{self.start:#x}",
            "end": f"{self.end:#x}",
            "source": self.source,
            "function_start": f"{self.function_start:#x}",
            "cfa": words.cfa,
            "ra": words.ra,
            "fp": words.fp,
            "signal": words.signal,
            "outermost": words.outermost,
            "slow": words.slow,
            "repeat": self.repeat or None,
            "text": words.text,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of addresses in the file for which two unwind sources have different rules. `first` and `second` are None
    for a source that does not cover the range.
    """

    start: int
    end: int
    first: RuleWords | None
    second: RuleWords | None

    @property
    def kind(self) -> str:
        """The kind of the difference: "differ", "only in the first", "only in the second", or "not comparable" if a
        rule is an expression.
        """
        if self.first is None or self.second is None:
            return "only in the second" if self.first is None else "only in the first"
        return "differ" if self.first.comparable and self.second.comparable else "not comparable"


class Inspection:
    """One object file for `pyprof inspect`. Its unwind sources are opened on first use.

    Attributes:
        name: Name for messages.
        build_id: Build ID, "" if there is none.
        identity: One line that identifies the file.
        records: Number of records by kind, for files that have records.
        broken: Errors of broken sources, by name.
    """

    def __init__(self, path: str, symbols: Sequence[str] = (), diagnostics: Diagnostics | None = None) -> None:
        """Open an object file to show its unwind tables.

        Args:
            path: Path of the file.
            symbols: Files and folders that may have a Breakpad symbol file for the object file.
            diagnostics: Receiver of counters of tolerated errors.

        Raises:
            OSError: The file cannot be opened.
            FormatError: The format of the file is unknown, or the file is broken.
            UnsupportedArchitecture: pyprof has no unwind rules for the architecture of the file.
        """
        self.object = open_object_file(path)
        self.name = self.object.name
        self.build_id = self.object.build_id
        self.identity = f"build-id {self.build_id or 'none'}"
        self.diagnostics = diagnostics or Diagnostics()
        self._readers = READERS
        if symbols:
            store = SymbolStore(symbols, self.diagnostics)
            self._readers = add_symbol_reader(store.find)
        arch = self.object.arch
        if arch is None:
            raise UnsupportedArchitecture(f"{path}: no rules for {self.object.machine_name}")
        self.arch: Arch = arch
        self.broken: dict[str, str] = {}

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The unwind sources that the file has, by name, in the order in which they are used."""
        found: dict[str, Source] = {}
        for name, reader in self._readers.items():
            try:
                source = reader(self.object, self.arch, self.diagnostics)
            except FormatError as error:
                self.broken[name] = error.message
                continue
            if source is not None:
                found[name] = source
        return found

    @property
    def sections(self) -> list[Section]:
        return list(self.object.sections.values())

    @property
    def oddities(self) -> list[str]:
        return self.object.oddities

    @property
    def missing(self) -> int:
        """The number of bytes by which the inspected file is truncated."""
        return self.object.missing

    @property
    def records(self) -> dict[str, int]:
        return {}

    @property
    def row_sources(self) -> list[str]:
        """The names of the unwind sources whose rows are shown by default."""
        return list(self.sources)

    def source(self, name: str) -> Source:
        """Return a source of unwind rules by its name, such as "eh_frame".

        Raises:
            UsageError: The file has no such table, or the table is broken.
        """
        if name in self.sources:
            return self.sources[name]
        if name in self.broken:
            raise UsageError(f"{self.name}: {name} is broken: {self.broken[name]}")
        raise UsageError(f"{self.name} has no {name}", f"it has: {', '.join(self.sources) or 'none'}")

    def count_functions(self, name: str) -> int | None:
        """Return the number of functions that an unwind source covers, without decoding their rows; None if the
        source's index is broken.
        """
        try:
            return len(self.sources[name].extents()[0])
        except FormatError as error:
            self.broken[name] = error.message
            return None

    @cached_property
    def symbols(self) -> SymbolTable:
        return SymbolTable(read_symbol_sources(self.object, lambda: None).rows)

    def find_functions(self, name: str) -> list[tuple[int, int]]:
        """Return (start, end) of the functions with this name, in its mangled or demangled form, as addresses in the
        file.
        """
        table = self.symbols
        names = [table.name(row) for row in range(len(table))]
        hits = [row for row, known in enumerate(names) if known == name or known.partition("@")[0] == name]
        if not hits:
            readable = demangle(names)
            hits = [
                row for row, known in enumerate(names)
                if readable[known] == name or readable[known].partition("(")[0] == name
            ]  # fmt: skip
        return [(int(table.start[row]), int(table.end[row])) for row in hits]

    def name_at(self, svma: int) -> str:
        row = int(self.symbols.find(np.array([svma], np.uint64))[0])
        if row < 0:
            return ""
        name = self.symbols.name(row)
        return demangle([name])[name]

    def read_rows(self, names: Iterable[str], ranges: list[tuple[int, int]] | None = None) -> Iterator[InspectedRow]:
        """Yield rows of the given unwind sources of a file.

        Args:
            names: Names of the sources.
            ranges: Only functions that cover an address in one of these (start, end) ranges; None for all functions.
        """
        for name in names:
            source = self.source(name)
            functions = source.functions() if ranges is None else self._covering(name, source, ranges)
            for function in functions:
                for row in list_rows(function, name, self.arch):
                    if ranges is None or any(row.start < b and a < row.end for a, b in ranges) or row.repeat:
                        yield row

    def _covering(self, name: str, source: Source, ranges: list[tuple[int, int]]) -> Iterator[FunctionRows]:
        for start, end in ranges:
            at = start
            while at < end:
                try:
                    function = source.function_at(at)
                except FormatError as error:
                    self.broken[name] = error.message
                    break
                if function is None:
                    break
                yield function
                at = max(function.end, at + 1)

    def compare_sources(self, first: str, second: str) -> Iterator[Difference]:
        """Yield the address ranges for which two unwind sources of the file have different rules, ascending. Adjacent
        ranges with the same difference are joined.
        """
        return find_differences((self, first), (self, second))


def find_differences(*sides: tuple[Inspection, str]) -> Iterator[Difference]:
    """Yield the address ranges for which two unwind sources have different rules, ascending. Adjacent ranges with the
    same difference are joined.

    Args:
        sides: The two sources, each as (file, name of the source).
    """
    return _joined(_differences(*(_spans(file.source(name).functions(), file.arch) for file, name in sides)))


def _joined(differences: Iterable[Difference]) -> Iterator[Difference]:
    pending: Difference | None = None
    for found in differences:
        same = pending and (pending.end, pending.first, pending.second) == (found.start, found.first, found.second)
        if pending and same:
            pending = Difference(pending.start, found.end, found.first, found.second)
            continue
        if pending:
            yield pending
        pending = found
    if pending:
        yield pending


def list_rows(function: FunctionRows, source: str, arch: Arch) -> Iterator[InspectedRow]:
    last = function.start + function.repeat if function.repeat else function.end
    bounds = (*function.starts, max(last, function.starts[-1]))
    for (start, end), rule in zip(pairwise(bounds), function.rules, strict=True):
        yield InspectedRow(start, end, source, function.start, function.repeat, format_rule_fields(rule, arch))


Span = tuple[int, int, RuleWords]


def _spans(functions: Iterable[FunctionRows], arch: Arch) -> list[Span]:
    """Return the unwind rows of functions as spans (start, end, rule) that do not overlap. Functions whose rows repeat
    are unrolled, and equal rules are one object.
    """
    words: dict[object, RuleWords] = {}
    spans: list[Span] = []
    for function in functions:
        step = function.repeat or function.end - function.start
        for base in range(function.start, function.end, step or 1):
            limit = min(base + step, function.end)
            starts = [start - function.start + base for start in function.starts]
            for start, end, rule in zip(starts, [*starts[1:], limit], function.rules, strict=True):
                known = words.get(rule)
                if known is None:
                    known = words[rule] = format_rule_fields(rule, arch)
                if start < min(end, limit):
                    spans.append((start, min(end, limit), known))
    spans.sort(key=lambda span: span[:2])
    return spans


def _differences(a: list[Span], b: list[Span]) -> Iterator[Difference]:
    """Yield the differences between the spans of two unwind sources. At each bound of a span a new range begins, so
    that each source has at most one rule in it.
    """
    bounds = sorted({edge for spans in (a, b) for start, end, _ in spans for edge in (start, end)})
    find_a, find_b = _finder(a), _finder(b)
    for start, end in pairwise(bounds):
        first, second = find_a(start), find_b(start)
        if first is second or (first and second and first.meaning == second.meaning):
            continue
        yield Difference(start, end, first, second)


def _finder(spans: list[Span]) -> Callable[[int], RuleWords | None]:
    starts = [span[0] for span in spans]

    def find(svma: int) -> RuleWords | None:
        at = bisect_right(starts, svma) - 1
        return spans[at][2] if at >= 0 and svma < spans[at][1] else None

    return find


STACK_WIN = "stack_win"


class SymbolInspection(Inspection):
    """The content of one Breakpad symbol file, as `pyprof inspect` shows it.

    Addresses are relative to the module's load address. STACK WIN records are a source only when rows are listed.
    """

    def __init__(self, path: str, diagnostics: Diagnostics | None = None) -> None:
        """Open a Breakpad symbol file.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file is not a symbol file.
            UnsupportedArchitecture: pyprof has no unwind rules for the architecture of the file.
        """
        self.diagnostics = diagnostics or Diagnostics()
        self.file: SymbolFile = open_symbol_file(path, self.diagnostics)
        module = self.file.module
        arch = breakpad_arch(module.arch)
        if arch is None:
            raise UnsupportedArchitecture(f"{path}: no rules for {module.arch}")
        self.arch = arch
        self.name = path
        self.broken = {}
        code = f", code id {self.file.code_id}" if self.file.code_id else ""
        self.identity = f"symbol file of {module.name} ({module.os}), id {module.id}{code}"
        self.build_id = self.file.code_id

    @cached_property
    def sources(self) -> dict[str, Source]:
        return {"breakpad": StackCfi(lambda: self.file, 0, self.arch, self.diagnostics)}

    @property
    def missing(self) -> int:
        return 0

    @property
    def sections(self) -> list[Section]:
        return []

    @property
    def oddities(self) -> list[str]:
        return []

    @property
    def records(self) -> dict[str, int]:
        """The number of records of each kind in the symbol file."""
        index = self.file.index
        found = {
            "FILE": len(index.files.number),
            "INLINE_ORIGIN": len(index.origins.number),
            "FUNC": len(index.functions),
            "PUBLIC": len(index.publics),
            "STACK CFI INIT": len(index.cfi),
            "STACK WIN frame data": len(index.win[4]),
            "STACK WIN FPO": len(index.win[0]),
        }
        return {**{kind: count for kind, count in found.items() if count}, "lines in all": index.lines}

    def find_functions(self, name: str) -> list[tuple[int, int]]:
        """Return (start, end) of the FUNC and PUBLIC records of a Breakpad symbol file that have this name.

        A PUBLIC has no size, so that its range is one byte.
        """
        hits: list[tuple[int, int]] = []
        for record in self.file.named_records():
            readable = demangle([record.name])[record.name]
            if name in (record.name, readable, readable.partition("(")[0]):
                hits.append((record.address, record.address + max(record.size, 1)))
        return hits

    def name_at(self, svma: int) -> str:
        record = self.file.function_at(svma) or self.file.public_at(svma)
        return demangle([record.name])[record.name] if record else ""

    def read_rows(self, names: Iterable[str], ranges: list[tuple[int, int]] | None = None) -> Iterator[InspectedRow]:
        names = list(names)
        yield from super().read_rows([name for name in names if name != STACK_WIN], ranges)
        if STACK_WIN in names:
            for record in self.file.win_records():
                end = record.address + record.size
                if ranges is None or any(record.address < high and low < end for low, high in ranges):
                    yield InspectedRow(record.address, end, STACK_WIN, record.address, 0, _words(record))

    @property
    def row_sources(self) -> list[str]:
        return [*self.sources, *([STACK_WIN] if any(len(found) for found in self.file.index.win.values()) else [])]


def _words(record: WinRecord) -> RuleWords:
    sizes = f"locals {record.locals}, saved {record.saved}, parameters {record.parameters}"
    if record.program:
        text = f"frame data: {record.program} ({sizes})"
    else:
        text = f"fpo: {sizes}{', pushes ebp' if record.allocates_base_pointer else ''}"
    return RuleWords("expr", "expr", "expr", signal=False, outermost=False, slow=True, text=text)
