"""Processor time of the recorded processes as the kernel accounts it, compared with the time that samples stand for.

The account of a process includes threads that have ended. It includes a child, with the child's own children, once the
parent has waited for it. So the time of a process tree is the sum over its existing processes, whatever started and
ended between two readings.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from pyprof.collectors.linux.process_cpu_times import (
    TICK_NS,
    MatchingThreads,
    ProcessTimes,
    read_boot_ticks,
    read_process_ns,
    read_times,
)
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

_T = TypeVar("_T")

_BUDGET = 100
"""Factor that limits the cost of reading processor times: after a reading that took time t, none is made for 100 t."""
_LOOK_NS = 100_000_000
_MAX_READING_NS, _MAX_READINGS = 1_000_000, 3
"""Duration above which the reading of a clock is repeated, because the sampler lost its processor meanwhile, and the
maximum number of readings. The time of a reading is uncertain by half of its duration.
"""
_FIRST_READINGS, _LAST_READINGS = 2, 5
"""Numbers of processor-time readings that are kept of each process tree, the first and the last ones."""
_MIN_NS, _MIN_SHARE = 40_000_000, 0.03
"""Limits of missing time of a process tree above which it is reported: nanoseconds, and share of the tree's
processor time.
"""
_MIN_PROCESS_NS = 1_000_000
"""Minimum processor time in nanoseconds for which a process without samples is reported, if all processes of
the machine are recorded.
"""


@dataclass(frozen=True, slots=True)
class Account:
    """The processor time of a process tree since the recording began, in nanoseconds, and the part of it that
    samples represent. A process tree is a selected process with its descendants.

    Attributes:
        name: Name of the tree's first process.
        spent_ns: Time on processors as the kernel accounts it.
        due_ns: Part of spent_ns outside the kernel that samples should represent, because its sampling times
            were kept.
        seen_ns: Time that samples stand for.
        chance_ns: Difference between due_ns and seen_ns that chance explains.
        kernel_ns: Part of spent_ns in the kernel, where no sample can be taken.
        lost_ns: Time of samples whose records were lost.
        only_lost: True if lost records are the only reason for missing samples.
        ended_ns: Time of samples that could not be taken because the thread had ended by then.
        waits: True if the sampler had to wait for a processor like other processes, so that it was late at times.
        readings: (monotonic time, spent_ns at that time) of the first and the last readings, in order.
        pids: Processes of the tree that had samples in the current window.
        all_or_nothing: True if no time of a tree with samples counts as missing, so that only trees without
            samples are reported.
    """

    name: str
    spent_ns: int
    due_ns: int
    seen_ns: int
    chance_ns: int = 0
    kernel_ns: int = 0
    lost_ns: int = 0
    only_lost: bool = False
    ended_ns: int = 0
    waits: bool = False
    readings: tuple[tuple[int, int], ...] = ()
    pids: frozenset[int] = frozenset()
    all_or_nothing: bool = False

    def spent_at(self, at_ns: int) -> int:
        """Return the processor time (spent_ns) of the process tree at a monotonic time, interpolated between
        readings. Outside the readings it is that of the first or last one.
        """
        times, values = zip(*self.readings, strict=True)
        return round(float(np.interp(at_ns - times[0], np.subtract(times, times[0]), values)))

    def followed_by(self, later: Account) -> Account:
        """Return an account for two consecutive parts of a recording of the same process tree.

        The later part may begin before the first one ends. Time in both counts once.
        """
        readings = self.readings or later.readings
        if self.readings and later.readings:
            switch_ns = later.readings[0][0]
            shift_ns = self.spent_at(switch_ns)
            earlier = (reading for reading in self.readings if reading[0] < switch_ns)
            readings = (*earlier, *((at_ns, spent_ns + shift_ns) for at_ns, spent_ns in later.readings))
        return Account(
            later.name,
            self.spent_ns + later.spent_ns,
            self.due_ns + later.due_ns,
            self.seen_ns + later.seen_ns,
            self.chance_ns + later.chance_ns,
            self.kernel_ns + later.kernel_ns,
            self.lost_ns + later.lost_ns,
            ended_ns=self.ended_ns + later.ended_ns,
            waits=self.waits or later.waits,
            readings=readings,
            pids=self.pids | later.pids,
            all_or_nothing=later.all_or_nothing,
        )


NO_ACCOUNT = Account("", 0, 0, 0)


class LostSamples(NamedTuple):
    """The number of sampling times whose records the kernel has lost.

    Attributes:
        times: Number of lost sampling times.
        only: True if no samples can be missing for other reasons, because each moment is equally likely to be
            sampled.
    """

    times: float
    only: bool


NOTHING_LOST = LostSamples(0, False)


@dataclass(frozen=True, slots=True)
class EndedThreadTimes:
    """Corrections to the kernel's processor times of ended threads and processes. They are needed if samples leave out
    time in the kernel.

    Attributes:
        inexact_ns: Total time of processes that ended before a tick of the kernel's timer found them running. The
            kernel accounts all of it as user time.
        missing_ns: Time of ended threads that no sample stands for, according to perf_events records.
    """

    inexact_ns: int
    missing_ns: int


@dataclass(frozen=True, slots=True)
class UnsampledTime:
    """Processor time of a process tree, in some span of time, that no sample represents.

    Attributes:
        pid: The tree's first process.
        name: Name of that process.
        short_ns: Time of threads that ran too short to be sampled.
        lost_ns: Time of lost records.
        kernel_ns: Time in the kernel, where it is not sampled.
        late_ns: Time that was missed because the sampler itself waited for processors: short-running threads,
            threads that left their processor before they were stopped, and missed sampling times. 0 for a
            sampler with raised priority.
        is_whole: True if the tree has no sample, so that this is all of its time.
    """

    pid: int
    name: str
    short_ns: int
    lost_ns: int
    kernel_ns: int
    late_ns: int = 0
    is_whole: bool = False


def find_spent_time(old: Account, account: Account, start_ns: int, end_ns: int) -> int:
    """Return the processor time of a process tree between two monotonic times, in nanoseconds.

    Args:
        old: Account from about start_ns, which has readings around it; NO_ACCOUNT if the tree is newer.
        account: Account of the same tree from about end_ns.
        start_ns: Beginning of the period.
        end_ns: End of the period.
    """
    if not account.readings:
        return max(account.spent_ns - old.spent_ns, 0)
    readings = tuple(sorted({*old.readings, *account.readings}))
    whole = replace(account, readings=readings)
    return max(whole.spent_at(end_ns) - whole.spent_at(start_ns), 0)


def count_missed_time(old: Account, account: Account) -> tuple[int, int]:
    """Return the processor time of a process tree between two accounts for which sampling times were missed,
    in nanoseconds.

    A sampler with raised priority misses few sampling times, and those hit all functions alike. A sampler
    that waits for processors misses the busy times, so its missed time must be marked as unsampled.

    Returns:
        (time to mark as not sampled, other missed time).
    """
    spent, due = account.spent_ns - old.spent_ns, account.due_ns - old.due_ns
    seen, kernel = account.seen_ns - old.seen_ns, account.kernel_ns - old.kernel_ns
    found = max(spent - max(due, seen) - kernel, 0)
    return (found, 0) if account.waits and found > _least(spent) else (0, found)


def _least(spent_ns: int) -> float:
    return max(_MIN_NS, _MIN_SHARE * spent_ns)


def find_unsampled_time(
    before: Mapping[int, Account], after: Mapping[int, Account], span_ns: tuple[int, int] | None = None
) -> tuple[UnsampledTime, ...]:
    """Return the processor time that no sample stands for between two moments, for process trees in which it
    exceeds chance and rounding.

    Args:
        before: Accounts at the first moment.
        after: Accounts at the second moment.
        span_ns: The two moments by the monotonic clock, if a late collector may have read the accounts after
            them. None if each account was read at its moment.
    """
    found = []
    for root, account in after.items():
        old = before.get(root, NO_ACCOUNT)
        read_ns = account.spent_ns - old.spent_ns
        spent_ns = find_spent_time(old, account, *span_ns) if span_ns and account.readings else read_ns
        if account.all_or_nothing:
            missing = 0 if account.pids else spent_ns
            if missing >= _MIN_PROCESS_NS:
                found.append(UnsampledTime(root, account.name, missing, 0, 0, is_whole=True))
            continue
        least = _least(spent_ns)
        kernel = account.kernel_ns - old.kernel_ns
        if len(after) > 1 and not account.pids and account.seen_ns == old.seen_ns:  # nothing shares its missed time
            if spent_ns >= _MIN_PROCESS_NS:
                found.append(_make_whole(root, old, account, spent_ns))
            continue
        due_ns = account.due_ns - old.due_ns
        due_ns += round((spent_ns - read_ns) * (due_ns / read_ns if read_ns else 1))
        missing = due_ns - (account.seen_ns - old.seen_ns)
        lost = min(missing, account.lost_ns - old.lost_ns)
        if account.only_lost:
            missing = lost
        ended = account.ended_ns - old.ended_ns
        if missing <= max(least, account.chance_ns):
            missing = lost = 0
        missing = max(missing, ended * (ended > least))
        if kernel <= least:
            kernel = 0
        marked, _ = count_missed_time(old, account)
        if missing or kernel or marked:
            rest, late = missing - lost, account.waits
            found.append(
                UnsampledTime(root, account.name, 0 if late else rest, lost, kernel, rest + marked if late else 0)
            )
    return tuple(found)


def _make_whole(root: int, old: Account, account: Account, spent_ns: int) -> UnsampledTime:
    """Return the unsampled time of a process tree without samples: all its processor time."""
    kernel = min(account.kernel_ns - old.kernel_ns, spent_ns)
    rest, is_late = spent_ns - kernel, any(count_missed_time(old, account))
    return UnsampledTime(root, account.name, 0 if is_late else rest, 0, kernel, rest if is_late else 0, is_whole=True)


@dataclass(slots=True)
class _Member:
    """One process of a recorded process tree, at the last reading. `ns` is (total processor time, time in the
    kernel), `start` is in clock ticks since boot. `waited_ns` is the part of the total that children spent which
    have ended.
    """

    root: int
    parent: int
    ns: tuple[int, int]
    start: int
    waited_ns: int


@dataclass(slots=True)
class _Seen:
    """Sums over the samples of a process tree: the number of sampling times that they represent, and the variance of
    that number (spread).
    """

    rounds: float = 0.0
    spread: float = 0.0


class TotalTimes(NamedTuple):
    """Sums over all process trees of a recording, in nanoseconds.

    Attributes:
        due_ns: Processor time that samples should represent, without that of sampling times which were missed.
        seen_ns: Time that samples represent.
        spent_ns: Processor time as the kernel accounts it, without pauses of the recording.
        unread_ns: Part of spent_ns that processes spent between their last reading and their end. A process
            that ends before the first reading spent all of its time so.
    """

    due_ns: int
    seen_ns: int
    spent_ns: int
    unread_ns: int


class Accounts:
    """Processor time of the process trees of a recording, by the kernel's accounts, and the part that samples
    represent.

    The accounts are kept only if samples should represent all time on processors. `on` is False if they are
    not kept, for example because sleeping threads are sampled, too. If only threads with some names are
    recorded, their own clocks are read instead of those of processes. If all processes of the machine are
    recorded, each is a separate tree, and none of its time is reported as missing.

    The kernel's account does not judge samples by events on processors. If another processor makes a thread preempt,
    the thread is charged from that decision on (rq_clock_skip_update in kernel/sched), though it runs only after the
    interrupt. On a virtual machine memcached under load was charged 12 to 20 % too much, and its clients too little.

    Attributes:
        waits: True if the sampler had to wait for processors like other processes, so that it was late at
            times.
    """

    def __init__(
        self,
        options: CollectOptions,
        all_but: Callable[[], Set[int]] | None = None,
        user_only: bool = False,
        lost: Callable[[], LostSamples] = lambda: NOTHING_LOST,
        endings: Callable[[], EndedThreadTimes | None] = lambda: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Create accounts without any processes.

        Args:
            options: Options of the recording.
            all_but: Function that returns the pids to leave out, if all processes of the machine are
                recorded; else None.
            user_only: True if time in the kernel has no samples.
            lost: Function that returns the sampling times whose records were lost.
            endings: Function that returns what perf_events records say about ended threads, or None if there
                are no such records.
            clock: Monotonic clock in nanoseconds.
        """
        self._pattern = options.thread
        self.on = options.running and not (options.idle or ((options.thread or all_but) and user_only))
        self._all_but = all_but
        self._period_ns = round(1e9 / options.rate_hz)
        self._children = options.subprocesses and not all_but
        self._user_only, self._lost, self._endings = user_only, lost, endings
        self._clock = clock
        self._members: dict[int, _Member] = {}
        self._known: dict[int, _Member] = {}
        self._matching: dict[tuple[int, int], MatchingThreads] = {}
        self._inexact: set[int] = set()
        self._noted: tuple[int, dict[int, int]] = (0, {})
        self._names: dict[int, str] = {}
        self._spent: Counter[int] = Counter()
        self._kernel: Counter[int] = Counter()
        self._due: Counter[int] = Counter()
        self._slots = (0, 0)
        self._ended: Counter[int] = Counter()
        self._all_spent_ns = self._unread_ns = 0
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)
        self._pids: defaultdict[int, set[int]] = defaultdict(set)
        self._readings: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._not_before = 0
        self._began = 0
        self._leaving: DelayedRemoval[int] = DelayedRemoval()
        self._past_due = self._past_seen = 0
        self.waits = False

    def start(self, roots: Mapping[int, int]) -> None:
        """Start to count the processor time of each process, or continue after a pause without samples.

        Args:
            roots: Pid of the selected process of its tree, by the pid of each existing process.
        """
        if not self.on:
            return
        if self._members:
            due, of_all, unread = self._due.copy(), self._all_spent_ns, self._unread_ns
            self.read_accounts(roots, force=True, slots=self._slots)
            self._due, self._all_spent_ns, self._unread_ns = due, of_all, unread
            return
        self._began = read_boot_ticks()
        self._members = {}
        for pid, root in self._trees(roots).items():
            at_ns, found = self._read_briefly(partial(self._read, pid, root))
            if found is not None:
                self._members[pid] = _Member(
                    root, found.parent, self._ns(found), found.start, found.waited_ns if self._children else 0
                )
                self._readings[root] = [(at_ns, 0)]

    def _trees(self, roots: Mapping[int, int]) -> Mapping[int, int]:
        """Return the process trees whose processor time is counted: the given trees, or each process of the machine as
        its own tree.
        """
        if self._all_but is None:
            return roots
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - self._all_but()
        return {pid: pid for pid in pids}

    def note_clocks(self) -> None:
        """Read only the processor-time clocks of the known processes, now. The next read_accounts() uses the
        values. May be called from any thread.

        A collector that is late at the end of a recording would otherwise have to interpolate the times of
        that moment.
        """
        if self._pattern is None:
            pids = [*self._members]
            self._noted = self._read_briefly(lambda: {pid: read_process_ns(pid) for pid in pids}, len(pids))

    def _read_briefly(self, read: Callable[[], _T], processes: int = 1) -> tuple[int, _T]:
        """Call a function that reads processor times, again if the sampler lost its processor meanwhile.

        Args:
            read: Reads the times.
            processes: Number of processes whose times it reads.

        Returns:
            The monotonic time in the middle of the shortest call, and its result.
        """
        shortest: tuple[int, int, _T] | None = None
        for _ in range(_MAX_READINGS):
            before_ns = self._clock()
            found = read()
            took_ns = self._clock() - before_ns
            if shortest is None or took_ns < shortest[0]:
                shortest = took_ns, before_ns + took_ns // 2, found
            if took_ns <= _MAX_READING_NS * processes:
                break
        assert shortest is not None
        return shortest[1:]

    @property
    def is_due(self) -> bool:
        """True if read_accounts() would read the kernel's processor times without being forced."""
        return self.on and self._clock() >= self._not_before

    def read_accounts(self, roots: Mapping[int, int], force: bool = False, slots: tuple[int, int] = (0, 0)) -> bool:
        """Read the kernel's processor times and add the time that was spent since the last reading.

        Unless forced, readings take at most one percent of the time.

        Args:
            roots: Pid of the selected process of its tree, by the pid of each process.
            force: Read even if the budget is used up.
            slots: (kept, missed) sampling times since the recording began.

        Returns:
            True if the accounts were read.
        """
        if not self.on or (self._clock() < self._not_before and not force):
            return False
        before = time.thread_time_ns()
        roots = self._trees(roots)
        known = self._known = self._members
        self._members = {}
        spent: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        read_at: dict[int, int] = {}
        noted_at, noted = self._noted
        since_noted: Counter[int] = Counter()
        for pid in roots.keys() | known.keys():
            old = known.get(pid)
            root = roots.get(pid, old.root if old else pid)
            at_ns, found = self._read_briefly(partial(self._read, pid, root))
            if found is None:
                if old is not None and self._pattern is not None:
                    self._inexact.add(root)
                continue
            ns, read_at[root] = self._ns(found), at_ns
            since_noted[root] += found.own_ns - (noted.get(pid) or found.own_ns)
            waited_ns = found.waited_ns if self._children else 0
            self._members[pid] = _Member(root, found.parent, ns, found.start, waited_ns)
            if old is not None and old.start == found.start:
                spent[root] = _plus(_plus(spent[root], ns), old.ns, -1)
                self._unread_ns += waited_ns - old.waited_ns
            elif found.start >= self._began:
                spent[root] = _plus(spent[root], ns)
                self._unread_ns += waited_ns
        moves = self._children and self._pattern is None
        for pid, old in known.items():
            if moves and pid not in self._members and self._was_waited_for(old, known):
                spent[old.root] = _plus(spent[old.root], old.ns, -1)  # its parent's account has it from now on
                self._unread_ns -= old.ns[0]
        there = {(pid, member.start) for pid, member in self._members.items()}
        self._matching = {key: threads for key, threads in self._matching.items() if key in there}
        kept, missed = slots[0] - self._slots[0], slots[1] - self._slots[1]
        self._slots = slots
        for root, (total, kernel) in spent.items():
            self._spent[root] += total
            self._all_spent_ns += total
            self._kernel[root] += kernel
            user = total - kernel
            self._due[root] += round(user * kept / (kept + missed)) if kept + missed else user
        for root, at_ns in read_at.items():
            self._add_reading(root, at_ns, (noted_at, self._spent[root] - since_noted[root]))
        self._not_before = self._clock() + max(_LOOK_NS, _BUDGET * (time.thread_time_ns() - before))
        return True

    def _add_reading(self, root: int, at_ns: int, noted: tuple[int, int]) -> None:
        """Store a reading of a process tree's processor time. Only the first and the last readings are kept.

        Args:
            root: The tree.
            at_ns: Time of the reading.
            noted: (earlier time, the tree's processor time at that time), from note_clocks().
        """
        readings = self._readings[root]
        if not readings:
            readings.append((min(self._began_ns(root), at_ns - 1), 0))
        if readings[-1] < noted < (at_ns, self._spent[root]) and noted[1] >= readings[-1][1]:
            readings.append(noted)
        readings.append((at_ns, self._spent[root]))
        del readings[_FIRST_READINGS:-_LAST_READINGS]

    def _began_ns(self, root: int) -> int:
        """Return the monotonic time at which a process tree's first process started, or 0 if that process has ended."""
        member = self._members.get(root)
        ahead_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._clock()
        return max(member.start, self._began) * TICK_NS - ahead_ns if member is not None else 0

    def _was_waited_for(self, ended: _Member, known: Mapping[int, _Member]) -> bool:
        """Return True if the kernel has added the processor time of an ended process to a living parent, because the
        parent has waited for it.

        If the parents have ended too, the time is in no account.
        """
        for _ in known:
            if ended.parent in self._members or ended.parent not in known:
                break
            ended = known[ended.parent]
        return ended.parent in known and ended.parent in self._members

    def totals(self) -> TotalTimes:
        """Return sums over all process trees since the recording began."""
        due_ns = self._past_due + sum(self._due.values())
        seen_ns = self._past_seen + sum(map(self._seen_ns, self._seen))
        return TotalTimes(due_ns, seen_ns, self._all_spent_ns, self._unread_ns)

    def count_batch(self, batch: SampleBatch, root_of: Callable[[int], int]) -> None:
        """Add the time that a batch of samples stands for to the accounts of their processes."""
        if not self.on:
            return
        pids, at = np.unique(batch.pid, return_inverse=True)
        weights = np.bincount(at, batch.weight, len(pids))
        spreads = np.bincount(
            at, batch.weight * (batch.weight - 1), len(pids)
        )  # each was taken with a chance of 1/weight
        for pid, weight, spread in zip(pids.tolist(), weights.tolist(), spreads.tolist(), strict=True):
            root = pid if self._all_but else root_of(pid)
            self._pids[root].add(pid)
            seen = self._seen[root]
            seen.rounds += weight
            seen.spread += spread

    def count_ended_threads(self, root: int, rounds: int) -> None:
        """Count the sampling times at which a thread of a process tree ran, but ended before its sample was taken."""
        self._ended[root] += rounds

    def retire(self, roots: Mapping[int, int]) -> None:
        """Forget process trees that had ended when the previous window was closed.

        Args:
            roots: Pid of the selected process of its tree, by the pid of each process.
        """
        self._pids.clear()
        there = set(self._trees(roots).values()) | {member.root for member in self._members.values()}
        for root in self._leaving.take_gone((self._names.keys() | self._seen.keys()) - there):
            self._past_due += self._due[root]
            self._past_seen += self._seen_ns(root)
            self._names.pop(root, None)
            for table in (self._spent, self._kernel, self._due, self._ended, self._seen, self._readings):
                table.pop(root, None)

    def spent_ns(self, root: int) -> int:
        """Return the processor time of a process tree since the recording began, in nanoseconds."""
        return self._spent[root]

    def result(self) -> dict[int, Account]:
        """Return the processor-time account of each process tree, by the pid of the tree's first process."""
        if self._all_but:
            return {root: self._whole_account(root) for root, spent in sorted(self._spent.items()) if spent}
        missing = {root: max(self._due[root] - self._seen_ns(root), 0) for root in self._names}
        excess = self._excess(sum(missing.values()))
        return {
            root: self._account(root, name, round(excess * missing[root])) for root, name in sorted(self._names.items())
        }

    def _seen_ns(self, root: int) -> int:
        return round(self._seen[root].rounds * self._period_ns)

    def _excess(self, missing_ns: int) -> float:
        """Return the share of unsampled user time that was really spent in the kernel, although the kernel counted it
        as user time.

        The kernel tells user and kernel time apart by its timer. That is exact up to chance for long processes, but
        wrong for short ones.
        """
        endings = self._endings()
        if endings is None or missing_ns <= endings.missing_ns:
            return 0.0
        chance_ns = math.sqrt(sum(self._spent.values()) * TICK_NS)
        return min(missing_ns - endings.missing_ns, endings.inexact_ns + chance_ns) / missing_ns

    def _whole_account(self, root: int) -> Account:
        """Return the processor-time account of a process, if all processes of the machine are recorded: its
        time never counts as partly missing.
        """
        spent, readings, pids = self._spent[root], tuple(self._readings[root]), frozenset(self._pids.get(root, ()))
        name = self._names.get(root, "")
        if root in self._inexact:
            spent, readings = max(spent, self._seen_ns(root)), ()
        return Account(name, spent, spent, spent, readings=readings, pids=pids, all_or_nothing=True)

    def _account(self, root: int, name: str, excess: int) -> Account:
        """Return the processor-time account of a process tree. `excess` is the time in ns that the kernel
        counted as user time although it was spent in the kernel.
        """
        seen, lost = self._seen[root], self._lost()
        spread = seen.spread + (seen.rounds if lost.only else seen.rounds * self._asleep(seen.rounds))
        chance = round(2 * self._period_ns * math.sqrt(spread))
        spent, due = self._spent[root], max(self._due[root] - excess, 0)
        seen_ns = self._seen_ns(root)
        kernel = max(min(self._kernel[root] + excess, spent - seen_ns), 0) if self._user_only else 0
        lost_ns, ended_ns = round(lost.times * self._period_ns), self._ended[root] * self._period_ns
        readings, pids = tuple(self._readings[root]), frozenset(self._pids.get(root, ()))
        if root in self._inexact:
            spent, due, readings = max(spent, seen_ns), max(due, seen_ns), ()
        return Account(
            name, spent, due, seen_ns, chance, kernel, lost_ns, lost.only, ended_ns, self.waits, readings, pids
        )

    def _asleep(self, rounds: float) -> float:
        """Return the share of sampling times at which the samples of a process tree found no thread running,
        from 0 to 1.
        """
        kept = self._slots[0]
        return max(1 - rounds / kept, 0.0) if kept else 0.0

    def _ns(self, times: ProcessTimes) -> tuple[int, int]:
        waited = (times.waited_ns, times.waited_kernel_ns) if self._children else (0, 0)
        total, kernel = _plus((times.own_ns, times.own_kernel_ns), waited)
        return total, kernel if self._user_only else 0

    def _read(self, pid: int, root: int) -> ProcessTimes | None:
        """Return the processor times of a process from /proc, or None if it has ended."""
        known = self._known.get(pid) if self._all_but else None
        if known is not None and (own_ns := self._own_ns(pid, known.start)) >= known.ns[0]:
            return ProcessTimes("", known.parent, known.start, own_ns, 0)
        found = read_times(pid)
        if found is None:
            return None
        if pid == root:
            self._names[root] = found.name
        own_ns = self._own_ns(pid, found.start)
        if self._pattern is not None:
            if self._matching[pid, found.start].has_ended:
                self._inexact.add(root)
            return ProcessTimes(found.name, found.parent, found.start, own_ns, 0)
        return replace(found, own_ns=own_ns or found.own_ns)

    def _own_ns(self, pid: int, start: int) -> int:
        """Return the processor time of a process, or of its recorded threads, in nanoseconds; 0 if it has ended."""
        if self._pattern is None:
            return read_process_ns(pid)
        return self._matching.setdefault((pid, start), MatchingThreads()).read(pid, self._pattern)


def _plus(one: tuple[int, int], other: tuple[int, int], times: int = 1) -> tuple[int, int]:
    return one[0] + times * other[0], one[1] + times * other[1]
