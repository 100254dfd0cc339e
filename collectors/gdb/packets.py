"""Packets of the GDB remote serial protocol as bytes (GDB manual, "Overview" of the remote protocol). No I/O.

    packet          $ payload # two hex digits, the sum of the payload's bytes as sent
    notification    % payload # two hex digits
    acknowledgement + or -
    in a payload    } x stands for x ^ 0x20; c * n stands for c and n - 29 more of it

Input is hostile: a payload has at most MAX_PAYLOAD bytes after expansion of run lengths.
"""

from __future__ import annotations

from enum import Enum

from pyprof.errors import RemoteError
from pyprof.records import dataclass

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
    """Return the packet of the GDB remote protocol with this payload."""
    body = escape_payload(payload)
    return b"$%b#%02x" % (body, sum(body) & 0xFF)


def escape_payload(payload: bytes) -> bytes:
    """Return binary data with the escapes of a GDB remote protocol packet."""
    if not _SPECIAL.intersection(payload):
        return payload
    return b"".join(bytes((0x7D, byte ^ 0x20)) if byte in _SPECIAL else bytes((byte,)) for byte in payload)


def unescape_payload(body: bytes) -> bytes:
    """Return the payload of a packet's body, with escapes and run lengths expanded.

    Raises:
        RemoteError: The body is not valid.
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
