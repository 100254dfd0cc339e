"""The interpreter of call frame instructions, which turns an FDE into the rows of a function.

A state is the content of one row: the CFA and a rule for each register. States are interned, and each one caches which
state follows after which instruction. So most functions are decoded by cache look-ups. CIEs with equal alignment
factors, return register and initial instructions (Cie.program_key) share the states.
Sources: DWARF 5, 6.4.2; LSB Core; AADWARF64 for the return-address signing; libgcc and GNU as for the GNU codes.

Rules are interned: equal rules are one object. Functions often have equal instructions, which are decoded once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.unwind.dwarf_expressions import BREG0, BREGX, DEREF, LIT0
from pyprof.unwind.formats.cfi_cie_and_fde import CfiEntries, Cie, Fde, read_sleb128, read_uleb128, to_signed64
from pyprof.unwind.rules import SAME, UNDEFINED, FunctionRows, RegKind, RegRule, Rule

(
    SET_LOC,
    ADVANCE_LOC1,
    ADVANCE_LOC2,
    ADVANCE_LOC4,
    OFFSET_EXTENDED,
    RESTORE_EXTENDED,
    UNDEFINED_OP,
    SAME_VALUE,
    REGISTER,
    REMEMBER_STATE,
    RESTORE_STATE,
    DEF_CFA,
    DEF_CFA_REGISTER,
    DEF_CFA_OFFSET,
    DEF_CFA_EXPRESSION,
    EXPRESSION,
    OFFSET_EXTENDED_SF,
    DEF_CFA_SF,
    DEF_CFA_OFFSET_SF,
    VAL_OFFSET,
    VAL_OFFSET_SF,
    VAL_EXPRESSION,
) = range(0x01, 0x17)
NOP = 0x00
ADVANCE_LOC, OFFSET, RESTORE = 0x40, 0x80, 0xC0
MIPS_ADVANCE_LOC8 = 0x1D
AARCH64_NEGATE_RA_STATE_WITH_PC = 0x2C
GNU_WINDOW_SAVE = AARCH64_NEGATE_RA_STATE = 0x2D
GNU_ARGS_SIZE = 0x2E
GNU_NEGATIVE_OFFSET_EXTENDED = 0x2F

RA = -1
"""Key of the return-address column in State.regs if it is not a column of the Arch."""

RA_SIGN_STATE = 34
"""DWARF number of AArch64's pseudo register that is 1 while the return address is signed."""

Step = tuple[int, ...] | tuple[int, int, bytes]
"""A call frame instruction as a tuple: its opcode and its operands."""


Said = frozenset[tuple[int, RegRule]]
"""The register rules of a CFI interpreter's state as a set. States that differ only in their CFA share one set object,
so that it is hashed once.
"""

Registers = tuple[RegRule, tuple[tuple[int, RegRule], ...]]
"""Type of the fields Rule.ra and Rule.regs together."""


class State:
    """A state of the interpreter of call frame instructions: the content of one row. It is immutable except for its
    caches.

    Attributes:
        cfa_reg: Column of the CFA's register, -1 if there is none yet.
        cfa_off: Offset of the CFA from that register.
        cfa_expr: Expression of the CFA, or None.
        pac: The return address is signed.
        regs: Rule of each register, by column.
        said: The same rules as a set.
        next: Cache of the state that follows after each instruction.
        rule: The rule of the row, made when it is first needed.
    """

    __slots__ = ("cfa_expr", "cfa_off", "cfa_reg", "next", "pac", "regs", "rule", "said")

    def __init__(
        self, cfa_reg: int, cfa_off: int, cfa_expr: bytes | None, pac: bool, regs: dict[int, RegRule], said: Said
    ) -> None:
        self.cfa_reg = cfa_reg
        self.cfa_off = cfa_off
        self.cfa_expr = cfa_expr
        self.pac = pac
        self.regs = regs
        self.said = said
        self.next: dict[Step | int, State] = {}
        self.rule: Rule | None = None

    @property
    def has_cfa(self) -> bool:
        return self.cfa_reg >= 0 or self.cfa_expr is not None


class StateMachine:
    """The states of the interpreter of call frame instructions, and its transitions.

    Attributes:
        arch: The architecture.
        data_align: Data alignment factor of the CIE.
        ra: Column of the return address.
        start: The state before a function's own instructions. CfiProgram sets it after it has run the CIE's
            instructions.
    """

    def __init__(self, arch: Arch, data_align: int, ra: int, signal: bool, rules: dict[Rule, Rule]) -> None:
        self.arch = arch
        self.data_align = data_align
        self.ra = arch.dwarf.get(ra, RA)
        self._ra_dwarf = ra
        self._signal = signal
        self._rules = rules
        self._states: dict[object, State] = {}
        self._registers: dict[Said, Registers] = {}
        self.start = self._state(-1, 0, None, False, {})

    def begin(self, start: State) -> None:
        """Set the state that the CIE's instructions have produced. DW_CFA_restore restores the rules of that state from
        now on.
        """
        self.start = start
        for state in self._states.values():
            state.next.clear()

    def step(self, state: State, key: Step | int) -> State:
        """Execute a call frame instruction in a state and return the state after it.

        Args:
            state: The state before.
            key: The instruction: a number for DW_CFA_offset (OFFSET | register | operand << 8) and DW_CFA_restore
                (RESTORE | register), a Step for any other.

        Raises:
            ValueError: The instruction is invalid in this state.
        """
        if isinstance(key, int):
            operation, register = key & 0xC0, key & 0x3F
            if operation == OFFSET:
                after = self._set(state, register, RegRule(RegKind.AT_CFA, self._factored(key >> 8)))
            else:
                after = self._restore(state, register)
        else:
            after = self._extended(state, key)
        state.next[key] = after
        return after

    def rule_of(self, state: State) -> Rule:
        """Return the unwind rule of a state of the CFI interpreter.

        Raises:
            ValueError: The state has no CFA.
        """
        if not state.has_cfa:
            raise ValueError("a row without a CFA")
        rule = self._make_rule(state)
        state.rule = rule = self._rules.setdefault(rule, rule)
        return rule

    def _factored(self, operand: int) -> int:
        return to_signed64(operand * self.data_align)

    def _state(
        self, reg: int, off: int, expr: bytes | None, pac: bool, regs: dict[int, RegRule], said: Said | None = None
    ) -> State:
        """Return the interned state of the CFI interpreter with this content. `said` is the set of its register rules,
        if the caller has it already.
        """
        if said is None:
            said = frozenset(regs.items())
        key = (reg, off, expr, pac, said)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(reg, off, expr, pac, regs, said)
        return state

    def _with_cfa(self, state: State, reg: int, off: int, expr: bytes | None = None) -> State:
        return self._state(reg, off, expr, state.pac, state.regs, state.said)

    def _column(self, register: int) -> int | None:
        """Return the key of a DWARF register in State.regs, or None if the Arch does not have it (xmm0, for
        example).
        """
        column = self.arch.dwarf.get(register)
        if column is None and register == self._ra_dwarf:
            return RA
        return column

    def _set(self, state: State, register: int, rule: RegRule | None) -> State:
        column = self._column(register)
        if column is None:
            return state
        regs = dict(state.regs)
        if rule is None:
            regs.pop(column, None)
        else:
            regs[column] = rule
        return self._state(state.cfa_reg, state.cfa_off, state.cfa_expr, state.pac, regs)

    def _restore(self, state: State, register: int) -> State:
        column = self._column(register)
        return state if column is None else self._set(state, register, self.start.regs.get(column))

    def _cfa_column(self, register: int) -> int:
        column = self.arch.dwarf.get(register)
        if column is None:
            raise ValueError(f"the CFA is in register {register}, which {self.arch.name} does not have")
        return column

    def _extended(self, state: State, step: Step) -> State:  # noqa: C901
        match step:
            case (op, int(offset)) if op == DEF_CFA_OFFSET:
                return self._with_cfa(state, state.cfa_reg, to_signed64(offset), state.cfa_expr)
            case (op, int(offset)) if op == DEF_CFA_OFFSET_SF:
                return self._with_cfa(state, state.cfa_reg, self._factored(offset), state.cfa_expr)
            case (op, int(register)) if op == DEF_CFA_REGISTER:
                return self._with_cfa(state, self._cfa_column(register), state.cfa_off)
            case (op, int(register), int(offset)) if op == DEF_CFA:
                return self._with_cfa(state, self._cfa_column(register), to_signed64(offset))
            case (op, int(register), int(offset)) if op == DEF_CFA_SF:
                return self._with_cfa(state, self._cfa_column(register), self._factored(offset))
            case (op, _, bytes(expression)) if op == DEF_CFA_EXPRESSION and expression:
                return self._with_cfa(state, state.cfa_reg, state.cfa_off, expression)
            case (op, int(register), int(offset)) if op in (OFFSET_EXTENDED, OFFSET_EXTENDED_SF):
                return self._set(state, register, RegRule(RegKind.AT_CFA, self._factored(offset)))
            case (op, int(register), int(offset)) if op == GNU_NEGATIVE_OFFSET_EXTENDED:
                return self._set(state, register, RegRule(RegKind.AT_CFA, self._factored(-offset)))
            case (op, int(register), int(offset)) if op in (VAL_OFFSET, VAL_OFFSET_SF):
                return self._set(state, register, RegRule(RegKind.CFA_PLUS, self._factored(offset)))
            case (op, int(register)) if op == RESTORE_EXTENDED:
                return self._restore(state, register)
            case (op, int(register)) if op == UNDEFINED_OP:
                return self._set(state, register, UNDEFINED)
            case (op, int(register)) if op == SAME_VALUE:
                return self._set(state, register, SAME)
            case (op, int(register), int(source)) if op == REGISTER:
                return self._set(state, register, self._moved(register, source))
            case (op, int(register), bytes(expression)) if op == EXPRESSION:
                return self._set(state, register, self._simple(RegKind.AT_EXPR, expression))
            case (op, int(register), bytes(expression)) if op == VAL_EXPRESSION:
                if register == RA_SIGN_STATE and self.arch.name.startswith("aarch64"):
                    return self._sign_state(state, expression)
                return self._set(state, register, self._simple(RegKind.EXPR, expression))
            case (op,):
                return self._vendor(state, op)
        raise ValueError("a CFA by an empty expression")

    def _vendor(self, state: State, op: int) -> State:
        """Execute one of the call frame opcodes 0x2c and 0x2d, which are defined on AArch64 and SPARC only."""
        name = self.arch.name
        if name.startswith("aarch64"):
            return self._state(state.cfa_reg, state.cfa_off, state.cfa_expr, not state.pac, state.regs)
        if name.startswith("sparc") and op == GNU_WINDOW_SAVE:
            for register in range(16, 32):  # %l0..%l7, %i0..%i7 in the window's save area
                state = self._set(state, register, RegRule(RegKind.AT_CFA, (register - 16) * self.arch.word))
            return state
        raise ValueError(f"instruction {op:#x} is not defined on {name}")

    def _sign_state(self, state: State, expression: bytes) -> State:
        if len(expression) != 1 or not LIT0 <= expression[0] <= LIT0 + 3:
            raise ValueError("the state of the return address's signature is no constant")
        pac = expression[0] != LIT0
        return self._state(state.cfa_reg, state.cfa_off, state.cfa_expr, pac, state.regs)

    def _moved(self, register: int, source: int) -> RegRule:
        column = self.arch.dwarf.get(source)
        if column is not None:
            return RegRule(RegKind.REG_PLUS, 0, column)
        if register == self._ra_dwarf:
            raise ValueError(f"the return address is in register {source}, which {self.arch.name} does not have")
        return UNDEFINED  # samples do not contain that register

    def _simple(self, kind: RegKind, expression: bytes) -> RegRule:
        """Return a register rule without an expression if the DWARF expression is register + n or [register + n]."""
        base = self._based(expression)
        if base is None:
            return RegRule(kind, expr=expression)
        reg, off, deref = base
        if kind == RegKind.EXPR:
            return RegRule(RegKind.AT_REG if deref else RegKind.REG_PLUS, off, reg)
        return RegRule(kind, expr=expression) if deref else RegRule(RegKind.AT_REG, off, reg)

    def _based(self, expression: bytes) -> tuple[int, int, bool] | None:
        """Parse a DWARF expression that is "breg n" or "breg n; deref" to (column, n, deref). None for any other."""
        try:
            register, at = expression[0] - BREG0, 1
            if expression[0] == BREGX:
                register, at = read_uleb128(expression, at)
            elif not 0 <= register < 32:
                return None
            off, at = read_sleb128(expression, at)
        except (IndexError, ValueError):
            return None
        column = self.arch.dwarf.get(register)
        rest = expression[at:]
        if column is None or rest not in (b"", bytes([DEREF])):
            return None
        return column, off, bool(rest)

    def _make_rule(self, state: State) -> Rule:
        known = self._registers.get(state.said)
        if known is None:
            known = self._registers[state.said] = self._make_registers(state.regs)
        ra, regs = known
        rule = Rule(state.cfa_reg, state.cfa_off, ra, regs, signal=self._signal, pac=state.pac)
        if state.cfa_expr is None:
            return rule
        base = self._based(state.cfa_expr)
        if base is None:
            return rule._replace(cfa_reg=-1, cfa_off=0, cfa_expr=state.cfa_expr)
        reg, off, deref = base
        return rule._replace(cfa_reg=reg, cfa_off=off, cfa_deref=deref)

    def _make_registers(self, said: dict[int, RegRule]) -> Registers:
        arch, ra = self.arch, said.get(self.ra)
        if ra is None or ra.kind == RegKind.SAME:
            # As in GCC and gdb, a return-address column without a rule is that register (a leaf's link register).
            ra = SAME if self.ra in (RA, arch.pc) else RegRule(RegKind.REG_PLUS, 0, self.ra)
        return ra, tuple(sorted((c, r) for c, r in said.items() if c not in (RA, arch.pc)))


MAX_REMEMBERED = 1024
"""Maximum nesting of DW_CFA_remember_state. Compilers nest twice."""

MAX_INSTRUCTIONS = 1 << 20
"""Maximum size in bytes of one function's call frame instructions. The largest of real functions have some
thousands.
"""

Rows = tuple[tuple[int, ...], tuple[Rule, ...]]
"""Unwind rows of a function: offsets in bytes from its start, and the rule from each offset on."""

_REGISTER_ONLY = frozenset({DEF_CFA_REGISTER, DEF_CFA_OFFSET, RESTORE_EXTENDED, UNDEFINED_OP, SAME_VALUE})
_REGISTER_AND_UNSIGNED = frozenset({DEF_CFA, OFFSET_EXTENDED, VAL_OFFSET, REGISTER, GNU_NEGATIVE_OFFSET_EXTENDED})
_REGISTER_AND_SIGNED = frozenset({DEF_CFA_SF, OFFSET_EXTENDED_SF, VAL_OFFSET_SF})
_EXPRESSIONS = frozenset({DEF_CFA_EXPRESSION, EXPRESSION, VAL_EXPRESSION})
_BARE = frozenset({AARCH64_NEGATE_RA_STATE, AARCH64_NEGATE_RA_STATE_WITH_PC})


class CfiProgram:
    """A decoder of the call frame instructions of FDEs whose CIEs have the same initial state and factors
    (Cie.program_key). Equal instructions are decoded once.
    """

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
            ADVANCE_LOC1: struct.Struct("B"),
            ADVANCE_LOC2: struct.Struct(self._order + "H"),
            ADVANCE_LOC4: struct.Struct(self._order + "I"),
            MIPS_ADVANCE_LOC8: struct.Struct(self._order + "Q"),
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
    """One execution of the call frame instructions of a function, which collects its rows."""

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
        """Add an unwind row: from this code offset on, the rule of a state applies.

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
        """Execute call frame instructions and store the rows that they complete. Return the last state, and the offset
        from which on it applies.
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
            if byte >= ADVANCE_LOC:
                if byte < OFFSET:
                    delta = (byte & 0x3F) * align
                elif byte < RESTORE:
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
            elif byte == DEF_CFA_OFFSET:
                operand = code[i]
                i += 1
                if operand >= 0x80:
                    operand, i = read_uleb128(code, i - 1)
                step = (byte, operand)
                state = state.next.get(step) or machine.step(state, step)
                continue
            elif byte == ADVANCE_LOC1:
                delta = code[i] * align
                i += 1
            elif byte == REMEMBER_STATE:
                if len(remembered) >= MAX_REMEMBERED:
                    raise ValueError("remembers too many states")
                remembered.append(state)
                continue
            elif byte == RESTORE_STATE:
                if not remembered:
                    raise ValueError("restores a state that was not remembered")
                state = remembered.pop()
                continue
            elif byte == NOP:
                continue
            elif byte in self._program._advance:
                field = self._program._advance[byte]
                delta = field.unpack_from(code, i)[0] * align
                i += field.size
            elif byte == SET_LOC:
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
        """Execute one call frame instruction whose opcode is rare or occurs only once or twice in a function."""
        key: Step
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
        elif byte == DEF_CFA_OFFSET_SF:
            operand, i = read_sleb128(code, i)
            key = (byte, operand)
        elif byte in _EXPRESSIONS:
            register = 0
            if byte != DEF_CFA_EXPRESSION:
                register, i = read_uleb128(code, i)
            length, i = read_uleb128(code, i)
            if i + length > len(code):
                raise IndexError
            key = (byte, register, code[i : i + length])
            i += length
        elif byte == GNU_ARGS_SIZE:  # number of bytes that a landing pad pops, which does not affect rows
            _, i = read_uleb128(code, i)
            return state, i
        elif byte in _BARE:
            key = (byte,)
        else:
            raise ValueError(f"unknown instruction {byte:#x}")
        return state.next.get(key) or self._machine.step(state, key), i


class CfiPrograms:
    """The decoders of call frame instructions (CfiProgram) of one section, by program key.

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
