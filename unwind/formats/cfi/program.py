"""The interpreter of call frame instructions, which turns an FDE into the rows of a function.

Rules are interned: equal rules are one object. Functions often have equal instructions, which are decoded once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.unwind.formats.cfi import instruction_effects as op
from pyprof.unwind.formats.cfi.entries import CfiEntries, Cie, Fde
from pyprof.unwind.formats.cfi.instruction_effects import State, StateMachine
from pyprof.unwind.formats.cfi.pointers import read_sleb128, read_uleb128
from pyprof.unwind.rules import FunctionRows, Rule

MAX_REMEMBERED = 1024
"""Maximum nesting of DW_CFA_remember_state. Compilers nest twice."""

MAX_INSTRUCTIONS = 1 << 20
"""Maximum size in bytes of one function's call frame instructions. The largest of real functions have some
thousands.
"""

Rows = tuple[tuple[int, ...], tuple[Rule, ...]]
"""Rows of a function: offsets from its start, and the unwind rule from each offset on."""

_REGISTER_ONLY = frozenset(
    {op.DEF_CFA_REGISTER, op.DEF_CFA_OFFSET, op.RESTORE_EXTENDED, op.UNDEFINED_OP, op.SAME_VALUE}
)
_REGISTER_AND_UNSIGNED = frozenset(
    {op.DEF_CFA, op.OFFSET_EXTENDED, op.VAL_OFFSET, op.REGISTER, op.GNU_NEGATIVE_OFFSET_EXTENDED}
)
_REGISTER_AND_SIGNED = frozenset({op.DEF_CFA_SF, op.OFFSET_EXTENDED_SF, op.VAL_OFFSET_SF})
_EXPRESSIONS = frozenset({op.DEF_CFA_EXPRESSION, op.EXPRESSION, op.VAL_EXPRESSION})
_BARE = frozenset({op.AARCH64_NEGATE_RA_STATE, op.AARCH64_NEGATE_RA_STATE_WITH_PC})


class CfiProgram:
    """The decoded call frame instructions of all FDEs whose CIEs have the same program key."""

    def __init__(self, entries: CfiEntries, cie: Cie, machine: StateMachine) -> None:
        """Run the call frame instructions of a CIE.

        Raises:
            FormatError: The instructions are broken.
        """
        self._entries = entries
        self._machine = machine
        self._code_align = cie.code_align
        self._order = "<" if entries.section.byteorder == "little" else ">"
        self._advance = {
            op.ADVANCE_LOC1: struct.Struct("B"),
            op.ADVANCE_LOC2: struct.Struct(self._order + "H"),
            op.ADVANCE_LOC4: struct.Struct(self._order + "I"),
            op.MIPS_ADVANCE_LOC8: struct.Struct(self._order + "Q"),
        }
        self._done: dict[bytes, Rows] = {}
        _Run(self, cie, 0, cie.initial_offset, cie.offset).initial(cie.initial)

    def rows(self, fde: Fde) -> FunctionRows:
        """Return the unwind rows of a function's FDE.

        Raises:
            FormatError: The instructions are broken.
        """
        code = fde.instructions
        done = self._done.get(code)
        if done is None:
            run = _Run(self, fde.cie, fde.start, fde.instructions_offset, fde.offset)
            done = run.rows(code)
            if not run.absolute:
                self._done[code] = done
        offsets, rules = done
        start, end = fde.start, fde.end
        if offsets[-1] >= end - start:
            keep = bisect_left(offsets, end - start)
            offsets, rules = offsets[:keep], rules[:keep]
            if not keep:
                return FunctionRows(end, end, (), ())
        if offsets[0]:
            # There is no CFA before, and a source only covers code for which it has rules.
            return FunctionRows(start + offsets[0], end, tuple([start + o for o in offsets]), rules)
        return FunctionRows(start, end, tuple([start + o for o in offsets]), rules)


class _Run:
    """One run of call frame instructions for one function."""

    def __init__(self, program: CfiProgram, cie: Cie, start: int, code_offset: int, entry: int) -> None:
        self._program = program
        self._machine = program._machine
        self._cie = cie
        self._start = start
        self._code_offset = code_offset
        self._entry = entry
        self._offsets: list[int] = []
        self._rules: list[Rule] = []
        self.absolute = False
        """True after DW_CFA_set_loc: the decoded rows are valid for this function only."""

    def initial(self, code: bytes) -> None:
        self._machine.begin(self._guarded(code)[0])

    def rows(self, code: bytes) -> Rows:
        state, at = self._guarded(code)
        if state.has_cfa:
            self._row(state, at)
        elif not self._rules:
            raise FormatError(self._program._entries.section.name, self._entry, "no row has a CFA")
        return tuple(self._offsets), tuple(self._rules)

    def _guarded(self, code: bytes) -> tuple[State, int]:
        try:
            if len(code) > MAX_INSTRUCTIONS:
                raise ValueError(f"{len(code)} bytes of instructions")
            return self._run(code)
        except (IndexError, struct.error):
            problem = "instructions end inside an instruction"
        except ValueError as error:
            problem = str(error)
        raise FormatError(self._program._entries.section.name, self._entry, problem)

    def _row(self, state: State, at: int) -> None:
        """Add an unwind row: the state holds from this offset on.

        Raises:
            ValueError: The state has no CFA, and rows precede it.
        """
        rules = self._rules
        if not rules and not state.has_cfa:
            return
        rule = state.rule or self._machine.rule_of(state)
        if not rules or rules[-1] is not rule:
            self._offsets.append(at)
            rules.append(rule)

    def _run(self, code: bytes) -> tuple[State, int]:  # noqa: C901
        """Run call frame instructions. Return the last state and the offset from which it holds, and store the rows
        before it.
        """
        machine, align = self._machine, self._program._code_align
        state = machine.start
        last: Rule | None = None
        remembered: list[State] = []
        offsets, rules = self._offsets, self._rules
        at = i = 0
        size = len(code)
        while i < size:
            byte = code[i]
            i += 1
            if byte >= op.ADVANCE_LOC:
                if byte < op.OFFSET:
                    delta = (byte & 0x3F) * align
                elif byte < op.RESTORE:
                    operand = code[i]
                    i += 1
                    if operand >= 0x80:
                        operand, i = read_uleb128(code, i - 1)
                    key = byte | operand << 8
                    state = state.next.get(key) or machine.step(state, key)
                    continue
                else:
                    state = state.next.get(byte) or machine.step(state, byte)
                    continue
            elif byte == op.DEF_CFA_OFFSET:
                operand = code[i]
                i += 1
                if operand >= 0x80:
                    operand, i = read_uleb128(code, i - 1)
                step = (byte, operand)
                state = state.next.get(step) or machine.step(state, step)
                continue
            elif byte == op.ADVANCE_LOC1:
                delta = code[i] * align
                i += 1
            elif byte == op.REMEMBER_STATE:
                if len(remembered) >= MAX_REMEMBERED:
                    raise ValueError("remembers too many states")
                remembered.append(state)
                continue
            elif byte == op.RESTORE_STATE:
                if not remembered:
                    raise ValueError("restores a state that was not remembered")
                state = remembered.pop()
                continue
            elif byte == op.NOP:
                continue
            elif byte in self._program._advance:
                field = self._program._advance[byte]
                delta = field.unpack_from(code, i)[0] * align
                i += field.size
            elif byte == op.SET_LOC:
                target, i = self._program._entries.set_loc(self._cie, code, i, self._code_offset)
                delta = target - self._start - at
                self.absolute = True
                if delta < 0:
                    raise ValueError(f"location goes back to {target:#x}")
            else:
                state, i = self._slow(state, byte, code, i)
                continue
            if delta:
                rule = state.rule
                if rule is None:
                    self._row(state, at)
                    last = state.rule
                elif rule is not last:
                    if not rules or rules[-1] is not rule:
                        offsets.append(at)
                        rules.append(rule)
                    last = rule
                at += delta
        return state, at

    def _slow(self, state: State, byte: int, code: bytes, i: int) -> tuple[State, int]:
        """Execute a call frame instruction that is rare, or that occurs once or twice in a function."""
        key: op.Step
        if byte in _REGISTER_ONLY:
            register, i = read_uleb128(code, i)
            key = (byte, register)
        elif byte in _REGISTER_AND_UNSIGNED:
            register, i = read_uleb128(code, i)
            operand, i = read_uleb128(code, i)
            key = (byte, register, operand)
        elif byte in _REGISTER_AND_SIGNED:
            register, i = read_uleb128(code, i)
            operand, i = read_sleb128(code, i)
            key = (byte, register, operand)
        elif byte == op.DEF_CFA_OFFSET_SF:
            operand, i = read_sleb128(code, i)
            key = (byte, operand)
        elif byte in _EXPRESSIONS:
            register = 0
            if byte != op.DEF_CFA_EXPRESSION:
                register, i = read_uleb128(code, i)
            length, i = read_uleb128(code, i)
            if i + length > len(code):
                raise IndexError
            key = (byte, register, code[i : i + length])
            i += length
        elif byte == op.GNU_ARGS_SIZE:  # number of bytes that a landing pad pops, which does not affect rows
            _, i = read_uleb128(code, i)
            return state, i
        elif byte in _BARE:
            key = (byte,)
        else:
            raise ValueError(f"unknown instruction {byte:#x}")
        return state.next.get(key) or self._machine.step(state, key), i


class CfiPrograms:
    """The decoded CFI programs of one section by program key.

    Attributes:
        rules: All rules so far, interned.
    """

    def __init__(self, entries: CfiEntries, arch: Arch) -> None:
        self._entries = entries
        self._arch = arch
        self.rules: dict[Rule, Rule] = {}
        self._by_key: dict[tuple[object, ...], CfiProgram] = {}
        self._by_cie: dict[int, CfiProgram] = {}

    def rows(self, fde: Fde) -> FunctionRows:
        """Return the unwind rows of a function's FDE.

        Raises:
            FormatError: The instructions of the FDE or its CIE are broken.
        """
        cie = fde.cie
        program = self._by_cie.get(cie.offset)
        if program is None:
            program = self._by_key.get(cie.program_key)
            if program is None:
                machine = StateMachine(self._arch, cie.data_align, cie.ra, cie.signal, self.rules)
                program = self._by_key[cie.program_key] = CfiProgram(self._entries, cie, machine)
            self._by_cie[cie.offset] = program
        return program.rows(fde)
