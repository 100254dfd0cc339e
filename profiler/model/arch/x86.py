"""The architectures x86_64, x32 and i386, as values of Arch.

The module also analyses the effects of x86-64 code on sp up to a return, for
unwind/heuristics/rules_and_checks_from_code.py. Columns of registers are those of X86_64, in DWARF order. Source: Intel
SDM volume 2.
"""

from __future__ import annotations

import re

from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import syscalls
from pyprof.model.arch.definition import Arch, CallConvention, EhReturn, FrameChain, Kernel, PltCode, SigFrame, Signals
from pyprof.model.arch.x86_instructions import frame_code

COLUMNS = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""Column in SampleBatch.regs of each x86-64 register, by the register's number in an instruction."""

SP, FP = 4, 5
SCRATCH = frozenset({0, 1, 2, 6, 7, 8, 9, 10, 11})
"""Numbers of x86-64 registers that a function may change without saving them."""

MAX_STEPS = 32


def x86_64_epilogue(code: bytes) -> list[tuple[str, int]] | None:
    """Return the effects of x86-64 code on sp up to its return, None if an instruction does anything else (see
    CallConvention.epilogue).
    """
    steps: list[tuple[str, int]] = []
    at = 0
    for _ in range(MAX_STEPS):
        if code[at : at + 1] == b"\xc3" or code[at : at + 2] == b"\xf3\xc3":
            return steps
        size = _plain(code, at) or _stack(code, at, steps)
        if not size:
            return None
        at += size
    return None


def _stack(code: bytes, at: int, steps: list[tuple[str, int]]) -> int:
    """Return the size in bytes of an x86-64 instruction that moves sp, 0 for any other instruction. Its effect is added
    to `steps`.
    """
    three, four = code[at : at + 3], code[at : at + 4]
    if three in (b"\x48\x83\xc4", b"\x48\x83\xec") and len(code) >= at + 4:  # add, sub $imm8,%rsp
        steps.append(("sp", _signed(code, at + 3, 1) * (1 if three[2] == 0xC4 else -1)))
        return 4
    if three in (b"\x48\x81\xc4", b"\x48\x81\xec") and len(code) >= at + 7:
        steps.append(("sp", _signed(code, at + 3, 4) * (1 if three[2] == 0xC4 else -1)))
        return 7
    if four == b"\x48\x8d\x64\x24" and len(code) >= at + 5:  # lea imm8(%rsp),%rsp
        steps.append(("sp", _signed(code, at + 4, 1)))
        return 5
    if four == b"\x48\x8d\xa4\x24" and len(code) >= at + 8:
        steps.append(("sp", _signed(code, at + 4, 4)))
        return 8
    if code[at : at + 1] == b"\xc9":  # leave
        steps += [("fp", 0), ("pop", COLUMNS[FP])]
        return 1
    if three in (b"\x48\x89\xec", b"\x48\x8b\xe5"):  # mov %rbp,%rsp
        steps.append(("fp", 0))
        return 3
    high = code[at : at + 1] == b"\x41"
    byte = code[at + high : at + high + 1]
    if byte and 0x50 <= byte[0] < 0x60:
        register = (byte[0] & 7) + 8 * high
        if register == SP:
            return 0
        steps.append(("pop" if byte[0] & 8 else "push", COLUMNS[register]))
        return 1 + high
    return 0


def _plain(code: bytes, at: int) -> int:
    """Return the size in bytes of an x86-64 instruction that changes neither sp nor a callee-saved register, 0 for any
    other instruction.
    """
    for known in (b"\xf3\x0f\x1e\xfa", b"\xc5\xf8\x77", b"\x66\x90", b"\x90", b"\x0f\x1f\x00", b"\x0f\x1f\x40\x00"):
        if code.startswith(known, at):  # endbr64, vzeroupper, nops
            return len(known)
    if code[at : at + 1] == b"\xe8":  # call rel32; it returns with sp unchanged, unless it calls the next instruction
        return 5 if len(code) >= at + 5 and code[at + 1 : at + 5] != bytes(4) else 0
    high = code[at : at + 1] == b"\x41"
    if code[at + high : at + high + 1] == b"\xff" and len(code) > at + high + 1 and code[at + high + 1] & 0xF8 == 0xD0:
        return 2 + high  # call *%reg
    rex = code[at] if len(code) > at and code[at] & 0xF0 == 0x40 else 0
    first = at + bool(rex)
    if len(code) >= first + 2 and code[first] in (0x31, 0x89) and code[first + 1] >= 0xC0:  # xor, mov between registers
        target = (code[first + 1] & 7) + 8 * (rex & 1)
        return 2 + bool(rex) if target in SCRATCH else 0
    return 0


def _signed(code: bytes, at: int, size: int) -> int:
    return int.from_bytes(code[at : at + size], "little", signed=True)


def _x86_follows_call(code: bytes) -> bool:
    """Match x86's call rel32 or call r/m (ff /2), with any prefix, before the return address at the end of the code."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    for length in (2, 3, 4, 6, 7):  # ff /2: the ModRM byte determines the length of the rest
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


def _x86_call_target(code: bytes, address: int) -> int | None:
    """Return the target of the x86 call rel32 before the return address `address`, None for any other instruction."""
    if len(code) < 5 or code[-5] != 0xE8:
        return None
    return address + int.from_bytes(code[-4:], "little", signed=True)


def _x86_jumps(code: bytes) -> bool:
    """Match x86's jmp *disp32 (x86_64: rip-relative, i386: absolute or relative to ebx) or jmp rel32.

    endbr, bnd or push imm32 may precede it.
    """
    if code[:3] == b"\xf3\x0f\x1e" and code[3:4] in (b"\xfa", b"\xfb"):
        code = code[4:]
    if code[:1] == b"\x68":
        code = code[5:]
    if code[:1] == b"\xf2":
        code = code[1:]
    return code[:2] in (b"\xff\x25", b"\xff\xa3") or code[:1] == b"\xe9"


def _x86_64_plt_target(code: bytes, svma: int) -> tuple[str, int] | None:
    """Return the slot or the relocation number of an x86_64 PLT entry, None for other code.

    An entry is jmp *slot(%rip), perhaps after endbr64, with or without a bnd prefix. An entry of a lazy .plt with a
    separate .plt.sec pushes the number of its relocation. Source: x86-64 psABI, 5.2.
    """
    at = 4 if code.startswith(b"\xf3\x0f\x1e\xfa") else 0
    if code[at : at + 1] == b"\x68" and len(code) >= at + 5:  # push $number; jmp .plt
        return "number", int.from_bytes(code[at + 1 : at + 5], "little")
    if code[at : at + 1] == b"\xf2":
        at += 1
    if code[at : at + 2] != b"\xff\x25" or len(code) < at + 6:
        return None
    return "slot", svma + at + 6 + int.from_bytes(code[at + 2 : at + 6], "little", signed=True)


_X86_64_PLT = PltCode(
    steps={".plt": 16, ".plt.sec": 16, ".plt.bnd": 16, ".plt.got": 8, ".iplt": 16},
    target=_x86_64_plt_target,
    glob_dat=6,
    jump_slot=7,
    irelative=37,
)


def _i386_leaf_size(code: bytes) -> int:
    """Return 4, the length of i386's __x86.get_pc_thunk.REG (mov (%esp),%reg; ret), or 0 for other code."""
    return 4 if code[:1] == b"\x8b" and code[1:2] and code[1] & 0xC7 == 0x04 and code[2:4] == b"\x24\xc3" else 0


_X86_64_NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *tuple(f"r{n}" for n in range(8, 16)), "rip")

_X86_64_NUMBERED = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp")
"""The first eight registers of x86_64 in the order in which GDB numbers them."""

# user_regs_struct: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss ...
_X86_64_PRSTATUS = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)

# struct rt_sigframe at the trampoline: sp points at ucontext; uc_mcontext at +40: r8 r9 r10 r11 r12 r13 r14
# r15 rdi rsi rbp rbx rdx rax rcx rsp rip (kernel: arch/x86/include/uapi/asm/sigcontext.h)
_X86_64_GREGS = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)

X86_64 = Arch(
    name="x86_64",
    bfd="i386:x86-64",
    breakpad=("x86_64",),
    gdb_packet=tuple((name, 8) for name in (*_X86_64_NUMBERED, *_X86_64_NAMES[8:])),
    elf_machine=62,
    elf_class=64,
    byteorder="little",
    word=8,
    registers=_X86_64_NAMES,
    dwarf={n: n for n in range(17)},
    pc=16,
    sp=7,
    fp=6,
    lr=-1,
    callee_saved=frozenset({3, 6, 12, 13, 14, 15}),
    pc_mask=0xFFFF_FFFF_FFFF_FFFF,
    chain=FrameChain(base=6, next_off=0, ra_off=8, cfa_off=16),
    calls=CallConvention(
        follows_call=_x86_follows_call,
        call_target=_x86_call_target,
        jumps=_x86_jumps,
        epilogue=x86_64_epilogue,
        frame_code=frame_code(wide=True),
        # syscall; test %rax,%rax (glibc) or %eax (musl)
        new_thread=((b"\x0f\x05", b"\x48\x85\xc0"), (b"\x0f\x05", b"\x85\xc0")),
        plt=_X86_64_PLT,
        # mov %rcx,%rsp; pop %rcx; jmp *%rcx, or ret
        eh_return=EhReturn(frozenset({0, 1}), re.compile(rb"\x48\x89\xcc(?:\x59\xff\xe1|\xc3)")),
    ),
    signals=Signals(
        frames=(
            SigFrame(
                bytes.fromhex("48c7c00f0000000f05"),
                {column: 40 + 8 * slot for slot, column in enumerate(_X86_64_GREGS)},
            ),  # mov $15,%rax; syscall
        ),
    ),
    kernel=Kernel(
        prstatus=_X86_64_PRSTATUS,
        machines=("x86_64",),
        regset_size=27 * 8,
        syscall_return=10,
        syscall_number=15,
        syscall_codes=(b"\x0f\x05",),
        syscall_args=(14, 13, 12, 7, 9, 8),  # rdi rsi rdx r10 r8 r9
        syscalls=syscalls.X86_64,
    ),
)

# Addresses of 32 bits, but registers, pushes and saved registers are of 64: stack words are x86_64's. struct
# ucontext_x32 has uc_mcontext at +24; __NR_rt_sigreturn is 0x40000201.
X32 = replace(
    X86_64,
    name="x32",
    bfd="i386:x64-32",
    breakpad=(),
    elf_class=32,
    pc_mask=0xFFFF_FFFF,
    calls=replace(X86_64.calls, plt=None),  # relocations of x32 have 12 bytes
    signals=Signals(
        frames=(
            SigFrame(
                bytes.fromhex("48c7c0010200400f05"),
                {column: 24 + 8 * slot for slot, column in enumerate(_X86_64_GREGS)},
            ),
        ),
    ),
    kernel=replace(
        X86_64.kernel,
        syscalls=syscalls.X32,
    ),
)

_I386_NAMES = ("eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip")

# struct sigcontext_32: gs fs es ds edi esi ebp esp ebx edx ecx eax trapno err eip, by column
_I386_SIGCONTEXT = {7: 16, 6: 20, 5: 24, 4: 28, 3: 32, 2: 36, 1: 40, 0: 44, 8: 56}

# The handler's ret has popped the first word of the frame. struct sigframe: int sig, sigcontext; struct rt_sigframe:
# int sig, two pointers, siginfo (128 bytes), ucontext with uc_mcontext at +20.
I386 = Arch(
    name="i386",
    bfd="i386",
    breakpad=("x86",),
    gdb_packet=tuple((name, 4) for name in _I386_NAMES),
    elf_machine=3,
    elf_class=32,
    byteorder="little",
    word=4,
    registers=_I386_NAMES,
    dwarf={n: n for n in range(9)},
    pc=8,
    sp=4,
    fp=5,
    lr=-1,
    callee_saved=frozenset({3, 5, 6, 7}),
    pc_mask=0xFFFF_FFFF,
    chain=FrameChain(base=5, next_off=0, ra_off=4, cfa_off=8),
    calls=CallConvention(
        follows_call=_x86_follows_call,
        call_target=_x86_call_target,
        jumps=_x86_jumps,
        leaf_size=_i386_leaf_size,
        frame_code=frame_code(wide=False),
        new_thread=((b"\xcd\x80", b"\x85\xc0"),),  # int $0x80; test %eax,%eax
    ),
    signals=Signals(
        frames=(
            SigFrame(
                bytes.fromhex("b8ad000000cd80"), {column: 160 + offset for column, offset in _I386_SIGCONTEXT.items()}
            ),  # mov $173,%eax; int $0x80 (rt_sigreturn)
            SigFrame(  # pop %eax; mov $119,%eax; int $0x80
                bytes.fromhex("58b877000000cd80"),
                {column: 4 + offset for column, offset in _I386_SIGCONTEXT.items()},
            ),
        ),
    ),
    kernel=Kernel(
        # ebx ecx edx esi edi ebp eax ds es fs gs orig_eax eip cs eflags esp ss
        prstatus=(6, 1, 2, 0, 15, 5, 3, 4, 12),
        machines=("x86_64", "i686", "i586", "i486", "i386"),
        regset_size=17 * 4,
        syscall_return=6,
        syscall_number=11,
        syscall_codes=(b"\xcd\x80",),  # int $0x80; after sysenter and AMD's syscall the thread also continues after one
        syscall_args=(0, 1, 2, 3, 4, 5),
        syscalls=syscalls.I386,
    ),
)
