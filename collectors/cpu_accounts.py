"""Processor time of the recorded processes by the kernel's accounts, next to the time that samples stand for.

The account of a process includes threads that have ended. It includes a child, with that child's own children, once the
parent has waited for it. So the time of a process tree is the sum over its processes that exist, whatever started and
ended between two readings.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pyprof.collectors.thread_lives import Leaving
from pyprof.model.sample import SampleBatch
from pyprof.options import CollectOptions
from pyprof.records import dataclass, replace

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_BUDGET = 100  # a look that took t is followed by none for 100 t
_LOOK_NS = 100_000_000
_LEAST_NS, _LEAST_SHARE = 40_000_000, 0.03


@dataclass(frozen=True, slots=True)
class Account:
    """Of a process tree, since the recording began. name: of its first process. spent_ns: on processors; kernel_ns: of
    that, in the kernel, where no sample may be taken; due_ns: of the rest, in sampling times that were kept; seen_ns:
    what samples stand for. chance_ns: how far the two may differ by chance. lost_ns: sampling times whose records were
    lost; only_lost: nothing else can be missing. ended_ns: sampling times at which a thread ended before its sample was
    taken. waits: who sampled had to wait for a processor like others, and came late at times.
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


NO_ACCOUNT = Account("", 0, 0, 0)


class Lost(NamedTuple):
    """Sampling times whose records were lost. only: no others can be missing, for each moment is as likely to be
    sampled as any other.
    """

    times: float
    only: bool


NOTHING_LOST = Lost(0, False)


@dataclass(frozen=True, slots=True)
class Endings:
    """Times of threads and processes that ended, from records that leave out time in the kernel.

    inexact_ns: what processes lived that ended before the kernel's timer had found them, all together: the account
    takes all of their time for time in user space. missing_ns: what no sample stands for, by the records.
    """

    inexact_ns: int
    missing_ns: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """Processor time of a process tree in some period, that no sample stands for. pid, name: of its first process.
    short_ns: of what ran too short; lost_ns: of lost records; kernel_ns: in the kernel, where it is not sampled;
    late_ns: of what ran too short or had left its processor before it was looked at, with the sampling times that were
    missed by who waits for processors.
    """

    pid: int
    name: str
    short_ns: int
    lost_ns: int
    kernel_ns: int
    late_ns: int = 0


def missed(old: Account, account: Account) -> tuple[int, int]:
    """Nanoseconds in sampling times that were missed: those that are marked as not sampled, and those that are not.
    Who comes before others misses few, and all functions alike. Who waits for processors misses the busy times.
    """
    spent, due = account.spent_ns - old.spent_ns, account.due_ns - old.due_ns
    seen, kernel = account.seen_ns - old.seen_ns, account.kernel_ns - old.kernel_ns
    found = max(spent - max(due, seen) - kernel, 0)
    return (found, 0) if account.waits and found > _least(spent) else (0, found)


def _least(spent_ns: int) -> float:
    return max(_LEAST_NS, _LEAST_SHARE * spent_ns)


def unseen(before: Mapping[int, Account], after: Mapping[int, Account]) -> tuple[Unseen, ...]:
    """What was not sampled between two moments, of process trees where that is more than chance or rounding."""
    found = []
    for root, account in after.items():
        old = before.get(root, NO_ACCOUNT)
        least = _least(account.spent_ns - old.spent_ns)
        kernel = account.kernel_ns - old.kernel_ns
        missing = account.due_ns - old.due_ns - (account.seen_ns - old.seen_ns)
        lost = min(missing, account.lost_ns - old.lost_ns)
        if account.only_lost:
            missing = lost
        ended = account.ended_ns - old.ended_ns
        if missing <= max(least, account.chance_ns):
            missing = lost = 0
        missing = max(missing, ended * (ended > least))
        if kernel <= least:
            kernel = 0
        marked, _ = missed(old, account)
        if missing or kernel or marked:
            rest, late = missing - lost, account.waits
            found.append(Unseen(root, account.name, 0 if late else rest, lost, kernel, rest + marked if late else 0))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Times:
    """Of one process. start: in clock ticks since the machine did. own_kernel_ns, waited_kernel_ns: of the others, in
    the kernel.
    """

    name: str
    parent: int
    start: int
    own_ns: int
    waited_ns: int
    own_kernel_ns: int = 0
    waited_kernel_ns: int = 0


@dataclass(slots=True)
class _Member:
    """ns: total, and of that in the kernel."""

    root: int
    parent: int
    ns: tuple[int, int]
    start: int


@dataclass(slots=True)
class _Seen:
    """Samples of a process tree. rounds: for how many sampling times they stand; spread: the variance of that."""

    rounds: float = 0.0
    spread: float = 0.0


class Accounts:
    """Of the process trees of a recording, where samples are to stand for all of their time on processors: empty where
    threads that sleep are sampled, too, or only some threads are (on is False). waits: see Account.

    The kernel's account does not judge samples by events on processors. A thread that another processor has it preempt
    is charged from that decision on (rq_clock_skip_update in kernel/sched), though it runs only when the interrupt has
    come. On a virtual machine memcached under load was charged 12 to 20 % too much, and its clients too little.
    """

    def __init__(
        self,
        options: CollectOptions,
        everything: bool = False,
        user_only: bool = False,
        lost: Callable[[], Lost] = lambda: NOTHING_LOST,
        endings: Callable[[], Endings | None] = lambda: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """everything: all processes are recorded. user_only: time in the kernel has no samples. endings: where
        that is so and records have more than the account; else None.
        """
        self.on = options.running and not (options.idle or everything or options.thread)
        self._period_ns = round(1e9 / options.rate_hz)
        self._children = options.subprocesses
        self._user_only, self._lost, self._endings = user_only, lost, endings
        self._clock = clock
        self._members: dict[int, _Member] = {}
        self._names: dict[int, str] = {}
        self._spent: Counter[int] = Counter()
        self._kernel: Counter[int] = Counter()
        self._due: Counter[int] = Counter()
        self._slots = (0, 0)
        self._ended: Counter[int] = Counter()
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)
        self._not_before = 0
        self._began = 0
        self._leaving: Leaving[int] = Leaving()
        self._past_due = self._past_seen = 0
        self.waits = False

    def begin(self, roots: Mapping[int, int]) -> None:
        """From here on their time counts. roots: for each process that is there, the one of its tree that was asked
        for.
        """
        if not self.on:
            return
        self._began = boot_ticks()
        self._members = {}
        for pid, root in roots.items():
            if (found := self._read(pid, root)) is not None:
                self._members[pid] = _Member(root, found.parent, self._ns(found), found.start)

    @property
    def is_due(self) -> bool:
        """Would look() do anything, unless it is forced?"""
        return self.on and self._clock() >= self._not_before

    def look(self, roots: Mapping[int, int], force: bool = False, slots: tuple[int, int] = (0, 0)) -> bool:
        """Take in what was spent since; within a budget of the time, unless forced. slots: sampling times so far, those
        kept and those missed. Result: was there a look?
        """
        before = self._clock()
        if not self.on or (before < self._not_before and not force):
            return False
        known, self._members = self._members, {}
        spent: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for pid in roots.keys() | known.keys():
            old = known.get(pid)
            root = roots.get(pid, old.root if old else pid)
            found = self._read(pid, root)
            if found is None:
                continue
            ns = self._ns(found)
            self._members[pid] = _Member(root, found.parent, ns, found.start)
            if old is not None and old.start == found.start:
                spent[root] = _plus(_plus(spent[root], ns), old.ns, -1)
            elif found.start >= self._began:
                spent[root] = _plus(spent[root], ns)
        for pid, old in known.items():
            if pid not in self._members and self._children and self._was_waited_for(old, known):
                spent[old.root] = _plus(spent[old.root], old.ns, -1)  # from now on it is in its parent's account
        kept, missed = slots[0] - self._slots[0], slots[1] - self._slots[1]
        self._slots = slots
        for root, (total, kernel) in spent.items():
            self._spent[root] += total
            self._kernel[root] += kernel
            user = total - kernel
            self._due[root] += round(user * kept / (kept + missed)) if kept + missed else user
        after = self._clock()
        self._not_before = after + max(_LOOK_NS, _BUDGET * (after - before))
        return True

    def _was_waited_for(self, ended: _Member, known: Mapping[int, _Member]) -> bool:
        """Is there a process in whose account its time is now? There is none where its parents have ended, too."""
        for _ in known:
            if ended.parent in self._members or ended.parent not in known:
                break
            ended = known[ended.parent]
        return ended.parent in known and ended.parent in self._members

    def totals(self) -> tuple[int, int]:
        """Nanoseconds that were due, and those that samples stand for."""
        return self._past_due + sum(self._due.values()), self._past_seen + sum(map(self._seen_ns, self._seen))

    def saw(self, batch: SampleBatch, root_of: Callable[[int], int]) -> None:
        """Samples of the trees' processes."""
        if not self.on:
            return
        pids, at = np.unique(batch.pid, return_inverse=True)
        weights = np.bincount(at, batch.weight, len(pids))
        spreads = np.bincount(
            at, batch.weight * (batch.weight - 1), len(pids)
        )  # each was taken with a chance of 1/weight
        for pid, weight, spread in zip(pids.tolist(), weights.tolist(), spreads.tolist(), strict=True):
            seen = self._seen[root_of(pid)]
            seen.rounds += weight
            seen.spread += spread

    def ended(self, root: int, rounds: int) -> None:
        """At so many sampling times a thread of this tree ran, and ended before its sample was taken."""
        self._ended[root] += rounds

    def retire(self, roots: Mapping[int, int]) -> None:
        """Forget trees that had ended when the window before was closed. roots: as look() takes them."""
        there = set(roots.values()) | {member.root for member in self._members.values()}
        for root in self._leaving.settle((self._names.keys() | self._seen.keys()) - there):
            self._past_due += self._due[root]
            self._past_seen += self._seen_ns(root)
            self._names.pop(root, None)
            for table in (self._spent, self._kernel, self._due, self._ended, self._seen):
                table.pop(root, None)

    def spent_ns(self, root: int) -> int:
        """Processor time of a process tree so far."""
        return self._spent[root]

    def result(self) -> dict[int, Account]:
        """By root."""
        missing = {root: max(self._due[root] - self._seen_ns(root), 0) for root in self._names}
        excess = self._excess(sum(missing.values()))
        return {
            root: self._account(root, name, round(excess * missing[root])) for root, name in sorted(self._names.items())
        }

    def _seen_ns(self, root: int) -> int:
        return round(self._seen[root].rounds * self._period_ns)

    def _excess(self, missing_ns: int) -> float:
        """Of the time that no sample stands for and that the kernel's account calls user space, the share that was in
        the kernel. The account tells the two apart by its timer: exact but for chance, and wrong for short processes.
        """
        endings = self._endings()
        if endings is None or missing_ns <= endings.missing_ns:
            return 0.0
        chance_ns = math.sqrt(sum(self._spent.values()) * TICK_NS)
        return min(missing_ns - endings.missing_ns, endings.inexact_ns + chance_ns) / missing_ns

    def _account(self, root: int, name: str, excess: int) -> Account:
        """excess: time in user space by the kernel's account that was none."""
        seen, lost = self._seen[root], self._lost()
        spread = seen.spread + (seen.rounds if lost.only else seen.rounds * self._asleep(seen.rounds))
        chance = round(2 * self._period_ns * math.sqrt(spread))
        spent, due = self._spent[root], max(self._due[root] - excess, 0)
        seen_ns = self._seen_ns(root)
        kernel = max(min(self._kernel[root] + excess, spent - seen_ns), 0) if self._user_only else 0
        lost_ns, ended_ns = round(lost.times * self._period_ns), self._ended[root] * self._period_ns
        return Account(name, spent, due, seen_ns, chance, kernel, lost_ns, lost.only, ended_ns, self.waits)

    def _asleep(self, rounds: float) -> float:
        """Of sampling times on a grid, the part in which nobody ran: which ones these are is chance."""
        kept = self._slots[0]
        return max(1 - rounds / kept, 0.0) if kept else 0.0

    def _ns(self, times: Times) -> tuple[int, int]:
        waited = (times.waited_ns, times.waited_kernel_ns) if self._children else (0, 0)
        total, kernel = _plus((times.own_ns, times.own_kernel_ns), waited)
        return total, kernel if self._user_only else 0

    def _read(self, pid: int, root: int) -> Times | None:
        """None if it is gone."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                found = parse_times(file.read())
        except (OSError, ValueError, IndexError):
            return None
        if pid == root:
            self._names[root] = found.name
        return replace(found, own_ns=process_ns(pid) or found.own_ns)


def _plus(one: tuple[int, int], other: tuple[int, int], times: int = 1) -> tuple[int, int]:
    return one[0] + times * other[0], one[1] + times * other[1]


def parse_times(stat: bytes) -> Times:
    """A line of /proc/PID/stat. Raises ValueError, IndexError."""
    opening, closing = stat.index(b"("), stat.rindex(b")")
    fields = stat[closing + 1 :].split()
    user, system, waited_user, waited_system = map(int, fields[11:15])
    return Times(
        os.fsdecode(stat[opening + 1 : closing]),
        int(fields[1]),
        int(fields[19]),
        (user + system) * TICK_NS,
        (waited_user + waited_system) * TICK_NS,
        system * TICK_NS,
        waited_system * TICK_NS,
    )


def process_ns(pid: int) -> int:
    """A process's own time on processors, to the nanosecond (clock_getcpuclockid(3)); 0 if it is gone."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return 0


def boot_ticks() -> int:
    """Now, as /proc/PID/stat has the start of processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS
