"""The waits that the BPF program reports, as the time that each stack stands for and the time without a
stack.

The input are stacks of threads that left their processors, ends of waits, and the table of waits that
continue. The output are nanoseconds. They are exact, because the sums in the kernel include waits that have
no separate record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.kernel_program import WaitingThread
from pyprof.collectors.bpf.ring_buffer_records import I64, U32, Flag, WaitEnds
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.marker_frames import NOT_ONE_BY_ONE

Mask = npt.NDArray[np.bool_]

FOR_PROCESSOR, BLOCKED = "P", "B"
_STATES = ((0x02, "D"), (0x04, "T"), (0x08, "t"), (0x01, "S"))
_IDLE = 0x402
LATENCY_NS, FOREVER_NS = 20_000, 2**63 - 1
"""Times in nanoseconds after a thread's wakeup. A thread that runs within LATENCY_NS did not wait for a processor: the
time counts as part of its wait. FOREVER_NS stands for a time that never comes.
"""


def state_letter(why: int) -> str:
    """Return the state of a task in the kernel (include/linux/sched.h) as the letter in /proc/PID/stat."""
    if not why:
        return FOR_PROCESSOR
    if why & _IDLE == _IDLE:
        return "I"
    return next((name for bit, name in _STATES if why & bit), BLOCKED)


@dataclass(frozen=True, slots=True)
class SwitchOut:
    """Threads that left their processors, as columns of shape (n,) in order of time; each has a stack. `why`
    is the state of the task, `kept` marks the threads whose waits are wanted.
    """

    tid: I64
    time_ns: I64
    why: U32
    kept: Mask


@dataclass(frozen=True, slots=True)
class StacklessWait:
    """A part of a thread's waiting time for which no stack was recorded.

    Attributes:
        tid: The thread.
        since_ns: Start of the time.
        ns: Duration.
        state: State of the thread as a letter, as in /proc/TID/stat.
        call: Number of the thread's system call, -1 if it is in none or that is unknown.
        end: Index of the record of the wait's end (WaitEnds), -1 if the wait has not ended.
    """

    tid: int
    since_ns: int
    ns: int
    state: str
    call: int
    end: int = -1


class ContinuedWait(NamedTuple):
    """A further part of a wait whose first part, with the stack, was in an earlier batch.

    Attributes:
        tid: The thread.
        since_ns: Start of the time.
        ns: Duration.
        end: Index of the record of the wait's end (WaitEnds), -1 if the wait has not ended.
        woken: True if the thread was woken before and waited for a processor in this part.
    """

    tid: int
    since_ns: int
    ns: int
    end: int = -1
    woken: bool = False


@dataclass(slots=True)
class WaitTimes:
    """The waiting time in nanoseconds that one reading of BPF records adds to the profile, for recorded
    stacks and without stacks.

    Attributes:
        blocked_ns: Blocked time of each stack in SwitchOut.
        runnable_ns: Time that the thread of each stack in SwitchOut waited for a processor.
        continues: True for each stack in SwitchOut whose wait may continue.
        asleep_ns: Time of threads that have slept since before the recording, by tid.
        continued: Further time of waits whose stack was in an earlier batch.
        stackless: Waiting time without a stack.
        ends: Index of the record of the wait's end (WaitEnds), by index of the stack in SwitchOut.
        room_ns: Waiting time that may still be added to the profile, by tid of threads that waited: the
            elapsed time minus what was added.
    """

    blocked_ns: I64
    runnable_ns: I64
    continues: Mask
    asleep_ns: dict[int, int] = field(default_factory=dict)
    continued: list[ContinuedWait] = field(default_factory=list)
    stackless: list[StacklessWait] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    room_ns: dict[int, int] = field(default_factory=dict)

    def set_room(self, tids: I64, since_ns: int, passed_ns: int) -> None:
        """Set for each thread how much waiting time may still be added to the profile: the elapsed time minus what was
        added already.

        Args:
            tids: Threads of the stacks.
            since_ns: Start of the elapsed time.
            passed_ns: Elapsed time.
        """
        room_ns: Counter[int] = Counter()
        for tid, ns in zip(tids.tolist(), (self.blocked_ns + self.runnable_ns).tolist(), strict=True):
            room_ns[tid] -= ns
        parts: list[ContinuedWait | StacklessWait] = [*self.continued, *self.stackless]
        for each in parts:
            room_ns[each.tid] -= max(min(each.ns, each.since_ns + each.ns - since_ns), 0)
        room_ns.subtract(self.asleep_ns)
        self.room_ns = {tid: max(passed_ns + ns, 0) for tid, ns in room_ns.items()}


def rebuild_table(waiting: list[WaitingThread], later: WaitEnds, at_ns: int) -> list[WaitingThread]:
    """Compute the table of waiting threads as it was at an earlier time, from its current state and the waits that have
    ended since then.

    Sums over waits without separate records cannot be reconstructed and keep their current value.
    """
    table = {each.tid: each for each in waiting}
    first: dict[int, int] = {}
    for row, tid in enumerate(later.tid.tolist()):
        first.setdefault(tid, row)
    for tid, row in first.items():
        off_ns = int(later.off_ns[row])
        if tid not in table or later.flags[row] & Flag.GONE:
            continue
        if not off_ns:  # the thread was first seen after that time
            del table[tid]
            continue
        waking_ns, why, call = int(later.waking_ns[row]), int(later.why[row]), int(later.call[row])
        open_ns = off_ns if off_ns <= at_ns else 0
        table[tid] = replace(
            table[tid], off_ns=open_ns, waking_ns=waking_ns, why=why, call=call, copied=not open_ns, on_ns=0
        )
    return [*table.values()]


@dataclass(slots=True)
class _Open:
    """A wait of a thread that has begun and not ended, with the stack on which it waits.

    Attributes:
        off_ns: Start of the wait, 0 if before the thread was first seen.
        accounted_ns: End of the part of the wait that was already added to the profile.
        seen: True if its stack is in the profile.
        why: State of the task.
        call: The thread's system call.
        late: True if it has ended, but its end record was not there yet.
    """

    off_ns: int
    accounted_ns: int
    seen: bool
    why: int
    call: int
    late: bool = False


class Waits:
    """The accounting of all waits of one recording. It stores for each thread how much of its waiting time
    was already added to the profile.

    Threads that exist when the recording begins are passed to note_threads().

    Attributes:
        upto_ns: Time up to which waits were accounted.
        clipped_ns: Time of ended threads that was left out because their waits would be longer than the elapsed time.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._unheard: dict[int, int] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._debt: dict[int, int] = {}
        self._began_ns, self._end_ns = 0, FOREVER_NS
        self.upto_ns = 0
        self.clipped_ns = 0

    def start_at(self, at_ns: int, waiting: list[WaitingThread]) -> None:
        """Start the accounting of waits at a time; `waiting` is the table of waiting threads then. Earlier
        time is left out, even if later records report it.
        """
        self._began_ns = self.upto_ns = at_ns
        self._sums = {each.tid: (each.blocked_ns, each.runnable_ns) for each in waiting}

    @property
    def has_begun(self) -> bool:
        return self._began_ns > 0

    def stop_at(self, at_ns: int) -> None:
        """Set the end of the accounting: waiting time after it is left out."""
        self._end_ns = at_ns

    def _ns(self, since_ns: int, until_ns: int) -> int:
        """Return the length in nanoseconds of that part of an interval which lies between start and end of the
        accounting.
        """
        return max(min(until_ns, self._end_ns) - max(since_ns, self._began_ns), 0)

    def note_threads(self, tids: Iterable[int], now_ns: int) -> None:
        """Add threads that existed before the BPF program first saw them, and may have slept since then."""
        self._unheard.update(dict.fromkeys(tids, now_ns))

    @property
    def has_unreported_threads(self) -> bool:
        """True if there are threads about which the BPF program has sent no record."""
        return bool(self._unheard)

    def account_until(
        self,
        switched_out: SwitchOut,
        ended: WaitEnds,
        waiting: list[WaitingThread],
        asleep: Iterable[int],
        now_ns: int,
        least_ns: int,
        *,
        cuts: bool = True,
    ) -> WaitTimes:
        """Divide the waiting time of all threads up to now_ns among the recorded stacks, and return the division.

        Args:
            switched_out: Stacks of threads that left their processors until now_ns.
            ended: Ends of waits until now_ns.
            waiting: The kernel's table of waiting threads at now_ns.
            asleep: Threads that were seen asleep before now_ns.
            now_ns: End of the time.
            least_ns: Minimum duration of a wait with a record of its end.
            cuts: True to account the elapsed part of waits that continue, False to account them later.
        """
        n = len(switched_out.tid)
        times = WaitTimes(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_))
        table = {each.tid: each for each in waiting}
        lanes = {
            key: n for n, key in enumerate(zip(switched_out.tid.tolist(), switched_out.time_ns.tolist(), strict=True))
        }
        gone = self._end(times, ended, lanes)
        for tid in table.keys() | set(switched_out.tid.tolist()):
            self._unheard.pop(tid, None)
        self._account_open_waits(times, table, now_ns, cuts)
        for (tid, off_ns), lane in lanes.items():
            self._begin(times, switched_out, lane, table.get(tid), tid, off_ns, now_ns, cuts)
        for each in waiting:
            if each.off_ns and each.tid not in self._open and now_ns - each.off_ns >= least_ns and not each.copied:
                ended_since = np.any((ended.tid == each.tid) & (ended.off_ns == each.off_ns))
                if not ended_since and cuts:
                    self._open[each.tid] = _Open(each.off_ns, each.off_ns, False, each.why, each.call)
                    self._part(times, each.tid, self._open[each.tid], each, now_ns)
        for tid in set(asleep) & self._unheard.keys():
            known = self._open.setdefault(tid, _Open(0, self._unheard[tid], True, 1, -1))
            times.asleep_ns[tid] = self._ns(known.accounted_ns, now_ns)
            times.continued = [each for each in times.continued if each.tid != tid]
            known.accounted_ns = now_ns
        passed_ns = max(min(now_ns, self._end_ns) - self.upto_ns, 0)
        times.set_room(switched_out.tid, self.upto_ns, passed_ns)
        for tid, blocked_ns, runnable_ns, at_ns in gone:
            self._sum(times, tid, blocked_ns, runnable_ns, at_ns, passed_ns)
            before = self._sums.pop(tid)
            self.clipped_ns += blocked_ns - before[0] + runnable_ns - before[1]
            self._debt.pop(tid, None)
        for each in waiting:
            self._sum(times, each.tid, each.blocked_ns, each.runnable_ns, now_ns, passed_ns)
        self.upto_ns = max(self.upto_ns, now_ns)
        return times

    def _sum(self, times: WaitTimes, tid: int, blocked_ns: int, runnable_ns: int, now_ns: int, passed_ns: int) -> None:
        """Add the time of short waits, of which the kernel reports only sums for each thread, to the thread's waiting
        time: at most the elapsed time.

        The sums may be more recent than the table of waiting threads. The rest is added in the next call.
        """
        before = self._sums.get(tid, (0, 0))
        if before > (blocked_ns, runnable_ns):  # the tid belongs to another thread now
            before = (0, 0)
        blocked, runnable = blocked_ns - before[0], runnable_ns - before[1]
        if blocked and (debt := min(self._debt.get(tid, 0), blocked)):
            self._debt[tid] -= debt
            before = (before[0] + debt, before[1])
            blocked -= debt
        room_ns = times.room_ns.get(tid, passed_ns)
        for ns, state in ((blocked, BLOCKED), (runnable, FOR_PROCESSOR)):
            if (some := min(ns, room_ns)) > 0:
                times.stackless.append(StacklessWait(tid, now_ns - some, some, state, NOT_ONE_BY_ONE))
                room_ns -= some
                before = (before[0] + some * (state == BLOCKED), before[1] + some * (state == FOR_PROCESSOR))
        times.room_ns[tid] = room_ns
        self._sums[tid] = before

    def _end(
        self, times: WaitTimes, ended: WaitEnds, lanes: dict[tuple[int, int], int]
    ) -> list[tuple[int, int, int, int]]:
        """Add the time of waits that have ended to their stacks, and forget threads that have exited.

        Returns:
            (tid, blocked_ns, runnable_ns, time_ns) of each thread that has exited: the kernel's sums and the
                time of its end.
        """
        gone = []
        columns = (ended.tid, ended.time_ns, ended.flags, ended.off_ns, ended.waking_ns, ended.why, ended.call)
        sums = zip(ended.blocked_ns.tolist(), ended.runnable_ns.tolist(), strict=True)
        for end, ((tid, time_ns, flags, off_ns, waking_ns, why, call), (blocked_ns, runnable_ns)) in enumerate(
            zip(zip(*(column.tolist() for column in columns), strict=True), sums, strict=True)
        ):
            if flags & Flag.GONE:
                gone.append((tid, blocked_ns, runnable_ns, time_ns))
                self._open.pop(tid, None)
                self._unheard.pop(tid, None)
                continue
            since = self._unheard.pop(tid, None)
            if not off_ns:
                self._woke_first(times, tid, since, time_ns)
                continue
            lane, opened = lanes.pop((tid, off_ns), None), self._open.get(tid)
            if opened is not None and opened.off_ns == off_ns:
                del self._open[tid]
                self._further(times, tid, opened, waking_ns if why else time_ns, end)
                self._ran_late(times, tid, max(waking_ns, opened.accounted_ns), time_ns, opened.seen, end)
            elif lane is not None:
                times.ends[lane] = end
                times.blocked_ns[lane] = self._ns(off_ns, waking_ns)
                times.runnable_ns[lane] = self._ns(waking_ns, time_ns)
            else:
                self._further(times, tid, _Open(off_ns, off_ns, False, why, call), waking_ns, end)
                self._ran_late(times, tid, waking_ns, time_ns, False)
        return gone

    def _woke_first(self, times: WaitTimes, tid: int, since: int | None, time_ns: int) -> None:
        """Add the waiting time of a thread that runs for the first time since the recording began.

        Args:
            since: Time from which the thread may have slept, None if it did not exist then.
        """
        opened = self._open.pop(tid, None)
        if opened is not None:
            self._further(times, tid, opened, time_ns)
        elif since is not None:
            times.stackless.append(StacklessWait(tid, since, self._ns(since, time_ns), BLOCKED, -1))

    def _further(self, times: WaitTimes, tid: int, opened: _Open, until_ns: int, end: int = -1) -> None:
        """Add to a thread's waiting time the part of its wait that no earlier call has added.

        The first part was added together with the stack of the wait.
        """
        ns, since = self._ns(opened.accounted_ns, until_ns), opened.accounted_ns
        opened.accounted_ns = max(since, until_ns)
        if not ns:
            return
        if opened.seen:
            times.continued.append(ContinuedWait(tid, since, ns, end))
        else:
            times.stackless.append(StacklessWait(tid, since, ns, state_letter(opened.why), opened.call, end))

    def _ran_late(self, times: WaitTimes, tid: int, waking_ns: int, time_ns: int, seen: bool, end: int = -1) -> None:
        """Add the time between a thread's wakeup and its next run on a processor to the thread's waiting time.

        Args:
            seen: True if the stack of the wait is in the profile.
        """
        ns = self._ns(waking_ns, time_ns)
        if seen and 0 < ns < LATENCY_NS:
            times.continued.append(ContinuedWait(tid, waking_ns, ns, end))
        elif seen and ns > 0:
            times.continued.append(ContinuedWait(tid, waking_ns, ns, woken=True))
        elif ns > 0:
            times.stackless.append(StacklessWait(tid, waking_ns, ns, FOR_PROCESSOR, -1))

    def _account_open_waits(self, times: WaitTimes, table: dict[int, WaitingThread], now_ns: int, cuts: bool) -> None:
        """Add the time of waits that began in an earlier call, and have not ended, to the waiting time of threads."""
        for tid, opened in list(self._open.items()):
            if opened.off_ns > now_ns:
                continue
            entry = table.get(tid)
            missed = opened.off_ns and (entry is None or entry.off_ns != opened.off_ns)
            if missed and opened.late:  # its end record found no room
                self._debt[tid] = self._debt.get(tid, 0) + opened.accounted_ns - opened.off_ns
                del self._open[tid]
            elif missed:
                opened.late = True  # it is behind a record that is being written
            elif not opened.off_ns and entry is not None:
                del self._open[tid]
            elif cuts:
                self._part(times, tid, opened, entry, now_ns)

    def _part(self, times: WaitTimes, tid: int, opened: _Open, entry: WaitingThread | None, now_ns: int) -> None:
        """Add the elapsed part of a wait that continues to the thread's waiting time, and the time since its wakeup for
        which it waited for a processor.
        """
        until_ns = _until(entry, now_ns) if entry is not None else now_ns
        self._further(times, tid, opened, until_ns)
        self._ran_late(times, tid, max(until_ns, opened.accounted_ns), now_ns, opened.seen)
        opened.accounted_ns = max(opened.accounted_ns, now_ns)

    def _begin(
        self,
        times: WaitTimes,
        left: SwitchOut,
        lane: int,
        entry: WaitingThread | None,
        tid: int,
        off_ns: int,
        now_ns: int,
        cuts: bool,
    ) -> None:
        """Begin the accounting of a wait whose stack was recorded and which has not ended."""
        lasts = cuts and entry is not None and entry.off_ns == off_ns
        until = _until(entry, now_ns) if entry is not None and lasts else off_ns
        why = int(left.why[lane])
        (times.blocked_ns if why else times.runnable_ns)[lane] = self._ns(off_ns, until)
        if lasts and why:
            times.runnable_ns[lane] = self._ns(until, now_ns)
            until = now_ns
        times.continues[lane] = True
        self._open[tid] = _Open(off_ns, max(until, off_ns), bool(left.kept[lane]), why, -1)


def _until(entry: WaitingThread, now_ns: int) -> int:
    """Return the time until which a thread was certainly blocked: its wakeup if there was one, else now."""
    return min(entry.waking_ns, now_ns) if entry.waking_ns and entry.why else now_ns
