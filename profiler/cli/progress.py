"""What is shown on standard error while recording and after it. Library code never prints; this is the rim."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyprof.cli.terminal import printable
from pyprof.model.summary import Summary
from pyprof.model.walk import StackEnd

if TYPE_CHECKING:
    from pyprof.collectors.base import CollectorStats


@dataclass
class Progress:
    """A live line on a terminal; silent where standard error is none, or with -q."""

    title: str
    quiet: bool
    interval_s: float = 0.25
    _start: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _shown: bool = False

    def update(self, stats: CollectorStats, samples: int) -> None:
        now = time.monotonic()
        if self.quiet or now < self._next or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.text import Text

        self._next = now + self.interval_s
        elapsed = now - self._start
        text = f"{self.title}  {elapsed:6.1f} s  {samples} samples  {stats.ticks / max(elapsed, 1e-9):.1f}/s"
        if len(stats.pauses):
            text += f"  pause p99 {stats.pauses.percentile_ns(99) / 1000:.0f} µs"
        if errors := sum(stats.errors.values()):
            text += f"  {errors} errors"
        console = Console(stderr=True, highlight=False)
        line = Text(printable(text) + "  (Ctrl-C to finish)", overflow="ellipsis", no_wrap=True)
        line.truncate(console.width - 1)
        try:
            sys.stderr.write("\r\x1b[K")
            console.print(line, end="")
            sys.stderr.flush()
        except OSError:  # the terminal was closed
            self.quiet = True
        self._shown = not self.quiet

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _percent(part: int, total: int) -> str:
    """With one digit, and never "100.0" of what is not all."""
    return "100.0" if part == total else f"{min(100 * part / total, 99.9):.1f}"


def summary_lines(summary: Summary, most_modules: int = 8) -> list[str]:
    """The summary as sentences, most important first."""
    lines = [
        f"{summary.samples} samples of {summary.threads} thread{'s' if summary.threads != 1 else ''} in "
        f"{summary.duration_s:.1f} s ({summary.rate_reached:.1f} of {summary.rate_wanted:g} a second reached"
        + (f", {summary.skipped} skipped)" if summary.skipped else ")")
    ]
    total = sum(summary.ends.values())
    if total:
        whole = summary.ends.get("root", 0)
        words = {end.label: end.words for end in StackEnd}
        cut = ", ".join(f"{words[k]} {n}" for k, n in sorted(summary.ends.items()) if k != "root")
        lines.append(f"stacks: {_percent(whole, total)} % whole" + (f"; cut short: {cut}" if cut else ""))
    stops = summary.stops
    if stops.count:
        lines.append(
            f"pauses: {stops.count} stops, p50 {stops.p50_us:.0f} µs, p99 {stops.p99_us:.0f} µs, "
            f"max {stops.max_us:.0f} µs; stopped {100 * stops.share:.2f} % of the time"
        )
    if summary.unchanged or summary.blocked:
        lines.append(f"without a stop: {summary.unchanged} unchanged, {summary.blocked} blocked")
    lines += [f"{key}: {count}" for key, count in sorted(summary.errors.items())]
    lines += list(summary.notes)
    listed = [m for m in summary.modules if m.problems]
    for module in listed[:most_modules]:
        for problem in module.problems:
            lines.append(f"{module.path}: {problem.text}")
            if problem.remedy:
                lines.append(f"    {problem.remedy}")
    if len(listed) > most_modules:
        lines.append(f"and {len(listed) - most_modules} more modules with missing information (--summary FILE has all)")
    return lines
