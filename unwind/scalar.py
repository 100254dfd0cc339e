"""One frame, and the walk of one sample, with all registers in plain integers: the specification of unwinding.

In: registers (None where not known), the sample's memory, rules. Out: LaneWalk. walk.py does the same for
thousands of lanes at once and must find the same frames; it gives up every lane whose rules are SLOW, and that lane
comes here from its first frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyprof.model.arch import Arch
from pyprof.model.walk import SharedFrames, StackEnd, Trust, lookup_pc
from pyprof.records import dataclass
from pyprof.unwind.expr import PER_FRAME, Budget, ExpressionFailed, ExprProblem, Machine, evaluate
from pyprof.unwind.heuristics.cached_frames import CachedFrames
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.rules import RegKind, RegRule, Rule
from pyprof.unwind.table import KnownRule

# An enum's members are slow to look up.
_AT_CFA, _AT_REG, _UNDEFINED = RegKind.AT_CFA, RegKind.AT_REG, RegKind.UNDEFINED
_SLOTS = (RegKind.AT_CFA, RegKind.AT_REG, RegKind.AT_EXPR)
_RUNNING, _ROOT, _STUCK, _UNWINDER = StackEnd.RUNNING, StackEnd.ROOT, StackEnd.STUCK, StackEnd.UNWINDER

Frame = tuple[int, bool, int, int]
"""(pc, exact, Trust, sp); sp is 0 where it is not known"""


@dataclass(slots=True)
class Registers:
    """Registers of one frame, by column; None where not known.

    exact: pc is the pc itself. withheld: columns that are None only because the sample does not hold them
    (SampleKind.BLOCKED). called: lookup pc of the frame that this one called, None of the innermost.
    """

    values: list[int | None]
    exact: bool
    withheld: frozenset[int] = frozenset()
    called: int | None = None


@dataclass(frozen=True, slots=True)
class NoCaller:
    """Why there is no caller. missing: avma of an unreadable word. needs: column of an unknown register, or -1.

    cfa: as far as it was found. no_frame: the frame itself is none, its pc cannot be a return address: an inner rule
    was wrong there (libgcc overwrites saved registers when it installs a landing pad).
    """

    end: StackEnd
    missing: int = 0
    needs: int = -1
    cfa: int | None = None
    no_frame: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The registers of the caller, and the CFA of the frame that it called."""

    registers: Registers
    cfa: int
    trust: Trust


Outcome = Caller | NoCaller


def apply_rule(
    known: KnownRule, registers: Registers, memory: LaneMemory, arch: Arch, bias: int, budget: Budget
) -> Outcome:
    """The caller by a rule. bias: avma - svma of the module, for expressions."""
    rule, values = known.rule, registers.values
    if rule.ra.kind is _UNDEFINED:
        return NoCaller(_ROOT)
    machine = Machine(arch, values, memory.read, bias, budget=budget)
    cfa = _cfa(rule, machine, memory)
    if isinstance(cfa, ExpressionFailed):
        return _stopped(cfa, None)
    machine.cfa = cfa

    ra = _return_address(rule.ra, machine, memory)
    if isinstance(ra, ExpressionFailed):
        return _stopped(ra, cfa)
    pc = arch.code_address(ra, rule.pac)
    if not pc:
        return NoCaller(_ROOT, cfa=cfa)

    sp = values[arch.sp]
    caller: list[int | None] = [None] * len(values)
    for column in arch.callee_saved:
        caller[column] = values[column]
    for column, how in rule.regs:
        if how.kind in _SLOTS and column != arch.sp and not rule.signal:
            value = _saved(how, column, registers.exact, machine, memory)
        else:
            value = _value(how, column, machine, memory)
        caller[column] = None if isinstance(value, ExpressionFailed) else value
    if arch.sp not in known.columns:
        caller[arch.sp] = cfa + arch.sp_off & machine.mask
    caller[arch.pc] = pc
    caller_sp = caller[arch.sp]
    # Only a signal handler's stack may lie above its caller's, and only the innermost frame may use none.
    up = rule.signal or sp is None or caller_sp is None or caller_sp > sp or (caller_sp == sp and registers.exact)
    if not up:
        return NoCaller(_STUCK, cfa=cfa)
    withheld = _still_withheld(registers, caller, known, arch) if registers.withheld else registers.withheld
    return Caller(Registers(caller, rule.signal, withheld), cfa, known.trust)


def _return_address(how: RegRule, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed:
    """The caller's pc as the rule says, before masks; 0 where it is lost."""
    if how.kind is _AT_CFA:
        assert machine.cfa is not None
        return _word(machine.cfa + how.n & machine.mask, memory)
    if how.kind is not RegKind.SAME:
        return _value(how, machine.arch.pc, machine, memory) or 0
    lr = machine.arch.lr
    if lr < 0:
        return ExpressionFailed(ExprProblem.INVALID, 0)
    value = machine.regs[lr]
    return ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, lr) if value is None else value


def _saved(
    how: RegRule, column: int, exact: bool, machine: Machine, memory: LaneMemory
) -> int | ExpressionFailed | None:
    """A register saved in a slot of its frame, or its own value where an epilogue has popped it already.

    Compilers leave rules as they are while they pop. Then the slot lies below sp; or, if it is found through another
    register (gcc's realigned frames) that has been popped too, anywhere but between sp and the cfa.
    """
    cfa, sp = machine.cfa, machine.regs[machine.arch.sp]
    assert cfa is not None
    if how.kind is _AT_CFA:
        slot: int | ExpressionFailed = cfa + how.n & machine.mask
    elif how.kind is _AT_REG:
        base = machine.regs[how.reg]
        slot = ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, how.reg) if base is None else base + how.n & machine.mask
    else:
        slot = evaluate(how.expr, machine, (cfa,))
    if isinstance(slot, ExpressionFailed):
        return slot
    if how.kind is not _AT_CFA and exact and slot >= cfa:
        return machine.regs[column]
    value = memory.word(slot)
    return machine.regs[column] if value is None and sp is not None and slot < sp else value


def _still_withheld(callee: Registers, caller: list[int | None], known: KnownRule, arch: Arch) -> frozenset[int]:
    """Registers that a stopped sample would still know in the caller."""
    kept = {column for column in known.columns if dict(known.rule.regs)[column].kind is not RegKind.SAME}
    return frozenset(c for c in callee.withheld & arch.callee_saved if c not in kept and caller[c] is None)


def _cfa(rule: Rule, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed:
    if rule.cfa_reg < 0:
        return evaluate(rule.cfa_expr, machine)
    base = machine.regs[rule.cfa_reg]
    if base is None:
        return ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, rule.cfa_reg)
    cfa = base + rule.cfa_off & machine.mask
    return _word(cfa, memory) if rule.cfa_deref else cfa


def _value(how: RegRule, column: int, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed | None:
    """The caller's value of a register; None if it is lost. machine.cfa is known."""
    mask, cfa = machine.mask, machine.cfa
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
                return ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, how.reg)
            address = base + how.n & mask
            return _word(address, memory) if how.kind is RegKind.AT_REG else address
        case RegKind.EXPR:
            return evaluate(how.expr, machine, (cfa,))
        case RegKind.AT_EXPR:
            at = evaluate(how.expr, machine, (cfa,))
            return at if isinstance(at, ExpressionFailed) else _word(at, memory)


def _word(avma: int, memory: LaneMemory) -> int | ExpressionFailed:
    value = memory.word(avma)
    return ExpressionFailed(ExprProblem.UNREADABLE, avma) if value is None else value


def _stopped(failed: ExpressionFailed, cfa: int | None) -> NoCaller:
    if failed.problem is ExprProblem.UNREADABLE:
        return NoCaller(StackEnd.UNREADABLE, missing=failed.at, cfa=cfa)
    if failed.problem is ExprProblem.UNKNOWN_REGISTER:
        return NoCaller(StackEnd.NO_RULE, needs=failed.at, cfa=cfa)
    return NoCaller(StackEnd.NO_RULE, cfa=cfa)


@dataclass(slots=True)
class LaneWalk:
    """What a walk of one lane found; columns of model.walk.Walk.

    needs: column of the register for whose lack it ended, or -1. no_frame: the frame before the first of frames is
    none. registers: of each of frames, if they are kept. tail: frames that follow. shared: as in Walk, after those.
    """

    frames: list[Frame]
    end: StackEnd = StackEnd.RUNNING
    missing: int = 0
    top: int = 0
    lacks_register: bool = False
    needs: int = -1
    no_frame: bool = False
    registers: list[Registers] | None = None
    tail: CachedFrames | None = None
    shared: tuple[SharedFrames, int] | None = None


class EarlierWalk(Protocol):
    """What an earlier walk found. top: its highest cfa inside the copy."""

    @property
    def top(self) -> int: ...

    def join(self, registers: Registers, sp: int, depth: int) -> CachedFrames | None:
        """The callers of the frame with these registers, up to the root, if they are known. depth: frames so far."""
        ...


Rules = Callable[[int, bool], KnownRule | None]
"""(lookup pc, exact) -> the rule of the table that covers it, None if none does."""


class Fallback(Protocol):
    """Finds the caller of a frame that no table covers. enabled: False refuses all but to see the root.

    needs_all: it wants to know every register, not only pc, sp and fp.
    """

    enabled: bool
    needs_all: bool

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome: ...


Recover = Callable[["ScalarWalker", Registers, LaneMemory, KnownRule | None], LaneWalk | None]
"""The rest of a walk whose next rule (None: the fallback) needs a register that the sample withheld; None if it cannot
be known for sure."""

ProvesCall = Callable[[int, int, bool], bool]
"""(return address, lookup pc of the frame inside, exact) -> True if the call before it is one of that function."""

Accept = Callable[[Registers, Registers], bool]
"""(callee, caller): may the caller stand? Asked for each frame of a walk that must be proved."""


@dataclass(frozen=True, slots=True)
class ScalarWalker:
    """Walks single lanes of one address space. bias: pc -> avma - svma of its module. budget: of all of them.

    proves_call: asked where a frame replaces its registers by those of another frame (Rule.replacing).
    """

    arch: Arch
    rules: Rules
    bias: Callable[[int], int]
    fallback: Fallback
    recover: Recover
    max_depth: int
    budget: Budget
    proves_call: ProvesCall

    def walk(
        self, registers: Registers, memory: LaneMemory, keep_registers: bool = False, known: EarlierWalk | None = None
    ) -> LaneWalk:
        """All frames of a sample, from its registers. known: where it may end early, with a tail."""
        arch = self.arch
        self.budget.begin_stack()
        sp = registers.values[arch.sp] or 0
        walk = LaneWalk([(registers.values[arch.pc] or 0, registers.exact, Trust.CONTEXT, sp)])
        walk.registers = [registers] if keep_registers else None
        walk.top = sp if memory.holds(sp) else 0
        self.go_on(walk, registers, memory, self.max_depth - 1, earlier=known)
        return walk

    def go_on(
        self,
        walk: LaneWalk,
        registers: Registers,
        memory: LaneMemory,
        most: int,
        accept: Accept | None = None,
        earlier: EarlierWalk | None = None,
    ) -> None:
        """Add at most `most` callers of the frame whose registers are given. accept: see Accept."""
        arch = self.arch
        frames = walk.frames
        most += len(frames)
        lost_registers = False
        while walk.end is _RUNNING:
            pc = lookup_pc(registers.values[arch.pc] or 0, registers.exact)
            known = self.rules(pc, registers.exact)
            outcome = self.step(known, pc, registers, memory)
            lost_registers = lost_registers or (known is not None and known.rule.replacing)
            cfa = outcome.cfa
            if cfa is not None and cfa > walk.top and memory.holds(cfa):
                walk.top = cfa
            if isinstance(outcome, NoCaller):
                if outcome.needs in registers.withheld and accept is None:
                    self._recover(walk, outcome, registers, memory, known, most - len(frames))
                else:
                    walk.end, walk.missing, walk.needs = outcome.end, outcome.missing, outcome.needs
                    if lost_registers and outcome.needs >= 0:
                        walk.end = _UNWINDER
                    if outcome.no_frame:
                        walk.no_frame = not frames
                        del frames[-1:]
                        if walk.registers is not None:
                            del walk.registers[-1:]
            elif len(frames) >= most:
                walk.end = StackEnd.DEPTH
            elif accept is not None and not accept(registers, outcome.registers):
                walk.end = StackEnd.NO_RULE
            else:
                registers = outcome.registers
                registers.called = pc
                values = registers.values
                frames.append((values[arch.pc] or 0, registers.exact, outcome.trust, values[arch.sp] or 0))
                if walk.registers is not None:
                    walk.registers.append(registers)
                if earlier is not None:
                    walk.tail = earlier.join(registers, values[arch.sp] or 0, len(frames))
                    if walk.tail is not None:
                        walk.end, walk.top = _ROOT, max(walk.top, earlier.top)

    def step(self, known: KnownRule | None, pc: int, registers: Registers, memory: LaneMemory) -> Outcome:
        """The caller of one frame. known: the rule at lookup pc, None if the fallback must try."""
        if known is None:
            return self.fallback.caller(registers, memory)
        budget = self.budget
        budget.stack += PER_FRAME
        bias = self.bias(pc) if known.has_expr else 0
        outcome = apply_rule(known, registers, memory, self.arch, bias, budget)
        if budget.refused:
            budget.at = pc
        if known.rule.replacing:
            return self._proved_caller(outcome, pc, registers)
        return outcome

    def _proved_caller(self, outcome: Outcome, pc: int, registers: Registers) -> Outcome:
        """Return the caller of a frame that replaces its registers, if a call proves it, with nothing but pc and sp."""
        if isinstance(outcome, NoCaller):
            return outcome if outcome.end is StackEnd.UNREADABLE else NoCaller(_UNWINDER, cfa=outcome.cfa)
        arch, values = self.arch, outcome.registers.values
        if not self.proves_call(values[arch.pc] or 0, pc, registers.exact):
            return NoCaller(_UNWINDER, cfa=outcome.cfa)
        sure = [value if column in (arch.pc, arch.sp) else None for column, value in enumerate(values)]
        return Caller(Registers(sure, False), outcome.cfa, outcome.trust)

    def _recover(
        self,
        walk: LaneWalk,
        stop: NoCaller,
        registers: Registers,
        memory: LaneMemory,
        known: KnownRule | None,
        most: int,
    ) -> None:
        rest = self.recover(self, registers, memory, known)
        if rest is None or len(rest.frames) > most:
            walk.end, walk.needs, walk.lacks_register = stop.end, stop.needs, True
        else:
            walk.frames += rest.frames
            walk.registers = None
            walk.end, walk.missing, walk.top = rest.end, rest.missing, max(walk.top, rest.top)
