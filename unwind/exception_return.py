"""The frame that a Cortex-M pushes when it enters an exception handler (ARMv8-M ARM, "Exception entry", "EXC_RETURN").

A handler returns to the value EXC_RETURN, which is no code address: its high bits are ones, and its low bits say how to
return. If bit 4 is clear, the frame holds floating-point registers too. If bit 2 is set, the frame lies on the process
stack. The frame holds, upwards from sp: r0-r3, r12, lr, pc, xPSR. Bit 9 of xPSR says that one more word was skipped to
align the stack.
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.walk import StackEnd, Trust
from pyprof.unwind.sample_memory import LaneMemory
from pyprof.unwind.scalar import Caller, NoCaller, Outcome, Registers

AT_RESET = 0b10
"""A bit that EXC_RETURN never has. At reset lr is all ones, so the bit marks the start of the program."""

PROCESS_STACK, NO_FLOATS = 1 << 2, 1 << 4
_SAVED = (0, 1, 2, 3, 12, 14, 15)
_XPSR = 7
_ALIGNED = 1 << 9
_SHORT, _LONG = 8, 26
"""Sizes in words of the frame that a Cortex-M pushes for an exception, without and with floating-point registers."""


def find_interrupted(registers: Registers, memory: LaneMemory, arch: Arch) -> Outcome:
    """Return the caller of a Cortex-M exception handler: the code that the exception interrupted, with all its
    registers.

    Args:
        registers: Registers after the handler's return. The pc is the EXC_RETURN value.
        memory: The memory of the sample.
        arch: The architecture.
    """
    how, sp = registers.values[arch.pc] or 0, registers.values[arch.sp]
    if how & AT_RESET:
        return NoCaller(StackEnd.ROOT, no_frame=True)
    if how & PROCESS_STACK or sp is None:  # the samples do not contain the process stack pointer
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
