"""The walk of one lane, where there are too few of them for steps of arrays.

In: the registers of a sample, its memory. Out: its walk, as ScalarWalker.walk() finds it, which is the specification.
The innermost frame is stepped with all its registers, its callers by plain rules (single_lane.py), of pc, sp and fp
alone. Where those do not hold scalar.py goes on; if that needs another register, it begins anew with all of them.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from pyprof.model.walk import StackEnd, Trust
from pyprof.records import dataclass
from pyprof.unwind.heuristics.cached_frames import CachedFrames
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import LaneWalk, NoCaller, Registers, ScalarWalker
from pyprof.unwind.single_lane import UNKNOWN, FrameRun, PlainRules
from pyprof.unwind.table import RuleTable

Words = npt.NDArray[np.unsignedinteger]
"""The stack copy of a lane, native words."""


@dataclass(frozen=True, slots=True)
class PlainWalker:
    """Of one address space. table: whose rules they are."""

    walker: ScalarWalker
    rules: PlainRules
    table: RuleTable

    def walk(self, registers: Registers, memory: LaneMemory, words: Words) -> LaneWalk:
        """registers: all are known that a sample of a stopped thread has."""
        walker, arch = self.walker, self.walker.arch
        walker.budget.begin_stack()
        pc, sp = registers.values[arch.pc] or 0, registers.values[arch.sp] or 0
        outcome = walker.step(walker.rules(pc, True), pc, registers, memory)
        if isinstance(outcome, NoCaller) or walker.max_depth < 2:
            return walker.walk(registers, memory)
        caller = outcome.registers
        caller.called = pc
        outer = caller.values[arch.pc] or 0, caller.exact, outcome.trust, caller.values[arch.sp] or 0
        top = max((at for at in (sp, outcome.cfa) if memory.holds(at)), default=0)
        walk = self.rest(caller, memory, words, walker.max_depth - 2, top)
        if walk.needs >= 0 and walk.tail is not None:
            return walker.walk(registers, memory)
        walk.frames[:0] = [(pc, True, Trust.CONTEXT, sp), outer][: 2 - walk.no_frame]
        return walk

    def rest(self, registers: Registers, memory: LaneMemory, words: Words, most: int, top: int) -> LaneWalk:
        """At most `most` callers of a frame. top: as in LaneWalk, so far."""
        arch = self.walker.arch
        pc, sp, fp = (registers.values[column] for column in (arch.pc, arch.sp, arch.fp))
        run = None
        if pc is not None and sp is not None and not registers.exact:
            run = self.rules.run(words, memory.low, pc, sp, UNKNOWN if fp is None else fp, most)
        walk = LaneWalk([], top=top)
        if run is None or not (len(run) or run.root):
            self.walker.go_on(walk, registers, memory, most)
            return walk
        walk.tail = CachedFrames(run.pc, np.zeros(len(run), np.bool_), self.table.trust[run.rule], run.sp)
        walk.top = max(top, self._top(run, memory))
        if run.root:
            walk.end = StackEnd.ROOT
        else:
            self._after(walk, run, registers, memory, most)
        return walk

    def _top(self, run: FrameRun, memory: LaneMemory) -> int:
        """The highest cfa of these frames inside the copy."""
        inner = (sp - self.walker.arch.sp_off for sp in reversed(run.sp.tolist()))
        return next(filter(memory.holds, chain([run.top] if run.root else (), inner)), 0)

    def _after(self, walk: LaneWalk, run: FrameRun, first: Registers, memory: LaneMemory, most: int) -> None:
        """What follows frames by plain rules. first: of the frame before them."""
        arch, fp = self.walker.arch, int(run.fp[-1])
        values: list[int | None] = [None] * len(first.values)
        values[arch.pc], values[arch.sp], values[arch.fp] = (
            int(run.pc[-1]),
            int(run.sp[-1]),
            None if fp == UNKNOWN else fp,
        )
        callee = int(run.pc[-2]) if len(run) > 1 else first.values[arch.pc] or 0
        part = LaneWalk([], top=walk.top)
        self.walker.go_on(part, Registers(values, False, called=callee - 1), memory, most - len(run))
        assert walk.tail is not None
        tail = walk.tail if not part.no_frame else walk.tail.until(len(run) - 1)
        walk.tail = tail.before(CachedFrames.of(part.frames)) if part.frames else tail
        walk.end, walk.missing, walk.needs, walk.top = part.end, part.missing, part.needs, part.top
