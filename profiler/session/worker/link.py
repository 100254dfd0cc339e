"""The sampler's end of the socket to the worker: messages, answers, and the end of the worker.

Several threads may send and wait for answers. What an answer means is for the loop: `taken` and `functions` queue it
there.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from pyprof.collectors.linux import procfs
from pyprof.errors import PyprofError
from pyprof.exporters.base import Sink
from pyprof.model.profile import Profile
from pyprof.session.worker import answers
from pyprof.session.worker.answers import (
    Answer,
    AnswerRefused,
    AskFailed,
    BatchTaken,
    Done,
    ErrandPiece,
    SamplerCall,
    Value,
)
from pyprof.session.worker.channel import Closed, Part
from pyprof.session.worker.keeper import KnownFiles, NumberedSink
from pyprof.session.worker.messages import Ask, Examine, Message, Reply
from pyprof.session.worker.process import Worker, WorkerDied
from pyprof.session.worker.wire import Packer

NAMES_S = 0.7
"""So long after the end was asked for the worker may unwind and name: then it answers with what it has."""
_LOOPING = 0.7
"""Where the sampler's loop goes on after this part of it, the worker takes its batches, and names nothing new."""
ELAPSED_S = 10.0
"""Time in which the sampler's loop or the worker waits for a processor or for a stub does not count: this long at most.
"""
_STARVED = 2
"""A worker that has more time than that gets so many times as long."""
GIVE_UP_S = 60.0
"""A worker that does not answer even then is killed, waits for a processor not counted."""
AFTER_THE_LOOP = 0.75
"""Behind a stub this part of it at least once the sampler's loop has ended, which alone may take all of it there."""
BY_ITSELF = 75
"""So many times as long where nobody asked the recording to end: a build has names in many large files."""
_AGAIN_S = 0.25
UNANSWERED = "the process that unwinds and names did not answer: what was not written yet is lost"
ABANDONED = "ended at the second request: what was not written yet is lost"
TURN_S = 0.02


class Pending:
    """A profile that was asked for, or the pieces of an errand."""

    def __init__(self, receive: Callable[[float], None]) -> None:
        self._receive = receive
        self._pieces: deque[Sequence[Part]] = deque()
        self._data: Sequence[Part] | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._data is not None or self._error is not None

    def add(self, piece: Sequence[Part]) -> None:
        self._pieces.append(piece)

    def finish(self, data: Sequence[Part]) -> None:
        self._data = data

    def fail(self, error: BaseException) -> None:
        self._error = error

    def wait(self) -> None:
        """Until the worker has answered. Raises what went wrong there, WorkerDied."""
        while not self.done:
            self._receive(TURN_S)
        if self._error is not None:
            raise self._error

    def profile(self) -> Profile:
        """Of an Ask without a sink; raises like wait()."""
        return self.value(Profile)

    def value(self, kind: type[Value]) -> Value:
        """The answer; raises like wait()."""
        return _value(self.packed(), kind)

    def packed(self) -> Sequence[Part]:
        """The answer as answers.packed_value() gave it; raises like wait()."""
        self.wait()
        assert self._data is not None
        return self._data

    def values(self, kind: type[Value]) -> Iterator[Value]:
        """The pieces of an errand, as they come; raises like wait()."""
        while True:
            while self._pieces:
                yield _value(self._pieces.popleft(), kind)
            if self.done:
                return self.wait()
            self._receive(TURN_S)


def _value(data: Sequence[Part], kind: type[Value]) -> Value:
    try:
        return answers.unpacked_value(data, kind)
    except AnswerRefused as error:
        raise WorkerDied(f"the process that unwinds and names sent no {kind.__name__}: {error}") from None


class _Overtime:
    """One clock for what is still done once nothing is recorded any more, by the sampler and then by the worker, and
    when that is enough. waited_s: how long they have waited for a processor, so far. looping: the sampler's loop runs.
    patient: the sampler's loop has no limit of its own, because it waits for a stub.
    """

    def __init__(self, waited_s: Callable[[], float], names_s: float, patient: bool) -> None:
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
        """Somebody waits."""
        return self._times == 1

    def begin(self, times: int) -> None:
        """times: as long as usual. What begins is not made longer later, only shorter."""
        if times < self._times:
            self._times = times
            self._began = time.monotonic()
            self._waited_before_s = self._waited_s()
            self._again_at = self._began

    def take_longer(self, times: float) -> None:
        self._names_s *= times

    def hasten(self) -> None:
        """No time is left from now on."""
        self.begin(1)
        self._names_s = 0.0
        self._again_at = 0.0

    def loop_ended(self) -> None:
        """The sampler has done its part, perhaps late."""
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
        """True again and again, but not each time: a signal that comes between two steps of the worker ends neither."""
        if (self.looping and self._patient) or now <= self._again_at or self.left_s(now) > 0:
            return False
        self._again_at = now + _AGAIN_S
        return True

    def left_s(self, now: float) -> float:
        """Not more than 0 where it is enough."""
        names_s = self._times * self._names_s
        if self.looping and self.is_short and not self._patient:
            names_s *= _LOOPING
        return min(names_s - self._had_s(now), self._elapsed_s() - (now - self._began))

    def _had_s(self, now: float) -> float:
        """Return the seconds since the clock began, waits not counted."""
        return max(now - self._began - (self._waited_s() - self._waited_before_s), 0)

    def _elapsed_s(self) -> float:
        return max(ELAPSED_S, _STARVED * self._times * self._names_s)


class WorkerLink:
    """taken, functions: answers that the loop has not used yet, of batches and of Asks. broken: what went wrong in the
    worker, None where nothing did; dead: what its end is reported as.
    """

    def __init__(self, worker: Worker, names_s: float = NAMES_S, patient: bool = False) -> None:
        """names_s: how long the worker may go on after end(). patient: what is recorded is behind a slow line."""
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

    def ask(self, message: Ask | Examine) -> Pending:
        """A worker that has ended makes the result fail."""
        pending = self._asked[message.number] = Pending(self.receive)
        try:
            self.send(message)
        except WorkerDied as error:
            pending.fail(error)
        return pending

    def send(self, message: Message) -> int:
        """Bytes. Receives what comes while the worker has no room. Raises WorkerDied."""
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
        """By which the worker and the keeper know a sink; 0 for none."""
        if sink is None:
            return 0
        if sink not in self._sinks:
            self._sinks.append(sink)
            self.worker.notify(NumberedSink(len(self._sinks), sink))
        return self._sinks.index(sink) + 1

    def end(self, requested: bool = True) -> None:
        """Nothing is recorded any more: the worker's time runs out. From any thread, or a signal handler.

        requested: somebody waits for it; else all targets have ended.
        """
        self._overtime.begin(1 if requested else BY_ITSELF)
        self.worker.wait_for()
        if requested:
            self.worker.prefer()

    def loop_ended(self) -> None:
        """After end(): the collector yields no more batches. That its thread waits from now on holds nobody up."""
        self._overtime.loop_ended()
        self._loop = 0, self._loop_waited_s()

    def begin_to_wait(self) -> None:
        """Somebody waits only now: the time since its last answer is not taken from the worker."""
        self._overtime.lengthen(max(time.monotonic() - self._heard_at, 0))

    def begin_loop(self) -> None:
        """The sampler's, in this thread."""
        tid = threading.get_native_id()
        self._loop = tid, procfs.waited_s(os.getpid(), tid)
        self._overtime.looping = True

    def waits(self) -> dict[int, float]:
        """Return for each thread of this process and the worker how long it has waited for a processor, in seconds."""
        return procfs.waits(os.getpid()) | procfs.waits(self.worker.pid)

    def _waited_s(self) -> float:
        return self.worker.waited_s() + self._loop_waited_s() + self._replied_s

    def _loop_waited_s(self) -> float:
        tid, seconds = self._loop
        return max(procfs.waited_s(os.getpid(), tid) - seconds, 0) if tid else seconds

    def take_longer(self, times: float) -> None:
        """The worker may go on for as many times as long after end()."""
        self._overtime.take_longer(times)

    def hasten(self) -> None:
        """The worker answers with what it has. From any thread, or a signal handler."""
        self._overtime.hasten()
        self.worker.hasten()

    def _press(self) -> None:
        now = time.monotonic()
        if self._overtime.is_short:
            self.worker.prefer()
        if self._overtime.is_endless(now) and not self._killed:
            self._kill(UNANSWERED)
        elif self._overtime.is_over(now):
            self.worker.hurry()

    def receive(self, timeout_s: float) -> None:
        """Take all answers that there are; one thread at a time does so for all."""
        self._press()
        if self._asked:
            self.worker.wake()
        if not self._receiving.acquire(timeout=max(timeout_s, 0) or -1 if timeout_s else 0.001):
            return
        try:
            while self.dead is None and (received := self.worker.channel.receive(timeout_s)) is not None:
                for fd in received.fds:
                    os.close(fd)
                answer = answers.unpack(received.parts)
                self._received(answer)
                if isinstance(answer, ErrandPiece):
                    break  # used before the next one is taken: the worker waits meanwhile
                timeout_s = 0
        except Closed:
            self._died()
        except AnswerRefused as error:
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
                    pending.add(data)
            case Done(number, functions, data):
                if functions is not None:
                    self.functions.append(functions)
                if (pending := self._asked.pop(number, None)) is not None:
                    pending.finish(data)
            case AskFailed(number):
                if (pending := self._asked.pop(number, None)) is not None:
                    pending.fail(answer.error)
                else:
                    self.broken = self.broken or answer.error
            case SamplerCall():
                self._reply(answer)

    def _reply(self, call: SamplerCall) -> None:
        """To what the worker asks of an address space whose memory is no process's of this machine."""
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
        self.send(Reply(value))

    def _died(self) -> BaseException:
        if self.dead is None:
            self.dead = WorkerDied(self._killed) if self._killed else self.worker.died()
            self.broken = self.broken or self.dead
            for pending in self._asked.values():
                pending.fail(self.dead)
            self._asked.clear()
        return self.dead

    def abandon(self) -> None:
        """Nobody wants the answers any more. From any thread, or a signal handler."""
        self._kill(ABANDONED)

    def _kill(self, why: str) -> None:
        self._killed = why
        self.worker.kill()

    def leave(self) -> bool:
        """The loop does not end: the worker writes what it has, as if this process were killed. Has it?"""
        self.end()
        now = time.monotonic()
        until, ended = now + GIVE_UP_S, self.worker.leave(max(self._overtime.left_s(now), 0))
        while not ended and time.monotonic() < until:
            self.worker.hurry()
            ended = self.worker.leave(_AGAIN_S)
        return ended
