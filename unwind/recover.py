"""The frame pointer of a thread that was read from outside while it slept, found in its stack copy, or not at all.

Such a sample knows sp and pc only. If a frame needs the frame pointer and no inner frame saved it, places of the copy
where a return address stands are tried as the frame's record, and the evidence is weighed:

- The call before the return address (calls.py): a direct call of the frame's function proves, an indirect one only
  allows, a direct call of another function refutes.
- The room that the function makes on the stack (frame_room.py): where its code tells it, the record stands there.
- From the record the tables must lead on, upwards, to the root, and no call on the way may be refuted.

The place that the room tells is believed if its call allows it. Else a call must prove the place; of several the
innermost is taken, if the others are its outer frames. What is left open is not decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.unwind.calls import Calls, Link
from pyprof.unwind.code import Code
from pyprof.unwind.fallback import returns_to_trampoline
from pyprof.unwind.frame_room import FrameRoom, Room
from pyprof.unwind.index import SpaceIndex
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.rules import RegKind
from pyprof.unwind.scalar import LaneWalk, Registers, ScalarWalker
from pyprof.unwind.table import KnownRule

MAX_PLACES = 512
"""Words that are addresses of code and are looked at, from the frame upwards."""

MAX_RIVALS = 16
"""Places inside of the one that a call proves whose calls only allow; with more it is not decided."""

MAX_PROOF = 4096
"""Frames to the root in which a proof must come to its end."""

MAX_FRAMES = 3 * MAX_PROOF
"""Frames that are walked for one sample, in all trials."""

MAX_WORDS = 1 << 17
"""Words of the stack copy that are looked at."""

_HIGHEST = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a rule finds the return address: at cfa + ra_off, cfa being fp + cfa_off, or [fp + cfa_off] if deref."""

    cfa_off: int
    ra_off: int
    deref: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """A frame pointer that may be the one, the caller's sp then, and what the call before the return address says."""

    fp: int
    caller_sp: int
    link: Link


class Recovery:
    """Recovery in one address space."""

    def __init__(self, arch: Arch, space: AddressSpace, code: Code, index: SpaceIndex) -> None:
        self._arch = arch
        self._space = space
        self._index = index
        self._calls = Calls(arch, space, code, index)
        self._room = FrameRoom(arch, code, self._calls)
        spans = [(m.start, m.end) for m in space.mappings if m.executable]
        self._starts = np.array([start for start, _ in spans], np.uint64)
        self._ends = np.array([min(end, _HIGHEST) for _, end in spans], np.uint64)

    def rest(
        self, walker: ScalarWalker, registers: Registers, memory: LaneMemory, known: KnownRule | None
    ) -> LaneWalk | None:
        """The callers of a frame whose rule needs the frame pointer; None where no record is believed."""
        arch = self._arch
        shape, sp, pc = self._shape(known), registers.values[arch.sp], registers.values[arch.pc]
        if shape is None or sp is None or pc is None or arch.fp not in registers.withheld:
            return None
        self._calls.begin()
        trial = _Trial(self._link, walker, registers, memory)
        room = self._room.at(pc, lookup_pc(pc, registers.exact), registers.exact)
        plain = shape == _Shape(2 * arch.word, -arch.word)
        found = self._told(trial, room, sp, memory) if plain else None
        if found is None:
            least = sp + (room.least if plain else 0)
            found = _proved(trial, list(self._places(registers, memory, sp, least, shape)))
        if found is None:
            return self._longer_copy(trial, sp)
        if found.frames:
            pc, exact, _, caller_sp = found.frames[0]
            found.frames[0] = (pc, exact, Trust.FP, caller_sp)
        return found

    def _shape(self, known: KnownRule | None) -> _Shape | None:
        """None if the rule is not of a kind that says where the return address is, given the frame pointer."""
        arch = self._arch
        if known is None:
            chain = arch.chain
            if chain is None or chain.base != arch.fp or chain.ra_in_next or chain.cfa_off is None:
                return None
            return _Shape(chain.cfa_off, chain.ra_off - chain.cfa_off)
        rule = known.rule
        if rule.cfa_reg != arch.fp or rule.ra.kind is not RegKind.AT_CFA:
            return None
        return _Shape(rule.cfa_off, rule.ra.n, rule.cfa_deref)

    def _told(self, trial: _Trial, room: Room, sp: int, memory: LaneMemory) -> LaneWalk | None:
        """The walk from where the function's room says that the record is."""
        arch = self._arch
        for depth in room.told:
            word = memory.word(sp + depth + arch.word)
            if word is None:
                trial.missing = trial.missing or sp + depth + arch.word
                continue
            link = self._link(arch.code_address(word, True), trial.registers)
            if link is Link.REFUTED:
                continue
            walk = trial.walk(sp + depth)
            if walk is not None and (walk.end is StackEnd.ROOT or (link is Link.PROVED and not trial.spent)):
                return walk
        return None

    def _places(self, registers: Registers, memory: LaneMemory, sp: int, least: int, shape: _Shape) -> Iterator[_Place]:
        """Frame pointers from `least` on whose return address may be one, ascending."""
        size = self._arch.word
        first, words = memory.words(sp, MAX_WORDS)
        at = np.searchsorted(self._starts, words, side="right") - 1
        code = (at >= 0) & (words < self._ends[at]) if len(self._starts) else np.zeros(len(words), np.bool_)
        avmas = np.uint64(first) + np.arange(len(words), dtype=np.uint64) * np.uint64(size)
        if shape.deref:
            slots = words + _u64(shape.ra_off)
            nth = np.where((words > avmas) & (slots % _u64(size) == 0), (slots - _u64(first)) // _u64(size), _u64(-1))
            held = np.flatnonzero(nth < len(words))
            held = held[code[nth[held]]]
            cfas, fps, words = words[held], avmas[held] - _u64(shape.cfa_off), words[nth[held]]
        else:
            held = np.flatnonzero(code)
            cfas, words = avmas[held] - _u64(shape.ra_off), words[held]
            fps = cfas - _u64(shape.cfa_off)
        near = np.flatnonzero((fps >= least) & (fps <= avmas[-1:]))[:MAX_PLACES]
        for fp, cfa, word in zip(fps[near].tolist(), cfas[near].tolist(), words[near].tolist(), strict=True):
            link = self._link(self._arch.code_address(word, True), registers)
            if link is not Link.REFUTED:
                yield _Place(fp, cfa + self._arch.sp_off, link)

    def _link(self, ra: int, callee: Registers) -> Link:
        """May a function that returns to ra be the one of a frame? A signal handler returns to the trampoline."""
        if returns_to_trampoline(self._index.known, ra):
            return Link.ALLOWED
        return self._calls.link(ra, lookup_pc(callee.values[self._arch.pc] or 0, callee.exact), callee.exact)

    def _longer_copy(self, trial: _Trial, sp: int) -> LaneWalk | None:
        """No caller, because the stack copy is too short to tell; None if it is not that."""
        mapping = self._space.mapping_at(sp)
        if not trial.missing or mapping is None or self._space.mapping_at(trial.missing) is not mapping:
            return None
        return LaneWalk([], StackEnd.UNREADABLE, trial.missing)


def _u64(number: int) -> np.uint64:
    return np.uint64(number & _HIGHEST)


class _Trial:
    """Walks from places of one frame. missing: avma of a word that a walk lacked. spent: no more is walked."""

    def __init__(
        self, link: Callable[[int, Registers], Link], walker: ScalarWalker, registers: Registers, memory: LaneMemory
    ) -> None:
        self._link = link
        self._walker = walker
        self.registers = registers
        self._memory = memory
        self._left = MAX_FRAMES
        self.missing = 0

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def walk(self, fp: int) -> LaneWalk | None:
        """The callers of the frame with this frame pointer; None if there are none."""
        arch = self._walker.arch
        values = list(self.registers.values)
        values[arch.fp] = fp
        start = Registers(values, self.registers.exact, self.registers.withheld - {arch.fp}, self.registers.called)
        walk = LaneWalk([])
        self._walker.go_on(walk, start, self._memory, min(self._walker.max_depth, MAX_PROOF, self._left), self._accepts)
        self._left -= len(walk.frames)
        if walk.end is StackEnd.UNREADABLE:
            self.missing = self.missing or walk.missing
        return walk if walk.frames else None

    def _accepts(self, callee: Registers, caller: Registers) -> bool:
        """Where a signal interrupted the caller, the kernel's frame is proof."""
        arch = self._walker.arch
        return caller.exact or self._link(caller.values[arch.pc] or 0, callee) is not Link.REFUTED


def _proved(trial: _Trial, places: Sequence[_Place]) -> LaneWalk | None:
    """The walk from the innermost place that a call proves, unless another one may be right as well."""
    found: LaneWalk | None = None
    innermost = 0
    outer: set[int] = set()
    for place in places:
        if place.link is not Link.PROVED or place.caller_sp in outer:
            continue
        walk = trial.walk(place.fp)
        if walk is None or walk.end is not StackEnd.ROOT:
            continue
        if found is not None:
            return None
        found, innermost, outer = walk, place.caller_sp, {sp for _, _, _, sp in walk.frames}
    rivals = [place for place in places if place.link is Link.ALLOWED and place.caller_sp < innermost]
    if len(rivals) > MAX_RIVALS:
        return None
    for place in rivals:
        walk = trial.walk(place.fp)
        if walk is not None and walk.end is StackEnd.ROOT and any(sp == innermost for _, _, _, sp in walk.frames):
            return None
    return None if trial.spent else found
