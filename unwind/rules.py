"""The common form of the rules of all unwind formats, and the interface of a source of rules.

A rule says how to compute the caller's registers from the callee's:

    cfa = reg[cfa_reg] + cfa_off         or  [reg[cfa_reg] + cfa_off]  (cfa_deref)  or  expr(cfa_expr)
    ra, and each register in regs        = one of RegKind's formulas
    sp                                   = cfa, unless regs says otherwise
    registers not named                  keep their value if callee-saved, else are unknown

Registers are columns of the Arch (pyprof.model.arch), never a format's own numbers.

Rules are named tuples because each new row hashes its rule about a dozen times. A class hashes by a slower Python
function.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.unwind_result import Trust

Extents = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Start and end addresses of functions in an object file (svma), each an array of shape (n,), ascending by start."""


class RegKind(IntEnum):
    """The formula of an unwind rule for the caller's value of a register. The names n, reg and expr are fields of
    RegRule.
    """

    SAME = 0  # r = r
    UNDEFINED = 1  # r is lost; for ra: there is no caller
    AT_CFA = 2  # r = [cfa + n]
    CFA_PLUS = 3  # r = cfa + n
    REG_PLUS = 4  # r = reg[reg] + n
    AT_REG = 5  # r = [reg[reg] + n]
    AT_EXPR = 6  # r = [expr(expr)], cfa pushed first
    EXPR = 7  # r = expr(expr), cfa pushed first


class RegRule(NamedTuple):
    """The part of an unwind rule for one register: a RegKind and its operands."""

    kind: RegKind
    n: int = 0
    reg: int = -1
    expr: bytes = b""


SAME = RegRule(RegKind.SAME)
UNDEFINED = RegRule(RegKind.UNDEFINED)


class Rule(NamedTuple):
    """The unwind rule of a range of instructions.

    Attributes:
        cfa_reg: Column of the CFA's base register, or -1 if cfa_expr computes the CFA.
        cfa_off: Offset that is added to the base register.
        ra: Rule of the return address. UNDEFINED marks the outermost frame.
        regs: (column, rule) of each register that the format names.
        cfa_deref: The CFA is the word at that address.
        cfa_expr: DWARF expression of the CFA. Its module gives the base of its addresses.
        signal: The frame is a signal trampoline. A signal interrupted its caller, so the caller's pc is no return
            address.
        pac: The return address is signed. The unwinder strips the signature by the architecture's mask.
        replacing: The code overwrites the saved registers of its frame by those of another frame. Only the CFA is sure,
            and the return address must be proved.
        switching: The code has switched stacks. The caller's stack may be anywhere.
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
    switching: bool = False


class FunctionRows(NamedTuple):
    """The unwind rows of one function (one FDE). rules[i] holds from starts[i] up to starts[i + 1], the last one up to
    end.

    Attributes:
        start: First address of the function in the file (svma).
        end: Address after the function.
        starts: Start address of each row, ascending.
        rules: Rule of each row.
        repeat: Block size in bytes of a table that repeats (PLT), else 0.
    """

    start: int
    end: int
    starts: tuple[int, ...]
    rules: tuple[Rule, ...]
    repeat: int = 0


class Source(Protocol):
    """One unwind table of one object file. It decodes a function when a caller first needs it.

    Attributes:
        name: Name of the source, as in `--unwind`.
        trust: Trust value of the frames that its rules find.
    """

    name: str
    trust: Trust

    @property
    def exact(self) -> bool:
        """True if the unwind rules of the source hold at every instruction, not only at calls.

        Other sources are used last for a pc that is not a return address.
        """
        ...

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the unwind rows of the function that covers a file address, or None if the table does not cover it.

        Args:
            svma: Address in the file.

        Raises:
            FormatError: The table is broken at that place.
        """
        ...

    def extents(self) -> Extents:
        """Return the address ranges of all functions in an unwind table without decoding their rows, for inspection.

        Raises:
            FormatError: The table is broken.
        """
        ...

    def functions(self) -> Iterator[FunctionRows]:
        """Yield the unwind rows of all functions, ascending by start address; for inspection, not for unwinding."""
        ...
