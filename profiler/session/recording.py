"""A running recording. It owns the collector, the worker and the loop.

The loop runs in the thread that calls run(), or in a separate thread after start(). All other functions may be called
from any thread. If they concern the samples, the loop executes them between two batches. Another process unwinds the
samples and resolves names (session/worker/).
"""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import CollectorStats
from pyprof.collectors.targets.command_launch import LaunchedCommand
from pyprof.errors import PyprofError, UsageError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.profile import Profile
from pyprof.options import RecordOptions
from pyprof.session import process_priority
from pyprof.session.shutdown_watchdog import LEAVE_S, EndFailure, await_end
from pyprof.session.sink_delivery import Deliveries
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.message_channel import Part
from pyprof.session.worker.messages import Extent
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_client import Pending

if TYPE_CHECKING:
    from concurrent.futures import Future


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CrossThreadCall:
    """A function that another thread has asked the recording's loop to call, and its result. See BetweenBatches.ask."""

    at_ns: int
    answer: Future[Any]
    job: Callable[[], Any]


class BetweenBatches:
    """A queue of calls from other threads that a recording's loop executes between two batches.

    Args:
        handover: Flush protocol with the collector.
    """

    def __init__(self, handover: FlushProtocol) -> None:
        self._handover = handover
        self._questions: list[_CrossThreadCall] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """True if the recording's loop has ended."""
        return self._over.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until the recording's loop has ended.

        Args:
            timeout: Maximum wait in seconds, None for no limit.

        Returns:
            True if the loop has ended.
        """
        return self._over.wait(timeout)

    def ask(self, job: Callable[[], T], at_ns: int = 0) -> T | None:
        """Execute a job in the recording's loop and wait for its result.

        Args:
            job: The job.
            at_ns: Time on the monotonic clock up to which all samples must have arrived first, 0 to run as soon as
                possible.

        Returns:
            The result, or None if the loop ends before.

        Raises:
            Exception: What the job raises.
        """
        from concurrent.futures import Future

        question = _CrossThreadCall(at_ns, Future(), job)
        with self._lock:
            if self.over:
                return None
            self._questions.append(question)
        if at_ns:
            self._handover.request_flush(at_ns)
        try:
            found: T | None = question.answer.result()
        except BaseException:
            question.answer.cancel()
            raise
        return found

    def answer(self) -> None:
        """Execute the pending jobs of other threads that are due; after the end of the loop, cancel all of them. Only
        the recording's loop may call this.
        """
        with self._lock:
            due = [each for each in self._questions if self.over or self._handover.is_ready(each.at_ns)]
            self._questions = [each for each in self._questions if each not in due]
        for each in due:
            if each.answer.set_running_or_notify_cancel():
                try:
                    each.answer.set_result(None if self.over else each.job())
                except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
                    each.answer.set_exception(error)

    def end(self) -> None:
        """Execute no more jobs of other threads: each pending caller gets None. Only the recording's loop may call
        this.
        """
        with self._lock:
            self._over.set()
        self.answer()


_SETTLED_S = 1.0
"""Maximum time in seconds, from the first sampling time on, for which pyprof keeps its raised priority. It ends earlier
when the first sample is unwound.
"""
_MAX_LATE_WINDOWS = 3
"""Number of windows that may be due at once before Recording.windows() makes the next one longer."""
_PATIENCE_S = 5.0
"""Maximum time for a recorded command to obey SIGTERM, in seconds."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A description of what a recording records: a process, several, a command, or the whole machine.

    Attributes:
        pid: Pid of the first process.
        name: Name of the first process, or the common name of the processes.
        several: True if there may be more than one process.
        asked: How the processes were selected, and further options of the user, as text.
    """

    pid: int
    name: str
    several: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Title of the recording in output files."""
        return self.name if self.several else f"{self.name} ({self.pid})"


class Recording:
    """A recording, made by session.recording_factory. close() or the end of its `with` block ends it and frees all
    resources.

    Attributes:
        subject: The description of what is recorded.
        options: Options of the recording.
        command: The program that was started for it, None if there is none.
        failure: The error that ended the recording early, None if there was none. Earlier samples remain valid.
        asked_to_end: True if the duration or a call ended it.
        end_failure: The reason for which watch() abandoned the loop, None if it did not.
        has_begun: True if samples are taken, or were taken.
        deliveries: Delivery of windows to sinks.
        on_cut: Called in the loop's thread when windows() closes a window, which ends at span_ns[1].
        on_part: Called in the loop's thread before part() or packed_part() takes a part, which ends at span_ns[1].
    """

    def __init__(
        self,
        sampling: Sampling,
        subject: Recorded,
        options: RecordOptions,
        handover: FlushProtocol,
        command: LaunchedCommand | None = None,
    ) -> None:
        self.subject = subject
        self.options = options
        self.command = command
        self.failure: BaseException | None = None
        self.asked_to_end = False
        self.end_failure: EndFailure | None = None
        self.on_cut: Callable[[], None] = lambda: None
        self.on_part: Callable[[], None] = lambda: None
        self.has_begun = False
        self.deliveries = Deliveries(sampling, handover)
        self._kept: Sampling | None = sampling
        self._handover = handover
        self._between = BetweenBatches(handover)
        self._stopping = threading.Lock()
        self._ending = threading.Event()
        self._begun_or_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: Profile | None = None
        self._settle_at = math.inf
        self._is_settled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def samples(self) -> int:
        """The number of samples in the current window of the recording."""
        return self._kept.samples if self._kept else 0

    @property
    def _sampling(self) -> Sampling:
        if self._kept is None:
            raise _closed()
        return self._kept

    def __repr__(self) -> str:
        state = "running" if self.running else "closed" if self._kept is None else "ended"
        return f"<Recording of {self.subject.title!r}: {state}, {self.samples:,} samples>"

    @property
    def running(self) -> bool:
        """True until the recording has ended, for any reason."""
        return not self._between.over

    @property
    def returncode(self) -> int | None:
        """The command's exit code as a shell reports it (128 + signal), None while it runs."""
        return self.command.poll() if self.command else None

    def stats(self) -> CollectorStats:
        """Return the state of the collector of the recording. Only the `beat` function of run() may call this."""
        return self._sampling.stats()

    def pids(self) -> set[int]:
        """Return the pids of the sampled processes. Only the `beat` function of run() may call this."""
        return {self.subject.pid, *self._sampling.pids()}

    @property
    def span_ns(self) -> tuple[int, int]:
        """The beginning and the end of what was recorded, in nanoseconds of the monotonic clock.

        Both are 0 before the recording begins.
        """
        return self._sampling.span_ns

    def start(self) -> None:
        """Run the loop of the recording in a separate thread."""
        self._thread = threading.Thread(target=self.run, name="pyprof", daemon=True)
        self._thread.start()

    def wait_for_sampling(self) -> None:
        """Wait until the collector takes samples, or the recording is over."""
        self._begun_or_over.wait()

    def begin(self) -> None:
        """Begin the recording at the present time, before run() is called, because the target starts to work now."""
        self._handover.begin()

    def run(self, beat: Callable[[], None] = lambda: None, began: Callable[[], None] = lambda: None) -> None:
        """Run the loop in this thread until the target has ended, the duration is over or end() is called.

        An error is stored in `failure` instead of being raised.

        Args:
            beat: Called after each batch, at least every half second. With BPF it is every two seconds unless
                Deliveries.flush_every() was called.
            began: Called when samples are taken. The duration counts from then on.
        """
        timer = threading.Timer(self.options.duration or 0, self.end)
        timer.daemon = True

        def begin() -> None:
            self.has_begun = True
            self._begun_or_over.set()
            self._settle_at = time.monotonic() + _SETTLED_S
            if self.options.duration:
                self._handover.limit_ns = time.monotonic_ns() + round(self.options.duration * 1e9)
                timer.start()
            began()

        self._handover.on_sampling = begin

        def between() -> None:
            self._turn()
            beat()

        try:
            self._sampling.run(between)
            self.failure = self._sampling.failure
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self.failure = error
        finally:
            timer.cancel()
            self._between.end()
            self._begun_or_over.set()

    def _turn(self) -> None:
        """Run what is due between two batches of the recording, such as deliveries and calls of other threads."""
        if not self.asked_to_end and time.monotonic_ns() >= self._handover.limit_ns:  # the timer's thread may be late
            self.end()
        if self.command and not self.options.subprocesses and self.command.poll() is not None:
            self._sampling.stop()
        if not self._is_settled and (self._sampling.is_walked or time.monotonic() > self._settle_at):
            self._is_settled = True
            process_priority.restore_priority()
            self._sampling.lower_priority()
        self._between.answer()
        self.deliveries.send_due()

    def end(self, urgency: EndUrgency = EndUrgency.PROMPT) -> None:
        """End the recording now, without waiting. Any thread or a signal handler may call this. A later call may state
        a greater urgency.
        """
        self.asked_to_end = True
        self._ending.set()
        if (sampling := self._kept) is not None:
            sampling.end(urgency)

    def watch(
        self, left: Callable[[bool], None], leave_s: float = LEAVE_S, times: float = 1, is_awaited: bool = True
    ) -> None:
        """Start a thread that limits how long the recording may take to end after end() is called.

        The loop may be blocked in a system call, or read an endless list in the target. Then it is abandoned, and what
        the worker has goes to the sink of deliveries.inherit(), if samples were taken.

        Args:
            left: Called when the loop was abandoned, with True if the sink got its window. It must end this process.
            leave_s: Time after which the loop is abandoned, in seconds.
            times: Factor of all times on a slow machine.
            is_awaited: True if this process has a higher priority from end() on, because a user waits for its end.
        """
        self._sampling.leaves = True
        self._sampling.take_longer(times)
        ends = left, times * leave_s, is_awaited
        threading.Thread(target=self._watch, args=ends, name="pyprof end", daemon=True).start()

    def _watch(self, left: Callable[[bool], None], leave_s: float, is_awaited: bool) -> None:
        self._ending.wait()
        if is_awaited:
            process_priority.raise_priority(os.getpid())
        sampling = self._kept
        if sampling is None:
            return
        self.end_failure = await_end(sampling, leave_s)
        if self.end_failure is None:
            return
        if not self.has_begun:
            sampling.end(EndUrgency.ABANDON)
        left(self.has_begun and sampling.leave())

    def waits(self) -> Mapping[int, float]:
        """Return how long each thread of pyprof's own processes has waited for a processor, in seconds by tid. Empty
        after close().
        """
        return self._kept.waits() if self._kept is not None else {}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the recording.

        Args:
            timeout: Maximum wait in seconds, None for no limit.

        Returns:
            True if the recording has ended.
        """
        return self._between.wait(timeout)

    def stop(self) -> Profile:
        """End the recording and return the profile since its beginning, or since the last window of windows().

        Every further call returns the same profile.
        """
        self.end()
        if self._thread is not None:
            self._thread.join()
        with self._stopping:
            if self._last is None:
                sampling = self._sampling
                if self.running:
                    raise PyprofError("the recording never began")
                self._last = sampling.ask(Extent.CUT).profile()
            return self._last

    def peek(self) -> Profile:
        """Return a profile of the current window without closing it. After the end, return what stop() returns.

        It takes up to half a second, plus the time to resolve names. Sampling continues meanwhile.
        """
        asked = self._between.ask(lambda: self._sampling.ask(Extent.SO_FAR), time.monotonic_ns())
        return asked.profile() if asked is not None else self.stop()

    def part(self) -> Profile | None:
        """Return a profile of what was added to the current window since the last part, or since the window began.

        All parts together are what peek() returns, except for facts that are only known at a window's end.

        Returns:
            The profile, or None after the end of the recording.
        """
        asked = self._part()
        return asked.profile() if asked is not None else None

    def packed_part(self) -> Sequence[Part] | None:
        """Return the result of part() as the worker encoded it, for callers that may never read it.
        response_codec.unpacked_profile decodes it.
        """
        asked = self._part()
        return asked.packed() if asked is not None else None

    def _part(self) -> Pending | None:
        def ask() -> Pending:
            self.on_part()
            return self._sampling.ask(Extent.PART)

        return self._between.ask(ask, time.monotonic_ns())

    def windows(self, every: float) -> Iterator[Profile]:
        """Yield a profile of each interval, without gaps, until the recording has ended.

        The last profile is the one that stop() returns, unless it is empty. A window keeps its length if the collector
        is late. It is longer if the caller, or the names of the profile before, take longer than a window.

        Args:
            every: Length of a window in seconds.

        Raises:
            UsageError: The length is not positive.
        """
        if not every > 0:
            raise UsageError(f"windows of {every!r} seconds are not possible")

        every_ns = round(every * 1e9)

        def cut(due_ns: int) -> Pending | None:
            if self._handover.is_end_near(due_ns, every_ns):
                return None
            self.on_cut()
            return self._sampling.ask(Extent.CUT)

        def found() -> Iterator[Profile]:
            due_ns = time.monotonic_ns() + every_ns
            while (asked := self._between.ask(partial(cut, due_ns), due_ns)) is not None:
                yield asked.profile()
                due_ns += every_ns
                if due_ns + _MAX_LATE_WINDOWS * every_ns < (now_ns := time.monotonic_ns()):
                    due_ns = now_ns
            last = self.stop()
            if last.duration_ns:
                yield last

        return found()

    def between(self, job: Callable[[], None]) -> None:
        """Run a function between two batches of the recording, when no thread of the target is stopped.

        If the recording's loop has ended, the calling thread runs the function.
        """

        def do() -> bool:
            job()
            return True

        if self._between.ask(do, time.monotonic_ns()) is None:
            job()

    def look_around(self) -> None:
        """Request that the collector searches now for new processes to record. Any thread may call this."""
        self._handover.request_flush(time.monotonic_ns())

    def close(self, ends_command: bool = True) -> None:
        """End the recording and free its resources. Call stop() before if its profile is needed.

        A recorded command that still runs is ended by SIGTERM, and by SIGKILL if that does not help. May be called
        twice.

        Args:
            ends_command: False to let the command continue.
        """
        self.end()
        if self._thread is not None:
            self._thread.join()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
            self.deliveries.close()
            gc.collect()  # tables and object files refer to each other; this closes their descriptors
        if ends_command and self.command is not None:
            self.command.terminate(_PATIENCE_S)


def _closed() -> PyprofError:
    return PyprofError("the recording is closed", "call stop() before, within the `with` block")
