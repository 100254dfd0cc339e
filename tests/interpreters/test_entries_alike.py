"""Tests of suspended evaluator calls in CPython 3.12 and later: the choice of their innermost frame."""

from __future__ import annotations

import pytest

from pyprof.interpreters.cpython.frame_copier import ENTRY_OWNER
from pyprof.interpreters.cpython.greenlets import EntrySearch, SwitchedThread
from pyprof.interpreters.cpython.layout import LAYOUTS

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

LAYOUT = LAYOUTS[12]
STACK, HEAP = 0x7FFF_F000_0000, 0x5555_0000_0000
MARK, CODE = 0x1234_5678_1234_5678, 0x2222_2220
ENTRY = STACK + 8 * 300
OUTER, INNER = HEAP, HEAP + 8 * 40
OBJECTS = 512
"""Index of the first frame object in the words of the heap."""


class Heap:
    """A heap with two frames: the outer one, called from an entry frame, calls the inner one."""

    def __init__(self, left: bool) -> None:
        """Write the frames.

        Args:
            left: Whether the inner frame has returned without being overwritten.
        """
        frame = LAYOUT.frame
        self.words = memoryview(bytearray(8192)).cast("Q")
        for number, (avma, previous) in enumerate(((OUTER, ENTRY), (INNER, OUTER))):
            at, made = avma - HEAP >> 3, OBJECTS + 64 * number
            self.words[at + (frame.previous >> 3)] = previous
            self.words[at + (frame.instr >> 3) + 1] = 0xFFFF_FFFF
            self.words[at + (frame.object >> 3)] = 0 if left and number else HEAP + 8 * made
            self.words[made + (frame.object_frame >> 3)] = avma
            self.words[made + (frame.object_link >> 3)] = previous

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        inside = avma in range(HEAP, HEAP + 8192 - size)
        return (self.words, avma - HEAP >> 3) if inside else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None: ...


@pytest.mark.parametrize(("left", "frames"), [(False, [INNER, OUTER, ENTRY]), (True, [OUTER, ENTRY])])
def test_frame_that_only_a_register_names_is_found_behind_its_caller(left: bool, frames: list[int]) -> None:
    layout, heap = LAYOUT.frame, Heap(left)
    stack = memoryview(bytearray(8 * 1024)).cast("Q")
    for at in (0, 300):
        stack[at + (layout.instr >> 3)], stack[at + (layout.code >> 3)] = MARK, CODE
        stack[at + (layout.owner >> 3)] = ENTRY_OWNER << 8 * (layout.owner & 7)
    stack[150] = OUTER  # a stale value of the evaluator
    running = memoryview(bytearray(512)).cast("Q")
    thread = SwitchedThread(0x10000, [(running, 0, HEAP + 0x10000), (stack, 0, STACK)], [], 0, stack, STACK)
    found = EntrySearch(LAYOUT, ENTRY_OWNER).search(thread, {}, heap)
    assert [avma for _, _, avma in found.frames] == frames
