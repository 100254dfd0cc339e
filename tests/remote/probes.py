"""A relay in front of qemu-system's stub that behaves like OpenOCD or J-Link's server.

The board and its program are real (qemu-system-arm). The differences follow OpenOCD's gdb_server.c and rtos.c and the
known behaviour of J-Link's server: no processes, auxiliary vector or files; no list of threads, or one with an odd
number; stop replies without a thread; console output while the target runs; unavailable registers; a detach that does
not resume.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyprof.collectors.gdb_stub.remote_serial import PacketKind, PacketReader, build_packet


@dataclass(frozen=True)
class Manner:
    """The behaviour of a debug probe's server.

    Attributes:
        answers: Replies by request.
        interrupted: Stop reply after Ctrl-C.
        chatter: Output while the target runs.
        known: Number of hexadecimal digits of the `g` reply with available registers.
    """

    answers: dict[bytes, bytes]
    interrupted: bytes
    chatter: bytes = b""
    known: int = 1 << 16


OPENOCD = Manner(
    {
        b"qSupported": b"PacketSize=4000;qXfer:memory-map:read+;qXfer:features:read+;qXfer:threads:read+;"
        b"QStartNoAckMode+;vContSupported+",
        b"?": b"S00",
        b"qC": b"QC0",
        b"qfThreadInfo": b"l",
        b"qXfer:threads:read": b'l<?xml version="1.0"?>\n<threads>\n</threads>\n',
        b"qOffsets": b"Text=0;Data=0;Bss=0",
        b"qAttached": b"1",
        b"H": b"OK",
        b"T": b"E01",
        b"vCont?": b"vCont;c;C;s;S",
    },
    interrupted=b"T02",
    chatter=b"O" + b"Info : board: external reset detected\n".hex().encode(),
)

JLINK = Manner(
    {
        b"qSupported": b"PacketSize=4000;qXfer:memory-map:read-;QStartNoAckMode+;hwbreak+;qXfer:features:read+",
        b"?": b"T05thread:0000dead;",
        b"qC": b"QC0000dead",
        b"qfThreadInfo": b"m0000dead",
        b"qsThreadInfo": b"l",
        b"qXfer:threads:read": b"",
        b"qAttached": b"",
        b"H": b"OK",
        b"T": b"OK",
        b"vCont?": b"",
    },
    interrupted=b"T02thread:0000dead;",
    known=17 * 8,  # 8 hexadecimal digits for each of r0..r15 and xpsr
)

_NOT_THERE = (b"qqemu", b"qXfer:auxv", b"qXfer:exec-file", b"qXfer:libraries", b"vFile", b"QNonStop", b"QPassSignals")


class Probe:
    """A relay with the behaviour of a debug probe.

    Attributes:
        resumed: Number of times that the target was resumed.
        running: Whether the target runs.
    """

    def __init__(self, upstream: str, manner: Manner) -> None:
        host, _, port = upstream.rpartition(":")
        self._stub = socket.create_connection((host, int(port)), 30)
        self._replies = PacketReader()
        self._manner = manner
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.running = False
        self.resumed = 0
        self.asked: list[bytes] = []
        self._ask(b"qSupported:multiprocess-")
        self._ask(b"?")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _ask(self, payload: bytes) -> bytes:
        self._stub.sendall(build_packet(payload))
        reply = self._reply()
        while reply.startswith(b"T0") and payload != b"?":  # a late stop reply for the halt on connection
            reply = self._reply()
        return reply

    def _reply(self) -> bytes:
        while True:
            while (found := self._replies.next_item()) is not None:
                if found.kind is PacketKind.PACKET:
                    self._stub.sendall(b"+")
                    return found.payload
            data = self._stub.recv(1 << 16)
            if not data:
                raise ConnectionError
            self._replies.feed_bytes(data)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                if self.running:  # a connecting debugger stops the target
                    self._halt()
                self._one(client)

    def _halt(self) -> None:
        self._stub.sendall(b"\x03")
        self._reply()
        self.running = False

    def _one(self, client: socket.socket) -> None:
        reader = PacketReader()
        while True:
            poll = select.poll()  # select(2) is limited to descriptors up to 1023
            poll.register(client, select.POLLIN)
            ready = poll.poll(20)
            if not ready:
                if self.running and self._manner.chatter:
                    client.sendall(build_packet(self._manner.chatter))
                continue
            data = client.recv(1 << 16)
            if not data:
                return
            if b"\x03" in data and self.running:
                self._halt()
                client.sendall(build_packet(self._manner.interrupted))
            reader.feed_bytes(data.replace(b"\x03", b""))
            while (found := reader.next_item()) is not None:
                if found.kind is PacketKind.PACKET:
                    self.asked.append(found.payload)
                    client.sendall(b"+" + self._answer(found.payload))

    def _answer(self, request: bytes) -> bytes:
        manner = self._manner
        if request.startswith((b"vCont;c", b"c", b"vCont;C", b"C")):
            self._stub.sendall(build_packet(b"c"))
            self.running = True
            self.resumed += 1
            return b""
        if request.startswith(b"D"):
            return build_packet(b"OK")
        if request.startswith(_NOT_THERE):
            return build_packet(b"")
        for start, reply in manner.answers.items():
            if request.startswith(start) and (len(start) > 1 or start == request[:1]):
                return build_packet(reply)
        if request == b"QStartNoAckMode":
            return build_packet(b"OK")
        reply = self._ask(request)
        if request == b"g":
            reply = reply[: manner.known]
        return build_packet(reply)

    def close(self) -> None:
        self._listener.close()
        self._stub.close()


@contextmanager
def probe(upstream: str, manner: Manner) -> Iterator[Probe]:
    made = Probe(upstream, manner)
    try:
        yield made
    finally:
        made.close()
