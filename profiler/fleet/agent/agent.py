"""The agent as a whole: rules, collectors, windows, the spool. Agent.run() records until Agent.end() is called."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyprof.errors import PyprofError
from pyprof.fleet.agent.config import AgentConfig, Values, nameless_hosts
from pyprof.fleet.agent.control_socket import ControlSocket, Peer
from pyprof.fleet.agent.ended_process_cpu_time import EndedProcesses
from pyprof.fleet.agent.health import Conditions, Health
from pyprof.fleet.agent.last_minutes import LastMinutes
from pyprof.fleet.agent.metrics import Gauge
from pyprof.fleet.agent.overhead_budget import BudgetControl
from pyprof.fleet.agent.process_group_recording import SampledGroup
from pyprof.fleet.agent.process_rules import SamplingChoice
from pyprof.fleet.agent.process_table import LOOK_S, ProcessTable
from pyprof.fleet.agent.push_sink_queues import Pushers
from pyprof.fleet.agent.requested_recordings import OnDemand, RecordedNow
from pyprof.fleet.agent.sampling_effort_controller import FIRST_SETTLING, CostBudget
from pyprof.fleet.agent.spool import NO_ROOM, Caps, Spool
from pyprof.fleet.agent.windows import (
    ClockSteps,
    UnrecordedTime,
    WindowClock,
    WindowPart,
    count_processes,
    excess_seconds,
    find_unattributed,
    labelled,
    packed,
    restored,
    segments,
)
from pyprof.fleet.file_system_calls import has_room, locked
from pyprof.fleet.systemd import Notifier
from pyprof.fleet.wire.segment_names import default_spool
from pyprof.model.profile import Profile
from pyprof.model.thread_identity import Labels
from pyprof.model.untrusted_text import dump_json
from pyprof.problem_counters import Diagnostics
from pyprof.session import process_priority

if TYPE_CHECKING:
    from pyprof.fleet.agent.http_endpoints import HttpPages

Say = Callable[..., None]
"""Function that writes (level, event, **fields) as one line of the agent's log."""
_ANSWERED_S = 0.8
"""Time in seconds after the request to end the agent in which clients of its control socket still get a response."""
_LAST_PUSH_S = 3.0
"""Time in seconds that an ending agent gives its sinks to send the last segments."""
_LATEST_PUSH_S = 6.0
"""Latest end of the sinks' last sends, in seconds after the clients of the control socket have got their time
(_ANSWERED_S). It holds however long the last window took.
"""
_DRAW_S = 600.0
"""Interval in seconds in which the agent chooses other processes to record, if its budget permits only a part of them.
Each choice costs the reading of the processes' files.
"""
_REFUSALS_S = 10.0
"""Minimum interval in seconds between log lines of the agent about refused requests; /metrics counts all of them."""


FAULT_HINT = "this is a fault of pyprof: please report the traceback, which the log has as unexpected error"
"""Hint of the condition recording_failed after an error that pyprof does not expect."""


class Agent:
    """The agent. run() starts its recordings and returns after end(). Any thread may call end() and reload()."""

    def __init__(self, load: Callable[[], AgentConfig], say: Say, notifier: Notifier) -> None:
        """Create an agent from its configuration. run() starts it.

        Args:
            load: Function that reads the configuration again.
            say: Function that writes a line of the log.
            notifier: Object that notifies systemd.
        """
        self._load, self._say, self._notifier = load, say, notifier
        self._config = load()
        values = self._config.values
        self._lock = locked(values.path or default_spool())
        self._diagnostics = Diagnostics()
        caps = Caps(values.max_bytes, values.max_files, values.max_age)
        sinks = [target.name for target in self._config.pushes]
        root = values.path or default_spool()
        self._minutes = LastMinutes(root, values.last, values.disk, self._diagnostics)
        self.spool = Spool(root, caps, self._diagnostics, None, sinks, spare=self._minutes.clear, restore=restored)
        self._writing = threading.Lock()
        self._conditions = Conditions(say)
        self._pushers = Pushers(self.spool, self._writing, self._conditions, self._diagnostics)
        self._budget = BudgetControl(_budget(values), say, self._conditions)
        self._ended = EndedProcesses()
        self._wake = threading.Event()
        self._ending = self._reloading = False
        self._on_demand = OnDemand(lambda: RecordedNow(self._config.values, self._table, self._lanes), self._minutes)
        self._socket = ControlSocket(self._on_demand.answer, self._asked, self.state)
        self._refusal_said = -_REFUSALS_S
        self._answer_until = 0.0
        self._draw_at = 0.0
        self._starts = 0
        self._steps, self._unrecorded = ClockSteps(say), UnrecordedTime(self._conditions)
        self._begin()
        numbers = self._pushers.numbers
        self._health = Health(values.every, self._gauges(), self._diagnostics, self._conditions, numbers)
        self._lost = Counter[str]()
        self._logged_faults: set[type[BaseException]] = set()

    def _gauges(self) -> dict[str, Gauge]:
        return {
            "processes": lambda: sum(bool(seen.verdict.samplings) for seen in self._table.by_pid.values()),
            "processes_left_out": self._left_out,
            "sampling_stride": lambda: self._budget.stride.every,
            "budget_exceeded": lambda: self._budget.exceeded,
            "budget_cpu_ratio": lambda: self._config.values.cpu / 100,
            "budget_needed_cpu_ratio": lambda: self._budget.needed_cpu,
            "budget_memory_bytes": lambda: self._config.values.memory,
            "looks_failed": lambda: self._table.failed,
            "clock_steps": lambda: self._steps.count,
            "unrecorded_seconds": lambda: self._unrecorded.total_ns / 1e9,
            "process_ends_lost": lambda: self._ended.lost,
            "unattributed_cpu_seconds": lambda: self._ended.unattributed_ns / 1e9,
            "recordings": lambda: sum(lane.running for lane in self._lanes),
            "kept_bytes": self._minutes.bytes,
            "spool_bytes": lambda: self.spool.inventory.bytes,
            "spool_segments": lambda: len(self.spool.inventory),
        }

    def _left_out(self) -> int:
        chosen = {pid for pid, seen in self._table.by_pid.items() if seen.verdict.samplings}
        return len(chosen.difference(*(self._table.recorded(lane.sampling) for lane in self._lanes)))

    def state(self) -> bytes:
        """Return the state of the agent as JSON, for `pyprof agent status`. Any thread may call this."""
        rules = [{"rule": at + 1, "criteria": text} for at, text in self._table.unmatched_rules().items()]
        more = {
            "pid": os.getpid(),
            "budget": self._budget.status(),
            "unmatched_rules": rules,
            "sinks": self._pushers.states(),
        }
        return dump_json({**self._health.state(), **more})

    def _begin(self) -> None:
        """Start the recordings of the agent by its current configuration."""
        config = self._config
        self._table = ProcessTable(config.rules, os.getpid())
        self._table.one_in = self._budget.effort.processes
        clock = WindowClock(config.values.every)
        self._lanes = [
            SampledGroup(
                sampling,
                config.values,
                self._table,
                clock,
                self._budget.stride,
                self._took,
                self._save,
                self._failed,
            )
            for sampling in config.samplings()
        ]
        for lane in self._lanes:
            lane.when_idle = partial(self._unrecorded.reset, lane.sampling)
        self._ended.begin(self._table, self._lanes)
        for text in nameless_hosts(config):
            self._say("warning", "host without a name", error=text)
        if self._ending:
            self._table.leave()

    def end(self) -> None:
        """End all recordings of the agent and stop a running search for processes. Any thread may call this."""
        self._answer_until = self._answer_until or time.monotonic() + _ANSWERED_S
        process_priority.raise_priority(os.getpid())  # what ends a machine or a service waits for this process
        self._ending = True
        self._wake.set()
        self._table.leave()
        self._on_demand.end()
        for lane in self._lanes:
            lane.end()

    @property
    def left(self) -> bool:
        """True after run() if a recording did not end. Its window is not written, and one of its threads still runs."""
        return any(lane.left.is_set() for lane in self._lanes)

    @property
    def opening(self) -> bool:
        """True after run() if a recording is still attaching to its processes, in a thread that still runs."""
        return any(lane.running for lane in self._lanes)

    def reload(self) -> None:
        self._reloading = True
        self._wake.set()

    def run(self) -> None:
        """Run the agent until end() is called.

        Raises:
            OSError: The spool cannot be read.
            UsageError: The port is in use, or the group does not exist.
        """
        with contextlib.closing(self._pages()) if self._config.values.port else contextlib.nullcontext():
            self._run()

    def _pages(self) -> HttpPages:
        from pyprof.fleet.agent.http_endpoints import HttpPages  # most agents have none

        health = self._health
        pages = {"/metrics": health.metrics_page, "/healthz": health.page, "/readyz": health.ready_page}
        return HttpPages(self._config.values.port, pages)

    def _run(self) -> None:
        self.spool.open()
        self.spool.probe()
        self._report_spool()
        self._unrecorded.begin(max((name.end_ns for name in self.spool.inventory.all()), default=0))
        self._minutes.open()
        self._open_socket()
        self._say("info", "started", **self._of_spool())
        if self._config.values.collector in ("auto", "bpf"):
            self._ended.open(self._say)
        self._pushers.begin(self._config.pushes)
        self._notifier.send("READY=1")
        while not self._ending:
            if self._reloading:
                self._reload()
            for lane in self._lanes:
                if not self._ending:
                    lane.tend()
            self._table.find_processes()
            self._ended.attribute_ends()
            self._keep_budget()
            self._tend_idle_spool()
            self._steps.total_ns()
            self._pushers.check_speed()
            self._health.beat()
            self._notifier.report(self._conditions.reasons)
            self._notifier.alive()
            self._wake.wait(LOOK_S)
            self._wake.clear()
        self._notifier.send("STOPPING=1")
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.finish()
        self._ended.close()
        self._socket.close(self._answer_until)
        waiting = self._pushers.finish(min(time.monotonic() + _LAST_PUSH_S, self._answer_until + _LATEST_PUSH_S))
        self._say("info", "ended", **({"waiting_segments": waiting} if waiting else {}))

    def _open_socket(self) -> None:
        try:
            self._socket.begin(self.spool.root, self._config.values.group)
        except OSError as error:
            self._say("warning", "control socket failed", error=str(error))

    def _restore_spool(self) -> bool:
        """Create what the agent needs in its spool again if something has removed the folder or emptied it. Return True
        if that was necessary and succeeded.
        """
        root = self.spool.root
        try:
            if not self._is_own_folder():
                lock = locked(root)
                os.close(self._lock)
                self._lock = lock
                error = f"{root}: the folder was removed while the agent used it; the agent has created it again"
            elif self._socket.is_removed() or self._minutes.is_removed() or self.spool.is_removed():
                error = f"{root}: files were removed while the agent used them; the agent has created what it needs"
            else:
                return False
            self._conditions.begin("spool_failed", error, "find out what removed it")
            self.spool.reopen()
            self._minutes.open()
            self._open_socket()
        except (PyprofError, OSError) as error:
            self._report_disk(str(error))
            return False
        return True

    def _tend_idle_spool(self) -> None:
        """Create what the spool lacks again while nothing is recorded. Otherwise the next checkpoint does so."""
        if not any(lane.running for lane in self._lanes):
            with self._writing:
                if self._restore_spool():
                    self._report_spool()

    def _is_own_folder(self) -> bool:
        """Return True if the path of the spool is still the folder that the agent has locked."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.spool.root), os.fstat(self._lock))
        return False

    def _keep_budget(self) -> None:
        starts = sum(lane.starts for lane in self._lanes)
        is_opening = any(lane.is_opening for lane in self._lanes)
        if (starts or is_opening) and not self._starts:
            self._budget.exclude_cost(FIRST_SETTLING)
        elif self._on_demand.under_way or is_opening or starts != self._starts:  # files are read for the first time
            self._budget.exclude_cost()
        self._starts = starts
        if self._budget.check_budget():
            before, self._table.one_in = self._table.one_in, self._budget.effort.processes
            if self._table.one_in > before:
                self._draw_processes()
        elif self._table.one_in > 1 and time.monotonic() >= self._draw_at:
            self._budget.exclude_cost()
            self._draw_processes()

    def _draw_processes(self) -> None:
        """Choose at random which processes are recorded, if the budget permits only a part of them. The recordings are
        restarted with this choice.
        """
        self._draw_at = time.monotonic() + _DRAW_S
        recent_ns: dict[tuple[int, int], int] = {}
        for lane in self._lanes:
            recent_ns.update(lane.recent_ns)
        self._table.draw(recent_ns)
        for lane in self._lanes:
            lane.begin_anew()

    def _close(self) -> None:
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.close()

    def _reload(self) -> None:
        """Load the agent's configuration again. If it is wrong, nothing changes. Recordings continue if they do not
        depend on what has changed, because a restart leaves a gap.
        """
        self._reloading = False
        self._notifier.reloading()
        try:
            config = self._load()
            self._pushers.begin(config.pushes)
        except (PyprofError, OSError) as error:
            self._conditions.begin("reload_failed", str(error))
            self._health.reloaded(False)
        else:
            continues = config.is_recorded_like(self._config)
            if continues:
                self._config = config
                self._budget.change_budget(_budget(config.values))
            else:
                self._record_by(config)
            self._health.reloaded(True)
            self._conditions.end("reload_failed")
            self._say(
                "info",
                "reloaded",
                rules=len(config.rules),
                sinks=len(config.pushes),
                recordings="unchanged" if continues else "restarted",
            )
        self._notifier.send("READY=1")

    def _record_by(self, config: AgentConfig) -> None:
        """End all recordings of the agent, and start those that a new configuration requests."""
        self._close()
        self._config = config
        self._budget.begin(_budget(config.values))
        self._begin()
        self._health.every = config.values.every

    def _of_spool(self) -> dict[str, int]:
        spool = self.spool
        found = {"spool_segments": len(spool.inventory), "spool_bytes": spool.inventory.bytes}
        return {**found, "recovered": spool.recovered} if spool.recovered else found

    def _save(self, sampling: SamplingChoice, part: WindowPart, window: str) -> bool:
        labels = self._table.labels(time.monotonic() - self._config.values.every)
        data = packed(part, self._budget.notes(), labels)
        with self._writing:
            self._restore_spool()
            is_stored = self.spool.save(window, time.time_ns(), data)
            if not is_stored:
                self._report_spool()
        return is_stored

    def _took(self, sampling: SamplingChoice, profile: Profile, window: str) -> None:
        seen = self._table.recorded(sampling)
        services: dict[str, set[int]] = {}
        labels: dict[str, Labels] = {}
        for pid, each in seen.items():
            services.setdefault(each.verdict.service, set()).add(pid)
            labels.setdefault(each.verdict.service, each.verdict.labels)
        profile = labelled(self._budget.noted(profile), self._table.verdict)
        found = segments(profile, services, window, labels=labels)
        start_ns = profile.start_ns
        with self._writing:
            self._unrecorded.add_window(sampling, start_ns, start_ns + profile.duration_ns, self._steps.count)
            self._restore_spool()
            kept = self.spool.store_window(found, window)
            recovered = self.spool.recover_waiting() if kept else 0
            if accuracy := self._health.metrics.took(sampling.mode, profile, kept):
                self._budget.judge_accuracy(accuracy)
            self._report_spool()
            if sampling.mode == "cpu":
                self._judge_unattributed(find_unattributed(profile, self._ended.take_unattributed()))
            if excess_s := excess_seconds(profile, os.cpu_count() or 1):
                self._conditions.note("impossible_sum", excess_seconds=round(excess_s, 1), mode=sampling.mode)
            if recovered:
                self._say("info", "window recovered", segments=recovered)
            self._conditions.end("recording_failed", mode=sampling.mode, rate=sampling.rate)
            inventory, dropped = self.spool.inventory, self._health.new_counts()
            self._say(
                "info" if kept else "error",
                "window" if kept else "window not written",
                mode=sampling.mode,
                rate=sampling.rate,
                seconds=round(profile.duration_ns / 1e9, 1),
                services=len(found),
                **count_processes(profile, self._table.matching(sampling).keys(), seen.keys()),
                samples=profile.summary.samples,
                own_cpu_percent=self._budget.own_cpu.percent(),
                spool_segments=len(inventory),
                spool_bytes=inventory.bytes,
                **({"dropped": dropped} if dropped else {}),
            )
            has_copy = not (kept and profile.summary.samples) or self._minutes.store_window(profile)
            if not has_copy and not self._minutes.is_removed():  # _restore_spool() creates the folder again
                self._report_disk(
                    "the copy of a window for pyprof agent record was not stored; the spool has the window"
                )

    def _judge_unattributed(self, found: Mapping[str, float]) -> None:
        """Begin or end the condition unattributed_time, by the service that lacks the largest share in a window."""
        if found:
            service, share = max(found.items(), key=lambda item: item[1])
            self._conditions.begin("unattributed_time", service=service, missing_percent=round(100 * share))
        else:
            self._conditions.end("unattributed_time")

    def _report_spool(self) -> None:
        """Begin or end the health conditions that concern the spool, and report the segments that were dropped before a
        sink had taken them.
        """
        failure = self.spool.failure
        if failure is not None:
            self._report_disk(failure.strerror or type(failure).__name__, failure.errno in NO_ROOM)
        elif has_room(self.spool.root):  # what was dropped makes room for some windows, and the disk is still full
            self._conditions.end("spool_failed")
            self._conditions.end("spool_disk_full")
        for sink, count in (self.spool.lost - self._lost).items():
            error = f"{count} segment{'s' * (count != 1)} dropped before {sink} had taken them"
            self._conditions.note("push_lost", error, sink=sink)
        self._lost = self.spool.lost.copy()

    def _report_disk(self, about: str, is_full: bool = False) -> None:
        is_full = is_full or (os.path.isdir(self.spool.root) and not has_room(self.spool.root))
        self._conditions.begin("spool_disk_full" if is_full else "spool_failed", f"{self.spool.root}: {about}")

    def _asked(self, peer: Peer | None, outcome: str) -> None:
        self._health.metrics.count("asks", outcome)
        now = time.monotonic()
        if outcome == "answered":
            level = "info"
        elif now < self._refusal_said + _REFUSALS_S:
            return
        else:
            self._refusal_said, level = now, "warning"
        by = {"user": peer.uid, "pid": peer.pid} if peer is not None else {}
        self._say(level, "recording requested", outcome=outcome, **by)

    def _failed(self, sampling: SamplingChoice, error: BaseException, window: str) -> None:
        self._health.metrics.count("failures", sampling.mode)
        about, hint = str(error) or type(error).__name__, error.hint if isinstance(error, PyprofError) else ""
        if not isinstance(error, PyprofError | OSError):
            about, hint = f"{type(error).__name__}: {error}", FAULT_HINT
            self._log_traceback(error)
        self._conditions.begin("recording_failed", about, hint, mode=sampling.mode, rate=sampling.rate)
        with self._writing:
            if recovered := self.spool.recover(window):
                self._unrecorded.add_recovered(sampling, max(name.end_ns for name in self.spool.inventory.all()))
        if recovered:
            self._say("info", "window recovered", segments=recovered)

    def _log_traceback(self, error: BaseException) -> None:
        """Log the traceback of an error that pyprof does not expect, once for each class of errors."""
        import traceback  # a fault of pyprof is rare

        if type(error) not in self._logged_faults:
            self._logged_faults.add(type(error))
            text = "".join(traceback.format_exception(error))
            self._say("error", "unexpected error", error=type(error).__name__, traceback=text)


def _budget(values: Values) -> CostBudget:
    return CostBudget(values.cpu / 100, values.memory, values.over)
