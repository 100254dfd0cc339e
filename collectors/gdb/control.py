"""Stopping and resuming through a stub. Three ways, one protocol; connect.py chooses.

    NonStop    each thread is stopped alone while it is read; the others run on (non_stop.py)
    AllStop    Ctrl-C stops everything, everything is read, everything goes on
    Stepping   nothing runs but by single steps, N between two samples: for stubs that no Ctrl-C reaches

Signals that arrive for the target are delivered to it. Raises ConnectionLost, RemoteError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pyprof.collectors.gdb.stub import StopReply, Stub, ThreadId
from pyprof.errors import ConnectionLost, NotTraceable, RemoteError
from pyprof.model.pauses import PauseLog
from pyprof.model.reasons import said

HALT_S = 3.0
SLICE_S = 0.02
_MOST_STOPS = 1000
SIGNAL_0, SIGINT, SIGTRAP, SIGSTOP = 0, 2, 5, 17
"""GDB's numbers of signals, which are not the kernel's."""

ListThreads = Callable[[], list[ThreadId]]


class Control(Protocol):
    """ended: the target is no more. pauses: ns, one a stop. note: what the reader of the summary should know."""

    ended: bool
    pauses: PauseLog
    note: str
    paced: bool
    """Does rest() follow the clock?"""

    def go(self) -> None:
        """Let the target run for the first time."""
        ...

    def rest(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        """Let the target run until a monotonic time (stepping: for its steps), stopping() or its end."""
        ...

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        """Threads that stand still while they are yielded."""
        ...

    def reachable(self) -> AbstractContextManager[None]:
        """While memory may be read."""
        ...

    def leave(self) -> None:
        """Let go of the target: it runs on without us."""
        ...


def first_stop(stub: Stub) -> StopReply | None:
    """What the target does at the beginning; None if it runs. Raises NotTraceable where the stub has no target."""
    packet = stub.link.ask(b"?")
    if packet in (b"OK", b""):
        return None
    reply = StopReply.parse(packet)
    if reply.ended:
        raise NotTraceable(
            f"the stub at {stub.link.address} holds no program", "gdbserver :PORT PROGRAM, or gdbserver --attach"
        )
    return reply


def no_interrupt(stub: Stub) -> bool:
    """Is this a stub known to ignore Ctrl-C while its program runs (qemu-user)?"""
    return bool(stub.link.ask(b"qqemu.sstepbits")) and stub.has("qXfer:auxv:read")


def resume_packet(stub: Stub, action: str, signal: int = 0, thread: ThreadId | None = None) -> bytes:
    """action: c or s. signal: GDB's number, delivered to the thread; all others just go on."""
    verb = f"{action.upper()}{signal:02x}" if signal else action
    if action in stub.actions:
        if signal and thread is not None:
            return f"vCont;{verb}:{thread.text};{action}".encode()
        return f"vCont;{verb}".encode()
    return verb.encode()


def await_stop(stub: Stub, within_s: float) -> StopReply | None:
    """The next stop reply; console output and file requests of the target are passed over."""
    until = time.monotonic() + within_s
    while True:
        packet = stub.link.poll(max(until - time.monotonic(), 0.0))
        if packet is None:
            return None
        if packet[:1] == b"F":
            stub.link.send(b"F-1,16")  # EINVAL: we serve no files
        elif packet[:1] != b"O":
            stub.forget_selection()
            return StopReply.parse(packet)


def detach(stub: Stub, pid: int) -> None:
    """From a target that stands still. Of a stub without processes (probes) none says that D resumes: continue it."""
    if not stub.multiprocess:
        stub.link.send(resume_packet(stub, "c"))
        return
    if stub.link.ask(f"D;{pid:x}".encode()) != b"OK":
        stub.link.send(resume_packet(stub, "c"))


class AllStop:
    """hold: the target is never resumed between two stops (a dump)."""

    paced = True

    def __init__(self, stub: Stub, pid: int, hold: bool) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note = ""
        self._stub = stub
        self._pid = pid
        self._hold = hold
        self._running = False
        self._deaf = False
        self._pending: tuple[int, ThreadId | None] = (0, None)
        self._began_ns = time.monotonic_ns()
        stub.pass_signals(frozenset({SIGINT, SIGTRAP, SIGSTOP}))

    def go(self) -> None:
        if not self._hold:
            self._resume()
            self.pauses.add(time.monotonic_ns() - self._began_ns)

    def rest(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        stops = 0
        while self._running and not stopping() and not self.ended:
            left = (until_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            stop = await_stop(self._stub, min(left, SLICE_S))
            if stop is not None and self._took(stop):
                stops += 1
                if stops > _MOST_STOPS:
                    raise RemoteError(f"the target stops by itself all the time (signal {stop.signal})")
                self._resume()

    def _took(self, stop: StopReply) -> bool:
        """Note a stop. False if the target ended."""
        self._running = False
        self._pending = (0, None)
        if stop.ended:
            self.ended = True
            return False
        if stop.signal not in (SIGNAL_0, SIGTRAP):
            self._pending = (stop.signal, stop.thread)
        return True

    def _halt(self) -> None:
        if not self._running:
            return
        self._stub.link.send_interrupt()
        stop = await_stop(self._stub, HALT_S)
        if stop is None:
            self._deaf = True
            raise RemoteError(
                f"the stub at {self._stub.link.address} does not answer Ctrl-C while the target runs",
                "--step N takes samples by single-stepping instead",
            )
        self._took(stop)
        if stop.signal == SIGINT:  # our own
            self._pending = (0, None)

    def _resume(self) -> None:
        if self._running or self.ended:
            return
        signal, thread = self._pending
        self._pending = (0, None)
        self._stub.link.send(resume_packet(self._stub, "c", signal, thread))
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
                self.pauses.add(time.monotonic_ns() - began)

    @contextmanager
    def reachable(self) -> Iterator[None]:
        if not self._running:
            yield
            return
        began = time.monotonic_ns()
        self._halt()
        try:
            yield
        finally:
            self._resume()
            self.pauses.add(time.monotonic_ns() - began)

    def leave(self) -> None:
        if self.ended or self._deaf:
            return
        self._halt()
        if not self.ended:
            signal, thread = self._pending
            if signal:  # D has no place for it
                self._stub.link.send(resume_packet(self._stub, "c", signal, thread))
                self._running = True
                self._halt()
            detach(self._stub, self._pid)


class Stepping:
    """steps: between two samples. stepped: the thread that made the last one."""

    paced = False

    def __init__(self, stub: Stub, pid: int, steps: int) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note = said("by_stepping", steps=steps)
        self.stepped: ThreadId | None = None
        self._stub = stub
        self._pid = pid
        self._steps = steps
        self._pending: tuple[int, ThreadId | None] = (0, None)

    def go(self) -> None:
        """It runs by rest() only."""

    def rest(self, until_ns: int, stopping: Callable[[], bool]) -> None:
        for _ in range(self._steps):
            if stopping() or self.ended:
                return
            self._step()

    def _step(self) -> None:
        signal, thread = self._pending
        self._stub.link.send(resume_packet(self._stub, "s", signal, thread))
        stop = await_stop(self._stub, HALT_S)
        if stop is None:
            raise ConnectionLost(f"the stub at {self._stub.link.address} does not come back from a single step")
        self.ended = stop.ended
        self.stepped = stop.thread
        signal = stop.signal if stop.signal not in (SIGNAL_0, SIGTRAP) else 0
        self._pending = (signal, stop.thread)

    def stopped_threads(self, threads: ListThreads) -> Generator[ThreadId, None, None]:
        yield from threads()

    def reachable(self) -> AbstractContextManager[None]:
        return nullcontext()

    def leave(self) -> None:
        if not self.ended:
            detach(self._stub, self._pid)
