"""Interning of a batch as nodes of the stack tree: unwind, merge interpreter frames, intern."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.frame_merge import Evaluators
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.marker_frames import KernelStack, Mark, cut_mark
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import Merge, StackTable
from pyprof.model.unwind_result import SharedFrames, StackEnd, Trust, Walk

if TYPE_CHECKING:  # for interpreters only
    from pyprof.session.pipeline.interpreter_merge import MatchedStacks


class Walker(Protocol):
    def walk(self, batch: SampleBatch) -> Walk: ...


class InnermostFrames:
    """A replacement for the unwinder after the worker's deadline: it returns only the innermost frame of each
    sample.
    """

    def walk(self, batch: SampleBatch) -> Walk:
        n, arch = len(batch), batch.arch
        zeros = np.zeros(n, np.uint64)
        return Walk(
            start=np.arange(n + 1),
            pc=batch.regs[:, arch.pc].copy(),
            exact=np.ones(n, np.bool_),
            trust=np.full(n, Trust.CONTEXT, np.uint8),
            sp=batch.regs[:, arch.sp].copy(),
            end=np.full(n, StackEnd.LATE, np.uint8),
            missing=zeros,
            top=zeros,
            lacks_register=np.zeros(n, np.bool_),
        )


class CodeBinder(Protocol):
    """The protocol of an object that finds JIT-compiled functions, which no file describes, at the frames of unwound
    samples.
    """

    def bind_frames(self, batch: SampleBatch, walk: Walk) -> npt.NDArray[np.int32] | None:
        """Return for each frame of a walk the number of its JIT code, or None if no frame lies in such code."""
        ...

    def take_new_functions(self) -> int:
        """Return how many functions of managed runtimes appeared in samples for the first time since the last call."""
        ...

    @property
    def watched(self) -> bool:
        """True if the target registers JIT code in a list that update_code() can read at once."""
        ...

    def update_code(self) -> None:
        """Read which JIT code the target has registered at the present time."""
        ...


class Merger(Protocol):
    """The protocol of the merger of interpreter frames with native stacks."""

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        """Continue unwound native stacks beyond their end, where the interpreter frames prove that there are more
        native frames. Return the completed stacks.
        """
        ...

    def merge(self, batch: SampleBatch, walk: Walk) -> tuple[dict[int, Merge], npt.NDArray[np.int32]]:
        """Find the place of each sample's interpreter frames in its native stack.

        Returns:
            (insertions by sample index, SampleState of each sample).
        """
        ...

    def evaluators(self, batch: SampleBatch) -> dict[int, Evaluators]:
        """Return the code ranges of interpreter evaluators (such as CPython's _PyEval_EvalFrameDefault) in each address
        space of a batch, by the number of the address space.
        """
        ...

    def settled(self, place: FunctionPlace) -> FunctionPlace:
        """Return an interpreter frame with its instruction replaced by the first one on the same source line, so that
        all samples of a line share one frame.
        """
        ...

    def forget(self, space_id: int) -> None: ...


@dataclass(frozen=True)
class Interned:
    """A batch of n samples whose stacks are nodes of the stack tree.

    Attributes:
        walk: The unwound frames of the batch.
        node: (n,) Leaf of each stack.
        state: (n,) SampleState, None if no sample has interpreter frames.
    """

    walk: Walk
    node: npt.NDArray[np.int32]
    state: npt.NDArray[np.int32] | None


class _Merged(NamedTuple):
    """The result of merging interpreter frames into the stacks of a batch. The fields have the same meaning as those of
    Interned.
    """

    walk: Walk
    node: npt.NDArray[np.int32]
    state: npt.NDArray[np.int32]


@dataclass
class Interning:
    """The conversion of a batch's stacks to nodes of the stack tree: it unwinds them, merges interpreter frames, and
    adds the stacks to the tree.

    Attributes:
        walker: Unwinds stacks.
        binder: Finds code that no file describes, None if there is none.
        merger: Merges interpreter frames, None if there are none.
        in_passes: True to merge matching stacks together. False merges one at a time, which defines the correct result.
    """

    walker: Walker
    binder: CodeBinder | None
    merger: Merger | None
    in_passes: bool = True
    _matched: MatchedStacks | None = None

    def with_leaves_only(self) -> Interning:
        """Return a copy of this conversion that finds only the innermost frame of each sample, for use after the
        worker's deadline.
        """
        return replace(self, walker=InnermostFrames(), merger=None)

    def intern(self, batch: SampleBatch, stacks: StackTable) -> Interned:
        """Unwind a batch and add its stacks to the tree. All samples of the batch must have registers."""
        walk = self.walker.walk(batch)
        if not batch.stopped:
            walk.end[(walk.end == StackEnd.UNREADABLE) & (batch.stack.size == 0)] = StackEnd.GONE
        state = None
        if self.merger is not None and batch.chains:
            walk, node, state = self._with_interpreter(self.merger, batch, walk.unshare_frames(), stacks)
        else:
            code = self.binder.bind_frames(batch, walk) if self.binder else None
            cut = _needed(batch, walk)
            node = stacks.intern(walk, batch.space, code, code_of=partial(self._code_of, batch), cut=cut)
        if batch.kernel_stack is not None:
            node = _with_kernel(stacks, node, batch.kernel_stack, batch.kernel_stacks)
        return Interned(walk, node, state)

    def _with_interpreter(self, merger: Merger, batch: SampleBatch, walk: Walk, stacks: StackTable) -> _Merged:
        """Merge native and interpreter stacks of a batch and add them to the tree: first those that match completely,
        then all others one at a time.
        """
        if self._matched is None or self._matched.stacks is not stacks:
            from pyprof.session.pipeline.interpreter_merge import MatchedStacks

            self._matched = MatchedStacks(stacks, merger.settled)
        n = len(batch)
        node, state = np.zeros(n, np.int32), np.zeros(n, np.int32)
        matched: dict[int, int] = {}
        if self.in_passes and (self.binder is None or self.binder.bind_frames(batch, walk) is None):
            matched = self._matched.find(batch, walk, merger.evaluators(batch))
            node[[*matched]] = [*matched.values()]
            state[[*matched]] = [int(batch.chains[lane].state) for lane in matched]
        rest = np.array([lane for lane in range(n) if lane not in matched], np.int64)
        if len(rest):
            part, few = batch.take_samples(rest), walk.take_samples(rest)
            whole = merger.complete(part, few)
            merged, state[rest] = merger.merge(part, whole)
            code = self.binder.bind_frames(part, whole) if self.binder else None
            node[rest] = stacks.intern(whole, part.space, code, merged, cut=_needed(part, whole))
            if whole is not few:
                walk = walk.with_lanes(rest, whole)
        return _Merged(walk, node, state)

    def _code_of(self, batch: SampleBatch, lane: int, frames: SharedFrames) -> npt.NDArray[np.int32] | None:
        """Return the number of the JIT code in which each of some shared frames lies, or None if none of them lies in
        JIT code.

        Args:
            batch: A batch in which several samples share the frames.
            lane: Index of the sample whose time is used, because JIT code changes.
            frames: The shared frames.
        """
        if self.binder is None:
            return None
        none = np.zeros(1, np.uint64)
        walk = Walk(
            np.array([0, len(frames)], np.int64),
            frames.pc,
            frames.exact,
            frames.trust,
            frames.sp,
            np.full(1, StackEnd.ROOT, np.uint8),
            none,
            none,
            np.zeros(1, np.bool_),
        )
        return self.binder.bind_frames(batch.take_samples(np.array([lane], np.int64)), walk)


def _with_kernel(
    stacks: StackTable, nodes: npt.NDArray[np.int32], at: npt.NDArray[np.int32], frames: tuple[KernelStack, ...]
) -> npt.NDArray[np.int32]:
    """Add kernel frames to the innermost end of stacks in the tree.

    Args:
        stacks: The stack tree.
        nodes: (n,) Leaf of each stack.
        at: (n,) Index into `frames` of each stack.
        frames: Kernel stacks.

    Returns:
        (n,) int32 new leaves.
    """
    pairs, place = np.unique(np.stack([nodes, at], axis=1), axis=0, return_inverse=True)
    found = [stacks.extend(node, frames[which]) for node, which in pairs.tolist()]
    return np.array(found, np.int32)[place.ravel()]


def _needed(batch: SampleBatch, walk: Walk) -> dict[int, Mark]:
    """Return marker frames for truncated stacks, by sample index. Each marker recommends an option and its value with
    which the whole stack would be copied.
    """
    found = {}
    for lane in np.flatnonzero((walk.end == StackEnd.UNREADABLE) | (walk.end == StackEnd.DEPTH)).tolist():
        beyond = batch.stack.beyond.get(lane)
        length = beyond.length if beyond is not None else int(batch.stack.size[lane])
        base, end = int(batch.stack.base[lane]), StackEnd(walk.end[lane])
        if end is StackEnd.UNREADABLE and beyond is not None and base <= int(walk.missing[lane]) < base + length:
            found[lane] = cut_mark(end, max(length, beyond.longest))
        elif end is StackEnd.DEPTH:
            first, last = int(walk.start[lane]), int(walk.start[lane + 1])
            span = int(walk.sp[last - 1]) - int(walk.sp[first])
            found[lane] = cut_mark(end, 2 * (last - first) * length // max(span, 1) if 0 < span <= length else 0)
    return found
