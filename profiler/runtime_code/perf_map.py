"""Names from a process's perf map, read while it grows."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics, Problem
from pyprof.errors import FormatError
from pyprof.model.jit_code_map import CodeName, Span
from pyprof.model.jit_symbol_table import CodeTable, NamedRanges
from pyprof.model.reasons import problem, problem_of
from pyprof.objfile.content_limit import ContentReservation
from pyprof.objfile.growing_file import GrowingFile
from pyprof.objfile.loaded_images import SILENT
from pyprof.runtime_code.base import CodeScan, NoImage, Rows, RuleAt, report_problem
from pyprof.symbolize.perfmap import PerfMapReader

LINE_BYTES = 30
"""Memory in bytes that a line of a perf map takes in addition to its name."""


class PerfMapCode(NoImage):
    """The perf map of one process. Implements CodeSource. A core file or another machine has none."""

    label = "perf map"
    in_memory = False

    def __init__(self, file: GrowingFile | None, diagnostics: Diagnostics) -> None:
        self.spans = CodeTable()
        self._file = file
        self._diagnostics = diagnostics
        self._reader = PerfMapReader(diagnostics)
        self._held = ContentReservation("perf map")
        self._next = b"", False

    def update(self, scan: CodeScan) -> bool:
        """Read the lines that were appended to the perf map. Always returns False, because a perf map has no unwind
        rules.
        """
        if self._file is None:
            return False
        data, anew = self._file.read_appended()
        if self._file.silent:
            self._diagnostics.count(SILENT)
            report_problem(self._diagnostics, self.label, problem("perf_map_silent"))
            self.close()
        while self._file is not None and (data or anew):
            self._next = b"", False
            self.spans.add_reading(self._lines(self._file, data, anew), scan.before_ns, scan.now_ns, anew)
            data, anew = self._next
        return False

    def _lines(self, file: GrowingFile, data: bytes, anew: bool) -> Iterator[NamedRanges]:
        """Yield the names of a perf map in pieces up to the end of the file, or until another file replaces it.

        That file's first bytes are kept for later.
        """
        if anew:
            self._reader.restart()
        while data:
            piece = self._reader.read(data)
            try:
                self._held.count_bytes(len(piece.names) + LINE_BYTES * len(piece.start))
            except FormatError as error:
                self._leave(problem_of(error))
                return
            yield piece
            data, anew = file.read_appended()
            if anew:
                self._next = data, anew
                return
        if file.cut:
            self._leave(problem("code_file_too_large"))

    def _leave(self, why: Problem) -> None:
        """Report a problem with the perf map and read no more of the file."""
        self._diagnostics.count("perf_map_too_large")
        report_problem(self._diagnostics, self.label, why)
        self.close()

    def close(self) -> None:
        """Close the perf map and read no more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def rows(self, span: Span[str], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        return None

    def name(self, span: Span[str]) -> CodeName:
        return CodeName(span.value, span.start)
