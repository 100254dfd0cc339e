"""The server's health checks, and its metrics in the Prometheus text format.

The server is healthy while the disk takes segments and the database answers. Label values of metrics come from fixed
sets, never from tenants.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from pyprof.errors import PyprofError
from pyprof.fleet.openmetrics import END, MetricKind, format_metric
from pyprof.fleet.server.authorization import STATUS
from pyprof.model.fleet_loss_reasons import REQUESTS

CHECK_INTERVAL_S = 5.0
"""Time between two health checks of the server, in seconds."""
MAX_CHECK_S = 15.0
"""Time in seconds after which a health check of the server that has not ended counts as failed."""
DISK_FULL, STORE_FAILED, STORE_REBUILDING = "disk_full", "store_failed", "store_rebuilding"
FAILURES = (DISK_FULL, STORE_FAILED, STORE_REBUILDING)
"""Reasons for which the server can be unhealthy. Each is a row of the table of reasons."""
RELOAD_FAILED = "reload_failed"
"""Reason that /healthz states while the server works with an earlier configuration. It is a row of the table of
reasons.
"""
SENTENCES = {reason.name: reason.sentence for reason in REQUESTS}
"""The sentence of each reason for which the server refuses a request or is unhealthy."""
_HINTS = {reason.name: reason.hint for reason in REQUESTS}


class CheckFailed(PyprofError):
    """A health check found a failure. The hint says what helps against it."""


class ServerHealth:
    """The failures that make the server unhealthy. Each health check runs in its own thread, because a check may hang.

    Methods may be called from any thread.

    Attributes:
        reload_error: What was wrong with the configuration at the last reload, "" for nothing.
    """

    def __init__(self, checks: Mapping[str, Callable[[], None]], say: Callable[..., None]) -> None:
        """Create the server's health checks without running them.

        Args:
            checks: For each reason of FAILURES, a function that raises an error if the server has this failure.
            say: Function that writes a line of the log.
        """
        self._checks = checks
        self._say = say
        self.reload_error = ""
        self._failures: dict[str, str] = {}
        self._hints: dict[str, str] = {}
        self._checked: set[str] = set()
        self._began: dict[str, float] = {}
        self._ending = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        for reason in self._checks:
            threading.Thread(target=self._run, args=(reason,), name="pyprof health", daemon=True).start()

    def close(self) -> None:
        """Stop the health checks, without waiting for a check that hangs."""
        self._ending.set()

    @property
    def is_checked(self) -> bool:
        """True after all health checks have run once."""
        return self._checked == self._checks.keys()

    @property
    def failures(self) -> dict[str, str]:
        """The failures for which the server is unhealthy: a sentence by the name of each reason."""
        for reason in self._checks:
            if self._check_seconds(reason) > MAX_CHECK_S:
                self.report_failure(reason, f"The check has not ended for {self._check_seconds(reason):.0f} s.")
        with self._lock:
            return dict(self._failures)

    def hint(self, reason: str) -> str:
        """Return what helps against a failure, "" if nothing is known."""
        with self._lock:
            return self._hints.get(reason, "")

    def report_failure(self, reason: str, text: str = "", hint: str = "") -> None:
        """Note that the server cannot do a part of its work, for a reason of FAILURES.

        Args:
            text: What is wrong, "" for the sentence of the reason.
            hint: What helps, "" for the hint of the reason.
        """
        hint = hint or _HINTS[reason]
        with self._lock:
            is_new = reason not in self._failures
            self._failures[reason], self._hints[reason] = text or SENTENCES[reason], hint
        if is_new:
            more = {"hint": hint} if hint else {}
            self._say("error", "unhealthy", reason=reason, error=text or SENTENCES[reason], **more)

    def report_success(self, reason: str) -> None:
        """Note that a reason for which the server was unhealthy no longer holds."""
        with self._lock:
            was_failing = self._failures.pop(reason, None) is not None
        if was_failing:
            self._say("info", "healthy again", reason=reason)

    def check_now(self) -> None:
        """Run each health check of the server once."""
        for reason in self._checks:
            self._check(reason)

    def _check_seconds(self, reason: str) -> float:
        """Return for how many seconds the present health check of a reason has been running, 0 if none runs."""
        now = time.monotonic()
        return now - self._began.get(reason, now)

    def _check(self, reason: str) -> None:
        self._began[reason] = time.monotonic()
        failure = hint = ""
        try:
            self._checks[reason]()
        except CheckFailed as error:
            failure, hint = str(error), error.hint
        except Exception as error:  # noqa: BLE001 - without this thread /healthz would never change again
            failure = str(error) if isinstance(error, OSError | PyprofError) else f"{type(error).__name__}: {error}"
        self._began.pop(reason)
        if failure:
            self.report_failure(reason, failure, hint)
        else:
            self.report_success(reason)
        self._checked.add(reason)

    def _run(self, reason: str) -> None:
        while not self._ending.is_set():
            self._check(reason)
            self._ending.wait(CHECK_INTERVAL_S)


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
    MetricKind("reload_success", "gauge", "1 if tenants and tokens were valid when they were last read."),
    MetricKind("start_timestamp_seconds", "gauge", "Time at which the server started."),
)


class ServerMetrics:
    """The counters and gauges of one server. The methods may be called from any thread."""

    def __init__(self, gauges: Mapping[str, Callable[[str], float]]) -> None:
        """Create the server's counters at zero.

        Args:
            gauges: For each gauge, a function that returns its value for a value of its label ("" if the gauge has no
                label).
        """
        began = time.time()
        self._gauges: dict[str, Callable[[str], float]] = {"start_timestamp_seconds": lambda _: began, **gauges}
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def count(self, name: str, label: str = "", number: int = 1) -> None:
        with self._lock:
            self._counts[name, label] = self._counts.get((name, label), 0) + number

    def text(self) -> str:
        lines = [
            line for metric in (*COUNTERS, *GAUGES) for line in format_metric(PREFIX, metric, self._values(metric))
        ]
        return "\n".join([*lines, END, ""])

    def _values(self, metric: MetricKind) -> Iterator[tuple[dict[str, str], float]]:
        label, values = metric.labels
        for value in values:
            gauge = self._gauges.get(metric.name)
            yield {label: value}, gauge(value) if gauge else self._counts.get((metric.name, value), 0)
