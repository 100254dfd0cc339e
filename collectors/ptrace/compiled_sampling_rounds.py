"""Rounds of samples by the compiled sampling loop (collectors/native), and the conversion of their results.

In a round, each thread of a process is checked at one sampling time, and sampled if it runs. The loop handles
the usual case: a process that does not change, and threads that sleep or run in user mode on the known stack.
Python checks any other thread at once, and then the round continues. Python code that runs only at each
sample has cold caches: at 100 Hz it costs 2.3 times as much per sample as at 1,000 Hz.

A copied sample gets its place in the batch at once, in the order of the stops. Interpreter frames are decoded when no
thread is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyprof.collectors.batch_builder import MAX_LANES, ArenaMemory, BatchBuilder
from pyprof.collectors.linux import libc
from pyprof.collectors.native.sampling_loop_bindings import (
    ReturnReason,
    SampleRow,
    StopEnding,
    ThreadRow,
    address_of,
    sample_rounds,
)
from pyprof.collectors.ptrace.native_sampling_data import MAX_SAMPLES, NOW, WORD, Check, NativeRows, Plan, Round
from pyprof.collectors.ptrace.running_threads import OnCpuTurns
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import Outcome, StoppedThread, Thread
from pyprof.collectors.ptrace.sampling_schedule_and_wall_time import REST_NS
from pyprof.collectors.ptrace.thread_stop import Stopper
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.options import CollectOptions

_DECODING_NS = 200_000
"""Approximate maximum time in nanoseconds to decode the interpreter frames of a sample."""


class PythonCheck(NamedTuple):
    """The Python functions for threads that the compiled sampling loop does not handle, such as those in a system call.

    Attributes:
        check: Function (thread, rounds) that checks a thread and samples it if it runs. The check stands for
            this number of rounds.
        concluded: Function (thread, outcome) for a stop that the loop began and Python finished.
    """

    check: Callable[[Thread, int], None]
    concluded: Callable[[Thread, Outcome], None]


class Grid(NamedTuple):
    """The spacing of the sampling times, as the compiled sampling loop gets it.

    Attributes:
        period_ns: Time between two sampling times in nanoseconds.
        shift_ns: Delay of all further sampling times because the sampler was late, less than a period, in
            nanoseconds.
    """

    period_ns: int
    shift_ns: int


class RoundsResult(NamedTuple):
    """The report of the compiled sampling loop about the rounds that it was given in advance.

    In one round, the loop checks threads of the process at one sampling time and samples those that run. It
    may leave the rest of a round to Python.

    Attributes:
        done: Number of rounds that the loop completed.
        passed: Number of the given rounds that it completed or skipped because their sampling time was over.
        shift_ns: New value of Grid.shift_ns.
        left: Checks that Python still has to make in the round that has begun. None if no round has begun.
        changed: True if the process has other threads, mappings or children now. The caller must then discard `left`
            and read the process again.
    """

    done: int
    passed: int
    shift_ns: int
    left: Sequence[Check] | None
    changed: bool


class _Undecoded(NamedTuple):
    """A sample in the batch whose interpreter frames were copied as raw memory and must still be decoded.

    Attributes:
        lane: Index of the sample in the batch.
        thread: The sample's thread.
        came: Row that the compiled sampling loop filled for the sample.
        offset: Offset of the stack copy in the builder's memory, in bytes.
        plan: Plan by which the memory of the frames was read.
    """

    lane: int
    thread: Thread
    came: SampleRow
    offset: int
    plan: Plan


class NativeRounds:
    """The interface of one collector to the compiled sampling loop, which checks and samples threads in rounds.

    Attributes:
        taken: Threads that got samples. The caller that reads this set clears it.
    """

    def __init__(
        self, stopper: Stopper, builder: BatchBuilder[ArenaMemory], turns: OnCpuTurns, options: CollectOptions
    ) -> None:
        self.taken: set[Thread] = set()
        self._stopper = stopper
        self._builder = builder
        self._turns = turns
        self._wanted = options.running and not options.idle
        self._rows = NativeRows()
        self._rounds = self._rows.rounds
        self._rounds.rest_ns = REST_NS
        self._undecoded: list[_Undecoded] = []
        self._placed = 0
        self._weight = 1
        self._space: AddressSpace | None = None
        self._arch: Arch | None = None
        self._is_handed_over = True
        stopper.find_unclaimed = self._unclaimed

    def stop(self) -> None:
        """Stop the sampling by the compiled sampling loop. Any thread may call this."""
        self._rows.stop.value = 1

    def is_usable(self, target: TracedProcess) -> bool:
        """Return True if the compiled sampling loop can sample a process now. If not, Python does the round.

        The loop cannot be used while a thread has been interrupted and has not stopped yet, or while the
        sampler is pinned to one processor after the other. It can neither be used for a 32-bit program, nor
        for a Go program, whose threads change between stacks.
        """
        is_go = target.reader is not None and target.reader.goroutines is not None
        suits = self._wanted and target.spaces.image.arch.word == WORD and not is_go
        return suits and self._is_free() and sample_rounds(not libc.can_read_without_gil()) is not None

    def _is_free(self) -> bool:
        return not (self._stopper.stopped_threads or self._turns.visited or self._builder.full or self._undecoded)

    def is_running_on(self, target: TracedProcess) -> bool:
        """Return True if the compiled sampling loop may also sleep until later sampling times and sample
        then. It may not if other Python threads need the GIL.
        """
        return libc.can_read_without_gil() and self.is_usable(target)

    def run_round(
        self, target: TracedProcess, checks: Sequence[Check], weight: int, python: PythonCheck
    ) -> Sequence[Check]:
        """Check and sample the threads of one round by the compiled sampling loop. is_usable() must be True.

        Args:
            target: The process.
            checks: The threads to check.
            weight: Number of sampling times that each sample stands for.
            python: Functions for threads that the loop does not handle.

        Returns:
            Checks that the loop left to Python.
        """
        rounds = self._rounds
        self._prepare(target, [Round(NOW, checks)], weight)
        rounds.under_way, rounds.news = 1, -1
        self._say_our_turn()
        self._run(target, (), python)
        left = self._left()
        self.decode_samples()
        return left or ()

    def run_future_rounds(
        self, target: TracedProcess, ahead: Sequence[Round], grid: Grid, news: int, python: PythonCheck
    ) -> RoundsResult:
        """Sample a process in its next rounds by the compiled sampling loop. is_running_on() must be True.

        The loop itself waits for the sampling times of most rounds. Then Python decodes interpreter frames,
        and the loop makes the last rounds in between, as they become due. The caller must call
        decode_samples() for frames that are left.

        Args:
            target: The process.
            ahead: The next rounds, each with its sampling time and threads.
            grid: Spacing of the sampling times.
            news: Descriptor that becomes readable when a process has started, or -1.
            python: Functions for threads that the loop does not handle.
        """
        rounds, first, last = self._rounds, ahead[0].due[0], ahead[-1].due[0]
        meanwhile = min(len(ahead) ** 2 * _DECODING_NS // max(last - first, 1), len(ahead) // 2)
        self._prepare(target, ahead, 1)
        rounds.under_way, rounds.news = 0, news
        rounds.own_is_read, rounds.own_is_wanted = 0, self._turns.is_wanted
        rounds.dues_count = len(ahead) - meanwhile
        rounds.slot_ns, rounds.first_shift_ns, rounds.shift_ns = *grid, grid.shift_ns
        self._run(target, ahead, python)
        return RoundsResult(
            rounds.rounds, rounds.due, rounds.shift_ns, self._left(), rounds.why == ReturnReason.CHANGED
        )

    def _prepare(self, target: TracedProcess, ahead: Sequence[Round], weight: int) -> None:
        rounds, turns, ptrace = self._rounds, self._turns, self._stopper.ptrace
        self._weight, self._placed = weight, 0
        self._space, self._arch = target.spaces.current, self._stopper.choose_arch(target.spaces.image)
        self._rows.fill_rows(target, ahead)
        rounds.own_sched = turns.own
        rounds.policy = ptrace.policy if turns.own < 0 and ptrace.raises_priority else -1

    def _run(self, target: TracedProcess, ahead: Sequence[Round], python: PythonCheck) -> None:
        """Call the compiled sampling loop until all rounds of samples are done, or until only Python can continue."""
        rounds, rows = self._rounds, self._rows
        while True:
            self._call()
            outcome = self._place(target)
            if rounds.why == ReturnReason.DONE:
                if self._decode_until(ahead):
                    continue
                break
            if rounds.why not in (ReturnReason.ASK, ReturnReason.STOPPED):
                break
            thread, stands = rows.checks[rounds.check]
            self._learn(thread, rows.find_row(thread))
            self._learn_our_turn()
            if outcome is None:
                python.check(thread, stands)
            else:
                python.concluded(thread, outcome)
            self._say_our_turn()
            rounds.check += 1
            if thread.ended or not self._goes_on(target):
                break
            rows.refill_row(target, thread)
        for thread in rows.threads:
            self._learn(thread, rows.find_row(thread))
        self._learn_our_turn()

    def _say_our_turn(self) -> None:
        """Tell the compiled sampling loop at what time the sampler got its processor for this round."""
        began, rounds = self._turns.turn_start_ns, self._rounds
        rounds.own_is_read, rounds.own_began_ns = began is not None, max(began or 0, 0)
        rounds.own_is_wanted = self._turns.is_wanted

    def _learn_our_turn(self) -> None:
        rounds = self._rounds
        self._turns.set_turn(bool(rounds.own_is_read), rounds.own_began_ns, bool(rounds.own_is_wanted))

    def _goes_on(self, target: TracedProcess) -> bool:
        """Return True if the compiled sampling loop may continue the current round after Python has checked a
        thread.
        """
        spaces, stopper, turns = target.spaces, self._stopper, self._turns
        is_same = spaces.current is self._space and spaces.settled
        return is_same and not (stopper.stopped_threads or turns.visited or self._builder.full)

    def _call(self) -> None:
        rounds, builder = self._rounds, self._builder
        memory = builder.memory
        call = sample_rounds(not libc.can_read_without_gil())
        assert call is not None
        rounds.into, rounds.into_end = memory.address + memory.used, memory.address + memory.size - memory.further
        rounds.samples_most = min(MAX_SAMPLES, rounds.samples_count + MAX_LANES - 1 - len(builder))
        rounds.last_stop_ns = self._stopper.last_stop_ns
        if self._turns.own >= 0:
            self._stopper.ptrace.raise_priority()
        self._is_handed_over = False
        call(address_of(rounds))

    def _unclaimed(self) -> StoppedThread | None:
        """Return a thread that the compiled sampling loop has stopped and not released, if an exception
        prevented that Stopper got to know the thread. Otherwise return None.
        """
        rounds = self._rounds
        if self._is_handed_over or rounds.why != ReturnReason.STOPPED or not rounds.samples_count:
            return None
        last = self._rows.samples[rounds.samples_count - 1]
        return (
            self._rows.make_stopped_thread(last.check, 0)
            if last.ending in (StopEnding.HELD, StopEnding.PENDING)
            else None
        )

    def _place(self, target: TracedProcess) -> Outcome | None:
        """Finish the stop of a thread that the compiled sampling loop has left stopped, and add the loop's new samples
        to the batch.
        """
        rounds, rows, builder, stopper = self._rounds, self._rows, self._builder, self._stopper
        outcome: Outcome | None = None
        held: StoppedThread | None = None
        is_left = rounds.why == ReturnReason.STOPPED
        if is_left:
            last = rows.samples[rounds.samples_count - 1]
            held = rows.make_stopped_thread(last.check, self._weight)
            stopper.stopped_threads[held.thread.tid] = held
        self._is_handed_over = True
        first, count = self._placed, rounds.samples_count - is_left - self._placed
        offset = builder.memory.used
        lane = builder.reserve_samples(count, rounds.into - builder.memory.address)
        self._placed = rounds.samples_count
        asked = target.spaces.build_query[0] >= 0
        if not asked:  # they are compared with the next reading of the maps
            self._fill(target, first, count, lane, offset)
        if held is not None:
            stopper.ptrace.raise_priority()
            outcome = stopper.finish_native_stop(held, last)
        if asked:
            self._fill(target, first, count, lane, offset)
        stopper.restore_priority()
        return outcome

    def _fill(self, target: TracedProcess, first: int, count: int, lane: int, offset: int) -> None:
        """Fill the reserved samples of the batch with what the compiled sampling loop has read, such as
        registers.

        Args:
            target: The process.
            first: Index of the loop's first row to convert.
            count: Number of rows.
            lane: Index of the first reserved sample.
            offset: Offset of its stack copy in the builder's memory, in bytes.
        """
        assert self._space is not None
        assert self._arch is not None
        for number in range(first, first + count):
            came = self._rows.samples[number]
            held = self._rows.make_stopped_thread(came.check, self._weight)
            self._stopper.fill_native_sample(held, self._space, self._arch, came, lane, offset)
            self.taken.add(held.thread)
            if came.frames:
                plan = self._rows.plans[held.thread]  # its next sample may have another plan
                self._undecoded.append(_Undecoded(lane, held.thread, came, offset, plan))
            lane, offset = lane + 1, offset + (came.size + 7 & ~7)

    def _decode_until(self, ahead: Sequence[Round]) -> bool:
        """Decode interpreter frames until the next sampling time.

        Returns:
            True if the next sampling time has come, so that the compiled sampling loop must be called. False
                if all frames are decoded or sampling has been stopped, because the loop then makes no round.
        """
        rounds = self._rounds
        due = rounds.due
        while self._undecoded and not self._rows.stop.value:
            if due < len(ahead) and ahead[due].due[0] <= time.monotonic_ns():
                rounds.dues_count = due + 1
                return True
            self._decode(self._undecoded.pop(0))
        return False

    def decode_samples(self) -> None:
        """Decode all remaining interpreter frames of the loop's samples, while signals are blocked. Between
        two samples, threads that have not stopped yet are polled.
        """
        waiting, self._undecoded = self._undecoded, []
        for each in waiting:
            self._decode(each)
            if self._stopper.stopped_threads:
                self._stopper.poll_pending()

    def _decode(self, each: _Undecoded) -> None:
        read = self._rows.make_frames_read(each.came, each.plan)
        self._stopper.copy.take_frames(each.thread, each.lane, each.came, each.offset, read)

    def _left(self) -> Sequence[Check] | None:
        """Return those checks of the current round that the compiled sampling loop has not made yet, or None if it has
        made all.
        """
        rounds, rows = self._rounds, self._rows
        return rows.checks[rounds.check : rows.behind[rounds.due]] if rounds.under_way else None

    def _learn(self, thread: Thread, row: ThreadRow) -> None:
        """Update a thread's state with what the compiled sampling loop observed in its checks, even if it
        took no sample.
        """
        thread.asleep_checks += row.still
        if row.asked:
            thread.note_wakeup()
            thread.asleep_checks = 0
            if self._turns.own < 0:
                share = thread.share
                share.ran, share.waited, share.share, share.credit = (
                    row.share_ran, row.share_waited, row.share, row.credit,
                )  # fmt: skip
                share.young.count_older(row.shared)
            else:
                thread.steadiness.learn(row.ran_ns, row.waits)
                self._turns.count_checks(thread, row.asked, row.waiting)
        row.still = row.asked = row.waiting = row.shared = 0
