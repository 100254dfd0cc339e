"""libunwind's regions and directives, executed: the rule at one place of a procedure.

The manual leaves much open, and libunwind itself executes them on ia64 only (parse_dynamic in src/ia64/Gparser.c).
What is done here is what that does, with an instruction's index its byte offset, as the manual says of machines with
instructions of many sizes; docs/run-time-code.md states each choice with its reason. In words:

    a directive is in force     where offset > region's start + min(when, region's length - 1)
    ADD sp, n                   cfa = sp + (depth - n); of other registers it says nothing
    SAVE_REG r, d               the caller's r is in d; of sp: d keeps the sp of now, and gives the cfa from here on
    SPILL_SP_REL r, n           r = [sp after that instruction + n]
    SPILL_FP_REL r, n           r = [register that keeps sp (else the frame pointer) + n]
    POP_FRAMES n                cfa and memory as at the procedure's entry; behind the region n levels are undone,
                                each region being one, its own the first
    LABEL_STATE, COPY_STATE l   store and take the whole state
    ALIAS a                     the rule of the code at a, as far into it as we are into the region
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyprof.model.arch import Arch
from pyprof.records import dataclass, field, replace
from pyprof.unwind.formats.libunwind.dynamic import Op, Region, Tag
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule

RuleAt = Callable[[int], Rule | None]
"""The rule of code elsewhere, at a lookup pc."""

I386_COLUMNS = (0, 2, 1, 3, 6, 7, 5, 4, 8)
"""UNW_X86_EAX, EDX, ECX, EBX, ESI, EDI, EBP, ESP, EIP as DWARF numbers; elsewhere libunwind's numbers are DWARF's."""


class NotDescribed(Exception):
    """The directives say nothing that can be used. Its text is a counter's key."""


@dataclass(frozen=True, slots=True)
class _State:
    """base: column that gives the cfa, base + off. depth: cfa - sp, None where it is not known.

    kept: (column, cfa - its value) of the register that keeps sp.
    """

    base: int
    off: int
    depth: int | None
    ra: RegRule
    regs: dict[int, RegRule] = field(default_factory=dict)
    kept: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A rule and the offsets from the procedure's start for which it is certain to hold."""

    low: int
    high: int
    rule: Rule


def column_of(arch: Arch, register: int) -> int | None:
    """The column of one of libunwind's register numbers, None of one that unwinding does not follow."""
    if arch.name == "i386":
        register = I386_COLUMNS[register] if 0 <= register < len(I386_COLUMNS) else -1
    column = arch.dwarf.get(register)
    return arch.pc if column is None and register == _PC.get(arch.name.removesuffix("_be")) else column


_PC = {"aarch64": 32}
"""Numbers of pc where DWARF has none."""


class Procedure:
    """The regions of one procedure. size: bytes of code."""

    def __init__(self, regions: tuple[Region, ...], size: int, arch: Arch, rule_at: RuleAt) -> None:
        self._regions = regions
        self._size = size
        self._arch = arch
        self._rule_at = rule_at
        self._entry = self._entry_state()

    def _entry_state(self) -> _State:
        """The state at the first instruction: the return address is where the call left it.

        A procedure whose first region is empty and spills the return address describes the call itself; then the state
        before is that of the caller, with nothing pushed.
        """
        arch = self._arch
        described = False
        for region in self._regions:
            if region.insn_count:
                break
            described = described or any(
                op.tag in (Tag.SPILL_SP_REL, Tag.SPILL_FP_REL) and column_of(arch, op.reg) == arch.pc
                for op in region.ops
            )
        pushed = arch.word if arch.lr < 0 and not described else 0
        depth = pushed - arch.sp_off
        ra = SAME if arch.lr >= 0 else RegRule(RegKind.AT_CFA, -arch.word)
        return _State(arch.sp, depth, depth, ra)

    def at(self, target: int) -> Placed:
        """The rule at an offset. Raises NotDescribed."""
        return _Walk(self._arch, self._size, self._rule_at, self._entry, target).run(self._regions)


def _parts(ops: tuple[Op, ...]) -> Iterator[list[Op]]:
    """What stands between directives that speak of a state as a whole, and those alone: the others need not come in
    the order of their instructions.
    """
    part: list[Op] = []
    for op in ops:
        if op.tag in (Tag.LABEL_STATE, Tag.COPY_STATE, Tag.ALIAS):
            yield part
            yield [op]
            part = []
        else:
            part.append(op)
    yield part


class _Walk:
    """One execution of the regions, for one offset."""

    def __init__(self, arch: Arch, size: int, rule_at: RuleAt, entry: _State, target: int) -> None:
        self._arch = arch
        self._size = size
        self._rule_at = rule_at
        self._entry = entry
        self._target = target
        self._low, self._high = 0, size
        self._state = entry
        self._levels: list[_State] = []
        self._labels: dict[int, tuple[_State, list[_State]]] = {}
        self._start = self._length = 0
        self._popped: int | None = None

    def run(self, regions: tuple[Region, ...]) -> Placed:
        for number, region in enumerate(regions):
            length = region.insn_count
            start = self._start + self._length
            if length < 0:
                if number + 1 < len(regions):
                    raise NotDescribed("libunwind: negative region that is not the last")
                start, length = max(self._size + length, start), -length
            if not self._reached(start):
                break
            if self._popped is not None:
                self._undo(self._popped)
            self._levels.append(self._state)
            self._start, self._length, self._popped = start, length, None
            aliased = self._run_ops(region.ops)
            if aliased is not None:
                return aliased
        state = self._state
        if self._popped is not None:
            state = self._without_memory(state)
        return Placed(self._low, self._high, self._rule(state))

    def _reached(self, offset: int) -> bool:
        """Is the target at or behind an offset? Either way the rule changes there at the earliest."""
        if offset <= self._target:
            self._low = max(self._low, offset)
            return True
        self._high = min(self._high, offset)
        return False

    def _run_ops(self, ops: tuple[Op, ...]) -> Placed | None:
        for part in _parts(ops):
            # those of an empty region belong to no instruction: there the list is the order
            ordered = sorted(part, key=lambda op: (self._when(op), op.tag != Tag.ADD)) if self._length else part
            for op in ordered:
                if not self._reached(self._start + self._when(op) + 1):
                    continue
                if op.tag == Tag.ALIAS:
                    return self._alias(op)
                self._run_op(op)
        return None

    def _when(self, op: Op) -> int:
        return min(op.when, self._length - 1)

    def _run_op(self, op: Op) -> None:
        arch, state = self._arch, self._state
        column = column_of(arch, op.reg)
        match op.tag:
            case Tag.ADD if column == arch.sp:
                self._add(op.val)
            case Tag.SAVE_REG if column is not None:
                self._save(column, column_of(arch, op.val))
            case Tag.SPILL_SP_REL if column is not None:
                self._set(column, RegRule(RegKind.AT_CFA, op.val - self._depth()))
            case Tag.SPILL_FP_REL if column is not None and state.kept is not None:
                self._set(column, RegRule(RegKind.AT_CFA, op.val - state.kept[1]))
            case Tag.SPILL_FP_REL if column is not None:
                self._set(column, RegRule(RegKind.AT_REG, op.val, arch.fp))
            case Tag.POP_FRAMES:
                self._popped = op.val
            case Tag.LABEL_STATE:
                self._labels[op.val] = self._state, list(self._levels)
            case Tag.COPY_STATE if op.val in self._labels:
                self._state, levels = self._labels[op.val]
                self._levels = list(levels)
            case Tag.COPY_STATE:
                raise NotDescribed("libunwind: state that has no label")

    def _add(self, amount: int) -> None:
        depth = self._depth() - amount
        off = depth if self._state.base == self._arch.sp else self._state.off
        self._state = replace(self._state, depth=depth, off=off)

    def _depth(self) -> int:
        """cfa - sp."""
        if self._state.depth is None:
            raise NotDescribed("libunwind: stack pointer is not known")
        return self._state.depth

    def _save(self, column: int, target: int | None) -> None:
        if target is None:
            raise NotDescribed("libunwind: saved to a register that is not followed")
        if column == self._arch.sp:
            depth = self._depth()
            kept = None if target == column else (target, depth)
            self._state = replace(self._state, base=target, off=depth, kept=kept)
        elif column == target:
            regs = {known: how for known, how in self._state.regs.items() if known != column}
            self._state = replace(self._state, regs=regs)
        else:
            self._set(column, RegRule(RegKind.REG_PLUS, 0, target))

    def _set(self, column: int, how: RegRule) -> None:
        if column == self._arch.pc or column == self._arch.lr:
            self._state = replace(self._state, ra=how)
        else:
            self._state = replace(self._state, regs={**self._state.regs, column: how})

    def _undo(self, levels: int) -> None:
        """What regions have changed is taken back, the last one first."""
        for _ in range(min(max(levels, 0), len(self._levels))):
            self._state = self._levels.pop()

    def _without_memory(self, state: _State) -> _State:
        """sp is where it was at the entry: what lies below is gone, what registers keep is not."""
        regs = {column: how for column, how in state.regs.items() if how.kind is RegKind.REG_PLUS}
        ra = state.ra if state.ra.kind is RegKind.REG_PLUS else self._entry.ra
        return replace(self._entry, regs=regs, ra=ra)

    def _alias(self, op: Op) -> Placed | None:
        """Inside the region the rule of the other code; behind it its state at the region's end."""
        inside = self._target - self._start
        if self._length and inside < self._length:
            rule = self._rule_at(op.val + inside)
            if rule is None:
                raise NotDescribed("libunwind: alias of code without a rule")
            return Placed(self._target, self._target + 1, rule)
        rule = self._rule_at(op.val + self._length)
        if rule is None or rule.cfa_reg < 0 or rule.cfa_deref:
            raise NotDescribed("libunwind: alias of code without a rule")
        depth = rule.cfa_off if rule.cfa_reg == self._arch.sp else None
        self._state = _State(rule.cfa_reg, rule.cfa_off, depth, rule.ra, dict(rule.regs))
        return None

    def _rule(self, state: _State) -> Rule:
        return Rule(state.base, state.off, state.ra, tuple(sorted(state.regs.items())))
