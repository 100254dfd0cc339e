"""Lanes of several address spaces in one batch, each space with enough of them to be walked by steps."""

from __future__ import annotations

import numpy as np

from pyprof.model.arch import X86_64
from pyprof.model.walk import StackEnd, lookup_pc, lookup_pcs
from pyprof.unwind.table import RowCache
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


def test_return_address_zero_is_looked_up_alike_one_by_one_and_in_columns() -> None:
    columns = lookup_pcs(np.array([0], np.uint64), np.array([False]))
    assert lookup_pc(0, False) == int(columns[0]) == 2**64 - 1
    rows = RowCache()
    rows.add((2**64 - 1, 2**64, -2), 2**64 - 1)
    starts, ends, ids = rows.columns()
    assert (starts.tolist(), ends.tolist(), ids.tolist()) == ([2**64 - 1], [2**64 - 1], [-2])
