"""Processor time of processes that ended before a scan of /proc found them, from the kernel's reports of ended
processes.

The agent's rules decide to which service such a process belongs, by its name, its user and its parent. The control
group is read from an ancestor that still runs and was in the same control group, such as a service's main process. The
environment is that of the nearest such ancestor. Other facts that rules need, such as the program's path and the
command line, are lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyprof.collectors.bpf.process_ends import ProcessEnd, ProcessEnds
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import TICK_NS, read_boot_ticks
from pyprof.errors import PyprofError
from pyprof.fleet.agent.process_group_recording import SampledGroup
from pyprof.fleet.agent.process_rules import NOT_RECORDED, RuleVerdict, TargetRule, asked_facts, user_name
from pyprof.fleet.agent.process_table import YOUNG_S, Facts, ObservedProcess, ProcessTable

_MAX_ENDED = 10_000
"""Maximum number of ended processes that are stored without a report of their end: zombies, and processes whose report
was lost.
"""
_JUDGED_S = 30.0
"""Time in seconds for which a decision of the rules holds for all ended processes with the same name, user and parent.
"""
_OF_CGROUP = ("cgroup", "unit", "container")


class FactGone(Exception):
    """A rule needs a fact about a process that cannot be read any more, because the process has ended."""


class EndedFacts:
    """A function from the name of a property, such as "user", to its value for an ended process. The agent's rules call
    it.
    """

    def __init__(self, end: ProcessEnd) -> None:
        self._end = end
        self._known = {
            "pid": str(end.pid),
            "name": end.name,
            "parent": end.parent_name,
            "user": user_name(end.uid),
        }

    def __call__(self, name: str) -> str:
        """Return a fact about the ended process by name, or raise FactGone if the fact is no longer known."""
        if _is_of_parent(name) and name not in self._known:
            for pid in _living_kin(self._end, is_nearest=name not in _OF_CGROUP):
                kin = Facts(pid, "", 0)
                if kin("cgroup"):
                    self._known[name] = kin(name)
                    break
        if name not in self._known:
            raise FactGone(name)
        return self._known[name]


def _living_kin(end: ProcessEnd, is_nearest: bool) -> Iterator[int]:
    """Yield the pids of the ancestors of an ended process that still run and were in its control groups.

    Args:
        end: The ended process.
        is_nearest: True to yield the nearest ancestor first, False for the eldest, which is the likeliest to run on.
    """
    if not end.shares_cgroup:
        return
    nearest = dict.fromkeys((end.parent, end.grandparent, end.eldest))
    for pid in nearest if is_nearest else reversed(nearest):
        start = procfs.read_start_ticks(pid) if pid else None
        if start is not None and start <= end.start:  # otherwise another process has the pid now
            yield pid


class EndedProcesses:
    """The attribution of processor time to recordings for processes that ended between two searches of /proc.
    attribute_ends() may be called from any thread.

    Attributes:
        unattributed_ns: Processor time of processes that no search had found and about which the rules cannot decide,
            because facts about them are lost.
    """

    def __init__(self) -> None:
        self.unattributed_ns = 0
        self._unattributed_below = Counter[str]()
        self._ends: ProcessEnds | None = None
        self._opened_ticks = 0
        self._table: ProcessTable | None = None
        self._groups: Sequence[SampledGroup] = ()
        self._found: object = None
        self._judged: dict[tuple[object, ...], RuleVerdict | None] = {}
        self._judge_until = 0.0
        self._asked: frozenset[str] = frozenset()
        self._seen: dict[tuple[int, int], RuleVerdict] = {}
        self._lock = threading.Lock()

    def open(self, say: Callable[..., None]) -> None:
        """Load the BPF program by which the kernel reports ended processes. Log the reason if that is impossible."""
        try:
            self._ends = ProcessEnds()
        except (PyprofError, OSError) as error:
            say("info", "short processes are not followed", error=str(error))
        self._opened_ticks = read_boot_ticks()

    @property
    def lost(self) -> int:
        """Number of ended processes whose reports were lost because the kernel's ring buffer was full."""
        return self._ends.lost if self._ends is not None else 0

    def begin(self, table: ProcessTable, groups: Sequence[SampledGroup]) -> None:
        """Start to add the processor time of ended processes to these recordings. The rules of the process table choose
        the recording of each process.
        """
        with self._lock:
            self._table, self._groups = table, groups
            self._found, self._seen, self._judged = None, {}, {}
            self._asked = asked_facts(table.rules)
        for group in groups:
            group.before_reading = self.attribute_ends

    def attribute_ends(self) -> None:
        """Add the processor time of processes that have ended to the recordings which the rules choose for them."""
        with self._lock:
            table = self._table
            if self._ends is None or table is None:
                return
            ends = self._ends.read_ends()
            self._note_running(table)
            if (now := time.monotonic()) >= self._judge_until or len(self._judged) > _MAX_ENDED:
                self._judged, self._judge_until = {}, now + _JUDGED_S
            for end in ends:
                found = self._seen.pop((end.pid, end.start), None)
                if found is not None and (found.samplings or not _is_young(end)):
                    self._add(end, found, is_known=True)
                elif table.is_own(end.parent):
                    continue
                elif end.start >= self._opened_ticks:
                    self._add_short(table, end)
                else:  # it had ended before the agent began, and its parent waits for it only now
                    self._add(end, NOT_RECORDED, is_known=True)

    def _note_running(self, table: ProcessTable) -> None:
        """Store which processes the last search of /proc has found. All are forgotten when too many are stored,
        otherwise each one when its end is reported.
        """
        if len(self._seen) > 2 * len(table.by_pid) + _MAX_ENDED:
            self._found, self._seen = None, {}
        if table.by_pid is not self._found:
            self._found = table.by_pid
            self._seen.update(((pid, seen.start), seen.verdict) for pid, seen in table.by_pid.items())

    def _add_short(self, table: ProcessTable, end: ProcessEnd) -> None:
        asks_kin = end.shares_cgroup and any(map(_is_of_parent, self._asked))
        asks_nearest = asks_kin and any(fact.startswith("env:") for fact in self._asked)
        kin = end.eldest or end.parent if asks_kin else 0, end.parent if asks_nearest else 0
        own = *kin, end.pid if "pid" in self._asked else 0
        facts = end.name, end.parent_name, end.uid, end.shares_cgroup, *own
        if facts not in self._judged:
            self._judged[facts] = verdict_of(table.rules, end)
        verdict = self._judged[facts]
        if verdict is None:
            self.unattributed_ns += end.run_ns
            above = (table.by_pid.get(pid) for pid in (end.parent, end.grandparent, end.eldest))
            service = next((seen.verdict.service for seen in above if seen is not None and seen.verdict.service), "")
            self._unattributed_below[service] += end.run_ns
            self._add(end, NOT_RECORDED, is_known=False)
        else:
            if verdict.samplings:
                table.add_ended(end.pid, ObservedProcess(0, end.start, end.name, time.monotonic(), False, verdict))
            self._add(end, verdict, is_known=False)

    def take_unattributed(self) -> Mapping[str, int]:
        """Return the processor time in nanoseconds that belongs to no service since the last call, by the service of
        the nearest ancestor that a search has found ("" for none).
        """
        with self._lock:
            found, self._unattributed_below = self._unattributed_below, Counter[str]()
        return found

    def _add(self, end: ProcessEnd, verdict: RuleVerdict, is_known: bool) -> None:
        """Add the time of an ended process to the recordings that have it. In the others, the parent that waits for the
        process must not have its time.
        """
        kin = "\0".join(f"{name}={text}" for name, text in verdict.labels)
        for group in self._groups:
            group.add_end(end, kin if group.sampling in verdict.samplings else None, is_known)

    def close(self) -> None:
        with self._lock:
            if self._ends is not None:
                self._ends.close()
                self._ends = None


def _is_young(end: ProcessEnd) -> bool:
    """Return True if an ended process lived so briefly that the search of /proc may have seen a program from before its
    exec.
    """
    return read_boot_ticks() - end.start < YOUNG_S * 1e9 / TICK_NS


def verdict_of(rules: Sequence[TargetRule], end: ProcessEnd) -> RuleVerdict | None:
    """Return the decision of the agent's rules about an ended process, None if a rule needs a fact that was lost with
    the process.
    """
    facts = EndedFacts(end)
    try:
        found = next((rule for rule in rules if _fits(rule, facts)), None)
        return found.verdict(facts) if found is not None else NOT_RECORDED
    except FactGone:
        return None


def _is_of_parent(fact: str) -> bool:
    """Return True if this fact about an ended process is read from an ancestor in the same control group."""
    return fact in _OF_CGROUP or fact.startswith("env:")


def _fits(rule: TargetRule, facts: EndedFacts) -> bool:
    """Return True if a rule matches an ended process; raise FactGone if that depends on a fact that was lost with the
    process.
    """
    gone: FactGone | None = None
    for key, criterion in rule.criteria:
        try:
            if not criterion.fits(facts(key)):
                return False
        except FactGone as error:
            gone = error
    if gone is not None:
        raise gone
    return True
