"""Frames inside the innermost user frame: kernel frames, and the system call in which a thread sleeps."""

from __future__ import annotations

from typing import NamedTuple

KERNEL_HALF = 1 << 63
NOT_ONE_BY_ONE = -2
"""Value that replaces a system call number, for many waits of which only the sum is known."""


class Blocked(NamedTuple):
    """The system call in which a thread waits.

    Attributes:
        arch: Name of the architecture.
        state: The letter in /proc/TID/stat.
        call: Number of the system call, -1 outside of one, or NOT_ONE_BY_ONE.
    """

    arch: str
    state: str
    call: int = -1


KernelFrame = int | Blocked
"""An address in the kernel's half of the address space, or the wait of a thread."""
KernelStack = tuple[KernelFrame, ...]
"""Type of the kernel frames of a sample, innermost first."""
