"""Search for the frame pointer of a blocked thread in its stack copy.

A sample that was read from outside while its thread slept has sp and pc only. If a frame needs the frame pointer and no
inner frame saved it, places in the copy where a return address stands are tried as the frame's record. The evidence is
weighed:

- The call before the return address (heuristics/call_target_checks.py): a direct call of the frame's function proves
  the place, an indirect call allows it, a direct call of another function refutes it.
- The frame size from the function's code (see below): if the code shows it, the record stands at that distance from
  sp. That holds for each frame on the way, too.
- From the record, the unwind tables must lead upwards to the root, and no call on the way may be refuted.

A place at the distance that the code shows is accepted if its call allows it. If a function moves sp by a variable
amount (alloca), its code shows no distance. Then a call must prove the place, or all other places must lie on its way.
Earlier calls leave records that look the same: if another place may be right as well, no place is accepted.

A function allocates its frame once, after it pushes its caller's frame pointer. So its code shows the distance from sp
to the frame pointer, unless it moves sp again (alloca, arrays of variable size, realigned frames).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.arch.definition import Depth, FrameCode
from pyprof.model.unwind_result import StackEnd, Trust, lookup_pc
from pyprof.unwind.heuristics.call_target_checks import MAX_FUNCTION, CallEvidence, CallSites
from pyprof.unwind.heuristics.frame_pointers import returns_to_trampoline
from pyprof.unwind.heuristics.rules_and_checks_from_code import SpaceCode
from pyprof.unwind.reference_unwinder import Accept, LaneWalk, ReferenceUnwinder, Registers
from pyprof.unwind.rule_cache import KnownRule
from pyprof.unwind.rule_lookup import SpaceIndex
from pyprof.unwind.rules import RegKind
from pyprof.unwind.sample_memory import LaneMemory

_ROOM = 1 << 15


@dataclass(frozen=True, slots=True)
class Room:
    """The distances that are possible in a function between sp and the frame pointer, in bytes.

    Attributes:
        least: Lower bound of the distance.
        exact: Possible distances, empty if they are unknown.
        known: The function's prologue was recognized.
    """

    least: int = 0
    exact: tuple[int, ...] = ()
    known: bool = False


class FrameRoom:
    """The distances between sp and frame pointer in the functions of one address space, cached by pc."""

    def __init__(self, arch: Arch, code: SpaceCode, calls: CallSites) -> None:
        self._arch = arch
        self._code = code
        self._calls = calls
        self._known: dict[int, Room] = {}

    def find_distance(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        """Return the distance between sp and the frame pointer in the frame at a pc.

        Args:
            pc: The frame's pc.
            lookup_pc: pc - 1 for a return address, else the pc.
            exact: The pc is not a return address.
        """
        if len(self._known) > _ROOM:
            self._known.clear()
        if pc not in self._known:
            self._known[pc] = self._find(pc, lookup_pc, exact)
        return self._known[pc]

    def _find(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        frames = self._arch.calls.frame_code
        body = self._calls.find_body(lookup_pc, exact)
        if frames is None or body is None:
            return Room()
        start, end = body
        depth: Depth | None = None
        if pc - start <= MAX_FUNCTION:
            depth = frames.depth(self._code.read(start, min(end - start, MAX_FUNCTION)), pc - start)
        if depth is None:
            return Room()
        if not depth.fixed or end - start > MAX_FUNCTION:
            return Room(depth.least, known=True)
        arguments = (0,) if exact else self._arguments(frames, depth, pc)
        return Room(depth.least, tuple(depth.least + size for size in arguments), known=True)

    def _arguments(self, frames: FrameCode, depth: Depth, pc: int) -> tuple[int, ...]:
        """Return the possible sizes in bytes of arguments on the stack during a call that returns to pc."""
        popped = frames.popped(self._code.read(pc, 8))  # the bytes of the arguments or of the frame
        if depth.pushed:
            return (depth.pushed, popped) if popped not in (0, depth.pushed) else (depth.pushed,)
        return (popped, 0) if popped else (0,)


MAX_PLACES = 512
"""Maximum number of stack words with an address of code that are examined, from the frame upwards."""

MAX_RIVALS = 16
"""Maximum number of candidate frame records without proof inside the proved one. With more of them no record is
accepted.
"""

BEGINNING = 3
"""Number of frames at the root of a stack that a thread enters only once: one of them called the thread's first
function.
"""

JOINT = 2
"""Number of frames within which the walk from a stale frame record must meet the accepted walk to count as its
rival.
"""

MAX_PROOF = 4096
"""Maximum number of frames up to the root in a walk that proves a frame record."""

MAX_FRAMES = 3 * MAX_PROOF
"""Maximum number of frames that all trial walks of one sample may have."""

MAX_WORDS = 1 << 17
"""Maximum number of words of the stack copy that are examined for frame records."""

_HIGHEST = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """The formula by which an unwind rule finds the return address from the frame pointer: at cfa + ra_off, where the
    CFA is fp + cfa_off, or [fp + cfa_off] if deref.
    """

    cfa_off: int
    ra_off: int
    deref: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """A candidate for the unknown frame pointer of a frame: a stack address, the caller's sp that follows from it, and
    the evidence from the return address there.
    """

    fp: int
    caller_sp: int
    link: CallEvidence


class FramePointerRecovery:
    """The search for unknown frame pointers in the samples of one address space."""

    def __init__(self, arch: Arch, space: AddressSpace, code: SpaceCode, index: SpaceIndex) -> None:
        self._arch = arch
        self._space = space
        self._index = index
        self._calls = CallSites(arch, space, code, index)
        self._room = FrameRoom(arch, code, self._calls)
        spans = [(m.start, m.end) for m in space.mappings if m.executable]
        self._starts = np.array([start for start, _ in spans], np.uint64)
        self._ends = np.array([min(end, _HIGHEST) for _, end in spans], np.uint64)

    def recover_callers(
        self, walker: ReferenceUnwinder, registers: Registers, memory: LaneMemory, rule: KnownRule | None
    ) -> LaneWalk | None:
        """Return the callers of a frame whose rule needs the unknown frame pointer, or None if no frame record is
        accepted.

        Args:
            walker: The reference unwinder.
            registers: Registers of the frame.
            memory: Memory of the sample.
            rule: The frame's rule, or None if no table covers it.
        """
        arch = self._arch
        shape, sp, pc = self._shape(rule), registers.values[arch.sp], registers.values[arch.pc]
        if shape is None or sp is None or pc is None or arch.fp not in registers.withheld:
            return None
        self._calls.begin_search()
        trial = _Trial(self._joins, walker, registers, memory)
        room = self._room_of(registers) if self._is_plain(shape) else Room()
        stated = [self._place_at(sp + depth, registers, memory) for depth in room.exact]
        if any(place.link is not CallEvidence.REFUTED for place in stated):
            found = _walk_from_frame_size(trial, stated)
        else:
            places = list(self._places(registers, memory, sp, sp + room.least, shape))
            found = _proved(trial, places) or (_allowed(trial, places) if room.known else None)
        if found is None:
            return self._longer_copy(trial, sp)
        if found.frames:
            pc, exact, _, caller_sp = found.frames[0]
            found.frames[0] = (pc, exact, Trust.FP, caller_sp)
        return found

    def _shape(self, known: KnownRule | None) -> _Shape | None:
        """Return how an unwind rule finds the return address from the frame pointer, or None if the rule does not use
        the frame pointer.
        """
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

    def _is_plain(self, shape: _Shape | None) -> bool:
        """Return True if the rule is that of usual frames: the frame pointer points to the saved frame pointer, next to
        the return address.
        """
        return shape == _Shape(2 * self._arch.word, -self._arch.word)

    def _room_of(self, registers: Registers) -> Room:
        pc = registers.values[self._arch.pc] or 0
        return self._room.find_distance(pc, lookup_pc(pc, registers.exact), registers.exact)

    def _place_at(self, fp: int, registers: Registers, memory: LaneMemory) -> _Place:
        """Return the candidate for a presumed frame pointer: the caller's sp and the evidence. If the stack copy does
        not hold the return address, the candidate is not refuted.
        """
        word = memory.word(fp + self._arch.word)
        link = CallEvidence.ALLOWED if word is None else self._link(self._arch.code_address(word, True), registers)
        return _Place(fp, fp + 2 * self._arch.word, link)

    def _places(self, registers: Registers, memory: LaneMemory, sp: int, least: int, shape: _Shape) -> Iterator[_Place]:
        """Yield, in ascending order, the frame pointers from `least` on that lead to a possible return address."""
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
            if link is not CallEvidence.REFUTED:
                yield _Place(fp, cfa + self._arch.sp_off, link)

    def _link(self, ra: int, callee: Registers) -> CallEvidence:
        """Return the evidence that a return address belongs to the call of a frame's function.

        A signal handler returns to the signal trampoline.
        """
        if returns_to_trampoline(self._index.find_rule, ra):
            return CallEvidence.ALLOWED
        return self._calls.call_evidence(ra, lookup_pc(callee.values[self._arch.pc] or 0, callee.exact), callee.exact)

    def _joins(self, callee: Registers, caller: Registers) -> bool:
        """Return True if the code of the caller may have called the callee.

        If a signal interrupted the caller, the signal frame proves it.
        """
        if caller.exact:
            return True
        arch = self._arch
        fp, sp, pc = (callee.values[column] or 0 for column in (arch.fp, arch.sp, arch.pc))
        known = self._index.find_rule(lookup_pc(pc, callee.exact), callee.exact)
        if known is not None and known.trust is Trust.HOTSPOT:
            # The interpreter pushes return addresses at which no call returns, so only tables can confirm the caller.
            return self._index.find_rule(lookup_pc(caller.values[arch.pc] or 0, False), False) is not None
        if self._is_plain(self._shape(known)):
            room = self._room_of(callee)
            if fp - sp < room.least or (room.exact and fp - sp not in room.exact):
                return False
        return self._link(caller.values[arch.pc] or 0, callee) is not CallEvidence.REFUTED

    def _longer_copy(self, trial: _Trial, sp: int) -> LaneWalk | None:
        """Return a walk that ends as UNREADABLE at the missing word if the stack copy is too short to decide about a
        frame record, else None.
        """
        mapping = self._space.mapping_at(sp)
        if not trial.missing or mapping is None or self._space.mapping_at(trial.missing) is not mapping:
            return None
        return LaneWalk([], StackEnd.UNREADABLE, trial.missing)


def _u64(number: int) -> np.uint64:
    return np.uint64(number & _HIGHEST)


class _Trial:
    """The trial walks that start from different candidates for a frame's unknown frame pointer.

    Attributes:
        missing: Address of a word that a trial walk needed and the sample does not hold, or 0.
        spent: True if the budget of frames is used up.
    """

    def __init__(self, joins: Accept, walker: ReferenceUnwinder, registers: Registers, memory: LaneMemory) -> None:
        self._joins = joins
        self._walker = walker
        self._registers = registers
        self._memory = memory
        self._left = MAX_FRAMES
        self.missing = 0

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def walk(self, fp: int) -> LaneWalk | None:
        """Return the callers of the frame by a trial walk that starts with a presumed frame pointer of the frame. The
        frames of the walk count against the sample's limit (MAX_FRAMES). None if there are no callers.
        """
        arch = self._walker.arch
        values = list(self._registers.values)
        values[arch.fp] = fp
        start = Registers(values, self._registers.exact, self._registers.withheld - {arch.fp}, self._registers.called)
        walk = LaneWalk([])
        self._walker.append_callers(
            walk, start, self._memory, min(self._walker.max_depth, MAX_PROOF, self._left), self._joins
        )
        self._left -= len(walk.frames)
        if walk.end is StackEnd.UNREADABLE:
            self.missing = self.missing or walk.missing
        return walk if walk.frames else None


def _walk_from_frame_size(trial: _Trial, places: Sequence[_Place]) -> LaneWalk | None:
    """Try the frame records at the distances from sp that the function's code shows, and return the first walk that
    reaches the root of the stack.

    If a call instruction proves the record, the walk may also end before the root.
    """
    for place in places:
        walk = trial.walk(place.fp) if place.link is not CallEvidence.REFUTED else None
        if walk is not None and (walk.end is StackEnd.ROOT or (place.link is CallEvidence.PROVED and not trial.spent)):
            return walk
    return None


def _proved(trial: _Trial, places: Sequence[_Place]) -> LaneWalk | None:
    """Choose among the candidate frame records that a direct call proves: return the walk from the innermost one to the
    root of the stack.

    That walk must have more frames than all walks from other proved candidates. Otherwise the result is None.
    """
    walks = _to_root(trial, [place for place in places if place.link is CallEvidence.PROVED])
    if not walks or len(walks) == MAX_RIVALS or any(len(walk.frames) >= len(walks[0].frames) for walk in walks[1:]):
        return None
    return None if _may_be_stale(trial, walks[0], places) or trial.spent else walks[0]


def _allowed(trial: _Trial, places: Sequence[_Place]) -> LaneWalk | None:
    """Choose a frame record if no direct call proves any candidate: return the walk from the innermost one to the root
    of the stack, or None.

    All other candidates that lead to the root must lie on that walk, but not at its second frame.
    """
    if not 0 < len(places) <= MAX_RIVALS or any(place.link is CallEvidence.PROVED for place in places):
        return None
    walks = _to_root(trial, places)
    if len(walks) != 1 or trial.spent or walks[0].frames[0][3] != places[0].caller_sp:
        return None
    return None if any(place.caller_sp in _inner(walks[0])[1:2] for place in places) else walks[0]


def _inner(walk: LaneWalk) -> list[int]:
    """Return the stack pointers of a walk's frames, without the outermost frames that a thread enters only once."""
    return [sp for _, _, _, sp in walk.frames[:-BEGINNING]]


def _to_root(trial: _Trial, places: Sequence[_Place]) -> list[LaneWalk]:
    """Return the walks from candidate frame pointers that reach the outermost frame, innermost first, without walks
    that start at a frame of an earlier one.
    """
    found: list[LaneWalk] = []
    for place in places:
        if len(found) < MAX_RIVALS and not any(_passes(walk, place.caller_sp) for walk in found):
            walk = trial.walk(place.fp)
            if walk is not None and walk.end is StackEnd.ROOT:
                found.append(walk)
    return found


def _passes(walk: LaneWalk, caller_sp: int) -> bool:
    return any(sp == caller_sp for _, _, _, sp in walk.frames)


def _may_be_stale(trial: _Trial, found: LaneWalk, places: Sequence[_Place]) -> bool:
    """Return True if a more recent call could explain the stack as well as the proved frame record does.

    The proved record may then be stale. The newer call stands where the proved caller's own record ends, or its record
    leads to one of the first frames. Also return True if there are more than MAX_RIVALS alternatives.
    """
    near = [sp for _, _, _, sp in found.frames[:JOINT]]
    if any(place.caller_sp in _inner(found)[1:2] for place in places):
        return True
    rivals = [place for place in places if place.caller_sp < near[-1] and not _passes(found, place.caller_sp)]
    if len(rivals) > MAX_RIVALS:
        return True
    return any(
        walk.end is StackEnd.ROOT and any(_passes(walk, sp) for sp in near)
        for walk in (trial.walk(place.fp) for place in rivals)
        if walk is not None
    )
