"""Unwind rules as text, for people and tests: "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]"."""

from __future__ import annotations

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs

from pyprof.model.arch import Arch
from pyprof.unwind.rules import RegKind, RegRule, Rule

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
