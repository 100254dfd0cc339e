"""Tests of ambiguous evaluator marks: copies of CFrames, and marks that look alike."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pyprof.interpreters.cpython.greenlet_cframes import CFrameSearch, is_more_alike
from pyprof.interpreters.cpython.greenlets import GreenletFrames, SwitchedThread
from pyprof.interpreters.cpython.layout import LAYOUTS

LAYOUT = LAYOUTS[11]
BASE, STATE, FRAMES = 0x7FFF_0000, 0x5555_0000, 0x6000_0000
OWN, OUTER = BASE + 0x80, BASE + 0x200


class Frames:
    """A greenlets.StoppedMemory with two frames of one evaluator call, of which the inner one calls a C function."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        words = [0] * 16
        words[LAYOUT.frame.previous >> 3] = 0 if avma > FRAMES else FRAMES + 0x100
        words[LAYOUT.frame.is_entry >> 3] = (avma > FRAMES) << 32 | (0xFFFF_FFFF if avma == FRAMES else 0)
        return (np.array(words, np.uint64).data, 0) if avma in (FRAMES, FRAMES + 0x100) else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None:
        """Keep the memory as it is: all of it is present."""


def searched(*stands: tuple[int, int]) -> GreenletFrames:
    """Search a stack that has, outside of the thread's own CFrames, one that points to the inner frame."""
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
    """Search during a switch, when the thread's CFrame is a copy of the one with which a greenlet began."""
    found = searched(*stands)
    assert found.stands == [(OUTER, FRAMES)]
    assert [avma for _, _, avma in found.frames] == [FRAMES, FRAMES + 0x100]
    assert found.replaces == replaces


def test_mark_with_the_evaluators_own_layout_around_it_is_the_live_one() -> None:
    words = [0] * 200
    for own in (30, 120):
        words[own - 9], words[own + 4], words[own + 11] = 0x7F00_1000, 0x55C9D1, 0x9F0000
    stack = memoryview(struct.pack("<200Q", *words)).cast("Q")
    for left in (110, 131, 180, 2, 199):
        assert is_more_alike(stack, 30, 120, left)
        assert not is_more_alike(stack, 30, left, 120)
