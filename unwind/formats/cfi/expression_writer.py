"""A writer of DWARF expressions, for rows of other formats that no field of a rule can express.

Source: DWARF 5, 2.5.1 and 7.6.
"""

from __future__ import annotations

DEREF, CONSTS, PLUS, LIT0, BREG0, BREGX = 0x06, 0x11, 0x22, 0x30, 0x70, 0x92
"""DWARF opcodes DW_OP_* that are written."""


def encode_register_plus(number: int, offset: int) -> bytes:
    """Return the DWARF expression register + offset. The register is a DWARF number."""
    if number < 32:
        return bytes([BREG0 + number]) + encode_sleb128(offset)
    return bytes([BREGX]) + encode_uleb128(number) + encode_sleb128(offset)


def encode_deref(expression: bytes) -> bytes:
    """Return the DWARF expression of the word at an address, which is given as an expression."""
    return expression + bytes([DEREF])


def encode_plus(expression: bytes, offset: int) -> bytes:
    """Return a DWARF expression that adds an offset to the result of another."""
    return expression + bytes([CONSTS]) + encode_sleb128(offset) + bytes([PLUS]) if offset else expression


def encode_uleb128(value: int) -> bytes:
    """Encode an unsigned LEB128 number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_sleb128(value: int) -> bytes:
    """Encode a signed LEB128 number."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)
