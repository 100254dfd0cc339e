"""Names from the perf map of one process, read as it grows."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics, Problem
from pyprof.errors import FormatError
from pyprof.model.code import CodeName, Span
from pyprof.model.code_table import CodeTable, NamedRanges
from pyprof.model.reasons import problem, problem_of
from pyprof.objfile.growing_file import GrowingFile
from pyprof.objfile.held_bytes import HeldBytes
from pyprof.objfile.images import SILENT
from pyprof.runtime_code.base import CodeScan, NoImage, Rows, RuleAt, report
from pyprof.symbolize.perfmap import PerfMapReader

LINE_BYTES = 30
"""What a line takes beside its name."""


class PerfMapCode(NoImage):
    """Implements CodeSource. file: None where there can be none (a core file, another machine)."""

    label = "perf map"
    in_memory = False

    def __init__(self, file: GrowingFile | None, diagnostics: Diagnostics) -> None:
        self.spans = CodeTable()
        self._file = file
        self._diagnostics = diagnostics
        self._reader = PerfMapReader(diagnostics)
        self._held = HeldBytes("perf map")
        self._next = b"", False

    def update(self, scan: CodeScan) -> bool:
        """Never True: it has no rules."""
        if self._file is None:
            return False
        data, anew = self._file.more()
        if self._file.silent:
            self._diagnostics.count(SILENT)
            report(self._diagnostics, self.label, problem("perf_map_silent"))
            self.close()
        while self._file is not None and (data or anew):
            self._next = b"", False
            self.spans.add(self._lines(self._file, data, anew), scan.before_ns, scan.now_ns, anew)
            data, anew = self._next
        return False

    def _lines(self, file: GrowingFile, data: bytes, anew: bool) -> Iterator[NamedRanges]:
        """Up to its end, or up to where another file begins: that is next then."""
        if anew:
            self._reader.restart()
        while data:
            piece = self._reader.read(data)
            try:
                self._held.add(len(piece.names) + LINE_BYTES * len(piece.start))
            except FormatError as error:
                self._leave(problem_of(error))
                return
            yield piece
            data, anew = file.more()
            if anew:
                self._next = data, anew
                return
        if file.cut:
            self._leave(problem("code_file_too_large"))

    def _leave(self, why: Problem) -> None:
        """Read no more of it, and say so."""
        self._diagnostics.count("perf map: too large, the rest is not read")
        report(self._diagnostics, self.label, why)
        self.close()

    def close(self) -> None:
        """Read no more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def rows(self, span: Span[str], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        return None

    def name(self, span: Span[str]) -> CodeName:
        return CodeName(span.value, span.start)
