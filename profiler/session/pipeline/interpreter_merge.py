"""Merges interpreter frames into native stacks: for many samples at once where all frames match, else one by one.

Nearly all samples match: the stack is complete, each run (the interpreter frames of one evaluator call) has a marker
that lies in an evaluator's native frame, and each such native frame has a run. For these samples the general algorithm
(interpreters/frame_merge.py) has the same result, but takes as long as all other work on a sample. It handles all other
samples.

Thousands of such stacks differ only in the innermost native frame and in the current instruction of the innermost
interpreter frame. The rest of such a stack is looked up in the tree once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.frame_merge import Evaluators, merge_chain
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.integer_array_operations import distinct
from pyprof.model.interpreter_frames import Chain, FunctionPlace, SampleState
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.stacks import Merge, StackTable
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.continue_stack_at_interpreter import EvaluatorResume
from pyprof.unwind.unwinder import Unwinder

_MAX_SETTLED = 1 << 16


class ChainMerger:
    """A merger of interpreter frames with native stacks that works on one stack at a time.

    It replaces the instruction of an interpreter frame by the first one of its source line. Otherwise there would be
    ten times as many stacks, because a service executes each of its functions at some ten instructions.
    """

    def __init__(
        self, unwinder: Unwinder, diagnostics: Diagnostics, settle: Callable[[FunctionPlace], FunctionPlace]
    ) -> None:
        """Create a merger of interpreter frames into native stacks.

        Args:
            unwinder: Continues walks and finds the bounds of functions.
            diagnostics: Counts incomplete chains of interpreter frames.
            settle: Function that returns the same frame for all instructions of a source line (Runtimes.settled).
        """
        self._unwinder = unwinder
        self._settle = settle
        self._settled: dict[FunctionPlace, FunctionPlace] = {}
        self._diagnostics = diagnostics
        self._evaluators: dict[int, Evaluators] = {}
        self._resumption = EvaluatorResume(unwinder, self._of_space, diagnostics)

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        return self._resumption.complete(batch, walk)

    def evaluators(self, batch: SampleBatch) -> dict[int, Evaluators]:
        return {space: self._of_space(batch, space) for space in distinct(batch.space).tolist()}

    def merge(self, batch: SampleBatch, walk: Walk) -> tuple[dict[int, Merge], npt.NDArray[np.int32]]:
        merged: dict[int, Merge] = {}
        states = np.zeros(len(batch), np.int32)
        for lane, chain in batch.chains.items():
            a, b = int(walk.start[lane]), int(walk.start[lane + 1])
            found = merge_chain(
                walk.pc[a:b].tolist(),
                walk.sp[a:b].tolist(),
                walk.exact[a:b].tolist(),
                StackEnd(walk.end[lane]),
                chain,
                self._of_space(batch, int(batch.space[lane])),
            )
            if found.inserts or found.reasons:
                inserts = tuple((at, tuple(map(self.settled, places))) for at, places in found.inserts)
                merged[lane] = inserts, found.mark
            states[lane] = SampleState(chain.state | found.reasons)
            if chain.problem:
                self._diagnostics.count(f"python_frame_chain_unread:{chain.problem}")
        return merged, states

    def settled(self, place: FunctionPlace) -> FunctionPlace:
        found = self._settled.get(place)
        if found is None:
            if len(self._settled) >= _MAX_SETTLED:
                self._settled.clear()
            found = self._settled[place] = self._settle(place)
        return found

    def _of_space(self, batch: SampleBatch, space_id: int) -> Evaluators:
        found = self._evaluators.get(space_id)
        if found is None:
            arch, space, unwinder = batch.arch, batch.spaces[space_id], self._unwinder
            found = Evaluators(lambda pc, exact: unwinder.function_range(arch, space, pc, exact))
            self._evaluators[space_id] = found
        return found

    def forget(self, space_id: int) -> None:
        self._evaluators.pop(space_id, None)
        self._resumption.forget(space_id)


_MAX_KNOWN = 1 << 14
_MAX_LANES = 1 << 16
_SP_BITS = 48
_SHORT = 2048

_I64 = npt.NDArray[np.int64]

Key = tuple[bytes | tuple[bytes, bytes], int, int]
"""Key of merged stacks that differ only in their innermost frames: (native frames, interpreter frames, address space).

The first item has the native frames without the innermost one and the indices of the evaluators' frames, or a digest of
both. The second one is the trunk or the number of the Chain.
"""


class _Known(NamedTuple):
    """A group of merged stacks that are in the tree already, have the same key, and differ only in their innermost
    frames.

    Attributes:
        outer: Node outside of the first frame that can differ.
        inner: Numbers of the frames inside `outer`, outermost first.
        leaf: Index in `inner` of the innermost native frame.
        place: Index in `inner` of the innermost interpreter frame, -1 if that frame cannot differ.
        leaves: Known leaves, by the innermost native frame and the innermost interpreter frame.
    """

    outer: int
    inner: list[int]
    leaf: int
    place: int
    leaves: dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class _Placed:
    """The native frames in which the markers of interpreter frames lie, for n samples with k markers. A marker is the
    stack address that a run of interpreter frames has on the C stack.

    Attributes:
        matched: (n,) True if each run of the sample has its native frame, and each evaluator frame its run.
        at: (k,) Index of the native frame in its stack.
        at_start: (n + 1,) Start of each sample in `at`.
    """

    matched: npt.NDArray[np.bool_]
    at: _I64
    at_start: _I64


class MatchedStacks:
    """A fast merger of interpreter frames into native stacks. It handles samples in which each run (the interpreter
    frames of one evaluator call) has a native frame of the evaluator. The merged stacks become nodes of one stack tree.
    """

    def __init__(self, stacks: StackTable, settled: Callable[[FunctionPlace], FunctionPlace]) -> None:
        """Create a merger of interpreter frames into the stack tree.

        Args:
            stacks: The stack tree.
            settled: Function that returns the same frame for all instructions of a source line (Merger.settled).
        """
        self.stacks = stacks
        self._settled = settled
        self._known: dict[Key, _Known] = {}
        self._marks: dict[int, tuple[int, ...] | None] = {}
        self._places: dict[FunctionPlace, int] = {}

    def find(self, batch: SampleBatch, walk: Walk, evaluators: dict[int, Evaluators]) -> dict[int, int]:
        """Merge the samples in which all interpreter frames have a native evaluator frame, and add their stacks to the
        tree.

        Args:
            batch: The samples.
            walk: The unwound frames of the samples, without shared frames, and without code that no file describes.
            evaluators: Evaluators by address space.

        Returns:
            Leaf of the stack tree by sample index. Samples that do not match are missing.
        """
        words = walk.packed()
        if words is None or not len(words) or len(batch) > _MAX_LANES or (walk.sp >> np.uint64(_SP_BITS)).any():
            return {}
        lanes, marks = self._whole(batch, walk, evaluators)
        if not lanes:
            return {}
        placed = _placed(walk, np.array(lanes), marks, _held(batch, walk, evaluators))
        packed, innermost = words.tobytes(), words[walk.start[lanes]].tolist()
        start, at, at_start = walk.start.tolist(), placed.at.astype(np.int32), placed.at_start.tolist()
        owners, spaces = at.tobytes(), batch.space.tolist()
        chains, known, found = batch.chains, self._known, {}
        for n in np.flatnonzero(placed.matched).tolist():
            lane, first, last = lanes[n], at_start[n], at_start[n + 1]
            chain, space, a, b = chains[lane], spaces[lane], start[lane], start[lane + 1]
            name = chain.trunk or chain.number
            key = _short(packed[8 * a + 8 : 8 * b], owners[4 * first : 4 * last]), name, space
            like = known.get(key) if name else None
            if like is None:
                own = at[first:last].tolist()
                for each in own:
                    evaluators[space].learn_function(int(walk.pc[a + each]), bool(walk.exact[a + each]))
                found[lane] = self._put(key, words[a:b].tolist()[::-1], chain, own)
                continue
            place = self._number(chain.innermost) if like.place >= 0 else 0
            leaf = like.leaves.get((innermost[n], place))
            found[lane] = self._add_leaf(like, innermost[n], place, space) if leaf is None else leaf
        return found

    def _whole(
        self, batch: SampleBatch, walk: Walk, evaluators: dict[int, Evaluators]
    ) -> tuple[list[int], list[tuple[int, ...]]]:
        """Find the samples whose native and interpreter frames can be joined to one stack.

        The native stack must be complete, and the interpreter's chain of frames must have a marker for each evaluator
        call: an address on the native stack that tells which native frame ran these interpreter frames.

        Returns:
            (indices of the samples, addresses of the markers of each).
        """
        lanes, marks = [], []
        of_kind = (batch.kind == SampleKind.STOPPED) & (walk.end == StackEnd.ROOT) & (np.diff(walk.start) >= 1)
        spaces, chains = batch.space.tolist(), batch.chains
        symbols: dict[int, tuple[int, ...]] = {}
        for lane in np.flatnonzero(of_kind).tolist():
            chain = chains.get(lane)
            if chain is None:
                continue
            space = spaces[lane]
            if symbols.get(space) is not chain.evaluators:
                symbols[space] = chain.evaluators
                evaluators[space].learn_symbols(chain.evaluators)
            found = self._markers(chain)
            if found is not None:
                lanes.append(lane)
                marks.append(found)
        return lanes, marks

    def _markers(self, chain: Chain) -> tuple[int, ...] | None:
        """Return the markers of a sample: for each run (the interpreter frames of one evaluator call) an address on the
        C stack. Return None if the sample's chain of frames is incomplete or irregular.
        """
        name = chain.trunk or chain.number
        if name in self._marks:
            return self._marks[name]
        odd = chain.problem or chain.marks or chain.others or chain.lacking or not chain.marked
        odd = odd or any(run.waits or not 0 < run.marker < 1 << _SP_BITS for run in chain.runs)
        found = None if odd else tuple(run.marker for run in chain.runs)
        if name:
            if len(self._marks) >= _MAX_KNOWN:
                self._marks.clear()
            self._marks[name] = found
        return found

    def _put(self, key: Key, words: list[int], chain: Chain, at: list[int]) -> int:
        """Add a merged stack to the tree, and cache it by its key.

        Args:
            key: Key of the stack.
            words: Native frames, outermost first.
            chain: Interpreter frames.
            at: Index of each run's native frame, counted from the innermost frame.

        Returns:
            The leaf.
        """
        natives, space = self.stacks.natives, key[-1]
        numbers: list[int] = []
        count, done = len(words), 0
        for run, owner in zip(reversed(chain.runs), reversed(at), strict=True):
            numbers += natives(words[done : count - owner], space)
            numbers += [self._number(place) for place in reversed(run.frames)]
            done = count - owner
        place = len(numbers) - 1 if chain.trunk else len(numbers)
        leaf = len(numbers) - 1 - len(chain.runs[0].frames) if at and not at[0] else len(numbers) + count - done - 1
        numbers += natives(words[done:], space)
        first = min(place, leaf) if chain.trunk else leaf
        path = self.stacks.chain(0, numbers)
        if key[1]:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            leaves = {(words[-1], numbers[place] if chain.trunk else 0): path[-1]}
            outer = path[first - 1] if first else 0
            self._known[key] = _Known(
                outer, numbers[first:], leaf - first, place - first if chain.trunk else -1, leaves
            )
        return path[-1]

    def _add_leaf(self, like: _Known, word: int, place: int, space: int) -> int:
        numbers = [*like.inner]
        numbers[like.leaf] = self.stacks.natives([word], space)[0]
        if like.place >= 0:
            numbers[like.place] = place
        leaf = like.leaves[word, place] = self.stacks.chain(like.outer, numbers)[-1]
        return leaf

    def _number(self, place: FunctionPlace) -> int:
        """Return the number that the stack tree gives to an interpreter frame."""
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = self.stacks.interpreted((self._settled(place),))[0]
        return number


def _short(frames: bytes, owners: bytes) -> bytes | tuple[bytes, bytes]:
    """Return a key for the native frames of a stack: the bytes themselves, or a digest if they are long.

    A stack of a deep recursion has up to 32 KB of frames, and there may be many such samples.

    Args:
        frames: The native frames.
        owners: Indices of the evaluators' frames.
    """
    if len(frames) <= _SHORT:
        return frames, owners
    from _blake2 import blake2b  # hashlib loads OpenSSL

    return blake2b(b"".join((len(frames).to_bytes(8, "little"), frames, owners)), digest_size=16).digest()


def _held(batch: SampleBatch, walk: Walk, evaluators: dict[int, Evaluators]) -> npt.NDArray[np.bool_]:
    """Return a bool array that is True for each unwound frame of an interpreter's evaluator."""
    at = walk.pc - ~walk.exact
    if len(evaluators) == 1:
        (only,) = evaluators.values()
        return only.mask_evaluator(at)
    held = np.zeros(len(at), np.bool_)
    space = np.repeat(batch.space, np.diff(walk.start))
    for number, each in evaluators.items():
        own = space == number
        held[own] = each.mask_evaluator(at[own])
    return held


def _placed(walk: Walk, lanes: _I64, marks: list[tuple[int, ...]], held: npt.NDArray[np.bool_]) -> _Placed:
    """Find for each marker (a C stack address of interpreter frames) the native frame whose part of the stack contains
    it.

    Args:
        walk: The unwound frames.
        lanes: (n,) Indices of samples.
        marks: Markers of each sample.
        held: (m,) True for each unwound frame of an interpreter's evaluator.
    """
    n, counts = len(lanes), np.diff(walk.start)[lanes]
    first = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    of_frame = np.repeat(np.arange(n), counts)
    frames = np.arange(first[-1]) + (walk.start[lanes] - first[:-1])[of_frame]
    sp, held = walk.sp[frames], held[frames]
    number = [len(each) for each in marks]
    at_start = np.zeros(n + 1, np.int64)
    np.cumsum(number, out=at_start[1:])
    of_mark = np.repeat(np.arange(n), number)
    mark = np.array([mark for each in marks for mark in each], np.uint64)
    bits = np.uint64(_SP_BITS)
    at = np.searchsorted(of_frame.astype(np.uint64) << bits | sp, of_mark.astype(np.uint64) << bits | mark, "right") - 1
    matched = np.bincount(of_frame[held], minlength=n) == number
    matched[of_frame[1:][(sp[1:] < sp[:-1]) & (of_frame[1:] == of_frame[:-1])]] = False
    matched[of_frame[sp == 0]] = False
    matched[of_mark[(at < first[of_mark]) | (at >= first[of_mark + 1] - 1) | ~held[at]]] = False
    matched[of_mark[1:][(at[1:] <= at[:-1]) & (of_mark[1:] == of_mark[:-1])]] = False
    return _Placed(matched, at - first[of_mark], at_start)
