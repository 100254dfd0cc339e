"""Tests of the condition under which a dump is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from pyprof.collectors.base import Feedback
from pyprof.model.sample_batch import SampleBatch
from pyprof.session.thread_dump import CompleteStacksCollector
from tests.session.test_sample_windows import BLOCKED, STOPPED, UNCHANGED, Script, batch

STACK, REGISTER = "memory that was not copied", "a register that was not known"


class Reel(Script):
    """A collector that yields its batches until it is stopped."""

    def __init__(self, batches: Sequence[SampleBatch]) -> None:
        super().__init__()
        self._batches = batches
        self.stopped = False

    def batches(self) -> Iterator[SampleBatch]:
        for each in self._batches:
            if self.stopped:
                return
            yield each

    def stop(self) -> None:
        self.stopped = True


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
    collector = CompleteStacksCollector(Reel(batches), lambda: threads, most_s)
    given: list[SampleBatch] = []
    for each in collector.batches():
        lacks = lacking[len(given)]
        given.append(each)
        live = each.take_samples(np.flatnonzero(each.kind < UNCHANGED))
        if walked and len(live):
            zeros = np.zeros(len(live), np.uint64)
            missing, stop = zeros + np.uint64(0x7000 * (lacks == STACK)), np.full(len(live), lacks == REGISTER)
            collector.learn(Feedback(live, zeros, missing, stop))
    return len(given)


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


def test_what_walks_teach_goes_on_to_the_collector() -> None:
    reel = Reel([ONE])
    collector = CompleteStacksCollector(reel, lambda: {1}, 60)
    zeros = np.zeros(1, np.uint64)
    collector.learn(Feedback(ONE, zeros, zeros, zeros.astype(np.bool_)))
    assert [each.batch for each in reel.learned] == [ONE]
