"""The ways to stop and resume a GDB stub's target: all threads at once, one by one, or by single steps.

collector.py chooses the way:

    NonStop    each thread is stopped alone while it is read; the others run on
    AllStop    Ctrl-C stops everything, everything is read, everything continues
    Stepping   the target runs only by single steps, N between two samples: for stubs that ignore Ctrl-C

Signals that arrive for the target are delivered to it. All methods may raise ConnectionLost and RemoteError.

In non-stop mode (GDB manual, "Remote Non-Stop") the stub reports a stop as a notification at any time. A notification
is the head of a queue in the stub. vStopped acknowledges it and requests the next entry, up to OK. A thread does not
resume before its stop is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pyprof.collectors.base import PauseLog
from pyprof.collectors.gdb_stub.stub_requests import StopReply, Stub, ThreadId
from pyprof.errors import ConnectionLost, NotTraceable, RemoteError
from pyprof.model.loss_reason_texts import Note, make_note

HALT_TIMEOUT_S = 3.0
POLL_INTERVAL_S = 0.02
_MAX_STOPS = 1000
SIGNAL_0, SIGINT, SIGTRAP, SIGSTOP = 0, 2, 5, 17
"""Signal numbers of the GDB remote protocol, some of which differ from the kernel's."""

ListThreads = Callable[[], list[ThreadId]]


class Control(Protocol):
    """The protocol of a way to stop and resume the target of a GDB stub (see NonStop, AllStop and Stepping).

    Attributes:
        ended: True if the target has ended.
        pauses: Duration of each stop in ns.
        note: A note for the summary, or None.
    """

    ended: bool
    pauses: PauseLog
    note: Note | None
    paced: bool
    """True if the target runs for a span of time between two samples, False if it runs for a number of single steps."""

    def start_target(self) -> None:
        """Let the GDB stub's target run for the first time after the connection was made."""
        ...

    def run_until(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        """Let the target run until a monotonic time in ns, until stopping() returns True, or until the target
        ends. Stepping ignores the time and makes its number of steps.
        """
        ...

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        """Yield the GDB stub's threads one by one. Each thread is stopped while the caller handles it.

        Args:
            threads: Function that lists the target's threads. It is called when its requests to the stub are
                possible.
        """
        ...

    def make_memory_readable(self) -> AbstractContextManager[None]:
        """Return a context in which the target's memory can be read. If necessary the target is stopped meanwhile."""
        ...

    def release_target(self) -> None:
        """Detach from the GDB stub's target, so that it runs on."""
        ...


def await_first_stop(stub: Stub) -> StopReply | None:
    """Return the stop that the GDB stub reports after the connection was made, or None if the target runs.

    Raises:
        NotTraceable: The stub has no target.
    """
    packet = stub.link.request(b"?")
    if packet in (b"OK", b""):
        return None
    reply = StopReply.parse(packet)
    if reply.is_end:
        raise NotTraceable(
            f"the stub at {stub.link.address} holds no program", "gdbserver :PORT PROGRAM, or gdbserver --attach"
        )
    return reply


def is_interrupt_ignored(stub: Stub) -> bool:
    """Return True if the stub is known to ignore Ctrl-C while its program runs (qemu-user)."""
    return bool(stub.link.request(b"qqemu.sstepbits")) and stub.has_feature("qXfer:auxv:read")


def build_resume_packet(stub: Stub, action: str, signal: int = 0, thread: ThreadId | None = None) -> bytes:
    """Return a packet that makes the GDB stub resume its target.

    Args:
        stub: The stub.
        action: c to continue or s to step.
        signal: GDB's number of a signal to deliver to `thread`, 0 for none. All other threads just continue.
        thread: The thread that gets the signal.
    """
    verb = f"{action.upper()}{signal:02x}" if signal else action
    if action in stub.actions:
        if signal and thread is not None:
            return f"vCont;{verb}:{thread.text};{action}".encode()
        return f"vCont;{verb}".encode()
    return verb.encode()


def await_stop(stub: Stub, within_s: float) -> StopReply | None:
    """Return the GDB stub's next stop reply, or None if there is none within within_s seconds. Console output
    and file requests of the target are skipped.
    """
    until = time.monotonic() + within_s
    while True:
        packet = stub.link.poll(max(until - time.monotonic(), 0.0))
        if packet is None:
            return None
        if packet[:1] == b"F":
            stub.link.send(b"F-1,16")  # EINVAL: this client serves no files
        elif packet[:1] != b"O":
            stub.forget_selection()
            return StopReply.parse(packet)


def detach_from_target(stub: Stub, pid: int) -> None:
    """Detach the GDB stub from its stopped target.

    Stubs without processes, such as debug probes, do not promise that the packet D resumes the target. They
    get a continue packet instead.
    """
    if not stub.multiprocess:
        stub.link.send(build_resume_packet(stub, "c"))
        return
    if stub.link.request(f"D;{pid:x}".encode()) != b"OK":
        stub.link.send(build_resume_packet(stub, "c"))


class AllStop:
    """The Control of a GDB stub's target that stops all threads at once, by Ctrl-C. With `hold` the target is
    never resumed until it is released (for a dump).
    """

    paced = True

    def __init__(self, stub: Stub, pid: int, hold: bool) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note: Note | None = None
        self._stub = stub
        self._pid = pid
        self._hold = hold
        self._running = False
        self._deaf = False
        self._pending: tuple[int, ThreadId | None] = (0, None)
        self._began_ns = time.monotonic_ns()
        stub.pass_signals(frozenset({SIGINT, SIGTRAP, SIGSTOP}))

    def start_target(self) -> None:
        if not self._hold:
            self._resume()
            self.pauses.add_pause(time.monotonic_ns() - self._began_ns)

    def run_until(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        stops = 0
        while self._running and not stopping() and not self.ended:
            left = (until_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            stop = await_stop(self._stub, min(left, POLL_INTERVAL_S))
            if stop is not None and self._took(stop):
                stops += 1
                if stops > _MAX_STOPS:
                    raise RemoteError(f"the target stops on its own again and again (signal {stop.signal})")
                self._resume()

    def _took(self, stop: StopReply) -> bool:
        """Store the reason of a stop of the GDB stub's target. Return False if the target has ended."""
        self._running = False
        self._pending = (0, None)
        if stop.is_end:
            self.ended = True
            return False
        if stop.signal not in (SIGNAL_0, SIGTRAP):
            self._pending = (stop.signal, stop.thread)
        return True

    def _halt(self) -> None:
        if not self._running:
            return
        self._stub.link.send_interrupt()
        stop = await_stop(self._stub, HALT_TIMEOUT_S)
        if stop is None:
            self._deaf = True
            raise RemoteError(
                f"the stub at {self._stub.link.address} does not answer Ctrl-C while the target runs",
                "--step N takes samples by single-stepping instead",
            )
        self._took(stop)
        if stop.signal == SIGINT:  # caused by this client
            self._pending = (0, None)

    def _resume(self) -> None:
        if self._running or self.ended:
            return
        signal, thread = self._pending
        self._pending = (0, None)
        self._stub.link.send(build_resume_packet(self._stub, "c", signal, thread))
        self._running = True

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        began, ran = time.monotonic_ns(), self._running
        self._halt()
        if self.ended:
            return
        try:
            yield from threads()
        finally:
            if ran:
                self._resume()
                self.pauses.add_pause(time.monotonic_ns() - began)

    @contextmanager
    def make_memory_readable(self) -> Iterator[None]:
        if not self._running:
            yield
            return
        began = time.monotonic_ns()
        self._halt()
        try:
            yield
        finally:
            self._resume()
            self.pauses.add_pause(time.monotonic_ns() - began)

    def release_target(self) -> None:
        if self.ended or self._deaf:
            return
        self._halt()
        if not self.ended:
            signal, thread = self._pending
            if signal:  # a D packet cannot carry it
                self._stub.link.send(build_resume_packet(self._stub, "c", signal, thread))
                self._running = True
                self._halt()
            detach_from_target(self._stub, self._pid)


class Stepping:
    """The Control of a target that runs only by single steps of the GDB stub, for stubs that ignore Ctrl-C.

    Args:
        stub: The stub.
        pid: The target's pid.
        steps: Number of steps between two samples.

    Attributes:
        stepped: The thread that made the last step.
    """

    paced = False

    def __init__(self, stub: Stub, pid: int, steps: int) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note: Note | None = make_note("by_stepping", steps=steps)
        self.stepped: ThreadId | None = None
        self._stub = stub
        self._pid = pid
        self._steps = steps
        self._pending: tuple[int, ThreadId | None] = (0, None)

    def start_target(self) -> None:
        """Ignore the call, because a target that is stepped runs only in run_until()."""

    def run_until(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        for _ in range(self._steps):
            if stopping() or self.ended:
                return
            self._step()

    def _step(self) -> None:
        signal, thread = self._pending
        self._stub.link.send(build_resume_packet(self._stub, "s", signal, thread))
        stop = await_stop(self._stub, HALT_TIMEOUT_S)
        if stop is None:
            raise ConnectionLost(f"the stub at {self._stub.link.address} does not come back from a single step")
        self.ended = stop.is_end
        self.stepped = stop.thread
        signal = stop.signal if stop.signal not in (SIGNAL_0, SIGTRAP) else 0
        self._pending = (signal, stop.thread)

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        yield from threads()

    def make_memory_readable(self) -> AbstractContextManager[None]:
        return nullcontext()

    def release_target(self) -> None:
        if not self.ended:
            detach_from_target(self._stub, self._pid)


MAX_QUEUED = 1 << 16


class NonStop:
    """The Control of a GDB stub's target that stops threads one by one. The stub has accepted QNonStop:1.

    Args:
        stub: The stub.
        pid: The target's pid.
        stop: The stub's answer to `?`, None if no thread was stopped. Threads that were stopped then are
            resumed.
    """

    paced = True

    def __init__(self, stub: Stub, pid: int, stop: StopReply | None) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note: Note | None = None
        self._stub = stub
        self._pid = pid
        self._queued = False
        self._unwanted: list[StopReply] = []
        self._wanted: dict[str, None] = {}
        self._arrived: dict[str, StopReply] = {}
        stub.pass_signals(frozenset())
        if stop is not None:
            self._sort(stop)
            self._queued = True
            self._empty_queue()

    def start_target(self) -> None:
        """Ignore the call, because a target in non-stop mode already runs."""

    def run_until(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        while not stopping() and not self.ended:
            left = (until_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            self._hear(min(left, POLL_INTERVAL_S))

    def _hear(self, within_s: float) -> None:
        """Wait at most within_s seconds until the GDB stub announces the stop of a thread. Store that stop,
        and those that follow in the stub's queue.
        """
        note = self._stub.link.poll_notification(within_s)
        if note is None or not note.startswith(b"Stop:"):
            return
        stop = StopReply.parse(note[5:])
        self._sort(stop)
        self._queued = True
        if stop.thread is None or stop.thread.text not in self._arrived:
            self._empty_queue()
        # otherwise the requested thread is stopped: the queue waits until it is resumed

    def _empty_queue(self) -> None:
        if self._queued:
            self._queued = False
            self._drain(self._stub.link.request(b"vStopped"))

    def _drain(self, packet: bytes) -> None:
        """Store the stops in the GDB stub's queue, of which `packet` is the next one. Then resume threads
        that have stopped without a request.
        """
        for _ in range(MAX_QUEUED):
            if packet in (b"OK", b"") or packet[:1] == b"E":
                break
            self._sort(StopReply.parse(packet))
            packet = self._stub.link.request(b"vStopped")
        else:
            raise RemoteError("the stub reports stops without end")
        unwanted, self._unwanted = self._unwanted, []
        for stop in unwanted:
            self._send_on(stop)

    def _sort(self, stop: StopReply) -> None:
        if stop.kind in "WX":
            self.ended = True
        elif stop.thread is not None:
            if stop.thread.text in self._wanted:
                self._arrived[stop.thread.text] = stop
            else:
                self._unwanted.append(stop)

    def _send_on(self, stop: StopReply) -> None:
        """Resume a stopped thread of the GDB stub's target, and deliver its pending signal if it has one."""
        if stop.thread is None:
            return
        action = f"C{stop.signal:02x}" if stop.signal not in (SIGNAL_0, SIGTRAP, SIGSTOP) else "c"
        resume = f"vCont;{action}:{stop.thread.text}".encode()
        if self._queued:  # a thread whose stop is not acknowledged does not resume
            self._queued = False
            self._drain(self._stub.link.request_all([b"vStopped", resume])[0])
        else:
            self._stub.link.request(resume)

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        for thread in threads():
            if self.ended:
                return
            began = time.monotonic_ns()
            stop = self._stop(thread)
            if stop is None:
                continue
            try:
                yield thread
            finally:
                self._send_on(stop)
                self.pauses.add_pause(time.monotonic_ns() - began)

    def _stop(self, thread: ThreadId) -> StopReply | None:
        """Stop a thread of the GDB stub's target. Return None if it has ended."""
        self._wanted[thread.text] = None
        try:
            if self._stub.link.request(f"vCont;t:{thread.text}".encode()) != b"OK":
                return None
            until = time.monotonic() + HALT_TIMEOUT_S
            while thread.text not in self._arrived:
                self._hear(POLL_INTERVAL_S)
                if thread.text in self._arrived:
                    break
                if self.ended or not self._stub.is_alive(thread):
                    return None
                if time.monotonic() > until:
                    raise RemoteError(f"the stub does not stop thread {thread.text}")
            return self._arrived.pop(thread.text)
        finally:
            del self._wanted[thread.text]

    def make_memory_readable(self) -> AbstractContextManager[None]:
        return nullcontext()

    def release_target(self) -> None:
        if not self.ended:
            self._stub.link.request(f"D;{self._pid:x}".encode())
