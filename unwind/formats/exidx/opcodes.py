"""A decoder of the frame unwinding instructions of the ARM EHABI.

Source: ehabi32, "Frame unwinding instructions", table 4 and its remarks. vsp is the virtual stack pointer.
"""

from __future__ import annotations

from enum import IntEnum

from pyprof.errors import FormatError
from pyprof.records import dataclass

MAX_STEP = 1 << 28
"""Maximum increment of vsp in bytes by an EXIDX instruction. No frame is larger."""


class OpKind(IntEnum):
    """The kind of an EXIDX unwinding instruction; n is a field of Opcode."""

    ADD = 0  # vsp += n: an increment, or a pop of registers that samples lack (VFP, WMMX, RA_AUTH_CODE)
    POP = 1  # the core registers of mask n, the lowest at vsp; vsp += 4 each; r13 replaces vsp at the end
    SET = 2  # vsp = r[n]
    MARK = 3  # no effect on the frame
    FINISH = 4
    REFUSE = 5  # the function says that it must not be unwound


@dataclass(frozen=True, slots=True)
class Opcode:
    """One EXIDX unwinding instruction. Its text is that of readelf."""

    kind: OpKind
    n: int
    code: bytes
    text: str


def decode_opcodes(code: bytes, section: str, at: int) -> list[Opcode]:
    """Return the unwinding instructions of one EXIDX entry up to the first finish, with an implicit finish at the end.

    Args:
        code: The bytes.
        section: Name of the section, for errors.
        at: Offset of the entry, for errors.

    Raises:
        FormatError: An instruction is reserved, spare or incomplete.
    """
    done: list[Opcode] = []
    position = 0
    while position < len(code):
        op = decode_opcode(code, position, section, at)
        done.append(op)
        if op.kind in (OpKind.FINISH, OpKind.REFUSE):
            return done
        position += len(op.code)
    done.append(Opcode(OpKind.FINISH, 0, b"", "finish"))
    return done


def decode_opcode(code: bytes, position: int, section: str, at: int) -> Opcode:
    first = code[position]
    if first < 0x80:
        step = ((first & 0x3F) << 2) + 4
        sign = -1 if first & 0x40 else 1
        return Opcode(OpKind.ADD, sign * step, code[position : position + 1], f"vsp = vsp {'+-'[sign < 0]} {step}")
    if first == 0xB2:
        return _uleb(code, position, section, at)
    size = 2 if first < 0x90 or first in (0xB1, 0xB3, 0xC6, 0xC7, 0xC8, 0xC9) else 1
    raw = code[position : position + size]
    if len(raw) < size:
        raise FormatError(section, at, f"instruction {first:#04x} is cut off")
    op = _two_bytes(raw) if size == 2 else _one_byte(raw)
    if op is None:
        raise FormatError(section, at, f"reserved instruction {raw.hex(' ')}")
    return op


def _one_byte(raw: bytes) -> Opcode | None:
    first, low = raw[0], raw[0] & 7
    if first & 0xF0 == 0x90:
        number = first & 0xF
        return None if number in (13, 15) else Opcode(OpKind.SET, number, raw, f"vsp = r{number}")
    if first & 0xF0 == 0xA0:
        return _pop((0x10 << low + 1) - 0x10 | (0x4000 if first & 8 else 0), raw)
    if first == 0xB0:
        return Opcode(OpKind.FINISH, 0, raw, "finish")
    if first == 0xB4:
        return Opcode(OpKind.ADD, 4, raw, "pop {ra_auth_code}")
    if first == 0xB5:
        return Opcode(OpKind.MARK, 0, raw, "vsp as modifier for PAC validation")
    if 0xB8 <= first <= 0xBF:
        return _doubles("D", 8, low + 1, 4, raw)
    if 0xC0 <= first <= 0xC5:
        return _doubles("wR", 10, low + 1, 0, raw)
    if 0xD0 <= first <= 0xD7:
        return _doubles("D", 8, low + 1, 0, raw)
    return None


def _two_bytes(raw: bytes) -> Opcode | None:
    first, second = raw
    if first < 0x90:
        mask = (first & 0xF) << 12 | second << 4
        return _pop(mask, raw) if mask else Opcode(OpKind.REFUSE, 0, raw, "Refuse to unwind")
    if first in (0xB1, 0xC7):
        if not 0 < second <= 0xF:
            return None
        if first == 0xB1:
            return _pop(second, raw)
        names = ", ".join(f"wCGR{bit}" for bit in range(4) if second >> bit & 1)
        return Opcode(OpKind.ADD, 4 * second.bit_count(), raw, f"pop {{{names}}}")
    start, count = second >> 4, (second & 0xF) + 1
    # Remarks d and e: FSTMX covers D0-D15, WMMX has 16 registers, VFP has 32.
    if first == 0xC9:
        return _doubles("D", start, count, 0, raw)
    if first == 0xC8:
        return _doubles("D", 16 + start, count, 0, raw) if start + count <= 16 else None
    if start + count > 16:
        return None
    return _doubles("D", start, count, 4, raw) if first == 0xB3 else _doubles("wR", start, count, 0, raw)


def _uleb(code: bytes, position: int, section: str, at: int) -> Opcode:
    value, shift, end = 0, 0, position + 1
    while True:
        if end >= len(code):
            raise FormatError(section, at, "instruction 0xb2 is cut off")
        byte = code[end]
        end += 1
        value |= (byte & 0x7F) << shift
        if value > MAX_STEP:
            raise FormatError(section, at, "increment of vsp is larger than any frame")
        if not byte & 0x80:
            break
        shift += 7
    step = 0x204 + (value << 2)
    return Opcode(OpKind.ADD, step, code[position:end], f"vsp = vsp + {step}")


def _pop(mask: int, raw: bytes) -> Opcode:
    names = ", ".join(f"r{bit}" for bit in range(16) if mask >> bit & 1)
    return Opcode(OpKind.POP, mask, raw, f"pop {{{names}}}")


def _doubles(prefix: str, start: int, count: int, extra: int, raw: bytes) -> Opcode:
    names = f"{prefix}{start}" + (f"-{prefix}{start + count - 1}" if count > 1 else "")
    return Opcode(OpKind.ADD, 8 * count + extra, raw, f"pop {{{names}}}")
