"""A comparison of SFrame and .eh_frame of one file at every row, for what SFrame can express: cfa, ra, fp and flags."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.model.arch import Arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import open_eh_frame
from pyprof.unwind.formats.sframe_source import open_sframe
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import SAME, FunctionRows, RegKind, Rule, Source

LD_PLT = {bytes.fromhex("770880003f1a3b2a332422"): 11, bytes.fromhex("770880003f1a392a332422"): 9}
"""Expressions for the CFA of a lazy PLT in .eh_frame: sp + 8 + ((pc & 15) >= N) * 8, with N.

SFrame expresses the same by a repeating block.
"""


def rule_at(rows: FunctionRows | None, svma: int) -> Rule | None:
    if rows is None:
        return None
    if rows.repeat:
        svma = rows.start + (svma - rows.start) % rows.repeat
    found = None
    for start, rule in zip(rows.starts, rows.rules, strict=True):
        if start <= svma:
            found = rule
    return found


def tracked(rule: Rule | None, arch: Arch, svma: int) -> str:
    """Return the part of a rule that SFrame can express, as text.

    A rule that depends on the pc is evaluated at svma.
    """
    if rule is None:
        return "no row"
    if rule.cfa_expr in LD_PLT:
        pushed = svma & 15 >= LD_PLT[rule.cfa_expr]
        rule = rule._replace(cfa_expr=b"", cfa_reg=arch.sp, cfa_off=8 + 8 * pushed)
    if rule.ra.kind == RegKind.UNDEFINED:
        return "outermost"
    fp = dict(rule.regs).get(arch.fp, SAME)
    return describe_rule(rule._replace(regs=((arch.fp, fp),)), arch)


def boundaries(rows: FunctionRows) -> set[int]:
    plt = next((LD_PLT[rule.cfa_expr] for rule in rows.rules if rule.cfa_expr in LD_PLT), 0)
    if plt:
        return {block + at for block in range(rows.start & -16, rows.end, 16) for at in (0, plt)}
    if not rows.repeat:
        return set(rows.starts)
    return {at + block for at in rows.starts for block in range(0, rows.end - rows.start, rows.repeat)}


def differences(elf: ElfFile, arch: Arch) -> Iterator[tuple[int, str, str]]:
    """Yield (svma, rule of SFrame, rule of .eh_frame) for each row of either at which they differ.

    Functions without SFrame data are no difference.
    """
    diagnostics = Diagnostics()
    sframe: Source | None = open_sframe(elf, arch, diagnostics)
    eh_frame: Source | None = open_eh_frame(elf, arch, diagnostics)
    assert sframe is not None
    assert eh_frame is not None
    for rows in sframe.functions():
        at: set[int] = boundaries(rows)
        svma = rows.start
        while svma < rows.end:  # a PLT is one function in SFrame and possibly several in .eh_frame
            other = eh_frame.function_at(svma)
            at |= set() if other is None else boundaries(other)
            svma = rows.end if other is None else max(other.end, svma + 1)
        for svma in sorted(svma for svma in at if rows.start <= svma < rows.end):
            theirs = rule_at(eh_frame.function_at(svma), svma)
            ours = tracked(rule_at(sframe.function_at(svma), svma), arch, svma), tracked(theirs, arch, svma)
            if ours[0] != ours[1]:
                yield svma, *ours
