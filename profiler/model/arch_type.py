"""The definition of an architecture, as a value. arch_parts has its parts, arch_x86, arch_arm and others the values.

Other modules import from arch. docs/porting.md has a checklist for a new architecture: register columns in DWARF order;
columns of pc, sp, fp and lr; bits of a return address that are no address; place of frame records; then the parts:
encoding of calls, the kernel's signal trampolines, slots of the kernel's NT_PRSTATUS register set.
"""

from __future__ import annotations

from pyprof.model.arch_parts import CallConvention, FrameChain, Kernel, Signals
from pyprof.records import dataclass


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
        pac_mask: Bits of a signed return address that hold the signature, with the usual address size. NT_ARM_PAC_MASK
            of a process is exact (use replace). 0 if return addresses are not signed.
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
        """Return the address in a pc or a stored return address. `pac` tells that it is signed."""
        return value & self.pc_mask & ~(self.pac_mask if pac else 0)
