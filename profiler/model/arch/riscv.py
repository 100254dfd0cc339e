"""riscv64: 64-bit RISC-V, little-endian, with or without compressed instructions.

Sources: "RISC-V Calling Conventions" and "RISC-V ELF Specification" of the psABI; the instruction set manual, volume 1;
arch/riscv/include/uapi/asm of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.model.arch import syscalls
from pyprof.model.arch.definition import Arch, CallConvention, FrameChain, Kernel, PltCode, SigFrame, Signals

_RA, _SP, _T0, _S0, _T3 = 1, 2, 5, 8, 28
"""Numbers of registers in RISC-V instructions: ra, sp, t0, s0, t3."""


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


def _instructions(code: bytes) -> Iterator[int]:
    """Yield the RISC-V instructions of 16 and 32 bits, up to the first incomplete one."""
    at = 0
    while at + 2 <= len(code):
        size = 4 if code[at] & 3 == 3 else 2
        if at + size > len(code):
            return
        yield int.from_bytes(code[at : at + size], "little")
        at += size


def _follows_call(code: bytes) -> bool:
    """Match a RISC-V jal or jalr with ra or t0 as link register, or c.jalr, before the return address at the end of the
    code.
    """
    half = int.from_bytes(code[-2:], "little")
    if len(code) >= 2 and half & 0xF07F == 0x9002 and half != 0x9002:
        return True
    word = int.from_bytes(code[-4:], "little")
    links = word >> 7 & 31 in (_RA, _T0)
    return len(code) >= 4 and links and (word & 0x7F == 0x6F or word & 0x707F == 0x67)


def _jump_offset(word: int) -> int:
    """Return the immediate of a RISC-V jal instruction, in bytes."""
    bits = word >> 31 << 20 | (word >> 12 & 0xFF) << 12 | (word >> 20 & 1) << 11 | (word >> 21 & 0x3FF) << 1
    return _signed(bits, 21)


def _call_target(code: bytes, address: int) -> int | None:
    """Return the target of the RISC-V jal, or of auipc and jalr, before the return address `address`; None for other
    code.
    """
    if len(code) < 4 or not _follows_call(code):
        return None
    word = int.from_bytes(code[-4:], "little")
    if word & 0x7F == 0x6F and word >> 7 & 31 in (_RA, _T0):
        return address - 4 + _jump_offset(word)
    upper = int.from_bytes(code[-8:-4], "little")
    if len(code) >= 8 and word & 0x707F == 0x67 and upper & 0x7F == 0x17 and upper >> 7 & 31 == word >> 15 & 31:
        return address - 8 + _signed(upper & 0xFFFF_F000, 32) + _signed(word >> 20, 12)
    return None


def _jumps(code: bytes) -> bool:
    """Match a RISC-V j, c.j, or the auipc t3 of a PLT entry."""
    first = next(_instructions(code), 0)
    if first & 3 != 3:
        return first & 0xE003 == 0xA001
    return first & 0xFFF in (0x6F, _T3 << 7 | 0x17)


def _saves_ra(word: int) -> bool:
    """Return True for the RISC-V instructions sd ra, off(sp) and c.sdsp ra."""
    return word & 0xE07F == 0xE006 if word & 3 != 3 else word & 0x01FF_F07F == 0x0011_3023


def _stores(word: int) -> bool:
    """Return True if a RISC-V instruction stores 8 bytes on the stack (sd)."""
    return word & 0xE003 == 0xE002 if word & 3 != 3 else word & 0x000F_F07F == 0x0001_3023


def _sets_fp(word: int) -> bool:
    """Return True for the RISC-V instructions addi s0, sp, n and c.addi4spn s0."""
    return word & 0xE01F == 0 and word != 0 if word & 3 != 3 else word & 0x000F_FFFF == 0x0001_0413


def _branches(word: int) -> bool:
    if word & 3 != 3:
        return word & 0xE003 in (0xA001, 0xC001, 0xE001) or word & 0xE07F == 0x8002
    return word & 0x7F in (0x63, 0x67, 0x6F)


def _saves_lr(code: bytes) -> bool:
    """Return True if RISC-V code saves ra to the stack before any branch, or if it has saved ra and s0 is not set
    yet.
    """
    in_prologue = True
    for word in _instructions(code):
        if _saves_ra(word):
            return True
        if _sets_fp(word):
            return in_prologue
        if _branches(word):
            return False
        in_prologue = in_prologue and _stores(word)
    return False


def _sets_base(code: bytes) -> bool:
    """Return True if RISC-V code has set s0 (the frame pointer), and no branch follows.

    The start of the first instruction is unknown, so each one is tried.
    """
    for at in range(len(code) - 2, -1, -2):
        size = 0
        for number, word in enumerate(_instructions(code[at:])):
            if _branches(word) if number else not _sets_fp(word):
                break
            size += 4 if word & 3 == 3 else 2
        if at + size == len(code):
            return True
    return False


def _plt_target(code: bytes, svma: int) -> tuple[str, int] | None:
    """Return the address of the slot from which a RISC-V PLT entry loads its target, None for other code. An entry is
    auipc t3, hi; ld t3, lo(t3).
    """
    upper, load = int.from_bytes(code[:4], "little"), int.from_bytes(code[4:8], "little")
    if len(code) < 8 or upper & 0xFFF != _T3 << 7 | 0x17 or load & 0x000F_FFFF != 0x000E_3E03:
        return None
    return "slot", svma + _signed(upper & 0xFFFF_F000, 32) + _signed(load >> 20, 12)


_NAMES = (
    *("ra", "sp", "gp", "tp", "t0", "t1", "t2", "fp", "s1"),
    *(f"a{n}" for n in range(8)),
    *(f"s{n}" for n in range(2, 12)),
    *(f"t{n}" for n in range(3, 7)),
    "pc",
)
"""Names of the RISC-V registers x1 to x31 in GDB; fp is s0."""

_SLOTS = (*range(1, 32), 0)
"""Index of each RISC-V register's word in the kernel's user_regs_struct, which holds pc and then x1 to x31."""

# struct rt_sigframe: siginfo (128 bytes), ucontext with uc_mcontext at +176, which begins with user_regs_struct
RISCV64 = Arch(
    name="riscv64",
    bfd="riscv:rv64",
    gdb_packet=tuple((name, 8) for name in ("zero", *_NAMES)),
    elf_machine=243,
    elf_class=64,
    byteorder="little",
    word=8,
    registers=_NAMES,
    dwarf={n: n - 1 for n in range(1, 32)},
    pc=31,
    sp=_SP - 1,
    fp=_S0 - 1,
    lr=_RA - 1,
    callee_saved=frozenset({_S0 - 1, 8, *range(17, 27)}),
    pc_mask=0xFFFF_FFFF_FFFF_FFFE,
    chain=FrameChain(base=_S0 - 1, next_off=-16, ra_off=-8, cfa_off=0, leaf_off=-8),
    calls=CallConvention(
        follows_call=_follows_call,
        call_target=_call_target,
        jumps=_jumps,
        saves_lr=_saves_lr,
        sets_base=_sets_base,
        plt=PltCode(steps={".plt": 16}, target=_plt_target, glob_dat=2, jump_slot=5, irelative=58),
    ),
    signals=Signals(
        frames=(
            SigFrame(  # li a7, 139; ecall
                bytes.fromhex("9308b00873000000"), {column: 304 + 8 * slot for column, slot in enumerate(_SLOTS)}
            ),
        ),
        kernel_cfi=False,  # the vDSO's CFI says that nothing was saved
    ),
    kernel=Kernel(
        prstatus=_SLOTS,
        machines=("riscv64",),
        regset_size=32 * 8,
        syscall_return=10,
        syscall_number=-1,  # a7 is not preserved
        syscall_codes=(bytes.fromhex("73000000"),),  # ecall
        syscall_args=(10, 11, 12, 13, 14, 15),
        syscalls=syscalls.GENERIC,
    ),
)
