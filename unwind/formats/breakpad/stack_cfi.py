"""STACK CFI records of a Breakpad symbol file as an unwind source.

A register whose rule cannot be executed counts as lost. A row is left out if its .cfa or .ra is absent or cannot be
executed, so that the next source is used.
Source: docs/symbol_files.md of Breakpad; src/processor/cfi_frame_info.cc; for names, src/common/dwarf_cfi_to_module.cc
and src/processor/stackwalker_*.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import Arch
from pyprof.model.walk import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad.symbol_file import Rules, SymbolFile
from pyprof.unwind.formats.breakpad.postfix import PostfixFailed
from pyprof.unwind.formats.breakpad.postfix_rules import RuleCompiler
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

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
        """Return the STACK CFI rows around a file address that have a rule, or None."""
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
        """Yield runs of STACK CFI rows without a gap. A record changes only the registers that it names."""
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
    """Return a function that opens STACK CFI records as an unwind source (a Reader of unwind/module_sources.py).

    Args:
        find: Finds the symbol file of an object file.
    """

    def read(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> StackCfi | None:
        return StackCfi(lambda: find(file), file.min_vaddr, arch, diagnostics)

    return read
