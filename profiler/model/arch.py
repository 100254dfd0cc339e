"""Architectures as data. Adding one means adding an Arch here; nothing else decides by architecture.

Porting checklist: register columns in DWARF order, the columns of pc, sp, fp (lr), the slots of the
kernel's NT_PRSTATUS register set, how a call ends (follows_call), and what the kernel's signal trampoline
looks like (sigreturn_code, sigcontext).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """One architecture.

    registers: column names; a column's index is its place in SampleBatch.regs.
    dwarf: DWARF register number -> column. ra_dwarf: the usual return-address column of CIEs.
    word: bytes of an address. byteorder: "little" or "big".
    lr: column of the link register, or -1 where the call pushes the return address.
    prstatus: for each column the index of its word in the kernel's user_regs_struct.
    syscall_return: index of the word of user_regs_struct with a system call's result; syscall_number likewise.
    sigreturn_code: bytes at the start of the signal trampoline (where no unwind table covers it).
    sigcontext: column -> offset from sp, at the trampoline's first instruction, where the register was saved.
    follows_call: (code bytes before an address) -> could the instruction that ends there be a call?
    """

    name: str
    elf_machine: int
    elf_class: int
    byteorder: str
    word: int
    registers: tuple[str, ...]
    dwarf: dict[int, int]
    ra_dwarf: int
    pc: int
    sp: int
    fp: int
    lr: int
    callee_saved: frozenset[int]
    prstatus: tuple[int, ...]
    syscall_return: int
    syscall_number: int
    sigreturn_code: bytes
    sigcontext: dict[int, int]
    follows_call: Callable[[bytes], bool]

    @property
    def mask(self) -> int:
        """All ones of one address."""
        return (1 << (8 * self.word)) - 1


def _x86_follows_call(code: bytes) -> bool:
    """code: up to 8 bytes that end at the return address. call rel32, call r/m (ff /2), with any prefix."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    for length in (2, 3, 4, 6, 7):  # ff /2: the ModRM byte tells the length of the rest
        if len(code) < length or code[-length] != 0xFF:
            continue
        modrm = code[-length + 1]
        if (modrm >> 3) & 7 != 2:
            continue
        mod, rm = modrm >> 6, modrm & 7
        rest = 0
        if mod != 3 and rm == 4:
            rest += 1  # SIB
            if mod == 0 and length >= 3 and code[-length + 2] & 7 == 5:
                rest += 4
        if mod == 1:
            rest += 1
        elif mod == 2 or (mod == 0 and rm == 5):
            rest += 4
        if length == 2 + rest:
            return True
    return False


_X86_64_NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *tuple(f"r{n}" for n in range(8, 16)), "rip")

# user_regs_struct: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss ...
_X86_64_PRSTATUS = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)

# struct rt_sigframe at the trampoline: sp points at ucontext; uc_mcontext at +40: r8 r9 r10 r11 r12 r13 r14
# r15 rdi rsi rbp rbx rdx rax rcx rsp rip (kernel: arch/x86/include/uapi/asm/sigcontext.h)
_X86_64_GREGS = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)

X86_64 = Arch(
    name="x86_64",
    elf_machine=62,
    elf_class=64,
    byteorder="little",
    word=8,
    registers=_X86_64_NAMES,
    dwarf={n: n for n in range(17)},
    ra_dwarf=16,
    pc=16,
    sp=7,
    fp=6,
    lr=-1,
    callee_saved=frozenset({3, 6, 12, 13, 14, 15}),
    prstatus=_X86_64_PRSTATUS,
    syscall_return=10,
    syscall_number=15,
    sigreturn_code=bytes.fromhex("48c7c00f0000000f05"),  # mov $15,%rax; syscall
    sigcontext={column: 40 + 8 * slot for slot, column in enumerate(_X86_64_GREGS)},
    follows_call=_x86_follows_call,
)

ARCHES: dict[int, Arch] = {X86_64.elf_machine: X86_64}
"""Supported architectures by ELF e_machine (with elf_class)."""
