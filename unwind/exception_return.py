"""What a Cortex-M's hardware pushed when it interrupted code (ARMv8-M ARM, "Exception entry", "EXC_RETURN").

A handler returns to no address but to EXC_RETURN: ones, and in the lowest bits how to go back. Bit 4 clear: the frame
holds floating-point registers too; bit 2: it lies on the process stack. The frame, upwards from sp: r0-r3, r12, lr, pc,
xPSR, where bit 9 of xPSR says that one more word was skipped to align the stack.
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.walk import StackEnd, Trust
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import Caller, NoCaller, Outcome, Registers

AT_RESET = 0b10
"""A bit that EXC_RETURN never has, and all ones have: what lr holds when the program begins."""

PROCESS_STACK, NO_FLOATS = 1 << 2, 1 << 4
_SAVED = (0, 1, 2, 3, 12, 14, 15)
_XPSR = 7
_ALIGNED = 1 << 9
_SHORT, _LONG = 8, 26
"""Words of the two frames."""


def interrupted(registers: Registers, memory: LaneMemory, arch: Arch) -> Outcome:
    """The code that a handler interrupted, all its registers known. registers: as the handler returns."""
    how, sp = registers.values[arch.pc] or 0, registers.values[arch.sp]
    if how & AT_RESET:
        return NoCaller(StackEnd.ROOT, no_frame=True)
    if how & PROCESS_STACK or sp is None:  # the stack pointer of tasks is none of our registers
        return NoCaller(StackEnd.NO_RULE)
    values = list(registers.values)
    for slot, column in enumerate(_SAVED):
        values[column] = memory.word(sp + arch.word * slot)
        if values[column] is None:
            return NoCaller(StackEnd.UNREADABLE, missing=sp + arch.word * slot)
    status = memory.word(sp + arch.word * _XPSR)
    if status is None:
        return NoCaller(StackEnd.UNREADABLE, missing=sp + arch.word * _XPSR)
    size = (_SHORT if how & NO_FLOATS else _LONG) + bool(status & _ALIGNED)
    values[arch.sp] = sp + arch.word * size & arch.mask
    values[arch.pc] = arch.code_address(values[arch.pc] or 0)
    return Caller(Registers(values, True), values[arch.sp] or 0, Trust.SIGRETURN)
