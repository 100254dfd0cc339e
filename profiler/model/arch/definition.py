"""The definition of an architecture and its parts, as values. The values stand in x86.py, arm.py and others.

Other modules import from arch. docs/porting.md has a checklist for a new architecture: register columns in DWARF order;
columns of pc, sp, fp and lr; bits of a return address that are no address; place of frame records; then the parts:
encoding of calls, the kernel's signal trampolines, slots of the kernel's NT_PRSTATUS register set.

The parts of an Arch are properties of its code, its signal frames, and its kernel interface. Each part is a value. The
default of an unknown property makes no assumption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

from pyprof.lazy_dataclasses import dataclass, field


def _unknown_size(code: bytes) -> int:
    return 0


def never(code: bytes) -> bool:
    """Return False. This is the default for a predicate on machine code, such as "is this a PLT entry", that an
    architecture does not define.
    """
    return False


@dataclass(frozen=True)
class SigFrame:
    """A signal trampoline of the kernel or the C library, identified by its code.

    Attributes:
        code: Code bytes at its first instruction.
        saved: For each saved register, by its column, the offset from sp of the word that holds it, when pc is at the
            first instruction.
    """

    code: bytes
    saved: dict[int, int]


@dataclass(frozen=True)
class FrameChain:
    """The frame records that compiled code links by a register. `base` below is the value of that register.

    Attributes:
        base: Column of the register.
        next_off: next = [base + next_off] is the base of the caller.
        ra_off: The return address is [base + ra_off], or [next + ra_off] if ra_in_next.
        cfa_off: cfa = base + cfa_off, or next if cfa_off is None.
        ra_in_next: True if the return address is [next + ra_off].
        zero_is_root: True if every frame of the ABI has a record, so that next = 0 marks the outermost frame.
        sp_known: True if cfa is the caller's sp. It is unknown if records lie at the bottom of frames (AArch64).
        leaf_off: A leaf function saves only the caller's base, at base + leaf_off, and no return address (RISC-V). None
            if a leaf function has no record or a complete one.
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
    """The distance from sp up to the frame pointer after a function's prologue.

    Attributes:
        least: Minimum distance in bytes.
        fixed: True if the distance does not change.
        pushed: Bytes of arguments that the code before a call has pushed for it, since the previous jump or call.
    """

    least: int
    fixed: bool
    pushed: int = 0


@dataclass(frozen=True)
class FrameCode:
    """Functions that analyse the machine code of functions with frame pointers.

    Attributes:
        depth: (code of a function, offset) -> Depth at the offset, None if no frame record is linked before it.
        popped: (code after a call) -> bytes of arguments that this code removes from the stack.
        entries: (code) -> ascending (minimum, maximum) offsets of functions that link frame records.
        jumps: (code of a function, its address) -> targets of its jumps, None for a jump with an unknown target.
        jump: (code, its address) -> target of the direct jump at its start, None if there is none.
        called_slot: (code before an address, the address) -> address of the word that holds the target of the indirect
            call there, None if there is none.
        jumped_slot: (code from an address on, the address) -> the same for an indirect jump.
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
    """The code that GCC generates for __builtin_eh_return, with which an exception unwinder enters a handler.

    Attributes:
        saved: Columns of registers that are all saved in the frame of a function that uses it, and in few other
            functions.
        jump: Matches the code that moves the stack pointer and jumps.
    """

    saved: frozenset[int]
    jump: re.Pattern[bytes]


@dataclass(frozen=True)
class PltCode:
    """The code layout of an architecture's procedure linkage tables.

    Attributes:
        steps: Bytes of one entry, by section name.
        target: (code of an entry, its svma) -> ("slot", address of the word with the target), ("number", n) if the
            entry pushes the number of a relocation, or None for other code.
        glob_dat: Type of a relocation that fills a slot.
        jump_slot: Type of a relocation that fills a slot.
        irelative: Type of a relocation that fills a slot.
    """

    steps: dict[str, int]
    target: Callable[[bytes, int], tuple[str, int] | None]
    glob_dat: int
    jump_slot: int
    irelative: int


@dataclass(frozen=True)
class CallConvention:
    """Properties of an architecture's code: how it calls, returns and lays out frames.

    Attributes:
        follows_call: (code before an address) -> True if the last instruction may be a call.
        call_target: (code before an address, the address) -> target of the direct call that ends there, None for an
            indirect call or no call.
        jumps: (16 bytes of code from an address on) -> True if the code only jumps elsewhere (PLT entry, linker stub).
        saves_lr: (32 bytes of code from an address on) -> True if this code only now makes the frame record, so that
            the link register still holds the return address.
        sets_base: (32 bytes of code before an address) -> True if this code has just set the base register to the
            function's own record. It is used if saves_lr is true; the record then has the caller's base, but not yet
            the return address.
        leaf_size: (16 bytes of code of a function) -> its length if it is a well-known helper whose code determines the
            length, else 0.
        epilogue: (code from a pc on) -> its effects on sp up to the return: ("sp", n) sp += n, ("push", column),
            ("pop", column), ("fp", 0) sp = fp; None if an instruction does anything else. None if unsupported.
        frame_code: Analysis of code with frame pointers, None if unsupported.
        new_thread: Pairs of (code before, code after) the pc at which a new thread starts, with 0 as result of its
            system call. The unwind tables of C libraries end before that system call.
        plt: Layout of procedure linkage tables, None if unknown.
        eh_return: Code of __builtin_eh_return, None if unknown.
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
    """The stack layout where a signal or a hardware exception interrupted code.

    Attributes:
        frames: Signal trampolines of the kernel and of C libraries, identified by their code where no table covers
            them.
        kernel_cfi: True if the kernel's own CFI of signal trampolines is correct.
        exception_return: Addresses from here on are no code but return values of hardware exception handlers (Cortex-M:
            EXC_RETURN); 0 if there are none.
    """

    frames: tuple[SigFrame, ...]
    kernel_cfi: bool = True
    exception_return: int = 0

    def trampoline_at(self, read: Callable[[int, int], bytes], pc: int, exact: bool) -> SigFrame | None:
        """Return the signal trampoline whose code contains pc, or None.

        A handler returns to the trampoline's first byte. An exact pc (one that is no return address) may also be after
        any instruction of the trampoline that leaves sp unchanged: all but a pop at its start. It is after the last
        instruction, the system call, while the thread is in the kernel.

        Args:
            read: (avma, size) -> code bytes.
            pc: The address.
            exact: True if pc is no return address.
        """
        for frame in self.frames:
            size = len(frame.code)
            if read(pc, size) == frame.code or (exact and frame.code in read(pc - size, 2 * size)):
                return frame
        return None


@dataclass(frozen=True)
class Kernel:
    """The interface of Linux for threads of one architecture.

    Attributes:
        prstatus: For each register column the index of its word in the kernel's user_regs_struct, -1 if it has none.
        fpregset: Index of the word in the floating-point registers (NT_FPREGSET) by column, for columns that unwinding
            may need.
        machines: Values of uname -m on which the kernel runs such code itself.
        regset_size: Bytes of NT_PRSTATUS that PTRACE_GETREGSET returns for a task of this architecture.
        syscall_return: Index of the word of user_regs_struct with a system call's result, -1 if there is none.
        syscall_number: Index of the word that is not negative only in a system call, -1 if there is none.
        syscall_codes: System call instructions, after which a thread continues.
        syscall_args: Indices of the words of user_regs_struct with a call's arguments.
        syscalls: Numbers of the calls in which threads sleep, by name.
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
        """Return the names of an architecture's system calls by number."""
        return {number: name for name, number in self.syscalls.items()}


@dataclass(frozen=True)
class Arch:
    """The properties of one processor architecture.

    Attributes:
        name: Name of the architecture.
        elf_machine: e_machine of ELF files.
        elf_class: 32 or 64.
        byteorder: Byte order of data, "little" or "big".
        word: Bytes of an address.
        registers: Column names. The index of a column is its place in SampleBatch.regs.
        dwarf: Column by DWARF register number.
        pc: Column of the program counter.
        sp: Column of the stack pointer.
        fp: Column of the frame pointer.
        lr: Column of the link register, -1 if a call pushes the return address.
        callee_saved: Columns of callee-saved registers, without sp, lr and pc.
        pc_mask: Bits of a pc or return address that are address (ARM: bit 0 means Thumb).
        calls: Properties of code.
        signals: Signal frames.
        kernel: Interface of Linux.
        pac_mask: Bits of a signed return address that hold the signature, for the usual address size; 0 if return
            addresses are not signed. NT_ARM_PAC_MASK has the exact bits of a process.
        sp_off: The caller's sp is cfa + sp_off, unless a rule says otherwise.
        chain: Frame records of code with frame pointers, None if they have no uniform layout.
        breakpad: Names of the architecture in Breakpad symbol files.
        gdb_packet: (register, bytes) at the start of the `g` packet of a GDB stub that describes no registers (GDB's
            tdep).
        bfd: Name in GDB and binutils, with either byte order; "" if they have none.
    """

    name: str
    elf_machine: int
    elf_class: int
    byteorder: str
    word: int
    registers: tuple[str, ...]
    dwarf: dict[int, int]
    pc: int
    sp: int
    fp: int
    lr: int
    callee_saved: frozenset[int]
    pc_mask: int
    calls: CallConvention
    signals: Signals
    kernel: Kernel
    pac_mask: int = 0
    sp_off: int = 0
    chain: FrameChain | None = None
    breakpad: tuple[str, ...] = ()
    gdb_packet: tuple[tuple[str, int], ...] = ()
    bfd: str = ""

    @property
    def mask(self) -> int:
        """Return a mask that has as many one bits as an address has bits."""
        return (1 << (8 * self.word)) - 1

    def code_address(self, value: int, pac: bool = False) -> int:
        """Return the address in a pc or a stored return address, without bits that are no address. `pac` is True if the
        return address is signed.
        """
        return value & self.pc_mask & ~(self.pac_mask if pac else 0)
