"""Unwinding of a batch of samples by the native walker (C), with the reference unwinder (Python) for all other frames.

The native walker follows sp, fp and pc by plain rules (rule_cache). It stops at a frame that needs more: a rule with
other registers or expressions (SLOW), an unknown register, a frame without a table. It also stops where the call
instruction must prove the return address. Then the reference unwinder (reference_unwinder.py) finds that frame's caller
with the registers that are known, and the native walker continues from there. If the frame needs a register other than
sp, fp and pc, the reference unwinder walks the sample again from its innermost frame.

The reference unwinder alone walks samples with more memory than their stack copy. Without a native walker it walks all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.integer_array_operations import among
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.unwind_result import Trust, Walk, lookup_pc
from pyprof.unwind.dwarf_expressions import PER_FRAME
from pyprof.unwind.heuristics.deep_stacks import DeepStacks
from pyprof.unwind.heuristics.rules_and_checks_from_code import Verdict
from pyprof.unwind.native_unwinder import (
    IS_CALL,
    IS_CODE,
    IS_RETURN,
    BatchResult,
    NativeWalker,
    SpaceTables,
    WalkerState,
    Why,
    answer_rule,
)
from pyprof.unwind.reference_unwinder import Caller, LaneWalk, NoCaller, ReferenceUnwinder, Registers
from pyprof.unwind.rule_cache import KnownRule
from pyprof.unwind.rule_lookup import SpaceIndex
from pyprof.unwind.sample_memory import LaneMemory

LONG = 2 << 20
"""Minimum size in bytes of a stack copy that is unwound as a deep stack: with frames from the thread's earlier walk."""

_BLOCKED = int(SampleKind.BLOCKED)

I64 = npt.NDArray[np.int64]


def read_first_registers(batch: SampleBatch, lane: int) -> Registers:
    """Return the registers of a sample's innermost frame."""
    arch = batch.arch
    values: list[int | None] = batch.regs[lane].tolist()
    for column in batch.unknown:
        values[column] = None
    if int(batch.kind[lane]) != _BLOCKED:
        return Registers(values, True)
    known = {arch.sp, arch.pc}
    withheld = frozenset(range(len(values))) - known
    return Registers([v if c in known else None for c, v in enumerate(values)], True, withheld)


@dataclass(frozen=True, slots=True)
class WalkedSpace:
    """The rules and tables by which samples of one address space are unwound.

    Attributes:
        index: The unwind rules of the space.
        walker: The reference unwinder.
        tables: The hash tables of the native walker for the space; None if there is no native walker.
    """

    index: SpaceIndex
    walker: ReferenceUnwinder
    tables: SpaceTables | None


class BatchWalk:
    """The unwinding of the stacks of one batch of samples.

    The caller calls walk_space() for each address space (or walk_scalar() for single samples), then walk_deferred(),
    then collect_walk().
    """

    def __init__(self, batch: SampleBatch, native: NativeWalker | None) -> None:
        n = len(batch)
        self._batch = batch
        self._native = native
        self._found = BatchResult.with_samples(n)
        self._lacks = np.zeros(n, np.bool_)
        self._singles: dict[int, LaneWalk] = {}
        self._later: list[tuple[I64, WalkedSpace]] = []
        self._budgeted = -1, 0
        self._runs = 0
        if native is not None:
            native.start_batch(batch, self._found)

    def walk_scalar(self, lanes: I64, walker: ReferenceUnwinder) -> None:
        """Unwind the stacks of samples one by one with the reference unwinder, each from its innermost frame."""
        for lane in lanes.tolist():
            self._settle(lane, walker.walk(read_first_registers(self._batch, lane), LaneMemory(self._batch, lane)))

    def walk_beyond_copy(self, lane: I64, walker: ReferenceUnwinder, stacks: DeepStacks) -> I64:
        """Unwind the samples whose stack is longer than its copy, or whose copy has LONG bytes or more. Return the
        indices of the other samples, which are still to be unwound.
        """
        slab = self._batch.stack
        if self._batch.arch.byteorder != sys.byteorder:
            return lane
        if not slab.beyond and not (slab.size[lane] > LONG).any():
            return lane
        left = []
        for one in lane.tolist():
            if one in slab.pieces or (one not in slab.beyond and slab.size[one] <= LONG):
                left.append(one)
                continue
            self._settle(one, stacks.walk(self._batch, one, read_first_registers(self._batch, one), walker))
        return np.array(left, np.int64)

    def walk_space(self, lane: I64, space: WalkedSpace, settled: bool = False) -> None:
        """Unwind the stacks of the samples of one address space.

        Args:
            lane: Indexes of these samples in the batch.
            space: The address space.
            settled: The rules of the space do not change during the batch, so that walk_deferred() may unwind the
                samples later.
        """
        if space.tables is None:
            self.walk_scalar(lane, space.walker)
            return
        if self._batch.stack.pieces:
            alone = among(lane, self._batch.stack.pieces)
            self.walk_scalar(lane[alone], space.walker)
            lane = lane[~alone]
        if len(lane):
            self._later.append((lane, space))
        if not settled:
            self.walk_deferred()

    def walk_deferred(self) -> None:
        """Unwind the samples that walk_space() has put off, those of all address spaces in one run of the native
        walker.
        """
        later, self._later = self._later, []
        if not later or self._native is None:
            return
        spaces = [space for _, space in later]
        order, number = later[0][0], np.zeros(len(later[0][0]), np.int64)
        if len(later) > 1:
            order = np.concatenate([lane for lane, _ in later])
            number = np.repeat(np.arange(len(later)), [len(lane) for lane, _ in later])
            ascending = np.argsort(order, kind="stable")
            order, number = order[ascending], number[ascending]
        tables = [space.tables for space in spaces if space.tables is not None]
        for space, table in zip(spaces, tables, strict=True):
            table.row.version = space.index.version
        self._runs += 1
        self._native.start_samples(order, number, tables)
        self._answer(self._native, order, number, spaces)

    def _answer(self, native: NativeWalker, order: I64, number: I64, spaces: Sequence[WalkedSpace]) -> None:
        """Run the native walker on samples. Each time it stops because it lacks a rule or a caller, supply that and
        continue the walker.

        Args:
            native: The native walker.
            order: Indexes of the samples in the batch.
            number: For each sample, the index of its address space in `spaces`.
            spaces: The address spaces.
        """
        row = native.row
        while (why := native.walk_on()) != Why.DONE:
            at = row.position
            lane, space = int(order[at]), spaces[int(number[at])]
            assert space.tables is not None
            space.tables.grow()
            if why == Why.CALLER:
                self._answer_caller(native, lane, space)
            elif why == Why.SAMPLE or not answer_rule(row, space.index):
                self._walk_alone(native, lane, space)

    def _walk_alone(self, native: NativeWalker, lane: int, space: WalkedSpace) -> None:
        """Unwind a complete sample, at one of whose frames the native walker has stopped, with the reference unwinder
        alone.
        """
        row = native.row
        walk = space.walker.walk(read_first_registers(self._batch, lane), LaneMemory(self._batch, lane))
        self._settle(lane, walk)
        row.used, row.state = row.first, WalkerState.END
        row.end, row.missing, row.top = walk.end, walk.missing, walk.top

    def _answer_caller(self, native: NativeWalker, lane: int, space: WalkedSpace) -> None:
        """Find the caller of a frame at which the native walker has stopped. The reference unwinder finds it, and the
        result is stored in the native walker's structure.
        """
        row, walker, arch = native.row, space.walker, self._batch.arch
        frames = row.used - row.first
        registers = read_first_registers(self._batch, lane) if frames == 1 else self._registers(native)
        memory = LaneMemory(self._batch, lane)
        pc = lookup_pc(row.pc, registers.exact)
        known = space.index.find_rule(pc, registers.exact)
        self._renew_budget(walker, row.position, frames)
        outcome = walker.find_caller(known, pc, registers, memory)
        if isinstance(outcome, NoCaller):
            if outcome.needs >= 0:
                self._walk_alone(native, lane, space)
                return
            row.used -= outcome.no_frame
            row.end, row.missing, row.state = outcome.end, outcome.missing, WalkerState.END
        else:
            values = outcome.registers.values
            caller, sp, fp = values[arch.pc], values[arch.sp], values[arch.fp]
            if caller is None or sp is None:
                self._walk_alone(native, lane, space)
                return
            row.marks = self._cacheable_flags(space, known, pc, registers.exact, outcome, caller)
            row.pc, row.sp, row.fp, row.fp_known = caller, sp, fp or 0, fp is not None
            lr = values[arch.lr] if arch.lr >= 0 else None
            row.lr, row.lr_known = lr or 0, lr is not None
            row.exact, row.trust = outcome.registers.exact, outcome.trust
        if outcome.cfa is not None and outcome.cfa > row.top and memory.holds(outcome.cfa):
            row.top = outcome.cfa

    def _cacheable_flags(
        self, space: WalkedSpace, known: KnownRule | None, pc: int, exact: bool, outcome: Caller, caller: int
    ) -> int:
        """Return what the native walker may cache about a frame and its caller: a combination of IS_CODE, IS_RETURN and
        IS_CALL, or 0.

        With these flags it finds the same caller again without the reference unwinder.

        Args:
            space: The address space.
            known: Unwind rule of the frame, None if no table covers the frame.
            pc: Lookup pc of the frame.
            exact: The pc is not a return address.
            outcome: The caller that the reference unwinder has found.
            caller: The pc of that caller.
        """
        if known is None:
            if exact or outcome.trust != Trust.FP:
                return 0
            code = space.index.code
            is_return = code.classify_return_address(caller) is not Verdict.NO
            return (0 if code.is_impossible(pc) else IS_CODE) | (IS_RETURN if is_return else 0)
        return IS_CALL if known.trust == outcome.trust == Trust.CODE else 0

    def _renew_budget(self, walker: ReferenceUnwinder, position: int, frames: int) -> None:
        """Permit more operations of DWARF expressions for the current sample: a number for each frame that the native
        walker has found in it.
        """
        before, counted = self._budgeted
        if before != position:
            walker.budget.begin_stack()
            counted = 0
        walker.budget.stack += PER_FRAME * (frames - 1 - counted)
        self._budgeted = position, frames

    def _registers(self, native: NativeWalker) -> Registers:
        """Return the known registers of the frame at which the native walker has stopped, for a frame that is not the
        innermost one.
        """
        row, arch = native.row, self._batch.arch
        values: list[int | None] = [None] * len(arch.registers)
        if row.lr_known:
            values[arch.lr] = row.lr
        if row.fp_known:
            values[arch.fp] = row.fp
        values[arch.sp], values[arch.pc] = row.sp, row.pc
        callee = row.used - 2
        called = lookup_pc(int(native.frames.pc[callee]), bool(native.frames.exact[callee]))
        return Registers(values, bool(row.exact), called=called)

    def _settle(self, lane: int, walk: LaneWalk) -> None:
        self._singles[lane] = walk
        found = self._found
        found.end[lane], found.missing[lane], found.top[lane] = walk.end, walk.missing, walk.top
        self._lacks[lane] = walk.lacks_register

    def collect_walk(self) -> Walk:
        """Return the unwound frames of all samples of the batch in CSR form."""
        found, native = self._found, self._native
        counts = found.count.copy()
        for lane, walk in self._singles.items():
            counts[lane] = len(walk.frames) + (len(walk.tail) if walk.tail else 0)
        start = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        rest = found.end, found.missing, found.top, self._lacks
        if native is not None and not self._singles and self._runs <= 1:
            # one run takes the samples in their order
            frames, used = native.frames, int(start[-1])
            exact = frames.exact[:used].view(np.bool_)
            return Walk(start, frames.pc[:used], exact, frames.trust[:used], frames.sp[:used], *rest)
        pc, sp = np.zeros(start[-1], np.uint64), np.zeros(start[-1], np.uint64)
        exact, trust = np.zeros(start[-1], np.bool_), np.zeros(start[-1], np.uint8)
        if native is not None:
            frames, lanes = native.frames, np.flatnonzero(found.count)
            own = found.count[lanes]
            steps = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
            source, place = np.repeat(found.begin[lanes], own) + steps, np.repeat(start[lanes], own) + steps
            pc[place], sp[place], trust[place] = frames.pc[source], frames.sp[source], frames.trust[source]
            exact[place] = frames.exact[source]
        for lane, walk in self._singles.items():
            at, end = int(start[lane]), int(start[lane + 1])
            if walk.frames:
                single = slice(at, at + len(walk.frames))
                pc[single], exact[single], trust[single], sp[single] = zip(*walk.frames, strict=True)
            if walk.tail:
                tail, single = walk.tail, slice(at + len(walk.frames), end)
                pc[single], exact[single], trust[single], sp[single] = tail.pc, tail.exact, tail.trust, tail.sp
        shared = {lane: walk.shared for lane, walk in self._singles.items() if walk.shared is not None}
        return Walk(start, pc, exact, trust, sp, *rest, shared)
