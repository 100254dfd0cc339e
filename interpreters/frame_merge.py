"""Placement of interpreter frames in an unwound native stack, by stack address.

Each run of interpreter frames carries a marker: an address on the C stack of the evaluator call that runs it. Exactly
one unwound frame has sp <= marker < CFA. The run belongs just inside that frame, whatever the frame's function is
called and whatever other frames are lost. CPython versions without markers have one evaluator call for each frame; the
address range of its FDE identifies it.

The input is the native frames of one sample (pc, sp, exact), the reason why the walk ended, and the interpreter's
frames (a Chain). The output is a Merged. No run is dropped: a run without a place keeps its order among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.marker_frames import Mark, MarkKind, long_chain_mark, scattered_mark
from pyprof.model.stacks import Inserts
from pyprof.model.unwind_result import StackEnd

_SYMBOL = 1 << 62
"""Weight of the evidence that an evaluator's symbol gives; no number of observed stacks outweighs it."""

_MAX_FOUND = 1 << 12

FunctionRange = Callable[[int, bool], tuple[int, int] | None]
"""Function that maps (pc, exact) to the avma range of the function that holds pc, according to the unwind tables."""


NOTHING = SampleState(0)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of merge_chain(): the places of interpreter frames in one native stack, and what did not match.

    Attributes:
        inserts: Interpreter frames, each with the index of the native frame inside which it belongs, as StackTable
            takes them. An index equal to the number of native frames means outside all of them.
        unplaced: Number of runs (frames of one evaluator call) that are placed by their order only.
        without_run: Number of evaluator calls without interpreter frames.
        reasons: Bits of model.interpreter_frames.PARTIAL, none if all was matched.
        lacking: Approximate number of missing outermost frames (model.interpreter_frames.Chain.lacking).
        enough: Value of --stack-size that would copy all frames, in bytes; 0 if none would.
        scattered: True if no option would copy the missing frames.
    """

    inserts: Inserts
    unplaced: int = 0
    without_run: int = 0
    reasons: SampleState = NOTHING
    lacking: int = 0
    enough: int = 0
    scattered: bool = False

    @property
    def mark(self) -> Mark | None:
        """Marker frame that heads a stack with an incomplete merge of interpreter frames, None if all frames were
        matched.
        """
        if not self.reasons:
            return None
        if self.scattered:
            return scattered_mark(self.lacking)
        if self.lacking:
            return long_chain_mark(self.lacking, self.enough)
        return Mark(MarkKind.MERGE, unplaced=self.unplaced, without_run=self.without_run)


class Evaluators:
    """The code ranges of one process's interpreter evaluator: those of its symbols and of functions in which markers
    lay.

    Compilers split the evaluator, and its symbol may cover only the smaller part. An outdated marker may lie in any
    function, so a function that was on stacks without interpreter frames as often as with them does not count as an
    evaluator.
    """

    def __init__(self, function_range: FunctionRange) -> None:
        self._function_range = function_range
        self._found: dict[tuple[int, bool], tuple[int, int] | None] = {}
        self._ranges: set[tuple[int, int]] = set()
        self._weights: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, bool], bool] = {}
        self._symbols: tuple[int, ...] = ()

    def learn_function(self, pc: int, exact: bool, weight: int = 1) -> None:
        """Count an observation for or against the assumption that the function at a pc is an interpreter's evaluator.

        Args:
            weight: 1 if a marker lay in the function's native frame, -1 if the function was on a stack and no
                interpreter frames belonged to it.
        """
        found = self.find_function(pc, exact)
        if found is None:
            return
        self._weights[found] = weight = self._weights.get(found, 0) + weight
        if (weight > 0) != (found in self._ranges):
            self._ranges ^= {found}
            self._known.clear()

    def find_function(self, pc: int, exact: bool) -> tuple[int, int] | None:
        """Return the address range of the function that holds pc, or None if no unwind table covers it. Results are
        cached.
        """
        key = (pc, exact)
        if key not in self._found:
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            self._found[key] = self._function_range(pc, exact)
        return self._found[key]

    def mask_evaluator(self, at: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the code addresses that lie in the interpreter's evaluator. The caller must have decremented
        return addresses by one.
        """
        found = np.zeros(len(at), np.bool_)
        for start, end in self._ranges:
            found |= (at >= np.uint64(start)) & (at < np.uint64(end))
        return found

    def learn_symbols(self, pcs: tuple[int, ...]) -> None:
        if pcs != self._symbols:
            self._symbols = pcs
            for pc in pcs:
                self.learn_function(pc, True, _SYMBOL)

    def __call__(self, pc: int, exact: bool) -> bool:
        key = (pc, exact)
        known = self._known.get(key)
        if known is None:
            at = pc if exact else pc - 1
            known = self._known[key] = any(start <= at < end for start, end in self._ranges)
        return known


def merge_chain(
    pcs: Sequence[int], sps: Sequence[int], exacts: Sequence[bool], end: StackEnd, chain: Chain, evaluators: Evaluators
) -> Merged:
    """Place the frames of an interpreter in a native stack, one run (the frames of one evaluator call) after the other.

    Args:
        pcs: Addresses of the native frames, innermost first.
        sps: Stack pointers of the native frames, 0 where not known.
        exacts: True for frames whose pc is not a return address.
        end: How the native walk ended.
        chain: The interpreter frames of the thread, grouped into runs.
        evaluators: Code ranges of the process's evaluator.
    """
    evaluators.learn_symbols(chain.evaluators)
    if chain.marked:
        found = _by_markers(pcs, sps, exacts, end, chain, evaluators)
    else:
        found = _by_count(pcs, exacts, end, chain, evaluators)
    if not chain.lacking:
        return found
    reasons = found.reasons | SampleState.LONG_CHAIN
    if not chain.scattered:
        return replace(found, reasons=reasons, lacking=chain.lacking, enough=chain.enough)
    count = sum(map(evaluators, pcs, exacts)) if end == StackEnd.ROOT else 0
    return replace(found, reasons=reasons, lacking=max(chain.lacking, count), scattered=True)


def _by_markers(
    pcs: Sequence[int], sps: Sequence[int], exacts: Sequence[bool], end: StackEnd, chain: Chain, evaluators: Evaluators
) -> Merged:
    inserts: list[tuple[int, tuple[FunctionPlace, ...]]] = []
    reasons = SampleState.BROKEN_CHAIN if chain.problem else SampleState(0)
    unplaced, outside = 0, 0
    owners: set[int] = set()
    count = len(pcs)
    runs = _marked(chain, pcs, sps, exacts, evaluators) if chain.marks else chain.runs
    for nth, run in enumerate(runs):
        if run.marker:
            at = find_frame(run.marker, sps, outside)
        elif chain.lacking and (nth or len(runs) == 1):  # markers are copied of the innermost runs only
            at = next((at for at in range(outside, count) if evaluators(pcs[at], exacts[at])), -1)
        else:
            at = _leaving(runs[nth + 1 :], pcs, sps, exacts, evaluators) if nth == 0 else -1
        if at < 0 and count > outside and run.marker and run.marker >= sps[-1] > 0 and evaluators(pcs[-1], exacts[-1]):
            at = count - 1  # the native stack is truncated at the evaluator itself
        if run.waits and count and run.marker < max(sps) and not (at >= 0 and evaluators(pcs[at], exacts[at])):
            continue  # the evaluator call has ended
        if at < 0:
            unplaced += 1
            beyond = bool(run.marker) and count > 0 and run.marker >= max(sps)
            if not run.marker:
                reasons |= SampleState.NO_MARKER
            else:
                reasons |= SampleState.NATIVE_CUT if beyond and end != StackEnd.ROOT else SampleState.NO_PLACE
            at = count if beyond else outside
            outside = at
        else:
            owners.add(at)
            outside = at + 1
            evaluators.learn_function(pcs[at], exacts[at])
        if run.frames:
            inserts.append((at, run.frames))
    idle = [at for at in range(count) if at not in owners and evaluators(pcs[at], exacts[at])]
    if idle and _at_border(idle[0], exacts) and idle[0] < min(owners, default=count):
        del idle[0]
    if chain.lacking:  # the runs that are missing from the chain
        idle = [at for at in idle if at < outside]
    without = len(idle)
    if without:
        reasons |= SampleState.NO_RUN
    if not (chain.problem or chain.lacking):
        for at in idle:
            evaluators.learn_function(pcs[at], exacts[at], -1)
    return Merged(_joined(inserts), unplaced, without, reasons)


def _marked(
    chain: Chain, pcs: Sequence[int], sps: Sequence[int], exacts: Sequence[bool], evaluators: Evaluators
) -> Sequence[Run]:
    """Assign the C stack markers that lie in native frames of the evaluator to the runs of interpreter frames, and
    return the runs.

    There may be one marker more than runs: the evaluator writes the marker before it enters the frame, and a greenlet
    begins with a separate marker.
    """
    places = [(mark, find_frame(mark, sps, 0)) for mark in chain.marks]
    marks = [mark for mark, at in places if at >= 0 and evaluators(pcs[at], exacts[at])]
    surplus = len(marks) - len(chain.runs)
    if surplus not in (0, 1):
        return chain.runs
    return [replace(run, marker=mark) for run, mark in zip(chain.runs, marks[surplus:], strict=True)]


def _at_border(at: int, exacts: Sequence[bool]) -> bool:
    """Return True if the evaluator in a native frame may be about to enter its Python frame, or may just have left it.

    The evaluator is then the leaf of the stack, or has called one of the few functions that it calls at these points.
    """
    return at <= _BORDER and exacts[0] and not any(exacts[1 : at + 1])


_BORDER = 2


def _leaving(
    others: Sequence[Run], pcs: Sequence[int], sps: Sequence[int], exacts: Sequence[bool], evaluators: Evaluators
) -> int:
    """Return the index of the evaluator's native frame that has just removed the marker of the innermost run from the C
    stack. -1 if there is none.

    That frame is the only evaluator frame inside the native frame of the next outer run. If there are several, the
    result is -1.
    """
    end = next((find_frame(run.marker, sps, 0) for run in others if run.marker), -1)
    places = [at for at in range(max(end, 0)) if evaluators(pcs[at], exacts[at])]
    return places[0] if len(places) == 1 and _at_border(places[0], exacts) else -1


def find_frame(marker: int, sps: Sequence[int], first: int) -> int:
    """Return the index of the native frame whose part of the stack holds the marker, -1 if none does.

    Stack pointers ascend, except where a signal handler or a coroutine switched to another stack. The last frame is
    never returned: where its part of the stack ends is not known.
    """
    count = len(sps)
    for at in range(first, count - 1):
        if sps[at] <= marker < sps[at + 1] and sps[at]:
            return at
    return -1


def _by_count(
    pcs: Sequence[int], exacts: Sequence[bool], end: StackEnd, chain: Chain, evaluators: Evaluators
) -> Merged:
    """Place interpreter frames that have no markers: assign one native frame of the evaluator to each of them, in
    order.

    If the numbers differ, the assignment starts at that end of the stack which is complete.
    """
    places = [at for at in range(len(pcs)) if evaluators(pcs[at], exacts[at])]
    runs = chain.runs
    reasons = SampleState.BROKEN_CHAIN if chain.problem else SampleState(0)
    entering = bool(places) and _at_border(places[0], exacts)
    if end == StackEnd.ROOT and not chain.lacking and not (chain.others and len(places) > len(runs)):
        if len(places) == len(runs) + 1 and entering:
            places = places[1:]  # the function has not entered its frame yet, or has left it
        surplus = len(runs) - len(places)
        pairs = list(zip(reversed(runs), reversed(places), strict=False))[::-1]
        inserts = [(0, run.frames) for run in runs[: max(surplus, 0)]] + [(at, run.frames) for run, at in pairs]
        unplaced, without = max(surplus, 0), max(-surplus, 0)
        if unplaced:
            reasons |= SampleState.NO_PLACE
        if without:
            reasons |= SampleState.NO_RUN
        return Merged(_joined(inserts), unplaced, without, reasons)
    inserts = [(at, run.frames) for run, at in zip(runs, places, strict=False)]
    rest = runs[len(places) :]
    inserts += [(len(pcs), run.frames) for run in rest]
    without = max(len(places) - len(runs), 0) if chain.others else 0
    if rest:
        reasons |= SampleState.NATIVE_CUT
    if without:
        reasons |= SampleState.NO_RUN
    return Merged(_joined(inserts), len(rest), without, reasons)


def _joined(inserts: list[tuple[int, tuple[FunctionPlace, ...]]]) -> Inserts:
    """Return several lists of insertions into a native stack as one list, with one entry for each native frame,
    ascending.
    """
    joined: dict[int, tuple[FunctionPlace, ...]] = {}
    for at, frames in inserts:
        joined[at] = joined.get(at, ()) + frames
    return tuple(sorted((at, frames) for at, frames in joined.items() if frames))
