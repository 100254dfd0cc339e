"""The threads and processes that are sampled by short ptrace stops: the kernel cannot copy their stacks, or
their program needs it.

A thread is chosen if its samples are cut where the kernel's stack copy ends, and released when its stops turn
out to be unnecessary. If threads end before they can be stopped, or many are chosen, all threads of their
process are chosen, including later ones. All threads of a process are chosen as well while its program (such
as an interpreter) needs stops.

A process is checked when it appears, after each exec, and when it has mapped another file. If the result is
not clear yet (an interpreter that has not started), the check is repeated soon, at growing intervals.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import Feedback
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.event_attributes import MOST_STACK
from pyprof.collectors.perf.stack_copy_size import mask_beyond_copy, mask_other_stacks
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.integer_array_operations import among
from pyprof.model.loss_reason_texts import Note
from pyprof.model.sample_batch import SampleBatch

I32 = npt.NDArray[np.int32]

_OF = 4000
"""A thread is stopped for its samples if one in _OF of its perf samples is cut where the kernel's stack copy
ends. More samples must be cut if earlier stops of the thread were useless.
"""
_AWAY = 20
"""A thread is stopped for its samples if at least two of its perf samples, and one in _AWAY, continue on another stack.

The signal handlers by which Go preempts goroutines are in one of fifty to a hundred samples. Stops of such a
thread cost more than they gain.
"""
_MIN_BACK = 512
"""Number of consecutive unnecessary stops after which a thread is sampled by perf_events again. It doubles
each time that the thread is released after useful stops.
"""
_CUT_LIMIT_FACTOR = 8
"""Factor by which the required number of cut samples grows after stops of a thread were useless."""
_LATE, _MANY = 3, 16
"""Limits above which all threads of a process are sampled by stops: the number of its threads that ended
before their first stop, and the number of its threads that are stopped.
"""
_MAX_CASES = 4096


@dataclass(slots=True)
class _Case:
    """The evidence for the decision whether one thread, or all threads of one process, must be stopped for samples.

    Attributes:
        pid: The process.
        seen: Number of samples by perf_events.
        cut: Number of them that are cut where the kernel's stack copy ends.
        away: Number of them that continue on another stack.
        since_ns: Time from which the thread is sampled by stops.
        until_ns: Time until which the thread is sampled by stops.
        fitting: Number of consecutive stops that were unnecessary.
        enough: Number of consecutive unnecessary stops after which it is no longer stopped.
        useful: True if at least one stop was necessary.
        most_cut: Number of cut samples from which on it is stopped.
        started: Start time in clock ticks, to distinguish it from a later thread with the same tid.
    """

    pid: int
    seen: int = 0
    cut: int = 0
    away: int = 0
    since_ns: float = math.inf
    until_ns: float = math.inf
    fitting: int = 0
    enough: int = _MIN_BACK
    useful: bool = False
    most_cut: int = 1
    started: int | None = None


class StopCandidates:
    """The threads and processes that are sampled by stops. Each has a case, whose key is the tid, or minus
    the pid for a whole process.

    Attributes:
        threads: Number of times that a thread was chosen because of its stacks.
        processes: Number of times that a whole process was chosen because of its threads' stacks.
        long: True if a thread was chosen for the length of its stacks.
        watch: Function that find_new() calls first, to check processes for changes.
    """

    refused: tuple[Note, ...] = ()
    lasting = False

    def __init__(self, most_copy: int = MOST_STACK) -> None:
        """Create an empty set of threads to stop; `most_copy` is the number of stack bytes that the kernel copies."""
        self.threads = self.processes = 0
        self.long = False
        self._most_copy = most_copy
        self.watch: Callable[[], object] = lambda: None
        self._by_image: set[int] = set()
        self._cases: dict[int, _Case] = {}
        self._stopped: set[int] = set()
        self._left: set[int] = set()
        self._refused: set[int] = set()
        self._late: Counter[int] = Counter()

    def wants(self, pid: int, tid: int) -> bool:
        """Return True if a thread must be stopped for its samples."""
        return (tid in self._stopped or -pid in self._stopped) and tid not in self._refused

    def __bool__(self) -> bool:
        return bool(self._stopped)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(sorted({self._cases[key].pid for key in self._stopped}))

    def find_new(self, excluded: Container[int]) -> Iterable[int]:
        """Return the pids of processes that need stops, or have threads that do, and that are not in `excluded`."""
        self.watch()
        return [pid for pid in self.pids if pid not in excluded and os.path.exists(f"/proc/{pid}")]

    def elsewhere(self, pid: I32, tid: I32, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the perf_events samples to drop, because their threads were sampled by stops at
        that time.
        """
        found = np.zeros(len(tid), np.bool_)
        now = int(time_ns.min()) if len(time_ns) else 0
        self._left = {key for key in self._left if self._cases[key].until_ns >= now}  # samples come in order
        for key in self._left:
            case = self._cases[key]
            found |= _of(key, pid, tid) & (time_ns >= case.since_ns) & (time_ns < case.until_ns)
        return found & ~among(tid, self._refused) if self._refused else found

    def learn_copied(self, feedback: Feedback) -> None:
        """Decide which threads need stops, by how far the walks of the kernel's stack copies came."""
        tids, pids = feedback.batch.tid, feedback.batch.pid
        beyond, away = mask_beyond_copy(feedback, self._most_copy), mask_other_stacks(feedback, self._most_copy)
        self._prune()
        for tid, first, count in zip(*np.unique(tids, return_index=True, return_counts=True), strict=True):
            mine = tids == tid
            far = int(np.count_nonzero(away & mine))
            self._judge(int(tid), int(pids[first]), int(count), int(np.count_nonzero(beyond & mine)) - far, far)

    def _judge(self, tid: int, pid: int, seen: int, cut: int, away: int) -> None:
        case = self._cases.get(tid)
        if case is None or case.pid != pid:
            case = self._cases[tid] = _Case(pid)
        case.seen += seen
        case.cut += cut
        case.away += away
        often = case.away >= max(case.most_cut, 2) and _AWAY * case.away >= case.seen
        long = case.cut >= case.most_cut
        if (often or long) and tid not in self._refused and not self.wants(pid, tid):
            self._choose(tid, case)
            self.threads += 1
            self.long |= long
            if sum(self._cases[key].pid == pid for key in self._stopped) >= _MANY:
                self._choose_process(pid)
        if case.seen >= _OF:
            case.seen = case.cut = case.away = 0

    def _choose(self, key: int, case: _Case) -> None:
        self._stopped.add(key)
        self._left.add(key)
        case.started = procfs.read_start_ticks(abs(key))
        case.since_ns, case.until_ns, case.fitting, case.useful = math.inf, math.inf, 0, False

    def _choose_process(self, pid: int) -> None:
        self._replace_by_process(pid)
        self.processes += 1

    def _replace_by_process(self, pid: int) -> None:
        """Sample all threads of a process by stops, instead of single ones. Samples of the process by
        perf_events are dropped until it is released.
        """
        self._stopped -= {key for key in self._stopped if self._cases[key].pid == pid}
        self._choose(-pid, self._cases.setdefault(-pid, _Case(pid)))
        self._late.pop(pid, None)

    def choose_image(self, pid: int, from_start: bool) -> None:
        """Start to sample all threads of a process by stops because of the program that it runs. With
        from_start, all samples of the process by perf_events are dropped.
        """
        if -pid not in self._refused and pid not in self._by_image:
            self._replace_by_process(pid)
            self._by_image.add(pid)
            if from_start:
                self._cases[-pid].since_ns = 0

    def release_image(self, pid: int) -> None:
        """End the stops of a process because it runs another program, which does not need them."""
        if pid in self._by_image:
            self._give_back(-pid)

    def others(self, feedback: Feedback) -> Feedback:
        """Return the feedback without the samples of threads that are stopped. Larger stack copies by the kernel would
        not help these threads.
        """
        if not self._stopped:
            return feedback
        pid, tid = feedback.batch.pid, feedback.batch.tid
        kept = np.flatnonzero(~np.logical_or.reduce([_of(key, pid, tid) for key in self._stopped]))
        batch = feedback.batch.take_samples(kept)
        columns = feedback.top[kept], feedback.missing[kept], feedback.stop[kept]
        return Feedback(batch, *columns, feedback.look, has_new_code=feedback.has_new_code)

    def begun(self, batch: SampleBatch) -> None:
        """Note which threads have a sample in a batch of samples by stops. From a thread's first such sample
        on, its samples by perf_events are dropped.
        """
        for key in self._stopped:
            case, mine = self._cases[key], _of(key, batch.pid, batch.tid)
            if case.since_ns == math.inf and mine.any():
                case.since_ns = int(batch.time_ns[mine].min())

    def learn_stopped(self, feedback: Feedback) -> None:
        """Find the threads that need no stops any more, by the unwound samples that were taken by stops. They
        are sampled by perf_events again.
        """
        batch = feedback.batch
        columns = batch.pid.tolist(), batch.tid.tolist(), batch.stack.base.tolist(), feedback.top.tolist()
        for lane, (pid, tid, base, top) in enumerate(zip(*columns, strict=True)):
            key = tid if tid in self._stopped else -pid
            if key in self._stopped and pid not in self._by_image:
                fits = base <= top <= base + self._most_copy * 7 // 8
                needed = top and (lane in batch.stack.pieces or lane in batch.stack.beyond or not fits)
                self._weigh(key, bool(needed))

    def _weigh(self, key: int, needed: bool) -> None:
        case = self._cases[key]
        case.fitting = 0 if needed else case.fitting + 1
        case.useful = case.useful or needed
        if case.fitting >= case.enough:
            if case.useful:
                case.enough *= 2
            else:
                case.most_cut *= _CUT_LIMIT_FACTOR
            self._give_back(key)

    def refuse(self, tid: int) -> None:
        """Note that a thread cannot be stopped, so that only perf_events sample it."""
        self._refused.add(tid)
        if tid in self._stopped:
            self._give_back(tid)

    def refuse_all(self) -> None:
        for key in list(self._stopped):
            self._refused.add(key)
            self._give_back(key)

    def forget_ended(self) -> None:
        """Forget threads and processes that have ended."""
        for key in list(self._stopped):
            case = self._cases[key]
            gone = case.started is None or procfs.read_start_ticks(abs(key)) != case.started
            if gone and key in self._stopped:
                self._late[case.pid] += key > 0 and case.since_ns == math.inf
                self._give_back(key)
                if self._late[case.pid] >= _LATE:
                    self._choose_process(case.pid)

    def _give_back(self, key: int) -> None:
        self._stopped.discard(key)
        self._by_image.discard(-key)
        now, pid = time.monotonic_ns(), self._cases[key].pid
        for each in self._left:
            case = self._cases[each]
            if each == key or (key < 0 and case.pid == pid):
                case.until_ns, case.seen, case.cut, case.away = min(case.until_ns, now), 0, 0, 0

    def _prune(self) -> None:
        """Limit the number of threads and processes that are remembered. Most of them are forgotten when
        there are too many, because threads end and their tids are reused.
        """
        if len(self._cases) > _MAX_CASES:
            self._cases = {key: case for key, case in self._cases.items() if key in self._stopped}
            self._left &= self._cases.keys()
            self._refused.clear()
            self._late.clear()


def _of(key: int, pid: I32, tid: I32) -> npt.NDArray[np.bool_]:
    """Return a mask of the samples of one thread (key > 0, a tid) or of one process (key < 0, minus its pid)."""
    found: npt.NDArray[np.bool_] = tid == key if key > 0 else pid == -key
    return found


NeedsStops = Callable[[int], str | None]
"""The type of a function that returns why a process (pid) needs stops for its samples. It returns "" if the
process needs none, None if that is not known yet.
"""

_SOON_NS, _LATE_NS = 10_000_000, 1_000_000_000
_YOUNG_NS, _SETTLED_NS = 50_000_000, 3_000_000_000
"""Limits in nanoseconds of the growing interval between checks of a process that needs stops. Checks begin
with _YOUNG_NS and end above _SETTLED_NS. They are repeated because the way in which an interpreter starts may
make stops unnecessary.
"""
_BUDGET, _MAX_NS = 10, 5_000_000
"""Limits of the checks whether processes need stops. After checks that took time t there are none for _BUDGET
times t. The checks in one call take at most _MAX_NS nanoseconds.
"""
_MOST = 1 << 16
_NEVER_NS = 2**62


@dataclass(slots=True)
class _Pending:
    """The monotonic time of the next check whether a process needs stops, and the interval to the check after
    it, in nanoseconds.
    """

    due_ns: int
    wait_ns: int


@dataclass
class ByImage:
    """The repeated check which processes need stops for their samples because of the program that they run,
    such as an interpreter.

    Attributes:
        needs_stops: Function that checks one process.
        reasons: Reason by pid, for the processes that need stops now.
        why: Pids by reason, for all processes that needed stops since the recording began.
    """

    needs_stops: NeedsStops
    clock: Callable[[], int] = time.monotonic_ns
    cost: Callable[[], int] = time.thread_time_ns
    reasons: dict[int, str] = field(default_factory=dict)
    why: dict[str, set[int]] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _not_before: int = 0

    def changed(self, pids: Iterable[int]) -> None:
        """Schedule a check of processes that appeared or that run new code."""
        now = self.clock()
        for pid in pids:
            if len(self._pending) < _MOST:
                self._pending[pid] = _Pending(now, _SOON_NS)

    def wait_ns(self) -> int:
        """Return the time in ns until the next check whether processes must be sampled by stopping them."""
        due = max(min((pending.due_ns for pending in self._pending.values()), default=_NEVER_NS), self._not_before)
        return max(due - self.clock(), 0)

    def check_due(self, all_of_them: bool = False, is_over: Callable[[], bool] = lambda: False) -> list[int]:
        """Check the processes whose check is due. Return the pids of those for which it was now decided
        whether they need stops.

        Args:
            all_of_them: True to ignore the limit for the time that checks take.
            is_over: No further process is checked after it has returned True.
        """
        now = self.clock()
        due = [(pid, pending) for pid, pending in self._pending.items() if pending.due_ns <= now]
        if not due or (not all_of_them and now < self._not_before):
            return []
        spent = self.cost()
        decided = []
        for pid, pending in due:
            if is_over():
                break
            if self._is_decided(pid, self.needs_stops(pid), pending):
                decided.append(pid)
            if not all_of_them and self.cost() > spent + _MAX_NS:
                break
        self._not_before = self.clock() + min(_BUDGET * (self.cost() - spent), _LATE_NS)
        return decided

    def _is_decided(self, pid: int, reason: str | None, pending: _Pending) -> bool:
        if reason is None:
            pending.due_ns = self.clock() + pending.wait_ns
            pending.wait_ns = min(2 * pending.wait_ns, _LATE_NS)
            return False
        if not reason:
            del self._pending[pid]
            self.reasons.pop(pid, None)
            return True
        self.reasons[pid] = reason
        self.why.setdefault(reason, set()).add(pid)
        pending.wait_ns = max(2 * pending.wait_ns, _YOUNG_NS)
        pending.due_ns = self.clock() + pending.wait_ns
        if pending.wait_ns > _SETTLED_NS:
            del self._pending[pid]
        return True
