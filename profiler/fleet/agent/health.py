"""The agent's health, for /healthz, /readyz and /metrics: its own cost, and the conditions that impair it.

Each condition that holds is in the log, in /healthz and in the metric pyprof_agent_failing. Its name is that of a row
of model/fleet_loss_reasons.py.

A restart loses samples and repairs neither a receiver nor a disk. So only two conditions make the agent unhealthy.
Others make it not ready (data is late or lost) or only degraded.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.fleet.agent.metrics import ACCURACY, Gauge, Metrics, PushNumber
from pyprof.fleet.openmetrics import CONTENT_TYPE
from pyprof.fleet.wire.push_response_verdicts import LATER
from pyprof.model.fleet_loss_reasons import CONDITIONS
from pyprof.model.untrusted_text import dump_json
from pyprof.problem_counters import Diagnostics

_TICKS = os.sysconf("SC_CLK_TCK")
_FIELDS = slice(11, 15)
"""Fields of /proc/PID/stat after the process name that state processor time: utime, stime, cutime and cstime (of
children that were waited for).
"""


class OwnCpu:
    """A meter of the agent's processor time. percent() returns its share of one processor since the last call."""

    def __init__(self) -> None:
        self._at, self._spent_s = time.monotonic(), spent()

    def percent(self) -> float:
        now, spent_s = time.monotonic(), spent()
        share = max(spent_s - self._spent_s, 0.0) / max(now - self._at, 1e-3)
        self._at, self._spent_s = now, spent_s
        return round(100 * share, 2)


def spent(agent: int | None = None) -> float:
    """Return the seconds of processor time that the agent has used so far, including its child processes that have
    ended.

    Args:
        agent: Pid of the agent, None for this process.
    """
    return sum(map(_of, _processes(agent))) / _TICKS


def _processes(agent: int | None) -> tuple[int, ...]:
    pid = os.getpid() if agent is None else agent
    return pid, *find_descendants([pid])


def _of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[_FIELDS]))
    except (OSError, IndexError, ValueError):
        return 0


def memory(agent: int | None = None) -> int | None:
    """Return the memory of the agent in bytes, shared memory only once (Pss); None if the kernel does not state it.

    Args:
        agent: Pid of the agent, None for this process.
    """
    found = [_pss_kb(pid) for pid in _processes(agent)]
    return None if found[0] is None else sum(kb or 0 for kb in found) << 10


def _pss_kb(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration, IndexError, ValueError):
        return None


UNHEALTHY = frozenset({"loop_stuck", "no_windows"})
"""Conditions of the agent that a restart may end; /healthz answers 503."""
NOT_READY = UNHEALTHY | {"recording_failed", "spool_disk_full", "spool_failed", "push_failing", "push_slow"}
"""Conditions of the agent under which data is late or lost; /readyz answers 503."""
MIN_INTERVAL_S = 60.0
"""Minimum time in seconds between two log lines about the beginning of the same condition with the same cause."""
REMINDER_S = 3600.0
"""Time after which the log repeats a condition of the agent that still holds, in seconds."""
EVENT_S = 600.0
"""Time in seconds for which an event, such as a refused segment, counts as a condition of the agent."""
PLACES = ("sink", "mode", "rate")
"""Fields of the log line about a condition that distinguish conditions with the same reason, such as the sink."""
FIGURES = ("needed_cpu_percent", "needed_memory")
"""Fields of a condition, such as the budget that would be needed, whose change makes the agent log the condition again.
"""
FIGURE_RISE, FIGURE_FALL = 1.05, 1.25
"""Minimum ratios by which a figure must rise or fall since the last log line before the agent logs it again. A budget
that is set to a logged figure must be enough.
"""
_ROWS = {reason.name: reason for reason in CONDITIONS}


class _Condition:
    """A reason why the agent cannot do its work, with the time since which it holds and that of its last log line."""

    def __init__(self) -> None:
        self.fields: dict[str, object] = {}
        self.began = 0.0
        self.until = -math.inf
        self._unlogged = 0
        self._logged_at: dict[str, float] = {}
        self._logged = ""
        self._logged_figures: dict[str, float] = {}

    def holds(self, now: float) -> bool:
        return now < self.until

    def renew(self, fields: dict[str, object], now: float, until: float) -> None:
        """Note that the reason still holds until a time, or that the event behind it has happened again."""
        is_new = not self.holds(now)
        if is_new:
            self.began = now
        self._unlogged += is_new or until < math.inf
        self.fields, self.until = fields, until

    def take_line(self, now: float) -> tuple[str, str, dict[str, object]] | None:
        """Return the log line that is due about a condition as (level, event, fields), or None if no line is due."""
        if not self.holds(now):
            return self._take_end(now)
        summary = str(self.fields.get("cause") or self.fields["error"])
        figures = {name: float(str(self.fields[name])) for name in FIGURES if name in self.fields}
        is_news = (
            summary != self._logged
            or (self.until < math.inf and self._unlogged)
            or _have_changed(self._logged_figures, figures)
        )
        cause = str(self.fields.get("cause", ""))  # one of a fixed set, so the number of lines is bounded
        last = self._logged_at.get(cause, -math.inf) if is_news else max(self._logged_at.values())
        if now - last < (MIN_INTERVAL_S if is_news else REMINDER_S):
            return None
        more = {"unlogged_before": self._unlogged - 1} if self._unlogged > 1 else {}
        if now >= self.began + 1:
            more["since_seconds"] = round(now - self.began)
        self._logged_at[cause], self._logged, self._unlogged = now, summary, 0
        self._logged_figures = figures
        level, event = ("error", "unhealthy") if self.fields["reason"] in UNHEALTHY else ("warning", "degraded")
        return level, event, {**self.fields, **more}

    def _take_end(self, now: float) -> tuple[str, str, dict[str, object]] | None:
        if not self._logged:
            return None
        self._logged = ""
        place = {name: self.fields[name] for name in ("reason", *PLACES) if name in self.fields}
        return "info", "healthy again", {**place, "seconds": round(now - self.began)}


def _have_changed(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return True if a figure of a condition is new, is gone, or has changed by FIGURE_RISE or FIGURE_FALL."""
    if before.keys() != after.keys():
        return True
    return any(
        value > FIGURE_RISE * before[name] or before[name] > FIGURE_FALL * value for name, value in after.items()
    )


class Conditions:
    """The conditions that keep the agent from its work, or recently did so, with their log lines. Its methods may be
    called from any thread.
    """

    def __init__(self, say: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty set of the agent's conditions. The function `say` writes a line of the log."""
        self._say, self._clock = say, clock
        self._known: dict[tuple[object, ...], _Condition] = {}
        self._lock = threading.Lock()

    def begin(self, reason: str, error: str = "", hint: str = "", **fields: object) -> None:
        """Record that a condition keeps the agent from its work, until end() is called.

        Args:
            reason: Name of the condition, a row of the table CONDITIONS.
            error: What happened, "" for the sentence of the row.
            hint: What helps, "" for the hint of the row.
            fields: The sink or mode, the cause (a word), and other fields of the log line.
        """
        self._renew(reason, error, hint, fields, math.inf)

    def note(self, reason: str, error: str = "", hint: str = "", **fields: object) -> None:
        """Record an event that hinders the agent. The event counts as a condition for EVENT_S seconds; the arguments
        are those of begin().
        """
        self._renew(reason, error, hint, fields, self._clock() + EVENT_S)

    def _renew(self, reason: str, error: str, hint: str, fields: dict[str, object], until: float) -> None:
        row = _ROWS[reason]
        found = {"reason": reason, **fields, "error": error or row.sentence, "hint": hint or row.hint}
        with self._lock:
            condition = self._known.setdefault(_key(reason, fields), _Condition())
            condition.renew(found, self._clock(), until)
        self.write_lines()

    def end(self, reason: str, **fields: object) -> None:
        """Note that a condition of the agent no longer holds."""
        with self._lock:
            condition = self._known.get(_key(reason, fields))
            if condition is None or condition.until == -math.inf:
                return
            condition.until = -math.inf
        self.write_lines()

    def write_lines(self) -> None:
        """Write the log lines about conditions that are due. The main loop calls this once a second."""
        with self._lock:
            lines = [condition.take_line(self._clock()) for condition in self._known.values()]
        for line in lines:
            if line is not None:
                level, event, fields = line
                self._say(level, event, **fields)

    def failures(self) -> list[Mapping[str, object]]:
        """Return the fields of each condition of the agent that holds. The field since_seconds says how long it has
        held.
        """
        now = self._clock()
        with self._lock:
            return [
                {**each.fields, "since_seconds": round(now - each.began)}
                for each in self._known.values()
                if each.holds(now)
            ]

    @property
    def reasons(self) -> frozenset[str]:
        """The names of the agent's conditions that hold."""
        return frozenset(str(each["reason"]) for each in self.failures())


def _key(reason: str, fields: Mapping[str, object]) -> tuple[object, ...]:
    return reason, *(fields.get(name) for name in PLACES)


SILENT_S = 30.0
"""Time in seconds after which the agent's main loop, which runs once a second, counts as stuck."""
WINDOWS = 3
"""Number of window lengths that an agent with processes may go without a finished window, in addition to START_S,
before it counts as unhealthy.
"""
START_S = 60.0
"""Time in seconds that the agent may take to start a recording, also after a failure, and to resolve the names of its
first window.
"""
_WAITING = frozenset(LATER.values())


class Health:
    """The agent's health for /healthz and /readyz: from its conditions, its counters, and the time since its main loop
    last ran. Only the main loop calls beat(); any thread may call the other methods.
    """

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
            gauges: Gauges of the metrics, with "processes" among them. The health adds its own gauges.
            diagnostics: Counters of the agent.
            conditions: Conditions of the agent. check() adds loop_stuck and no_windows.
            pushes: Function that returns the metrics of sinks.
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
        """Return by how much each counter of lost data has grown since the last call, by the counter's name. A segment
        that waits to be sent is not lost.
        """
        # The copy is atomic: its keys are texts, so no Python code runs in it. Other threads add counters meanwhile.
        counts = {name: count for name, count in dict(self._diagnostics.counts).items() if name not in _WAITING}
        found = {name: count - self._reported.get(name, 0) for name, count in counts.items()}
        self._reported = counts
        return {name: count for name, count in found.items() if count}

    def check(self) -> None:
        """Begin or end the agent's conditions that depend on elapsed time: the main loop is stuck, or no window has
        ended for long.
        """
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
