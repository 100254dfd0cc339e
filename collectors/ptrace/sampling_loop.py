"""Rounds of samples of a process's threads, and the sampling of one thread by ptrace stops or from outside.

In a round, the threads of a process are checked at one sampling time, and those that run are sampled. The
compiled sampling loop makes rounds as far as possible, else Python does. A running thread is sampled by a
stop. A sleeping thread is read without a stop, or not at all if it has not run since its last sample.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import ChildFinder
from pyprof.collectors.linux.interrupted_syscalls import BlockedCall, can_survive_stop, parse_syscall
from pyprof.collectors.ptrace.compiled_sampling_rounds import Grid, NativeRounds, PythonCheck
from pyprof.collectors.ptrace.native_sampling_data import Check, Due, Round
from pyprof.collectors.ptrace.running_threads import OnCpuTurns, Turn
from pyprof.collectors.ptrace.sampled_process import MIN_SUBSAMPLED_THREADS, TracedProcess
from pyprof.collectors.ptrace.sampled_processes import Targets
from pyprof.collectors.ptrace.sampled_thread import Outcome, Thread
from pyprof.collectors.ptrace.sampling_schedule_and_wall_time import Scheduler
from pyprof.collectors.ptrace.thread_stop import StopGuard, Stopper
from pyprof.collectors.targets.address_spaces import MapsEvidence, SpaceTracker
from pyprof.model.marker_frames import Blocked
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

_TRIES = 3

TRANSFERRING = 64
"""Number of rounds of samples from which one is chosen at random to stop a thread, if a stop has cut a system
call of the thread short before.

The sample then counts for all of these rounds. Nothing shows whether a running thread is in such a call
(docs/sampling.md).
"""


class ThreadSampler:
    """A sampler of single threads, which stops a thread only if it must.

    Attributes:
        turns: Information about which threads have a processor.
        unchanged: Number of samples of threads that have not run since their last sample.
        blocked: Number of samples of sleeping threads that were read from outside.
        refused: Tids of threads that may not be stopped.
    """

    def __init__(
        self,
        stopper: Stopper,
        builder: BatchBuilder[ArenaMemory],
        diagnostics: Diagnostics,
        options: CollectOptions,
        all_threads: bool = True,
    ) -> None:
        """Create a sampler of single threads.

        Args:
            all_threads: True if no other collector samples threads of the same processes.
        """
        self.unchanged = 0
        self.blocked = 0
        self.refused: set[int] = set()
        self._stopper = stopper
        self.turns = OnCpuTurns(stopper.ptrace, all_threads, options.max_overhead is None)
        self._builder = builder
        self._diagnostics = diagnostics
        self._options = options
        self._idle = options.idle

    @property
    def full(self) -> bool:
        """True if the batch has no room for another sample."""
        return self._builder.full

    def restore_priority(self) -> None:
        """Return the sampler to normal priority, because no thread must be stopped now."""
        self._stopper.restore_priority()

    def look_at_modules(self, target: TracedProcess) -> None:
        """Read the mappings of a process again at once, because the last sample refers to a mapping that is
        not known.

        Raises:
            ProcessLookupError: The process has ended.
            PermissionError: The process may not be read.
        """
        target.look_at_modules(self._builder, force=True)

    def may_need_sample(self, target: TracedProcess) -> bool:
        """Return False if no thread of a process has a processor now, and the process has no new threads.

        If it returns False, the process's mappings and interpreter need not be read. In a recording of many
        processes that saves nearly all of these reads, which would take longer than a sampling period.
        """
        if self._idle:
            return True
        waiting: list[Thread] = []
        try:
            target.find_first_threads()
            if len(target.threads) >= MIN_SUBSAMPLED_THREADS:
                return True
            for thread in target.threads.values():
                if self._may_run(thread):
                    return True
                thread.first_slot = False
                if thread.slept is None:
                    waiting.append(thread)
            if target.directory.thread_count() != target.thread_count:
                return True
        except OSError:  # update() reports the error
            return True
        for thread in waiting:
            self.turns.count_checks(thread, 1, 1)
        return False

    def _may_run(self, thread: Thread) -> bool:
        """Return False if a thread sleeps or waits for a processor. If it sleeps, `slept` of the thread is set."""
        before = thread.read_schedstat()
        if before in (thread.slept, thread.waited):
            return False
        if self.turns.visited:
            return True
        line = thread.read_syscall()
        if line.startswith(b"running"):
            thread.note_wakeup()
            return self.turns.find_turn(thread, before) is not Turn.WAITING
        call = parse_syscall(line)
        if call is None or call.sp == 0 or thread.read_schedstat() != before:
            return True
        thread.note_wakeup()
        thread.slept = before
        return False

    def is_still_asleep(self, thread: Thread) -> bool:
        """Return True if a thread needs no sample, because it has slept since its last check and sleeping
        threads are not recorded. Most threads are in this state.
        """
        try:
            if self._idle or thread.slept is None or thread.read_schedstat() != thread.slept:
                return False
        except OSError:  # sample_thread() reports the error
            return False
        thread.asleep_checks += 1
        return True

    def sample_thread(self, thread: Thread, spaces: SpaceTracker, weight: int) -> bool:
        """Sample a thread if it runs, or if sleeping threads are recorded. Return True if the batch has a
        sample of it now.

        The thread's schedstat file is read before and after a sleeping thread is read. If both are equal, the
        thread has not run in between. That does not hold for a running thread, because the file changes only
        at ticks and switches.

        Raises:
            ProcessLookupError: The thread has ended.
            PermissionError: The thread may not be read.
        """
        if thread.no_user_stack:
            return False
        held = self._stopper.stopped_threads.get(thread.tid)
        if held is not None:  # when it stops at last, its sample stands for this one too
            if self._idle or self.turns.is_due(thread, thread.read_schedstat()):
                held.weight += weight
            return False
        for _ in range(_TRIES):
            before = thread.read_schedstat()
            if before == thread.slept:
                thread.asleep_checks += 1
                return self._still_asleep(thread, spaces, weight)
            line = thread.read_syscall()
            if line.startswith(b"running"):
                thread.note_wakeup()
                thread.asleep_checks = 0
                if not self._options.running or not (self._idle or self.turns.is_due(thread, before)):
                    return False
                if thread.transfers:
                    if random.random() * TRANSFERRING >= 1:
                        return False
                    weight *= TRANSFERRING
                return self._stop(thread, spaces, weight)
            call = parse_syscall(line)
            if call is None or call.sp == 0:
                thread.no_user_stack = True
                return False
            left = not self._idle and self._options.running and self.turns.has_run_until_turn(thread, before)
            if self._idle or left:
                self._stopper.copy.copy_stack(thread, spaces, call.sp)
                evidence = spaces.collect_evidence(call.pc)
                state = procfs.read_stop_state(thread.tid)
            at_ns = time.monotonic_ns()
            if thread.read_schedstat() == before:
                if not (self._idle or left):
                    thread.note_wakeup()
                    thread.slept = before
                    return False
                lane = self._fell_asleep(thread, spaces, weight, call, before, at_ns, evidence)
                if state and not left:
                    self._builder.set_kernel_stack(lane, (Blocked(thread.arch.name, state, call.number),))
                return True
            if not self._idle:
                break
        else:
            self._diagnostics.count("thread_ran_while_read")
        thread.note_wakeup()
        return False

    def _fell_asleep(
        self,
        thread: Thread,
        spaces: SpaceTracker,
        weight: int,
        call: BlockedCall,
        slept: bytes,
        at_ns: int,
        evidence: MapsEvidence,
    ) -> int:
        """Add the first sample of a thread in its present sleep to the batch, from the stack copy that was
        just made.

        Returns:
            Number of the sample in the batch.
        """
        stopped = thread.stopped
        if stopped is not None and stopped[:2] == (call.sp, call.pc) and self._stopper.copy.is_same_copy(stopped[2]):
            thread.slept = slept
            thread.stop_wanted = False
            return self._unchanged(thread, spaces, weight, at_ns)
        thread.note_wakeup()
        thread.slept = slept
        thread.arch = spaces.image.arch
        lane = self._stopper.copy.add_lane(SampleKind.BLOCKED, thread, spaces, weight, at_ns, evidence)
        self._builder.set_sp_pc(lane, call.sp, call.pc)
        spaces.note_sample(lane, call.pc, call.sp, evidence)
        self.blocked += 1
        return lane

    def _still_asleep(self, thread: Thread, spaces: SpaceTracker, weight: int) -> bool:
        if not self._idle:
            return False
        if thread.stop_wanted and thread.stopped is None and self._options.stop_sleepers:
            thread.stop_wanted = False
            call = parse_syscall(thread.read_syscall())
            if call is not None and can_survive_stop(call, thread.pid, spaces.image.arch):
                return self._stop_asleep(thread, spaces, weight, call)
            self._diagnostics.count("sleeping_thread_not_stopped")
        self._unchanged(thread, spaces, weight, time.monotonic_ns())
        return True

    def _stop_asleep(self, thread: Thread, spaces: SpaceTracker, weight: int, call: BlockedCall) -> bool:
        return self._stop(thread, spaces, weight, call)

    def _unchanged(self, thread: Thread, spaces: SpaceTracker, weight: int, at_ns: int) -> int:
        self.unchanged += 1
        return self._stopper.copy.add_empty_lane(thread, spaces, weight, at_ns)

    def _stop(self, thread: Thread, spaces: SpaceTracker, weight: int, asleep: BlockedCall | None = None) -> bool:
        return self.handle_outcome(thread, self._stopper.stop_thread(thread, spaces, weight, asleep))

    def handle_outcome(self, thread: Thread, outcome: Outcome) -> bool:
        """Update a thread's state after an attempt to stop it. Return True if the batch has a sample of the thread
        now.
        """
        if outcome is Outcome.ASLEEP:
            self.turns.count_asleep()
        elif outcome is Outcome.GONE:
            thread.ended = True
        elif outcome is Outcome.REFUSED:
            self.refused.add(thread.tid)
        return outcome is Outcome.TAKEN


_RUN_NS = 100_000_000
"""Maximum time in ns for which the compiled sampling loop samples threads without a return to Python."""

_FEW = 8
"""Number of rounds in the first call of the compiled sampling loop, and after a call that made few of its rounds."""

Flush = Callable[[], Iterable[SampleBatch]]


class RestOfRound(NamedTuple):
    """The part of a round of samples that the compiled sampling loop could not do, so that Python must finish
    it.

    Attributes:
        target: The process.
        checks: Threads that are still to be checked, each with the number of rounds that the check stands for. None if
            no round is in progress.
        changed: True if the process has changed, so that `checks` is not valid.
    """

    target: TracedProcess
    checks: Sequence[Check] | None
    changed: bool


class ThreadRounds:
    """The sampling of processes' threads in rounds. In a round, the threads are checked at one sampling time
    and sampled if they run.
    """

    def __init__(
        self,
        sampler: ThreadSampler,
        quick: NativeRounds,
        scheduler: Scheduler,
        targets: Targets,
        guard: StopGuard,
        diagnostics: Diagnostics,
    ) -> None:
        self._sampler = sampler
        self._quick = quick
        self._scheduler = scheduler
        self._targets = targets
        self._guard = guard
        self._diagnostics = diagnostics
        self._most = _FEW

    def stop(self) -> None:
        """Stop the sampling in rounds. Any thread may call this."""
        self._quick.stop()

    def run_future_rounds(
        self, finder: ChildFinder | None, is_there: Callable[[TracedProcess], bool]
    ) -> RestOfRound | None:
        """Sample at the next sampling times by the compiled sampling loop, if the recording and its one
        process permit that. The caller must then call decode_samples().

        Args:
            finder: Finder of new children, None if children are not recorded.
            is_there: Function that updates a process and returns True if it exists.

        Returns:
            The rest of the last round, or None if the compiled sampling loop made no rounds and the caller must wait
                for the next sampling time.
        """
        targets, scheduler = self._targets, self._scheduler
        if len(targets.by_pid) != 1:
            return None
        (target,) = targets.by_pid.values()
        if not self._quick.is_running_on(target):
            return None
        news = finder.event_fd if finder is not None else -1
        dues = [] if finder is not None and news < 0 else scheduler.take_future_times(_RUN_NS)[: self._most]
        if not dues or not is_there(target):
            return None
        ahead = _rounds(target, dues)
        try:
            self._guard.enter()
            clock = scheduler.clock
            came = self._quick.run_future_rounds(
                target, ahead, Grid(clock.period_ns, clock.shift_ns), news, self._in_python(target)
            )
            self._describe(target)
        finally:
            self._sampler.restore_priority()
            self._guard.leave()
        under_way = came.left is not None
        scheduler.count_passed(came.passed + under_way, came.done + under_way, came.shift_ns)
        scheduler.count_rounds(came.done)
        targets.count_rounds(came.done)
        self._most = max(2 * came.passed, _FEW)
        return RestOfRound(target, came.left, came.changed)

    def decode_samples(self) -> None:
        """Decode the interpreter frames that the compiled sampling loop has read, before the batch is yielded."""
        try:
            self._guard.enter()
            self._quick.decode_samples()
        finally:
            self._guard.leave()

    def run_checks(
        self, target: TracedProcess, checks: Sequence[Check], first: Thread | None, flush: Flush
    ) -> Iterator[SampleBatch]:
        """Check which of a process's threads run, and sample those.

        Args:
            target: The process.
            checks: Threads to check, each with the number of rounds that the check stands for.
            first: Thread that was already sampled in this round.
            flush: Function that returns the batches collected so far. It is called if the batch is full.
        """
        if checks and self._quick.is_usable(target):
            checks = self._quick.run_round(target, checks, self._scheduler.clock.weight, self._in_python(target))
            self._describe(target)
        for thread, rounds in checks:
            if self._sampler.full:
                self._guard.leave()
                yield from flush()
                self._guard.enter()
                if self._scheduler.stopping:
                    return
            if thread is not first:
                self._check_one(target, thread, rounds)

    def _in_python(self, target: TracedProcess) -> PythonCheck:
        return PythonCheck(partial(self._check_one, target), partial(self._conclude, target))

    def _check_one(self, target: TracedProcess, thread: Thread, rounds: int) -> None:
        if not self._sampler.is_still_asleep(thread):
            self.sample_thread(target, thread, rounds)

    def sample_thread(self, target: TracedProcess, thread: Thread, rounds: int) -> None:
        """Check one thread in Python and sample it if it is due, which the compiled sampling loop cannot do
        for all threads.

        Args:
            target: The process of the thread.
            thread: The thread.
            rounds: Number of rounds that the sample stands for.
        """
        weight = 1 if thread.first_slot else rounds * self._scheduler.clock.weight
        thread.first_slot = False
        try:
            taken = self._sampler.sample_thread(thread, target.spaces, weight)
            if target.spaces.stale:
                self._sampler.look_at_modules(target)
        except ProcessLookupError:
            thread.ended = True
        except PermissionError:
            self._sampler.refused.add(thread.tid)
            self._diagnostics.count("thread_not_traceable")
        else:
            if taken and not thread.has_name:
                self._targets.describe_thread(target, thread)

    def _conclude(self, target: TracedProcess, thread: Thread, outcome: Outcome) -> None:
        """Update a thread's state after a stop that the compiled sampling loop began and Python finished."""
        if self._sampler.handle_outcome(thread, outcome):
            self._quick.taken.add(thread)
        if target.spaces.stale:
            with contextlib.suppress(OSError):  # it has ended, which the next round reports
                self._sampler.look_at_modules(target)

    def _describe(self, target: TracedProcess) -> None:
        """Store the names of the threads that the compiled sampling loop has sampled."""
        for thread in self._quick.taken:
            if not thread.has_name:
                self._targets.describe_thread(target, thread)
        self._quick.taken.clear()


def _rounds(target: TracedProcess, dues: Sequence[Due]) -> list[Round]:
    """Return one round of samples for each sampling time in `dues`. It checks all threads of a process, or a
    random part of them if there are many.
    """
    checks = target.choose_threads()
    return [Round(due, target.choose_threads() if n and target.is_many else checks) for n, due in enumerate(dues)]
