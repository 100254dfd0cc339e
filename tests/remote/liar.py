"""A hostile gdb stub: a correct one for an invented x86-64 target with some replies replaced."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyprof.collectors.gdb_stub.remote_serial import PacketKind, PacketReader, build_packet

Answer = Callable[[bytes], bytes | None]
"""A function of the request that returns the raw bytes of a false reply, or None for the correct one."""

NAMES = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "rip")
PC, SP = 0x401000, 0x7FFF_0000_1000
TARGET = (
    b"<target><architecture>i386:x86-64</architecture><feature name='org.gnu.gdb.i386.core'>"
    + b"".join(b"<reg name='%b' bitsize='64'/>" % name.encode() for name in NAMES)
    + b"</feature></target>"
)


def registers() -> bytes:
    values = {"rip": PC, "rsp": SP}
    return b"".join(values.get(name, 0).to_bytes(8, "little").hex().encode() for name in NAMES)


def honest(request: bytes) -> bytes:
    """Return the reply of a correct stub."""
    if request.startswith(b"qSupported"):
        return b"PacketSize=1000;qXfer:features:read+;qXfer:threads:read+;multiprocess+"
    if request.startswith(b"qXfer:features:read:target.xml:"):
        offset = int(request.rsplit(b":", 1)[1].split(b",")[0], 16)
        return b"l" + TARGET[offset:]
    if request.startswith(b"qXfer:threads:read"):
        return b"l<threads><thread id='p1.1' name='one'/><thread id='p1.2'/></threads>"
    if request == b"?":
        return b"T05thread:p1.1;"
    if request.startswith(b"Hg") or request.startswith(b"D"):
        return b"OK"
    if request == b"g":
        return registers()
    if request.startswith(b"m"):
        start, size = (int(word, 16) for word in request[1:].split(b","))
        return b"00" * size if SP - 0x1000 <= start < start + size <= SP + 0x10000 else b"E01"
    if request == b"vCont?":
        return b"vCont;c;C;s;S"
    if request.startswith((b"vCont;s", b"s")):
        return b"T05thread:p1.1;"
    return b""


class Liar:
    """A stub that sends false replies.

    Attributes:
        asked: The received requests.
        interrupts: Number of received Ctrl-C bytes.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        self.interrupts = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                client.settimeout(30)
                self._one(client)

    def _one(self, client: socket.socket) -> None:
        reader = PacketReader()
        while data := client.recv(1 << 16):
            if b"\x03" in data:
                self.interrupts += 1
                client.sendall(build_packet(b"T02thread:p1.1;"))
            reader.feed_bytes(data)
            while (found := reader.next_item()) is not None:
                if found.kind is not PacketKind.PACKET:
                    continue
                self.asked.append(found.payload)
                lie = self._answer(found.payload)
                if found.payload.startswith((b"vCont;c", b"c")) and lie is None:
                    client.sendall(b"+")
                    continue
                client.sendall(b"+" + build_packet(honest(found.payload)) if lie is None else lie)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(timeout=30)


@contextmanager
def lying(answer: Answer) -> Iterator[Liar]:
    made = Liar(answer)
    try:
        yield made
    finally:
        made.close()


def instead(start: bytes, raw: bytes) -> Answer:
    """Return a function that answers every request with this start with raw bytes."""
    return lambda request: raw if request.startswith(start) else None


def reply(payload: bytes) -> bytes:
    return b"+" + build_packet(payload)
