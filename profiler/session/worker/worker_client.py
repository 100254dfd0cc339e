"""The sampler's clients of a worker: one for a recording, with the worker's deadline, and one for one-shot tasks.

Several threads may send messages and wait for responses. Responses for the sampler's loop are queued in `taken` and
`functions`.

An Examiner sends one-shot tasks to a worker that has no recording. A task is a OneShotTask (messages.py): it examines a
core file (session/core_and_crash_dump_profile.py), an object file or a process (pyprof.tools). The module of its class
must be loaded before a confined worker is forked.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pyprof.collectors.linux import procfs
from pyprof.errors import PyprofError
from pyprof.exporters.base import Sink
from pyprof.model.profile import Profile
from pyprof.problem_counters import Diagnostics
from pyprof.session.worker import response_codec
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.file_broker import AnyObjectFile, KnownFiles, KnownFolder, KnownProcess, NumberedSink
from pyprof.session.worker.interpreter_symbols import InterpreterSymbolClient
from pyprof.session.worker.message_channel import Closed, Part
from pyprof.session.worker.message_codec import Packer
from pyprof.session.worker.messages import Examine, Message, OneShotTask, ProfileRequest, Response
from pyprof.session.worker.response_codec import (
    Answer,
    BatchTaken,
    Done,
    ErrandPiece,
    RequestFailed,
    ResponseRefused,
    SamplerCall,
    Value,
)
from pyprof.session.worker.worker_process import Start, Worker, WorkerDied

NAMES_S = 0.7
"""Time after the end of a recording in which the worker may unwind and resolve names, in seconds.

After that the worker responds with what it has.
"""
_LOOPING = 0.7
"""Fraction of the worker's time after a recording's end, after which the deadline passes while the sampler's loop still
runs.

The worker then only accepts batches and resolves no new names.
"""
ELAPSED_S = 10.0
"""Maximum elapsed time, in seconds, before the worker's deadline passes.

Other limits of the deadline exclude the time in which the sampler's loop or the worker waits for a processor or for a
GDB stub.
"""
_STARVED = 2
"""Factor of the worker's time after a recording's end. The product replaces ELAPSED_S as the maximum elapsed time if it
is longer.
"""
GIVE_UP_S = 60.0
"""Time in seconds after which a worker that does not respond is killed. Waits of the worker for a processor do not
count.
"""
AFTER_THE_LOOP = 0.75
"""Minimum fraction of the worker's time after a recording's end that remains when the sampler's loop has ended, if the
target is behind a GDB stub.

With a stub, the sampler's loop alone may use up all of the time.
"""
BY_ITSELF = 75
"""Factor by which the worker has more time after a recording if all targets have ended and the user has not requested
the end.

A build, for example, has names in many large files.
"""
_AGAIN_S = 0.25
UNANSWERED = "the process that unwinds and names did not answer: what was not written yet is lost"
ABANDONED = "ended at the second request: what was not written yet is lost"
TURN_S = 0.02


class Pending:
    """The pending response of the worker to a profile request or to a one-shot task."""

    def __init__(self, receive: Callable[[float], None]) -> None:
        self._receive = receive
        self._pieces: deque[Sequence[Part]] = deque()
        self._data: Sequence[Part] | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._data is not None or self._error is not None

    def add_parts(self, piece: Sequence[Part]) -> None:
        self._pieces.append(piece)

    def finish(self, data: Sequence[Part]) -> None:
        self._data = data

    def fail(self, error: BaseException) -> None:
        self._error = error

    def wait(self) -> None:
        """Wait until the worker has responded to a request.

        Raises:
            WorkerDied: The worker has ended.
            Exception: The error that the worker reported.
        """
        while not self.done:
            self._receive(TURN_S)
        if self._error is not None:
            raise self._error

    def profile(self) -> Profile:
        """Wait for the profile of a request without a sink, and return it. This raises the same errors as wait()."""
        return self.value(Profile)

    def value(self, kind: type[Value]) -> Value:
        """Wait for the worker's response, decode it and return the value. This raises the same errors as wait()."""
        return _value(self.packed(), kind)

    def packed(self) -> Sequence[Part]:
        """Wait for the worker's response, and return it as response_codec.packed_value() encoded it. This raises the
        same errors as wait().
        """
        self.wait()
        assert self._data is not None
        return self._data

    def values(self, kind: type[Value]) -> Iterator[Value]:
        """Yield the results of a worker's one-shot task as they arrive. This raises the same errors as wait()."""
        while True:
            while self._pieces:
                yield _value(self._pieces.popleft(), kind)
            if self.done:
                return self.wait()
            self._receive(TURN_S)


def _value(data: Sequence[Part], kind: type[Value]) -> Value:
    try:
        return response_codec.unpacked_value(data, kind)
    except ResponseRefused as error:
        raise WorkerDied(f"the process that unwinds and names sent no {kind.__name__}: {error}") from None


class _Overtime:
    """The time limit for the work after a recording has ended, first of the sampler's loop and then of the worker.

    Attributes:
        looping: True while the sampler's loop runs.
    """

    def __init__(self, waited_s: Callable[[], float], names_s: float, patient: bool) -> None:
        """Create the limit for the work that is left when a recording ends: unwinding, and resolving names.

        The limit does not run while the processes wait for a processor, so that a busy machine loses no names.

        Args:
            waited_s: Returns how long the sampler's loop and the worker have waited for a processor, in seconds.
            names_s: How long that work may take, in seconds.
            patient: True if the sampler's loop has no time limit, because it waits for a GDB stub.
        """
        self.looping = False
        self._waited_s = waited_s
        self._names_s = names_s
        self._patient = patient
        self._times: float = math.inf
        self._began = math.inf
        self._waited_before_s = 0.0
        self._again_at = math.inf

    @property
    def is_short(self) -> bool:
        """True if the usual time limit applies, because the user waits for the end of the recording."""
        return self._times == 1

    def begin(self, times: int) -> None:
        """Start the clock of the deadline after a recording. A later call can only shorten the time.

        Args:
            times: Factor of the usual time.
        """
        if times < self._times:
            self._times = times
            self._began = time.monotonic()
            self._waited_before_s = self._waited_s()
            self._again_at = self._began

    def take_longer(self, times: float) -> None:
        self._names_s *= times

    def expire_deadline(self) -> None:
        """Make the deadline for the end of the recording pass now."""
        self.begin(1)
        self._names_s = 0.0
        self._again_at = 0.0

    def loop_ended(self) -> None:
        """Note that the sampler's loop has ended, and extend the deadline if the loop waited for a GDB stub."""
        self.looping = False
        missing_s = AFTER_THE_LOOP * self._names_s - self.left_s(time.monotonic())
        if self._patient and missing_s > 0:
            self.lengthen(missing_s)

    def lengthen(self, seconds: float) -> None:
        self._began += seconds
        self._again_at += seconds

    def is_endless(self, now: float) -> bool:
        return now > self._began + GIVE_UP_S and self._had_s(now) > max(GIVE_UP_S, 2 * self._elapsed_s())

    def is_over(self, now: float) -> bool:
        """Return True if the deadline's signal must be sent to the worker now: after the deadline, once every _AGAIN_S.

        The signal must be repeated: one that arrives between two steps of the worker interrupts neither.
        """
        if (self.looping and self._patient) or now <= self._again_at or self.left_s(now) > 0:
            return False
        self._again_at = now + _AGAIN_S
        return True

    def left_s(self, now: float) -> float:
        """Return the remaining time before the deadline in seconds, 0 or less after the deadline."""
        names_s = self._times * self._names_s
        if self.looping and self.is_short and not self._patient:
            names_s *= _LOOPING
        return min(names_s - self._had_s(now), self._elapsed_s() - (now - self._began))

    def _had_s(self, now: float) -> float:
        """Return the seconds that have passed since the clock of the time limit started, without waits
        for a processor.
        """
        return max(now - self._began - (self._waited_s() - self._waited_before_s), 0)

    def _elapsed_s(self) -> float:
        return max(ELAPSED_S, _STARVED * self._times * self._names_s)


class WorkerLink:
    """The sampler's client of one worker process.

    Attributes:
        worker: The worker process.
        packer: Encodes messages.
        taken: Responses to batches that the loop has not handled yet.
        functions: Responses to closed windows that the loop has not handled yet.
        broken: The first error in the worker, None if there was none.
        dead: The error that reports the worker's end, None while it runs.
    """

    def __init__(self, worker: Worker, names_s: float = NAMES_S, patient: bool = False) -> None:
        """Create the client of a worker process.

        Args:
            worker: The worker process.
            names_s: How long the worker may continue after end(), in seconds.
            patient: True if the target is behind a slow connection (a GDB stub).
        """
        self.worker = worker
        self._loop = 0, 0.0
        self._overtime = _Overtime(self._waited_s, names_s, patient)
        self.packer = Packer(worker.notify)
        self.taken: deque[BatchTaken] = deque()
        self.functions: deque[tuple[int, ...]] = deque()
        self.dead: BaseException | None = None
        self.broken: BaseException | None = None
        self._asked: dict[int, Pending] = {}
        self._sinks: list[Sink] = []
        self._heard_at = math.inf
        self._replied_s = 0.0
        self._killed = ""
        self._sending = threading.RLock()
        self._receiving = threading.Lock()

    def ask(self, message: ProfileRequest | Examine) -> Pending:
        """Send a request to the worker. If the worker has ended, the returned response fails."""
        pending = self._asked[message.number] = Pending(self.receive)
        try:
            self.send(message)
        except WorkerDied as error:
            pending.fail(error)
        return pending

    def send(self, message: Message) -> int:
        """Send a message to the worker. Receive responses while the socket buffer is full.

        Returns:
            Number of bytes that were sent.

        Raises:
            WorkerDied: The worker has ended.
        """
        with self._sending:
            if self.dead is not None:
                raise self.dead
            parts, fds = self.packer.pack(message)
            try:
                while not self.worker.channel.try_send(parts, fds):
                    self.worker.wake()
                    self.receive(0)
                    self.worker.channel.wait(True, TURN_S)
            except Closed:
                raise self._died() from None
            finally:
                for fd in fds:
                    os.close(fd)
            self.worker.wake()
            return sum(map(len, parts))

    def number(self, sink: Sink | None) -> int:
        """Return the number by which the worker and the file broker know a sink of profiles, 0 for None."""
        if sink is None:
            return 0
        if sink not in self._sinks:
            self._sinks.append(sink)
            self.worker.notify(NumberedSink(len(self._sinks), sink))
        return self._sinks.index(sink) + 1

    def end(self, urgency: EndUrgency = EndUrgency.PROMPT) -> None:
        """Start the deadline until which the worker may work after the recording's end. A later call can only shorten
        it.

        Any thread or signal handler may call this.
        """
        if urgency is EndUrgency.ABANDON:
            self._kill(ABANDONED)
        elif urgency is EndUrgency.IMMEDIATE:
            self._overtime.expire_deadline()
            self.worker.signal_deadline(is_immediate=True)
        else:
            self._overtime.begin(BY_ITSELF if urgency is EndUrgency.PATIENT else 1)
            self.worker.wait_for()
            if urgency is EndUrgency.PROMPT:
                self.worker.prefer()

    def loop_ended(self) -> None:
        """Note that the collector yields no more batches. Call it after end().

        From now on, processor waits of the loop's thread do not extend the deadline.
        """
        self._overtime.loop_ended()
        self._loop = 0, self._loop_waited_s()

    def begin_to_wait(self) -> None:
        """Extend the worker's deadline by the time since the last response, because the caller has only now begun to
        wait.
        """
        self._overtime.lengthen(max(time.monotonic() - self._heard_at, 0))

    def begin_loop(self) -> None:
        """Note that the sampler's loop starts in this thread, whose waits for a processor extend deadlines."""
        tid = threading.get_native_id()
        self._loop = tid, procfs.read_waited_s(os.getpid(), tid)
        self._overtime.looping = True

    def waits(self) -> dict[int, float]:
        """Return the time that each thread of this process and of the worker has waited for a processor, in seconds."""
        return procfs.read_waits(os.getpid()) | procfs.read_waits(self.worker.pid)

    def activity(self, awaits_worker: bool) -> dict[int, float]:
        """Return for how long the sampler's loop was not blocked, in seconds by tid: it ran or waited for a processor.

        Other threads of the sampler and the worker may hold a lock that the loop needs, so the time that they wait for
        a processor is included.

        Args:
            awaits_worker: True if the loop waits for the worker: its threads may then run, too.
        """
        found = procfs.read_waits(os.getpid()) | procfs.read_waits(self.worker.pid, with_runs=awaits_worker)
        if self._loop[0]:
            found[self._loop[0]] = procfs.read_waited_s(os.getpid(), self._loop[0], with_runs=True)
        return found

    def _waited_s(self) -> float:
        return self.worker.waited_s() + self._loop_waited_s() + self._replied_s

    def _loop_waited_s(self) -> float:
        tid, seconds = self._loop
        return max(procfs.read_waited_s(os.getpid(), tid) - seconds, 0) if tid else seconds

    def take_longer(self, times: float) -> None:
        """Multiply the time limit for the worker's work after the end of the recording by a factor."""
        self._overtime.take_longer(times)

    def _press(self) -> None:
        now = time.monotonic()
        if self._overtime.is_short:
            self.worker.prefer()
        if self._overtime.is_endless(now) and not self._killed:
            self._kill(UNANSWERED)
        elif self._overtime.is_over(now):
            self.worker.signal_deadline()

    def receive(self, timeout_s: float) -> None:
        """Receive all pending responses of the worker. One thread at a time does so for all threads.

        Args:
            timeout_s: Maximum wait for the first response, in seconds.
        """
        self._press()
        if self._asked:
            self.worker.wake()
        if not self._receiving.acquire(timeout=max(timeout_s, 0) or -1 if timeout_s else 0.001):
            return
        try:
            while self.dead is None and (received := self.worker.channel.receive(timeout_s)) is not None:
                for fd in received.fds:
                    os.close(fd)
                answer = response_codec.unpack(received.parts)
                self._received(answer)
                if isinstance(answer, ErrandPiece):
                    break  # the caller uses a result before the next one is received; the worker waits meanwhile
                timeout_s = 0
        except Closed:
            self._died()
        except ResponseRefused as error:
            self.worker.kill()
            self._died().add_note(str(error))
        finally:
            self._heard_at = time.monotonic()
            self._receiving.release()

    def _received(self, answer: Answer) -> None:
        match answer:
            case BatchTaken():
                self.taken.append(answer)
            case ErrandPiece(number, data):
                if (pending := self._asked.get(number)) is not None:
                    pending.add_parts(data)
            case Done(number, functions, data):
                if functions is not None:
                    self.functions.append(functions)
                if (pending := self._asked.pop(number, None)) is not None:
                    pending.finish(data)
            case RequestFailed(number):
                if (pending := self._asked.pop(number, None)) is not None:
                    pending.fail(answer.error)
                else:
                    self.broken = self.broken or answer.error
            case SamplerCall():
                self._reply(answer)

    def _reply(self, call: SamplerCall) -> None:
        """Answer the worker's question about an address space whose memory belongs to no process of this machine."""
        space, began = self.packer.space(call.space), time.monotonic()
        value: object = None
        if space is not None and space.image is None:
            module = next((module for module in space.modules if module.start == call.at), None)
            try:
                if call.what == "read":
                    value = space.read(call.at, call.size)
                elif call.what == "files" and space.files is not None and module is not None:
                    files = list(space.files(module))
                    self.worker.notify(KnownFiles(tuple(path for path, _ in files)))
                    value = files
                elif call.what == "stated" and space.stated is not None and module is not None:
                    value = space.stated(module)
            except (PyprofError, OSError):
                value = None
        self._replied_s += time.monotonic() - began
        self.send(Response(value))

    def _died(self) -> BaseException:
        if self.dead is None:
            self.dead = WorkerDied(self._killed) if self._killed else self.worker.died()
            self.broken = self.broken or self.dead
            for pending in list(self._asked.values()):  # atomic: it allocates no tuples. Other threads send requests
                pending.fail(self.dead)
            self._asked.clear()
        return self.dead

    def _kill(self, why: str) -> None:
        self._killed = why
        self.worker.kill()

    def leave(self) -> bool:
        """Disconnect from the worker because the sampler's loop does not end. The worker then writes what it has.

        Returns:
            True if the worker has ended.
        """
        self.end()
        now = time.monotonic()
        until, ended = now + GIVE_UP_S, self.worker.leave(max(self._overtime.left_s(now), 0))
        while not ended and time.monotonic() < until:
            self.worker.signal_deadline()
            ended = self.worker.leave(_AGAIN_S)
        return ended


class Examiner:
    """A worker that runs one-shot tasks, from its start to the end of the `with` statement."""

    def __init__(self, start: Start, confined: bool) -> None:
        """Start a worker for one-shot tasks.

        Args:
            start: Starts a worker.
            confined: True if the worker gives up its rights before it runs a task.
        """
        self._confined = confined
        self._worker = start(confined)
        self._link = WorkerLink(self._worker)
        self._numbers = itertools.count(1)

    def notify(self, notice: AnyObjectFile | KnownFiles | KnownFolder | KnownProcess) -> None:
        """Tell the file broker which files it may open for the worker."""
        self._worker.notify(notice)

    def pieces(self, errand: OneShotTask, kind: type[Value]) -> Iterator[Value]:
        """Run a one-shot task in the worker and yield its results as they arrive.

        Raises:
            WorkerDied: The worker has ended.
            Exception: What the task raises.
        """
        return self._link.ask(Examine(next(self._numbers), self._confined, errand)).values(kind)

    def one(self, errand: OneShotTask, kind: type[Value]) -> Value:
        """Run a one-shot task that has exactly one result in the worker, and return the result."""
        (piece,) = self.pieces(errand, kind)
        return piece

    def symbols(self, diagnostics: Diagnostics) -> InterpreterSymbolClient:
        """Return a reader of interpreter symbols in files, which the worker reads. It works before and after tasks."""
        return InterpreterSymbolClient(self._worker.questions, self._worker.notify, diagnostics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._worker.close(patience_s=0)
