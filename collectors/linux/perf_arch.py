"""The architecture whose registers perf_events sample here, and that of its 32-bit code. There is no other collector
of perf_events than that of x86-64.
"""

from __future__ import annotations

from pyprof.model.arch import I386, X86_64, Arch

WIDE: Arch = X86_64
NARROW: Arch = I386

NARROW_IN_WIDE = [0, 2, 1, 3, 7, 6, 4, 5, 16]
"""The columns of WIDE that hold eax, ecx, edx, ebx, esp, ebp, esi, edi and eip of 32-bit code."""

RESULT, CALL_PC = WIDE.registers.index("rax"), WIDE.registers.index("rcx")
"""Columns of a system call's result, and of the one to which its instruction copies the pc."""
