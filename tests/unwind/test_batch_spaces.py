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
