"""Lanes of several address spaces in one batch, each space with enough of them to be walked by steps."""

from __future__ import annotations

from pyprof.model.arch import X86_64
from pyprof.model.walk import StackEnd
from tests.unwind.made_stacks import Program, batch_of, make_lane, unwinder_of
from tests.unwind.test_batch import MANY, assert_same, frames_of


def test_every_space_of_a_batch_is_walked_by_steps_from_depth_zero() -> None:
    program = Program(X86_64, 11)
    lanes = [make_lane(program, 1 + n % 17) for n in range(3 * MANY)]
    for n, lane in enumerate(lanes):
        lane.space = 1 + n % 3
    batch = batch_of(X86_64, lanes)
    unwinder = unwinder_of(program)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    assert [frames_of(walk, n) for n in range(len(lanes))] == [lane.frames for lane in lanes]
    assert (walk.end == StackEnd.ROOT).all()


def test_frame_at_address_zero_is_looked_up_without_an_overflow() -> None:
    program = Program(X86_64, 12)
    lanes = [make_lane(program, 6) for _ in range(MANY)]
    for lane in lanes:
        for avma in lane.memory:
            lane.memory[avma] = 0
    unwinder = unwinder_of(program)
    for _ in range(2):  # rows that the first walk remembered serve the second
        walk = unwinder.walk(batch_of(X86_64, lanes))
        assert_same(walk, unwinder.walk_scalar(batch_of(X86_64, lanes)))
