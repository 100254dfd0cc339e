"""What an architecture is, as a value. The values themselves: arch_x86, arch_arm, arch_s390; the door: arch.

Porting checklist (docs/porting.md has it in full): register columns in DWARF order, the columns of pc, sp, fp
(lr), the slots of the kernel's NT_PRSTATUS register set, which bits of a return address are no address, how a
call ends (follows_call), where frame records lie, and what the kernel's signal trampolines look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property


def _unknown_size(code: bytes) -> int:
    return 0


def never(code: bytes) -> bool:
    """Where an architecture has no such code, or it is not known."""
    return False


@dataclass(frozen=True)
class SigFrame:
    """A signal trampoline of the kernel or the C library, known by its code.

    code: bytes at its first instruction. saved: column -> offset from sp, at that instruction, of the word in which
    the kernel saved the interrupted register.
    """

    code: bytes
    saved: dict[int, int]


@dataclass(frozen=True)
class FrameChain:
    """Records that compiled code links by a register; base is the value of column `base`.

    next = [base + next_off], the base of the caller. ra = [base + ra_off], or [next + ra_off] where ra_in_next.
    cfa = base + cfa_off, or next where cfa_off is None. zero_is_root: every frame of the ABI has a record, so that
    next = 0 marks the outermost one. sp_known: cfa is the caller's sp; where records lie at the bottom of frames
    (AArch64) that is not told.
    """

    base: int
    next_off: int
    ra_off: int
    cfa_off: int | None
    ra_in_next: bool = False
    zero_is_root: bool = False
    sp_known: bool = True


@dataclass(frozen=True, slots=True)
class Depth:
    """How far sp lies below the frame pointer behind a function's prologue, in bytes. fixed: it stays there."""

    least: int
    fixed: bool


@dataclass(frozen=True)
class FrameCode:
    """What the code of functions with frame pointers tells.

    depth: (code bytes of a function, offset of a place in it) -> Depth there; None if no frame record is linked before.
    popped: (code bytes behind a call) -> bytes of arguments that are taken off the stack there.
    entries: (code bytes) -> (least, most) offsets of where functions begin that link frame records, ascending.
    jumps: (code bytes of a function, their address) -> where its jumps go; None for one that may go anywhere.
    jump: (code bytes, their address) -> where the direct jump that stands there goes, None if none does.
    called_slot, jumped_slot: (code bytes before an address | from an address on, that address) -> the address of the
    word in which the indirect call, or jump, finds its target; None where it is another instruction.
    """

    depth: Callable[[bytes, int], Depth | None]
    popped: Callable[[bytes], int]
    entries: Callable[[bytes], Iterator[tuple[int, int]]]
    jumps: Callable[[bytes, int], Iterator[int | None]]
    jump: Callable[[bytes, int], int | None]
    called_slot: Callable[[bytes, int], int | None]
    jumped_slot: Callable[[bytes, int], int | None]


@dataclass(frozen=True)
class Arch:
    """One architecture.

    registers: column names; a column's index is its place in SampleBatch.regs.
    dwarf: DWARF register number -> column. ra_dwarf: the usual return-address column of CIEs.
    word: bytes of an address. byteorder: of data, "little" or "big".
    lr: column of the link register, or -1 where the call pushes the return address.
    prstatus: for each column the index of its word in the kernel's user_regs_struct, -1 where it is not in there.
    syscall_return: index of the word of user_regs_struct with a system call's result; syscall_number likewise: not
    negative only in a system call. -1 where that struct does not tell.
    sigreturn_code: bytes at the start of the signal trampoline (where no unwind table covers it).
    sigcontext: column -> offset from sp, at the trampoline's first instruction, where the register was saved.
    follows_call: (code bytes before an address) -> could the instruction that ends there be a call?
    call_target: (code bytes before an address, that address) -> where the direct call that ends there goes; None for
    an indirect call, or where no call ends.
    jumps: (code bytes from an address on, 16 of them) -> does that code only jump on (PLT entry, linker's trampoline)?
    saves_lr: (code bytes from an address on, 32 of them) -> does it only now make the record of its function's frame,
    so that the link register still holds where the function returns to?
    frame_code: what code tells about its frames; None where that is not known.
    signal_cfi: is the kernel's own CFI of its trampolines right?
    leaf_size: (code bytes of a function from its start, 16 of them) -> its length where it is one that all programs
    have and whose length its code tells, else 0.
    pc_mask: the bits of a pc or return address that are address (ARM: bit 0 says Thumb).
    pac_mask: the bits of a signed return address that hold the signature, at the usual size of addresses;
    NT_ARM_PAC_MASK of a process says it exactly (dataclasses.replace). 0 where nothing signs.
    sp_off: the caller's sp = cfa + sp_off, unless a rule says otherwise.
    chain: the frame records that code built with frame pointers leaves; None where their layout is not one.
    more_sigframes: further signal trampolines.
    exception_return: from this address on there is no code: what a handler of the hardware returns to instead of an
    address (Cortex-M: EXC_RETURN); 0 where there is no such thing.
    new_thread: pairs of (code before, code after) the pc at which a thread begins, its system call's result being 0: C
    libraries end their tables before that system call.
    epilogue: (code bytes from a pc on) -> what they do to sp up to the return: ("sp", n) sp += n, ("push", column),
    ("pop", column), ("fp", 0) sp = fp; None where any instruction does more. None where that is not known.
    fpregset: column -> index of its word in the kernel's floating-point registers (NT_FPREGSET), for those that
    unwinding may need.
    machines: what uname -m says where the kernel runs such code itself. regset_size: bytes of NT_PRSTATUS that
    PTRACE_GETREGSET gives there of a task of this architecture.
    syscall_codes: the system call instructions behind which a thread goes on. syscall_args: the words of
    user_regs_struct with a call's arguments. syscalls: name -> number, of the calls in which threads sleep.
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
    call_target: Callable[[bytes, int], int | None]
    jumps: Callable[[bytes], bool]
    pc_mask: int
    pac_mask: int = 0
    sp_off: int = 0
    chain: FrameChain | None = None
    more_sigframes: tuple[SigFrame, ...] = ()
    exception_return: int = 0
    new_thread: tuple[tuple[bytes, bytes], ...] = ()
    fpregset: dict[int, int] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    regset_size: int = 0
    syscall_codes: tuple[bytes, ...] = ()
    syscall_args: tuple[int, ...] = ()
    syscalls: dict[str, int] = field(default_factory=dict)
    leaf_size: Callable[[bytes], int] = _unknown_size
    epilogue: Callable[[bytes], list[tuple[str, int]] | None] | None = None
    saves_lr: Callable[[bytes], bool] = never
    frame_code: FrameCode | None = None
    signal_cfi: bool = True

    @property
    def mask(self) -> int:
        """All ones of one address."""
        return (1 << (8 * self.word)) - 1

    @cached_property
    def call_names(self) -> dict[int, str]:
        """syscalls by number."""
        return {number: name for name, number in self.syscalls.items()}

    @property
    def sigframes(self) -> tuple[SigFrame, ...]:
        """All signal trampolines that are known by their code."""
        return (SigFrame(self.sigreturn_code, self.sigcontext), *self.more_sigframes)

    def trampoline_at(self, read: Callable[[int, int], bytes], pc: int, exact: bool) -> SigFrame | None:
        """The signal trampoline that pc is in. read: (avma, size) -> code bytes.

        A handler returns to the trampoline's first byte; an exact pc may stand behind any instruction of it that leaves
        sp alone: all but a pop at its start.
        """
        for frame in self.sigframes:
            size = len(frame.code)
            if not size:
                continue
            if read(pc, size) == frame.code or (exact and frame.code in read(pc - size + 1, 2 * size - 1)):
                return frame
        return None

    def code_address(self, value: int, pac: bool = False) -> int:
        """The address in a pc or a stored return address; pac: it is signed."""
        return value & self.pc_mask & ~(self.pac_mask if pac else 0)
