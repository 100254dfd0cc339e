"""A compiler from the instructions of one EXIDX entry to a Rule.

The instructions are run with symbolic values: vsp is `base + offset`. The base is the value of a register in the
callee, or a word that was loaded (`vsp = r[n]` after a pop of r[n], or a pop of r13). In the end

    cfa = vsp;  popped registers = [cfa - n], or [base + n] where vsp was changed after the pop
    ra  = r15 if popped, else r14 if popped, else the link register

Core register n is column n of the Arch. Two pops identify a signal frame: only the C library's restorers pop both r13
and r15, and the code that they return to was interrupted and did not call.
"""

from __future__ import annotations

from typing import TypeAlias

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.records import dataclass
from pyprof.unwind.dwarf_expressions import encode_deref, encode_plus, encode_register_plus
from pyprof.unwind.formats.exidx.opcodes import MAX_STEP, Opcode, OpKind
from pyprof.unwind.rules import RegKind, RegRule, Rule

R13, R14, R15 = 13, 14, 15
MAX_LOADS = 4
"""Maximum number of nested loads in a vsp of EXIDX. Real tables need one; the limit bounds the expressions of a broken
table.
"""


@dataclass(frozen=True, slots=True)
class _Load:
    """The word at base + offset, as a value of vsp."""

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
