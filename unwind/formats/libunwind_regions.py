"""An interpreter of libunwind's regions and directives, for the rule at one place of a procedure.

The manual leaves much open, and libunwind itself executes regions on ia64 only (parse_dynamic in src/ia64/Gparser.c).
This module follows that code. An instruction's index is its byte offset, as the manual says for variable-size
instructions. tests/jit/test_libunwind_regions.py has a test for each choice:

    a directive is in force     where offset > region's start + min(when, region's length - 1)
    ADD sp, n                   cfa = sp + (depth - n); for other registers it has no effect
    SAVE_REG r, d               the caller's r is in d; for sp: d keeps the current sp, and gives the cfa from here on
    SPILL_SP_REL r, n           r = [sp after that instruction + n]
    SPILL_FP_REL r, n           r = [register that keeps sp (else the frame pointer) + n]
    POP_FRAMES n                cfa and memory as at the procedure's entry; after the region n levels are undone,
                                each region being one, its own the first
    LABEL_STATE, COPY_STATE l   store and load the whole state
    ALIAS a                     the rule of the code at a, at the same offset as in the region
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.arch import Arch
from pyprof.unwind.formats.libunwind_registrations import Op, Region, Tag
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule

RuleAt = Callable[[int], Rule | None]
"""Function that finds the unwind rule of other code at a lookup pc, or None."""

I386_COLUMNS = (0, 2, 1, 3, 6, 7, 5, 4, 8)
"""DWARF numbers of libunwind's i386 registers UNW_X86_EAX, EDX, ECX, EBX, ESI, EDI, EBP, ESP, EIP. Elsewhere libunwind
uses DWARF numbers.
"""


class NotDescribed(Exception):
    """The libunwind directives of a procedure give no usable rule. The error's text is the key of a problem counter."""


@dataclass(frozen=True, slots=True)
class _State:
    """The places of the CFA and of the caller's registers at one place of a libunwind procedure.

    Attributes:
        base: Column of the register from which the CFA is computed: cfa = base + off.
        off: Offset of the CFA from that register, in bytes.
        depth: The stack depth cfa - sp in bytes, None if it is unknown.
        ra: Rule of the return address.
        regs: Rules of the other registers.
        kept: For a register that keeps a copy of sp: (its column, the CFA minus its value). None if there is none.
    """

    base: int
    off: int
    depth: int | None
    ra: RegRule
    regs: dict[int, RegRule] = field(default_factory=dict)
    kept: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RuleRange:
    """An unwind rule and the range of offsets from the procedure's start in which it certainly holds."""

    low: int
    high: int
    rule: Rule


def find_column(arch: Arch, register: int) -> int | None:
    """Return the column of a libunwind register number, or None for a register that samples do not contain."""
    if arch.name == "i386":
        register = I386_COLUMNS[register] if 0 <= register < len(I386_COLUMNS) else -1
    column = arch.dwarf.get(register)
    return arch.pc if column is None and register == _PC.get(arch.name.removesuffix("_be")) else column


_PC = {"aarch64": 32}
"""Number of the pc in libunwind on architectures where DWARF has none."""


class Procedure:
    """The libunwind regions of one procedure, whose code has `size` bytes."""

    def __init__(self, regions: tuple[Region, ...], size: int, arch: Arch, rule_at: RuleAt) -> None:
        self._regions = regions
        self._size = size
        self._arch = arch
        self._rule_at = rule_at
        self._entry = self._entry_state()

    def _entry_state(self) -> _State:
        """Return the register state at the first instruction of a procedure, where the return address is as the call
        left it.

        If the first region is empty and spills the return address, it describes the call itself. Then the state before
        it is the caller's, with nothing pushed.
        """
        arch = self._arch
        described = False
        for region in self._regions:
            if region.insn_count:
                break
            described = described or any(
                op.tag in (Tag.SPILL_SP_REL, Tag.SPILL_FP_REL) and find_column(arch, op.reg) == arch.pc
                for op in region.ops
            )
        pushed = arch.word if arch.lr < 0 and not described else 0
        depth = pushed - arch.sp_off
        ra = SAME if arch.lr >= 0 else RegRule(RegKind.AT_CFA, -arch.word)
        return _State(arch.sp, depth, depth, ra)

    def rule_at(self, target: int) -> RuleRange:
        """Return the unwind rule at an offset of a procedure.

        Raises:
            NotDescribed: The directives give no rule.
        """
        return _Walk(self._arch, self._size, self._rule_at, self._entry, target).run(self._regions)


def _parts(ops: tuple[Op, ...]) -> Iterator[list[Op]]:
    """Split libunwind directives at those that concern the whole state, each of which is a part by itself.

    The other directives need not be in the order of their instructions.
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
    """One execution of a procedure's libunwind directives, up to the offset whose unwind rule is wanted."""

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

    def run(self, regions: tuple[Region, ...]) -> RuleRange:
        for number, region in enumerate(regions):
            length = region.insn_count
            start = self._start + self._length
            if length < 0:
                if number + 1 < len(regions):
                    raise NotDescribed("negative region that is not the last")
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
        return RuleRange(self._low, self._high, self._rule(state))

    def _reached(self, offset: int) -> bool:
        """Return True if the code at `offset` of the procedure is at or before the place whose unwind rule is wanted.

        In both cases, the range of offsets in which that rule holds is cut at `offset`.
        """
        if offset <= self._target:
            self._low = max(self._low, offset)
            return True
        self._high = min(self._high, offset)
        return False

    def _run_ops(self, ops: tuple[Op, ...]) -> RuleRange | None:
        for part in _parts(ops):
            # Directives of an empty region belong to no instruction, so they keep their order in the list.
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
        column = find_column(arch, op.reg)
        match op.tag:
            case Tag.ADD if column == arch.sp:
                self._add(op.val)
            case Tag.SAVE_REG if column is not None:
                self._save(column, find_column(arch, op.val))
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
                raise NotDescribed("state that has no label")

    def _add(self, amount: int) -> None:
        depth = self._depth() - amount
        off = depth if self._state.base == self._arch.sp else self._state.off
        self._state = replace(self._state, depth=depth, off=off)

    def _depth(self) -> int:
        """Return the depth of the stack, cfa - sp, at this place of the procedure."""
        if self._state.depth is None:
            raise NotDescribed("stack pointer is not known")
        return self._state.depth

    def _save(self, column: int, target: int | None) -> None:
        if target is None:
            raise NotDescribed("saved to a register that is not followed")
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
        if column in (self._arch.pc, self._arch.lr):
            self._state = replace(self._state, ra=how)
        else:
            self._state = replace(self._state, regs={**self._state.regs, column: how})

    def _undo(self, levels: int) -> None:
        """Restore the register state from before the last `levels` libunwind regions."""
        for _ in range(min(max(levels, 0), len(self._levels))):
            self._state = self._levels.pop()

    def _without_memory(self, state: _State) -> _State:
        """Return the register state after sp is back at its value at the procedure's entry.

        Only values that registers keep are still valid then.
        """
        regs = {column: how for column, how in state.regs.items() if how.kind is RegKind.REG_PLUS}
        ra = state.ra if state.ra.kind is RegKind.REG_PLUS else self._entry.ra
        return replace(self._entry, regs=regs, ra=ra)

    def _alias(self, op: Op) -> RuleRange | None:
        """Apply a libunwind ALIAS directive, which refers to other code.

        Returns:
            The rule of the other code if the target lies inside the region. Otherwise None, and the other code's state
            at the region's end is taken over.
        """
        inside = self._target - self._start
        if self._length and inside < self._length:
            rule = self._rule_at(op.val + inside)
            if rule is None:
                raise NotDescribed("alias of code without a rule")
            return RuleRange(self._target, self._target + 1, rule)
        rule = self._rule_at(op.val + self._length)
        if rule is None or rule.cfa_reg < 0 or rule.cfa_deref:
            raise NotDescribed("alias of code without a rule")
        depth = rule.cfa_off if rule.cfa_reg == self._arch.sp else None
        self._state = _State(rule.cfa_reg, rule.cfa_off, depth, rule.ra, dict(rule.regs))
        return None

    def _rule(self, state: _State) -> Rule:
        return Rule(state.base, state.off, state.ra, tuple(sorted(state.regs.items())))
