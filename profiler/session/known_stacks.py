"""Stacks with an interpreter's frames that were merged before: their nodes in one tree, without merging them again.

Thousands of samples differ in their innermost native frame only. Where all frames outside that one are equal, with
their places on the stack, and the interpreter's chain is, too, merging finds the same again. So what it found is kept,
and only the innermost frame is looked up. That is done for whole stacks in which nothing was left unmatched. All others
are merged one by one (interpreters/merge.py), which is the specification.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.merge import Evaluators
from pyprof.model.interpreter import Chain, SampleState
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.model.stacks import KnownStack, Merge, StackTable
from pyprof.model.walk import StackEnd, Walk
from pyprof.records import dataclass

_MOST_KNOWN = 1 << 14
_HIGHEST = (1 << 64) - 1
_MATCHED = SampleState.INTERPRETED | SampleState.HOLDS_LOCK | SampleState.COLLECTING

Key = tuple[bytes, bytes, int | Chain, int, bool]
"""All frames but the innermost one, their stack pointers, the chain, the address space; is the innermost frame the
evaluator's?"""


@dataclass(slots=True)
class _Known:
    """outer, inner, leaves: as in stacks.KnownStack."""

    state: int
    outer: int
    inner: list[int]
    leaves: dict[int, int]


@dataclass(frozen=True, slots=True)
class Looked:
    """By lane: stacks and SampleState of those that are known; keys and innermost frames of those to be learned."""

    stacks: dict[int, KnownStack]
    states: dict[int, int]
    keys: dict[int, tuple[Key, int]]


NOTHING_KNOWN = Looked({}, {}, {})


class KnownStacks:
    """Of one tree. What was found is forgotten where more becomes known of the evaluators."""

    def __init__(self, stacks: StackTable) -> None:
        self.stacks = stacks
        self._known: dict[Key, _Known] = {}
        self._versions: dict[int, int] = {}
        self._marks: dict[int | Chain, int] = {}

    def look(self, batch: SampleBatch, walk: Walk, evaluators: dict[int, Evaluators]) -> Looked:
        """walk: without shared frames, none of them in code that no file describes. evaluators: by address space."""
        looked = Looked({}, {}, {})
        words = walk.packed()
        if words is None or not len(words):
            return looked
        self._renew(evaluators)
        packed, sps, chains = words.tobytes(), walk.sp.tobytes(), batch.chains
        lanes = np.flatnonzero(_plain(batch, walk))
        first = walk.start[:-1][lanes]
        last, space_of = walk.start[1:][lanes], batch.space[lanes]
        columns = (lanes, first, last, space_of, words[first], walk.pc[first], walk.sp[first])
        for lane, a, b, space, leaf, pc, sp in zip(*(column.tolist() for column in columns), strict=True):
            chain = chains.get(lane)
            if chain is None:
                continue
            name = chain.number or chain
            mark = self._marks.get(name)
            if sp > (self._lowest_mark(name, chain) if mark is None else mark):
                continue
            key = (packed[8 * a + 8 : 8 * b], sps[8 * a + 8 : 8 * b], name, space, evaluators[space](pc, True))
            known = self._known.get(key)
            if known is None:
                looked.keys[lane] = key, leaf
            else:
                looked.stacks[lane] = known.outer, leaf, known.inner, known.leaves
                looked.states[lane] = known.state
        return looked

    def learn(
        self,
        looked: Looked,
        merged: dict[int, Merge],
        node: npt.NDArray[np.int32],
        state: npt.NDArray[np.int32],
    ) -> None:
        """What merging has found. node, state: of all lanes."""
        for lane, (key, leaf) in looked.keys.items():
            inserts, mark = merged.get(lane, ((), None))
            places = inserts[0][1] if inserts and not inserts[0][0] else ()
            own = key[-1]
            if int(state[lane]) & ~_MATCHED or mark is not None or (places and not own):
                continue
            outer = int(node[lane])
            for _ in range(len(places) + 1):
                outer = self.stacks.parent[outer]
            inner = self.stacks.interpreted(places)
            self._known[key] = _Known(int(state[lane]), outer, inner, {leaf: int(node[lane])})

    def _renew(self, evaluators: dict[int, Evaluators]) -> None:
        versions = {space: each.version for space, each in evaluators.items()}
        if len(self._known) > _MOST_KNOWN or any(
            self._versions.get(space, version) != version for space, version in versions.items()
        ):
            self._known.clear()
        self._versions |= versions

    def _lowest_mark(self, name: int | Chain, chain: Chain) -> int:
        """The lowest mark on the C stack; -1: what merging finds is not kept."""
        odd = chain.problem or chain.marks or chain.others or chain.lacking or any(run.waits for run in chain.runs)
        lowest = min((run.marker for run in chain.runs if run.marker), default=_HIGHEST)
        if len(self._marks) > _MOST_KNOWN:
            self._marks.clear()
        self._marks[name] = lowest = -1 if odd else lowest
        return lowest


def _plain(batch: SampleBatch, walk: Walk) -> npt.NDArray[np.bool_]:
    """Lanes of whole stacks, of two frames at least, the innermost of which lies inside the next one."""
    first = np.minimum(walk.start[:-1], len(walk.pc) - 2)
    found: npt.NDArray[np.bool_] = (
        (batch.kind == SampleKind.STOPPED)
        & (walk.end == StackEnd.ROOT)
        & (np.diff(walk.start) >= 2)
        & (len(walk.pc) >= 2)
        & walk.exact[first]
        & (walk.sp[first] <= walk.sp[first + 1])
    )
    return found
