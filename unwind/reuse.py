"""Outer parts of stacks that were walked before, and the proof that a lane's is the same.

From one frame on, a walk by fast rules depends on that frame's pc, sp and (only if a rule uses it before it is
restored) fp, and on the stack words that it reads; on nothing else. So a walk once done is kept as its words and its
frames; another lane that comes to the same state, and whose copy holds the same words at the same addresses, has the
same rest of the stack. The words are compared, all lanes at once: one pass in place of a step for each frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyprof.unwind.step import Lanes, Stepped, Words
from pyprof.unwind.table import CFA_FP, FP_SAVED, OUTERMOST

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_NEW = 32
"""Most stacks that are learned from one batch: what is learned costs a little, what repeats comes again."""

_MOST_WORDS = 1 << 19
_MOST_TRAIL = 512
_STEPS, _MOST_STEPS, _LEARN_EVERY = 8, 256, 8
_FEW_STEPS, _OFTEN = 2, 3
"""A stack that so few steps lead to a known one is learned if it was seen so often in one batch."""
_ALTERNATIVES = 4
_K1, _K2, _K3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_EXACT, _USES_FP = np.uint64(0x8000000000000000), np.uint64(0x27D4EB2F165667C5)


def looked_up(depth: int) -> bool:
    """At which frames a lane's state is looked up: at all first ones, then now and then."""
    return depth <= 8 or depth % 4 == 0


@dataclass(slots=True)
class _Step:
    lanes: Lanes
    done: Stepped


@dataclass(slots=True)
class Trail:
    """What the last steps of a group of lanes read: the lanes before each step, and what it did. Of deep stacks only
    the outermost part is kept; the part before it comes the next time, in front of what is known then.
    """

    steps: list[_Step] = field(default_factory=list)

    def add(self, before: Lanes, done: Stepped) -> None:
        if len(self.steps) == _MOST_TRAIL:
            self.steps.clear()
        self.steps.append(_Step(before, done))


@dataclass(slots=True)
class Rest:
    """The frames beyond the current one of some lanes. lane: (k,); count: (k,) frames of each; pc, exact, trust: those
    of all lanes, one after another. depth: index of the lanes' current frame. entry: what was found, for learn().
    """

    depth: int
    lane: I64
    entry: I64
    count: I64
    top: U64
    pc: U64
    exact: Mask
    trust: npt.NDArray[np.uint8]


def _hash(pc: U64, sp: U64, fp: U64 | np.uint64, exact: Mask, uses_fp: bool) -> U64:
    mixed = pc * _K1 ^ (sp + np.uint64(0x51)) * _K2
    mixed ^= mixed >> np.uint64(29)
    mixed ^= np.where(exact, _EXACT, np.uint64(0))
    return mixed * _K3 ^ fp * _K1 ^ _USES_FP if uses_fp else mixed * _K3


class OuterParts:
    """Of one address space. Entries are sorted by the hash of their state; at most _ALTERNATIVES of one state."""

    def __init__(self) -> None:
        self._turn = 0
        self._clear()

    def _clear(self) -> None:
        none = np.zeros(0, np.uint64)
        number = np.zeros(0, np.int64)
        self._hash = self._pc = self._sp = self._fp = self._low = self._high = self._top = none
        self._exact = self._uses_fp = np.zeros(0, np.bool_)
        self._word_at = self._word_count = self._frame_at = self._frame_count = number
        self._slot = self._value = self._frame_pc = none
        self._frame_exact, self._frame_trust = np.zeros(0, np.bool_), np.zeros(0, np.uint8)
        self._any_fp = False

    def __len__(self) -> int:
        return len(self._hash)

    def worth_steps(self) -> bool:
        """Shall a group of few lanes go by steps, for what is known or could be learned? Else one by one."""
        self._turn += 1
        return len(self) > 0 or self._turn % _LEARN_EVERY == 0

    def steps_for_all(self) -> int:
        """How many steps to make however few lanes are left: then most are known. Now and then all, to learn them."""
        self._turn += 1
        return _MOST_STEPS if self._turn % _LEARN_EVERY == 0 else _STEPS

    def find(self, lanes: Lanes, words: Words, depth: int, most: int) -> tuple[Rest, Mask] | None:
        """The rests of the lanes whose rest is known and has at most `most` frames, and which lanes these are."""
        if not len(self._hash):
            return None
        found = np.full(len(lanes), -1, np.int64)
        self._find(lanes, words, found, np.arange(len(lanes)), False)
        if self._any_fp:
            todo = np.flatnonzero((found < 0) & lanes.fp_known)
            if len(todo):
                self._find(lanes, words, found, todo, True)
        hit = found >= 0
        hit &= self._frame_count[found] <= most
        if not hit.any():
            return None
        entry = found[hit]
        count = self._frame_count[entry]
        at = ranges(self._frame_at[entry], count)
        rest = Rest(
            depth,
            lanes.lane[hit],
            entry,
            count,
            np.maximum(lanes.top[hit], self._top[entry]),
            self._frame_pc[at],
            self._frame_exact[at],
            self._frame_trust[at],
        )
        return rest, hit

    def _find(self, lanes: Lanes, words: Words, found: I64, todo: I64, uses_fp: bool) -> None:
        pc, sp, fp, exact = lanes.pc[todo], lanes.sp[todo], lanes.fp[todo], lanes.exact[todo]
        wanted = _hash(pc, sp, fp, exact, uses_fp)
        at = np.searchsorted(self._hash, wanted)
        for _ in range(_ALTERNATIVES):
            entry = np.minimum(at, len(self._hash) - 1)
            same = (self._hash[entry] == wanted) & (self._pc[entry] == pc) & (self._sp[entry] == sp)
            same &= (self._exact[entry] == exact) & (self._uses_fp[entry] == uses_fp) & (at == entry)
            if uses_fp:
                same &= self._fp[entry] == fp
            if not same.any():
                return
            todo, entry = todo[same], entry[same]
            good = self._proved(lanes, words, todo, entry)
            found[todo[good]] = entry[good]
            rest = ~good
            if not rest.any():
                return
            pc, sp, fp, exact, wanted = (column[same][rest] for column in (pc, sp, fp, exact, wanted))
            todo, at = todo[rest], entry[rest] + 1

    def _proved(self, lanes: Lanes, words: Words, todo: I64, entry: I64) -> Mask:
        """Which lanes' copies hold all words of the entry."""
        base = lanes.base[todo]
        low, high = self._low[entry], self._high[entry]
        good: Mask = (low >= base) & (high - base <= lanes.last[todo]) & ((base & words.misaligned) == 0)
        if not good.all():
            todo, entry, base = todo[good], entry[good], base[good]
            if not len(todo):
                return good
        count = self._word_count[entry]
        at = ranges(self._word_at[entry], count)
        place = self._slot[at] + np.repeat(lanes.first[todo] - (base >> words.shift), count)
        equal = words.words[place.view(np.int64)] == self._value[at]
        begin = np.cumsum(count) - count
        good[good] = np.logical_and.reduceat(equal, begin)
        return good

    def learn(self, trail: Trail, whole: I64, rests: list[Rest], words: Words) -> None:
        """Keep some stacks of a batch. whole: lanes that the steps of the trail walked to their root. rests: what was
        found for others. Those are taken whose first state is the most frequent.
        """
        lanes = np.concatenate([whole, *[rest.lane for rest in rests if rest.depth]])
        saves = np.concatenate(
            [np.full(len(whole), _MOST_STEPS), *[np.full(len(r.lane), r.depth) for r in rests if r.depth]]
        )
        if not len(lanes) or not trail.steps:
            return
        first = trail.steps[0].lanes
        place = np.full(int(max(first.lane.max(), lanes.max())) + 1, -1, np.int64)
        place[first.lane] = np.arange(len(first.lane))
        at = place[lanes]
        if (at < 0).any():  # ended before the part that the trail has kept
            lanes, saves, at = lanes[at >= 0], saves[at >= 0], at[at >= 0]
        key = _hash(first.pc[at], first.sp[at], first.fp[at], first.exact[at], True)
        _, index, times = np.unique(key, return_index=True, return_counts=True)
        worth = (saves[index] > _FEW_STEPS) | (times >= _OFTEN)
        index, times = index[worth], times[worth]
        if not len(index):
            return
        if len(index) > MOST_NEW:
            index = index[np.argsort(-times, kind="stable")[:MOST_NEW]]
        chosen = np.sort(lanes[index])
        tail = np.full(len(chosen), -1, np.int64)
        for rest in rests:
            if rest.depth:
                mine = np.searchsorted(chosen, rest.lane)
                mine = np.minimum(mine, len(chosen) - 1)
                is_mine = chosen[mine] == rest.lane
                tail[mine[is_mine]] = rest.entry[is_mine]
        self._insert(_Columns.of(trail, chosen, words), tail, words)

    def _insert(self, seen: _Columns, tail: I64, words: Words) -> None:
        uses_fp = seen.uses_fp(np.where(tail >= 0, self._uses_fp[tail] if len(self) else False, False))
        new = _New(len(self._slot), len(self._frame_pc))
        for column, entry in enumerate(tail.tolist()):
            n = int(seen.steps[column])
            matters = uses_fp[: n + 1, column]
            reads_fp = seen.saved[:n, column] & ~seen.lost[:n, column] & matters[1:]
            used = np.stack([seen.has_ra[:n, column], reads_fp], axis=1)
            slots = np.stack([seen.ra_slot[:n, column], seen.fp_slot[:n, column]], axis=1)[used]
            values = np.stack([seen.ra[:n, column], seen.fp_value[:n, column]], axis=1)[used]
            frames = [seen.pc[1:n, column]], [seen.exact[1:n, column]], [seen.trust[: n - 1, column]]
            top = seen.top[column]
            if entry >= 0:
                part = slice(int(self._word_at[entry]), int(self._word_at[entry] + self._word_count[entry]))
                slots = np.concatenate([slots, self._slot[part] << words.shift])
                values = np.concatenate([values, self._value[part]])
                part = slice(int(self._frame_at[entry]), int(self._frame_at[entry] + self._frame_count[entry]))
                frames[0].extend((self._pc[entry : entry + 1], self._frame_pc[part]))
                frames[1].extend((self._exact[entry : entry + 1], self._frame_exact[part]))
                frames[2].extend((seen.trust[n - 1 : n, column], self._frame_trust[part]))
                top = max(top, self._top[entry])
            if not len(slots) or (slots & words.misaligned).any():
                continue
            before = np.cumsum(used.sum(axis=1)) - used.sum(axis=1)
            spoiled = np.flatnonzero(seen.saved[:n, column] & seen.lost[:n, column] & matters[1:])
            begin = int(spoiled[-1]) + 1 if len(spoiled) else 0
            depths = np.arange(begin, n)
            depths = depths[before[depths] < len(slots)]
            new.add(seen, column, depths, before[depths], matters[depths], slots, values, frames, top)
        self._merge(new, words)

    def _merge(self, new: _New, words: Words) -> None:
        if not new.columns:
            return
        if len(self._slot) + sum(map(len, new.slots)) > _MOST_WORDS:
            self._clear()
            return
        pc, sp, fp, exact, uses, word_at, word_count, frame_at, frame_count, low, high, top = (
            np.concatenate(column) for column in zip(*new.columns, strict=True)
        )
        fp = np.where(uses, fp, np.uint64(0))
        hashed = np.where(uses, _hash(pc, sp, fp, exact, True), _hash(pc, sp, fp, exact, False))
        mine = (hashed, pc, sp, fp, exact, uses, word_at, word_count, frame_at, frame_count, low, high, top)
        names = ("_hash", "_pc", "_sp", "_fp", "_exact", "_uses_fp", "_word_at", "_word_count", "_frame_at",
                 "_frame_count", "_low", "_high", "_top")  # fmt: skip
        hashes = np.concatenate([hashed, self._hash])
        order = np.argsort(hashes, kind="stable")
        sorted_ = hashes[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_, sorted_)
        order = order[rank < _ALTERNATIVES]
        for name, column in zip(names, mine, strict=True):
            setattr(self, name, np.concatenate([column, getattr(self, name)])[order])
        self._any_fp = self._any_fp or bool(uses.any())
        self._slot = np.concatenate([self._slot, *[slots >> words.shift for slots in new.slots]])
        self._value = np.concatenate([self._value, *new.values])
        self._frame_pc = np.concatenate([self._frame_pc, *new.frame_pc])
        self._frame_exact = np.concatenate([self._frame_exact, *new.frame_exact])
        self._frame_trust = np.concatenate([self._frame_trust, *new.frame_trust])


def ranges(start: I64, count: I64) -> I64:
    """start[0] .. start[0] + count[0], start[1] .. and so on."""
    begin = np.cumsum(count) - count
    each: I64 = np.arange(int(count.sum())) + np.repeat(start - begin, count)
    return each


@dataclass(slots=True)
class _New:
    """Entries to come; word and frame positions continue those that are there."""

    word: int
    frame: int
    columns: list[tuple[npt.NDArray[np.generic], ...]] = field(default_factory=list)
    slots: list[U64] = field(default_factory=list)
    values: list[U64] = field(default_factory=list)
    frame_pc: list[U64] = field(default_factory=list)
    frame_exact: list[Mask] = field(default_factory=list)
    frame_trust: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def add(
        self,
        seen: _Columns,
        column: int,
        depths: I64,
        before: I64,
        matters: Mask,
        slots: U64,
        values: U64,
        frames: tuple[list[U64], list[Mask], list[npt.NDArray[np.uint8]]],
        top: np.uint64,
    ) -> None:
        """One stack: an entry for each of its frames in depths. before: words that are read before that frame."""
        count = sum(map(len, frames[0]))
        low = np.minimum.accumulate(slots[::-1])[::-1][before]
        high = np.maximum.accumulate(slots[::-1])[::-1][before]
        self.columns.append(
            (
                seen.pc[depths, column],
                seen.sp[depths, column],
                seen.fp[depths, column],
                seen.exact[depths, column],
                matters,
                self.word + before,
                len(slots) - before,
                self.frame + depths,
                count - depths,
                low,
                high,
                np.full(len(depths), top),
            )
        )
        self.word += len(slots)
        self.frame += count
        self.slots.append(slots)
        self.values.append(values)
        self.frame_pc += frames[0]
        self.frame_exact += frames[1]
        self.frame_trust += frames[2]


@dataclass(slots=True)
class _Columns:
    """The trail of some lanes, (steps, lanes). steps: how many each lane made. top: highest cfa of each."""

    steps: I64
    top: U64
    pc: U64
    sp: U64
    fp: U64
    exact: Mask
    trust: npt.NDArray[np.uint8]
    has_ra: Mask
    ra_slot: U64
    ra: U64
    by_fp: Mask
    saved: Mask
    lost: Mask
    fp_slot: U64
    fp_value: U64

    @classmethod
    def of(cls, trail: Trail, chosen: I64, words: Words) -> _Columns:
        """chosen: ascending lanes."""
        depth, width = len(trail.steps), len(chosen)
        shape = (depth, width)
        numbers = [np.zeros(shape, np.uint64) for _ in range(7)]
        masks = [np.zeros(shape, np.bool_) for _ in range(5)]
        trust = np.zeros(shape, np.uint8)
        steps = np.zeros(width, np.int64)
        top = np.zeros(width, np.uint64)
        for d, step in enumerate(trail.steps):
            lanes, done = step.lanes, step.done
            column = np.minimum(np.searchsorted(chosen, lanes.lane), width - 1)
            mine = np.flatnonzero(chosen[column] == lanes.lane)
            if not len(mine):
                break
            column = column[mine]
            steps[column] = d + 1
            top[column] = np.maximum(top[column], done.top[mine])
            flags = done.flags[mine]
            values = (lanes.pc, lanes.sp, lanes.fp, done.ra_slot, done.ra, done.fp_slot, done.fp_value)
            for matrix, value in zip(numbers, values, strict=True):
                matrix[d, column] = value[mine]
            truths = (
                lanes.exact[mine],
                (flags & OUTERMOST) == 0,
                (flags & CFA_FP) != 0,
                (flags & FP_SAVED) != 0,
                done.lost[mine],
            )
            for mask, truth in zip(masks, truths, strict=True):
                mask[d, column] = truth
            trust[d, column] = done.trust[mine]
        pc, sp, fp, ra_slot, ra, fp_slot, fp_value = numbers
        exact, has_ra, by_fp, saved, lost = masks
        return cls(steps, top, pc, sp, fp, exact, trust, has_ra, ra_slot, ra, by_fp, saved, lost, fp_slot, fp_value)

    def uses_fp(self, tail: Mask) -> Mask:
        """(steps + 1, lanes): does a rule from this frame on use the fp of this frame? tail: of what follows."""
        depth, width = self.pc.shape
        uses = np.zeros((depth + 1, width), np.bool_)
        uses[self.steps, np.arange(width)] = tail
        for d in range(depth - 1, -1, -1):
            kept = uses[d + 1] & ~(self.saved[d] & ~self.lost[d])
            uses[d] = np.where(d < self.steps, self.by_fp[d] | kept, uses[d])
        return uses
