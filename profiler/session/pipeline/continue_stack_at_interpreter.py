"""Continues an unwound stack at an evaluator frame of the interpreter if the unwinder stopped or went wrong before it.

A walk stops or goes wrong in JIT code without unwind tables (CPython 3.14), or at the first frame of a greenlet whose
caller has continued. The interpreter's data has an address on the C stack of each call of its evaluator (the marker),
at a fixed distance from the call's CFA. If a marker of the sample lies in no evaluator frame, the CFA of the missing
frame follows from the marker, and the walk continues there. The distance is measured on evaluator calls that were
unwound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.frame_merge import Evaluators, find_frame
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.interpreter_frames import Chain, Run
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.unwinder import Unwinder

_T = TypeVar("_T", np.uint64, np.uint8, np.bool_)

RESUMED = "stack_resumed_at_evaluator"
_MAX_ROUNDS = 16
_MAX_FRAME = 1 << 16


@dataclass(frozen=True, slots=True)
class ActivationShape:
    """The layout of one native frame of an interpreter's evaluator, measured on an unwound stack.

    Attributes:
        pc: Return address of the frame.
        size: Bytes from its stack pointer to its CFA.
        distance: Bytes from the interpreter's marker in the frame (an address on the C stack that the interpreter
            stores) to the CFA.
    """

    pc: int
    size: int
    distance: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """The place in an unwound stack from which unwinding starts again, at an evaluator frame.

    Attributes:
        lane: Index of the sample.
        keep: Number of innermost frames that are kept.
        cfa: CFA of the evaluator frame.
        shape: Layout of the evaluator frame.
    """

    lane: int
    keep: int
    cfa: int
    shape: ActivationShape


@dataclass(frozen=True, slots=True)
class _Frames:
    """The unwound frames of one sample, in arrays that do not belong to a batch."""

    pc: list[int]
    sp: list[int]
    exact: list[bool]
    trust: list[int]
    end: int
    missing: int
    top: int
    lacks: bool


class EvaluatorResume:
    """A step that starts unwinding again at an interpreter's evaluator frame, if a native stack ended or went wrong
    before that frame.

    Args:
        unwinder: Unwinds the rest of a stack.
        evaluators: (batch, AddressSpace.id) -> the evaluators of that address space.
        diagnostics: Counts continued walks.
    """

    def __init__(
        self, unwinder: Unwinder, evaluators: Callable[[SampleBatch, int], Evaluators], diagnostics: Diagnostics
    ) -> None:
        self._unwinder = unwinder
        self._diagnostics = diagnostics
        self._evaluators = evaluators
        self._shapes: dict[int, ActivationShape] = {}

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        changed: dict[int, _Frames] = {}
        tried: dict[int, int] = {}
        lanes = [lane for lane, chain in batch.chains.items() if chain.marked and chain.runs and not chain.marks]
        for lane in lanes:
            if int(batch.space[lane]) not in self._shapes:
                self._cut(batch, lane, _lane(walk, lane), 0)
        for _ in range(_MAX_ROUNDS):
            cuts = []
            for lane in lanes:
                frames = changed.get(lane) or _lane(walk, lane)
                cut = self._cut(batch, lane, frames, tried.get(lane, 0))
                if cut is not None:
                    tried[lane] = cut.cfa
                    cuts.append((cut, frames))
            if not cuts:
                break
            further = self._walk(batch, [cut for cut, _ in cuts])
            lanes = []
            for at, (cut, frames) in enumerate(cuts):
                rest = _lane(further, at)
                if len(rest.pc) > 1:
                    changed[cut.lane] = self._joined(batch, frames, cut, rest)
                    lanes.append(cut.lane)
        if changed:
            self._diagnostics.count(RESUMED, len(changed))
        changed |= _without_root(batch, walk, changed)
        return _replaced(walk, changed) if changed else walk

    def forget(self, space_id: int) -> None:
        self._shapes.pop(space_id, None)

    def _cut(self, batch: SampleBatch, lane: int, frames: _Frames, beyond: int) -> _Cut | None:
        """Find the first marker of interpreter frames on the stack that lies in no native frame of the evaluator, and
        return the place to continue from.

        Args:
            batch: The samples.
            lane: Index of the sample.
            frames: Its frames so far.
            beyond: CFA of the last place at which unwinding was continued. Only frames outside of it are considered.

        Returns:
            The place where the walk continues, None if there is none.
        """
        chain: Chain = batch.chains[lane]
        space = int(batch.space[lane])
        evaluators = self._evaluators(batch, space)
        evaluators.learn_symbols(chain.evaluators)
        sps, count = frames.sp, len(frames.sp)
        first = last = 0
        for run in chain.runs:
            if not run.marker:
                continue
            at = find_frame(run.marker, sps, first)
            if at >= 0 and _holds(frames, at, run, evaluators):
                if not run.waits:
                    evaluators.learn_function(frames.pc[at], frames.exact[at])
                size = sps[at + 1] - sps[at]
                walked = Trust.INTERPRETER not in frames.trust[at : at + 2]
                if at and walked and size < _MAX_FRAME and evaluators(frames.pc[at], frames.exact[at]):
                    self._shapes[space] = ActivationShape(frames.pc[at], size, sps[at + 1] - run.marker)
                first = last = at + 1
                continue
            shape = self._shapes.get(space)
            if shape is None or count == 0 or frames.lacks:  # stopping the thread will provide the missing register
                return None
            if at < 0 and run.marker >= sps[-1] > 0 and evaluators(frames.pc[-1], frames.exact[-1]):
                return None
            idle = any(evaluators(frames.pc[n], frames.exact[n]) for n in range(last, count))
            if run.waits and frames.end == StackEnd.ROOT and not idle and run.marker < frames.top:
                return None  # the evaluator call has returned, and its memory is not overwritten yet
            cfa = run.marker + shape.distance
            if cfa <= beyond:
                return None
            keep = last if run.waits and last else _inside(sps, cfa - shape.size)
            return _Cut(lane, keep, cfa, shape) if keep else None
        return None

    def _walk(self, batch: SampleBatch, cuts: list[_Cut]) -> Walk:
        part = batch.take_samples(np.array([cut.lane for cut in cuts], np.int64))
        regs = np.zeros_like(part.regs)
        arch = batch.arch
        regs[:, arch.pc] = [cut.shape.pc - 1 for cut in cuts]
        regs[:, arch.sp] = [cut.cfa - cut.shape.size for cut in cuts]
        regs[:, arch.fp] = [cut.cfa - 2 * arch.word for cut in cuts]
        return self._unwinder.walk(
            replace(part, regs=regs, kind=np.full_like(part.kind, SampleKind.STOPPED), chains={})
        )

    def _joined(self, batch: SampleBatch, inner: _Frames, cut: _Cut, outer: _Frames) -> _Frames:
        """Join the frames of a sample inside an evaluator frame, the evaluator frame itself, and those outside.

        The pc in the evaluator frame is unknown. The frame gets the start address of its function.
        """
        space = batch.spaces[int(batch.space[cut.lane])]
        function = self._unwinder.function_range(batch.arch, space, cut.shape.pc, False)
        pc = function[0] if function else cut.shape.pc - 1
        n = cut.keep
        return _Frames(
            [*inner.pc[:n], pc, *outer.pc[1:]],
            inner.sp[:n] + outer.sp,
            [*inner.exact[:n], True, *outer.exact[1:]],
            [*inner.trust[:n], int(Trust.INTERPRETER), *outer.trust[1:]],
            outer.end,
            outer.missing,
            outer.top,
            outer.lacks,
        )


def _without_root(batch: SampleBatch, walk: Walk, changed: Mapping[int, _Frames]) -> dict[int, _Frames]:
    """Find stacks that seem to end at a root although a suspended evaluator call lies outside of it.

    Unused stack words next to that call are zero and look like a root. These stacks must be copied up to the waiting
    evaluator call.

    Returns:
        The frames without the false root, by sample index.
    """
    found = {}
    for lane, chain in batch.chains.items():
        waits = max((run.marker for run in chain.runs if run.waits), default=0)
        if waits:
            frames = changed.get(lane) or _lane(walk, lane)
            if frames.end == StackEnd.ROOT and waits >= frames.top:
                found[lane] = replace(frames, end=int(StackEnd.NO_RULE), top=waits + batch.arch.word)
    return found


def _inside(sps: Sequence[int], sp: int) -> int:
    """Return how many of the innermost frames of a stack have a stack pointer below an address."""
    for at, known in enumerate(sps):
        if known >= sp:
            return at
    return len(sps)


def _lane(walk: Walk, lane: int) -> _Frames:
    part = slice(int(walk.start[lane]), int(walk.start[lane + 1]))
    return _Frames(
        walk.pc[part].tolist(),
        walk.sp[part].tolist(),
        walk.exact[part].tolist(),
        walk.trust[part].tolist(),
        int(walk.end[lane]),
        int(walk.missing[lane]),
        int(walk.top[lane]),
        bool(walk.lacks_register[lane]),
    )


def _replaced(walk: Walk, changed: dict[int, _Frames]) -> Walk:
    """Return a copy of an unwound batch with the frames of some samples replaced.

    Args:
        walk: The unwound batch.
        changed: New frames by sample index.
    """
    counts = np.diff(walk.start)
    end, missing, top, lacks = walk.end.copy(), walk.missing.copy(), walk.top.copy(), walk.lacks_register.copy()
    for lane, frames in changed.items():
        counts[lane] = len(frames.pc)
        end[lane], missing[lane], top[lane], lacks[lane] = frames.end, frames.missing, frames.top, frames.lacks
    ordered = sorted(changed)

    def spliced(old: npt.NDArray[_T], new: list[list[int]] | list[list[bool]]) -> npt.NDArray[_T]:
        parts: list[npt.NDArray[_T]] = []
        at = 0
        for lane, values in zip(ordered, new, strict=True):
            parts += [old[at : int(walk.start[lane])], np.array(values, old.dtype)]
            at = int(walk.start[lane + 1])
        return np.concatenate([*parts, old[at:]])

    return Walk(
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        pc=spliced(walk.pc, [changed[lane].pc for lane in ordered]),
        exact=spliced(walk.exact, [changed[lane].exact for lane in ordered]),
        trust=spliced(walk.trust, [changed[lane].trust for lane in ordered]),
        sp=spliced(walk.sp, [changed[lane].sp for lane in ordered]),
        end=end,
        missing=missing,
        top=top,
        lacks_register=lacks,
    )


def _holds(frames: _Frames, at: int, run: Run, evaluators: Evaluators) -> bool:
    """Return True if a native frame is the evaluator call that executes a given run of interpreter frames.

    The caller has checked that the frame's part of the stack contains the run's marker. JIT code without unwind tables
    does not count: its frame seems to contain the marker, because it was unwound with the evaluator's frame pointer.
    """
    pc, exact = frames.pc[at], frames.exact[at]
    if evaluators(pc, exact):
        return True
    return not run.waits and evaluators.find_function(pc, exact) is not None
