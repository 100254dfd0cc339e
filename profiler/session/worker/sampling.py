"""The sampler's half of a recording: the collector runs here, what it finds goes to the worker.

Nothing foreign is parsed on this side but registers, /proc and the frames of interpreters. The sampler waits for the
worker only where that is far behind (IN_FLIGHT), and then counts the sampling times that it misses like all others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.diagnostics import Diagnostics, Problem
from pyprof.errors import PyprofError
from pyprof.exporters.base import Sink
from pyprof.handover import Handover
from pyprof.model.modules import MAX_MAPPINGS
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.options import UnwindOptions
from pyprof.records import replace
from pyprof.session.own_cost import OwnCost, OwnHeap, RecentCost, own_cost
from pyprof.session.runtimes import InterpreterNews, Runtimes
from pyprof.session.unfollowed import NOTHING, Unfollowed
from pyprof.session.worker.answers import BatchTaken
from pyprof.session.worker.link import NAMES_S, TURN_S, Pending, WorkerLink
from pyprof.session.worker.messages import Ask, Batch, Begin, Bye, Extent, Naming, SamplerState, ScanForCode, Standing
from pyprof.session.worker.process import Worker

_MOST_STACKS = 8 << 20
"""Bytes of stacks that are sent together."""
IN_FLIGHT = 64 << 20
"""Most bytes of batches that the worker has not taken yet."""
_BEGIN_TOGETHER = 4
"""So many batches wait for what the walk of the one before teaches: until then far too much of each stack is copied."""
WAITED_FOR_S = 0.15
"""So long the end of the worker's process is waited for once somebody waits, and so long again once it was killed: what
it had to write is written. A file of a silent file system that it has open holds it for longer.
"""
_STANDING_S = 1.0
_STANDING_BUDGET = 200
"""A state is sent after a batch, and when a window begins. One that took t of processor time to gather is followed by
none for 200 t.
"""


class Sampling:
    """Owns the collector and the worker. failure: what ended run() early, None where nothing did.

    unfollowed: watches what children spend that the recording leaves out, None where it leaves none out. sink,
    delivered: who takes what there is if this process is killed, and the window's number. sampled: the collector
    has ended. is_walked: the worker has walked the first samples. leaves: this process ends with the recording.
    """

    def __init__(
        self,
        collector: Collector,
        worker: Worker,
        runtimes: Runtimes,
        diagnostics: Diagnostics,
        unwind: UnwindOptions,
        naming: Naming,
        confined: bool = True,
        names_s: float = NAMES_S,
        patient: bool = False,
        handover: Handover | None = None,
    ) -> None:
        """names_s: how long the worker may unwind and name once the end was asked for. patient: see WorkerLink.
        handover: with the collector, None where that acknowledges no flush: a profile then ends when it is asked for.
        """
        self.failure: BaseException | None = None
        self.unfollowed: Unfollowed | None = None
        self.sink: Sink | None = None
        self.delivered = 0
        self.samples = 0
        self.sampled = threading.Event()
        self.is_walked = False
        self.leaves = False
        self._times = 1.0
        self._collector = collector
        self._link = WorkerLink(worker, names_s, patient)
        self._runtimes = runtimes
        self._diagnostics = diagnostics
        self._number = 0
        self._flying: dict[int, tuple[SampleBatch | None, int]] = {}
        self._codes: set[int] = set()
        self._cut_spaces: set[int] = set()
        self._standing_at = 0.0
        self._stood = (-1, -1)
        self._recent_cost = RecentCost()
        self._heap = OwnHeap()
        self._acknowledges = handover is not None
        self._handover = handover or Handover()
        self._requested = False
        self._rest: SamplerState | None = None
        self._closed = False
        self._state = threading.RLock()
        self._flying[0] = None, 0
        while 0 in self._flying:  # it says so when it is ready
            self._turn(TURN_S)
        self._ways = confined, unwind, naming

    def take_longer(self, times: float) -> None:
        """The worker may unwind and name for as many times as long. Before run()."""
        self._times = times
        self._link.take_longer(times)

    def take_less(self) -> None:
        """Lower the priority of the worker, because the user does not wait for it."""
        self._link.worker.take_less()

    def hasten(self) -> None:
        """The worker gets no more time for names. From any thread, or a signal handler."""
        self._link.hasten()

    def abandon(self) -> None:
        """Nobody wants the answers any more. From any thread, or a signal handler."""
        self._link.abandon()

    @property
    def sent(self) -> int:
        """Number of batches, and of profiles asked for, that went to the worker."""
        return self._number

    def waits(self) -> Mapping[int, float]:
        """Return for each thread of this process and the worker how long it has waited for a processor, in seconds."""
        return self._link.waits()

    def hang_up(self) -> None:
        """The collector does not get its answers about files any more. From any thread."""
        self._link.worker.questions.hang_up()

    def leave(self) -> bool:
        """The collector does not end: the sink gets what the worker has. Did it? Not from the loop's thread."""
        return self._link.leave()

    def pids(self) -> set[int]:
        """Of threads that were sampled."""
        return {thread.pid for thread in self._collector.threads()}

    def stats(self) -> CollectorStats:
        return self._collector.stats()

    def run(self, beat: Callable[[], None]) -> None:
        """Record until the collector ends; nothing where end() was called before. beat: called before the first batch
        and after each, at least each half second; only it may ask for windows. Never raises for what goes wrong on the
        way: failure has it, and what was recorded until then is good.
        """
        self._link.begin_loop()
        try:
            self._link.send(self._begin())
            self._turn()
            beat()
            for batch in self._collector.batches() if not self._requested else ():
                self._handover.report_sampling()
                for part in _parts(batch) if len(batch) else ():
                    self._send_batch(part)
                self._turn()
                beat()
        except Exception as error:
            self.failure = error
        finally:
            self.sampled.set()
            self._handover.end()
            self._link.end(requested=self._requested)
            self._link.loop_ended()
            self._learn_the_rest()
            self._runtimes.read_names()
            self._rest = self._gathered(own_cost(), cut=True)
            self.close_collector()

    def _begin(self) -> Begin:
        confined, unwind, naming = self._ways
        stats, yields = self._collector.stats(), self._link.worker.yields
        self._handover.begin()
        now_ns, monotonic_ns = _on_both_clocks(self._handover.begun_ns)
        return Begin(confined, unwind, naming, stats, now_ns, monotonic_ns, yields, self._times)

    def _learn_the_rest(self) -> None:
        """Feedback of the last batches: the collector's notes depend on it."""
        try:
            while self._flying and self._link.dead is None:
                self._turn(TURN_S)
        except Exception as error:
            self.failure = self.failure or error

    def _send_batch(self, batch: SampleBatch) -> None:
        self._number += 1
        self.samples += len(batch)
        self._report_cut_spaces(batch)
        batch = replace(batch, stack=batch.stack.alone())
        size = self._link.send(Batch(self._number, batch, self._link.packer.news(), self._interpreters()))
        self._flying[self._number] = replace(batch, stack=batch.stack.without_data()), size
        together = self._number <= _BEGIN_TOGETHER or any(space.image is None for space in batch.spaces.values())
        while self._flying and not self._requested and (together or self._in_flight() > IN_FLIGHT):
            self._turn(TURN_S)

    def _report_cut_spaces(self, batch: SampleBatch) -> None:
        """Count each process once of whose mappings only a part was read."""
        for space in batch.spaces.values():
            if len(space.mappings) >= MAX_MAPPINGS and space.pid not in self._cut_spaces:
                self._cut_spaces.add(space.pid)
                self._diagnostics.count(f"process {space.pid} has too many mappings to read all: its stacks may be cut")

    def _in_flight(self) -> int:
        return sum(size for _, size in self._flying.values())

    def _turn(self, timeout_s: float = 0) -> None:
        """Between two batches: take what has come from the worker. Raises what went wrong there."""
        link = self._link
        if self._flying:
            link.worker.wake()
        link.receive(timeout_s)
        if self.unfollowed is not None:
            self.unfollowed.look()
        now = time.monotonic()
        stands = self._number, self.delivered
        if self.sink is not None and now >= self._standing_at and stands != self._stood:
            self._stood = stands
            before_s = time.thread_time()
            self._link.send(Standing(self._gathered(self._recent_cost()), self._link.number(self.sink), self.delivered))
            spent_s = time.thread_time() - before_s
            self._standing_at = time.monotonic() + max(_STANDING_S, _STANDING_BUDGET * spent_s)
        while link.functions:
            self._runtimes.keep(set(link.functions.popleft()))
        while link.taken:
            self._learn(link.taken.popleft())
        if link.broken is not None:
            raise link.broken

    def _learn(self, taken: BatchTaken) -> None:
        batch, _ = self._flying.pop(taken.number, (None, 0))
        if batch is None:
            return
        self.is_walked = True
        live = np.flatnonzero(batch.kind < SampleKind.UNCHANGED)
        if not len(taken.top) or len(live) != len(taken.top) != len(taken.stop):
            return
        fresh = batch if len(live) == len(batch) else batch.take(live)
        look = self._look if taken.look else None
        self._collector.learn(Feedback(fresh, taken.top, taken.missing, taken.stop, look, taken.took_ns))

    def _look(self) -> None:
        self._link.send(ScanForCode())

    def ask(self, extent: Extent, sink: Sink | None = None) -> Pending:
        """A profile of the window under way. Only for beat() of run(), and after run()."""
        cut = extent is Extent.CUT
        with self._state:
            if (state := self._rest) is None:
                if extent is not Extent.PART:  # which is soon followed by the whole
                    self._runtimes.read_names()
                state = self._gathered(own_cost(), cut)
            self._rest = None if cut else self._rest
            self._number += 1
            number = self._link.number(sink)
            if not self.leaves:
                self._link.begin_to_wait()
            pending = self._link.ask(
                Ask(self._number, extent, state, self._link.packer.news(), number, self.delivered, self._requested)
            )
            if cut:
                self.samples = 0
                self.delivered += sink is not None
                self._standing_at = 0.0  # the worker is told at once whose window begins
                self._retire()
        return pending

    def _retire(self) -> None:
        """A window was closed: what only it needed goes."""
        if not self._closed:
            self._collector.retire()
            self._heap.trim()
        self._runtimes.retire()

    def _gathered(self, own: OwnCost, cut: bool = False) -> SamplerState:
        spent = NOTHING
        if self.unfollowed is not None:
            spent = self.unfollowed.take() if cut else self.unfollowed.so_far()
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
        """The beginning and the end of what the collector has yielded, by the monotonic clock."""
        handover = self._handover
        begun_ns = handover.begun_ns
        if self.sampled.is_set():
            return begun_ns, max(handover.ended_ns, begun_ns)
        return begun_ns, handover.given_ns if self._acknowledges or not begun_ns else time.monotonic_ns()

    def _problems(self) -> dict[str, frozenset[Problem]]:
        """Those that were not sent to the worker yet."""
        found, self._diagnostics.problems = self._diagnostics.problems, {}
        return {path: frozenset(each) for path, each in found.items()}

    def stop(self) -> None:
        """End run(), soon. From any thread, or a signal handler."""
        if not self._closed:
            self._collector.stop()

    def _interpreters(self) -> InterpreterNews:
        runtimes = self._runtimes
        codes = runtimes.book.codes
        fresh = {number: codes[number] for number in codes.keys() - self._codes}
        gone = tuple(self._codes - codes.keys())
        self._codes = set(codes)
        return InterpreterNews(fresh, gone, runtimes.module_paths, runtimes.lockless)

    def end(self) -> None:
        """Nothing is recorded from now on; does not wait. From any thread, or a signal handler."""
        self._requested = True
        self._handover.end()
        self._link.end()
        self.stop()

    def close_collector(self) -> None:
        """Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._collector.close()

    def close(self) -> None:
        """Ends everything, and leaves nothing behind. Safe to call twice."""
        self.close_collector()
        with contextlib.suppress(PyprofError, OSError):
            self._link.send(Bye())
        if self._requested and self.leaves:
            self._link.worker.close(self._times * WAITED_FOR_S, self._times * WAITED_FOR_S)
        else:
            self._link.worker.close()


def _on_both_clocks(monotonic_ns: int) -> tuple[int, int]:
    """Return a time of the monotonic clock as nanoseconds since the epoch, and as it is."""
    return time.time_ns() - (time.monotonic_ns() - monotonic_ns), monotonic_ns


def _parts(batch: SampleBatch) -> Iterator[SampleBatch]:
    """What a batch is sent as: memory for the stacks of all of it is had by neither process."""
    ends = np.cumsum(batch.stack.size)
    first = 0
    while first < len(batch):
        before = int(ends[first - 1]) if first else 0
        end = max(int(np.searchsorted(ends, before + _MOST_STACKS, "right")), first + 1)
        yield batch.take(np.arange(first, end))
        first = end
