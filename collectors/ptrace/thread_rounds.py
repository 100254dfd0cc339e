"""The threads of a process, round by round: by machine code as far as possible, else in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pyprof.collectors.linux.children import ChildFinder
from pyprof.collectors.ptrace.native_loop import Grid, NativeRounds, PythonCheck
from pyprof.collectors.ptrace.native_round_data import Check, Due, Round
from pyprof.collectors.ptrace.process import TracedProcess
from pyprof.collectors.ptrace.scheduler import Scheduler
from pyprof.collectors.ptrace.targets import Targets
from pyprof.collectors.ptrace.thread_sampler import ThreadSampler
from pyprof.collectors.ptrace.thread_stop import StopGuard
from pyprof.collectors.ptrace.threads import Outcome, Thread
from pyprof.diagnostics import Diagnostics
from pyprof.model.sample_batch import SampleBatch

_RUN_NS = 100_000_000
"""Maximum time in ns for which machine code samples threads without a return to Python."""

_FEW = 8
"""Number of rounds in the first call of the machine code, and after a call that did not finish its rounds."""

Flush = Callable[[], Iterable[SampleBatch]]


class RestOfRound(NamedTuple):
    """The rest of a round of samples that machine code began.

    Attributes:
        target: The process.
        checks: Remaining checks, or None if no round is in progress.
        changed: True if the process has changed.
    """

    target: TracedProcess
    checks: Sequence[Check] | None
    changed: bool


class ThreadRounds:
    """The sampling of a process's threads in rounds, each at one sampling time."""

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
        """Sample the next rounds by machine code. Interpreter frames to decode then wait for decode_samples().

        Args:
            finder: Finds new children.
            is_there: Updates a process and returns True if it exists.

        Returns:
            The rest of the last round, or None if machine code made no rounds and the caller must wait for the next
                sampling time.
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
        """Add the samples that machine code has read to the batch, before the batch is yielded."""
        try:
            self._guard.enter()
            self._quick.decode_samples()
        finally:
            self._guard.leave()

    def run_checks(
        self, target: TracedProcess, checks: Sequence[Check], first: Thread | None, flush: Flush
    ) -> Iterator[SampleBatch]:
        """Check now which of a process's threads are due for a sample, and sample them.

        Args:
            target: The process.
            checks: Threads to check.
            first: Thread that was already sampled.
            flush: Returns the batches collected so far, if there is no more room.
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
        """Sample a thread in Python; `rounds` is the number of rounds that the check stands for."""
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
        """Handle the outcome of a sample for a thread that machine code had left stopped."""
        if self._sampler.handle_outcome(thread, outcome):
            self._quick.taken.add(thread)
        if target.spaces.stale:
            with contextlib.suppress(OSError):  # it has ended, which the next round reports
                self._sampler.look_at_modules(target)

    def _describe(self, target: TracedProcess) -> None:
        """Store the names of threads that machine code has sampled."""
        for thread in self._quick.taken:
            if not thread.has_name:
                self._targets.describe_thread(target, thread)
        self._quick.taken.clear()


def _rounds(target: TracedProcess, dues: Sequence[Due]) -> list[Round]:
    """Return rounds of samples that check all threads of a process each time, or some of them if there are many."""
    checks = target.choose_threads()
    return [Round(due, target.choose_threads() if n and target.is_many else checks) for n, due in enumerate(dues)]
