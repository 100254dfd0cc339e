"""Tests of the condition under which a dump is complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyprof.collectors.base import Feedback
from pyprof.model.sample_batch import SampleBatch
from pyprof.session.thread_dump import DumpCompletion
from tests.session.test_sample_windows import BLOCKED, STOPPED, UNCHANGED, batch

STACK, REGISTER = "memory that was not copied", "a register that was not known"


def taken(
    batches: Sequence[SampleBatch], lacking: Sequence[str], threads: set[int], walked: bool = True, most_s: float = 60
) -> int:
    """Return the number of batches until the dump is complete.

    Args:
        batches: Batches of the collector.
        lacking: What the walks of each batch lack, "" for nothing.
        threads: Ids of all threads.
        walked: Whether walks return feedback.
        most_s: Maximum time in seconds.
    """
    completion = DumpCompletion(lambda: threads, most_s)
    assert not completion.is_complete()
    for given, (each, lacks) in enumerate(zip(batches, lacking, strict=True), 1):
        completion.note_batch(each)
        live = each.take_samples(np.flatnonzero(each.kind < UNCHANGED))
        if walked and len(live):
            zeros = np.zeros(len(live), np.uint64)
            missing, stop = zeros + np.uint64(0x7000 * (lacks == STACK)), np.full(len(live), lacks == REGISTER)
            completion.note_feedback(Feedback(live, zeros, missing, stop))
        if completion.is_complete():
            return given
    return len(batches)


ONE, TWO = batch((STOPPED, 1, 0x10)), batch((STOPPED, 2, 0x10))
SLEPT, SAME = batch((BLOCKED, 1, 0x10)), batch((UNCHANGED, 1, 0))


@pytest.mark.parametrize(
    ("batches", "lacking", "threads", "expected"),
    [
        ([ONE, ONE], ["", ""], {1}, 1),
        ([ONE, TWO, ONE], ["", "", ""], {1, 2}, 2),
        ([ONE, ONE, ONE], [STACK, "", ""], {1}, 2),
        ([SLEPT, ONE, ONE], [REGISTER, "", ""], {1}, 2),
        ([SLEPT, SAME, ONE, ONE], [REGISTER, "", "", ""], {1}, 3),
        ([ONE] * 20, [STACK] * 20, {1}, 12),
        ([ONE] * 20, [""] * 20, {1, 2}, 20),
    ],
    ids=["whole", "each thread", "cut", "lacks a register", "did not run since", "never whole", "never sampled"],
)
def test_it_ends_when_each_thread_has_a_whole_stack_or_more_do_not_help(
    batches: Sequence[SampleBatch], lacking: Sequence[str], threads: set[int], expected: int
) -> None:
    assert taken(batches, lacking, threads) == expected


def test_stack_whose_walk_is_not_known_yet_is_not_whole() -> None:
    assert taken([ONE, SAME, SAME], ["", "", ""], {1}, walked=False) == 3


def test_thread_that_never_comes_is_waited_for_so_long_only() -> None:
    assert taken([ONE] * 5, [""] * 5, {1, 2}, most_s=-1) == 1
