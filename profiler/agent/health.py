"""The agent's health, for /healthz, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from pyprof.agent.health_conditions import NOT_READY, UNHEALTHY, Conditions
from pyprof.agent.metrics import ACCURACY, CONTENT_TYPE, Gauge, Metrics, PushNumber
from pyprof.agent.own_resources import memory, spent
from pyprof.agent.push.responses import LATER
from pyprof.diagnostics import Diagnostics
from pyprof.exporters.utf8 import dump_json

SILENT_S = 30.0
"""Time in seconds after which the agent's main loop, which runs once a second, counts as stuck."""
WINDOWS = 3
"""Number of window lengths after START_S without a finished window, after which an agent with processes is
unhealthy.
"""
START_S = 60.0
"""Time in seconds in which the agent begins a recording, also again after a failure, and names its first window."""
_WAITING = frozenset(LATER.values())


class Health:
    """The agent's health. beat() is for the agent's main loop, the other methods for any thread."""

    def __init__(
        self,
        every: float,
        gauges: Mapping[str, Gauge],
        diagnostics: Diagnostics,
        conditions: Conditions,
        pushes: Callable[[], Iterable[PushNumber]] = tuple,
    ) -> None:
        """Create the agent's health, from the gauges and counters that decide it.

        Args:
            every: Length of a window in seconds.
            gauges: Gauges of the metrics, with "processes" among them; others are added here.
            diagnostics: Counters of the agent.
            conditions: Conditions of the agent; check() adds two.
            pushes: Returns the metrics of sinks.
        """
        self.every = every
        self._diagnostics, self._conditions = diagnostics, conditions
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
        self.metrics = Metrics({**gauges, **own}, lambda: self._diagnostics.counts, pushes, self._failing)

    def _accuracy(self, name: str) -> float | None:
        return self.metrics.accuracy.get(name)

    def _failing(self) -> Collection[str]:
        self.check()
        return self._conditions.reasons

    def beat(self) -> None:
        """Note that the agent's main loop runs, and write the log lines that are due."""
        self._beat = time.monotonic()
        if not self._processes():
            self._idle_at = self._beat
        self.check()
        self._conditions.write_lines()

    def reloaded(self, success: bool) -> None:
        self._reload = float(success), time.time()

    def new_counts(self) -> dict[str, int]:
        """Return by how much each counter of dropped data has grown since the last call, by its name. A segment that
        waits to be sent is not dropped.
        """
        counts = {name: count for name, count in self._diagnostics.counts.items() if name not in _WAITING}
        found = {name: count - self._reported.get(name, 0) for name, count in counts.items()}
        self._reported = counts
        return {name: count for name, count in found.items() if count}

    def check(self) -> None:
        """Begin or end the agent's conditions that follow from the time that has passed."""
        now = time.monotonic()
        self._set("loop_stuck", now - self._beat > SILENT_S)
        last = max(self.metrics.last_window_at, self._idle_at)
        self._set("no_windows", now - last > WINDOWS * self.every + START_S)

    def _set(self, reason: str, holds: bool) -> None:
        if holds:
            self._conditions.begin(reason)
        else:
            self._conditions.end(reason)

    def page(self) -> tuple[int, str, str]:
        """Return the response for the agent's /healthz: 503 if a restart may help."""
        return self._page(UNHEALTHY)

    def ready_page(self) -> tuple[int, str, str]:
        """Return the response for the agent's /readyz: 503 if data is late or lost."""
        return self._page(NOT_READY)

    def state(self) -> dict[str, object]:
        """Return the agent's status (ok, degraded or unhealthy), and its conditions that hold as failures."""
        self.check()
        failures = self._conditions.failures()
        reasons = {each["reason"] for each in failures}
        return {
            "status": "unhealthy" if reasons & UNHEALTHY else "degraded" if reasons else "ok",
            "failures": failures,
        }

    def _page(self, red: Collection[str]) -> tuple[int, str, str]:
        body = dump_json(self.state()).decode()
        is_red = not self._conditions.reasons.isdisjoint(red)
        return 503 if is_red else 200, "application/json", f"{body}\n"

    def metrics_page(self) -> tuple[int, str, str]:
        return 200, CONTENT_TYPE, self.metrics.text()
