"""The wire format of protocol buffers, as far as profile.proto needs it: varints and length-delimited fields."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_SHORT = [bytes([value]) for value in range(0x80)]
"""Protobuf encodings of the numbers below 128, which are one byte. Most numbers in a file are that small."""


def encode_varint(value: int) -> bytes:
    """Encode a signed or unsigned 64-bit number as a protobuf varint. Negative numbers are in two's complement and take
    ten bytes.
    """
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_number(field: int, value: int) -> bytes:
    """Encode a protobuf field of type int64, uint64 or bool. The result is empty for 0, the default value."""
    return encode_varint(field << 3) + encode_varint(value) if value else b""


def encode_packed(field: int, values: Iterable[int]) -> bytes:
    """Encode a repeated numeric field of protobuf in its packed form."""
    return encode_data(field, b"".join(map(encode_varint, values)))


def encode_data(field: int, payload: bytes) -> bytes:
    """Encode a length-delimited protobuf field: a message, a string, or packed numbers. It is written even if it is
    empty.
    """
    return encode_varint(field << 3 | 2) + encode_varint(len(payload)) + payload
