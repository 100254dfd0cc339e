"""The true stack of an emulated program, from its calls and returns."""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field

from pyprof.model.arch import ARM
from pyprof.objfile.elf_file import ElfFile
from tests.unwind.exidx.emulator import STACK_TOP, Emulator, State

SP, LR, PC = 13, 14, 15


@dataclass(frozen=True, slots=True)
class Truth:
    """The state at one instruction.

    Attributes:
        registers: Registers.
        callers: Return addresses from leaf to root.
        at_call: Whether the next instruction is a call.
    """

    registers: tuple[int, ...]
    callers: tuple[int, ...]
    at_call: bool


@dataclass
class Shadow:
    """A shadow stack of (return address, sp at the call) for each active call.

    A frame ends when sp is above that of its call, or when control reaches its return address with that sp. An
    exception lands within a function with that sp, but elsewhere; that function is then the innermost one.
    """

    functions: list[int]
    calls: list[tuple[int, int]] = field(default_factory=list)
    _before: tuple[int, int, int] | None = None  # (pc, sp, return address of a call or 0) of the last instruction

    def step(self, state: State, code: bytes) -> tuple[bool, tuple[int, ...]]:
        """Update the stack before an instruction. Return (whether it is a call, return addresses from leaf to root).

        Args:
            state: The state before the instruction.
            code: Four bytes of code.
        """
        pc, sp = state.registers[PC], state.registers[SP]
        called = False
        if self._before is not None:
            before, before_sp, back = self._before
            if back and pc != back:
                self.calls.append((back, before_sp))
                called = True
            while not called and self.calls and sp > self.calls[-1][1]:
                self.calls.pop()
            if not called and self.calls and sp == self.calls[-1][1]:
                back = self.calls[-1][0]
                landed = (
                    self.function(pc) != self.function(before)
                    and self.function(pc) == self.function(back - 1)
                    and pc not in self.functions
                )
                if pc == back or landed:
                    self.calls.pop()
        size = 2 if state.thumb and struct.unpack("<H", code[:2])[0] >> 11 < 0x1D else 4
        is_call = _is_call(code[:size], state.thumb)
        self._before = pc, sp, pc + size if is_call else 0
        return is_call, tuple(back for back, _ in reversed(self.calls))

    def function(self, pc: int) -> int:
        return bisect_right(self.functions, pc)


def _is_call(code: bytes, thumb: bool) -> bool:
    """Return True for bl and blx of the current instruction set. Calls.follows_call accepts both sets."""
    word = int.from_bytes(code, "little")
    if not thumb:
        return word >> 24 & 0xF == 0xB or word >> 25 == 0b1111101 or word & 0x0FFF_FFF0 == 0x012F_FF30
    if len(code) == 2:
        return word & 0xFF87 == 0x4780
    return word & 0xF800 == 0xF000 and word >> 16 & 0xC000 == 0xC000


def function_starts(elf: ElfFile) -> list[int]:
    """Return the sorted addresses of all functions in the symbol table."""
    symbols = elf.section(".symtab")
    assert symbols is not None
    rows = struct.iter_unpack("<IIIBBH", symbols)
    return sorted({value & ARM.pc_mask for _, value, _, info, _, _ in rows if info & 0xF == 2})


@dataclass
class Film:
    """A whole run of a program.

    Attributes:
        elf: The program.
        emulator: The emulator.
        moments: The state at each instruction.
        stacks: The stack's bytes from sp up at each instruction.
    """

    elf: ElfFile
    emulator: Emulator
    moments: list[Truth] = field(default_factory=list)
    stacks: list[bytes] = field(default_factory=list)


def watch(elf: ElfFile) -> Film:
    """Run a program to its end and return the film."""
    shadow, film = Shadow(function_starts(elf)), Film(elf, Emulator(elf))

    def observe(emulator: Emulator, state: State) -> None:
        is_call, callers = shadow.step(state, emulator.read(state.registers[PC], 4))
        film.moments.append(Truth(state.registers, callers, is_call))
        sp = state.registers[SP]
        film.stacks.append(emulator.read(sp, max(STACK_TOP - sp, 0)))

    film.emulator.run(observe)
    assert film.emulator.exit_status == 0
    return film
