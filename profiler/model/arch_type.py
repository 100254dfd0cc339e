"""What an architecture is, as a value. Its parts: arch_parts. The values: arch_x86, arch_arm and so on. Import: arch.

Porting checklist (docs/porting.md has it in full): register columns in DWARF order, the columns of pc, sp, fp
(lr), which bits of a return address are no address, where frame records lie; then the parts: how a call is encoded,
what the kernel's signal trampolines look like, the slots of the kernel's NT_PRSTATUS register set.
"""

from __future__ import annotations

from pyprof.model.arch_parts import CallConvention, FrameChain, Kernel, Signals
from pyprof.records import dataclass


@dataclass(frozen=True)
class Arch:
    """One architecture.

    elf_machine, elf_class: e_machine, and 32 or 64. byteorder: of data, "little" or "big". word: bytes of an address.
    registers: column names; a column's index is its place in SampleBatch.regs.
    dwarf: DWARF register number -> column.
    lr: column of the link register, or -1 where the call pushes the return address. callee_saved: not sp, lr, pc.
    pc_mask: the bits of a pc or return address that are address (ARM: bit 0 says Thumb).
    pac_mask: the bits of a signed return address that hold the signature, at the usual size of addresses;
    NT_ARM_PAC_MASK of a process says it exactly (dataclasses.replace). 0 where nothing signs.
    sp_off: the caller's sp = cfa + sp_off, unless a rule says otherwise.
    chain: the frame records that code built with frame pointers leaves; None where their layout is not one.
    breakpad: the names of the architecture in Breakpad's symbol files, () where it has none.
    gdb_packet: (register, bytes) at the start of a remote stub's `g` packet where it describes none (GDB's tdep).
    bfd: its name in GDB and binutils, with either byte order; "" if they have none.
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
        """All ones of one address."""
        return (1 << (8 * self.word)) - 1

    def code_address(self, value: int, pac: bool = False) -> int:
        """The address in a pc or a stored return address; pac: it is signed."""
        return value & self.pc_mask & ~(self.pac_mask if pac else 0)
