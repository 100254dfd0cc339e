"""Threads that stop one by one (GDB manual, "Remote Non-Stop"): the stub reports a stop as a notification at any time.

A notification is the head of a queue in the stub. vStopped acknowledges it and requests the next entry, up to OK. A
thread does not resume before its stop is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext

from pyprof.collectors.gdb.run_control import HALT_TIMEOUT_S, POLL_INTERVAL_S, SIGNAL_0, SIGSTOP, SIGTRAP, ListThreads
from pyprof.collectors.gdb.stub import StopReply, Stub, ThreadId
from pyprof.errors import RemoteError
from pyprof.model.pause_histogram import PauseLog

MAX_QUEUED = 1 << 16


class NonStop:
    """Control of a GDB stub's target that stops threads one by one. The stub has accepted QNonStop:1.

    Args:
        stub: The stub.
        pid: The target.
        stop: The stub's answer to `?`. The threads that it had stopped are resumed.
    """

    paced = True

    def __init__(self, stub: Stub, pid: int, stop: StopReply | None) -> None:
        self.ended = False
        self.pauses = PauseLog()
        self.note = ""
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
        """Process one stop notification of the GDB stub and the entries after it in the stub's queue."""
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
        """Process the stub's queue of stops from its first answer on, then resume threads whose stop was not
        requested.
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
        """Resume a thread of the GDB stub's target that stopped, and deliver its signal if it has one."""
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
