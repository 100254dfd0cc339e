"""A collector that samples live processes by ptrace: each running thread is stopped for some microseconds and read.

No thread stays attached. Information about sleeping threads comes from /proc (ptrace/sampling_loop.py). The stop is in
ptrace/thread_stop.py, processes and threads are in ptrace/sampled_processes.py, sampling times in
ptrace/sampling_schedule_and_wall_time.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder, as_they_are, split_at_flushes
from pyprof.collectors.cpu_time_accounting import Accounts, TotalTimes
from pyprof.collectors.linux.child_processes import ChildFinder, open_child_finder
from pyprof.collectors.linux.process_sandbox import raise_file_limit
from pyprof.collectors.ptrace.compiled_sampling_rounds import NativeRounds
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_processes import Readers, Targets
from pyprof.collectors.ptrace.sampled_thread import Outcome, Thread
from pyprof.collectors.ptrace.sampling_loop import TRANSFERRING, RestOfRound, ThreadRounds, ThreadSampler
from pyprof.collectors.ptrace.sampling_schedule_and_wall_time import Scheduler, WallTimes
from pyprof.collectors.ptrace.thread_stop import StopGuard, Stopper
from pyprof.collectors.targets.process_selection import Processes
from pyprof.collectors.thread_start_times import Identities
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.model.arch import native_arches
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

_FREE_NS = 100_000_000
_PENDING_SLEEP_NS = 300_000


class PtraceCollector:
    """A collector that samples a process by short ptrace stops, with its children if options.subprocesses is
    set. It runs until they end or stop() is called.

    One thread must call batches(), learn() and close(), because the kernel ties a tracee to the thread that seized it.

    Attributes:
        source_id: Identifier of its batches.
        acknowledges: True if it acknowledges flushes itself, False if another collector completes its
            batches.
        flushed_ns: End of the time whose samples it has yielded.

    Raises:
        NoSuchProcess: The process has ended.
        AccessDenied: The process may not even be read (attach_checks.check_target() says why).
    """

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        note: Note | None = None,
        ids: Identities | None = None,
        readers: Readers | None = None,
        selection: Processes | None = None,
        wanted: Callable[[int, int], bool] | None = None,
        frames_note: Note | None = None,
    ) -> None:
        """Prepare to sample a process by short ptrace stops.

        Args:
            pid: The process.
            options: Options of the recording.
            diagnostics: The recording's counters of problems.
            note: Note for the summary that says why this collector was chosen, None for none.
            ids: Identifiers shared with other collectors of the recording.
            readers: Function that returns the reader of a process's interpreter by its pid.
            selection: Further processes, including those that will match later.
            wanted: Function that returns True if a thread (pid, tid) should be sampled; None for all threads.
            frames_note: Note for the summary to add when a sample has frames of an interpreter, None for
                none.
        """
        ids = ids or Identities()
        self.source_id = ids.next_id()
        self.acknowledges = True
        self.flushed_ns = 0
        self._diagnostics = diagnostics
        self._selection = selection
        self._look: Callable[[], None] | None = None
        # two descriptors stay open for each thread, and a third one for threads that have run
        raise_file_limit(1 << 16)
        arches = native_arches(os.uname().machine)
        self._builder = BatchBuilder(arches, ArenaMemory(options.stack_size), self.source_id)
        self._stopper = Stopper(arches, self._builder, diagnostics, options)
        self._guard = StopGuard(self._stopper.ptrace)
        self._sampler = ThreadSampler(self._stopper, self._builder, diagnostics, options, wanted is None)
        self._scheduler = Scheduler(options)
        self._accounts = Accounts(options)
        self._selects_threads = options.thread is not None
        self._targets = Targets(options, diagnostics, ids, readers, wanted)
        has_waits = options.idle and options.flush_s > 0  # a dump shows where threads are, not for how long
        self._wall_times = WallTimes(self._targets.by_pid, options) if has_waits else None
        options.handover.on_window_end = self._accounts.note_clocks
        options.handover.on_begin = lambda: self._accounts.start(self._targets.roots)
        quick = NativeRounds(self._stopper, self._builder, self._sampler.turns, options)
        self._rounds = ThreadRounds(self._sampler, quick, self._scheduler, self._targets, self._guard, diagnostics)
        try:
            self._targets.add_process(pid)
        except ProcessLookupError:
            raise NoSuchProcess(f"there is no process {pid}", "ps -e lists the processes") from None
        except PermissionError:
            raise AccessDenied(f"process {pid} may not be looked at", f"pyprof doctor {pid}") from None
        self._notes = [note] if note is not None else []
        self._frames_note = frames_note
        if selection is not None:
            self._notes.extend(selection.refused)
            self._targets.add_processes(selection.pids)
        self._finder = self._child_finder() if options.subprocesses else None

    def _child_finder(self) -> ChildFinder:
        finder = open_child_finder(
            self._diagnostics, lambda pid: self._targets.has_been_sampled(pid) or self._builder.has_sample_of(pid)
        )
        if finder.note is not None:
            self._notes.append(finder.note)
        return finder

    @property
    def refused(self) -> set[int]:
        """Tids of the threads that may not be stopped."""
        return self._sampler.refused

    def batches(self) -> Iterator[SampleBatch]:
        """Yield batches of samples. The first batch comes after the first sampling time, so that the sizes of stack
        copies are learned early.

        A batch has the samples of HOLD times flush_s. It has those of flush_s only if a process, a module or
        a thread is new to the worker process, or if unwinding has found that more must be copied.
        """
        scheduler, targets = self._scheduler, self._targets
        sign = self._builder.take_batches()[0]
        scheduler.start()
        try:
            self._guard.enable_sigchld()
            self._sampler.turns.start_turns()
            self._accounts.start(targets.roots)
            if self._wall_times is not None:
                self._wall_times.start()
            scheduler.handover.report_sampling()
            while not scheduler.stopping and (targets.by_pid or (self._selection and self._selection.lasting)):
                self._sampler.turns.make_ready()
                self._find()
                rest = self._rounds.run_future_rounds(self._finder, self._is_there) if self._look is None else None
                if rest is None and scheduler.wait(self._look_after):
                    self._sampler.turns.note_arrival()
                    yield from self._round()
                elif rest is not None:
                    yield from self._round(rest) if rest.checks is not None else ()
                    self._rounds.decode_samples()
                    self._visit()
                elif scheduler.stopping:
                    break
                self._update_accounts()
                if scheduler.is_flush_due:
                    self._account(force=scheduler.handover.ends_window(time.monotonic_ns()))
                    batches = self._flush()
                    scheduler.note_flush(samples=len(batches[0]) > 0)
                    yield from self._completed(batches)
                elif scheduler.is_sign_due:
                    self._rest()
                    scheduler.note_empty_batch()
                    yield sign
            scheduler.clock.count_skipped(time.monotonic_ns())
            self._account(force=True)
            yield from self._completed(self._flush())
        finally:
            self._stopper.release_all()
            self._sampler.turns.close()

    def _completed(self, batches: list[SampleBatch]) -> Iterator[SampleBatch]:
        """Yield batches in parts that end where a flush was requested, with the time that each sample stands for."""
        if not self.acknowledges:
            yield from batches
            return
        handover, walls = self._scheduler.handover, self._wall_times
        complete = walls.complete if walls is not None else as_they_are
        reached_ns = min(self.flushed_ns, handover.ended_ns or self.flushed_ns)
        yield from split_at_flushes(handover, batches, reached_ns, complete)

    def _flush_completed(self) -> Iterator[SampleBatch]:
        """Yield the batches of the samples collected so far, before all threads of the current round were
        checked. A requested flush is acknowledged after its batch.
        """
        return self._completed(self._flush())

    def _find(self) -> None:
        """Start to sample processes that match the user's selection and are not sampled yet."""
        if self._selection is not None:
            self._targets.add_processes(self._selection.find_new(self._targets.by_pid.keys() | self._targets.refused))

    def _round(self, rest: RestOfRound | None = None) -> Iterator[SampleBatch]:
        """Check all threads of all processes at one sampling time and sample those that run. With `rest`,
        continue a round that was interrupted.
        """
        yield from self._tick(rest)
        self._scheduler.count_rounds()
        self._targets.count_rounds()

    def _update_accounts(self) -> None:
        """Read the processor time of the sampled processes if that is due. This is called after samples and
        after each wait.
        """
        self._account()
        if self._targets.fresh:
            self._targets.fresh = False
            self._scheduler.limit_wait()

    def _account(self, force: bool = False) -> None:
        if not (force or self._accounts.is_due):
            return
        comes_first = self._stopper.ptrace.raises_priority or os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
        self._accounts.waits = not comes_first
        was_read = self._accounts.read_accounts(self._targets.roots, force, self._scheduler.slots)
        if was_read and not self._selects_threads:
            self._targets.settle_young(self._accounts.spent_ns)

    def _look_after(self, most_ns: int) -> bool:
        """Sample and release threads whose stops take longer than expected, for at most most_ns nanoseconds.
        Return False if there are no such threads.
        """
        if not self._stopper.stopped_threads:
            return False
        try:
            self._guard.enter()
            self._stopper.wait_pending(most_ns)
        finally:
            self._guard.leave()
        self._sampler.turns.raise_priority()
        return True

    def _tick(self, rest: RestOfRound | None = None) -> Iterator[SampleBatch]:
        """Sample all threads that are due at one sampling time. If the compiled sampling loop has begun with
        them, continue with the rest.
        """
        stopped_before = self._stopper.stopped_ns
        try:
            self._guard.enter()
            self._stopper.poll_pending()
            first = self._sample_displaced() if self._sampler.turns.must_search else None
            if self._finder is not None and self._sampler.turns.must_list:
                self._targets.add_processes(self._finder.find_children(self._targets.by_pid))
            for target in self._to_look_at(rest):
                if rest is not None and rest.target is target and rest.checks is not None and not rest.changed:
                    checks = rest.checks
                elif not self._is_there(target):
                    continue
                else:
                    checks = target.choose_threads()
                yield from self._rounds.run_checks(target, checks, first, self._flush_completed)
                if self._scheduler.stopping:
                    return
                with contextlib.suppress(OSError):  # it has ended, which the next round reports
                    yield from self._rounds.run_checks(target, target.find_late_threads(), first, self._flush_completed)
                if target.spaces.restless:
                    with contextlib.suppress(OSError):
                        target.look_at_modules(self._builder)
        finally:
            self._sampler.turns.end_turn()
            self._stopper.restore_priority()
            self._guard.leave()
        self._visit()
        if self._look is not None:
            self._look()
        self._scheduler.clock.note_pause(self._stopper.stopped_ns - stopped_before)

    def _visit(self) -> None:
        """Begin to pin the sampler to one processor after the other, if samples are better then (see
        OnCpuTurns.start_visit).
        """
        if self._sampler.turns.start_visit(self._targets.by_pid, self._targets.brief):
            self._scheduler.set_visits(len(self._sampler.turns.visited))

    def _sample_displaced(self) -> Thread | None:
        """Sample the thread that lost its processor to the sampler when the sampler woke up, before the
        scheduler moves that thread to another processor.

        Returns:
            The thread, or None if it belongs to no sampled process.
        """
        if self._builder.full:
            return None
        for target in self._targets.by_pid.values():
            with contextlib.suppress(OSError):
                thread = target.find_displaced(self._sampler.turns.is_displaced)
                if thread is not None:
                    self._rounds.sample_thread(target, thread, 1)
                    return thread
        child = self._targets.find_new_child(self._sampler.turns.is_displaced) if self._finder is not None else 0
        return self._catch(child) if child else None

    def _catch(self, child: int) -> Thread | None:
        """Sample the first thread of a newly found process. It is stopped first, because it may end while its
        /proc files are read.
        """
        outcome = self._stopper.sample_unknown(child, lambda: self._targets.open_child(child, self._builder), 1)
        target = self._targets.by_pid.get(child)
        thread = target.threads.get(child) if target is not None else None
        if target is not None and thread is not None:
            thread.first_slot = False
            if outcome is Outcome.TAKEN:
                self._targets.describe_thread(target, thread)
        return thread

    def _to_look_at(self, rest: RestOfRound | None) -> list[TracedProcess]:
        """Return the processes among whose threads this sampling time looks for running ones.

        All processes are checked before the first thread is stopped, because the sampler loses its raised
        priority then. The result is empty if only the thread that lost its processor to the sampler is
        wanted, and that thread was already sampled.
        """
        targets, turns = list(self._targets.by_pid.values()), self._sampler.turns
        done = turns.must_search and not turns.is_for_steady and all(target.is_searched for target in targets)
        if rest is not None or done:
            return [] if done else targets
        return [target for target in targets if self._sampler.may_need_sample(target)]

    def _is_there(self, target: TracedProcess) -> bool:
        """Update what is known about a recorded process. Return False if the process has ended or may no
        longer be read.
        """
        self._scheduler.handover.steps += 1
        try:
            target.update(self._builder)
        except ProcessLookupError:
            if self._targets.root_of(target.pid) == target.pid:  # its account may disappear soon
                self._account(force=True)
            self._targets.remove_ended(target)
        except PermissionError:
            self._targets.note_denied(target)
        else:
            return True
        return False

    def _flush(self) -> list[SampleBatch]:
        """Return the batches of samples collected so far, at least one."""
        self._rounds.decode_samples()
        self._rest()
        self._targets.complete_batch(self._builder)
        batches = self._builder.take_batches()
        self.flushed_ns = time.monotonic_ns()
        if self._frames_note is not None and any(batch.chains for batch in batches):
            self._notes.append(self._frames_note)
            self._frames_note = None
        for batch in batches:
            self._targets.describe_late(batch)
            self._accounts.count_batch(batch, self._targets.root_of)
        for pid, rounds in self._stopper.ended_counts.items():
            self._accounts.count_ended_threads(self._targets.root_of(pid), rounds)
        self._stopper.ended_counts.clear()
        return batches

    def _rest(self) -> None:
        """Release all threads that are still stopped, because the caller of batches() runs next in the sampler's
        thread.
        """
        deadline = time.monotonic_ns() + _FREE_NS
        while time.monotonic_ns() < deadline and self._look_after(_PENDING_SLEEP_NS):
            pass
        self._stopper.ptrace.restore_priority()

    def learn(self, feedback: Feedback) -> None:
        self._look = feedback.look
        self._targets.learn(feedback)
        if feedback.missing.any():
            self._scheduler.limit_wait()
        if feedback.has_new_code:
            self._scheduler.restart_waits()
        taken_ns = feedback.batch.time_ns
        self._scheduler.note_walk(int(np.ptp(taken_ns)) if len(taken_ns) else 0, feedback.took_ns)

    @property
    def source_ids(self) -> frozenset[int]:
        return frozenset((self.source_id,))

    @property
    def alive(self) -> list[int]:
        """Pids of the recorded processes that have not ended."""
        return list(self._targets.by_pid)

    @property
    def heads(self) -> tuple[int, ...]:
        """Pids of the recorded processes that have not ended and that descend from no other recorded process."""
        roots = self._targets.roots
        return tuple(pid for pid, root in roots.items() if pid == root or root not in roots)

    def totals(self) -> tuple[int, TotalTimes]:
        """Return the number of threads and processes that were found, and the sums of their processor time."""
        return self._targets.birth_count, self._accounts.totals()

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call."""
        return self._targets.take_new_processes()

    def threads(self) -> list[ThreadInfo]:
        return self._targets.list_threads()

    def retire(self) -> None:
        self._targets.retire()
        self._accounts.retire(self._targets.roots)
        refused = self._sampler.refused
        refused.difference_update([tid for tid in refused if not os.path.exists(f"/proc/{tid}")])

    def stats(self) -> CollectorStats:
        scheduler = self._scheduler
        return CollectorStats(
            ticks=scheduler.ticks,
            ticking_ns=scheduler.ticking_ns,
            pauses=self._stopper.pauses.snapshot(),
            skipped=scheduler.skipped,
            unchanged=self._sampler.unchanged,
            blocked=self._sampler.blocked,
            notes=(*self._notes, *scheduler.clock.notes, *_seldom(self._stopper.transferring)),
            accounts=self._accounts.result(),
        )

    def stop(self) -> None:
        self._scheduler.stopping = True
        self._rounds.stop()

    end_now = stop

    def close(self) -> None:
        self._scheduler.stopping = True
        self._stopper.release_all()
        if self._finder is not None:
            self._finder.close()
            self._finder = None
        self._targets.close()
        self._guard.close()


def _seldom(threads: int) -> tuple[Note, ...]:
    """Return a note for the summary if threads are stopped only seldom, because stops would cut their system
    calls short. `threads` is their number.
    """
    if not threads:
        return ()
    return (make_note("calls_cut_short", threads=threads, rounds=TRANSFERRING),)
