"""The context of waits: the lock that a thread waited for, and the thread that ended the wait (its waker).

In the stack of a wait, the lock is added as the outermost frame and the waker as the innermost one.

A wait for a futex ends by a call of futex(2), by the end of a thread or by a signal. A sleep (nanosleep) ends
by a timer or a signal. If a timer interrupts a thread in another system call, that thread is not the waker.

A lock is a futex, which its address identifies. Threads wait for the lock of a Python interpreter by timed
waits of 5 ms. A wait that ended by its timeout is merged with the thread's next wait for the same lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.ring_buffer_records import Flag, WaitEnds
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.bpf.wait_durations import ContinuedWait, StacklessWait, WaitTimes
from pyprof.collectors.linux.sampled_arch import HERE, WIDE
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.marker_frames import NOT_ONE_BY_ONE, Blocked, Mark, MarkKind
from pyprof.model.sample_batch import SampleBatch, Surroundings
from pyprof.options import CollectOptions


@dataclass(frozen=True, slots=True)
class WakingCalls:
    """System call numbers of one architecture, which tell whether a thread in one call could wake a thread
    that waits in another.

    Attributes:
        futexes: Calls that wait for a futex: futex, futex_waitv, futex_wait.
        naps: Calls that sleep: nanosleep, clock_nanosleep.
        signals: Calls that send signals: kill and similar ones.
        wakes: Calls that wake threads which wait for a futex, including exit and exit_group.
    """

    futexes: frozenset[int]
    naps: frozenset[int]
    signals: frozenset[int]
    wakes: frozenset[int]


CALLS = {
    "x86_64": WakingCalls(
        futexes=frozenset((202, 449, 455)),
        naps=frozenset((35, 230)),
        signals=frozenset((62, 129, 200, 234, 297)),
        wakes=frozenset((202, 454, 456, 60, 231)),
    ),
    "aarch64": WakingCalls(
        futexes=frozenset((98, 449, 455)),
        naps=frozenset((101, 115)),
        signals=frozenset((129, 138, 130, 131, 240)),
        wakes=frozenset((98, 454, 456, 93, 94)),
    ),
}
_HERE = CALLS[WIDE.name]
FUTEX_WAITS = _HERE.futexes
NOBODY = Mark(MarkKind.WOKEN)


def has_named_waker(ended: WaitEnds, n: int) -> bool:
    """Return True if another thread ended wait `n` of `ended` and its name is known."""
    call, by = int(ended.call[n]), int(ended.waker_call[n])
    if not ended.waker_pid[n]:
        return False
    if call in FUTEX_WAITS:
        return by in _HERE.wakes or by in _HERE.signals
    return call not in _HERE.naps or by in _HERE.signals


def describe_waker(ended: WaitEnds, n: int) -> Surroundings:
    """Return the frame that names the thread which ended wait `n` of `ended`, and the waker's tid and time.
    The waiting thread must not have been preempted.
    """
    if not has_named_waker(ended, n):
        return Surroundings(inner=NOBODY)
    name = ended.waker_name[n].split(b"\0", 1)[0].decode("utf-8", "replace")
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    tid = int(ended.waker_tid[n])
    inner = Mark(MarkKind.WOKEN, name=f"{text} ({tid})" if ended.waker_call[n] >= 0 else f"the kernel: {text}")
    return Surroundings(inner=inner, waker=(tid, int(ended.waking_ns[n])))


_MAX_RELEASE_GAP_NS = 1_000_000
"""Maximum time in nanoseconds between two waits of a thread for the same lock that count as one wait, because
the thread did not hold the lock in between.
"""
_GIL_BYTES = 256
"""Size in bytes of CPython's struct _gil_runtime_state, which contains the GIL's condition variables and mutexes."""


@dataclass(slots=True)
class _Joined:
    """Consecutive waits of one thread for one lock that count as one wait, because no other thread ended any of them.

    Attributes:
        lane: Index in the batch of the last wait's stack, or None if that stack was in an earlier batch.
    """

    lock: Mark
    since_ns: int
    end_ns: int
    ns: int
    lane: int | None


class LockWaits:
    """The waits for locks in one recording. `gils` is a function that returns the addresses of the
    interpreter locks (GILs) of a process by its pid.
    """

    def __init__(self, gils: Callable[[int], Iterable[int]]) -> None:
        self._gils = gils
        self._joined: dict[int, _Joined] = {}

    def make_marker(self, pid: int, address: int) -> Mark:
        """Return a marker frame that names the lock at an address of a process: "GIL" or its address."""
        if not address:
            return Mark(MarkKind.LOCK, name="a lock that is not known")
        if any(gil <= address < gil + _GIL_BYTES for gil in self._gils(pid)):
            return Mark(MarkKind.LOCK, name="GIL")
        return Mark(MarkKind.LOCK, name=f"lock {address:#x}")

    def merge_continued_waits(self, times: WaitTimes, ended: WaitEnds, cuts: bool) -> None:
        """Move the time of each wait for a lock that ended without a waker to the same thread's next wait for
        that lock. `cuts` is True if the next wait belongs to another window.
        """
        lanes = {end: lane for lane, end in times.ends.items()}
        for n, flags in enumerate(ended.flags.tolist()):
            if flags & Flag.GONE:
                self._flush(times, int(ended.tid[n]))
            elif ended.off_ns[n] and ended.why[n]:
                self._take(times, ended, n, lanes.get(n))
        for tid, joined in list(self._joined.items()):
            if cuts:
                self._flush(times, tid)
            else:
                joined.lane = None

    def _take(self, times: WaitTimes, ended: WaitEnds, n: int, lane: int | None) -> None:
        tid, off_ns = int(ended.tid[n]), int(ended.off_ns[n])
        lock = self.make_marker(int(ended.pid[n]), int(ended.object[n]))  # a condition variable has two futexes
        before = self._joined.get(tid)
        if before is not None and (before.lock != lock or off_ns - before.end_ns > _MAX_RELEASE_GAP_NS):
            self._flush(times, tid)
            before = None
        ns, since_ns = (before.ns, before.since_ns) if before is not None else (0, off_ns)
        self._joined.pop(tid, None)
        if has_named_waker(ended, n):
            _add(times, n, lane, tid, since_ns, ns)
        else:
            ns += _taken(times, n, lane)
            self._joined[tid] = _Joined(lock, since_ns, int(ended.time_ns[n]), ns, lane)

    def _flush(self, times: WaitTimes, tid: int) -> None:
        """Add the merged waits of a thread for one lock to its waiting time, because no later wait continues them."""
        joined = self._joined.pop(tid, None)
        if joined is not None and joined.lane is not None:
            times.blocked_ns[joined.lane] += joined.ns
        elif joined is not None and joined.ns:
            times.continued.append(ContinuedWait(tid, joined.since_ns, joined.ns))


def is_lock_wait(each: StacklessWait) -> bool:
    """Return True if waiting time without a stack is a wait for a lock. In this mode the BPF program records
    only futex waits, so a wait with an end record is one.
    """
    return each.end >= 0 or each.call == NOT_ONE_BY_ONE or each.call in FUTEX_WAITS


def find_lock_addresses(batch: SampleBatch) -> dict[int, int]:
    """Return the addresses of the futexes for which the threads of a batch sleep now, by tid."""
    found = {}
    inside = [] if batch.kernel_stack is None else batch.kernel_stack.tolist()
    for lane, at in enumerate(inside):
        wait = batch.kernel_stacks[at][:1]
        if wait and isinstance(wait[0], Blocked) and wait[0].call in FUTEX_WAITS:
            found[int(batch.tid[lane])] = _first_argument(int(batch.tid[lane]))
    return found


def _first_argument(tid: int) -> int:
    """Return the address of the futex for which a thread sleeps (the first argument of its call), or 0 if it no longer
    sleeps.
    """
    try:
        with open(f"/proc/{tid}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except OSError:
        return 0
    return int(words[1], 16) if len(words) > 2 and words[0].isdigit() and int(words[0]) in FUTEX_WAITS else 0


def _add(times: WaitTimes, end: int, lane: int | None, tid: int, since_ns: int, ns: int) -> None:
    """Add `ns` nanoseconds to the waiting time of one ended wait: to its stack in the batch, or else to the
    stack of an earlier batch.
    """
    if not ns:
        return
    if lane is not None:
        times.blocked_ns[lane] += ns
    else:
        times.continued.append(ContinuedWait(tid, since_ns, ns, end))


def _taken(times: WaitTimes, end: int, lane: int | None) -> int:
    """Remove the waiting time of one ended wait from `times` and return it in nanoseconds. Its stack stays in
    the batch.
    """
    found = sum(each.ns for each in times.continued if each.end == end) + sum(
        b.ns for b in times.stackless if b.end == end
    )
    times.continued = [each for each in times.continued if each.end != end]
    times.stackless = [each for each in times.stackless if each.end != end]
    if lane is not None:
        found += int(times.blocked_ns[lane])
        times.blocked_ns[lane], times.continues[lane] = 0, True
    return found


_NOT_ENDED = -1

LaneNumbers = npt.NDArray[np.intp]
Around = dict[int, Surroundings]


class WaitContext:
    """The locks and wakers of the waits in a recording. `addresses` has the address of the futex for which
    each thread last waited, by tid.
    """

    def __init__(self, options: CollectOptions, locks: LockWaits) -> None:
        self.locks = locks
        self.addresses: dict[int, int] = {}
        self._options = options

    def describe_records(
        self, batch: SampleBatch, source: BpfSource, ends: Mapping[int, int], waits: LaneNumbers, lanes: LaneNumbers
    ) -> Around:
        """Return the lock and the waker of each wait whose stack is in the batch, as frames, by index of the
        sample.

        Args:
            batch: The batch.
            source: The source whose last records the batch was made of.
            ends: Index of the ended wait in source.ended, by position in `waits`.
            waits: Indices of all waits among the records.
            lanes: Indices of the batch's samples among the records.
        """
        found: Around = {}
        if not self._options.wakers:
            return found
        records = source.records
        ended = {int(waits[lane]): end for lane, end in ends.items()}
        for n, lane in enumerate(lanes.tolist()):
            if records.flags[lane] & Flag.WAITS:
                tid = int(batch.tid[n])
                self.addresses[tid] = int(records.regs[lane, HERE.first_argument])
                found[n] = self._of(int(batch.pid[n]), tid, ended.get(lane, _NOT_ENDED), source.ended)
        return found

    def describe_times(
        self, batch: SampleBatch, times: Sequence[ContinuedWait | StacklessWait], ended: WaitEnds
    ) -> Around:
        """Return the lock and the waker of waiting time without a new stack, as frames, by row of the batch."""
        if not self._options.wakers:
            return {}
        return {n: self._of(int(batch.pid[n]), each.tid, each.end, ended) for n, each in enumerate(times)}

    def describe_sleepers(self, batch: SampleBatch) -> Around:
        """Return the locks for which threads have waited since before the recording began, as frames, by row
        of the batch.
        """
        if not self._options.locks:
            return {}
        ids = zip(batch.pid.tolist(), batch.tid.tolist(), strict=True)
        return {n: Surroundings(outer=self._lock(pid, tid)) for n, (pid, tid) in enumerate(ids)}

    def _of(self, pid: int, tid: int, end: int, ended: WaitEnds) -> Surroundings:
        around = describe_waker(ended, end) if end >= 0 and ended.why[end] else Surroundings()
        if not self._options.locks:
            return around
        lock = self.locks.make_marker(pid, int(ended.object[end])) if end >= 0 else self._lock(pid, tid)
        return around._replace(outer=lock)

    def _lock(self, pid: int, tid: int) -> Mark:
        return self.locks.make_marker(pid, self.addresses.get(tid, 0))
