"""The worker's main loop: it unwinds and interns batches, resolves names of windows, and serves the sampler's requests.

It is an ordinary Session whose collector is the sampler, at the other end of the channel.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.linux.libc import map_large_blocks
from pyprof.errors import PyprofError
from pyprof.exporters.base import Journal, JournalBeginning
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import StatedId
from pyprof.model.profile import Profile, ThreadInfo, ValueType
from pyprof.model.thread_identity import join_labels
from pyprof.problem_counters import Diagnostics
from pyprof.session.own_cpu_and_memory import OwnHeap
from pyprof.session.pipeline.background_symbolizer import BackgroundSymbolizer
from pyprof.session.pipeline.profile_assembly import SOURCE_BUDGET_S, WAITED_FOR_S
from pyprof.session.pipeline.sample_windows import Clock, Window
from pyprof.session.process_priority import can_leave_idle_policy, idle
from pyprof.session.session import Session
from pyprof.session.worker import response_codec
from pyprof.session.worker.deadline import WorkDeadline
from pyprof.session.worker.file_broker_client import FILES_NOT_OPENED, FileBrokerClient
from pyprof.session.worker.message_channel import Channel, Closed, Part, Received
from pyprof.session.worker.message_codec import Unpacker
from pyprof.session.worker.messages import (
    Batch,
    Begin,
    Checkpoint,
    Examine,
    Extent,
    Message,
    NamingOptions,
    ProcessUpdate,
    ProfileRequest,
    Response,
    SamplerState,
    ScanForCode,
    Shutdown,
)
from pyprof.session.worker.response_codec import BatchTaken, Done, ErrandPiece, RequestFailed, SamplerCall

if TYPE_CHECKING:
    from pyprof.session.pipeline.journal_writer import JournalWriter, Within
    from pyprof.symbolize.name_cache import SettledFrameCache

_MAPPED_BYTES = 1 << 19
"""Minimum size in bytes of a block of memory that an agent's worker returns to the kernel as soon as it frees the
block.
"""
_READ_AHEAD_S = 0.02
"""Minimum time, in seconds, between two reads of the JIT code that batches need which wait to be unwound."""
_NO_WORDS = np.zeros(0, np.uint64)
_NO_FLAGS = np.zeros(0, np.bool_)


class ReportedState:
    """The state of the collector that the sampler reported last (implements CollectorState)."""

    def __init__(self, stats: CollectorStats) -> None:
        self._stats = stats
        self._threads: tuple[ThreadInfo, ...] = ()
        self.learned: Feedback | None = None

    def update(self, state: SamplerState) -> None:
        self._stats, self._threads = state.stats, state.threads

    def learn(self, feedback: Feedback) -> None:
        self.learned = feedback

    def threads(self) -> list[ThreadInfo]:
        return list(self._threads)

    def stats(self) -> CollectorStats:
        return self._stats


class _Observed:
    """The worker's data of one recording: its session, and the facts that the sampler has reported last."""

    def __init__(self, begin: Begin, lacks_files: Callable[[], bool]) -> None:
        self._lacks_files = lacks_files
        self.now_ns, self.monotonic_ns = begin.begin_ns, begin.monotonic_ns
        self.naming: NamingOptions = begin.naming
        self.collector = ReportedState(begin.stats)
        self.diagnostics = Diagnostics()
        clock = Clock(lambda: self.now_ns, lambda: self.monotonic_ns)
        self.session = Session(self.collector, begin.unwind, self.diagnostics, clock=clock)
        self.session.files.names.suggests_packages = begin.naming.suggests_packages
        self._counts: Counter[str] = Counter()
        self.ahead = BackgroundSymbolizer(self.session, begin.naming.view)
        self.keeping: JournalWriter | None = None
        self.failed = False
        self._settled: SettledFrameCache | None = None
        self._spent_s = 0.0
        self._spent_before_s = dict.fromkeys(Extent, 0.0)
        """Processor time of sampler and worker, in seconds, that earlier profiles have already reported, by the extent
        of the profile.
        """

    def unwind_batch(self, message: Batch) -> BatchTaken:
        """Unwind a batch of the sampler and return the response.

        Raises:
            Exception: What the unwinder raises.
        """
        self.session.runtimes.update(message.interpreters)
        self.collector.learned = None
        self.session.recorder.add_batch(message.batch)
        self.ahead.taken(message.batch)
        learned = self.collector.learned
        if learned is None:
            return BatchTaken(message.number, _NO_WORDS, _NO_WORDS, _NO_FLAGS, look=False)
        return BatchTaken(
            message.number,
            learned.top,
            learned.missing,
            learned.stop,
            learned.look is not None,
            has_new_code=learned.has_new_code,
        )

    def update(self, state: SamplerState) -> None:
        self.now_ns, self.monotonic_ns = state.now_ns, state.monotonic_ns
        self.collector.update(state)
        self.session.runtimes.update(state.interpreters)
        counts = Counter(state.counts)
        self.diagnostics.counts.update(counts - self._counts)
        self._counts = counts
        for path, problems in state.problems.items():
            self.diagnostics.problems.setdefault(path, set()).update(problems)

    def window(self, state: SamplerState, extent: Extent) -> Window:
        self.update(state)
        if extent is Extent.PART:
            from pyprof.symbolize.name_cache import SettledFrameCache  # most recordings have no parts

            self._settled = self._settled or SettledFrameCache()
            return self.session.recorder.part()
        recorder = self.session.recorder
        window = recorder.cut() if extent is Extent.CUT else recorder.peek_window()
        return replace(window, unfollowed=state.unfollowed)

    def note_profile(self, extent: Extent) -> None:
        """Store which part of the window a profile covered, for the accounting of processor time."""
        if extent is Extent.CUT:
            self._spent_before_s = dict.fromkeys(Extent, self._spent_s)
            if self._settled is not None:
                self._settled.begin_window()
        elif extent is Extent.PART:
            self._spent_before_s[extent] = self._spent_s

    def profile(
        self, window: Window, state: SamplerState, extent: Extent, requested: bool, known_only: bool = False
    ) -> Profile:
        """Make a profile of a window in the worker.

        Args:
            window: The window.
            state: The sampler's state.
            extent: The part of the window.
            requested: True if the user waits (see ProfileRequest): line numbers then get less time.
            known_only: True to use only names that are already resolved.
        """
        naming, lines_s = self.naming, WAITED_FOR_S if requested else SOURCE_BUDGET_S
        found = self.session.profile(
            window, naming.title, naming.rate_hz, naming.mode, naming.view, known_only, lines_s, self._settled
        )
        self._spent_s = found.summary.profiler_cpu_s + state.cpu_s
        errors = {**found.summary.errors, FILES_NOT_OPENED: 1} if self._lacks_files() else found.summary.errors
        summary = replace(
            found.summary,
            errors=errors,
            profiler_cpu_s=round(self._spent_s - self._spent_before_s[extent], 3),
            profiler_max_rss_kb=found.summary.profiler_max_rss_kb + state.max_rss_kb,
            functions_missing=tuple(replace(each, kernel=naming.kernel) for each in found.summary.functions_missing),
        )
        threads = tuple(replace(thread, labels=join_labels(naming.labels, thread.labels)) for thread in found.threads)
        return replace(found, summary=summary, options=naming.options, threads=threads)

    def begin_keeping(
        self, begin: Callable[[JournalBeginning, int], Journal | None], number: int, within: Within
    ) -> None:
        """Open a journal for the current window's sink. New data of the window is then appended to it.

        Args:
            begin: Opens the journal.
            number: Number of the window.
            within: Runs a name lookup with a time limit (see JournalWriter).
        """
        from pyprof.session.pipeline.journal_writer import JournalWriter  # most recordings have no journal

        naming = self.naming
        kinds = ValueType("samples", "count"), ValueType(naming.mode, "nanoseconds")
        start_ns, period_ns = self.session.recorder.began_ns, round(1e9 / naming.rate_hz)
        journal = begin(JournalBeginning(naming.title, start_ns, period_ns, kinds, naming.options), number)
        if journal is not None:
            self.keeping = JournalWriter(self.session, naming, journal, within, self.ahead)

    def end_keeping(self) -> None:
        """Close the journal of the current window. Call it before the window is closed."""
        if self.keeping is not None:
            self.keeping.close()
            self.keeping = None


class Service:
    """The main loop of a worker process, which serves one sampler until the sampler sends Shutdown or ends."""

    def __init__(
        self, channel: Channel, keeper: FileBrokerClient, deadline: WorkDeadline, missing: Sequence[str]
    ) -> None:
        """Create the main loop of a worker process.

        Args:
            channel: Channel to the sampler.
            keeper: Client of the file broker, which gives profiles to sinks.
            deadline: The deadline.
            missing: The counters of the restrictions that could not be applied to this process.
        """
        self._channel = channel
        self._keeper = keeper
        self._deadline = deadline
        self._missing = missing
        self._unpacker = Unpacker(self)
        self._waiting: deque[Message] = deque()
        self._standing: Checkpoint | None = None
        self._kept = -1
        self._heap = OwnHeap()
        self._of: _Observed | None = None
        self._giving_way: Callable[[], AbstractContextManager[None]] = nullcontext
        self._read_again_s = 0.0

    def run(self) -> None:
        """Serve the sampler. If the sampler ends without a Shutdown message, give what was recorded to its sink."""
        try:
            self._channel.send(response_codec.pack(BatchTaken(0, _NO_WORDS, _NO_WORDS, _NO_FLAGS, look=False)))
            while not isinstance(message := self._next(), Shutdown):
                self._serve(message)
            with suppress(OSError):
                self._keeper.end_journal()  # otherwise the file broker would treat the worker's end as a crash
        except Closed:
            self._deliver_without_sampler()

    def _next(self) -> Message:
        if (received := self._resolve_until_message()) is not None:
            return self._unpacker.unpack(received)
        return self._waiting.popleft() if self._waiting else self._receive()

    def _resolve_until_message(self) -> Received | None:
        """Resolve names in the background until a message of the sampler arrives.

        Returns:
            The message, or None if the background work has ended first.
        """
        ahead = self._of.ahead if self._of is not None else None
        if ahead is None or not ahead.due or self._waiting:
            return None
        with self._giving_way():
            while ahead.due and not self._deadline.wanted:
                if (received := self._channel.receive(0)) is not None:
                    return received
                if not self._deadline.meanwhile(ahead.turn):
                    break
        return None

    def _receive(self) -> Message:
        received = self._channel.receive()
        assert received is not None  # receive() has no time limit here, so it returns a message
        return self._unpacker.unpack(received)

    def _serve(self, message: Message) -> None:
        match message:
            case Begin():
                self._begin(message)
            case Batch():
                self._take(message)
            case Checkpoint(state):
                self._standing = message
                self._observed.update(state)
            case ProfileRequest():
                self._answer(message)
            case Examine():
                self._examine(message)
            case ScanForCode():
                self._observed.session.code.update_code()

    def _keep(self, observed: _Observed) -> None:
        standing = self._standing
        if standing is not None and standing.sink and standing.delivered > self._kept:
            self._kept = standing.delivered
            begin = partial(self._keeper.journal, standing.sink)
            observed.begin_keeping(begin, standing.delivered, self._deadline.meanwhile)
        if observed.keeping is not None:
            observed.keeping.turn()

    def _begin(self, begin: Begin) -> None:
        self._of = _Observed(begin, lambda: self._keeper.is_refused)
        self._of.session.code.processes.between_lookups = self._read_code_in_time
        self._deadline.unwound_s *= begin.times
        if begin.yields:
            map_large_blocks(_MAPPED_BYTES)
            if can_leave_idle_policy():
                self._giving_way = idle
        for counter in self._missing if begin.confined else ():
            self._of.diagnostics.count(counter)

    @property
    def _observed(self) -> _Observed:
        assert self._of is not None, "the first message is Begin"
        return self._of

    def _take(self, message: Batch) -> None:
        observed = self._observed
        self._unpacker.update(message.news)
        try:
            self._read_code_ahead(observed)
            answer = BatchTaken(message.number, _NO_WORDS, _NO_WORDS, _NO_FLAGS, look=False)
            late = self._deadline.late
            if self._deadline.too_late:
                observed.session.recorder.unwind_leaves_only()
            began_ns = time.monotonic_ns()
            if not observed.failed:
                answer = replace(observed.unwind_batch(message), took_ns=time.monotonic_ns() - began_ns)
            self._channel.send(
                response_codec.pack(answer)
            )  # before the journal, because the collector waits for the feedback
            if not late and not observed.failed:
                self._keep(observed)
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001 - sent to the sampler
            observed.failed = True
            self._channel.send(response_codec.pack(_failed(0, error)))

    def _read_code_in_time(self) -> None:
        """Read the JIT code that waiting batches need, unless this was done in the last _READ_AHEAD_S seconds. It is
        called while another batch is unwound.
        """
        if time.monotonic() >= self._read_again_s:
            self._read_code_ahead(self._observed)

    def _read_code_ahead(self, observed: _Observed) -> None:
        """Read the JIT code in the stacks of batches that still wait to be unwound, because the target may have removed
        it by then.
        """
        with suppress(Closed):  # first the batches that have arrived are unwound; then receive() raises it again
            while not self._deadline.late and (received := self._channel.receive(0)) is not None:
                self._waiting.append(message := self._unpacker.unpack(received))
                if isinstance(message, Batch) and not observed.failed:
                    observed.session.code.processes.read_ahead(message.batch)
        self._read_again_s = time.monotonic() + _READ_AHEAD_S

    def _answer(self, ask: ProfileRequest) -> None:
        observed = self._observed
        self._unpacker.update(ask.news)
        answer: Done | RequestFailed
        functions: tuple[int, ...] | None = None
        try:
            if ask.extent is Extent.CUT:
                observed.end_keeping()
                self._kept = max(self._kept, ask.delivered)
                # a window that was requested must not be given to the sink again if the sampler is killed now
                self._standing = None
            window = observed.window(ask.state, ask.extent)
            try:
                parts = self._packed(window, ask)
            finally:
                observed.note_profile(ask.extent)
                if ask.extent is Extent.CUT:
                    functions = tuple(observed.session.retire(window, self._unpacker.uses_space))
            del window  # the sink needs its memory
            if ask.sink:
                parts = self._keeper.deliver(ask.sink, parts, ask.delivered, partial(self._trim, ask))
            answer = Done(ask.number, functions, tuple(parts))
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001 - sent to the sampler
            answer = _failed(ask.number, error)
        self._channel.send(response_codec.pack(answer))
        self._trim(ask)

    def _trim(self, ask: ProfileRequest) -> None:
        """Return free memory of the worker to the kernel after a window was closed, because the sink needs memory for
        the profile.
        """
        if ask.extent is Extent.CUT:
            self._heap.trim(self._observed.session.files.names.drop_idle_lines)

    def _examine(self, message: Examine) -> None:
        diagnostics = Diagnostics()
        for counter in self._missing if message.confined else ():
            diagnostics.count(counter)
        answer: Done | RequestFailed
        try:
            for piece in message.errand.pieces(diagnostics):
                self._channel.send(response_codec.pack(ErrandPiece(message.number, response_codec.packed_value(piece))))
            answer = Done(message.number, None, ())
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001 - sent to the sampler
            answer = _failed(message.number, error)
        self._channel.send(response_codec.pack(answer))

    def has_left(self) -> bool:
        """Return True if the worker has data that must be given to a sink if the sampler has ended. Any thread may call
        this.
        """
        return self._of is not None and self._standing is not None and bool(self._standing.sink)

    def _deliver_without_sampler(self) -> None:
        if self._of is None or self._standing is None or not self._standing.sink:
            return
        self._of.end_keeping()
        state = replace(self._standing.state, now_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())
        window = self._of.window(state, Extent.CUT)
        ask = ProfileRequest(
            0, Extent.CUT, state, ProcessUpdate(), self._standing.sink, self._standing.delivered, requested=True
        )
        parts = self._packed(window, ask)
        del window
        self._keeper.deliver(ask.sink, parts, ask.delivered, partial(self._trim, ask))

    def _packed(self, window: Window, ask: ProfileRequest) -> list[Part]:
        """Encode the profile of a window with all names. If the deadline passes, it has only the names that are already
        resolved.
        """
        found = partial(self._observed.profile, window, ask.state, ask.extent, ask.requested)
        if self._deadline.late:
            self._deadline.in_reserve(partial(self._observed.ahead.read_symbols, window))
        profile = self._deadline.unless_late(found)
        return [*response_codec.packed_value(profile if profile is not None else found(known_only=True))]

    # The methods of SamplerCalls: facts that only the sampler has

    def read(self, space: int, avma: int, size: int) -> bytes:
        found = self._call(SamplerCall("read", space, avma, size))
        return found if isinstance(found, bytes) else b""

    def files(self, space: int, module: int) -> Sequence[tuple[str, bool]]:
        found = self._call(SamplerCall("files", space, module, 0))
        return found if isinstance(found, list) else []

    def stated(self, space: int, module: int) -> StatedId | None:
        found = self._call(SamplerCall("stated", space, module, 0))
        return found if isinstance(found, StatedId) else None

    def _call(self, call: SamplerCall) -> object:
        self._channel.send(response_codec.pack(call))
        while not isinstance(message := self._receive(), Response):
            self._waiting.append(message)
        return message.value


def _failed(number: int, error: Exception) -> RequestFailed:
    import traceback

    if isinstance(error, PyprofError):
        return RequestFailed(number, type(error).__name__, error.message, error.hint, "")
    return RequestFailed(number, type(error).__name__, str(error), "", "".join(traceback.format_exception(error)))
