"""ppc64le: 64-bit PowerPC, little-endian, ELFv2 ABI. The back chain at sp links each frame to its caller's."""

from __future__ import annotations

from pyprof.model.arch.definition import Arch, CallConvention, FrameChain, Kernel, SigFrame, Signals


def _ppc64le_follows_call(code: bytes) -> bool:
    """Match ppc64le's bl, bcl, bctrl or blrl before the return address at the end of the code."""
    if len(code) < 4:
        return False
    word = int.from_bytes(code[-4:], "little")
    if not word & 1:
        return False
    return word >> 26 in (16, 18) or (word >> 26 == 19 and word >> 1 & 0x3FF in (16, 528))


def _ppc64le_call_target(code: bytes, address: int) -> int | None:
    """Return the target of the ppc64le bl before the return address `address`, None for any other instruction."""
    word = int.from_bytes(code[-4:], "little")
    if len(code) < 4 or word >> 26 != 18 or not word & 1:
        return None
    offset = word & 0x03FF_FFFC
    offset -= offset >> 25 << 26
    return offset if word & 2 else address - 4 + offset


def _ppc64le_jumps(code: bytes) -> bool:
    """Match ppc64le's b, and the linker's stubs: std r2,24(r1), addis r12,r2 or ld r12,off(r2)."""
    if len(code) < 4:
        return False
    word = int.from_bytes(code[:4], "little")
    return (
        (word >> 26 == 18 and not word & 1)
        or word == 0xF841_0018
        or word & 0xFFFF_0000 == 0x3D82_0000
        or word & 0xFFFF_0003 == 0xE982_0000
    )


def _ppc64le_saves_lr(code: bytes) -> bool:
    """Return True if ppc64le's stdu r1, -N(r1) follows before any branch."""
    for at in range(0, len(code) // 4 * 4, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        if word >> 16 == 0xF821 and word & 3 == 1:
            return True
        if word >> 26 in (16, 17, 18, 19):
            return False
    return False


def _rt_sigframe(at: int) -> dict[int, int]:
    """Return the offset from sp of each saved register, by column, in a signal frame of ppc64le (struct rt_sigframe).
    The struct begins `at` bytes above sp.

    It contains a ucontext with uc_mcontext at +168, and in that gp_regs (pt_regs) at +64: gpr 0..31, nip, msr,
    orig_gpr3, ctr, link.
    """
    registers = at + 168 + 64
    return {**{n: registers + 8 * n for n in range(32)}, 32: registers + 8 * 36, 33: registers + 8 * 32}


PPC64LE = Arch(
    name="ppc64le",
    bfd="powerpc:common64",
    elf_machine=21,
    elf_class=64,
    byteorder="little",
    word=8,
    registers=(*tuple(f"r{n}" for n in range(32)), "lr", "pc"),
    dwarf={**{n: n for n in range(32)}, 65: 32},
    pc=33,
    sp=1,
    fp=31,
    lr=32,
    callee_saved=frozenset(range(14, 32)),
    pc_mask=0xFFFF_FFFF_FFFF_FFFC,
    chain=FrameChain(base=1, next_off=0, ra_off=16, cfa_off=None, ra_in_next=True, zero_is_root=True),
    calls=CallConvention(
        follows_call=_ppc64le_follows_call,
        call_target=_ppc64le_call_target,
        jumps=_ppc64le_jumps,
        saves_lr=_ppc64le_saves_lr,
    ),
    signals=Signals(
        frames=(
            SigFrame(
                bytes.fromhex("80002138ac00003802000044"), _rt_sigframe(128)
            ),  # addi r1,r1,128; li r0,172 (rt_sigreturn); sc
            SigFrame(bytes.fromhex("ac00003802000044"), _rt_sigframe(144)),
        ),
    ),
    kernel=Kernel(
        prstatus=(*range(32), 36, 32),
        machines=("ppc64le",),
        regset_size=44 * 8,
        syscall_return=3,
        syscall_number=-1,
        syscall_codes=(bytes.fromhex("02000044"),),  # sc
    ),
)
