"""The code of a function, and the states of its instructions: the place of the CFA before each, and the next ones.

Code knows the bytes of a segment, the padding between functions, calls, and possible ends of functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch.x86_instructions import LONGEST, begins_with_prologue
from pyprof.unwind.code_analysis.cfa_and_register_state import FrameRow, FrameState, make_row
from pyprof.unwind.code_analysis.x86_instruction_decoder import RBP, RSP, X86Instruction, decode

_PADDING = b"\x00\x90\xcc"
_NOPS = ((0, 0x90), (1, 0x1F))
_BEGIN_NOPS = b"\x66\x2e\x0f"
_PLT = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25(....)", re.DOTALL)  # jmp *slot(%rip)

Read = Callable[[int, int], bytes]
"""Function that reads bytes of the file: (address, size) -> bytes, fewer at the end of a segment."""


@dataclass(frozen=True, slots=True)
class Code:
    """The machine code of a segment, and the known function starts in it, as the code analysis reads them.

    Attributes:
        data: The bytes of the segment.
        base: Address of the first byte.
        next_start: Returns the first certain function start above an address, or the end of the segment.
        read: Reads bytes of the file, for jump tables.
        is_entry: Returns True for the entry point of the program.
        is_start: Returns True for addresses at which a function certainly begins.
        may_be_start: Returns True for certain starts, and for addresses to which a single call or `lea` refers.
        never_returns: Returns True for the address of a GOT slot whose function does not return, such as abort.
    """

    data: memoryview
    base: int
    next_start: Callable[[int], int]
    read: Read
    is_entry: Callable[[int], bool]
    is_start: Callable[[int], bool]
    may_be_start: Callable[[int], bool]
    never_returns: Callable[[int | None], bool]


def has_prologue(code: Code, at: int) -> bool:
    """Return True if the code at an aligned address begins as functions do: endbr64, or a callee-saved register is
    pushed.
    """
    return at % 16 == 0 and at >= code.base and begins_with_prologue(code.data, at - code.base)


def end_of_padding(code: Code, at: int) -> int:
    """Return the address after the nops, traps and zeros at an address."""
    while 0 <= at - code.base < len(code.data):
        if code.data[at - code.base] in _PADDING:
            at += 1
            continue
        if code.data[at - code.base] not in _BEGIN_NOPS:
            break
        i = decode(code.data, at - code.base)
        if i is None or i.prefixes.strip(b"\x66\x2e") or (i.opcode_map, i.opcode) not in _NOPS or i.rex:
            break
        at += i.size
    return at


def is_padding(code: Code, at: int, end: int) -> bool:
    """Return True if there are only nops, traps and zeros between two addresses."""
    return at <= end and end_of_padding(code, at) >= end


def is_call(instruction: X86Instruction) -> bool:
    """Return True if an x86 instruction is a near call."""
    if instruction.opcode_map:
        return False
    return instruction.opcode == 0xE8 or (instruction.opcode == 0xFF and instruction.modrm >> 3 & 7 == 2)


def called_function(i: X86Instruction, at: int) -> int | None:
    """Return the target of a direct x86-64 call at an address, or None for an indirect call."""
    return at + i.size + i.signed(i.size - 4, 4) if i.opcode == 0xE8 else None


def called_slot(code: Code, i: X86Instruction, at: int) -> int | None:
    """Return the address of the GOT slot through which an x86-64 call at an address goes, directly or through a PLT
    entry, or None.
    """
    target = called_function(i, at)
    if target is None:
        return at + i.size + i.signed(i.operand + 1, 4) if i.modrm == 0x15 else None
    entry = _PLT.match(code.data, target - code.base) if target >= code.base else None
    return entry.end() + code.base + int.from_bytes(entry[1], "little", signed=True) if entry is not None else None


def sets_rsp_from_rbp(i: X86Instruction) -> bool:
    """Return True if an instruction computes rsp from rbp: `leave`, or `mov` or `lea` from rbp to rsp."""
    if i.opcode_map:
        return False
    if i.opcode == 0x8D:
        memory = i.memory()
        return i.reg == RSP and memory is not None and memory.base == RBP
    return i.opcode == 0xC9 or (i.opcode == 0x89 and i.modrm == 0xEC) or (i.opcode == 0x8B and i.modrm == 0xE5)


def ends_function(code: Code, call: int) -> bool:
    """Return True if another function may begin after a call: padding follows, or the next address is aligned."""
    instruction = decode(code.data, call - code.base)
    end = call + (instruction.size if instruction else 0)
    return end % 16 == 0 or end_of_padding(code, end) > end


class InstructionState(NamedTuple):
    """The frame state before one instruction of a function, and the instructions to which control goes after it.

    Attributes:
        size: Size of the instruction in bytes.
        state: The state of the frame before the instruction.
        call: Address of the call on the path to the instruction that is most likely not to return, None if there is
            none.
        targets: Addresses in the function to which the instruction jumps.
        ends: Control does not continue at the next instruction.
        leaves: The instruction returns or jumps to another function, and rsp is at the right depth for that.
        calls: The instruction is a call, which may not return.
        resets: The instruction sets rsp from rbp.
    """

    size: int
    state: FrameState
    call: int | None
    targets: tuple[int, ...] = ()
    ends: bool = False
    leaves: bool = False
    calls: bool = False
    resets: bool = False


Run = tuple[int, int, FrameRow]
"""Consecutive instructions that share one unwind rule: (first address, address after the last one, rule)."""


class Outline(NamedTuple):
    """A summary of an analysed function, made before its stack depths are proved.

    Attributes:
        returns: Number of returns and tail calls at the right depth.
        end: Address at which the code after the function begins, without the parts that the compiler placed apart.
    """

    returns: int
    end: int


@dataclass(slots=True)
class FunctionStates:
    """The frame states of all instructions of one function.

    Attributes:
        start: First address of the function.
        known: The state of each instruction, by its address.
        returns: Number of returns and tail calls at the right depth.
        unresolved: Frame states at indirect jumps whose targets are unknown.
    """

    start: int
    known: dict[int, InstructionState] = field(default_factory=dict)
    returns: int = 0
    unresolved: list[FrameState] = field(default_factory=list)

    def find(self, at: int) -> int | None:
        """Return the start of the analysed instruction that covers an address, or None."""
        for start in range(at, at - LONGEST, -1):
            found = self.known.get(start)
            if found is not None:
                return start if at < start + found.size else None
        return None

    def successors(self, start: int) -> list[int]:
        """Return the analysed instructions that may run directly after another one."""
        found = self.known[start]
        targets = found.targets if found.ends else (start + found.size, *found.targets)
        return [at for target in targets if (at := self.find(target)) is not None]

    def runs(self) -> list[Run]:
        """Return the runs of consecutive instructions that share one unwind rule, ascending."""
        found: list[Run] = []
        for at in sorted(self.known):
            end, row = at + self.known[at].size, make_row(self.known[at].state)
            if found and found[-1][1] == at and found[-1][2] == row:
                found[-1] = (found[-1][0], end, row)
            else:
                found.append((at, end, row))
        return found

    def end_of_first_part(self, code: Code) -> int:
        """Return the address after the first part of the function, that is without parts that the compiler placed
        elsewhere.
        """
        end = self.start
        while end in self.known:
            end += self.known[end].size
            if end not in self.known:
                end = end_of_padding(code, end)
        return end

    def copy(self) -> FunctionStates:
        return FunctionStates(self.start, dict(self.known), self.returns, self.unresolved[:])
