"""Tests of walks that end although the interpreter's marks show that the stack continues."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from pyprof.interpreters.frame_merge import Evaluators
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.continue_stack_at_interpreter import EvaluatorResume
from pyprof.unwind.unwinder import Unwinder
from tests.interpreters.test_merge import EVALUATOR, function_range
from tests.perf.test_partial_stops import feedback

TOP = 0x300


def completed(end: StackEnd, waiting: int) -> Walk:
    """Complete a walk of the evaluator and its caller, whose stack ends at TOP.

    Args:
        end: How the walk ends.
        waiting: Mark of a suspended greenlet.
    """
    own, other = (Run(mark, (FunctionPlace(mark),), mark == waiting) for mark in (0x150, waiting))
    chain = Chain((own, other), SampleState.INTERPRETED, "", (EVALUATOR,), marked=True)
    batch = replace(feedback([1], 0).batch, chains={0: chain})
    walk = Walk(
        start=np.array([0, 2]),
        pc=np.array([EVALUATOR + 0x10, 0x5000], np.uint64),
        exact=np.array([True, False]),
        trust=np.full(2, Trust.CONTEXT, np.uint8),
        sp=np.array([0x100, 0x200], np.uint64),
        end=np.array([end], np.uint8),
        missing=np.zeros(1, np.uint64),
        top=np.array([TOP], np.uint64),
        lacks_register=np.zeros(1, np.bool_),
    )
    evaluators = Evaluators(function_range)
    return EvaluatorResume(cast(Unwinder, None), lambda batch, space: evaluators, Diagnostics()).complete(batch, walk)


@pytest.mark.parametrize("waiting", [TOP, 0x900])
def test_stack_outside_which_an_activation_waits_does_not_end_at_its_root(waiting: int) -> None:
    """Walk a greenlet's first frame, which returns to stale words, one of which may be zero."""
    walk = completed(StackEnd.ROOT, waiting)
    assert StackEnd(walk.end[0]) == StackEnd.NO_RULE
    assert walk.top[0] > waiting
    assert walk.pc.tolist() == [EVALUATOR + 0x10, 0x5000]


@pytest.mark.parametrize(("end", "waiting"), [(StackEnd.ROOT, 0x280), (StackEnd.UNREADABLE, 0x900)])
def test_end_of_other_stacks_stays_what_it_is(end: StackEnd, waiting: int) -> None:
    walk = completed(end, waiting)
    assert StackEnd(walk.end[0]) == end
    assert walk.top[0] == TOP
