"""The rule for the kernel's signal frame, by its layout, if no table covers the trampoline."""

from __future__ import annotations

from pyprof.model.arch import Arch, SigFrame
from pyprof.unwind.rules import RegKind, RegRule, Rule


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
