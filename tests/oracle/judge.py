"""Comparison of the walkers' results with the shadow stack."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyprof.model.address_space import AddressSpace
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.runtime_processes import RuntimeProcesses
from pyprof.unwind.unwinder import Unwinder
from tests.oracle.states import Key, State, batch_of

Place = tuple[str, int]
"""(path of the module, svma) of an instruction."""


@dataclass
class Mismatch:
    """All states whose walk goes wrong at one place: the last frame whose rule gave a correct result.

    Attributes:
        place: That frame's location.
        what: "wrong caller", "cut short (END)", "too long", "exactness" or "no root (END)".
        keys: The states.
        innermost: Number of states by location of the innermost frame.
        trust: Number of states by trust.
        expected: Frames from that place on according to the shadow stack, as text, of the first state.
        found: Frames from that place on according to the walk, as text, of the first state.
    """

    place: Place
    what: str
    keys: list[Key] = field(default_factory=list)
    innermost: Counter[Place] = field(default_factory=Counter)
    trust: Counter[str] = field(default_factory=Counter)
    expected: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


class Judge:
    """A judge that unwinds states in batches with both walkers, counts correct ones and collects mismatches."""

    def __init__(self, options: UnwindOptions) -> None:
        self.diagnostics = Diagnostics()
        self.images = ImageStore(self.diagnostics)
        code = RuntimeProcesses(self.images, options, self.diagnostics)
        self.unwinder = Unwinder(self.images, options, self.diagnostics, runtime=code)
        self.modules: dict[Key, str] = {}
        self.wrong: dict[tuple[Place, str], Mismatch] = {}
        self.wrong_keys: set[Key] = set()
        self.walkers_differ: list[str] = []
        self.trust: Counter[str] = Counter()
        self.frames = 0

    def judge(self, states: list[State], pid: int, spaces: dict[int, AddressSpace]) -> None:
        """Unwind and judge states. The tracee is stopped meanwhile, so the unwinder may read its memory."""
        if not states:
            return
        batch = batch_of(states, pid, spaces)
        walk, scalar = self.unwinder.walk(batch), self.unwinder.walk_scalar(batch)
        for trust, count in enumerate(np.bincount(walk.trust).tolist()):
            if count:
                self.trust[Trust(trust).label] += count
        self.frames += len(walk.pc)
        for lane, state in enumerate(states):
            space = spaces[state.key[0]]
            module = space.module_at(state.pc)
            self.modules[state.key] = module.path if module else "?"
            if (difference := _difference(walk, scalar, lane)) and len(self.walkers_differ) < 100:
                self.walkers_differ.append(f"{self.name(self.place(space, state.pc))}: {difference}")
            self._judge_lane(state, space, walk, lane)

    def _judge_lane(self, state: State, space: AddressSpace, walk: Walk, lane: int) -> None:
        a, b = int(walk.start[lane]), int(walk.start[lane + 1])
        pc, exact = state.expected()
        found, end = walk.pc[a:b], StackEnd(walk.end[lane])
        if end == StackEnd.ROOT and np.array_equal(found, pc) and np.array_equal(walk.exact[a:b], exact):
            return
        at = _first_difference(found, pc)
        if at < min(len(found), len(pc)):
            what = "wrong caller"
        elif len(found) < len(pc):
            what = f"cut short ({end.label})"
        elif len(found) > len(pc):
            what = "too long"
        elif end != StackEnd.ROOT:
            what = f"no root ({end.label})"
        else:
            what = "exactness"
            at = _first_difference(walk.exact[a:b], exact)
        place = self.place(space, int(pc[max(at - 1, 0)]))
        mismatch = self.wrong.get((place, what))
        if mismatch is None:
            mismatch = self.wrong[place, what] = Mismatch(place, what)
            mismatch.expected = [self.name(self.place(space, int(p))) for p in pc[max(at - 1, 0) : at + 4]]
            mismatch.found = [self.name(self.place(space, int(p))) for p in found[max(at - 1, 0) : at + 4]]
        mismatch.keys.append(state.key)
        mismatch.innermost[self.place(space, state.pc)] += 1
        mismatch.trust[Trust(walk.trust[a + min(at, b - a - 1)]).label] += 1
        self.wrong_keys.add(state.key)

    def place(self, space: AddressSpace, avma: int) -> Place:
        image = self.images.image(space, avma)
        if image is None:
            module = space.module_at(avma)
            return (module.path if module else "?", avma - module.start if module else avma)
        return image.module.path, image.svma(avma)

    @staticmethod
    def name(place: Place) -> str:
        return f"{place[0].rsplit('/', 1)[-1]}+{place[1]:#x}"


def _first_difference(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> int:
    n = min(len(one), len(other))
    differs = np.flatnonzero(one[:n] != other[:n])
    return int(differs[0]) if len(differs) else n


def _difference(walk: Walk, scalar: Walk, lane: int) -> str:
    """Return how the batch walker and the scalar walker differ, or ""."""
    a, b = int(walk.start[lane]), int(walk.start[lane + 1])
    c, d = int(scalar.start[lane]), int(scalar.start[lane + 1])
    for what in ("pc", "exact", "trust"):
        one, other = getattr(walk, what)[a:b], getattr(scalar, what)[c:d]
        if not np.array_equal(one, other):
            at = _first_difference(one, other)
            return f"{what} differ from frame {at}: {one[at : at + 2].tolist()} / {other[at : at + 2].tolist()}"
    for what in ("end", "missing", "top", "lacks_register"):
        one, other = getattr(walk, what)[lane], getattr(scalar, what)[lane]
        if one != other:
            return f"{what}: {one} / {other}"
    return ""
