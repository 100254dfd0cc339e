"""Marks of the evaluator that are alike: which of them belongs to an activation."""

from __future__ import annotations

import struct

from pyprof.interpreters.cpython.greenlet_cframes import more_alike


def test_mark_whose_surroundings_are_laid_out_like_those_of_the_evaluator_s_own_is_the_living_one() -> None:
    words = [0] * 200
    for own in (30, 120):
        words[own - 9], words[own + 4], words[own + 11] = 0x7F00_1000, 0x55C9D1, 0x9F0000
    stack = memoryview(struct.pack("<200Q", *words)).cast("Q")
    for left in (110, 131, 180, 2, 199):
        assert more_alike(stack, 30, 120, left)
        assert not more_alike(stack, 30, left, 120)
