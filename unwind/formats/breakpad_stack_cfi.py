"""STACK CFI records of a Breakpad symbol file: an unwind source, and a writer.

A register whose rule cannot be executed counts as lost. A row is left out if its .cfa or .ra is absent or cannot be
executed, so that the next source is used.
Source: docs/symbol_files.md of Breakpad; src/processor/cfi_frame_info.cc; for names, src/common/dwarf_cfi_to_module.cc
and src/processor/stackwalker_*.cc.

Rows that postfix expressions cannot express are left out of the file and counted: signal frames, outermost frames,
DWARF expressions. A register that only an expression finds is written as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from pyprof.model.arch import Arch
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad_symbol_file import Rules, SymbolFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.breakpad_postfix_expressions import UNDEF, PostfixFailed, RuleCompiler
from pyprof.unwind.rules import SAME, UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

ALIASES = {
    "arm": {"fp": "r11", "ip": "r12", "r13": "sp", "r14": "lr", "r15": "pc"},
    "aarch64": {"fp": "x29", "lr": "x30", "x31": "sp", "x32": "pc"},
}
"""Names of registers in Breakpad symbol files in addition to the architecture's own."""

DOLLAR = frozenset({"x86_64", "i386"})
"""Architectures whose registers Breakpad writes with a "$". The reader accepts both forms everywhere."""

MAX_KNOWN = 1 << 14
"""Maximum number of STACK CFI rule texts whose compiled rules are cached."""

FindSymbols = Callable[[ObjectFile], SymbolFile | None]


class StackCfi:
    """An unwind source from the STACK CFI records of a Breakpad symbol file. Implements
    pyprof.unwind.rules.Source.

    The symbol file is searched for at the first lookup, because a module with complete tables needs none.
    """

    name = "breakpad"
    trust = Trust.BREAKPAD
    exact = True

    def __init__(self, find: Callable[[], SymbolFile | None], base: int, arch: Arch, diagnostics: Diagnostics) -> None:
        """Create an unwind source from a module's Breakpad symbol file.

        Args:
            find: Finds the symbol file.
            base: File address (svma) of the module's load address.
            arch: The architecture.
            diagnostics: Counters of the recording.
        """
        self._find = find
        self._base = base
        self._diagnostics = diagnostics
        self._file: SymbolFile | None = None
        self._searched = False
        self._arch = arch
        self._names = RegisterNames(arch)
        self._compiler = RuleCompiler(arch, self._names.column)
        self._known: dict[tuple[tuple[str, str], ...], Rule | None] = {}

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the consecutive unwind rows, by STACK CFI records, that cover a file address. None if no usable row
        covers it.
        """
        file = self.file
        found = file.cfi_at(svma - self._base) if file else None
        if found is None:
            return None
        return next((rows for rows in self._rows(*found) if rows.start <= svma < rows.end), None)

    def extents(self) -> Extents:
        if self.file is None:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        ranges = self.file.index.cfi
        start = ranges.address + np.uint64(self._base)
        return start, start + ranges.size

    def functions(self) -> Iterator[FunctionRows]:
        for found in self.file.cfi_ranges() if self.file else ():
            yield from self._rows(*found)

    @property
    def file(self) -> SymbolFile | None:
        if not self._searched:
            self._searched = True
            self._file = self._find()
        return self._file

    def _rows(self, start: int, end: int, entries: list[tuple[int, Rules]]) -> Iterator[FunctionRows]:
        """Yield groups of consecutive STACK CFI rows without gaps between them. Each record changes only the registers
        that it names.
        """
        said: Rules = {}
        starts: list[int] = []
        rules: list[Rule] = []
        for place, (address, changed) in enumerate(entries):
            said = {**said, **changed}
            if place + 1 < len(entries) and entries[place + 1][0] == address:
                continue
            rule = self._rule(said)
            if rule is None and starts:
                yield self._run(starts, address, rules)
                starts, rules = [], []
            elif rule is not None and not (rules and rule == rules[-1]):
                starts.append(address)
                rules.append(rule)
        if starts:
            yield self._run(starts, end, rules)

    def _run(self, starts: list[int], end: int, rules: list[Rule]) -> FunctionRows:
        base = self._base
        return FunctionRows(base + starts[0], base + end, tuple(base + start for start in starts), tuple(rules))

    def _rule(self, said: Rules) -> Rule | None:
        key = tuple(said.items())
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._compiled(said)
        return self._known[key]

    def _compiled(self, said: Rules) -> Rule | None:
        """Return the unwind rule of a STACK CFI row, or None if the row cannot be used."""
        compiler = self._compiler
        try:
            cfa_reg, cfa_off, cfa_deref, cfa_expr = compiler.compile_cfa(said.get(".cfa", ""))
            ra = compiler.compile_register(said.get(".ra", ""), -1)
        except PostfixFailed:
            self._diagnostics.count("stack_cfi_row_unusable")
            return None
        regs: dict[int, RegRule] = {}
        for name, expression in said.items():
            column = self._names.column(name)
            if column is None:
                if name not in (".cfa", ".ra"):
                    self._diagnostics.count("stack_cfi_register_unknown")
                continue
            try:
                regs[column] = compiler.compile_register(expression, column)
            except PostfixFailed:
                self._diagnostics.count("stack_cfi_rule_unusable")
                regs[column] = UNDEFINED
        pc = regs.pop(self._arch.pc, UNDEFINED)
        if pc != UNDEFINED:  # if the caller's pc itself is stated, .ra is not the return address
            ra = pc
        if regs.get(self._arch.sp) == RegRule(RegKind.CFA_PLUS, self._arch.sp_off):
            del regs[self._arch.sp]  # the default; without it the rule is a fast one
        signed = self._arch.pac_mask != 0
        return Rule(cfa_reg, cfa_off, ra, tuple(sorted(regs.items())), cfa_deref, cfa_expr, pac=signed)


class RegisterNames:
    """The registers of an architecture by Breakpad's names, with and without "$"."""

    def __init__(self, arch: Arch) -> None:
        names = {name: column for column, name in enumerate(arch.registers)}
        for alias, name in ALIASES.get(arch.name.removesuffix("_be"), {}).items():
            if name in names:
                names.setdefault(alias, names[name])
        self._columns = names

    def column(self, name: str) -> int | None:
        return self._columns.get(name.removeprefix("$"))


def breakpad_reader(find: FindSymbols) -> Callable[[ObjectFile, Arch, Diagnostics], StackCfi | None]:
    """Return a function that opens STACK CFI records as an unwind source (a Reader of unwind/module_unwind_sources.py).

    Args:
        find: Finds the symbol file of an object file.
    """

    def read(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> StackCfi | None:
        return StackCfi(lambda: find(file), file.min_vaddr, arch, diagnostics)

    return read


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
        """Return the STACK CFI expressions of an unwind rule by register name. If the rule cannot be written, count it
        and return None.
        """
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
        """Return the STACK CFI expression that cancels the rule of a register: the row before describes the register,
        the current row does not.
        """
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
    """Return the reason why an unwind rule cannot be expressed as STACK CFI, or "" if it can be."""
    if rule.ra.kind is RegKind.UNDEFINED:
        return "outermost frames"
    if rule.signal:
        return "signal frames"
    if rule.cfa_reg < 0 or rule.ra.kind in (RegKind.EXPR, RegKind.AT_EXPR):
        return "expressions"
    if rule.ra.kind is RegKind.SAME and arch.lr < 0:
        return "return addresses that are where they were"
    return ""
