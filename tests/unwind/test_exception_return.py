"""Tests of the frames that Cortex-M hardware pushes, on synthetic stacks. tests/remote has live ones."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.model.arch import ARM
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.unwind.reference_unwinder import Caller, NoCaller, Registers, find_interrupted
from pyprof.unwind.sample_memory import LaneMemory

SP = 0x2000_8000
FRAME = [0, 1, 2, 3, 12, 0x201, 0x301, 0x0100_0000]
"""A basic exception frame: r0-r3, r12, lr, pc, xPSR."""


def memory(words: list[int]) -> LaneMemory:
    stack = b"".join(word.to_bytes(4, "little") for word in words)
    one = np.zeros(1, np.int64)
    slab = StackSlab(
        np.frombuffer(stack + bytes(-len(stack) % 8), np.uint8),
        np.array([SP], np.uint64),
        one,
        np.array([len(stack)], np.int64),
    )
    small = np.zeros(1, np.int32)
    batch = SampleBatch(
        ARM,
        np.full(1, SampleKind.STOPPED, np.uint8),
        one,
        small,
        small,
        small,
        small,
        one,
        np.zeros((1, len(ARM.registers)), np.uint64),
        slab,
        {},
    )
    return LaneMemory(batch, 0)


def returning(how: int) -> Registers:
    """Return the registers of a handler at its return, where r4-r11 belong to the interrupted code."""
    values: list[int | None] = [None] * 16
    values[4:12] = range(4, 12)
    values[ARM.sp], values[ARM.pc] = SP, how & ARM.pc_mask
    return Registers(values, False)


@pytest.mark.parametrize(
    ("how", "aligned", "size"),
    [(0xFFFF_FFF9, 0, 32), (0xFFFF_FFF9, 1, 36), (0xFFFF_FFF1, 0, 32), (0xFFFF_FFE9, 0, 104), (0xFFFF_FFE1, 1, 108)],
)
def test_interrupted_registers_are_found_in_each_frame(how: int, aligned: int, size: int) -> None:
    found = find_interrupted(returning(how), memory([*FRAME[:7], FRAME[7] | aligned << 9]), ARM)
    assert isinstance(found, Caller)
    assert found.registers.values == [0, 1, 2, 3, *range(4, 12), 12, SP + size, 0x201, 0x300]
    assert found.registers.exact
    assert found.trust is Trust.SIGRETURN


def test_all_ones_are_where_the_program_began() -> None:
    assert find_interrupted(returning(0xFFFF_FFFF), memory([]), ARM) == NoCaller(StackEnd.ROOT, no_frame=True)


def test_task_that_was_interrupted_is_not_guessed() -> None:
    assert find_interrupted(returning(0xFFFF_FFFD), memory(FRAME), ARM) == NoCaller(StackEnd.NO_RULE)


@pytest.mark.parametrize("words", range(8))
def test_frame_that_the_copy_does_not_hold_names_the_missing_word(words: int) -> None:
    found = find_interrupted(returning(0xFFFF_FFF9), memory(FRAME[:words]), ARM)
    assert found == NoCaller(StackEnd.UNREADABLE, missing=SP + 4 * words)
