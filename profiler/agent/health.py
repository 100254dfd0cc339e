"""The agent's health, for /healthz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pyprof.agent.metrics import ACCURACY, CONTENT_TYPE, Gauge, Metrics, PushNumber
from pyprof.agent.own_cpu import memory, spent
from pyprof.agent.push.responses import LATER
from pyprof.diagnostics import Diagnostics

SILENT_S = 30.0
"""Time in seconds after which the main loop, which runs once a second, counts as stuck."""
WINDOWS = 3
"""Number of window lengths without a window after which the agent is unhealthy, if there are processes to record."""
_WAITING = frozenset(LATER.values())


class Health:
    """The agent's health. beat() is for the agent's main loop, the other methods for any thread."""

    def __init__(
        self,
        every: float,
        gauges: Mapping[str, Gauge],
        diagnostics: Diagnostics,
        pushes: Callable[[], Iterable[PushNumber]] = tuple,
    ) -> None:
        """Create the object.

        Args:
            every: Length of a window in seconds.
            gauges: Gauges of the metrics, with "processes" among them; others are added here.
            diagnostics: Counters of the agent.
            pushes: Returns the metrics of sinks.
        """
        self.every = every
        self._diagnostics = diagnostics
        self._reported: dict[str, int] = {}
        self._reload = 1.0, time.time()
        self._beat = time.monotonic()
        self._idle_at = self._beat
        self._processes = gauges["processes"]
        own: dict[str, Gauge] = {
            "cpu_seconds": spent,
            "memory_bytes": memory,
            "last_window_timestamp_seconds": lambda: self.metrics.last_window_s,
            "reload_success": lambda: self._reload[0],
            "reload_timestamp_seconds": lambda: self._reload[1],
            **{name: partial(self._accuracy, name) for name in ACCURACY},
        }
        self.metrics = Metrics({**gauges, **own}, lambda: self._diagnostics.counts, pushes)

    def _accuracy(self, name: str) -> float | None:
        return self.metrics.accuracy.get(name)

    def beat(self) -> None:
        self._beat = time.monotonic()
        if not self._processes():
            self._idle_at = self._beat

    def reloaded(self, success: bool) -> None:
        self._reload = float(success), time.time()

    def new_counts(self) -> dict[str, int]:
        """Return what was dropped since the last call. A segment that waits to be sent is not dropped."""
        counts = {name: count for name, count in self._diagnostics.counts.items() if name not in _WAITING}
        found = {name: count - self._reported.get(name, 0) for name, count in counts.items()}
        self._reported = counts
        return {name: count for name, count in found.items() if count}

    def complaint(self) -> str:
        """Return what is wrong, "" if nothing is."""
        silent_s = time.monotonic() - self._beat
        if silent_s > SILENT_S:
            return f"the agent does nothing since {silent_s:.0f} s"
        since_s = time.monotonic() - max(self.metrics.last_window_at, self._idle_at)
        if since_s > WINDOWS * self.every:
            return f"no window since {since_s:.0f} s, though there are processes to record"
        return ""

    def page(self) -> tuple[int, str, str]:
        """Return the page for /healthz."""
        complaint = self.complaint()
        return 503 if complaint else 200, "text/plain; charset=utf-8", f"{complaint or 'ok'}\n"

    def metrics_page(self) -> tuple[int, str, str]:
        return 200, CONTENT_TYPE, self.metrics.text()
