"""Marks of the evaluator that are alike, or copies: which of them belongs to an activation."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pyprof.interpreters.cpython.greenlet_cframes import CFrameSearch, more_alike
from pyprof.interpreters.cpython.greenlets import GreenletFrames, SwitchedThread
from pyprof.interpreters.cpython.tables import LAYOUTS

LAYOUT = LAYOUTS[11]
BASE, STATE, FRAMES = 0x7FFF_0000, 0x5555_0000, 0x6000_0000
OWN, OUTER = BASE + 0x80, BASE + 0x200


class Frames:
    """A greenlets.StoppedMemory: two functions of one activation, the inner one of which calls a C function."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        words = [0] * 16
        words[LAYOUT.frame.previous >> 3] = 0 if avma > FRAMES else FRAMES + 0x100
        words[LAYOUT.frame.is_entry >> 3] = (avma > FRAMES) << 32 | (0xFFFF_FFFF if avma == FRAMES else 0)
        return (np.array(words, np.uint64).data, 0) if avma in (FRAMES, FRAMES + 0x100) else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None:
        """All are there."""


def searched(*stands: tuple[int, int]) -> GreenletFrames:
    """On a stack with a CFrame that names the inner one, outside of the thread's own ones."""
    stack = np.zeros(200, np.uint64)
    at = OUTER - BASE
    stack[at + LAYOUT.thread.cframe_current >> 3] = FRAMES
    stack[at + LAYOUT.thread.cframe_previous >> 3] = STATE + LAYOUT.thread.root_cframe
    thread = SwitchedThread(STATE, [], [*stands], 0, stack.data, BASE)
    return CFrameSearch(LAYOUT).search(thread, {}, Frames())


@pytest.mark.parametrize(
    ("stands", "replaces"),
    [
        ([(OWN, FRAMES)], True),
        ([(OWN, FRAMES + 0x400)], False),
        ([(OWN - 0x40, FRAMES + 0x400), (OWN, FRAMES)], False),
        ([(OWN - 0x40, FRAMES + 0x400), (OWN, 0)], False),
    ],
)
def test_own_cframe_that_is_a_copy_of_the_one_outside_of_it_stands_for_nothing(
    stands: list[tuple[int, int]], replaces: bool
) -> None:
    """In a switch the thread has the one with which a greenlet began."""
    found = searched(*stands)
    assert found.stands == [(OUTER, FRAMES)]
    assert [avma for _, _, avma in found.frames] == [FRAMES, FRAMES + 0x100]
    assert found.replaces == replaces


def test_mark_whose_surroundings_are_laid_out_like_those_of_the_evaluator_s_own_is_the_living_one() -> None:
    words = [0] * 200
    for own in (30, 120):
        words[own - 9], words[own + 4], words[own + 11] = 0x7F00_1000, 0x55C9D1, 0x9F0000
    stack = memoryview(struct.pack("<200Q", *words)).cast("Q")
    for left in (110, 131, 180, 2, 199):
        assert more_alike(stack, 30, 120, left)
        assert not more_alike(stack, 30, left, 120)
