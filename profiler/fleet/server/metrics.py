"""The server's metrics in the Prometheus text format. Label values come from fixed sets, never from tenants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from pyprof.fleet.server.authorization import STATUS
from pyprof.fleet.server.health_checks import FAILURES
from pyprof.fleet.wire.metric_kind import MetricKind

PREFIX = "pyprof_server_"
COUNTERS = (
    MetricKind("segments", "counter", "Segments that were accepted."),
    MetricKind("segment_bytes", "counter", "Bytes of the segments that were accepted."),
    MetricKind("refused", "counter", "Requests that were refused.", ("reason", tuple(STATUS))),
    MetricKind("questions", "counter", "Queries that were answered."),
    MetricKind("questions_given_up", "counter", "Queries whose client disconnected before the response."),
    MetricKind("index_failures", "counter", "Failed insertions into the database."),
)
GAUGES = (
    MetricKind("index_waiting", "gauge", "Segments that wait for the database."),
    MetricKind("windows_without_file", "gauge", "Windows in the database whose files are gone, as after a restore."),
    MetricKind("failing", "gauge", "1 while the server is unhealthy for this reason.", ("reason", FAILURES)),
    MetricKind("start_timestamp_seconds", "gauge", "Time at which the server started."),
)


class ServerMetrics:
    """The counters and gauges of one server. The methods may be called from any thread."""

    def __init__(self, gauges: Mapping[str, Callable[[str], float]]) -> None:
        """Create the server's counters at zero.

        Args:
            gauges: For each gauge, a function from the value of its label ("" without one) to its value.
        """
        began = time.time()
        self._gauges: dict[str, Callable[[str], float]] = {"start_timestamp_seconds": lambda _: began, **gauges}
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def count(self, name: str, label: str = "", number: int = 1) -> None:
        with self._lock:
            self._counts[name, label] = self._counts.get((name, label), 0) + number

    def text(self) -> str:
        lines = []
        for metric in (*COUNTERS, *GAUGES):
            lines += [f"# TYPE {PREFIX}{metric.name} {metric.kind}", f"# HELP {PREFIX}{metric.name} {metric.help}"]
            label, values = metric.labels
            for value in values:
                number = (
                    self._gauges[metric.name](value) if metric in GAUGES else self._counts.get((metric.name, value), 0)
                )
                labels = f'{{{label}="{value}"}}' if label else ""
                suffix = "_total" if metric in COUNTERS else ""
                lines.append(f"{PREFIX}{metric.name}{suffix}{labels} {number:.15g}")
        return "\n".join([*lines, "# EOF", ""])
