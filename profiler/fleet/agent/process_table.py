"""The processes of the agent's machine, and the decision of the agent's rules about each.

A search reads the list in /proc once if a process or thread has begun or ended since the last search. It also reads the
state of processes that are new or young, since a new process may call exec. A search that fails changes nothing.
"""

from __future__ import annotations

import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import read_boot_ahead_ns
from pyprof.collectors.targets import attach_checks
from pyprof.collectors.targets.process_selection import Selection
from pyprof.errors import FormatError, PyprofError
from pyprof.fleet.agent.process_rules import (
    NOT_RECORDED,
    RuleVerdict,
    SamplingChoice,
    TargetRule,
    first_match,
    user_name,
)
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.thread_identity import Labels
from pyprof.model.untrusted_text import REDACTED, looks_secret, without_secrets

LOOK_S = 1.0
"""Minimum time in seconds between two searches for processes."""
_MAX_LOOK_S = 2.0
_LOOK_SHARE = 0.001
"""Share of one processor that searches for processes may use before they become rarer, up to one search in _MAX_LOOK_S.
On a host where processes begin all the time, a search each second was a sixth of the agent's cost.
"""
YOUNG_S = 3.0
_AGAIN_S = 30.0
"""Time in seconds after which the agent reads the state of a known process again, because the process may run another
program.
"""
GONE_S = 600.0
"""Time in seconds for which the agent keeps the labels of an ended process."""
MAX_GONE = 20_000
"""Maximum number of ended processes whose labels are kept."""
_MIN_WEIGHT_NS = 1_000_000
"""Weight in nanoseconds of a process that used no processor time, in the random choice of the processes to record. It
lets such processes be chosen too.
"""
_MAX_ENVIRONMENT = 1 << 16
_UNIT = re.compile(r"([^/]+\.(?:service|scope|socket|mount|swap|slice))(?:/|$)")
_CONTAINER = re.compile(r"(?:^|[/:_.-])([0-9a-f]{64})(?:[/.]|$)")
_TICKS = os.sysconf("SC_CLK_TCK")
_TICK_NS = 1_000_000_000 // _TICKS
_MAX_START_ERROR_NS = 100_000_000
"""Maximum time in nanoseconds by which a reading of a process's start may be too late. Starts in /proc are accurate to
a tick, and each conversion between boot time and monotonic time adds an error.
"""


class Facts:
    """Facts about a process for the agent's rules, read from /proc when a rule needs them; "" for facts that are not
    known.
    """

    def __init__(self, pid: int, comm: str, ppid: int) -> None:
        self._pid, self._known = pid, {"pid": str(pid), "name": comm, "ppid": str(ppid)}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str:
        pid = self._pid
        if name.startswith("env:"):
            return _variable(pid, name.removeprefix("env:"))
        if name == "exe":
            return _known(procfs.read_exe(pid))
        if name == "cmdline":
            return procfs.read_command_line(pid)
        if name == "parent":
            return _known(procfs.read_name(int(self("ppid"))))
        if name == "user":
            return _user(pid)
        cgroup = self("cgroup") if name != "cgroup" else _cgroup(pid)
        if name == "unit":
            units = [unit for unit in _UNIT.findall(cgroup) if not unit.endswith(".slice")]
            return str(units[-1]) if units else ""
        if name == "container":
            found = _CONTAINER.findall(cgroup)
            return str(found[-1])[:12] if found else ""
        return cgroup if name == "cgroup" else ""


def _known(text: str) -> str:
    return "" if text == "?" else text


def _cgroup(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return choose_cgroup(os.fsdecode(file.read(_MAX_ENVIRONMENT)))
    except OSError:
        return ""


def choose_cgroup(text: str) -> str:
    """Return a process's control group from the text of /proc/PID/cgroup: the path that names a container, otherwise
    one below the root.

    The unified hierarchy is the first choice, then systemd's. A host that mounts both versions may keep the unified
    path of a container at the root or at the container runtime's unit.
    """
    lines = [line.split(":", 2) for line in text.splitlines()]
    paths = {parts[1]: parts[2] for parts in lines if len(parts) == 3}
    ordered = [paths.pop(name) for name in ("", "name=systemd") if name in paths] + list(paths.values())
    found = next(filter(_CONTAINER.search, ordered), "") or next((path for path in ordered if path != "/"), "")
    return found or next(iter(ordered), "")


def _variable(pid: int, name: str) -> str:
    """Return the value of an environment variable of a process, with secrets removed, because it becomes a label that
    all readers see.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(_MAX_ENVIRONMENT)
    except OSError:
        return ""
    begin = os.fsencode(name) + b"="
    value = next((os.fsdecode(each[len(begin) :]) for each in text.split(b"\0") if each.startswith(begin)), "")
    return REDACTED if value and looks_secret(name) else without_secrets(value)


def _user(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """The facts about a process that the agent's last search of /proc has found.

    Attributes:
        entry: Inode number of its entry in /proc, see procfs.list_pids_with_inodes().
        start: Start in clock ticks since boot.
        at: Monotonic time in seconds at which the search found it.
        young: True if the process had just started.
    """

    entry: int
    start: int
    comm: str
    at: float
    young: bool
    verdict: RuleVerdict


class ProcessLabels(NamedTuple):
    """Labels that the rules give to a process. `began_ns` is the start of the process by the monotonic clock, accurate
    to a tick.
    """

    pid: int
    began_ns: int
    labels: Labels


class ProcessTable:
    """The processes of the machine as the last search of /proc found them, with what the agent's rules decide about
    each.

    Attributes:
        by_pid: Processes at the last successful search.
        rules: The rules that decide.
        failed: Number of failed searches.
        one_in: Each collector samples one of this many of its processes, to keep the budget.
    """

    def __init__(self, rules: Sequence[TargetRule], own: int) -> None:
        """Create a table of processes, without any process yet.

        Args:
            own: Pid of this process, which is not recorded, nor are its descendants.
        """
        self.by_pid: dict[int, ObservedProcess] = {}
        self.failed = 0
        self.one_in = 1
        self.rules = rules
        self._own = own
        self._matched: set[int] = set()
        self._ours = {own}
        self._gone: dict[int, tuple[tuple[float, ObservedProcess], ...]] = {}  # replaced as a whole by _forget()
        # Who writes or iterates holds the lock. Even list(dict.items()) is not atomic: it allocates tuples, so the
        # garbage collector may run, and with it a callback in Python, in which another thread gets the GIL.
        self._gone_lock = threading.Lock()
        self._searching = threading.Lock()
        self._forget_at = 0.0
        self._next = 0.0
        self._census, self._again_at = b"", 0.0
        self._left = False
        self._recent_ns: Mapping[tuple[int, int], int] = {}
        self._ranks: dict[tuple[int, int], float] = {}
        self._random = random.Random()

    def leave(self) -> None:
        """End the search for processes for good: a running search stops and finds nothing. Any thread may call this."""
        self._left = True

    def find_processes(self) -> dict[int, ObservedProcess]:
        """Search /proc for processes, at most once in LOOK_S seconds, and return those found. Any thread may call this.
        While another thread searches, return the processes that the search before has found.

        Two searches at once would lose processes: the one that began earlier may end later.
        """
        if time.monotonic() < self._next or not self._searching.acquire(blocking=False):
            return self.by_pid
        try:
            now, before = time.monotonic(), time.thread_time()
            found = self._search(now)
            self._next = now + min(max((time.thread_time() - before) / _LOOK_SHARE, LOOK_S), _MAX_LOOK_S)
        finally:
            self._searching.release()
        return found

    def _search(self, now: float) -> dict[int, ObservedProcess]:
        census = procfs.read_census()
        if census and census == self._census and now < self._again_at:
            return self.by_pid
        try:
            uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
            found: dict[int, ObservedProcess] = {}
            for pid, entry in procfs.list_pids_with_inodes().items():
                if self._left:
                    return self.by_pid
                seen = self.by_pid.get(pid)
                if seen is None or seen.young or seen.entry != entry or now - seen.at >= _AGAIN_S:
                    seen = self._read_process(pid, entry, now, uptime, seen)
                if seen is not None:
                    found[pid] = seen
        except OSError:
            self.failed += 1
            return self.by_pid
        for pid, seen in self.by_pid.items():
            if seen.verdict.service and (pid not in found or not _is_same(found[pid], seen)):
                self._add_gone(pid, now, seen)
        if now >= self._forget_at or self._count_gone() > MAX_GONE:
            self._forget(now)
        self._ours &= found.keys() | {self._own}
        self.by_pid = found
        any_young = any(seen.young for seen in found.values())
        self._again_at = now if any_young else min((seen.at for seen in found.values()), default=now) + _AGAIN_S
        self._census = census
        return found

    def _count_gone(self) -> int:
        with self._gone_lock:
            return sum(map(len, self._gone.values()))

    def _add_gone(self, pid: int, at: float, seen: ObservedProcess) -> None:
        with self._gone_lock:
            self._gone[pid] = *self._gone.get(pid, ()), (at, seen)

    def _forget(self, now: float) -> None:
        """Forget processes that ended long ago. Readers see either the whole old table or the whole new one: in a part
        of it, an earlier process with the same pid would be the only one known.
        """
        self._forget_at = now + _AGAIN_S
        with self._gone_lock:
            kept = [(at, pid, seen) for pid, gone in self._gone.items() for at, seen in gone if now < at + GONE_S]
            found: dict[int, tuple[tuple[float, ObservedProcess], ...]] = {}
            for at, pid, seen in sorted(kept, key=lambda each: each[0])[-(MAX_GONE // 2) :]:
                found[pid] = *found.get(pid, ()), (at, seen)
            self._gone = found

    def _judge(self, facts: Facts) -> RuleVerdict:
        at = first_match(self.rules, facts)
        if at is None:
            return NOT_RECORDED
        self._matched.add(at)
        return self.rules[at].verdict(facts)

    def unmatched_rules(self) -> dict[int, str]:
        """Return the rules that have decided about no process so far: the text of their criteria by index. A process
        that ended before a search could find it does not count.
        """
        return {at: rule.text for at, rule in enumerate(self.rules) if at not in self._matched}

    def is_own(self, pid: int) -> bool:
        """Return True if a process is the agent, or a process that it has started."""
        return pid in self._ours

    def add_ended(self, pid: int, seen: ObservedProcess) -> None:
        """Store a process that had ended before a search could find it, so that its labels are known. Any thread may
        call this.
        """
        self._add_gone(pid, seen.at, seen)

    def chosen(self, sampling: SamplingChoice) -> frozenset[tuple[int, int]]:
        """Return (pid, start) of the processes that must be sampled in the given way, according to the last search."""
        return frozenset((pid, seen.start) for pid, seen in self.recorded(sampling).items())

    def of_service(self, service: str) -> dict[int, ObservedProcess]:
        """Search for processes, and return those of a service by pid, including processes that the budget
        leaves out.
        """
        seen_by_pid = self.find_processes()
        return {pid: seen for pid, seen in seen_by_pid.items() if seen.verdict.service == service}

    def now_recorded(self, sampling: SamplingChoice) -> dict[int, ObservedProcess]:
        """Search for new processes, and return the processes that must be sampled in the given way at present, as
        recorded() does.
        """
        self.find_processes()
        return self.recorded(sampling)

    def matching(self, sampling: SamplingChoice) -> dict[int, ObservedProcess]:
        """Return the processes that the rules sample in the given way, by pid, including processes that the budget
        leaves out.
        """
        return {pid: seen for pid, seen in self.by_pid.items() if sampling in seen.verdict.samplings}

    def recorded(self, sampling: SamplingChoice) -> dict[int, ObservedProcess]:
        """Return the processes that must be sampled in the given way: those of matching(), without the ones that draw()
        has left out because of the budget.
        """
        found = self.matching(sampling)
        if self.one_in == 1:
            return found
        ranked = sorted(found.items(), key=lambda each: self._rank(each[0], each[1]))
        return dict(ranked[: -(-len(ranked) // self.one_in)])

    def draw(self, recent_ns: Mapping[tuple[int, int], int]) -> None:
        """Choose at random the processes that recorded() returns, weighted by their processor time.

        This is weighted sampling without replacement by Efraimidis and Spirakis (2006).

        Args:
            recent_ns: Processor time in the last window, by pid and start.
        """
        self._recent_ns, self._ranks = recent_ns, {}

    def _rank(self, pid: int, seen: ObservedProcess) -> float:
        """Return the random rank of a process in the choice of the processes to record. The processes with the smallest
        ranks are recorded.
        """
        key = pid, seen.start
        if key not in self._ranks:
            weight = max(self._recent_ns.get(key, 0), _MIN_WEIGHT_NS)
            self._ranks[key] = self._random.expovariate(1.0) / weight
        return self._ranks[key]

    def _read_process(
        self, pid: int, entry: int, now: float, uptime: float, known: ObservedProcess | None
    ) -> ObservedProcess | None:
        """Read the state of a process from /proc, None if it is gone.

        Args:
            pid: The process.
            entry: Inode number of its entry in /proc.
            now: Monotonic time in seconds.
            uptime: Time since boot in seconds.
            known: State at the last search, None if it is new.

        Raises:
            OSError: The state of the process is not known.
        """
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                stat = procfs.parse_stat(file.read())
        except (FileNotFoundError, ProcessLookupError, FormatError):
            return None
        if stat.is_zombie:
            return None
        if stat.ppid in self._ours:
            self._ours.add(pid)
        if stat.is_kernel_thread or pid in self._ours:
            return ObservedProcess(entry, stat.start, stat.comm, now, False, NOT_RECORDED)
        young = uptime - stat.start / _TICKS < YOUNG_S
        if known is not None and (known.start, known.comm) == (stat.start, stat.comm) and not known.young:
            return ObservedProcess(entry, stat.start, stat.comm, now, young, known.verdict)
        return ObservedProcess(entry, stat.start, stat.comm, now, young, self._judge(Facts(pid, stat.comm, stat.ppid)))

    def labels(self, since: float) -> list[ProcessLabels]:
        """Return the labels of all processes that belong to a service, including processes that ended after `since`
        (monotonic time in seconds).
        """
        with self._gone_lock:
            gone = [(pid, seen) for pid, ended in self._gone.items() for at, seen in ended if at >= since]
        found = [*gone, *((pid, seen) for pid, seen in self.by_pid.items() if seen.verdict.service)]
        ahead_ns = read_boot_ahead_ns()
        return [ProcessLabels(pid, seen.start * _TICK_NS - ahead_ns, seen.verdict.labels) for pid, seen in found]

    def verdict(self, pid: int, started_ns: int) -> RuleVerdict:
        """Return what the agent's rules decide about a process, which may have ended recently. If no search has found
        that process, it is not recorded: what had its pid before or after it says nothing about it.

        Args:
            started_ns: Start by the monotonic clock, or the time at which a collector first saw the process. 0 if it is
                not known: then the last process with the pid counts.
        """
        known = [(at, seen) for at, seen in self._gone.get(pid, ())]
        if (running := self.by_pid.get(pid)) is not None and running.verdict.service:
            known.append((math.inf, running))
        ahead_ns = read_boot_ahead_ns()
        for error_ns in (_TICK_NS, _MAX_START_ERROR_NS):  # an earlier process with the pid may have ended just before
            for at, seen in reversed(known):
                begun_ns = seen.start * _TICK_NS - ahead_ns
                if not started_ns or begun_ns - error_ns <= started_ns <= at * 1e9:
                    return seen.verdict
        return NOT_RECORDED


def _is_same(found: ObservedProcess, seen: ObservedProcess) -> bool:
    """Return True if two observations with one pid are of one process that has not lost its service since."""
    return found.start == seen.start and bool(found.verdict.service)


@dataclass(eq=False)
class RuleSelection(Selection):
    """The processes that the agent's rules select. chosen() returns their current pids."""

    chosen: Callable[[], Collection[int]] = tuple

    def find_new(self, excluded: Container[int]) -> Iterable[int]:
        return [pid for pid in self.chosen() if pid not in excluded and pid not in self.ours]


def selected(chosen: Callable[[], Collection[int]]) -> RuleSelection | None:
    """Return a selection of the processes that the agent's rules choose, or None if no process may be sampled yet.

    Args:
        chosen: Function that returns the current pids from a ProcessTable, which searches /proc at most once a second.
    """
    possible, refused = [], 0
    for pid in chosen():
        try:
            attach_checks.check_readable(pid)
            possible.append(pid)
        except PyprofError:
            refused += 1
    if not possible:
        return None
    notes = (make_note("processes_left_out", count=refused),) if refused else ()
    return RuleSelection(tuple(possible), notes, True, False, lambda _: False, chosen=chosen)
