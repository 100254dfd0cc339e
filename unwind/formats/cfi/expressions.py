"""DWARF expressions that readers of other formats write, where a rule has no field for what a row says.

Source: DWARF 5, 2.5.1 and 7.6.
"""

from __future__ import annotations

DEREF, CONSTS, PLUS, LIT0, BREG0, BREGX = 0x06, 0x11, 0x22, 0x30, 0x70, 0x92
"""DW_OP_*."""


def register_plus(number: int, offset: int) -> bytes:
    """register + offset; number: DWARF's."""
    if number < 32:
        return bytes([BREG0 + number]) + sleb128(offset)
    return bytes([BREGX]) + uleb128(number) + sleb128(offset)


def word_at(expression: bytes) -> bytes:
    """[expression]."""
    return expression + bytes([DEREF])


def plus(expression: bytes, offset: int) -> bytes:
    """expression + offset."""
    return expression + bytes([CONSTS]) + sleb128(offset) + bytes([PLUS]) if offset else expression


def uleb128(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sleb128(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)
