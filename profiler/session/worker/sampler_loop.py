"""The sampler's half of a recording: the collector runs here, and its batches go to the worker.

The only untrusted data that the sampler parses are registers, /proc and interpreter frames. The sampler waits for the
worker only if the worker is far behind (IN_FLIGHT). Sampling times that it misses meanwhile are counted as skipped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import NOTHING, UnfollowedChildren
from pyprof.errors import PyprofError
from pyprof.exporters.base import Sink
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import MAX_MAPPINGS
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.session.own_cpu_and_memory import OwnCost, OwnHeap, RecentCost, own_cost
from pyprof.session.pipeline.interpreter_readers import InterpreterNews, Runtimes
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.messages import (
    Batch,
    Begin,
    Checkpoint,
    Extent,
    NamingOptions,
    ProfileRequest,
    SamplerState,
    ScanForCode,
    Shutdown,
)
from pyprof.session.worker.response_codec import BatchTaken
from pyprof.session.worker.worker_client import NAMES_S, TURN_S, Pending, WorkerLink
from pyprof.session.worker.worker_process import Worker

_MAX_STACKS = 8 << 20
"""Maximum number of stack bytes in one message to the worker."""
IN_FLIGHT = 64 << 20
"""Maximum number of bytes in batches that the worker has not unwound yet."""
WAITED_FOR_S = 0.15
"""Maximum wait for the worker to exit while the user waits, in seconds. It applies again after the worker was killed.

The worker has written everything by then. Only a file on an unresponsive file system can delay its exit for longer.
"""
_STANDING_S = 1.0
_STANDING_BUDGET = 200
"""Minimum ratio of the time between two checkpoints (messages with the sampler's state) to the processor time that one
takes.

The sampler sends a checkpoint after a batch and at the beginning of a window. After one that took t seconds it sends
none for 200 t.
"""


class Sampling:
    """The sampler's half of a recording: it runs the collector, sends its batches to the worker, and requests profiles.
    It owns the collector and the worker.

    Attributes:
        failure: The error that ended run() early, None if there was none.
        unfollowed: Watches children that the recording leaves out, None if it leaves out none.
        sink: The sink that receives the window if this process is killed.
        delivered: Number of the window for the sink.
        samples: Number of samples in the current window.
        sampled: Set when the collector has ended.
        is_walked: True once the worker has unwound the first samples.
        leaves: True if this process ends with the recording.
        awaits_feedback: True to take each batch only after the worker's feedback on the one before it.
        on_batch: Called with each batch before it is sent to the worker.
        on_feedback: Called with the feedback about each batch, before the collector gets it.
    """

    def __init__(
        self,
        collector: Collector,
        worker: Worker,
        runtimes: Runtimes,
        diagnostics: Diagnostics,
        unwind: UnwindOptions,
        naming: NamingOptions,
        confined: bool = True,
        names_s: float = NAMES_S,
        patient: bool = False,
        handover: FlushProtocol | None = None,
    ) -> None:
        """Start the sampler's half of a recording, and wait until the worker is ready.

        Args:
            collector: Yields the samples.
            worker: Unwinds the samples and resolves names.
            runtimes: Interpreters of the recorded processes.
            diagnostics: Counters of this process.
            unwind: Options of the unwinder.
            naming: Settings of the profiles.
            confined: True if the worker gives up its rights.
            names_s: How long the worker may unwind and resolve names after the end, in seconds.
            patient: True if the target is behind a slow connection (a GDB stub).
            handover: Flush protocol with the collector. None if the collector acknowledges no flush: then a profile
                ends at the time of its request.
        """
        self.failure: BaseException | None = None
        self.unfollowed: UnfollowedChildren | None = None
        self.sink: Sink | None = None
        self.delivered = 0
        self.samples = 0
        self.sampled = threading.Event()
        self.is_walked = False
        self.leaves = False
        self.awaits_feedback = False
        self.on_batch: Callable[[SampleBatch], None] = lambda batch: None
        self.on_feedback: Callable[[Feedback], None] = lambda feedback: None
        self._times = 1.0
        self._awaits_worker = False
        self._collector = collector
        self._link = WorkerLink(worker, names_s, patient)
        self._runtimes = runtimes
        self._diagnostics = diagnostics
        self._number = self._unwound = 0
        self._flying: dict[int, tuple[SampleBatch | None, int]] = {}
        self._codes: set[int] = set()
        self._cut_spaces: set[int] = set()
        self._standing_at = 0.0
        self._stood = (-1, -1)
        self._recent_cost = RecentCost()
        self._heap = OwnHeap()
        self._acknowledges = handover is not None
        self._handover = handover or FlushProtocol()
        self._requested = False
        self._rest: SamplerState | None = None
        self._closed = False
        self._state = threading.RLock()
        self._flying[0] = None, 0
        while 0 in self._flying:  # the worker reports batch 0 when it is ready
            self._turn(TURN_S)
        self._ways = confined, unwind, naming

    def take_longer(self, times: float) -> None:
        """Multiply the time limit for the worker's work after the recording by a factor, for a slow machine. The caller
        does this before run().
        """
        self._times = times
        self._link.take_longer(times)

    def lower_priority(self) -> None:
        """Lower the priority of the worker, because the user does not wait for it."""
        self._link.worker.lower_priority()

    @property
    def progress(self) -> int:
        """The number of units of work that were finished: messages to the worker, batches that the worker has unwound,
        and steps of the collector.
        """
        return self._number + self._unwound + self._handover.steps

    def waits(self) -> Mapping[int, float]:
        """Return the time that each thread of this process and of the worker has waited for a processor, in seconds."""
        return self._link.waits()

    def activity(self) -> Mapping[int, float]:
        """Return for how long the recording's loop was not blocked, in seconds by tid. The shutdown watchdog calls it
        (shutdown_watchdog.Ending).
        """
        return self._link.activity(self._awaits_worker)

    def contention(self) -> float:
        """Return how many tasks run or wait for a processor now, for each processor (shutdown_watchdog.Ending)."""
        return procfs.read_cpu_contention()

    def hang_up(self) -> None:
        """Close the channel over which the sampler requests interpreter symbols, so that the collector does not wait on
        it.

        May be called from any thread.
        """
        self._link.worker.questions.hang_up()

    def leave(self) -> bool:
        """Disconnect from the worker because the collector does not end. The worker then gives the samples that it has
        to the sink.

        The recording's loop itself must not call this.

        Returns:
            True if the worker has ended.
        """
        return self._link.leave()

    def pids(self) -> set[int]:
        """Return the pids of all sampled threads of the recording."""
        return {thread.pid for thread in self._collector.threads()}

    def stats(self) -> CollectorStats:
        return self._collector.stats()

    def run(self, beat: Callable[[], None]) -> None:
        """Record until the collector ends. Record nothing if end() was called before.

        Errors are stored in `failure` instead of being raised. What was recorded before an error remains valid.

        Args:
            beat: Called before the first batch and after each batch, at least every half second. Only it may request
                profiles of windows.
        """
        self._link.begin_loop()
        try:
            self._link.send(self._begin())
            self._turn()
            beat()
            for batch in self._collector.batches() if not self._requested else ():
                self._handover.report_sampling()
                self.on_batch(batch)
                for part in _parts(batch) if len(batch) else ():
                    self._send_batch(part)
                self._turn()
                beat()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.failure = error
        finally:
            self.sampled.set()
            self._handover.end()
            self._link.end(EndUrgency.PROMPT if self._requested else EndUrgency.PATIENT)
            self._link.loop_ended()
            self._learn_the_rest()
            self._runtimes.read_names()
            self._rest = self._gathered(own_cost(), cut=True)
            self.close_collector()

    def _begin(self) -> Begin:
        confined, unwind, naming = self._ways
        self._handover.begin()
        if self._handover.samples_when_open:
            self._handover.report_sampling()
        stats, yields = self._collector.stats(), self._link.worker.yields
        now_ns, monotonic_ns = _on_both_clocks(self._handover.begun_ns)
        return Begin(confined, unwind, naming, stats, now_ns, monotonic_ns, yields, self._times)

    def _learn_the_rest(self) -> None:
        """Wait for the worker's feedback on the last batches, because the collector's notes for the summary depend on
        it.
        """
        try:
            while self._flying and self._link.dead is None:
                self._turn(TURN_S)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.failure = self.failure or error

    def _send_batch(self, batch: SampleBatch) -> None:
        self._number += 1
        self.samples += len(batch)
        self._report_cut_spaces(batch)
        batch = replace(batch, stack=batch.stack.alone())
        size = self._link.send(Batch(self._number, batch, self._link.packer.news(), self._interpreters()))
        self._flying[self._number] = replace(batch, stack=batch.stack.without_data()), size
        waits = self.awaits_feedback or any(space.image is None for space in batch.spaces.values())
        while self._flying and not self._requested and (waits or self._in_flight() > IN_FLIGHT):
            self._turn(TURN_S)

    def _report_cut_spaces(self, batch: SampleBatch) -> None:
        """Count the processes whose mappings were read only in part, each process once."""
        for space in batch.spaces.values():
            if len(space.mappings) >= MAX_MAPPINGS and space.pid not in self._cut_spaces:
                self._cut_spaces.add(space.pid)
                self._diagnostics.count(f"too_many_mappings:{space.pid}")

    def _in_flight(self) -> int:
        return sum(size for _, size in self._flying.values())

    def _turn(self, timeout_s: float = 0) -> None:
        """Handle pending responses of the worker between two batches, and send a checkpoint if one is due.

        Raises:
            Exception: The first error in the worker.
        """
        link = self._link
        if self._flying:
            link.worker.wake()
        self._awaits_worker = timeout_s > 0
        link.receive(timeout_s)
        self._awaits_worker = False
        if self.unfollowed is not None:
            self.unfollowed.read_times()
        now = time.monotonic()
        stands = self._number, self.delivered
        if self.sink is not None and now >= self._standing_at and stands != self._stood:
            self._stood = stands
            before_s = time.thread_time()
            self._link.send(
                Checkpoint(self._gathered(self._recent_cost()), self._link.number(self.sink), self.delivered)
            )
            spent_s = time.thread_time() - before_s
            self._standing_at = time.monotonic() + max(_STANDING_S, _STANDING_BUDGET * spent_s)
        while link.functions:
            self._runtimes.retain_functions(set(link.functions.popleft()))
        while link.taken:
            self._learn(link.taken.popleft())
        if link.broken is not None:
            raise link.broken

    def _learn(self, taken: BatchTaken) -> None:
        self._unwound += 1
        batch, _ = self._flying.pop(taken.number, (None, 0))
        if batch is None:
            return
        self.is_walked = True
        live = np.flatnonzero(batch.kind < SampleKind.UNCHANGED)
        if not len(taken.top) or len(live) != len(taken.top) != len(taken.stop):
            return
        fresh = batch if len(live) == len(batch) else batch.take_samples(live)
        look = self._look if taken.look else None
        columns = taken.top, taken.missing, taken.stop
        feedback = Feedback(fresh, *columns, look, taken.took_ns, taken.has_new_code)
        self.on_feedback(feedback)
        self._collector.learn(feedback)

    def _look(self) -> None:
        self._link.send(ScanForCode())

    def ask(self, extent: Extent, sink: Sink | None = None) -> Pending:
        """Request a profile of the current window from the worker. While run() runs, only its `beat` function may call
        this; later any thread.
        """
        cut = extent is Extent.CUT
        with self._state:
            if (state := self._rest) is None:
                if extent is not Extent.PART:  # a request for the whole window follows soon
                    self._runtimes.read_names()
                state = self._gathered(own_cost(), cut)
            self._rest = None if cut else self._rest
            self._number += 1
            number = self._link.number(sink)
            if not self.leaves:
                self._link.begin_to_wait()
            pending = self._link.ask(
                ProfileRequest(
                    self._number, extent, state, self._link.packer.news(), number, self.delivered, self._requested
                )
            )
            if cut:
                self.samples = 0
                self.delivered += sink is not None
                # send the worker a checkpoint at once, because the next window belongs to another delivery
                self._standing_at = 0.0
                self._retire()
        return pending

    def _retire(self) -> None:
        """Free the memory that only the closed window needed."""
        if not self._closed:
            self._collector.retire()
            self._heap.trim()
        self._runtimes.retire()

    def _gathered(self, own: OwnCost, cut: bool = False) -> SamplerState:
        spent = NOTHING
        if self.unfollowed is not None:
            spent = self.unfollowed.take_times() if cut else self.unfollowed.so_far()
        now_ns, monotonic_ns = _on_both_clocks(self.span_ns[1])
        return SamplerState(
            now_ns=now_ns,
            monotonic_ns=monotonic_ns,
            stats=self._collector.stats(),
            threads=self._runtimes.named(tuple(self._collector.threads())),
            counts=dict(self._diagnostics.counts),
            problems=self._problems(),
            unfollowed=spent,
            cpu_s=own.cpu_s,
            max_rss_kb=own.max_rss_kb,
            interpreters=self._interpreters(),
        )

    @property
    def span_ns(self) -> tuple[int, int]:
        """The beginning and the end of what the collector has yielded, by the monotonic clock in nanoseconds."""
        handover = self._handover
        begun_ns = handover.begun_ns
        if self.sampled.is_set():
            return begun_ns, max(handover.ended_ns, begun_ns)
        return begun_ns, handover.given_ns if self._acknowledges or not begun_ns else time.monotonic_ns()

    def _problems(self) -> dict[str, frozenset[Problem]]:
        """Return the problems of modules that the sampler has found and not yet sent to the worker."""
        found, self._diagnostics.problems = self._diagnostics.problems, {}
        return {path: frozenset(each) for path, each in found.items()}

    def stop(self) -> None:
        """Make run() end soon. May be called from any thread or a signal handler."""
        if not self._closed:
            self._collector.stop()

    def _interpreters(self) -> InterpreterNews:
        runtimes = self._runtimes
        codes = runtimes.book.codes
        fresh = {number: codes[number] for number in codes.keys() - self._codes}
        gone = tuple(self._codes - codes.keys())
        self._codes = set(codes)
        return InterpreterNews(fresh, gone, runtimes.module_paths, runtimes.lockless)

    def end(self, urgency: EndUrgency = EndUrgency.PROMPT) -> None:
        """End the recording now, without waiting. Any thread or a signal handler may call this. A later call may state
        a greater urgency.
        """
        self._requested = True
        self._handover.end()
        self._link.end(urgency)
        self.stop()

    def close_collector(self) -> None:
        """Close the collector of the recording. May be called twice."""
        if not self._closed:
            self._closed = True
            self._collector.close()

    def close(self) -> None:
        """End the sampler and the worker of the recording and free all resources. May be called twice."""
        self.close_collector()
        with contextlib.suppress(PyprofError, OSError):
            self._link.send(Shutdown())
        if self._requested and self.leaves:
            self._link.worker.close(self._times * WAITED_FOR_S, self._times * WAITED_FOR_S)
        else:
            self._link.worker.close()


def _on_both_clocks(monotonic_ns: int) -> tuple[int, int]:
    """Convert a time of the monotonic clock, in nanoseconds.

    Returns:
        (nanoseconds since the epoch, the monotonic time).
    """
    return time.time_ns() - (time.monotonic_ns() - monotonic_ns), monotonic_ns


def _parts(batch: SampleBatch) -> Iterator[SampleBatch]:
    """Split a batch into messages to the worker. Neither process has memory for the stacks of a large batch at once."""
    ends = np.cumsum(batch.stack.size)
    first = 0
    while first < len(batch):
        before = int(ends[first - 1]) if first else 0
        end = max(int(np.searchsorted(ends, before + _MAX_STACKS, "right")), first + 1)
        yield batch.take_samples(np.arange(first, end))
        first = end
