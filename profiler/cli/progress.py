"""Progress on standard error while recording. Only the command line prints; library code never does."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyprof.cli.number_format import many, shorten
from pyprof.cli.terminal_output import columns, printable
from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.collectors.base import CollectorStats

_GLANCE_S = 0.1


@dataclass
class Progress:
    """A live line on a terminal. It is silent if standard error is not a terminal, or with -q.

    Attributes:
        duration_s: Length of the recording, None if not known.
    """

    title: str
    quiet: bool
    duration_s: float | None = None
    interval_s: float = 0.25
    _start: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _shown: bool = False

    @property
    def is_shown(self) -> bool:
        return not self.quiet and sys.stderr.isatty()

    def begin(self) -> None:
        """Restart the clock of the progress line."""
        self._start = time.monotonic()

    def update(self, stats: Callable[[], CollectorStats], samples: int) -> None:
        """Draw the progress line if it is due; stats is only called then."""
        now = time.monotonic()
        if now < self._next or not self.is_shown:
            return
        self._next = now + self.interval_s
        self._show(self.line(now - self._start, stats(), samples, columns() - 1))

    def line(self, elapsed_s: float, stats: CollectorStats, samples: int, width: int) -> str:
        """Format the progress line in at most width characters, the most important parts first."""
        left = ""
        if self.duration_s is not None:
            left = f", {max(self.duration_s - elapsed_s, 0):.0f} s left"
        parts = [f"{elapsed_s:.0f} s{left}", many(samples, "sample")]
        if self.duration_s is None:
            parts.append("Ctrl-C to finish")
        if len(stats.pauses):
            parts.append(f"stops of {stats.pauses.percentile_ns(50) / 1000:.0f} µs")
        text = shorten(printable(self.title), max(width - len(parts[0]) - 2, 8))
        for part in parts:
            if len(text) + 2 + len(part) <= width:
                text += f"  {part}"
        return text[:width]

    def wait(self, ended: Callable[[], bool]) -> None:
        """Wait for the recorded command to end, with a progress line that says so; without a terminal return at
        once.
        """
        start = time.monotonic()
        while not self.quiet and sys.stderr.isatty() and not ended():
            self._show(f"{printable(self.title)}  waiting for it to end, {time.monotonic() - start:.0f} s")
            time.sleep(_GLANCE_S)
        self.clear()

    def _show(self, text: str) -> None:
        """Replace the progress line on the terminal."""
        width = columns() - 1
        try:
            sys.stderr.write("\r\x1b[K" + shorten(text, width))
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
