"""Supported architectures, as data. To add one, add an Arch here; no other code depends on the architecture.

Each family has a file with its values. docs/porting.md describes how to add one.

arm               AArch64 and ARM (A32 and T32), each also with big-endian data
definition        The definition of an architecture, as a value
ppc               ppc64le: 64-bit PowerPC, little-endian, ELFv2 ABI
riscv             riscv64: 64-bit RISC-V, little-endian, with or without compressed instructions
s390              s390x and s390: 64-bit and 31-bit, big-endian
syscalls          Numbers of system calls in which threads sleep, by architecture, and names of all calls
x86               The architectures x86_64, x32 and i386, as values of Arch
x86_instructions  The length of x86 instructions, and frames and calls of code that has frame pointers
"""

from __future__ import annotations

from pyprof.model.arch.arm import AARCH64, AARCH64_BE, ARM, ARMEB
from pyprof.model.arch.definition import Arch, FrameChain, SigFrame
from pyprof.model.arch.ppc import PPC64LE
from pyprof.model.arch.riscv import RISCV64
from pyprof.model.arch.s390 import S390, S390X
from pyprof.model.arch.x86 import I386, X32, X86_64

__all__ = [
    "AARCH64",
    "AARCH64_BE",
    "ARCHES",
    "ARM",
    "ARMEB",
    "I386",
    "PPC64LE",
    "RISCV64",
    "S390",
    "S390X",
    "X32",
    "X86_64",
    "Arch",
    "FrameChain",
    "SigFrame",
    "breakpad_arch",
    "find_arch",
    "native_arches",
]

_ALL = (X86_64, I386, X32, AARCH64, AARCH64_BE, ARM, ARMEB, S390X, S390, PPC64LE, RISCV64)

ARCHES: dict[tuple[int, int, str], Arch] = {(a.elf_machine, a.elf_class, a.byteorder): a for a in _ALL}
"""Supported architectures by ELF (e_machine, class 32 or 64, byte order of data "little" or "big")."""


def native_arches(machine: str) -> tuple[Arch, ...]:
    """Return the architectures that the kernel of a machine (uname -m) runs itself, wider words first."""
    return tuple(arch for arch in _ALL if machine in arch.kernel.machines)


def find_arch(elf_machine: int, elf_class: int, byteorder: str) -> Arch | None:
    """Return the architecture of an ELF header, or None if it is not supported."""
    return ARCHES.get((elf_machine, elf_class, byteorder))


def breakpad_arch(name: str) -> Arch | None:
    """Return the architecture of a MODULE record in a Breakpad symbol file, or None if it is not supported."""
    return next((arch for arch in _ALL if name in arch.breakpad), None)
