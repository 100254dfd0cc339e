"""One frame, and the walk of one sample, with all registers in plain integers: the specification of unwinding.

In: registers (None where not known), the sample's memory, rules. Out: LaneWalk. walk.py does the same for
thousands of lanes at once and must find the same frames; it gives up every lane whose rules are SLOW, and that lane
comes here from its first frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyprof.model.arch import Arch
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.unwind.expr import ExprProblem, Failed, Machine, evaluate
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.rules import RegKind, RegRule, Rule
from pyprof.unwind.table import KnownRule

Frame = tuple[int, bool, int]
"""(pc, exact, Trust)"""


@dataclass(slots=True)
class Registers:
    """Registers of one frame, by column; None where not known.

    exact: pc is the pc itself. withheld: columns that are None only because the sample does not tell them
    (SampleKind.BLOCKED).
    """

    values: list[int | None]
    exact: bool
    withheld: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Stop:
    """Why there is no caller. missing: avma of an unreadable word. needs: column of an unknown register, or -1.

    cfa: as far as it was found.
    """

    end: StackEnd
    missing: int = 0
    needs: int = -1
    cfa: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The registers of the caller, and the CFA of the frame that it called."""

    registers: Registers
    cfa: int
    trust: Trust


Outcome = Caller | Stop


def apply_rule(known: KnownRule, registers: Registers, memory: LaneMemory, arch: Arch, bias: int) -> Outcome:
    """The caller by a rule. bias: avma - svma of the module, for expressions."""
    rule = known.rule
    values = registers.values
    if rule.ra.kind is RegKind.UNDEFINED:
        return Stop(StackEnd.ROOT)
    machine = Machine(arch, values, memory.read, bias)
    cfa = _cfa(rule, machine, memory)
    if isinstance(cfa, Failed):
        return _stopped(cfa, None)
    machine.cfa = cfa

    if rule.ra.kind is RegKind.SAME:
        if arch.lr < 0:
            return Stop(StackEnd.NO_RULE, cfa=cfa)
        ra: int | Failed | None = values[arch.lr]
        if ra is None:
            return Stop(StackEnd.NO_RULE, needs=arch.lr, cfa=cfa)
    else:
        ra = _value(rule.ra, arch.pc, machine, memory)
    if isinstance(ra, Failed):
        return _stopped(ra, cfa)
    pc = arch.code_address(ra or 0, rule.pac)
    if not pc:
        return Stop(StackEnd.ROOT, cfa=cfa)

    caller = [value if column in arch.callee_saved else None for column, value in enumerate(values)]
    withheld = registers.withheld & arch.callee_saved
    for column, how in rule.regs:
        slot = cfa + how.n & arch.mask
        sp = values[arch.sp]
        if how.kind is RegKind.AT_CFA and column != arch.sp and sp is not None and slot < sp:
            continue  # popped already: the epilogue left the rule as it was, the register has the caller's value
        value = values[column] if how.kind is RegKind.SAME else _value(how, column, machine, memory)
        caller[column] = None if isinstance(value, Failed) else value
        if how.kind is not RegKind.SAME:
            withheld -= {column}
    if not any(column == arch.sp for column, _ in rule.regs):
        caller[arch.sp] = cfa + arch.sp_off & arch.mask
    caller[arch.pc] = pc
    if not _moved_up(rule, registers, caller[arch.sp], arch):
        return Stop(StackEnd.STUCK, cfa=cfa)
    return Caller(Registers(caller, rule.signal, withheld), cfa, known.trust)


def _cfa(rule: Rule, machine: Machine, memory: LaneMemory) -> int | Failed:
    if rule.cfa_reg < 0:
        return evaluate(rule.cfa_expr, machine)
    base = machine.regs[rule.cfa_reg]
    if base is None:
        return Failed(ExprProblem.UNKNOWN_REGISTER, rule.cfa_reg)
    cfa = base + rule.cfa_off & machine.arch.mask
    return _word(cfa, memory) if rule.cfa_deref else cfa


def _value(how: RegRule, column: int, machine: Machine, memory: LaneMemory) -> int | Failed | None:
    """The caller's value of a register; None if it is lost. machine.cfa is known."""
    mask = machine.arch.mask
    cfa = machine.cfa
    assert cfa is not None
    match how.kind:
        case RegKind.AT_CFA:
            return _word(cfa + how.n & mask, memory)
        case RegKind.CFA_PLUS:
            return cfa + how.n & mask
        case RegKind.SAME:
            return machine.regs[column]
        case RegKind.UNDEFINED:
            return None
        case RegKind.REG_PLUS | RegKind.AT_REG:
            base = machine.regs[how.reg]
            if base is None:
                return Failed(ExprProblem.UNKNOWN_REGISTER, how.reg)
            address = base + how.n & mask
            return _word(address, memory) if how.kind is RegKind.AT_REG else address
        case RegKind.EXPR:
            return evaluate(how.expr, machine, (cfa,))
        case RegKind.AT_EXPR:
            at = evaluate(how.expr, machine, (cfa,))
            return at if isinstance(at, Failed) else _word(at, memory)


def _word(avma: int, memory: LaneMemory) -> int | Failed:
    value = memory.word(avma)
    return Failed(ExprProblem.UNREADABLE, avma) if value is None else value


def _stopped(failed: Failed, cfa: int | None) -> Stop:
    if failed.problem is ExprProblem.UNREADABLE:
        return Stop(StackEnd.UNREADABLE, missing=failed.at, cfa=cfa)
    if failed.problem is ExprProblem.UNKNOWN_REGISTER:
        return Stop(StackEnd.NO_RULE, needs=failed.at, cfa=cfa)
    return Stop(StackEnd.NO_RULE, cfa=cfa)


def _moved_up(rule: Rule, callee: Registers, caller_sp: int | None, arch: Arch) -> bool:
    """sp grows from frame to frame, but a signal handler's stack may lie anywhere, and a leaf may not use the stack."""
    sp = callee.values[arch.sp]
    if rule.signal or sp is None or caller_sp is None:
        return True
    return caller_sp > sp or (caller_sp == sp and arch.lr >= 0 and callee.exact)


@dataclass(slots=True)
class LaneWalk:
    """What a walk of one lane found; columns of model.walk.Walk.

    needs: column of the register for whose lack it ended, or -1.
    """

    frames: list[Frame]
    end: StackEnd = StackEnd.RUNNING
    missing: int = 0
    top: int = 0
    lacks_register: bool = False
    needs: int = -1


Rules = Callable[[int, bool], KnownRule | None]
"""(lookup pc, exact) -> the rule of the table that covers it, None if none does."""

Fallback = Callable[[Registers, LaneMemory], Outcome]
"""The caller of a frame that no table covers."""

Recover = Callable[["ScalarWalker", Registers, LaneMemory, KnownRule | None], LaneWalk | None]
"""The rest of a walk whose next rule (None: the fallback) needs a register that the sample withheld; None if it cannot
be told for sure."""

Accept = Callable[[Registers, Registers], bool]
"""(callee, caller): may the caller stand? Asked for each frame of a walk that must be proved."""


@dataclass(frozen=True, slots=True)
class ScalarWalker:
    """Walks single lanes of one address space. bias: pc -> avma - svma of its module."""

    arch: Arch
    rules: Rules
    bias: Callable[[int], int]
    fallback: Fallback
    recover: Recover
    max_depth: int

    def walk(self, registers: Registers, memory: LaneMemory) -> LaneWalk:
        """All frames of a sample, from its registers."""
        arch = self.arch
        sp = registers.values[arch.sp] or 0
        walk = LaneWalk([(registers.values[arch.pc] or 0, registers.exact, Trust.CONTEXT)])
        walk.top = sp if memory.holds(sp) else 0
        self.go_on(walk, registers, memory, self.max_depth - 1)
        return walk

    def go_on(
        self, walk: LaneWalk, registers: Registers, memory: LaneMemory, most: int, accept: Accept | None = None
    ) -> None:
        """Add at most `most` callers of the frame whose registers are given. accept: see Accept."""
        arch = self.arch
        frames = walk.frames
        most += len(frames)
        while walk.end is StackEnd.RUNNING:
            pc = lookup_pc(registers.values[arch.pc] or 0, registers.exact)
            known = self.rules(pc, registers.exact)
            outcome = self.step(known, pc, registers, memory)
            cfa = outcome.cfa
            if cfa is not None and cfa > walk.top and memory.holds(cfa):
                walk.top = cfa
            if isinstance(outcome, Stop):
                if outcome.needs in registers.withheld and accept is None:
                    self._recover(walk, outcome, registers, memory, known, most - len(frames))
                else:
                    walk.end, walk.missing, walk.needs = outcome.end, outcome.missing, outcome.needs
            elif len(frames) >= most:
                walk.end = StackEnd.DEPTH
            elif accept is not None and not accept(registers, outcome.registers):
                walk.end = StackEnd.NO_RULE
            else:
                registers = outcome.registers
                frames.append((registers.values[arch.pc] or 0, registers.exact, outcome.trust))

    def step(self, known: KnownRule | None, pc: int, registers: Registers, memory: LaneMemory) -> Outcome:
        """The caller of one frame. known: the rule at lookup pc, None if the fallback must try."""
        if known is None:
            return self.fallback(registers, memory)
        return apply_rule(known, registers, memory, self.arch, self.bias(pc) if known.has_expr else 0)

    def _recover(
        self, walk: LaneWalk, stop: Stop, registers: Registers, memory: LaneMemory, known: KnownRule | None, most: int
    ) -> None:
        rest = self.recover(self, registers, memory, known)
        if rest is None or len(rest.frames) > most:
            walk.end, walk.needs, walk.lacks_register = stop.end, stop.needs, True
        else:
            walk.frames += rest.frames
            walk.end, walk.top = rest.end, max(walk.top, rest.top)
