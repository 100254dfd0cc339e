"""The architecture that perf_events and BPF programs sample on this machine, and that of its 32-bit code."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import AARCH64, ARM, I386, X86_64, Arch

IN_REGISTER = -2
"""A result of PerfArch.coded_call: a register has the number of the system call, see PerfArch.call_column."""


@dataclass(frozen=True, slots=True)
class PerfArch:
    """The description of kernel samples (perf_events, BPF) on one architecture, such as their registers.

    Attributes:
        wide: Architecture of 64-bit code.
        narrow: Architecture of 32-bit code.
        narrow_columns: Register column of `wide` that contains each column of `narrow`.
        sampled: Value of struct perf_event_attr.sample_regs_user (asm/perf_regs.h) that requests all columns
            of `wide`.
        words: Index of each column of `wide` among the register words of a perf_events sample.
        first_argument: Register column of a system call's first argument.
        coded_call: Function that decodes the number of a system call from the 8 bytes of code before its
            return address. It returns IN_REGISTER if a register has the number, -1 if it is unknown or there
            is no such call.
        thread_pointer: Name of the member of the kernel's struct thread_struct that has the thread pointer
            first.
        call_pc: Register column that equals pc in a system call, -1 if there is none.
        result: Register column that is -ENOSYS in a system call, -1 if there is none.
        call_column: Register column that has the number of the system call, if coded_call returned
            IN_REGISTER.
        ordered: True if a processor sees the writes of another processor in their order.
    """

    wide: Arch
    narrow: Arch
    narrow_columns: tuple[int, ...]
    sampled: int
    words: tuple[int, ...]
    first_argument: int
    coded_call: Callable[[bytes], int]
    thread_pointer: str
    call_pc: int = -1
    result: int = -1
    call_column: int = -1
    ordered: bool = False


def _call_of_x86_64(code: bytes) -> int:
    """Return the number of the system call of x86-64 code that ends with a `syscall` after an instruction that sets
    eax, or -1.
    """
    if len(code) != 8 or code[6:] != b"\x0f\x05":
        return -1
    if code[1] == 0xB8 and code[0] & 0xF0 != 0x40:  # mov $number,%eax; with 0x41 before it another register
        return int(struct.unpack_from("<i", code, 2)[0])
    if code[4:6] in (b"\x31\xc0", b"\x33\xc0"):  # xor %eax,%eax
        return 0
    return -1


def _call_of_aarch64(code: bytes) -> int:
    """Return IN_REGISTER if aarch64 code ends with `svc #0`: the kernel leaves the number in x8. Otherwise return
    -1.
    """
    return IN_REGISTER if code[-4:] == bytes.fromhex("010000d4") else -1


PERF_ARCHES = {
    "x86_64": PerfArch(
        wide=X86_64,
        narrow=I386,
        narrow_columns=(0, 2, 1, 3, 7, 6, 4, 5, 16),  # eax, ecx, edx, ebx, esp, ebp, esi, edi, eip
        sampled=0x1FF | 0xFF << 16,  # 16 general registers and ip, without flags and segments
        words=(0, 3, 2, 1, 4, 5, 6, 7, *range(9, 17), 8),  # they are ax bx cx dx si di bp sp ip r8..r15
        first_argument=X86_64.registers.index("rdi"),
        coded_call=_call_of_x86_64,
        thread_pointer="fsbase",
        call_pc=X86_64.registers.index("rcx"),
        result=X86_64.registers.index("rax"),
        ordered=True,
    ),
    "aarch64": PerfArch(
        wide=AARCH64,
        narrow=ARM,
        narrow_columns=(*range(15), 32),  # r0..r12, sp and lr are in x0..x14
        sampled=(1 << 33) - 1,  # x0..x30, sp, pc
        words=tuple(range(33)),
        first_argument=0,
        coded_call=_call_of_aarch64,
        thread_pointer="uw",
        call_column=8,
    ),
}
"""Descriptions of kernel samples for each supported machine, by the output of `uname -m`."""

MACHINE = os.uname().machine
KNOWN_MACHINES = " and ".join(PERF_ARCHES)
"""Names of the machines on which the kernel's samples are supported, for messages."""
HERE = PERF_ARCHES.get(MACHINE, PERF_ARCHES["x86_64"])
WIDE, NARROW = HERE.wide, HERE.narrow


def order_reads() -> None:
    """Order reads of shared memory: after a word was read, later reads see what was written before that word.

    A processor that has read the word and then returns from a system call has no older values of others (ARM ARM, B2.3:
    a control dependency and a context synchronization event).
    """
    if not HERE.ordered:
        os.getppid()
