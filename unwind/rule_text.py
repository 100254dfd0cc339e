"""Unwind rules as text for people and tests, and as named text fields for JSON.

The named fields also serve to compare two unwind sources.
"""

from __future__ import annotations

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.unwind.rule_cache import SLOW, encode_fast_rule
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule

MAX_EXPRESSION = 256
"""Size in bytes of the longest DWARF expression that is disassembled. Compilers emit a few dozen bytes."""


def describe_rule(rule: Rule, arch: Arch) -> str:
    """Return an unwind rule as one line: the CFA, the registers in column order, the return address, the flags."""
    if rule.cfa_reg < 0:
        cfa = _expression(rule.cfa_expr, arch)
    else:
        cfa = _plus(register_name(arch, rule.cfa_reg), rule.cfa_off)
        cfa = f"[{cfa}]" if rule.cfa_deref else cfa
    parts = [f"cfa = {cfa}"]
    for column, reg_rule in rule.regs:
        name = register_name(arch, column)
        parts.append(f"{name} = {_value(reg_rule, name, arch)}")
    parts.append(f"ra = {_value(rule.ra, register_name(arch, arch.pc), arch)}")
    parts += [flag for flag, on in _flags(rule) if on]
    return "; ".join(parts)


def _flags(rule: Rule) -> tuple[tuple[str, bool], ...]:
    return (
        ("signal", rule.signal),
        ("pac", rule.pac),
        ("replacing", rule.replacing),
        ("switching", rule.switching),
    )


def register_name(arch: Arch, column: int) -> str:
    """Return "sp" or "fp" for these two registers, and the architecture's name for any other."""
    if column == arch.sp:
        return "sp"
    if column == arch.fp:
        return "fp"
    return arch.registers[column]


def _plus(base: str, n: int) -> str:
    return f"{base} {'-' if n < 0 else '+'} {abs(n)}" if n else base


def _value(rule: RegRule, itself: str, arch: Arch) -> str:
    match rule.kind:
        case RegKind.SAME:
            return itself
        case RegKind.UNDEFINED:
            return "undefined"
        case RegKind.AT_CFA:
            return f"[{_plus('cfa', rule.n)}]"
        case RegKind.CFA_PLUS:
            return _plus("cfa", rule.n)
        case RegKind.REG_PLUS:
            return _plus(register_name(arch, rule.reg), rule.n)
        case RegKind.AT_REG:
            return f"[{_plus(register_name(arch, rule.reg), rule.n)}]"
        case RegKind.AT_EXPR:
            return f"[{_expression(rule.expr, arch)}]"
        case RegKind.EXPR:
            return _expression(rule.expr, arch)


def _expression(expression: bytes, arch: Arch) -> str:
    """Return a DWARF expression as text like "expr(breg7 8; lit15; and)", or its bytes in hex if it is invalid."""
    as_bytes = f"expr({expression.hex(' ')})"
    if len(expression) > MAX_EXPRESSION:
        return as_bytes
    structs = DWARFStructs(little_endian=arch.byteorder == "little", dwarf_format=32, address_size=arch.word)
    try:
        operations = DWARFExprParser(structs).parse_expr(list(expression))
        words = [[o.op_name.removeprefix("DW_OP_"), *(str(a) for a in o.args)] for o in operations]
    except (ELFError, DWARFError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return as_bytes
    return f"expr({'; '.join(' '.join(w) for w in words)})"


@dataclass(frozen=True, slots=True)
class RuleWords:
    """An unwind rule as named text fields.

    Attributes:
        cfa: "sp+16", "[fp-8]", "r10" or "expr".
        ra: "[cfa-8]", "lr", "reg 33" (a DWARF register number), "undefined" or "expr".
        fp: As ra, and "same".
        signal: The frame is a signal trampoline.
        outermost: The frame has no caller.
        slow: Only the reference unwinder can execute the rule, not the batch walker.
        text: The whole rule.
    """

    cfa: str
    ra: str
    fp: str
    signal: bool
    outermost: bool
    slow: bool
    text: str

    @property
    def comparable(self) -> bool:
        """True if equal unwind rules have equal text. Different expressions can compute the same value."""
        return "expr" not in (self.cfa, self.ra, self.fp)

    @property
    def meaning(self) -> tuple[str, str, str, bool]:
        """A key that is equal for two unwind rules that find the same caller. All outermost rules have one key."""
        return ("", "undefined", "", False) if self.outermost else (self.cfa, self.ra, self.fp, self.signal)


def format_rule_fields(rule: Rule, arch: Arch) -> RuleWords:
    regs = dict(rule.regs)
    if rule.cfa_reg < 0:
        cfa = "expr"
    else:
        cfa = _sum(register_name(arch, rule.cfa_reg), rule.cfa_off)
        cfa = f"[{cfa}]" if rule.cfa_deref else cfa
    outermost = rule.ra.kind is RegKind.UNDEFINED
    return RuleWords(
        cfa=cfa,
        ra=_words(rule.ra, arch, same="lr" if arch.lr >= 0 else "same"),
        fp=_words(regs.get(arch.fp, SAME), arch, same="same"),
        signal=rule.signal,
        outermost=outermost,
        slow=encode_fast_rule(rule, arch)[0] == SLOW,
        text=describe_rule(_said(rule, arch), arch),
    )


def _said(rule: Rule, arch: Arch) -> Rule:
    """Return an unwind rule without entries for registers whose value is lost, except for fp.

    A format that describes only a few registers states in each row that all others are lost.
    """
    said = tuple((c, how) for c, how in rule.regs if c == arch.fp or how.kind is not RegKind.UNDEFINED)
    return rule._replace(regs=said)


def _words(rule: RegRule, arch: Arch, same: str) -> str:
    match rule.kind:
        case RegKind.SAME:
            return same
        case RegKind.UNDEFINED:
            return "undefined"
        case RegKind.AT_CFA:
            return f"[{_sum('cfa', rule.n)}]"
        case RegKind.CFA_PLUS:
            return _sum("cfa", rule.n)
        case RegKind.REG_PLUS:
            if rule.reg == arch.lr and not rule.n:
                return "lr"
            return _sum(f"reg {_dwarf_number(rule.reg, arch)}", rule.n)
        case RegKind.AT_REG:
            return f"[{_sum(register_name(arch, rule.reg), rule.n)}]"
        case _:
            return "expr"


def _sum(base: str, n: int) -> str:
    return f"{base}{n:+d}" if n else base


def _dwarf_number(column: int, arch: Arch) -> int:
    return next((number for number, known in arch.dwarf.items() if known == column), column)
