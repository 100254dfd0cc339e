"""The unwinding instructions of an EXIDX entry (ARM EHABI): their decoder, and a compiler to a Rule.

Source: ehabi32, "Frame unwinding instructions", table 4 and its remarks. vsp is the virtual stack pointer.

The instructions are run with symbolic values: vsp is `base + offset`. The base is the value of a register in the
callee, or a word that was loaded (`vsp = r[n]` after a pop of r[n], or a pop of r13). In the end

    cfa = vsp;  popped registers = [cfa - n], or [base + n] where vsp was changed after the pop
    ra  = r15 if popped, else r14 if popped, else the link register

Core register n is column n of the Arch. Two pops identify a signal frame: only the C library's restorers pop both r13
and r15, and the code that they return to was interrupted and did not call.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.unwind.dwarf_expressions import encode_deref, encode_plus, encode_register_plus
from pyprof.unwind.rules import RegKind, RegRule, Rule

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


R13, R14, R15 = 13, 14, 15
MAX_LOADS = 4
"""Maximum number of nested loads in a vsp of EXIDX. Real tables need one; the limit bounds the expressions of a broken
table.
"""


@dataclass(frozen=True, slots=True)
class _Load:
    """The word of stack memory at base + offset, as a new value of vsp."""

    base: _Base
    offset: int
    depth: int


_Base: TypeAlias = "int | _Load"
_Place = tuple[_Base, int]


def compile_rule(opcodes: list[Opcode], arch: Arch, section: str, at: int) -> Rule | None:
    """Return the unwind rule of an EXIDX entry, or None if the entry refuses to be unwound.

    Args:
        opcodes: The instructions of the entry.
        arch: The architecture.
        section: Name of the section, for errors.
        at: Offset of the entry, for errors.

    Raises:
        FormatError: The instructions make no sense.
    """
    base: _Base = arch.sp
    offset = 0
    popped: dict[int, _Place] = {}
    for op in opcodes:
        if op.kind is OpKind.ADD:
            offset += op.n
        elif op.kind is OpKind.POP:
            for number in range(16):
                if op.n >> number & 1:
                    popped[number] = base, offset
                    offset += 4
            if op.n >> R13 & 1:
                base, offset = _loaded(popped[R13], section, at), 0
        elif op.kind is OpKind.SET:
            base, offset = (_loaded(popped[op.n], section, at) if op.n in popped else op.n), 0
        elif op.kind is OpKind.REFUSE:
            return None
        if abs(offset) > MAX_STEP:
            raise FormatError(section, at, "vsp leaves every frame")

    def place(where: _Place) -> RegRule:
        start, distance = where
        if start == base:
            return RegRule(RegKind.AT_CFA, distance - offset)
        if isinstance(start, int):
            return RegRule(RegKind.AT_REG, distance, start)
        return RegRule(RegKind.AT_EXPR, expr=_expression(start, distance))

    signal = R13 in popped and R15 in popped
    popped.pop(R13, None)
    saved = next((number for number in (R15, R14) if number in popped), None)  # the caller's own R14 is lost
    ra = RegRule(RegKind.REG_PLUS, 0, arch.lr) if saved is None else place(popped.pop(saved))
    regs = tuple((number, place(popped[number])) for number in sorted(popped))
    if isinstance(base, int):
        return Rule(base, offset, ra, regs, signal=signal)
    if not offset and isinstance(base.base, int):
        return Rule(base.base, base.offset, ra, regs, cfa_deref=True, signal=signal)
    return Rule(-1, 0, ra, regs, cfa_expr=_expression(base, offset), signal=signal)


def _loaded(place: _Place, section: str, at: int) -> _Load:
    base, offset = place
    depth = base.depth + 1 if isinstance(base, _Load) else 1
    if depth > MAX_LOADS:
        raise FormatError(section, at, "vsp is loaded through too many words")
    return _Load(base, offset, depth)


def _expression(base: _Base, offset: int) -> bytes:
    """Return the DWARF expression that computes base + offset."""
    if isinstance(base, int):
        return encode_register_plus(base, offset)
    return encode_plus(encode_deref(_expression(base.base, base.offset)), offset)
