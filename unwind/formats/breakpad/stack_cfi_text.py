"""A writer of rows as STACK CFI records.

Rows that postfix expressions cannot express are left out of the file and counted: signal frames, outermost frames,
DWARF expressions. A register that only an expression finds is written as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyprof.model.arch import Arch
from pyprof.unwind.formats.breakpad.postfix import UNDEF
from pyprof.unwind.formats.breakpad.stack_cfi import DOLLAR
from pyprof.unwind.rules import SAME, UNDEFINED, FunctionRows, RegKind, RegRule, Rule

MAX_BLOCKS = 1 << 12
"""Maximum number of blocks of a repeating table (PLT) that are written as STACK CFI. A table with more is left out."""

Said = dict[str, str]
"""Postfix expressions of a STACK CFI record by register name."""


class CfiText:
    """A writer of one architecture's unwind rows as STACK CFI records.

    Attributes:
        left_out: Number of rows that were left out, by reason.
        written: Number of rows that were written.
    """

    def __init__(self, arch: Arch, base: int) -> None:
        """Create a writer of STACK CFI records for an architecture and the place of the module.

        Args:
            arch: The architecture.
            base: File address (svma) of the module's load address.
        """
        self._arch = arch
        self._base = base
        self._prefix = "$" if arch.name in DOLLAR else ""
        self.left_out: Counter[str] = Counter()
        self.written = 0

    def write_records(self, function: FunctionRows) -> Iterator[str]:
        """Yield the STACK CFI records of one function, with an INIT record for each run of rows that can be written."""
        step = function.repeat or function.end - function.start
        if function.repeat and (function.end - function.start) // step > MAX_BLOCKS:
            self.left_out["tables that repeat too often"] += 1
            return
        for block in range(function.start, function.end, step):
            shift = block - function.start
            limit = min(block + step, function.end)
            ends = [*(start + shift for start in function.starts[1:]), limit]
            run: list[tuple[int, int, Said]] = []
            for start, end, rule in zip(function.starts, ends, function.rules, strict=True):
                said = self.rule_expressions(rule)
                if said is not None and start + shift < min(end, limit):
                    run.append((start + shift, min(end, limit), said))
                elif said is None:
                    yield from self._run(run)
                    run = []
            yield from self._run(run)

    def _run(self, run: list[tuple[int, int, Said]]) -> Iterator[str]:
        if not run:
            return
        self.written += len(run)
        start, _, before = run[0]
        size = run[-1][1] - start
        yield f"STACK CFI INIT {start - self._base:x} {size:x} {_words(before)}"
        for start, _, said in run[1:]:
            changed = {name: how for name, how in said.items() if before.get(name) != how}
            changed |= {name: self._unsaid(name) for name in before if name not in said}
            if changed:
                yield f"STACK CFI {start - self._base:x} {_words(changed)}"
            before = {**before, **changed}

    def rule_expressions(self, rule: Rule) -> Said | None:
        """Return the STACK CFI expressions of a rule, or None if it cannot be written, which is counted."""
        arch = self._arch
        reason = _unsayable(rule, arch)
        if reason:
            self.left_out[reason] += 1
            return None
        cfa = self._sum(self.name(rule.cfa_reg), rule.cfa_off) + " ^" * rule.cfa_deref
        ra = RegRule(RegKind.REG_PLUS, 0, arch.lr) if rule.ra == SAME else rule.ra
        said = {".cfa": cfa, ".ra": self._value(ra, arch.pc)}
        for column, how in rule.regs:
            if column == arch.pc or (how == UNDEFINED and column not in arch.callee_saved and column != arch.sp):
                continue
            if how.kind in (RegKind.EXPR, RegKind.AT_EXPR):
                self.left_out["registers by expressions (written as lost)"] += 1
            said[self.name(column)] = self._value(how, column)
        return said

    def name(self, column: int) -> str:
        return self._prefix + self._arch.registers[column]

    def _unsaid(self, name: str) -> str:
        """Return the STACK CFI expression of a register that a row does not name although the row before it did."""
        column = self._arch.registers.index(name.removeprefix("$"))
        if column == self._arch.sp:
            return ".cfa"
        return name if column in self._arch.callee_saved else UNDEF

    def _value(self, rule: RegRule, column: int) -> str:
        match rule.kind:
            case RegKind.SAME:
                return self.name(column)
            case RegKind.AT_CFA:
                return self._sum(".cfa", rule.n) + " ^"
            case RegKind.CFA_PLUS:
                return self._sum(".cfa", rule.n)
            case RegKind.REG_PLUS:
                return self._sum(self.name(rule.reg), rule.n)
            case RegKind.AT_REG:
                return self._sum(self.name(rule.reg), rule.n) + " ^"
            case _:
                return UNDEF

    def _sum(self, base: str, n: int) -> str:
        return f"{base} {n} +" if n else base


def _words(said: Said) -> str:
    return " ".join(f"{name}: {how}" for name, how in said.items())


def _unsayable(rule: Rule, arch: Arch) -> str:
    """Return why an unwind rule cannot be written as STACK CFI, "" if it can."""
    if rule.ra.kind is RegKind.UNDEFINED:
        return "outermost frames"
    if rule.signal:
        return "signal frames"
    if rule.cfa_reg < 0 or rule.ra.kind in (RegKind.EXPR, RegKind.AT_EXPR):
        return "expressions"
    if rule.ra.kind is RegKind.SAME and arch.lr < 0:
        return "return addresses that are where they were"
    return ""
