"""The parts of an Arch: what its code says about calls and frames, its signal frames, what its kernel says.

Each part is a value. What is not known has a default that promises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

from pyprof.records import dataclass, field


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
    (AArch64) that is not known. leaf_off: a function that calls nobody saves the caller's base alone, and no ra, at
    base + leaf_off (RISC-V); None where it has no record, or a whole one.
    """

    base: int
    next_off: int
    ra_off: int
    cfa_off: int | None
    ra_in_next: bool = False
    zero_is_root: bool = False
    sp_known: bool = True
    leaf_off: int | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """How far sp lies below the frame pointer behind a function's prologue, in bytes. fixed: it stays there.

    pushed: bytes of arguments that are pushed for a call, in the code between it and the jump or call before it.
    """

    least: int
    fixed: bool
    pushed: int = 0


@dataclass(frozen=True)
class FrameCode:
    """What is read in the code of functions with frame pointers.

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
class EhReturn:
    """The code that GCC makes of __builtin_eh_return, by which an exception's unwinder enters a handler.

    saved: columns of registers that are all saved in the frame of a function that uses it, and of few others. jump:
    matches the code that moves the stack pointer and jumps.
    """

    saved: frozenset[int]
    jump: re.Pattern[bytes]


@dataclass(frozen=True)
class PltCode:
    """Entries of procedure linkage tables.

    steps: section -> bytes of one entry. target: (code of an entry, its svma) -> the slot whose address it jumps to, or
    ("number", n) where it pushes the number of a relocation; None where it is another instruction.
    glob_dat, jump_slot, irelative: types of the relocations that fill slots.
    """

    steps: dict[str, int]
    target: Callable[[bytes, int], tuple[str, int] | None]
    glob_dat: int
    jump_slot: int
    irelative: int


@dataclass(frozen=True)
class CallConvention:
    """How code calls, returns and lays out frames.

    follows_call: (code bytes before an address) -> could the instruction that ends there be a call?
    call_target: (code bytes before an address, that address) -> where the direct call that ends there goes; None for
    an indirect call, or where no call ends.
    jumps: (code bytes from an address on, 16 of them) -> does that code only jump on (PLT entry, linker's trampoline)?
    saves_lr: (code bytes from an address on, 32 of them) -> does it only now make the record of its function's frame,
    so that the link register still holds where the function returns to?
    sets_base: (code bytes before an address, 32 of them) -> did they just point the base register to the function's own
    record? Asked where saves_lr is true; then the record has the caller's base, and not yet the return address.
    leaf_size: (code bytes of a function from its start, 16 of them) -> its length where it is one that all programs
    have and whose length its code gives, else 0.
    epilogue: (code bytes from a pc on) -> what they do to sp up to the return: ("sp", n) sp += n, ("push", column),
    ("pop", column), ("fp", 0) sp = fp; None where any instruction does more. None where that is not known.
    frame_code: what code says about its frames; None where that is not known.
    new_thread: pairs of (code before, code after) the pc at which a thread begins, its system call's result being 0: C
    libraries end their tables before that system call.
    plt: None where the entries are not known.
    eh_return: None where it is not known.
    """

    follows_call: Callable[[bytes], bool]
    call_target: Callable[[bytes, int], int | None]
    jumps: Callable[[bytes], bool]
    saves_lr: Callable[[bytes], bool] = never
    sets_base: Callable[[bytes], bool] = never
    leaf_size: Callable[[bytes], int] = _unknown_size
    epilogue: Callable[[bytes], list[tuple[str, int]] | None] | None = None
    frame_code: FrameCode | None = None
    new_thread: tuple[tuple[bytes, bytes], ...] = ()
    plt: PltCode | None = None
    eh_return: EhReturn | None = None


@dataclass(frozen=True)
class Signals:
    """What lies where a signal or the hardware interrupted code.

    frames: the signal trampolines of the kernel and of C libraries, known by their code where no table covers them.
    kernel_cfi: is the kernel's own CFI of its trampolines right?
    exception_return: from this address on there is no code: what a handler of the hardware returns to instead of an
    address (Cortex-M: EXC_RETURN); 0 where there is no such thing.
    """

    frames: tuple[SigFrame, ...]
    kernel_cfi: bool = True
    exception_return: int = 0

    def trampoline_at(self, read: Callable[[int, int], bytes], pc: int, exact: bool) -> SigFrame | None:
        """The signal trampoline that pc is in. read: (avma, size) -> code bytes.

        A handler returns to the trampoline's first byte; an exact pc may stand behind any instruction of it that leaves
        sp alone: all but a pop at its start. Behind the last one, its system call, in the kernel.
        """
        for frame in self.frames:
            size = len(frame.code)
            if read(pc, size) == frame.code or (exact and frame.code in read(pc - size, 2 * size)):
                return frame
        return None


@dataclass(frozen=True)
class Kernel:
    """What Linux says of a thread of this architecture, and how it is called.

    prstatus: for each column the index of its word in the kernel's user_regs_struct, -1 where it is not in there.
    fpregset: column -> index of its word in the kernel's floating-point registers (NT_FPREGSET), for those that
    unwinding may need.
    machines: what uname -m says where the kernel runs such code itself. regset_size: bytes of NT_PRSTATUS that
    PTRACE_GETREGSET gives there of a task of this architecture.
    syscall_return: index of the word of user_regs_struct with a system call's result; syscall_number likewise: not
    negative only in a system call. -1 where that struct has no such field.
    syscall_codes: the system call instructions behind which a thread goes on. syscall_args: the words of
    user_regs_struct with a call's arguments. syscalls: name -> number, of the calls in which threads sleep.
    """

    prstatus: tuple[int, ...]
    fpregset: dict[int, int] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    regset_size: int = 0
    syscall_return: int = -1
    syscall_number: int = -1
    syscall_codes: tuple[bytes, ...] = ()
    syscall_args: tuple[int, ...] = ()
    syscalls: dict[str, int] = field(default_factory=dict)

    @cached_property
    def call_names(self) -> dict[int, str]:
        """syscalls by number."""
        return {number: name for name, number in self.syscalls.items()}
