"""Rules for code without tables, from the instructions between the pc and the return.

Every instruction up to the return must move sp, pop a register, or be a call that returns. Then these instructions say
exactly where the caller's registers are. Otherwise there is no rule. This finds the callers of generated trampolines
and of epilogues. CPython's perf trampolines (`sub $8,%rsp; call *%rcx; add $8,%rsp; ret`) have neither a table nor a
frame record.

The kernel's signal frame is found by its layout if no table covers the trampoline that returns from a handler.
"""

from __future__ import annotations

from pyprof.model.arch import Arch, SigFrame
from pyprof.unwind.rules import RegKind, RegRule, Rule

MAX_CODE = 64
"""Maximum number of bytes of code that are examined for a path to the return."""


def epilogue_rule(arch: Arch, code: bytes) -> Rule | None:
    """Return the unwind rule at the first instruction of some code, or None if the code does not lead straight to a
    return.
    """
    steps = arch.calls.epilogue(code) if arch.calls.epilogue is not None else None
    if steps is None:
        return None
    base, height = arch.sp, 0
    found: dict[int, int] = {}  # column -> offset from base of the word that it is popped from
    pushed: dict[int, int] = {}  # offset of a word that is pushed on the way -> column
    for what, operand in steps:
        if what == "sp":
            height += operand
        elif what == "push":
            height -= arch.word
            pushed[height] = operand
        elif what == "fp":  # sp = fp
            if found or base != arch.sp:
                return None
            base, height = arch.fp, 0
            pushed.clear()
        else:
            if height in pushed:
                if pushed[height] != operand:
                    return None
            elif height < 0 or operand in found:
                return None
            else:
                found[operand] = height
            height += arch.word
    cfa = height + arch.word
    regs = {column: RegRule(RegKind.AT_CFA, offset - cfa) for column, offset in found.items()}
    if height < 0:
        return None
    return Rule(base, cfa, RegRule(RegKind.AT_CFA, -arch.word), tuple(sorted(regs.items())))


def sigreturn_rule(arch: Arch, frame: SigFrame) -> Rule:
    """Return the unwind rule that restores all registers, sp included, from the kernel's signal context: r = [sp +
    offset].
    """
    regs = tuple(
        (column, RegRule(RegKind.AT_REG, offset, arch.sp))
        for column, offset in sorted(frame.saved.items())
        if column != arch.pc
    )
    return Rule(
        cfa_reg=arch.sp,
        cfa_off=frame.saved[arch.sp],
        cfa_deref=True,
        ra=RegRule(RegKind.AT_REG, frame.saved[arch.pc], arch.sp),
        regs=regs,
        signal=True,
    )
