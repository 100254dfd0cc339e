"""The reference unwinder: one frame at a time, with all registers as Python integers. It specifies unwinding.

A walk takes registers (None where unknown), the sample's memory and rules, and returns a LaneWalk. The native walker
(native/walk) does the same by plain rules for thousands of samples at once and must find the same frames.
batch_unwinding.py passes the frames that the native walker cannot unwind to this module.

A Cortex-M pushes a frame when it enters an exception handler (ARMv8-M ARM, "Exception entry", "EXC_RETURN"). A handler
returns to the value EXC_RETURN, which is no code address: its high bits are ones, and its low bits say how to
return. If bit 4 is clear, the frame holds floating-point registers too. If bit 2 is set, the frame lies on the process
stack. The frame holds, upwards from sp: r0-r3, r12, lr, pc, xPSR. Bit 9 of xPSR says that one more word was skipped to
align the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.model.sample_batch import GOROUTINE_WORD
from pyprof.model.unwind_result import SharedFrames, StackEnd, Trust, lookup_pc
from pyprof.unwind.dwarf_expressions import (
    PER_FRAME,
    Budget,
    ExpressionFailed,
    ExprProblem,
    Machine,
    evaluate_expression,
)
from pyprof.unwind.rule_cache import KnownRule
from pyprof.unwind.rules import RegKind, RegRule, Rule
from pyprof.unwind.sample_memory import LaneMemory

# Local names, because looking up an enum's member is slow.
_AT_CFA, _AT_REG, _UNDEFINED = RegKind.AT_CFA, RegKind.AT_REG, RegKind.UNDEFINED
_SLOTS = (RegKind.AT_CFA, RegKind.AT_REG, RegKind.AT_EXPR)
_CODE = Trust.CODE
_RUNNING, _ROOT, _STUCK, _UNWINDER = StackEnd.RUNNING, StackEnd.ROOT, StackEnd.STUCK, StackEnd.UNWINDER

Frame = tuple[int, bool, int, int]
"""One unwound frame: (pc, exact, Trust, sp). The sp is 0 if it is unknown."""


@dataclass(slots=True)
class Registers:
    """The registers of one frame during unwinding.

    Attributes:
        values: Values by the architecture's columns, None where unknown.
        exact: True if the pc is not a return address.
        withheld: Columns that are None only because the sample does not hold them (SampleKind.BLOCKED).
        called: Lookup pc of the frame that this frame called, None in the innermost frame.
    """

    values: list[int | None]
    exact: bool
    withheld: frozenset[int] = frozenset()
    called: int | None = None


@dataclass(frozen=True, slots=True)
class NoCaller:
    """The reason why a frame has no caller.

    Attributes:
        end: The StackEnd.
        missing: Address of a word that the sample does not hold, or 0.
        needs: Column of an unknown register that the rule needs, or -1.
        cfa: The frame's CFA, None if it was not computed.
        no_frame: The frame itself is wrong, because its pc cannot be a return address. An inner rule was wrong there:
            libgcc overwrites saved registers when it installs a landing pad.
    """

    end: StackEnd
    missing: int = 0
    needs: int = -1
    cfa: int | None = None
    no_frame: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The registers of a frame's caller, and the CFA of the frame."""

    registers: Registers
    cfa: int
    trust: Trust


Outcome = Caller | NoCaller


def apply_rule(
    known: KnownRule, registers: Registers, memory: LaneMemory, arch: Arch, bias: int, budget: Budget
) -> Outcome:
    """Compute the caller of a frame by an unwind rule.

    Args:
        known: The rule.
        registers: Registers of the frame.
        memory: Memory of the sample.
        arch: The architecture.
        bias: Address in the process minus address in the file of the frame's module, for expressions.
        budget: Operations that expressions may still run.
    """
    rule, values = known.rule, registers.values
    if rule.ra.kind is _UNDEFINED:
        return NoCaller(_ROOT)
    machine = Machine(arch, values, memory.read, bias, budget=budget)
    cfa = _cfa(rule, machine, memory)
    if isinstance(cfa, ExpressionFailed):
        if cfa.at == GOROUTINE_WORD:  # code that does not return has the root of its stack
            return NoCaller(_ROOT if rule.ra.kind is RegKind.EXPR else StackEnd.NO_RULE)
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
    # Only a stack that was switched to may lie above its caller's, and only the innermost frame may have size 0.
    up = (
        rule.signal
        or rule.switching
        or sp is None
        or caller_sp is None
        or caller_sp > sp
        or (caller_sp == sp and registers.exact)
    )
    if not up:
        return NoCaller(_STUCK, cfa=cfa)
    withheld = _still_withheld(registers, caller, known, arch) if registers.withheld else registers.withheld
    return Caller(Registers(caller, rule.signal, withheld), cfa, known.trust)


def _return_address(how: RegRule, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed:
    """Return the caller's pc before masking, or 0 if the unwind rule says that it is lost."""
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
    """Return the caller's value of a register that the callee has saved in its frame.

    Compilers do not update rules while an epilogue pops registers. A register that is already popped holds the caller's
    value itself. Then its slot lies below sp. If the slot is found through another register that was popped too (GCC's
    realigned frames), the slot may be anywhere except between sp and the CFA.
    """
    cfa, sp = machine.cfa, machine.regs[machine.arch.sp]
    assert cfa is not None
    if how.kind is _AT_CFA:
        slot: int | ExpressionFailed = cfa + how.n & machine.mask
    elif how.kind is _AT_REG:
        base = machine.regs[how.reg]
        slot = ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, how.reg) if base is None else base + how.n & machine.mask
    else:
        slot = evaluate_expression(how.expr, machine, (cfa,))
    if isinstance(slot, ExpressionFailed):
        return slot
    if how.kind is not _AT_CFA and exact and slot >= cfa:
        return machine.regs[column]
    value = memory.word(slot)
    return machine.regs[column] if value is None and sp is not None and slot < sp else value


def _still_withheld(callee: Registers, caller: list[int | None], known: KnownRule, arch: Arch) -> frozenset[int]:
    """Return the registers (columns) of the caller that are unknown only because the sample of a sleeping thread did
    not contain them.
    """
    kept = {column for column in known.columns if dict(known.rule.regs)[column].kind is not RegKind.SAME}
    return frozenset(c for c in callee.withheld & arch.callee_saved if c not in kept and caller[c] is None)


def _cfa(rule: Rule, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed:
    if rule.cfa_reg < 0:
        return evaluate_expression(rule.cfa_expr, machine)
    base = machine.regs[rule.cfa_reg]
    if base is None:
        return ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, rule.cfa_reg)
    cfa = base + rule.cfa_off & machine.mask
    return _word(cfa, memory) if rule.cfa_deref else cfa


def _value(how: RegRule, column: int, machine: Machine, memory: LaneMemory) -> int | ExpressionFailed | None:
    """Return the caller's value of a register by its unwind rule, or None if it is lost. `machine` must have the CFA of
    the frame.
    """
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
            return evaluate_expression(how.expr, machine, (cfa,))
        case RegKind.AT_EXPR:
            at = evaluate_expression(how.expr, machine, (cfa,))
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


@dataclass(frozen=True, slots=True)
class CachedFrames:
    """Frames of a stack that follow each other, innermost first, as columns.

    The columns are those of model.unwind_result.Walk, each of shape (k,).
    """

    pc: npt.NDArray[np.uint64]
    exact: npt.NDArray[np.bool_]
    trust: npt.NDArray[np.uint8]
    sp: npt.NDArray[np.uint64]

    @classmethod
    def from_frames(cls, frames: Sequence[tuple[int, bool, int, int]]) -> CachedFrames:
        """Create columns of frames from (pc, exact, Trust, sp) of each frame."""
        pc, exact, trust, sp = zip(*frames, strict=True) if frames else ((), (), (), ())
        return cls(
            np.array(pc, np.uint64), np.array(exact, np.bool_), np.array(trust, np.uint8), np.array(sp, np.uint64)
        )

    def frames_after(self, at: int) -> CachedFrames:
        """Return those of the cached frames that are outside the frame with index `at`."""
        return CachedFrames(self.pc[at + 1 :], self.exact[at + 1 :], self.trust[at + 1 :], self.sp[at + 1 :])

    def frames_until(self, at: int) -> CachedFrames:
        """Return those of the cached frames that are inside the frame with index `at`."""
        return CachedFrames(self.pc[:at], self.exact[:at], self.trust[:at], self.sp[:at])

    def followed_by(self, outer: CachedFrames) -> CachedFrames:
        """Return these frames followed by the given outer frames."""
        return CachedFrames(
            np.concatenate((self.pc, outer.pc)),
            np.concatenate((self.exact, outer.exact)),
            np.concatenate((self.trust, outer.trust)),
            np.concatenate((self.sp, outer.sp)),
        )

    def __len__(self) -> int:
        return len(self.pc)


@dataclass(slots=True)
class LaneWalk:
    """The unwound stack of one sample. Its fields become columns of model.unwind_result.Walk.

    Attributes:
        frames: The frames, innermost first.
        end: Why the walk ended.
        missing: Address of a word that the sample does not hold, or 0.
        top: Highest CFA inside the stack copy.
        lacks_register: The walk ended because the sample does not hold a register.
        needs: Column of the unknown register that ended the walk, or -1.
        no_frame: The frame before the first one in `frames` is wrong and must be removed.
        registers: The registers of each frame, None if they are not kept.
        tail: Frames that follow `frames`.
        shared: (frames, index): after `tail`, the stack continues with these frames from the index on, which other
            samples share. None if there are none.
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


Rules = Callable[[int, bool], KnownRule | None]
"""Function that finds the unwind rule of the table that covers a pc: (lookup pc, pc is not a return address) -> rule,
or None.
"""


class Fallback(Protocol):
    """The protocol of a finder of callers of frames that no unwind table covers.

    Attributes:
        enabled: If False, the fallback only recognizes the outermost frame.
        needs_all: The fallback needs every register, not only pc, sp and fp.
    """

    enabled: bool
    needs_all: bool

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome: ...


Recover = Callable[["ReferenceUnwinder", Registers, LaneMemory, KnownRule | None], LaneWalk | None]
"""Function (unwinder, registers, memory, rule) that finds the rest of a walk whose next rule needs a register that the
sample does not hold.

The rule is None if the fallback needs the register. The result is None if the rest is not certain.
"""

ProvesCall = Callable[[int, int, bool], bool]
"""Function that takes (return address, lookup pc of the callee's frame, the pc is not a return address). It returns
True if the call before the return address calls the callee's function.
"""

Accept = Callable[[Registers, Registers], bool]
"""Function that takes the registers of (callee, caller) and returns True if this caller is plausible. A walk that must
be proved calls it for each frame.
"""


@dataclass(frozen=True, slots=True)
class ReferenceUnwinder:
    """The reference unwinder of single samples of one address space.

    Attributes:
        arch: The architecture.
        rules: Finds the rule of a pc.
        bias: Returns the load bias of the module at a pc.
        fallback: Finds callers where no table covers the pc.
        recover: Finds the rest of a walk that needs a withheld register.
        max_depth: Maximum number of frames.
        budget: Operations that the expressions of all samples may still run.
        proves_call: Decides about the return address of a frame that overwrites its registers (Rule.replacing).
        allows_call: Decides about the return address of a frame whose rule comes from its code (Trust.CODE).
    """

    arch: Arch
    rules: Rules
    bias: Callable[[int], int]
    fallback: Fallback
    recover: Recover
    max_depth: int
    budget: Budget
    proves_call: ProvesCall
    allows_call: ProvesCall

    def walk(self, registers: Registers, memory: LaneMemory, keep_registers: bool = False) -> LaneWalk:
        """Unwind the stack of a sample from its innermost frame.

        Args:
            registers: Registers of the innermost frame.
            memory: Memory of the sample.
            keep_registers: Keep the registers of each frame in the result.
        """
        arch = self.arch
        self.budget.begin_stack()
        sp = registers.values[arch.sp] or 0
        walk = LaneWalk([(registers.values[arch.pc] or 0, registers.exact, Trust.CONTEXT, sp)])
        walk.registers = [registers] if keep_registers else None
        walk.top = sp if memory.holds(sp) else 0
        self.append_callers(walk, registers, memory, self.max_depth - 1)
        return walk

    def append_callers(
        self,
        walk: LaneWalk,
        registers: Registers,
        memory: LaneMemory,
        most: int,
        accept: Accept | None = None,
    ) -> None:
        """Append the callers of a frame to a walk, one frame at a time.

        Args:
            walk: The walk to extend.
            registers: Registers of the frame.
            memory: Memory of the sample.
            most: Maximum number of callers to append.
            accept: Checks each caller; a rejected caller ends the walk.
        """
        arch = self.arch
        frames = walk.frames
        most += len(frames)
        lost_registers = False
        while walk.end is _RUNNING:
            pc = lookup_pc(registers.values[arch.pc] or 0, registers.exact)
            known = self.rules(pc, registers.exact)
            outcome = self.find_caller(known, pc, registers, memory)
            lost_registers = lost_registers or (known is not None and known.rule.replacing)
            cfa = outcome.cfa
            if cfa is not None and cfa > walk.top and memory.holds(cfa):
                walk.top = cfa
            if isinstance(outcome, NoCaller):
                if outcome.needs in registers.withheld and accept is None:
                    self._recover(walk, outcome, registers, memory, known, most - len(frames))
                else:
                    walk.end, walk.missing, walk.needs = outcome.end, outcome.missing, outcome.needs
                    if walk.end is _ROOT and any(frame[2] == Trust.SCAN for frame in frames):
                        walk.end = StackEnd.NO_RULE  # a guess proves no stack
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

    def find_caller(self, known: KnownRule | None, pc: int, registers: Registers, memory: LaneMemory) -> Outcome:
        """Compute the caller of one frame by its unwind rule, or by the fallback.

        Args:
            known: The rule at the lookup pc. None means that no table covers it and the fallback is used.
            pc: The lookup pc.
            registers: Registers of the frame.
            memory: Memory of the sample.
        """
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
        if known.trust is _CODE and not self._may_be_caller(outcome, pc, registers):
            return self.fallback.caller(registers, memory)
        return outcome

    def _may_be_caller(self, outcome: Outcome, pc: int, registers: Registers) -> bool:
        """Return True if the caller that a rule from code analysis has found is plausible, or if the rule found no
        caller.
        """
        if isinstance(outcome, NoCaller):
            return outcome.end is not _ROOT or outcome.cfa is None
        return self.allows_call(outcome.registers.values[self.arch.pc] or 0, pc, registers.exact)

    def _proved_caller(self, outcome: Outcome, pc: int, registers: Registers) -> Outcome:
        """Return the caller of a frame whose code overwrites its saved registers (Rule.replacing), if a call
        instruction proves the return address.

        Only pc and sp of the caller are known.
        """
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


AT_RESET = 0b10
"""A bit that EXC_RETURN never has. At reset lr is all ones, so the bit marks the start of the program."""

PROCESS_STACK, NO_FLOATS = 1 << 2, 1 << 4
_SAVED = (0, 1, 2, 3, 12, 14, 15)
_XPSR = 7
_ALIGNED = 1 << 9
_SHORT, _LONG = 8, 26
"""Sizes in words of the frame that a Cortex-M pushes for an exception, without and with floating-point registers."""


def find_interrupted(registers: Registers, memory: LaneMemory, arch: Arch) -> Outcome:
    """Return the caller of a Cortex-M exception handler: the code that the exception interrupted, with all its
    registers.

    Args:
        registers: Registers after the handler's return. The pc is the EXC_RETURN value.
        memory: The memory of the sample.
        arch: The architecture.
    """
    how, sp = registers.values[arch.pc] or 0, registers.values[arch.sp]
    if how & AT_RESET:
        return NoCaller(StackEnd.ROOT, no_frame=True)
    if how & PROCESS_STACK or sp is None:  # the samples do not contain the process stack pointer
        return NoCaller(StackEnd.NO_RULE)
    values = list(registers.values)
    for slot, column in enumerate(_SAVED):
        values[column] = memory.word(sp + arch.word * slot)
        if values[column] is None:
            return NoCaller(StackEnd.UNREADABLE, missing=sp + arch.word * slot)
    status = memory.word(sp + arch.word * _XPSR)
    if status is None:
        return NoCaller(StackEnd.UNREADABLE, missing=sp + arch.word * _XPSR)
    size = (_SHORT if how & NO_FLOATS else _LONG) + bool(status & _ALIGNED)
    values[arch.sp] = sp + arch.word * size & arch.mask
    values[arch.pc] = arch.code_address(values[arch.pc] or 0)
    return Caller(Registers(values, True), values[arch.sp] or 0, Trust.SIGRETURN)
