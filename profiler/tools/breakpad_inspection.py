"""The content of a Breakpad symbol file, for `pyprof inspect`: number of records of each kind, and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from pyprof.diagnostics import Diagnostics
from pyprof.errors import UnsupportedArchitecture
from pyprof.model.arch import breakpad_arch
from pyprof.objfile.base import Section
from pyprof.objfile.breakpad.records import WinRecord
from pyprof.objfile.breakpad.symbol_file import SymbolFile
from pyprof.objfile.breakpad.symbol_store import open_symbol_file
from pyprof.symbolize.demangle import demangle
from pyprof.tools.unwind_inspection import InspectedRow, Inspection
from pyprof.unwind.formats.breakpad.stack_cfi import StackCfi
from pyprof.unwind.rule_json import RuleWords
from pyprof.unwind.rules import Source

STACK_WIN = "stack_win"


class SymbolInspection(Inspection):
    """The content of one Breakpad symbol file, as `pyprof inspect` shows it.

    Addresses are relative to the module's load address. STACK WIN counts as a source for its rows only.
    """

    def __init__(self, path: str, diagnostics: Diagnostics | None = None) -> None:
        """Open a Breakpad symbol file.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file is not a symbol file.
            UnsupportedArchitecture: There are no unwind rules for its architecture.
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
