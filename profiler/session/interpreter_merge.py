"""Merges interpreter frames into the walks of a batch, one stack at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.frame_merge import Evaluators, merge_chain
from pyprof.model.columns import distinct
from pyprof.model.interpreter_state import FunctionPlace, SampleState
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import Merge
from pyprof.model.walk import StackEnd, Walk
from pyprof.session.resume_at_evaluator import EvaluatorResume
from pyprof.unwind.unwinder import Unwinder

_MAX_SETTLED = 1 << 16


class ChainMerger:
    """Merger of interpreter frames with native stacks, one stack at a time.

    It replaces the instruction of an interpreter frame by the first one of its source line. A service executes each of
    its functions at some ten instructions, so there would otherwise be ten times as many stacks.
    """

    def __init__(
        self, unwinder: Unwinder, diagnostics: Diagnostics, settle: Callable[[FunctionPlace], FunctionPlace]
    ) -> None:
        """Create a merger of interpreter frames into native stacks.

        Args:
            unwinder: Continues walks and finds the bounds of functions.
            diagnostics: Counts incomplete chains.
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
