"""Tests of the size of stack copies after records were lost, with the needs of a Java server's stacks."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.collectors.base import Feedback
from pyprof.collectors.perf.ring_buffer_records import OVERHEAD
from pyprof.collectors.perf.stack_copy_size import StackSize
from pyprof.model.arch import X86_64
from tests.unwind.made_stacks import MadeLane, batch_of

MOST = 65528
RING = 16 << 20
BASE = 0x7000_0000
NEEDS = (2416, 3120, 3536, 4288, 4936, 9736, 15270, 16960, 21152, 22712)
"""Bytes that the walks of an HTTP server in Java needed, as recorded by perf_events at 999 Hz."""
COMPILER = 60_000
"""The same of a thread of HotSpot's compiler C2."""
FIRST = 13_984
"""First size at 1,999 Hz."""
SECOND = 1_000_000_000


def learn(size: StackSize, needs: tuple[int, ...]) -> None:
    """Learn the needs of some samples, whose copies have the current size."""
    batch = batch_of(X86_64, [MadeLane({}, {BASE: 1}, [], BASE, 8) for _ in needs])
    reach = batch.stack.base + np.array(needs, np.uint64)
    cut = np.array(needs) > size.bytes
    zero = np.zeros(len(needs), np.uint64)
    size.learn(Feedback(batch, np.where(cut, zero, reach), np.where(cut, reach, zero), cut))


def change(size: StackSize) -> None:
    bytes_now = size.choose_change()
    if bytes_now:
        size.set_size(bytes_now)


def settled() -> StackSize:
    """Return the size after the first samples, which included those of a compiler."""
    size = StackSize(MOST, FIRST)
    assert size.bytes == FIRST
    learn(size, (*NEEDS, COMPILER))
    change(size)
    assert size.bytes > COMPILER
    return size


@pytest.mark.parametrize("late_s", [0.15, 0.3, 0.55])
def test_records_are_no_longer_lost_once_the_copies_are_smaller(late_s: float) -> None:
    """Test a sampler that reads a ring only once in a while because it waits for the worker."""
    size, lost_rounds = settled(), 0
    for number in range(20):
        record = OVERHEAD + size.bytes
        if late_s * 1999 * record > RING:
            lost_rounds += 1
            size.limit_size(round(number * late_s * SECOND))
        learn(size, (*NEEDS, COMPILER))
        change(size)
    assert 0 < lost_rounds <= 4
    assert size.bytes >= RING / (late_s * 1999) / 2 - OVERHEAD


def test_copies_are_as_large_as_needed_while_nothing_is_lost() -> None:
    size = settled()
    before = size.bytes
    for number in range(100):
        size.relax_limit(number * SECOND)
        learn(size, (*NEEDS, COMPILER))
        change(size)
    assert size.bytes == before


def test_copies_grow_again_when_no_record_was_lost_for_some_time() -> None:
    size, sizes = settled(), []
    size.limit_size(SECOND)
    change(size)
    for second in range(1, 30):
        size.relax_limit(second * SECOND)
        learn(size, (*NEEDS, COMPILER))
        change(size)
        sizes.append(size.bytes)
    assert sizes[0] <= MOST // 2
    assert sizes[8] == sizes[0]
    assert sizes[-1] > COMPILER


def test_losses_of_one_moment_count_once() -> None:
    size = settled()
    for ms in range(90):
        size.limit_size(SECOND + ms * 1_000_000)
    change(size)
    assert size.bytes >= MOST // 2


def test_lost_records_never_make_copies_smaller_than_the_first_ones() -> None:
    size = settled()
    for second in range(30):
        size.limit_size(second * SECOND)
        change(size)
    assert size.bytes == FIRST
