"""What stands inside the innermost frame of user code: frames of the kernel, and the call in which a thread sleeps."""

from __future__ import annotations

from typing import NamedTuple

KERNEL_HALF = 1 << 63
NOT_ONE_BY_ONE = -2
"""In place of a system call: many waits of which only the sum is known."""


class Blocked(NamedTuple):
    """arch: its name. state: the letter of /proc/TID/stat. call: number of the system call, -1 outside of one, or
    NOT_ONE_BY_ONE.
    """

    arch: str
    state: str
    call: int = -1


KernelFrame = int | Blocked
"""An address in the kernel's half, or the wait of a thread."""
KernelStack = tuple[KernelFrame, ...]
"""Innermost first."""
