"""Names from the perf map of one process, read as it grows."""

from __future__ import annotations

from pyprof.diagnostics import Diagnostics
from pyprof.model.code import CodeMap, CodeName, Span
from pyprof.objfile.growing_file import GrowingFile
from pyprof.runtime_code.base import Look, NoImage, Rows, RuleAt
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
        before = list(self.spans) if anew else []
        fresh = [Span(*line) for line in dict.fromkeys(lines) if not self._known(line, look.now_ns)]
        self.spans.add(fresh, look.before_ns, look.now_ns)
        still = set(lines)
        for span in before:  # those that nothing has taken the place of
            if (span.start, span.end, span.value) not in still:
                self.spans.remove(span, look.now_ns)
        return False

    def _known(self, line: tuple[int, int, str], now_ns: int) -> bool:
        span = self.spans.find(line[0], now_ns)
        return span is not None and (span.start, span.end, span.value) == line

    def close(self) -> None:
        """Read no more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def rows(self, span: Span[str], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        return None

    def name(self, span: Span[str]) -> CodeName:
        return CodeName(span.value, span.start)
