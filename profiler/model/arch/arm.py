"""AArch64 and ARM (A32 and T32), each also with big-endian data."""

from __future__ import annotations

import re

from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import syscalls
from pyprof.model.arch.definition import Arch, CallConvention, EhReturn, FrameChain, Kernel, SigFrame, Signals


def _aarch64_follows_call(code: bytes) -> bool:
    """Match AArch64's bl, blr, blraa(z) or blrab(z) before the return address at the end of the code.

    Code is always little-endian.
    """
    if len(code) < 4:
        return False
    word = int.from_bytes(code[-4:], "little")
    return word >> 26 == 0b100101 or word & 0xFEFF_F000 == 0xD63F_0000


def _aarch64_call_target(code: bytes, address: int) -> int | None:
    """Return the target of the AArch64 bl before the return address `address`, None for any other instruction."""
    word = int.from_bytes(code[-4:], "little")
    if len(code) < 4 or word >> 26 != 0b100101:
        return None
    return address - 4 + 4 * _signed(word, 26)


def _aarch64_jumps(code: bytes) -> bool:
    """Return True if AArch64 code only jumps: a b instruction, or a PLT entry from its adrp x16 on, perhaps after bti
    c.
    """
    words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code) // 4 * 4, 4)]
    if words and words[0] == 0xD503_245F:
        del words[0]
    if not words:
        return False
    return words[0] >> 26 == 0b000101 or words[0] & 0x9F00_001F == 0x9000_0010


def _aarch64_saves_lr(code: bytes) -> bool:
    """Return True if AArch64 code saves the link register next: stp x29, x30, [sp...] follows before any branch.

    It also returns True directly after the stp, where mov x29, sp or add x29, sp, # follows.
    """
    words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, min(len(code), 16) // 4 * 4, 4)]
    for number, word in enumerate(words):
        if word & 0xFE40_7FFF == 0xA800_7BFD:
            return True
        if word & 0xFF80_03FF == 0x9100_03FD:
            return number == 0
        if word & 0x1C00_0000 == 0x1400_0000 and word & 0xFFFF_F01F != 0xD503_201F:  # branches, but not hints
            return False
    return False


def _arm_follows_call(code: bytes) -> bool:
    """Return True if a call may end before the return address at the end of the code. Up to 8 bytes are read, as A32
    and as T32.

    Calls are bl, blx, and in A32 `mov lr, pc` before a branch. Code is little-endian, also with BE8.
    """
    half = [int.from_bytes(code[at : at + 2], "little") for at in range(len(code) % 2, len(code), 2)]
    if half and half[-1] & 0xFF87 == 0x4780:  # T32 blx rm
        return True
    if len(half) >= 2 and half[-2] & 0xF800 == 0xF000 and half[-1] & 0xC000 == 0xC000:  # T32 bl, blx
        return True
    if len(code) < 4:
        return False
    word = int.from_bytes(code[-4:], "little")
    if word & 0x0F00_0000 == 0x0B00_0000 or word >> 25 == 0b1111101 or word & 0x0FFF_FFF0 == 0x012F_FF30:
        return True
    return len(code) >= 8 and int.from_bytes(code[-8:-4], "little") == 0xE1A0_E00F


def _arm_call_target(code: bytes, address: int) -> int | None:
    """Return the target of the A32 or T32 bl or blx before a return address.

    Return None for any other instruction, and if the bytes are a call in both instruction sets.
    """
    if len(code) < 4:
        return None
    first, second = int.from_bytes(code[-4:-2], "little"), int.from_bytes(code[-2:], "little")
    word = second << 16 | first
    thumb = first & 0xF800 == 0xF000 and second & 0xC000 == 0xC000
    blx = word >> 25 == 0b1111101
    if thumb == (word & 0x0F00_0000 == 0x0B00_0000 or blx):
        return None
    if not thumb:
        return address + 4 + 4 * _signed(word, 24) + (word >> 23 & 2 if blx else 0)
    sign = first >> 10 & 1
    i1, i2 = 1 ^ (second >> 13 & 1) ^ sign, 1 ^ (second >> 11 & 1) ^ sign
    offset = _signed(sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1, 25)
    return address + offset if second & 0x1000 else (address & ~3) + (offset & ~3)


def _arm_jumps(code: bytes) -> bool:
    """Match ARM jumps: A32 b, ldr pc, or the add ip, pc of a PLT entry; T32 b.w, or movw ip of a PLT entry.

    It also matches the T32 bx pc before A32 code.
    """
    if len(code) < 4:
        return False
    first, second = int.from_bytes(code[:2], "little"), int.from_bytes(code[2:4], "little")
    word = second << 16 | first
    if word >> 24 == 0xEA or word & 0xFFFF_F000 == 0xE51F_F000 or word & 0xFFFF_F000 == 0xE28F_C000:
        return True
    if first == 0x4778:
        return True
    if first & 0xFBF0 == 0xF240:
        return second >> 8 & 0xF == 12
    return first & 0xF800 == 0xF000 and second & 0xD000 == 0x9000


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


_AARCH64_NAMES = (*tuple(f"x{n}" for n in range(31)), "sp", "pc")
_ARM_NAMES = (*tuple(f"r{n}" for n in range(13)), "sp", "lr", "pc")

# struct rt_sigframe: siginfo (128 bytes), ucontext with uc_mcontext at +176: fault_address, x0..x30, sp, pc
AARCH64 = Arch(
    name="aarch64",
    bfd="aarch64",
    breakpad=("arm64", "arm64e"),
    gdb_packet=tuple((name, 8) for name in _AARCH64_NAMES),
    elf_machine=183,
    elf_class=64,
    byteorder="little",
    word=8,
    registers=_AARCH64_NAMES,
    dwarf={n: n for n in range(33)},
    pc=32,
    sp=31,
    fp=29,
    lr=30,
    callee_saved=frozenset(range(19, 30)),
    pc_mask=0xFFFF_FFFF_FFFF_FFFF,
    pac_mask=0xFFFF_0000_0000_0000,
    chain=FrameChain(base=29, next_off=0, ra_off=8, cfa_off=16, sp_known=False),
    calls=CallConvention(
        follows_call=_aarch64_follows_call,
        call_target=_aarch64_call_target,
        jumps=_aarch64_jumps,
        saves_lr=_aarch64_saves_lr,
        new_thread=((bytes.fromhex("010000d4"), bytes.fromhex("1f0000f1")),),  # svc #0; cmp x0, #0
        # add sp, sp, x4 (another register since GCC 14); ret or br, after autiasp if return addresses are signed
        eh_return=EhReturn(
            frozenset({0, 1, 2, 3}),
            re.compile(rb"\xff\x63[\x20-\x3f]\x8b(?:[\x9f\xdf\xff]\x23\x03\xd5)?..[\x1f\x5f]\xd6", re.DOTALL),
        ),
    ),
    signals=Signals(
        frames=(
            SigFrame(bytes.fromhex("681180d2010000d4"), {n: 312 + 8 * n for n in range(33)}),  # mov x8, #139; svc #0
        ),
        # it describes the frame record instead of the frame, so the interrupted function would be missing
        kernel_cfi=False,
    ),
    kernel=Kernel(
        prstatus=tuple(range(33)),
        machines=("aarch64",),
        regset_size=34 * 8,  # x0..x30, sp, pc, pstate
        syscall_return=0,
        syscall_number=-1,  # x8 is not preserved
        syscall_codes=(bytes.fromhex("010000d4"),),  # svc #0
        syscall_args=(0, 1, 2, 3, 4, 5),
        syscalls=syscalls.GENERIC,
    ),
)

AARCH64_BE = replace(
    AARCH64,
    name="aarch64_be",
    breakpad=(),
    byteorder="big",
    kernel=replace(
        AARCH64.kernel,
        machines=("aarch64_be",),
    ),
)

# struct sigframe: ucontext with uc_mcontext at +20: trap_no, error_code, oldmask, r0..r15. struct rt_sigframe: the same
# after siginfo (128 bytes).
_ARM_SIGFRAME = {n: 32 + 4 * n for n in range(16)}
_ARM_RT_SIGFRAME = {n: 160 + 4 * n for n in range(16)}

ARM = Arch(
    name="arm",
    bfd="arm",
    breakpad=("arm",),
    gdb_packet=tuple((name, 4) for name in _ARM_NAMES),
    elf_machine=40,
    elf_class=32,
    byteorder="little",
    word=4,
    registers=_ARM_NAMES,
    dwarf={n: n for n in range(16)},
    pc=15,
    sp=13,
    fp=11,
    lr=14,
    callee_saved=frozenset(range(4, 12)),
    pc_mask=0xFFFF_FFFE,
    chain=None,  # GCC A32: [r11 - 4], [r11]; clang: [r11], [r11 + 4]; T32: r7, and GCC leaves locals below the record
    calls=CallConvention(
        follows_call=_arm_follows_call,
        call_target=_arm_call_target,
        jumps=_arm_jumps,
        # svc #0; cmp r0, #0
        new_thread=(
            (bytes.fromhex("00df"), bytes.fromhex("0028")),
            (bytes.fromhex("000000ef"), bytes.fromhex("000050e3")),
        ),
    ),
    signals=Signals(
        frames=(
            SigFrame(
                bytes.fromhex("ad70a0e3000000ef"), _ARM_RT_SIGFRAME
            ),  # A32 mov r7, #173; svc #0 (rt_sigreturn, C libraries)
            SigFrame(bytes.fromhex("ad70a0e3ad0090ef"), _ARM_RT_SIGFRAME),  # the kernel's: svc #0x9000ad
            SigFrame(bytes.fromhex("ad2700df"), _ARM_RT_SIGFRAME),  # T32
            SigFrame(bytes.fromhex("4ff0ad0700df"), _ARM_RT_SIGFRAME),  # T32, mov.w
            SigFrame(bytes.fromhex("7770a0e3000000ef"), _ARM_SIGFRAME),  # sigreturn: 119
            SigFrame(bytes.fromhex("7770a0e3770090ef"), _ARM_SIGFRAME),
            SigFrame(bytes.fromhex("772700df"), _ARM_SIGFRAME),
            SigFrame(bytes.fromhex("4ff0770700df"), _ARM_SIGFRAME),
        ),
        exception_return=0xFFFF_FF80,  # ARMv8-M ARM, "EXC_RETURN"; ARMv7-M uses the lowest six bits only
    ),
    kernel=Kernel(
        prstatus=tuple(range(16)),
        machines=("armv6l", "armv7l", "armv8l", "aarch64"),
        regset_size=18 * 4,  # r0..r15, cpsr, orig_r0
        syscall_return=0,
        syscall_number=-1,  # r7 is not preserved
        syscall_codes=(bytes.fromhex("000000ef"), bytes.fromhex("00df")),  # svc #0, A32 and T32
        syscall_args=(0, 1, 2, 3, 4, 5),
        syscalls=syscalls.ARM,
    ),
)

ARMEB = replace(
    ARM,
    name="armeb",
    breakpad=(),
    byteorder="big",
    kernel=replace(
        ARM.kernel,
        machines=("armv7b", "armv8b", "aarch64_be"),
    ),
)
