"""The wire format of protocol buffers, as far as profile.proto needs it: varints and length-delimited fields."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_SHORT = [bytes([value]) for value in range(0x80)]
"""Most numbers of a file are below that."""


def varint(value: int) -> bytes:
    """A signed or unsigned 64-bit number; negative ones in two's complement (ten bytes)."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An int64, uint64 or bool; nothing for 0, which is the default."""
    return varint(field << 3) + varint(value) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated number."""
    return data(field, b"".join(map(varint, values)))


def data(field: int, payload: bytes) -> bytes:
    """A message, a string, or packed numbers; written even if empty."""
    return varint(field << 3 | 2) + varint(len(payload)) + payload
