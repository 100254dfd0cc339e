"""Names from the perf map of one process, read as it grows."""

from __future__ import annotations

from pyprof.diagnostics import Diagnostics
from pyprof.model.code import CodeMap, CodeName, Span
from pyprof.objfile.growing_file import GrowingFile
from pyprof.session.code_source import Look, NoImage, Rows, RuleAt
from pyprof.symbolize.perfmap import PerfMapReader


class PerfMapCode(NoImage):
    """Implements CodeSource. file: None where there can be none (a core file, another machine)."""

    label = "perf map"
    in_memory = False

    def __init__(self, file: GrowingFile | None, diagnostics: Diagnostics) -> None:
        self.spans: CodeMap[str] = CodeMap()
        self._file = file
        self._reader = PerfMapReader(diagnostics)

    def update(self, look: Look) -> bool:
        """Never True: it has no rules."""
        if self._file is None:
            return False
        data, anew = self._file.more()
        if anew:
            self._reader.restart()
        if not data and not anew:
            return False
        lines = self._reader.read(data)
        known = {(span.start, span.end, span.value): span for span in self.spans}
        if anew:
            for key in known.keys() - set(lines):
                self.spans.remove(known[key], look.now_ns)
        fresh = [Span(*line) for line in dict.fromkeys(lines) if line not in known]
        self.spans.add(fresh, look.before_ns, look.now_ns)
        return False

    def rows(self, span: Span[str], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        return None

    def name(self, span: Span[str]) -> CodeName:
        return CodeName(span.value, span.start)
