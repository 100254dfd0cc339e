"""The places of the CFA and of saved registers at each instruction of one x86-64 function, along all paths.

analyse() follows the control flow from the start of a function. It proves the result or refuses: two paths to one
instruction with different depths, or a return at a wrong depth, prove that the start or a path is wrong.

A call may not return. The code after it is followed nevertheless. If that leads to a contradiction, the call does not
return, and the function is analysed again without that path. Code that only an indirect jump reaches gets the depth of
that jump if it then leads to a return at the right depth.

This is the specification of native/flow/flow.c, and takes its place where there is no native code.
"""

from __future__ import annotations

import re

from pyprof.unwind.code_analysis.cfa_and_register_state import (
    ENTRY,
    KEPT,
    MAX_OFFSET,
    AnalysisLimitExceeded,
    Contradiction,
    FramePlace,
    FrameState,
    after_call,
    load,
    loaded_value,
    merge,
    pop,
    push,
    store,
    with_sp,
    with_value,
    without_values,
)
from pyprof.unwind.code_analysis.instruction_states import (
    Code,
    FunctionStates,
    InstructionState,
    called_slot,
    end_of_padding,
    ends_function,
    has_prologue,
    is_call,
    sets_rsp_from_rbp,
)
from pyprof.unwind.code_analysis.x86_instruction_decoder import (
    CALLEE_SAVED,
    RAX,
    RBP,
    RCX,
    RSP,
    X86Instruction,
    decode,
    written_registers,
)

MAX_INSTRUCTIONS = 1 << 16
"""Maximum number of instructions of one function that are analysed."""

MAX_STEPS, MAX_WORK = 1 << 18, 1 << 20
"""Maximum work of one attempt to analyse a function (MAX_STEPS), and of all attempts (MAX_WORK). A visited instruction
counts as 1, and as STATE_STEPS more if it changes the frame state.
"""

STATE_STEPS = 8
MAX_TABLES = 1024
"""Maximum number of jump tables of one function."""

MAX_UNRESOLVED = 64
"""Maximum number of frame states at indirect jumps that are tried for the code of one function that only such jumps
reach.
"""

MAX_TRIALS = 64
"""Maximum number of calls of one function that the analysis treats as not returning. Also the maximum number of pieces
of code that are tried because only indirect jumps reach them.
"""

MAX_TABLE = 1024
"""Maximum number of entries of a jump table (switch statement)."""

_TABLE = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)  # lea table(%rip),%reg
_LOOK_BACK = 96
"""Number of bytes before an indirect jump in which its jump table is searched."""

_MOVES = (*range(0x50, 0x60), 0x63, *range(0x88, 0x8C), 0x8D, 0x90, *range(0xB0, 0xC0), 0xC6, 0xC7)
_MOVES_TWO = (*range(0x10, 0x18), 0x1F, *range(0x28, 0x2C), *range(0x40, 0x80), 0xB6, 0xB7, 0xBE, 0xBF,
              *range(0xC4, 0xC7), *range(0xD0, 0xFF))  # fmt: skip
_KEEP_FLAGS = frozenset((*((0, opcode) for opcode in _MOVES), *((1, opcode) for opcode in _MOVES_TWO)))
"""Opcodes of moves and of vector instructions, which leave the flags as they are."""

_ADDITION = re.compile(rb"[\x48-\x4f][\x01\x03][\xc0-\xff]")  # add %reg,%reg


def analyse(code: Code, start: int) -> FunctionStates | None:
    """Find the frame states of all instructions of the function at an address. Return None if its code contradicts
    itself.
    """
    no_return: set[int] = set()
    open_tables, sure = True, code.is_start(start)
    decoder = _Decoder(code)
    for _ in range(MAX_TRIALS):
        decoder.begin_attempt()
        analysis = _Analysis(code, decoder, FunctionStates(start), no_return, open_tables)
        try:
            analysis.follow([(start, ENTRY, None)])
            analysis.fill_gaps()
        except Contradiction as refused:
            if (
                refused.call is not None
                and refused.call not in no_return
                and (sure or ends_function(code, refused.call))
            ):
                no_return.add(refused.call)
            elif analysis.used_open_table:
                open_tables = False
            else:
                return None
            continue
        except AnalysisLimitExceeded:
            return None
        return analysis.states
    return None


_Path = tuple[int, FrameState, int | None]
"""A path through a function that is still to be analysed: its first address, the frame state there, and the call on the
way to it that most likely does not return (address or None).
"""


class _Decoder:
    """A cache of the decoded instructions of one function for all attempts to analyse it, and a limit on the work of
    these attempts.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._decoded: dict[int, X86Instruction | None] = {}
        self._steps = self._work = 0

    def begin_attempt(self) -> None:
        self._steps = 0

    def spend(self, steps: int) -> None:
        """Add steps to the work that was done for one function, and raise an error when a limit is exceeded.

        Raises:
            AnalysisLimitExceeded: A limit is exceeded.
        """
        self._steps += steps
        self._work += steps
        if self._steps > MAX_STEPS or self._work > MAX_WORK:
            raise AnalysisLimitExceeded

    def decode(self, at: int) -> X86Instruction | None:
        """Return the decoded instruction at an address, or None if the decoder does not know its opcode."""
        if at not in self._decoded:
            self._decoded[at] = decode(self._code.data, at - self._code.base)
        return self._decoded[at]


class _Analysis:
    """One attempt to find the frame states before all instructions of a function.

    Attributes:
        states: The result so far.
        used_open_table: A jump table was read whose length the code does not state.
    """

    def __init__(
        self, code: Code, decoder: _Decoder, states: FunctionStates, no_return: set[int], open_tables: bool
    ) -> None:
        """Start one attempt to analyse a function.

        Args:
            code: The code.
            decoder: The instructions.
            states: An empty result.
            no_return: Addresses of calls that do not return.
            open_tables: Read also jump tables whose length the code does not state.
        """
        self.states = states
        self.used_open_table = False
        self._open_tables = open_tables
        self._code = code
        self._decoder = decoder
        self._no_return = no_return
        self._sure = code.is_start(states.start)
        self._limit = code.next_start(states.start)
        self._system_call = code.is_entry(states.start)
        self._joined = False
        self._waiting: list[_Path] = []
        self._tables: set[tuple[int, int, int]] = set()

    def follow(self, waiting: list[_Path]) -> None:
        """Analyse the instructions on all paths from some addresses of a function."""
        self._waiting = waiting
        while self._waiting:
            self._follow_straight(*self._waiting.pop())

    def fill_gaps(self) -> None:
        """Analyse the code between known instructions that only indirect jumps with unknown targets can reach, and add
        its instructions to `states`.

        At the start of each such gap, the frame state of one indirect jump after another is tried. A trial is kept if
        it contradicts nothing and leads to a return at the right stack depth or to known code. Otherwise the gap stays
        unknown.
        """
        tried: set[int] = set()
        while self.states.unresolved and len(tried) < MAX_TRIALS:
            gap = next((at for at in self._gaps() if at not in tried), None)
            if gap is None:
                return
            tried.add(gap)
            for state in self.states.unresolved[:]:
                self._decoder.spend(len(self.states.known))
                kept, self.states = self.states, self.states.copy()
                self._joined = False
                try:
                    self.follow([(gap, state, None)])
                except Contradiction:
                    self.states = kept
                    continue
                if self.states.returns > kept.returns or self._joined:
                    break
                self.states = kept

    def _gaps(self) -> list[int]:
        known, found = self.states.known, []
        self._decoder.spend(len(known))
        order = sorted(known)
        for at, after in zip(order, [*order[1:], self._limit], strict=True):
            end = at + known[at].size
            if at >= self.states.start and end < after <= self._limit:
                begin = end_of_padding(self._code, end)
                if begin < after and not self._code.may_be_start(begin):
                    found.append(begin)
        return found

    def _follow_straight(self, at: int, state: FrameState, call: int | None) -> None:
        """Analyse instructions from an address on, until the path ends at a jump or return, or reaches analysed code
        with the same frame state.

        Args:
            at: Address of the first instruction.
            state: The frame state there.
            call: Address of the call on the path so far that is most likely not to return, None if there is none.
        """
        code, known = self._code, self.states.known
        covering = self.states.find(at)
        if covering is not None and covering != at:
            if covering != at - 1 or code.data[covering - code.base] != 0xF0:  # a jump may skip the prefix lock
                raise Contradiction(call if call is not None else known[covering].call)
            at = covering
        limit = self._limit if self.states.start <= at < self._limit else code.next_start(at)
        while 0 <= at - code.base < len(code.data):
            found = known.get(at)
            if found is not None:
                self._joined = True
                merged = self._join(found, state, call)
                if merged == found.state:
                    return
                self._decoder.spend(STATE_STEPS)
                state, call = merged, found.call
            elif at >= limit:
                return
            size, following = self._visit(at, limit, state, call)
            if following is None:
                return
            if known[at].calls and (call is None or not self._may_end(call) or self._may_end(at)):
                call = at
            at, state = at + size, following
            if not state.has_cfa:
                return

    def _join(self, found: InstructionState, state: FrameState, call: int | None) -> FrameState:
        """Merge the frame state of a path that reaches an analysed instruction with that instruction's state, and
        return the facts that hold in both.
        """
        merged = found.state if found.state == state else merge(found.state, state)
        if merged is None:
            raise Contradiction(call if found.call is None else found.call)
        return merged

    def _visit(self, at: int, limit: int, state: FrameState, call: int | None) -> tuple[int, FrameState | None]:
        """Analyse one instruction, and return its size in bytes and the frame state after it. The state is None if
        control does not continue there.
        """
        known = self.states.known
        self._decoder.spend(1)
        i = self._decoder.decode(at)
        if i is None or at + i.size > limit or len(known) >= MAX_INSTRUCTIONS:
            raise Contradiction(call)
        if any(start in known for start in range(at + 1, at + i.size)):
            if i.prefixes[:1] != b"\xf0" or at + 1 not in known:
                raise Contradiction(call)
            known[at] = InstructionState(1, state, call)  # the prefix of an instruction to which other code jumps
            return 1, state
        waiting, returns = len(self._waiting), self.states.returns
        following = self._step(i, at, state, call)
        known[at] = InstructionState(
            i.size,
            state,
            call,
            tuple(path[0] for path in self._waiting[waiting:]),
            following is None,
            self.states.returns > returns,
            is_call(i),
            sets_rsp_from_rbp(i),
        )
        if following is not None and following != state:
            self._decoder.spend(STATE_STEPS)
        return i.size, following

    def _may_end(self, call: int) -> bool:
        return ends_function(self._code, call)

    def _step(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the frame state after an instruction, or None if control does not continue at the next instruction."""
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
                return without_values(state, 1 << RAX | 1 << RCX | 1 << 11)
        return self._compute(i, at, state, call)

    def _step_one(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        op, after = i.opcode, at + i.size
        if 0x70 <= op < 0x80 or 0xE0 <= op < 0xE4:
            state = without_values(state, 1 << RCX) if 0xE0 <= op < 0xE3 else state
            self._jump(after + i.signed(i.size - 1, 1), state, call)
            return state
        if op == 0xE8:
            if i.signed(i.size - 4, 4) == 0:
                return push(state, -1, None, call)
            return self._call(i, at, state, call)
        if op in (0xE9, 0xEB):
            self._jump(after + i.signed(i.size - (4 if op == 0xE9 else 1), 4 if op == 0xE9 else 1), state, call)
            return None
        if op in (0xC3, 0xC2):
            self._return(state, call)
            return None
        if op == 0xC7 and i.modrm == 0xF8:  # xbegin
            state = without_values(state, 1 << RAX)
            self._jump(after + i.signed(i.size - 4, 4), state, call)
            return state
        if op == 0xFF:
            return self._step_ff(i, at, state, call)
        if op in (0xCC, 0xF4):
            return None
        return self._push_or_pop(i, at, state, call)

    def _push_or_pop(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        op, register = i.opcode, (i.opcode & 7) + (i.rex << 3 & 8)
        if 0x50 <= op < 0x58:
            return push(state, register, state.values[register], call)
        if 0x58 <= op < 0x60:
            return pop(state, register, at, call)
        if op in (0x68, 0x6A, 0x9C):  # push of a number, pushf
            return push(state, -1, None, call)
        if op == 0x9D:  # popf
            return pop(state, -1, at, call)
        if op == 0xC9:  # leave
            if state.values[RBP] is None and not state.outermost:
                raise Contradiction(call)
            return pop(with_sp(state, state.values[RBP], call), RBP, at, call)
        if op == 0x8F:
            if i.modrm >> 3 & 7:
                raise Contradiction(call)
            return pop(state, i.rm, at, call)
        return self._compute(i, at, state, call)

    def _step_ff(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        kind = i.modrm >> 3 & 7
        if kind == 2:
            return self._call(i, at, state, call)
        if kind == 6:
            return push(state, -1, loaded_value(state, *self._word(i, state)), call)
        if kind == 4:
            self._jump_indirect(i, at, state, call)
            return None
        if kind in (3, 5, 7):
            raise Contradiction(call)
        return self._compute(i, at, state, call)

    def _call(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the frame state after a call instruction, or None if the called function does not return.

        The ABI demands that rsp is a multiple of 16 at a call. If it is not at the first call, the presumed start of
        the function is wrong.
        """
        if call is None and not self._sure and state.sp is not None and state.sp % 16:
            raise Contradiction
        if at in self._no_return or self._code.never_returns(called_slot(self._code, i, at)):
            return None
        return after_call(state)

    def _jump(self, target: int, state: FrameState, call: int | None) -> None:
        code, start = self._code, self.states.start
        inside = start <= target < self._limit

        def may_begin(at: int) -> bool:
            return at % 16 == 0 or code.may_be_start(at)

        if state.sp != -8 or state.base is not None:
            if inside or state.has_cfa:
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
        if state.sp == -8 and not state.outermost:
            self.states.returns += 1
        elif state.outermost or state.sp is not None or state.base is not None:
            raise Contradiction(call)
        # else the code has switched to another stack

    def _jump_indirect(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> None:
        if i.modrm == 0x25 and state.sp == -8:  # jmp *pointer(%rip), as in the PLT
            self.states.returns += 1
            return
        targets = self._table(i, at) if state.sp != -8 or self._follows_addition(at) else []
        if targets:
            self._decoder.spend(len(targets))
            self._waiting += [(target, state, call) for target in targets]
            return
        if state.sp == -8 and self._sure:
            self.states.returns += 1
        if state not in self.states.unresolved and len(self.states.unresolved) < MAX_UNRESOLVED:
            self.states.unresolved.append(state)

    def _follows_addition(self, at: int) -> bool:
        """Return True if an addition precedes an indirect jump, as in a jump through a table of offsets (switch).
        Otherwise the jump may leave the function.
        """
        return _ADDITION.fullmatch(self._code.data[max(at - self._code.base - 3, 0) : at - self._code.base]) is not None

    def _table(self, i: X86Instruction, at: int) -> list[int]:
        """Return the targets of an indirect jump by a table, or an empty list if there is no readable table."""
        offset = at - self._code.base
        before = bytes(self._code.data[max(offset - _LOOK_BACK, 0) : offset])
        bound = self._bound(at)
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

    def _bound(self, at: int) -> int | None:
        """Return how many entries a jump table has, by the comparison before the indirect jump, or None if there is no
        comparison.
        """
        known, end, above = self.states.known, at, False
        while at - end < _LOOK_BACK:
            start = self.states.find(end - 1)
            if start is None or start + known[start].size != end or known[start].ends:
                return None
            i = self._decoder.decode(start)
            if i is None:
                return None
            end = start
            if not above:
                above = (i.opcode_map, i.opcode) in ((0, 0x77), (1, 0x87))
            elif (size := _compared_size(i)) > 0:
                return int.from_bytes(i.text[i.size - size : i.size], "little") + 1
            elif (i.opcode_map, i.opcode) not in _KEEP_FLAGS:
                return None
        return None

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
        self._tables.add((table, size, len(found)) if found else (0, 0, 0))
        if len(self._tables) > MAX_TABLES:
            raise AnalysisLimitExceeded
        return found

    def _compute(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the frame state after an instruction that computes or moves data."""
        if state.outermost:
            return state
        if i.opcode_map == 0:
            if i.opcode in (0x31, 0x33) and i.modrm == 0xED and not i.rex & 5 and self._marks_outermost(state):
                return FrameState((None,) * 16, state.saved, None, outermost=True)
            if i.rex & 8 and i.opcode in (0x89, 0x8B):
                return self._move(i, at, state, call)
            if i.rex & 8 and i.opcode == 0x8D:
                place, index, _ = self._word(i, state)
                return self._set(state, i.reg, place if index < 0 else None, at, call)
            if i.rex & 8 and i.opcode in (0x81, 0x83) and i.rm >= 0 and i.modrm >> 3 & 7 in (0, 5):
                number = i.signed(i.operand + 1, i.size - i.operand - 1)
                value = _moved(state.values[i.rm], -number if i.modrm >> 3 & 7 else number)
                return self._set(state, i.rm, value, at, call)
        written = written_registers(i)
        if written is None:
            raise Contradiction(call)
        if written >> RSP & 1:
            state = self._set(state, RSP, None, at, call)
        return without_values(state, written & ~(1 << RSP)) if written else state

    def _marks_outermost(self, state: FrameState) -> bool:
        return self._system_call and state.saved[CALLEE_SAVED.index(RBP)] == KEPT

    def _word(self, i: X86Instruction, state: FrameState) -> tuple[FramePlace | None, int, int]:
        """Return the place in the frame of a memory operand without its index register (None if unknown), the index
        register (-1 if there is none), and its scale.
        """
        memory = i.memory()
        if memory is None:
            return None, -1, 0
        return _moved(state.values[memory.base], memory.displacement), memory.index_register, memory.scale

    def _move(self, i: X86Instruction, at: int, state: FrameState, call: int | None) -> FrameState | None:
        """Return the frame state after an instruction that moves eight bytes between a register and a register or
        memory.
        """
        loads = i.opcode == 0x8B
        if i.rm >= 0:
            source, target = (i.rm, i.reg) if loads else (i.reg, i.rm)
            return self._set(state, target, state.values[source], at, call)
        place, index, scale = self._word(i, state)
        if not loads:
            return state if place is None else store(state, i.reg, place, index, scale, state.values[i.reg])
        if i.reg != RSP:
            return load(state, i.reg, place, index, scale)
        return self._set(state, RSP, loaded_value(state, place, index, scale), at, call)

    def _set(self, state: FrameState, register: int, value: FramePlace | None, at: int, call: int | None) -> FrameState:
        """Return the frame state after an instruction has given a value to a register, which may be rsp."""
        if register != RSP:
            return with_value(state, register, value)
        return with_sp(state, FramePlace(at, 0) if value is None else value, call)


def _moved(place: FramePlace | None, distance: int) -> FramePlace | None:
    """Return the place in the frame at a distance in bytes from another place. None if that place is unknown or the
    distance too large.
    """
    if place is None or abs(place.offset + distance) > MAX_OFFSET:
        return None
    return FramePlace(place.origin, place.offset + distance)


def _compared_size(i: X86Instruction) -> int:
    """Return the size in bytes of the operand of a comparison with a constant, or 0 for any other instruction."""
    if i.opcode_map:
        return 0
    if i.opcode == 0x3C or (i.opcode in (0x80, 0x83) and i.modrm >> 3 & 7 == 7):
        return 1
    if i.opcode == 0x3D or (i.opcode == 0x81 and i.modrm >> 3 & 7 == 7):
        return 2 if 0x66 in i.prefixes else 4
    return 0
