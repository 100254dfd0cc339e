"""The one vocabulary in which every unwind format ends.

A rule says how to compute the caller's registers from the callee's:

    cfa = reg[cfa_reg] + cfa_off         or  [reg[cfa_reg] + cfa_off]  (cfa_deref)  or  expr(cfa_expr)
    ra, and each register in regs        = one of RegKind's formulas
    sp                                   = cfa, unless regs says otherwise
    registers not named                  keep their value if callee-saved, else are unknown

Registers are columns of the Arch (pyprof.model.arch), never a format's own numbers.

Values are tuples: rules are hashed a dozen times for each new row, in a class each time by a function of Python.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RegKind(IntEnum):
    """How the caller's value of a register is found; n, reg, expr are RegRule's fields."""

    SAME = 0  # r = r
    UNDEFINED = 1  # r is lost; for ra: there is no caller
    AT_CFA = 2  # r = [cfa + n]
    CFA_PLUS = 3  # r = cfa + n
    REG_PLUS = 4  # r = reg[reg] + n
    AT_REG = 5  # r = [reg[reg] + n]
    AT_EXPR = 6  # r = [expr(expr)], cfa pushed first
    EXPR = 7  # r = expr(expr), cfa pushed first


class RegRule(NamedTuple):
    kind: RegKind
    n: int = 0
    reg: int = -1
    expr: bytes = b""


SAME = RegRule(RegKind.SAME)
UNDEFINED = RegRule(RegKind.UNDEFINED)


class Rule(NamedTuple):
    """cfa_reg -1: the CFA is cfa_expr, DWARF bytes (an expression knows its svma base through the module).

    signal: the frame is a signal trampoline: its caller was interrupted, the caller's pc is exact. ra UNDEFINED means
    outermost. pac: the return address is signed (strip it by the arch's mask). replacing: the code replaces what its
    frame has saved by registers of another frame. Then only the cfa is sure, and the return address must be proved.
    """

    cfa_reg: int
    cfa_off: int
    ra: RegRule
    regs: tuple[tuple[int, RegRule], ...] = ()
    cfa_deref: bool = False
    cfa_expr: bytes = b""
    signal: bool = False
    pac: bool = False
    replacing: bool = False


class FunctionRows(NamedTuple):
    """Rows of one function (one FDE): rules[i] holds from starts[i] up to starts[i + 1], the last up to end.

    start, end, starts: svma. repeat: block size of a table that repeats (PLT), else 0.
    """

    start: int
    end: int
    starts: tuple[int, ...]
    rules: tuple[Rule, ...]
    repeat: int = 0
