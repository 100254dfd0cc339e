"""The walk of a batch: steps of all samples together, and single samples where that does not suffice.

Samples of one address space are stepped together, and so are address spaces with a few samples each. The reference
unwinder (scalar.py) walks a sample from its first frame if it meets a SLOW rule or an unknown register, or has more
memory than its stack copy. It also finishes the last few samples of a deep batch, because a step costs the same for one
sample as for a hundred.

follow_records() is the common case of heuristics/frame_pointers.py, its specification: it steps samples whose frame
record passes all checks. frame_pointers.py takes the others (a pc that is not a return address, a failed check), one by
one.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.columns import among
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.model.walk import StackEnd, Trust, Walk, lookup_pcs
from pyprof.records import dataclass, field
from pyprof.unwind.batch_step import Lanes, LaneSpaces, ManySpaces, OneSpace, Stepped, Words, load_words, step_lanes
from pyprof.unwind.heuristics.deep_stacks import DeepStacks
from pyprof.unwind.heuristics.outer_frame_cache import MIN_FRAMES, StackCache
from pyprof.unwind.interned_rules import OUTERMOST, RuleTable
from pyprof.unwind.one_sample_walk import PlainWalker
from pyprof.unwind.return_address_check import SpaceCode
from pyprof.unwind.rule_lookup import SpaceIndex
from pyprof.unwind.sample_memory import LaneMemory
from pyprof.unwind.scalar import LaneWalk, NoCaller, Outcome, Registers, ScalarWalker

FEW_LANES = 16
"""Maximum number of samples for which unwinding them one by one is faster than a step of arrays (measured)."""
_SOME_LANES = 64
"""Maximum number of samples of an address space that are walked together with samples of other address spaces."""

LONG = 2 << 20
"""Size in bytes from which on a stack copy is first unwound by fast rules, one sample at a time."""

_BLOCKED = int(SampleKind.BLOCKED)

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


_WORD = (1 << 64) - 1


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


@dataclass(slots=True)
class _Found:
    """Frames of a batch in the order in which unwind steps find them: for each step its depth and its columns."""

    depth: list[int] = field(default_factory=list)
    lane: list[I64] = field(default_factory=list)
    pc: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    exact: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    trust: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    sp: list[npt.NDArray[np.uint64]] = field(default_factory=list)

    def add(self, depth: int, lanes: Lanes, trust: npt.NDArray[np.uint8]) -> None:
        self.depth.append(depth)
        self.lane.append(lanes.lane)
        self.pc.append(lanes.pc)
        self.exact.append(lanes.exact)
        self.trust.append(trust)
        self.sp.append(lanes.sp)


class BatchWalk:
    """The unwinding of the stacks of one batch of samples.

    Call walk_space() for each address space (or walk_scalar() for single samples), then walk_deferred(), then
    collect_walk().
    """

    def __init__(self, batch: SampleBatch, rules: RuleTable, max_depth: int) -> None:
        self._batch = batch
        self._rules = rules
        self._max_depth = max_depth
        self._words = Words.from_batch(batch)
        n = len(batch)
        self._end = np.zeros(n, np.uint8)
        self._missing = np.zeros(n, np.uint64)
        self._top = np.zeros(n, np.uint64)
        self._lacks = np.zeros(n, np.bool_)
        self._no_frame = np.zeros(n, np.bool_)  # the last frame that the steps found is wrong
        self._frames = _Found()
        self._singles: dict[int, LaneWalk] = {}
        self._replaced = np.zeros(n, np.bool_)
        self._joined: set[int] = set()
        self._later: list[tuple[I64, SpaceIndex, PlainWalker]] = []

    def walk_scalar(self, lanes: I64, walker: ScalarWalker) -> None:
        """Unwind the stacks of samples one by one, from their first frame."""
        for lane in lanes.tolist():
            walk = walker.walk(read_first_registers(self._batch, lane), LaneMemory(self._batch, lane))
            self._settle(lane, walk)
            self._replaced[lane] = True

    def walk_known_deep(self, lane: I64, walker: ScalarWalker, outer: StackCache) -> I64:
        """Unwind the samples whose outer frames are known from an earlier walk, and return the others."""
        if not outer:
            return lane
        batch, left = self._batch, []
        for one, tid in zip(lane.tolist(), batch.tid[lane].tolist(), strict=True):
            whole = outer.has_thread(tid) and batch.kind[one] == SampleKind.STOPPED and one not in batch.stack.pieces
            walk = outer.walk(batch, one, read_first_registers(batch, one), walker) if whole else None
            if walk is None:
                left.append(one)
            else:
                self._settle(one, walk)
                self._replaced[one] = True
                self._joined.add(one)
        return np.array(left, np.int64)

    def walk_beyond_copy(self, lane: I64, walker: ScalarWalker, stacks: DeepStacks) -> I64:
        """Unwind the samples whose stack is longer than its copy or whose copy is long, and return the others."""
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
            walk = stacks.walk(self._batch, one, read_first_registers(self._batch, one), walker)
            self._settle(one, walk)
            self._replaced[one] = True
            self._joined.add(one)
        return np.array(left, np.int64)

    def cache_deep_walks(self, walk: Walk, lanes: I64, walker: ScalarWalker, outer: StackCache) -> None:
        """Remember the complete walks of deep stacks. Later samples of the same thread may share their outer frames."""
        batch = self._batch
        deep = (np.diff(walk.start)[lanes] >= MIN_FRAMES) & (walk.end[lanes] == StackEnd.ROOT)
        last = {int(batch.tid[lane]): lane for lane in lanes[deep].tolist() if lane not in self._joined}
        for lane in last.values():
            if batch.kind[lane] == SampleKind.STOPPED and lane not in batch.stack.pieces:
                outer.cache_walk(batch, lane, read_first_registers(batch, lane), walker)

    def walk_space(self, lane: I64, index: SpaceIndex, single: PlainWalker, settled: bool = False) -> None:
        """Unwind the stacks of the samples of one address space.

        Args:
            lane: Indexes of the samples in the batch.
            index: Rules of the address space.
            single: Walker of its single samples.
            settled: The rules do not change during the batch, so that a small group may wait for walk_deferred().
        """
        alone = self._words.whole[lane]
        if self._batch.stack.pieces:
            alone &= ~among(lane, self._batch.stack.pieces)
        if not alone.all():
            self.walk_scalar(lane[~alone], single.walker)
            lane = lane[alone]
        if settled and 0 < len(lane) <= _SOME_LANES:
            self._later.append((lane, index, single))
        else:
            self._group(lane, index, single)

    def walk_deferred(self) -> None:
        """Unwind the samples that walk_space() has deferred."""
        later, self._later = self._later, []
        if len(later) < 2 or sum(len(lane) for lane, _, _ in later) <= FEW_LANES:
            for lane, index, single in later:
                self._group(lane, index, single)
        else:
            lanes = np.concatenate([lane for lane, _, _ in later])
            self._steps(lanes, ManySpaces(len(self._batch), later))

    def _group(self, lane: I64, index: SpaceIndex, single: PlainWalker) -> None:
        if len(lane) <= FEW_LANES:
            self._few(lane, single)
        else:
            self._steps(lane, OneSpace(index, single))

    def _steps(self, lane: I64, spaces: LaneSpaces) -> None:
        lanes = Lanes.start_lanes(self._batch, self._words, lane)
        self._frames.add(0, lanes, np.full(len(lanes), Trust.CONTEXT, np.uint8))
        depth = 1
        while len(lanes) > FEW_LANES:
            lanes = self._step(lanes, depth, spaces)
            depth += 1
        for which, _, single in spaces.parts(lanes.lane):
            self._go_on(lanes.select_lanes(which), depth, single)

    def _few(self, lane: I64, single: PlainWalker) -> None:
        """Unwind the stacks of a few samples one by one, from their first frame."""
        stopped = self._batch.kind[lane] == SampleKind.STOPPED
        if self._batch.arch.byteorder != sys.byteorder:
            stopped[:] = False
        self.walk_scalar(lane[~stopped], single.walker)
        for one in lane[stopped].tolist():
            memory = LaneMemory(self._batch, one)
            self._settle(one, single.walk(read_first_registers(self._batch, one), memory, memory.native_words()))
            self._replaced[one] = True

    def _step(self, lanes: Lanes, depth: int, spaces: LaneSpaces) -> Lanes:
        """Make one unwind step of all samples, and return those that have a caller."""
        asked, was_exact = lookup_pcs(lanes.pc, lanes.exact), lanes.exact
        ids = spaces.rule_ids(lanes.lane, asked, lanes.exact)
        done = step_lanes(lanes, ids, self._rules, self._words, self._batch.arch)
        self._check_code_rules(lanes, ids, asked, was_exact, done, spaces)
        if done.uncovered.any():
            rest = np.flatnonzero(done.uncovered)
            for which, index, single in spaces.parts(lanes.lane[rest]):
                self._fall_back(lanes, rest[which], done, index, single.walker, depth == 1)
        if done.slow.any():
            slow = lanes.lane[done.slow]
            for which, _, single in spaces.parts(slow):
                self.walk_scalar(slow[which], single.walker)
        if depth >= self._max_depth:
            done.end[(done.end == StackEnd.RUNNING) & ~done.slow] = StackEnd.DEPTH
        over = (done.end != StackEnd.RUNNING) & ~done.slow
        if over.any():
            ended = lanes.lane[over]
            self._end[ended] = done.end[over]
            self._missing[ended] = np.where(done.end[over] == StackEnd.UNREADABLE, done.missing[over], np.uint64(0))
            self._top[ended] = lanes.top[over]
        going = ~(over | done.slow)
        trust = done.trust
        if not going.all():
            lanes, trust = lanes.select_lanes(going), trust[going]
        self._frames.add(depth, lanes, trust)
        return lanes

    def _check_code_rules(
        self, lanes: Lanes, ids: I64, asked: U64, was_exact: npt.NDArray[np.bool_], done: Stepped, spaces: LaneSpaces
    ) -> None:
        """Leave samples to the reference unwinder whose caller a rule from code found and no call proves."""
        found = np.flatnonzero((done.trust == Trust.CODE) & ~done.slow & ~done.uncovered)
        if not len(found):
            return
        for which, _, single in spaces.parts(lanes.lane[found]):
            allows = single.walker.allows_call
            for at in found[which].tolist():
                if done.end[at] == StackEnd.RUNNING:
                    done.slow[at] = not allows(int(lanes.pc[at]), int(asked[at]), bool(was_exact[at]))
                elif done.end[at] == StackEnd.ROOT:
                    done.slow[at] = not self._rules.flags[ids[at]] & OUTERMOST

    def _fall_back(
        self, lanes: Lanes, rest: I64, done: Stepped, index: SpaceIndex, walker: ScalarWalker, first: bool
    ) -> None:
        """Make an unwind step of samples whose pc no table covers: by frame records together where possible, the others
        one by one.

        Args:
            lanes: The current frames.
            rest: Indexes into lanes of samples of one address space.
            done: The result of the step, which is completed.
            index: Unwind rules of the address space.
            walker: The reference unwinder of the address space.
            first: The samples are at their innermost frames.
        """
        if walker.fallback.enabled:
            plain = follow_records(lanes, rest, self._words, self._batch.arch, index.code)
            done.trust[plain] = Trust.FP
            left = np.ones(len(lanes), np.bool_)
            left[plain] = False
            rest = rest[left[rest]]
        for at in rest.tolist():
            lane = int(lanes.lane[at])
            registers = read_first_registers(self._batch, lane) if first else self._registers(lanes, at)
            self._fall_back_one(lanes, at, done, walker.fallback.caller(registers, LaneMemory(self._batch, lane)))

    def _fall_back_one(self, lanes: Lanes, at: int, done: Stepped, outcome: Outcome) -> None:
        arch = self._batch.arch
        if isinstance(outcome, NoCaller):
            done.end[at], done.missing[at] = outcome.end, outcome.missing
            done.slow[at] = outcome.needs >= 0
            self._no_frame[lanes.lane[at]] = outcome.no_frame
            return
        values = outcome.registers.values
        lanes.pc[at], lanes.sp[at] = values[arch.pc] or 0, values[arch.sp] or 0
        lanes.fp[at], lanes.fp_known[at] = values[arch.fp] or 0, values[arch.fp] is not None
        lanes.exact[at], lanes.lr_known[at] = outcome.registers.exact, False
        if outcome.cfa > int(lanes.top[at]) and LaneMemory(self._batch, int(lanes.lane[at])).holds(outcome.cfa):
            lanes.top[at] = outcome.cfa
        done.trust[at] = outcome.trust

    def _registers(self, lanes: Lanes, at: int) -> Registers:
        """Return the known registers of one sample's current frame."""
        arch = self._batch.arch
        values: list[int | None] = [None] * len(arch.registers)
        if lanes.lr_known[at]:
            values[arch.lr] = int(lanes.lr[at])
        if lanes.fp_known[at]:
            values[arch.fp] = int(lanes.fp[at])
        values[arch.sp] = int(lanes.sp[at])
        values[arch.pc] = int(lanes.pc[at])
        return Registers(values, bool(lanes.exact[at]))

    def _go_on(self, lanes: Lanes, depth: int, single: PlainWalker) -> None:
        """Finish the unwinding of samples one by one from their current frames, or from the start if an unknown
        register is needed.
        """
        walker = single.walker
        plain = self._batch.arch.byteorder == sys.byteorder
        for at, lane in enumerate(lanes.lane.tolist()):
            memory = LaneMemory(self._batch, lane)
            registers = self._registers(lanes, at)
            walker.budget.begin_stack()
            if plain:
                most, top = self._max_depth - depth, int(lanes.top[at])
                walk = single.walk_callers(registers, memory, memory.native_words(), most, top)
            else:
                walk = LaneWalk([], top=int(lanes.top[at]))
                walker.append_callers(walk, registers, memory, self._max_depth - depth)
            if walk.needs < 0:
                self._settle(lane, walk)
            else:
                self.walk_scalar(np.array([lane], np.int64), walker)

    def _settle(self, lane: int, walk: LaneWalk) -> None:
        self._singles[lane] = walk
        self._end[lane] = walk.end
        self._missing[lane] = walk.missing
        self._top[lane] = walk.top
        self._lacks[lane] = walk.lacks_register
        self._no_frame[lane] = walk.no_frame

    def collect_walk(self) -> Walk:
        """Return the unwound frames of all samples of the batch in CSR form."""
        n = len(self._batch)
        found = self._frames
        stepped = np.zeros(n, np.int64)
        for lanes in found.lane:
            stepped[lanes] += 1
        stepped -= self._no_frame
        stepped[self._replaced] = 0
        counts = stepped.copy()
        for lane, walk in self._singles.items():
            counts[lane] += len(walk.frames) + (len(walk.tail) if walk.tail else 0)
        start = np.zeros(n + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        pc = np.zeros(start[-1], np.uint64)
        exact = np.zeros(start[-1], np.bool_)
        trust = np.zeros(start[-1], np.uint8)
        sp = np.zeros(start[-1], np.uint64)
        all_kept = not (self._replaced.any() or self._no_frame.any())
        columns = zip(found.depth, found.lane, found.pc, found.exact, found.trust, found.sp, strict=True)
        for depth, lanes, step_pc, step_exact, step_trust, step_sp in columns:
            kept = slice(None) if all_kept else depth < stepped[lanes]
            at = start[lanes[kept]] + depth
            pc[at], exact[at], trust[at], sp[at] = step_pc[kept], step_exact[kept], step_trust[kept], step_sp[kept]
        for lane, walk in self._singles.items():
            at, end = int(start[lane] + stepped[lane]), int(start[lane + 1])
            if walk.frames:
                place = slice(at, at + len(walk.frames))
                pc[place], exact[place], trust[place], sp[place] = zip(*walk.frames, strict=True)
            if walk.tail:
                tail, place = walk.tail, slice(at + len(walk.frames), end)
                pc[place], exact[place], trust[place], sp[place] = tail.pc, tail.exact, tail.trust, tail.sp
        shared = {lane: walk.shared for lane, walk in self._singles.items() if walk.shared is not None}
        return Walk(start, pc, exact, trust, sp, self._end, self._missing, self._top, self._lacks, shared)


def follow_records(
    lanes: Lanes, which: npt.NDArray[np.int64], words: Words, arch: Arch, code: SpaceCode
) -> npt.NDArray[np.int64]:
    """Unwind samples by the frame records that their frame pointers point to.

    Args:
        lanes: Current frames of the samples; those that are stepped are replaced by their callers.
        which: Indexes into lanes of the samples to step.
        words: The stack copies as words.
        arch: The architecture.
        code: The code of the address space.

    Returns:
        Indexes into lanes of the samples that were stepped.
    """
    chain = arch.chain
    which = which[lanes.fp_known[which] & ~lanes.exact[which]]
    if chain is None or chain.base != arch.fp or chain.ra_in_next or chain.cfa_off is None or not chain.sp_known:
        return which[:0]
    if not len(which):
        return which[:0]
    some = lanes.select_lanes(which)
    base, mask = some.fp, np.uint64(arch.mask)
    following, out, misaligned, _ = load_words(base + np.uint64(chain.next_off & _WORD), some, words, mask)
    ra, ra_out, ra_misaligned, _ = load_words(base + np.uint64(chain.ra_off & _WORD), some, words, mask)
    pc = ra & np.uint64(arch.pc_mask & ~arch.pac_mask)
    plain = (base >= some.sp) & (base & np.uint64(arch.word - 1) == 0) & (base != 0) & (pc != 0)
    plain &= ~(out | misaligned | ra_out | ra_misaligned) & ((following > base) | (following == 0))
    plain &= code.mask_return_addresses(pc) & code.mask_possible(some.pc - np.uint64(1))

    done: npt.NDArray[np.int64] = which[plain]
    cfa = base[plain] + np.uint64(chain.cfa_off & _WORD) & mask
    inside = cfa - some.base[plain] <= some.last[plain] + np.uint64(arch.word)
    lanes.top[done] = np.where(inside, np.maximum(some.top[plain], cfa), some.top[plain])
    lanes.pc[done], lanes.sp[done], lanes.fp[done] = pc[plain], cfa, following[plain]
    lanes.lr_known[done] = False
    return done
