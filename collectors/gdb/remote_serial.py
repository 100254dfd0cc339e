"""One connection to a stub: requests and their replies, acknowledgements, notifications, time limits."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from pyprof.collectors.gdb.packets import INTERRUPT, Incoming, PacketKind, PacketReader, build_packet
from pyprof.errors import ConnectionLost, RemoteError, UsageError
from pyprof.options import DEFAULT_ANSWER_S

_MAX_TRIES = 4
_MAX_NOTIFICATIONS = 1 << 16
_CHUNK = 1 << 16


def parse_address(text: str) -> tuple[str, int] | str:
    """Parse HOST:PORT, [ADDRESS]:PORT, :PORT or tcp:HOST:PORT to a pair, or unix:PATH to a str.

    Raises:
        UsageError: The address is not valid.
    """
    if text.startswith("unix:"):
        return text.removeprefix("unix:")
    host, colon, port = text.removeprefix("tcp:").rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is not an address of a stub", "--gdb HOST:PORT, or --gdb unix:PATH")
    return host.removeprefix("[").removesuffix("]") or "localhost", int(port)


class PacketLink:
    """A connection to a GDB stub that transfers packets over a stream socket.

    Every wait is limited. All methods raise ConnectionLost if the stub is silent, and RemoteError for invalid data.
    """

    def __init__(self, stream: socket.socket, address: str, answer_s: float = DEFAULT_ANSWER_S) -> None:
        self.address = address
        self.acks = True
        self.notifications: deque[bytes] = deque()
        self._stream = stream
        self._answer_s = answer_s
        self._reader = PacketReader()
        self._last = b""
        self._broken = 0
        stream.setblocking(False)

    @classmethod
    def connect(cls, address: str, answer_s: float = DEFAULT_ANSWER_S) -> PacketLink:
        """Connect to the address of a GDB stub.

        Raises:
            ConnectionLost: No stub answers.
            UsageError: The address is not valid.
        """
        place = parse_address(address)
        try:
            if isinstance(place, str):
                stream = socket.socket(socket.AF_UNIX)
                stream.settimeout(answer_s)
                try:
                    stream.connect(place)
                except BaseException:
                    stream.close()
                    raise
            else:
                stream = socket.create_connection(place, timeout=answer_s)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            reason = error.strerror or str(error) or "timed out"
            raise ConnectionLost(
                f"no stub answers at {address}: {reason}", f"on the target: gdbserver --attach {_port(place)} PID"
            ) from None
        return cls(stream, address, answer_s)

    def request(self, payload: bytes) -> bytes:
        """Send a request to the GDB stub and return its reply."""
        self.send(payload)
        return self.receive()

    def request_all(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Send several requests to the GDB stub and return their replies, in one round trip if no acknowledgements are
        used.
        """
        if self.acks:
            return [self.request(payload) for payload in payloads]
        self._write(b"".join(build_packet(payload) for payload in payloads))
        return [self.receive() for _ in payloads]

    def send(self, payload: bytes) -> None:
        """Send a packet to the GDB stub, and wait for its acknowledgement if they are used.

        A packet that arrives before the acknowledgement is not a reply and is dropped: qemu-system reports the stop
        caused by a connection before any request.
        """
        self._last = build_packet(payload)
        self._write(self._last)
        until = time.monotonic() + self._answer_s
        while self.acks:
            found = self._reader.next_item()
            if found is not None and found.kind is PacketKind.ACK:
                return
            left = until - time.monotonic()
            if left < 0:  # also if other data arrives
                raise self._silent()
            if found is None:
                self._fill(left)
            elif found.kind is PacketKind.PACKET:
                self._write(b"+")
            else:
                self._other(found)

    def acknowledge(self) -> None:
        """Send an acknowledgement to the GDB stub first, because it may wait for that of its last debugger."""
        self._write(b"+")

    def send_interrupt(self) -> None:
        """Send Ctrl-C, the only input that a stub reads while its target runs."""
        self._write(INTERRUPT)

    def receive(self, within_s: float | None = None) -> bytes:
        """Return the next packet of the GDB stub.

        Raises:
            ConnectionLost: None arrives in time.
        """
        packet = self.poll(self._answer_s if within_s is None else within_s)
        if packet is None:
            raise self._silent()
        return packet

    def poll(self, within_s: float) -> bytes | None:
        """Return the next packet of the GDB stub, or None if none arrives in time. Notifications are kept for
        poll_notification().
        """
        until = time.monotonic() + within_s
        left = within_s
        while (packet := self._from_buffer()) is None and left >= 0:
            left = until - time.monotonic()
            self._fill(max(left, 0.0))
        return packet

    def poll_notification(self, within_s: float) -> bytes | None:
        """Return the next notification of the GDB stub, or None if none arrives in time. No reply may be
        outstanding.
        """
        until = time.monotonic() + within_s
        left = within_s
        while not self.notifications:
            if self._from_buffer() is not None:
                raise RemoteError(f"the stub at {self.address} sent an unexpected response")
            if self.notifications or left < 0:
                break
            left = until - time.monotonic()
            self._fill(max(left, 0.0))
        return self.notifications.popleft() if self.notifications else None

    def _from_buffer(self) -> bytes | None:
        while (found := self._reader.next_item()) is not None:
            if found.kind is PacketKind.PACKET:
                self._broken = 0
                if self.acks:
                    self._write(b"+")
                return found.payload
            self._other(found)
        return None

    def _other(self, found: Incoming) -> None:
        """Handle input from the GDB stub that is not a packet: keep a notification, or request a damaged packet
        again.
        """
        kind = found.kind
        if kind is PacketKind.NOTIFICATION:
            self.notifications.append(found.payload)
            if len(self.notifications) > _MAX_NOTIFICATIONS:
                raise RemoteError(f"the stub at {self.address} sends notifications without end")
            return
        if kind is PacketKind.ACK:
            return
        self._broken += 1
        if not self.acks or self._broken > _MAX_TRIES:
            raise RemoteError(f"the connection to {self.address} failed: {kind.value}")
        self._write(b"-" if kind is PacketKind.BROKEN else self._last)

    def _fill(self, within_s: float) -> bool:
        """Wait for bytes from the GDB stub and return True if some arrived."""
        if not _ready(self._stream, select.POLLIN, within_s):
            return False
        try:
            data = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not data:
            raise self._lost("closed by the other side")
        self._reader.feed_bytes(data)
        return True

    def _write(self, data: bytes) -> None:
        until = time.monotonic() + self._answer_s
        view = memoryview(data)
        while view:
            try:
                view = view[self._stream.send(view) :]
            except BlockingIOError:
                if time.monotonic() > until:
                    raise self._lost("it takes nothing any more") from None
                _ready(self._stream, select.POLLOUT, 0.1)
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from None

    def _silent(self) -> ConnectionLost:
        return ConnectionLost(
            f"the stub at {self.address} does not answer", "it serves one debugger: is another one connected?"
        )

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to the stub at {self.address} is gone: {reason}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()


def _port(place: tuple[str, int] | str) -> str:
    return place if isinstance(place, str) else f":{place[1]}"


def _ready(stream: socket.socket, event: int, within_s: float) -> bool:
    """Wait until a socket can be read or written. It uses poll(2), because select(2) supports no descriptors above
    1023.
    """
    poll = select.poll()
    poll.register(stream, event)
    return bool(poll.poll(math.ceil(1000 * within_s)))
