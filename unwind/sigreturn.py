"""The kernel's signal frame where no table covers the trampoline, by its known layout."""

from __future__ import annotations

from collections.abc import Callable

from pyprof.model.arch import Arch, SigFrame
from pyprof.unwind.rules import RegKind, RegRule, Rule


def sigreturn_rule(arch: Arch, frame: SigFrame) -> Rule:
    """All registers from the signal context: r = [sp + offset], sp too."""
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


def find_trampoline(arch: Arch, read: Callable[[int, int], bytes], pc: int, exact: bool) -> SigFrame | None:
    """The signal trampoline that pc is in. read: (avma, size) -> code bytes.

    A handler returns to the trampoline's first byte; an exact pc may stand behind any instruction of it that leaves sp
    alone: all but a pop at its start.
    """
    for frame in arch.sigframes:
        size = len(frame.code)
        if not size:
            continue
        if read(pc, size) == frame.code or (exact and frame.code in read(pc - size + 1, 2 * size - 1)):
            return frame
    return None
