"""An emulator of static ARM programs, based on unicorn, with as much of Linux as they need.

It calls an observer with the registers before each instruction. There are no threads, signals or files, and unknown
system calls return ENOSYS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import unicorn as uc
from unicorn import arm_const as arm

from pyprof.objfile.elf_file import ElfFile

STACK_TOP, STACK_SIZE = 0xBEFF_0000, 0x4_0000
HEAP, HEAP_SIZE = 0x4000_0000, 0x80_0000
MAX_INSTRUCTIONS = 2_000_000

REGISTERS = [getattr(arm, f"UC_ARM_REG_R{n}") for n in range(13)] + [
    arm.UC_ARM_REG_SP,
    arm.UC_ARM_REG_LR,
    arm.UC_ARM_REG_PC,
    arm.UC_ARM_REG_CPSR,
]
THUMB = 1 << 5
ENOSYS = 38


@dataclass(frozen=True, slots=True)
class State:
    """The state before an instruction.

    Attributes:
        registers: r0 to r15, where r15 is the instruction's address.
        thumb: Whether the instruction is Thumb.
    """

    registers: tuple[int, ...]
    thumb: bool


Observer = Callable[["Emulator", State], None]


class Emulator:
    """A run of a program."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.exit_status: int | None = None
        self.instructions = 0
        self.machine = machine = uc.Uc(uc.UC_ARCH_ARM, uc.UC_MODE_ARM)
        machine.ctl_set_cpu_model(arm.UC_CPU_ARM_CORTEX_A15)
        low = min(s.vaddr for s in elf.loads) & -0x1000
        high = max(s.vaddr + s.memsz for s in elf.loads) + 0xFFF & -0x1000
        machine.mem_map(low, high - low)
        for segment in elf.loads:
            machine.mem_write(segment.vaddr, bytes(elf.at_svma(segment.vaddr, segment.filesz)))
        machine.mem_map(STACK_TOP - STACK_SIZE, STACK_SIZE)
        machine.mem_map(HEAP, HEAP_SIZE)
        self._break, self._mapped = HEAP, HEAP + HEAP_SIZE // 2
        machine.reg_write(arm.UC_ARM_REG_C1_C0_2, 0xF0_0000)  # enables CP10 and CP11 for VFP
        machine.reg_write(arm.UC_ARM_REG_FPEXC, 0x4000_0000)
        machine.reg_write(arm.UC_ARM_REG_SP, self._first_stack())
        machine.hook_add(uc.UC_HOOK_INTR, self._system_call)

    def run(self, observer: Observer) -> None:
        """Run the program until it exits, and call the observer before each instruction."""

        def step(machine: uc.Uc, address: int, _size: int, _data: object) -> None:
            self.instructions += 1
            if self.instructions > MAX_INSTRUCTIONS:
                machine.emu_stop()
                return
            values = machine.reg_read_batch(REGISTERS)
            observer(self, State((*values[:15], address), bool(values[16] & THUMB)))

        self.machine.hook_add(uc.UC_HOOK_CODE, step)
        self.machine.emu_start(self.elf.entry, 0xFFFF_FFF0)

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.machine.mem_read(address, size))

    def _first_stack(self) -> int:
        """Write argc, argv, environment and auxiliary vector, and return the stack pointer."""
        at = STACK_TOP - 0x100
        self.machine.mem_write(at, b"program\0".ljust(16, b"\0") + bytes(range(16)))
        first = self.elf.loads[0]
        auxv = [3, first.vaddr + 52, 4, 32, 5, len(self.elf.segments), 6, 4096, 9, self.elf.entry, 11, 0, 12, 0, 13, 0]
        auxv += [14, 0, 16, 0x1FB8D7, 17, 100, 23, 0, 25, at + 16, 31, at, 0, 0]
        words = struct.pack(f"<{4 + len(auxv)}I", 1, at, 0, 0, *auxv)
        sp = at - len(words) - 64 & -8
        self.machine.mem_write(sp, words)
        return sp

    def _system_call(self, machine: uc.Uc, number: int, _data: object) -> None:
        call = machine.reg_read(arm.UC_ARM_REG_R7)
        a, b = machine.reg_read(arm.UC_ARM_REG_R0), machine.reg_read(arm.UC_ARM_REG_R1)
        result = -ENOSYS
        if number != 2 or call in (1, 248):  # exit, exit_group; any other exception is a crash
            self.exit_status = a if number == 2 else -1
            machine.emu_stop()
        elif call == 0xF0005:  # set_tls
            machine.reg_write(arm.UC_ARM_REG_C13_C0_3, a)
            result = 0
        elif call == 45:  # brk
            if HEAP <= a <= HEAP + HEAP_SIZE // 2:
                self._break = a
            result = self._break
        elif call == 192:  # mmap2
            result, self._mapped = self._mapped, self._mapped + (b + 0xFFF & -0x1000)
        elif call in (4, 146):  # write, writev
            result = machine.reg_read(arm.UC_ARM_REG_R2)
        elif call in (91, 125, 175, 240, 256, 338):  # munmap mprotect rt_sigprocmask futex set_tid_address robust_list
            result = 0
        machine.reg_write(arm.UC_ARM_REG_R0, result & 0xFFFF_FFFF)
