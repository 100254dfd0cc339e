"""The GDB remote serial protocol: its packets, and one connection with requests and replies.

    packet          $ payload # two hex digits, the sum of the payload's bytes as sent
    notification    % payload # two hex digits
    acknowledgement + or -
    in a payload    } x stands for x ^ 0x20; c * n stands for c and n - 29 more of it

Input is hostile: a payload has at most MAX_PAYLOAD bytes after expansion of run lengths.

A connection also handles acknowledgements, notifications and time limits.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum

from pyprof.errors import ConnectionLost, RemoteError, UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.options import DEFAULT_ANSWER_S

MAX_PAYLOAD = 1 << 20
MAX_NOISE = 1 << 16
"""Maximum number of bytes between two packets of the GDB remote protocol, such as a serial line's noise or a boot
loader's greeting.
"""

INTERRUPT = b"\x03"
_SPECIAL = frozenset(b"#$}*")


class PacketKind(Enum):
    PACKET = "packet"
    NOTIFICATION = "notification"
    ACK = "acknowledgement"
    NAK = "request to send again"
    BROKEN = "wrong checksum"


@dataclass(frozen=True, slots=True)
class Incoming:
    kind: PacketKind
    payload: bytes = b""


def build_packet(payload: bytes) -> bytes:
    """Return the payload as a packet of the GDB remote protocol, with `$`, `#` and the checksum."""
    body = escape_payload(payload)
    return b"$%b#%02x" % (body, sum(body) & 0xFF)


def escape_payload(payload: bytes) -> bytes:
    """Return binary data with the escapes of a GDB remote protocol packet."""
    if not _SPECIAL.intersection(payload):
        return payload
    return b"".join(bytes((0x7D, byte ^ 0x20)) if byte in _SPECIAL else bytes((byte,)) for byte in payload)


def unescape_payload(body: bytes) -> bytes:
    """Return the payload of a GDB remote protocol packet from its raw bytes, with escapes and run lengths
    expanded.

    Raises:
        RemoteError: The bytes are not valid.
    """
    if b"}" not in body and b"*" not in body:
        return body
    out = bytearray()
    at, size = 0, len(body)
    while at < size:
        byte = body[at]
        if byte == 0x7D:
            if at + 1 >= size:
                raise RemoteError("the stub sent an escape without its byte")
            out.append(body[at + 1] ^ 0x20)
            at += 2
        elif byte == 0x2A:
            count = body[at + 1] - 29 if at + 1 < size else 0
            if not out or not 3 <= count <= 97:
                raise RemoteError("the stub sent an invalid run length")
            out += out[-1:] * count
            at += 2
        else:
            out.append(byte)
            at += 1
        if len(out) > MAX_PAYLOAD:
            raise RemoteError(f"the stub sent a packet of more than {MAX_PAYLOAD >> 20} MiB")
    return bytes(out)


class PacketReader:
    """A reader that finds packets of the GDB remote protocol in the bytes of a connection."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._noise = 0
        self._searched = 0

    def feed_bytes(self, data: bytes) -> None:
        self._data += data

    def next_item(self) -> Incoming | None:
        """Return the next complete packet or acknowledgement of the GDB remote protocol, or None if more bytes are
        needed.

        Raises:
            RemoteError: The bytes are not of this protocol.
        """
        while self._data:
            first = self._data[0]
            if first in b"$%":
                return self._packet(PacketKind.PACKET if first == 0x24 else PacketKind.NOTIFICATION)
            del self._data[:1]
            if first in b"+-":
                return Incoming(PacketKind.ACK if first == 0x2B else PacketKind.NAK)
            self._noise += 1
            if self._noise > MAX_NOISE:
                raise RemoteError("the peer does not speak the GDB remote protocol")
        return None

    def _packet(self, kind: PacketKind) -> Incoming | None:
        end = self._data.find(b"#", max(1, self._searched))
        if end < 0 or len(self._data) < end + 3:
            if len(self._data) > MAX_PAYLOAD:
                raise RemoteError(f"the stub sent a packet of more than {MAX_PAYLOAD >> 20} MiB")
            self._searched = max(1, len(self._data)) if end < 0 else end
            return None
        body, digits = bytes(self._data[1:end]), bytes(self._data[end + 1 : end + 3])
        del self._data[: end + 3]
        self._noise = self._searched = 0
        if digits.lower() != b"%02x" % (sum(body) & 0xFF):
            return Incoming(PacketKind.BROKEN)
        return Incoming(kind, unescape_payload(body))


_MAX_TRIES = 4
_MAX_NOTIFICATIONS = 1 << 16
_CHUNK = 1 << 16


def parse_address(text: str) -> tuple[str, int] | str:
    """Parse the address of a GDB stub: return (host, port) for HOST:PORT, [ADDRESS]:PORT, :PORT or
    tcp:HOST:PORT, and the path for unix:PATH.

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
        """Send several requests to the GDB stub and return their replies. This takes one round trip if
        acknowledgements are disabled.
        """
        if self.acks:
            return [self.request(payload) for payload in payloads]
        self._write(b"".join(build_packet(payload) for payload in payloads))
        return [self.receive() for _ in payloads]

    def send(self, payload: bytes) -> None:
        """Send a packet to the GDB stub, and wait for its acknowledgement unless acknowledgements are
        disabled.

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
        """Send an acknowledgement to the GDB stub right after connecting. The stub may still wait for one
        from its last debugger.
        """
        self._write(b"+")

    def send_interrupt(self) -> None:
        """Send Ctrl-C, the only input that a stub reads while its target runs."""
        self._write(INTERRUPT)

    def receive(self, within_s: float | None = None) -> bytes:
        """Return the next packet of the GDB stub.

        Raises:
            ConnectionLost: No packet arrives within the time limit.
        """
        packet = self.poll(self._answer_s if within_s is None else within_s)
        if packet is None:
            raise self._silent()
        return packet

    def poll(self, within_s: float) -> bytes | None:
        """Return the next packet of the GDB stub, or None if none arrives within the time in seconds.
        Notifications that arrive are stored for poll_notification().
        """
        until = time.monotonic() + within_s
        left = within_s
        while (packet := self._from_buffer()) is None and left >= 0:
            left = until - time.monotonic()
            self._fill(max(left, 0.0))
        return packet

    def poll_notification(self, within_s: float) -> bytes | None:
        """Return the next notification of the GDB stub, or None if none arrives within the time in seconds.
        No request may be waiting for its reply.
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
        """Handle input from the GDB stub that is no packet: store a notification, or request a damaged packet
        a second time.
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
    """Wait until a socket can be read or written, by poll(2), because select(2) supports no descriptors above 1023."""
    poll = select.poll()
    poll.register(stream, event)
    return bool(poll.poll(math.ceil(1000 * within_s)))
