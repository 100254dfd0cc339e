"""s390x and s390: 64-bit and 31-bit, big-endian. The CFA of the ABI is 160 (31-bit: 96) bytes above the caller's sp."""

from __future__ import annotations

from pyprof.lazy_dataclasses import replace
from pyprof.model.arch.definition import Arch, CallConvention, FrameChain, Kernel, SigFrame, Signals, never


def _s390x_follows_call(code: bytes) -> bool:
    """Match s390x's brasl, bras, basr, bas or basl with any link register before the return address at the end of the
    code.
    """
    if len(code) >= 6 and code[-6] == 0xC0 and code[-5] & 0x0F == 5:  # brasl
        return True
    if len(code) >= 4 and (code[-4] == 0x4D or (code[-4] == 0xA7 and code[-3] & 0x0F == 5)):  # bas, bras
        return True
    return len(code) >= 2 and code[-2] == 0x0D and code[-1] & 0x0F != 0  # basr


def _s390x_call_target(code: bytes, address: int) -> int | None:
    """Return the target of the s390x brasl or bras before the return address `address`, None for any other
    instruction.
    """
    if len(code) >= 6 and code[-6] == 0xC0 and code[-5] & 0x0F == 5:
        return address - 6 + 2 * int.from_bytes(code[-4:], "big", signed=True)
    if len(code) >= 4 and code[-4] == 0xA7 and code[-3] & 0x0F == 5:
        return address - 4 + 2 * int.from_bytes(code[-2:], "big", signed=True)
    return None


def _s390x_jumps(code: bytes) -> bool:
    """Match s390x's larl %r1 of a PLT entry, jg or j."""
    return code[:2] in (b"\xc0\x10", b"\xc0\xf4", b"\xa7\xf4")


def _s390x_saves_lr(code: bytes) -> bool:
    """Return True if s390x's stmg saves r14 to the caller's save area before any branch."""
    at = 0
    while at + 6 <= min(len(code), 24):
        first, second = code[at], code[at + 1]
        if first == 0xEB and code[at + 5] == 0x24 and code[at + 2] >> 4 == 15:
            return second >> 4 <= 14 <= second & 0xF
        size = (2, 4, 4, 6)[first >> 6]
        if first in (0x05, 0x06, 0x07, 0x0D, 0x45, 0x46, 0x47, 0x4D, 0xC0, 0xA7) and (
            first not in (0xC0, 0xA7) or second & 0xF in (4, 5, 6, 7)
        ):
            return False
        at += size
    return False


# DWARF 16..31: the floating-point registers, in which leaf functions of GCC save general ones
_FPR_ORDER = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)


def _sigregs(at: int) -> dict[int, int]:
    """Return the offset from sp of each saved register, by column, in the signal frame of s390x: struct _sigregs at sp
    + `at`.

    Its members are psw (mask, addr), gprs, acrs (64 bytes), fpc, fprs.
    """
    fprs = {16 + slot: at + 216 + 8 * number for slot, number in enumerate(_FPR_ORDER)}
    return {**{n: at + 16 + 8 * n for n in range(16)}, **fprs, 32: at + 8}


# struct sigframe: save area (160 bytes), struct sigcontext (16), _sigregs. struct rt_sigframe: save area, svc_insn
# padded to 8, siginfo (128), ucontext with uc_mcontext at +40.
S390X = Arch(
    name="s390x",
    bfd="s390:64-bit",
    gdb_packet=(
        ("pswm", 8),
        ("pswa", 8),
        *((f"r{n}", 8) for n in range(16)),
        *((f"acr{n}", 4) for n in range(16)),
        ("fpc", 4),
        *((f"f{n}", 8) for n in range(16)),
    ),
    elf_machine=22,
    elf_class=64,
    byteorder="big",
    word=8,
    registers=(*tuple(f"r{n}" for n in range(16)), *tuple(f"f{n}" for n in _FPR_ORDER), "pc"),
    dwarf={**{n: n for n in range(32)}, 65: 32},
    pc=32,
    sp=15,
    fp=11,
    lr=14,
    callee_saved=frozenset({*range(6, 14), *range(24, 32)}),
    pc_mask=0xFFFF_FFFF_FFFF_FFFF,
    sp_off=-160,
    chain=FrameChain(base=15, next_off=0, ra_off=112, cfa_off=None, ra_in_next=True),  # -mbackchain
    calls=CallConvention(
        follows_call=_s390x_follows_call,
        call_target=_s390x_call_target,
        jumps=_s390x_jumps,
        saves_lr=_s390x_saves_lr,
        new_thread=((b"\x0a\x78", b"\xb9\x02\x00\x22"),),  # svc 120 (clone); ltgr %r2,%r2
    ),
    signals=Signals(
        frames=(
            SigFrame(bytes.fromhex("0aad"), _sigregs(336)),  # svc 173 (rt_sigreturn)
            SigFrame(bytes.fromhex("0a77"), _sigregs(176)),
        ),
    ),
    kernel=Kernel(
        # psw mask, psw addr, gprs, acrs, orig_gpr2
        prstatus=(*range(2, 18), *(-1 for _ in range(16)), 1),
        fpregset={16 + slot: 1 + number for slot, number in enumerate(_FPR_ORDER)},  # fpc and padding, f0..f15
        machines=("s390x",),
        regset_size=27 * 8,
        syscall_return=4,
        syscall_number=-1,  # NT_S390_SYSTEM_CALL
        syscall_codes=(b"\x0a\x00",),  # svc 0: the number in r1
    ),
)


def _sigregs32(at: int) -> dict[int, int]:
    """Return the offset from sp of each saved register, by column, in the signal frame of s390: struct _sigregs32 at sp
    + `at`.

    Its members are psw (mask, addr), gprs, acrs, fpc, padding, fprs.
    """
    fprs = {16 + slot: at + 144 + 8 * number for slot, number in enumerate(_FPR_ORDER)}
    return {**{n: at + 8 + 4 * n for n in range(16)}, **fprs, 32: at + 4}


# 31-bit programs. The highest bit of a pc or a return address tells the addressing mode. struct sigframe32: save area
# (96 bytes), sigcontext32 (12), _sigregs32, aligned. struct rt_sigframe32: save area, retcode (4), siginfo (128),
# ucontext32, aligned, with uc_mcontext at +24.
S390 = replace(
    S390X,
    name="s390",
    bfd="s390:31-bit",
    gdb_packet=(),
    elf_class=32,
    word=4,
    pc_mask=0x7FFF_FFFF,
    sp_off=-96,
    chain=FrameChain(base=15, next_off=0, ra_off=56, cfa_off=None, ra_in_next=True),
    calls=replace(
        S390X.calls,
        saves_lr=never,
    ),
    signals=Signals(
        frames=(
            SigFrame(S390X.signals.frames[0].code, _sigregs32(256)),
            SigFrame(bytes.fromhex("0a77"), _sigregs32(112)),
        ),
    ),
    kernel=replace(
        S390X.kernel,
        prstatus=(*range(2, 18), *(-1 for _ in range(16)), 1),
        fpregset={},
        machines=("s390",),
        regset_size=0,
    ),
)
