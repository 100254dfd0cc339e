"""Metrics of a running agent in the OpenMetrics text format (openmetrics.io, 1.0). Label values come from fixed sets or
are names that the operator gave to sinks. They never come from processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from pyprof.fleet.agent.control_socket import OUTCOMES
from pyprof.fleet.agent.spool import REASONS
from pyprof.fleet.openmetrics import END, MetricKind, format_metric
from pyprof.model.analysis.confidence_interval import profile_basis, sampling_basis
from pyprof.model.fleet_loss_reasons import CONDITIONS
from pyprof.model.profile import Profile
from pyprof.options import SIMPLE_MODES

PREFIX = "pyprof_agent_"
Gauge = Callable[[], float | None]
PushNumber = tuple[str, Mapping[str, str], float]
"""One value of a metric of a sink: (name of the metric, one of PUSHES; its labels; the value)."""


_CONDITION = ("reason", tuple(reason.name for reason in CONDITIONS))
_MODE, _REASON = ("mode", SIMPLE_MODES), ("reason", REASONS)
COUNTERS = (
    MetricKind("windows", "counter", "Windows that are in the spool.", _MODE),
    MetricKind(
        "windows_not_written", "counter", "Windows that could not be written to the spool when they ended.", _MODE
    ),
    MetricKind("samples", "counter", "Samples in windows.", _MODE),
    MetricKind("sampling_times_missed", "counter", "Sampling times that were missed.", _MODE),
    MetricKind("pauses", "counter", "Stops of threads for their samples.", _MODE),
    MetricKind("failures", "counter", "Recordings that ended early or could not start.", _MODE),
    MetricKind("asks", "counter", "Requested recordings, by outcome.", ("outcome", OUTCOMES)),
    MetricKind(
        "dropped", "counter", "Segments that were dropped, and files in the spool that are not segments.", _REASON
    ),
    MetricKind(
        "budget_exceeded", "counter", "Times that the budget was exceeded although the effort could not be reduced."
    ),
    MetricKind("cpu_seconds", "counter", "Processor time of the agent and its workers."),
    MetricKind("looks_failed", "counter", "Failed scans of the process list."),
    MetricKind("clock_steps", "counter", "Times that the wall clock was set while the agent ran."),
    MetricKind(
        "unrecorded_seconds",
        "counter",
        "Time between two windows that is in neither, as by a restart; also before the first window of this run.",
    ),
    MetricKind(
        "process_ends_lost", "counter", "Reports of ended processes that were lost because their ring was full."
    ),
    MetricKind(
        "unattributed_cpu_seconds",
        "counter",
        "Processor time of short-lived processes, in no service: their rule needs what ended with them (exe, cmdline, "
        "env).",
    ),
)
GAUGES = (
    MetricKind("failing", "gauge", "1 while the agent cannot do all of its work for this reason.", _CONDITION),
    MetricKind("memory_bytes", "gauge", "Memory of the agent and its workers; shared memory counts once."),
    MetricKind("processes", "gauge", "Processes that the rules select."),
    MetricKind("processes_left_out", "gauge", "Processes that the rules select and that the budget leaves out."),
    MetricKind("sampled_ratio", "gauge", "Fraction of the last window's processor time that samples stand for."),
    MetricKind("shares_samples", "gauge", "Effective number of samples in the last window (Kish)."),
    MetricKind(
        "shares_half_width_ratio",
        "gauge",
        "Half width of the 95 % confidence interval of a 50 % share in the last window, all services together.",
    ),
    MetricKind(
        "shares_half_width_widest_ratio",
        "gauge",
        "The same half width for the service with the widest interval, among those with over a second of processor "
        "time.",
    ),
    MetricKind("sampling_stride", "gauge", "One in this many sampling times is used, because of the budget."),
    MetricKind("budget_cpu_ratio", "gauge", "Budget of processor time, as a share of one processor."),
    MetricKind("budget_needed_cpu_ratio", "gauge", "Budget of processor time that would be enough, if it is exceeded."),
    MetricKind("budget_memory_bytes", "gauge", "Budget of memory."),
    MetricKind("recordings", "gauge", "Recordings under way."),
    MetricKind("kept_bytes", "gauge", "Bytes of the windows that are kept for requested recordings."),
    MetricKind("spool_bytes", "gauge", "Bytes of all segments."),
    MetricKind("spool_segments", "gauge", "Segments."),
    MetricKind("last_window_timestamp_seconds", "gauge", "Time at which the last window was recorded."),
    MetricKind("reload_success", "gauge", "1 if the configuration was valid when it was last read."),
    MetricKind("reload_timestamp_seconds", "gauge", "Time at which the configuration was last read."),
)
PUSHES = (
    MetricKind("push_queue_segments", "gauge", "Segments that a sink has not accepted yet."),
    MetricKind("push_queue_bytes", "gauge", "Bytes of the segments that a sink has not accepted yet."),
    MetricKind(
        "push_lag_seconds", "gauge", "Time since the end of the oldest window that a sink has not accepted yet."
    ),
    MetricKind(
        "push_request_seconds", "gauge", "Duration of the last request to a sink, or of a longer one that runs."
    ),
    MetricKind(
        "push_taken_timestamp_seconds", "gauge", "Time at which a sink last accepted a segment, 0 if it has not yet."
    ),
    MetricKind("push_clock_ahead_seconds", "gauge", "Time by which this host's clock is ahead of the receiver's."),
    MetricKind("push_sent", "counter", "Segments that a sink has accepted."),
    MetricKind("push_failures", "counter", "Failed attempts to send a segment to a sink, by reason."),
    MetricKind("push_lost", "counter", "Segments that the spool dropped before a sink had accepted them."),
    MetricKind("push_refused", "counter", "Segments that a sink will never accept, by reason."),
)
"""Metrics of each sink. They have the labels sink and type, and a label reason if the metric distinguishes reasons."""


WIDEST = "shares_half_width_widest_ratio"
"""Name of the gauge for the service whose shares of functions have the widest confidence interval."""
ACCURACY = ("sampled_ratio", "shares_samples", "shares_half_width_ratio", WIDEST)
"""Names of the gauges that accuracy_of() returns."""
_MIN_JUDGED_NS = 1_000_000_000
"""Minimum processor time of a service in a window, in nanoseconds, for its confidence interval to count."""


def accuracy_of(profile: Profile) -> dict[str, float]:
    """Return how accurate the shares of functions in a window are, by the names of ACCURACY. The result is empty if the
    window's values are measured and not sampled.
    """
    if (basis := profile_basis(profile)) is None:
        return {}
    services = [dict(thread.labels).get("service", "") for thread in profile.threads]
    number = {service: at for at, service in enumerate(dict.fromkeys(services))}
    row_service = np.array([number[service] for service in services], np.int64)[profile.thread]
    counts, amounts = profile.values[:, 0], profile.values[:, -1]
    widths = [basis.half_width]
    for at in number.values():
        is_own = row_service == at
        if int(amounts[is_own].sum()) > _MIN_JUDGED_NS:
            widths.append(sampling_basis(counts[is_own], amounts[is_own]).half_width)
    return dict(zip(ACCURACY, (basis.sampled, basis.samples, basis.half_width, max(widths)), strict=True))


class Metrics:
    """The metrics of an agent. count(), took() and text() may be called from any thread.

    Attributes:
        accuracy: How accurately the shares of the last window of on-CPU samples are known, by the names of ACCURACY.
    """

    def __init__(
        self,
        gauges: Mapping[str, Gauge],
        dropped: Callable[[], Mapping[str, int]],
        pushes: Callable[[], Iterable[PushNumber]] = tuple,
        failing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Create the metrics of a running agent.

        Args:
            gauges: Functions that return a number, or None if it is not known, by the name of the metric. text() calls
                them. Counters that other objects keep are among them.
            dropped: Function that returns the numbers of dropped segments by reason.
            pushes: Function that returns the metrics of sinks.
            failing: Function that returns the names of the conditions that hold.
        """
        self._pushes, self._failing = pushes, failing
        self.last_window_s = self.last_window_at = 0.0
        self.accuracy: Mapping[str, float] = {}
        self._gauges = gauges
        self._dropped = dropped
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def count(self, name: str, label: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name, label] = self._counts.get((name, label), 0) + number

    def took(self, mode: str, profile: Profile, kept: bool) -> Mapping[str, float]:
        """Add a window that the agent has recorded to its metrics. Return the accuracy of the window's shares
        (accuracy_of()).
        """
        self.last_window_s, self.last_window_at = time.time(), time.monotonic()
        summary = profile.summary
        self.count("windows" if kept else "windows_not_written", mode)
        self.count("samples", mode, summary.samples)
        self.count("sampling_times_missed", mode, summary.skipped)
        self.count("pauses", mode, summary.stops.count)
        accuracy = accuracy_of(profile)
        self.accuracy = accuracy or self.accuracy
        return accuracy

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        dropped, failing = self._dropped(), self._failing()
        for metric in (*COUNTERS, *GAUGES):
            label, values = metric.labels
            is_condition = metric.labels is _CONDITION
            numbers = (
                ({label: value}, float(value in failing) if is_condition else self._number(metric, dropped, value))
                for value in values
            )
            yield from format_metric(PREFIX, metric, numbers)
        pushed = list(self._pushes())
        for metric in PUSHES:
            of_sinks = ((labels, value) for name, labels, value in pushed if name == metric.name)
            yield from format_metric(PREFIX, metric, of_sinks)
        yield END

    def _number(self, metric: MetricKind, dropped: Mapping[str, int], value: str) -> float | None:
        if metric.name in self._gauges:
            return self._gauges[metric.name]()
        if metric.labels is _REASON:
            return dropped.get(value, 0)
        with self._lock:
            return self._counts.get((metric.name, value), 0)
