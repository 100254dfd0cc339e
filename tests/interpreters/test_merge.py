"""Tests of merging Python frames into native stacks, and of the reports if that fails."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.interpreters.frame_merge import Evaluators, Merged, merge_chain
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.unwind_result import StackEnd

EVALUATOR = 0x1000
"""Start of the evaluator's code, which reaches to 0x2000 in two functions."""


def function_range(pc: int, exact: bool) -> tuple[int, int] | None:
    at = pc if exact else pc - 1
    return (at & ~0x7FF, (at & ~0x7FF) + 0x800) if EVALUATOR <= at < 0x2000 else None


def placed(
    stack: str,
    *markers: int,
    end: StackEnd = StackEnd.ROOT,
    marked: bool = True,
    leaf_exact: bool = True,
    waiting: int = 0,
    marks: tuple[int, ...] = (),
    others: bool = False,
    lacking: int = 0,
    scattered: bool = False,
) -> Merged:
    """Merge runs of Python frames into a stack.

    Args:
        stack: One letter for each frame of 0x100 bytes from leaf to root: E evaluator, C its cold part, n native.
        markers: Marker of each run from leaf to root. Run k has the single frame k.
        end: How the stack ends.
        marked: Whether the runs have markers.
        leaf_exact: Whether the leaf's program counter is exact.
        waiting: Number of outermost runs that are suspended greenlets.
    """
    pcs = [{"E": 0x1010, "C": 0x1810, "n": 0x5000}[letter] for letter in stack]
    sps = [0x100 * (1 + at) for at in range(len(stack))]
    exacts = [at == 0 and leaf_exact for at in range(len(stack))]
    chain = Chain(
        tuple(
            Run(marker, (FunctionPlace(number),), number >= len(markers) - waiting)
            for number, marker in enumerate(markers)
        ),
        SampleState.INTERPRETED,
        "",
        (EVALUATOR,),
        marked,
        marks,
        others,
        lacking,
        0 if scattered else 1 << 20,
        scattered,
    )
    return merge_chain(pcs, sps, exacts, end, chain, Evaluators(function_range))


def numbers(merged: Merged) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the runs inside each native frame."""
    return tuple((at, tuple(place.function for place in places)) for at, places in merged.inserts)


def test_runs_stand_inside_the_frames_whose_stack_holds_their_markers() -> None:
    merged = placed("nEnnEn", 0x210, 0x5F8)
    assert numbers(merged) == ((1, (0,)), (4, (1,)))
    assert not merged.reasons


def test_cold_part_of_the_evaluator_is_found_by_its_marker_alone() -> None:
    assert numbers(placed("nCnE", 0x210, 0x410, end=StackEnd.NO_RULE)) == ((1, (0,)), (3, (1,)))


def test_evaluator_without_run_is_counted() -> None:
    merged = placed("nEnnEnn", 0x210)
    assert (merged.without_run, merged.reasons) == (1, SampleState.NO_RUN)
    assert numbers(merged) == ((1, (0,)),)


def test_function_with_a_stray_marker_is_no_evaluator_on_later_stacks() -> None:
    evaluators = Evaluators(lambda pc, exact: ((pc - (not exact)) & ~0xFF, ((pc - (not exact)) & ~0xFF) + 0x100))
    pcs, sps = [0x3010, 0x1010, 0x5010, 0x4010], [0x100, 0x200, 0x300, 0x400]

    def without_run(*markers: int) -> int:
        runs = tuple(Run(marker, (FunctionPlace(1),), False) for marker in markers)
        chain = Chain(runs, SampleState.INTERPRETED, "", (0x1000,), True)
        return merge_chain(pcs, sps, [False] * 4, StackEnd.ROOT, chain, evaluators).without_run

    assert [without_run(0x210) for _ in range(3)] == [0, 0, 0]
    at = np.array([0x3010, 0x1010, 0x5010], np.uint64)
    assert evaluators.mask_evaluator(at).tolist() == [False, True, False]
    assert without_run(0x210, 0x310) == 0  # a greenlet switched during the sample
    assert evaluators.mask_evaluator(at).tolist() == [False, True, True]
    assert [without_run(0x210) for _ in range(3)] == [1, 0, 0]
    assert [without_run(0x10) for _ in range(3)] == [1, 1, 1]  # the evaluator symbol is always one


def test_evaluator_at_the_leaf_may_be_about_to_enter_its_frame() -> None:
    assert not placed("EnnEn", 0x410).reasons
    assert not placed("nEnEn", 0x410).reasons
    assert placed("nnnnEnEn", 0x710).reasons == SampleState.NO_RUN


def test_innermost_run_without_marker_belongs_to_the_evaluator_that_it_leaves() -> None:
    merged = placed("EnnEn", 0, 0x410)
    assert numbers(merged) == ((0, (0,)), (3, (1,)))
    assert not merged.reasons


def test_run_beyond_a_stack_that_is_cut_short_stands_outside() -> None:
    merged = placed("nEn", 0x210, 0x9000, end=StackEnd.UNREADABLE)
    assert numbers(merged) == ((1, (0,)), (3, (1,)))
    assert (merged.unplaced, merged.reasons) == (1, SampleState.NATIVE_CUT)


def test_run_in_no_frame_stands_by_its_order() -> None:
    merged = placed("nEnEn", 0x210, 0x50, 0x410)
    assert numbers(merged) == ((1, (0,)), (2, (1,)), (3, (2,)))
    assert (merged.unplaced, merged.reasons) == (1, SampleState.NO_PLACE)


def test_without_markers_each_activation_has_one_frame() -> None:
    merged = placed("nEnnEnEn", 0, 0, 0, marked=False)
    assert numbers(merged) == ((1, (0,)), (4, (1,)), (6, (2,)))
    assert not merged.reasons


def test_without_markers_the_root_is_where_counting_begins() -> None:
    merged = placed("nEnnEnEn", 0, 0, marked=False)
    assert numbers(merged) == ((4, (0,)), (6, (1,)))


def test_without_markers_a_stack_that_is_cut_short_is_counted_from_its_leaf() -> None:
    merged = placed("nEnE", 0, 0, 0, end=StackEnd.UNREADABLE, marked=False)
    assert numbers(merged) == ((1, (0,)), (3, (1,)), (4, (2,)))
    assert merged.reasons == SampleState.NATIVE_CUT


def test_run_that_waits_stands_in_its_evaluator() -> None:
    merged = placed("nEnnEn", 0x210, 0x5F8, waiting=1)
    assert numbers(merged) == ((1, (0,)), (4, (1,)))
    assert not merged.reasons


def test_run_that_waits_in_no_evaluator_is_a_memory_of_one_that_was_left() -> None:
    merged = placed("nEnnEn", 0x210, 0x410, 0x5F8, waiting=2)
    assert numbers(merged) == ((1, (0,)), (4, (2,)))
    assert not merged.reasons


def test_mark_with_which_a_greenlet_begins_belongs_to_no_run() -> None:
    merged = placed("nEnEnnEn", 0x420, 0x520, marks=(0x220, 0x420, 0x520), others=True)
    assert numbers(merged) == ((1, (0,)), (3, (1,)))
    assert (merged.without_run, merged.unplaced) == (1, 0)


def test_mark_of_an_evaluator_that_enters_belongs_to_no_run() -> None:
    merged = placed("nEnEnEn", 0x420, 0x620, marks=(0x220, 0x420, 0x620))
    assert numbers(merged) == ((3, (0,)), (5, (1,)))
    assert not merged.reasons


def test_without_markers_greenlets_are_counted_from_the_leaf() -> None:
    merged = placed("nEnnEnEn", 0, 0, marked=False, others=True)
    assert numbers(merged) == ((1, (0,)), (4, (1,)))
    assert (merged.without_run, merged.reasons) == (1, SampleState.NO_RUN)


def test_outermost_run_of_a_chain_that_is_too_long_stands_in_the_next_evaluator() -> None:
    merged = placed("nEnnEnnEnn", 0x210, 0, lacking=700)
    assert numbers(merged) == ((1, (0,)), (4, (1,)))
    assert (merged.unplaced, merged.without_run) == (0, 0)
    assert merged.reasons == SampleState.LONG_CHAIN
    assert merged.mark is not None
    assert merged.mark.title == "[truncated: about 700 functions, --stack-size 1M copies them]"


def test_evaluator_inside_the_runs_of_a_chain_that_is_too_long_still_lacks_its_run() -> None:
    merged = placed("nnnEnEnEn", 0x610, 0, lacking=700)
    assert (merged.without_run, merged.reasons) == (1, SampleState.LONG_CHAIN | SampleState.NO_RUN)


def test_runs_beyond_those_whose_marks_were_copied_stand_in_the_next_evaluators() -> None:
    merged = placed("nEnEnEnEn", 0x210, 0, 0, lacking=700)
    assert numbers(merged) == ((1, (0,)), (3, (1,)), (5, (2,)))
    assert (merged.unplaced, merged.without_run, merged.reasons) == (0, 0, SampleState.LONG_CHAIN)


def test_without_markers_a_chain_that_is_too_long_is_counted_from_the_leaf() -> None:
    merged = placed("nEnEnEnEn", 0, 0, marked=False, lacking=700)
    assert numbers(merged) == ((1, (0,)), (3, (1,)))
    assert (merged.unplaced, merged.without_run, merged.reasons) == (0, 0, SampleState.LONG_CHAIN)


@pytest.mark.parametrize("marked", [False, True])
def test_functions_that_no_option_copies_are_as_many_as_activations_at_least(marked: bool) -> None:
    markers = (0x210, 0x410) if marked else (0, 0)
    for end, stack, title in (
        (StackEnd.ROOT, "n" + 1230 * "En", "1,000"),
        (StackEnd.ROOT, "n" + 40 * "En", "700"),
        (StackEnd.UNREADABLE, "n" + 1230 * "En", "700"),
    ):
        merged = placed(stack, *markers, end=end, marked=marked, lacking=765, scattered=True)
        assert numbers(merged) == ((1, (0,)), (3, (1,)))
        assert merged.reasons == SampleState.LONG_CHAIN
        assert merged.mark is not None
        assert merged.mark.title == f"[truncated: more than {title} functions, too many to read one by one]"
