"""The stack depth at each instruction of one x86-64 function, along all paths from its start.

analyse() follows the control flow and computes for each instruction where the CFA is and where the caller's registers
are saved. It proves the result or refuses: two paths to one instruction with different depths, or a return at a wrong
depth, prove that the start or a path is wrong.

A call may not return. The code after it is followed nevertheless. If that leads to a contradiction, the call does not
return, and the function is analysed again without that path. Code that only an indirect jump reaches gets the depth of
that jump if it then leads to a return at the right depth.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple

from pyprof.model.arch.x86_instructions import begins_with_prologue
from pyprof.records import dataclass, field
from pyprof.unwind.code_analysis.x86_instructions import (
    CALLEE_SAVED,
    RBP,
    RSP,
    X86Instruction,
    decode,
    neutral_pattern,
    written_registers,
)

MAX_RANGES = 20_000
"""Maximum number of ranges of instructions of one function that are analysed."""

MAX_TRIALS = 64
"""Maximum number of calls of one function that are found not to return, and of gaps that are tried."""

MAX_TABLE = 1024
"""Maximum number of entries of a jump table."""

KEPT, LOST = 0, 1
"""Place of a callee-saved register whose value is still in the register, or is unknown. Other values are offsets from
the CFA, which are negative.
"""

_SLOT = {register: at for at, register in enumerate(CALLEE_SAVED)}
_FP = _SLOT[RBP]
_PADDING = re.compile(
    rb"(?:\xcc|\x90|\x66*+(?:\x2e)?\x0f\x1f(?:[\x00-\x3b\xc0]|\x44..|\x40.|\x80....|\x84.....)|\x66+\x90|\x00)*+",
    re.DOTALL,
)
_TABLE = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)  # lea table(%rip),%reg
_BOUND = re.compile(
    rb"(?:[\x83\x80][\xf8-\xff](?P<short>.)|\x3c(?P<byte>.)|\x3d(?P<eax>....)|\x81[\xf8-\xff](?P<long>....)"
    rb"|\x83[\x78-\x7f](?:\x24)?.(?P<memory>.))(?:\x0f\x87|\x77)",
    re.DOTALL,
)
_LOOK_BACK = 96
_PLT = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25(....)", re.DOTALL)  # jmp *slot(%rip)
_PROBE = re.compile(
    rb"\x4c\x8d\x9c\x24(....)\x48\x81\xec\x00\x10\x00\x00\x48\x83\x0c\x24\x00\x4c\x39\xdc\x75\xef", re.DOTALL
)


class FrameState(NamedTuple):
    """The places of the CFA and of the caller's registers before an instruction.

    Attributes:
        sp: rsp minus the CFA, None if it is unknown.
        base: rbp minus the CFA, None if it is unknown.
        saved: Place of each callee-saved register: KEPT, LOST or an offset from the CFA.
        outermost: The code has cleared rbp as the ABI demands of a thread's first function.
    """

    sp: int | None = -8
    base: int | None = None
    saved: tuple[int, ...] = (KEPT,) * len(CALLEE_SAVED)
    outermost: bool = False


ENTRY = FrameState()


class Contradiction(Exception):
    """The code contradicts what was assumed about it.

    Attributes:
        call: Address of the call that then does not return, None if there is no such call.
    """

    def __init__(self, call: int | None = None) -> None:
        super().__init__()
        self.call = call


class StateRange(NamedTuple):
    """A range of instructions that share one state.

    Attributes:
        end: Address after the range.
        state: The state before each of its instructions.
        call: Address of the call on the path to it that is most likely not to return, None if there is no call.
        single: The range is one instruction.
        targets: Addresses in the function to which the instruction jumps.
        ends: Control does not continue behind the instruction.
        leaves: The instruction returns or jumps to another function, and rsp is at the right depth for that.
        calls: The instruction is a call, which may not return.
        resets: The instruction takes rsp from rbp.
    """

    end: int
    state: FrameState
    call: int | None
    single: bool
    targets: tuple[int, ...] = ()
    ends: bool = False
    leaves: bool = False
    calls: bool = False
    resets: bool = False


@dataclass(slots=True)
class FunctionStates:
    """The states of one function's instructions.

    Attributes:
        start: First address of the function.
        starts: First address of each range, ascending.
        ranges: The range at each start.
        returns: Number of returns and tail calls at the right depth.
        unresolved: States at indirect jumps whose targets are unknown.
    """

    start: int
    starts: list[int] = field(default_factory=list)
    ranges: dict[int, StateRange] = field(default_factory=dict)
    returns: int = 0
    unresolved: list[FrameState] = field(default_factory=list)

    def find(self, at: int) -> int | None:
        """Return the start of the range that covers an address, or None."""
        place = bisect_right(self.starts, at) - 1
        if place >= 0 and at < self.ranges[self.starts[place]].end:
            return self.starts[place]
        return None

    def copy(self) -> FunctionStates:
        return FunctionStates(self.start, self.starts[:], dict(self.ranges), self.returns, self.unresolved[:])


Read = Callable[[int, int], bytes]
"""Function that reads bytes of the file: (address, size) -> bytes, fewer at the end of a segment."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code in which a function lies.

    Attributes:
        data: The bytes of its segment.
        base: Address of the first byte.
        next_start: Returns the first certain function start above an address, or the end of the segment.
        read: Reads data, for jump tables.
        is_entry: Returns True for the entry point of the program.
        is_start: Returns True for addresses at which a function certainly begins.
        may_be_start: Returns True for those, and for addresses that one instruction uses like a function.
        never_returns: Returns True for the slot of the GOT of a function that does not return, such as abort.
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
    """Return the address after the nops and traps at an address."""
    match = _PADDING.match(code.data, at - code.base)
    assert match is not None
    return match.end() + code.base


def is_padding(code: Code, at: int, end: int) -> bool:
    """Return True if there are only nops and traps between two addresses."""
    return at <= end and _PADDING.fullmatch(code.data, at - code.base, end - code.base) is not None


def analyse(code: Code, start: int) -> FunctionStates | None:
    """Return the states of the function at an address, or None if its code contradicts itself."""
    no_return: set[int] = set()
    open_tables, sure = True, code.is_start(start)
    for _ in range(MAX_TRIALS):
        analysis = _Analysis(code, FunctionStates(start), no_return, open_tables)
        try:
            analysis.follow([(start, ENTRY, None)])
            analysis.fill_gaps()
        except Contradiction as refused:
            if (
                refused.call is not None
                and refused.call not in no_return
                and (sure or _ends_function(code, refused.call))
            ):
                no_return.add(refused.call)
            elif analysis.used_open_table:
                open_tables = False
            else:
                return None
            continue
        return analysis.states
    return None


def is_call(instruction: X86Instruction) -> bool:
    """Return True for a near call."""
    if instruction.opcode_map:
        return False
    return instruction.opcode == 0xE8 or (instruction.opcode == 0xFF and instruction.modrm >> 3 & 7 == 2)


def called_function(i: X86Instruction, at: int) -> int | None:
    """Return the target of a direct call at an address, or None for an indirect call."""
    return at + i.size + i.signed(i.size - 4, 4) if i.opcode == 0xE8 else None


def called_slot(code: Code, i: X86Instruction, at: int) -> int | None:
    """Return the slot of the GOT through which a call at an address goes, itself or by the PLT, or None."""
    target = called_function(i, at)
    if target is None:
        return at + i.size + i.signed(i.operand + 1, 4) if i.modrm == 0x15 else None
    entry = _PLT.match(code.data, target - code.base) if target >= code.base else None
    return entry.end() + code.base + int.from_bytes(entry[1], "little", signed=True) if entry is not None else None


def sets_rsp_from_rbp(i: X86Instruction) -> bool:
    """Return True for `leave`, and for `mov` and `lea` from rbp to rsp."""
    if i.opcode_map:
        return False
    if i.opcode == 0x8D:
        memory = i.memory()
        return i.reg == RSP and memory is not None and memory[0] == RBP
    return i.opcode == 0xC9 or (i.opcode == 0x89 and i.modrm == 0xEC) or (i.opcode == 0x8B and i.modrm == 0xE5)


def _ends_function(code: Code, call: int) -> bool:
    """Return True if the code after a call may be another function: padding follows, or an aligned address."""
    instruction = decode(code.data, call - code.base)
    end = call + (instruction.size if instruction else 0)
    return end % 16 == 0 or end_of_padding(code, end) > end


_Path = tuple[int, FrameState, int | None]
"""A path to follow: its first address, the state there, and the call before it as in StateRange."""


class _Analysis:
    """One attempt to analyse a function.

    Attributes:
        states: The result so far.
        used_open_table: A jump table was read whose length the code does not state.
    """

    def __init__(self, code: Code, states: FunctionStates, no_return: set[int], open_tables: bool) -> None:
        """Start an attempt.

        Args:
            code: The code.
            states: An empty result.
            no_return: Addresses of calls that do not return.
            open_tables: Read also jump tables whose length the code does not state.
        """
        self.states = states
        self.used_open_table = False
        self._open_tables = open_tables
        self._code = code
        self._neutral = neutral_pattern()
        self._no_return = no_return
        self._sure = code.is_start(states.start)
        self._limit = code.next_start(states.start)
        self._system_call = code.is_entry(states.start)
        self._waiting: list[_Path] = []
        self._ends: dict[int, bool] = {}

    def follow(self, waiting: list[_Path]) -> None:
        """Follow all paths from some addresses."""
        self._waiting = waiting
        while self._waiting:
            self._follow_straight(*self._waiting.pop())

    def fill_gaps(self) -> None:
        """Analyse code that only indirect jumps with unknown targets reach."""
        tried: set[int] = set()
        while self.states.unresolved and len(tried) < MAX_TRIALS:
            gap = next((at for at in self._gaps() if at not in tried), None)
            if gap is None:
                return
            tried.add(gap)
            for state in dict.fromkeys(self.states.unresolved):
                kept, self.states = self.states, self.states.copy()
                try:
                    self.follow([(gap, state, None)])
                except Contradiction:
                    self.states = kept
                    continue
                if self.states.returns > kept.returns or self._joined:
                    break
                self.states = kept

    def _gaps(self) -> list[int]:
        states, found = self.states, []
        for place, start in enumerate(states.starts):
            end = states.ranges[start].end
            after = states.starts[place + 1] if place + 1 < len(states.starts) else self._limit
            if start >= states.start and end < after <= self._limit:
                begin = end_of_padding(self._code, end)
                if begin < after and not self._code.may_be_start(begin):
                    found.append(begin)
        return found

    _joined = False

    def _follow_straight(self, at: int, state: FrameState, call: int | None) -> None:
        """Follow instructions until a jump or return, or until analysed code is reached."""
        code, states = self._code, self.states
        data, base = code.data, code.base
        limit = self._limit if states.start <= at < self._limit else code.next_start(at)
        while True:
            known = states.find(at)
            if known is not None:
                self._join(known, at, state, call)
                return
            if not 0 <= at - base < len(data):
                return
            place = bisect_right(states.starts, at)
            until = min(limit, states.starts[place]) if place < len(states.starts) else limit
            match = self._neutral.match(data, at - base, until - base)
            assert match is not None
            end = match.end() + base
            if end > at:
                self._add(at, StateRange(end, state, call, False))
                at = end
            if at >= until:
                if until == limit:
                    return
                continue
            instruction = decode(data, at - base)
            if instruction is None or at + instruction.size > until:
                raise Contradiction(call)
            following = self._add_step(instruction, at, state, call)
            if following is None:
                return
            if is_call(instruction) and (call is None or not self._may_end(call) or self._may_end(at)):
                call = at
            at, state = at + instruction.size, following
            if state.sp is None and state.base is None and not state.outermost:
                return

    def _add_step(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Add the range of one instruction, and return the state after it as _step() does."""
        waiting, returns = len(self._waiting), self.states.returns
        following = self._step(i, at, state, call)
        found = StateRange(
            at + i.size,
            state,
            call,
            True,
            tuple(path[0] for path in self._waiting[waiting:]),
            following is None,
            self.states.returns > returns,
            is_call(i),
            sets_rsp_from_rbp(i),
        )
        self._add(at, found)
        return following

    def _may_end(self, call: int) -> bool:
        if call not in self._ends:
            self._ends[call] = _ends_function(self._code, call)
        return self._ends[call]

    def _add(self, at: int, found: StateRange) -> None:
        if len(self.states.starts) >= MAX_RANGES:
            raise Contradiction
        insort(self.states.starts, at)
        self.states.ranges[at] = found

    def _join(self, known: int, at: int, state: FrameState, call: int | None) -> None:
        """Merge the state of a path that reaches analysed code with the state there."""
        found = self.states.ranges[known]
        if at != known and not self._is_boundary(known, at, found):
            raise Contradiction(call if call is not None else found.call)
        self._joined = True
        old = found.state
        if old == state:
            return
        sp = old.sp if old.sp == state.sp else None
        base = old.base if old.base == state.base else None
        if old.outermost != state.outermost or (sp is None and base is None):
            if call is not None and found.call is None:
                raise Contradiction(call)
            raise Contradiction(found.call if found.call is not None else call)
        saved = tuple(a if a == b else LOST for a, b in zip(old.saved, state.saved, strict=True))
        merged = FrameState(sp, base, saved, old.outermost)
        if merged != old:
            self._drop(known)
            if at != known:
                self._add(known, found._replace(end=at))
            self._waiting.append((at, merged, found.call))

    def _is_boundary(self, known: int, at: int, found: StateRange) -> bool:
        """Return True if an instruction begins at an address of a range. A jump may skip the prefix lock."""
        first, last = known - self._code.base, at - self._code.base
        if self._code.data[last - 1] == 0xF0 and (last - 1 == first or self._matches(first, last - 1)):
            return True
        return not found.single and self._matches(first, last)

    def _matches(self, first: int, last: int) -> bool:
        return self._neutral.fullmatch(self._code.data, first, last) is not None

    def _drop(self, start: int) -> None:
        del self.states.ranges[start]
        self.states.starts.remove(start)

    def _step(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the state after an instruction, or None if control does not continue behind it."""
        if i.opcode_map == 0:
            return self._step_one(i, at, state, call)
        if i.opcode_map == 1:
            if 0x80 <= i.opcode < 0x90:
                self._jump(at + i.size + i.signed(i.size - 4, 4), state, call)
                return state
            if i.opcode in (0x0B, 0xB9, 0xFF):  # ud2
                return None
            if i.opcode == 0x05:
                self._system_call = True
                return state
        return self._compute(i, state, call)

    def _step_one(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        op, after = i.opcode, at + i.size
        if 0x70 <= op < 0x80 or 0xE0 <= op < 0xE4:
            self._jump(after + i.signed(i.size - 1, 1), state, call)
            return state
        if op == 0xE8:
            if i.signed(i.size - 4, 4) == 0:
                return _push(state, -1)
            return self._call(i, at, state, call)
        if op in (0xE9, 0xEB):
            self._jump(after + i.signed(i.size - (4 if op == 0xE9 else 1), 4 if op == 0xE9 else 1), state, call)
            return None
        if op in (0xC3, 0xC2):
            self._return(state, call)
            return None
        if op == 0xC7 and i.modrm == 0xF8:  # xbegin
            self._jump(after + i.signed(i.size - 4, 4), state, call)
            return state
        if op == 0xFF:
            return self._step_ff(i, at, state, call)
        if op in (0xCC, 0xF4):
            return None
        return self._push_or_pop(i, state, call)

    def _push_or_pop(self, i: X86Instruction, state: FrameState, call: int | None) -> FrameState | None:
        op, register = i.opcode, (i.opcode & 7) + (i.rex << 3 & 8)
        if 0x50 <= op < 0x58:
            return _push(state, register)
        if 0x58 <= op < 0x60:
            return self._pop(state, register, call)
        if op in (0x68, 0x6A, 0x9C):  # push of a number, pushf
            return _push(state, -1)
        if op == 0x9D:  # popf
            return self._pop(state, -1, call)
        if op == 0xC9:  # leave
            if state.base is None and not state.outermost:
                raise Contradiction(call)
            return self._pop(state._replace(sp=state.base), RBP, call)
        if op == 0x8F:
            if i.modrm >> 3 & 7:
                raise Contradiction(call)
            return self._pop(state, i.rm, call)
        return self._compute(i, state, call)

    def _step_ff(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        kind = i.modrm >> 3 & 7
        if kind == 2:
            return self._call(i, at, state, call)
        if kind == 6:
            return _push(state, -1)
        if kind == 4:
            self._jump_indirect(i, at, state, call)
            return None
        if kind in (3, 5, 7):
            raise Contradiction(call)
        return self._compute(i, state, call)

    def _call(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the state after a call, or None if it does not return.

        The ABI demands that rsp is a multiple of 16 there. If it is not at the first call, an uncertain start is wrong.
        """
        if call is None and not self._sure and state.sp is not None and state.sp % 16:
            raise Contradiction
        return None if at in self._no_return or self._code.never_returns(called_slot(self._code, i, at)) else state

    def _jump(self, target: int, state: FrameState, call: int | None) -> None:
        code, start = self._code, self.states.start
        inside = start <= target < self._limit

        def may_begin(at: int) -> bool:
            return at % 16 == 0 or code.may_be_start(at)

        if state.sp != -8 or state.base is not None:
            if inside or state.sp is not None or state.base is not None:
                self._waiting.append((target, state, call))  # perhaps a part that the compiler placed apart
        elif target == start or (inside and not code.may_be_start(target)):
            self._waiting.append((target, state, call))
        elif code.is_start(target) or has_prologue(code, target) or (self._sure and may_begin(target)):
            self.states.returns += 1
        elif self._sure:
            self._waiting.append((target, state, call))
        else:
            raise Contradiction(call)  # a part of the function that contains this code

    def _return(self, state: FrameState, call: int | None) -> None:
        if state.sp != -8 or state.outermost:
            raise Contradiction(call)
        self.states.returns += 1

    def _jump_indirect(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> None:
        if i.modrm == 0x25 and state.sp == -8:  # jmp *pointer(%rip), as in the PLT
            self.states.returns += 1
            return
        targets = self._table(i, at)
        if targets:
            self._waiting += [(target, state, call) for target in targets]
            return
        if state.sp == -8 and self._sure:
            self.states.returns += 1
        self.states.unresolved.append(state)

    def _table(self, i: X86Instruction, at: int) -> list[int]:
        """Return the targets of an indirect jump by a table, or an empty list if there is no readable table."""
        offset = at - self._code.base
        before = bytes(self._code.data[max(offset - _LOOK_BACK, 0) : offset])
        bound = None
        for match in _BOUND.finditer(before):
            number = next(text for text in match.groups() if text is not None)
            bound = int.from_bytes(number, "little") + 1
        most = min(bound, MAX_TABLE) if bound is not None else MAX_TABLE
        if bound is None and not self._open_tables:
            return []
        if i.rm >= 0:
            loads = list(_TABLE.finditer(before))
            if not loads:
                return []
            after = at - len(before) + loads[-1].end()
            table = after + int.from_bytes(loads[-1].group(1), "little", signed=True)
            return self._entries(table, 4, table, most, bound)
        if i.text[i.operand] & 0xC7 == 0x04 and i.text[i.operand + 1] & 0xC7 == 0xC5:  # jmp *table(,%reg,8)
            return self._entries(i.signed(i.operand + 2, 4), 8, 0, most, bound)
        return []

    def _entries(self, table: int, size: int, origin: int, most: int, bound: int | None) -> list[int]:
        data = self._code.read(table, size * most)
        found = []
        for place in range(0, len(data) - size + 1, size):
            target = origin + int.from_bytes(data[place : place + size], "little", signed=True)
            if not self.states.start <= target < self._limit:
                break
            found.append(target)
        if bound is not None and len(found) < most:
            return []
        self.used_open_table |= bound is None
        return list(dict.fromkeys(found))

    def _pop(self, state: FrameState, register: int, call: int | None) -> FrameState | None:
        sp = state.sp
        if state.outermost:
            return state
        if sp is None:
            return _overwritten(state, register)
        if sp >= -8:
            raise Contradiction(call)  # this would pop the return address
        saved = list(state.saved)
        place = _SLOT.get(register, -1)
        base = None if register == RBP else state.base
        if place >= 0:
            saved[place] = KEPT if saved[place] == sp else LOST if saved[place] == KEPT else saved[place]
        if register == RSP:
            return FrameState(None, base, tuple(saved))
        return _with_sp(FrameState(sp, base, tuple(saved)), sp + 8, call)

    def _compute(self, i: X86Instruction, state: FrameState, call: int | None) -> FrameState | None:
        """Return the state after an instruction that computes or moves data."""
        if state.outermost:
            return state
        if i.opcode_map == 0:
            if i.rex & 8 and i.opcode in (0x89, 0x8B):
                return self._move(i, state, call)
            if i.rex & 8 and i.opcode == 0x8D and i.reg in (RSP, RBP) and i.rex & 4 == 0:
                memory = i.memory()
                origin = _value(state, memory[0]) if memory is not None else None
                value = None if memory is None or origin is None else origin + memory[1]
                return self._set(state, i.reg, value, call)
            if i.opcode in (0x81, 0x83) and i.rex & 9 == 8 and i.rm == RSP:
                return self._arithmetic(i, state, call)
            if i.opcode in (0x31, 0x33) and i.modrm == 0xED and not i.rex & 5 and self._marks_outermost(state):
                return FrameState(None, None, state.saved, outermost=True)
        written = written_registers(i)
        if written is None:
            raise Contradiction(call)
        for register in written:
            following = self._set(state, register, None, call)
            if following is None:
                return None
            state = following
        return state

    def _marks_outermost(self, state: FrameState) -> bool:
        return self._system_call and state.saved[_FP] == KEPT

    def _arithmetic(self, i: X86Instruction, state: FrameState, call: int | None) -> FrameState | None:
        kind = i.modrm >> 3 & 7
        number = i.signed(i.operand + 1, i.size - i.operand - 1)
        if kind == 7:  # cmp
            return state
        if kind not in (0, 5) or state.sp is None:
            return self._set(state, RSP, None, call)
        return self._set(state, RSP, state.sp + (number if kind == 0 else -number), call)

    def _move(self, i: X86Instruction, state: FrameState, call: int | None) -> FrameState | None:
        """Return the state after a move of eight bytes."""
        loads = i.opcode == 0x8B
        if i.rm >= 0:
            source, target = (i.rm, i.reg) if loads else (i.reg, i.rm)
            return self._set(state, target, _value(state, source), call) if target in (RSP, RBP) else state
        memory = i.memory()
        at = _value(state, memory[0]) if memory is not None else None
        slot = at + memory[1] if at is not None and memory is not None else None
        place = _SLOT.get(i.reg, -1)
        if not loads:
            if slot is None or place < 0 or state.saved[place] != KEPT or not _may_save(state, i.reg, slot):
                return state
            return _with_saved(state, place, slot)
        if i.reg not in (RSP, RBP):
            return state
        following = self._set(state, i.reg, None, call)
        if following is not None and i.reg == RBP and slot is not None and state.saved[_FP] == slot:
            return _with_saved(following, _FP, KEPT)
        return following

    def _set(self, state: FrameState, register: int, value: int | None, call: int | None) -> FrameState | None:
        """Return the state after rsp or rbp has become CFA + value, or unknown if that is None."""
        if register == RBP:
            return _overwritten(state, RBP)._replace(base=value)
        if value is None:
            return state._replace(sp=None)
        return _with_sp(state, value, call)


def _may_save(state: FrameState, register: int, slot: int) -> bool:
    """Return True if a store of a register saves the caller's value in the frame, and not below rsp."""
    above = state.sp is None or slot >= state.sp
    return above and slot < -8 and slot % 8 == 0 and not (register == RBP and state.base is not None)


def _value(state: FrameState, register: int) -> int | None:
    """Return the offset of rsp or rbp from the CFA, or None for others and if it is unknown."""
    return state.sp if register == RSP else state.base if register == RBP else None


def _with_saved(state: FrameState, place: int, slot: int) -> FrameState:
    return state._replace(saved=(*state.saved[:place], slot, *state.saved[place + 1 :]))


def _overwritten(state: FrameState, register: int) -> FrameState:
    """Return the state after a callee-saved register has got another value."""
    place = _SLOT.get(register, -1)
    if register == RBP:
        state = state._replace(base=None)
    return _with_saved(state, place, LOST) if place >= 0 and state.saved[place] == KEPT else state


def _push(state: FrameState, register: int) -> FrameState:
    if state.sp is None or state.outermost:
        return state
    sp, place = state.sp - 8, _SLOT.get(register, -1)
    saves = place >= 0 and state.saved[place] == KEPT and not (register == RBP and state.base is not None)
    return (_with_saved(state, place, sp) if saves else state)._replace(sp=sp)


def _with_sp(state: FrameState, sp: int, call: int | None) -> FrameState:
    """Return the state after rsp has moved. What lies below rsp is lost."""
    if sp > -8:
        raise Contradiction(call)
    if state.sp is not None and sp > state.sp and any(slot < sp for slot in state.saved):
        saved = tuple(LOST if slot < sp and slot < 0 else slot for slot in state.saved)
        return FrameState(sp, state.base, saved)
    return state._replace(sp=sp)
