"""Tests of stacks longer than their copies: the rest is read once, and frames equal those of a complete copy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, I386, X86_64, Arch
from pyprof.model.sample_batch import OuterStack, Piece, SampleBatch, StackBeyondCopy
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from tests.unwind.made_stacks import MadeLane, Program, batch_of, make_lane, unwinder_of

DEEP = 1500
COPY = 16 << 10
PLAIN = ("root", "sp", "sp_fp", "fp")


def of_one_thread(arch: Arch, *lanes: MadeLane) -> SampleBatch:
    return replace(batch_of(arch, lanes), tid=np.full(len(lanes), 7, np.int32))


def begun_at(lane: MadeLane, registers: list[int | None], arch: Arch) -> MadeLane:
    """Return the stack that begins at an outer frame with these registers."""
    values = {column: value for column, value in enumerate(registers) if value is not None}
    base = max(values[arch.sp] - 0x80, lane.base) & ~7 | lane.base & 7
    return replace(deepcopy(lane), registers=values, base=base, size=lane.base + lane.size - base)


def shortened(batch: SampleBatch, outer: OuterStack | None, spot: int = 512) -> SampleBatch:
    """Return the sample of a stop with a short copy.

    Args:
        batch: The complete sample.
        outer: The rest of the stack, read once.
        spot: Size in bytes of the pieces in which the rest is verified.
    """
    stack = batch.stack
    base, size, offset = int(stack.base[0]), int(stack.size[0]), int(stack.offset[0])
    data = stack.data[offset : offset + size].tobytes()
    spots = tuple(Piece(base + at, data[at : at + spot]) for at in range(COPY, size, spot))
    kept = np.array([min(COPY, size)], np.int64)
    return replace(batch, stack=replace(stack, size=kept, beyond={0: StackBeyondCopy(size, outer, spots)}))


def outer_of(batch: SampleBatch, number: int = 1) -> OuterStack:
    stack, word = batch.stack, batch.arch.word
    offset, size = int(stack.offset[0]), int(stack.size[0]) // word * word
    return OuterStack(int(stack.base[0]), stack.data[offset : offset + size].view(f"u{word}"), number)


def places(walk: Walk) -> list[tuple[int, int, bool]]:
    walk = walk.unshare_frames()
    return list(zip(walk.pc.tolist(), walk.sp.tolist(), walk.exact.tolist(), strict=True))


def plain_program(arch: Arch, seed: int) -> Program:
    program = Program(arch, seed, uncovered=False)
    program.functions = [function for function in program.functions if function.kind in PLAIN]
    return program


@pytest.mark.parametrize("arch", [X86_64, AARCH64, I386], ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=3)
@given(seed=st.integers(0, 1 << 32))
def test_stack_of_plain_rules_is_whole_and_as_its_whole_copy_says(arch: Arch, seed: int) -> None:
    program = plain_program(arch, seed)
    unwinder, oracle = unwinder_of(program), unwinder_of(program)
    first = make_lane(program, DEEP)
    batch = of_one_thread(arch, first)
    outer = outer_of(batch)
    walk = unwinder.walk(shortened(batch, outer))
    assert walk.end.tolist() == [StackEnd.ROOT]
    assert walk.shared
    assert places(walk) == places(oracle.walk_scalar(batch))
    registers = oracle.registers(batch)[0]
    for at in (1, 7, 40):
        later = of_one_thread(arch, begun_at(first, registers[at], arch))
        walk = unwinder.walk(shortened(later, outer))
        assert walk.end.tolist() == [StackEnd.ROOT]
        assert places(walk) == places(oracle.walk_scalar(later))
        assert set(walk.unshare_frames().trust[64:].tolist()) == {Trust.COMPLETED}


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 1 << 32))
def test_stack_that_is_called_whole_has_the_frames_of_its_whole_copy(seed: int) -> None:
    """Use rules of all kinds, and words that have changed since the rest was read."""
    program = Program(X86_64, seed)
    rng = np.random.default_rng(seed)
    unwinder, oracle = unwinder_of(program), unwinder_of(program)
    first = make_lane(program, DEEP)
    outer = outer_of(of_one_thread(X86_64, first))
    unwinder.walk(shortened(of_one_thread(X86_64, first), outer))
    for _ in range(6):
        lane = deepcopy(first)
        changed = rng.choice(sorted(lane.memory), rng.integers(0, 3))
        for avma in changed.tolist():
            lane.memory[avma] ^= 8
        later = of_one_thread(X86_64, lane)
        walk, truth = unwinder.walk(shortened(later, outer)), oracle.walk_scalar(later)
        if walk.end[0] == StackEnd.ROOT:
            assert truth.end[0] == StackEnd.ROOT
            assert places(walk) == places(truth)


def test_return_address_that_has_changed_in_a_spot_cuts_the_stack() -> None:
    program = plain_program(X86_64, 3)
    unwinder = unwinder_of(program)
    first = make_lane(program, DEEP)
    outer = outer_of(of_one_thread(X86_64, first))
    unwinder.walk(shortened(of_one_thread(X86_64, first), outer))
    changed = deepcopy(first)
    pcs = {pc for pc, _, _ in first.frames}
    at = max(avma for avma, word in first.memory.items() if word in pcs)
    changed.memory[at] ^= 16
    later = of_one_thread(X86_64, changed)
    walk = unwinder.walk(shortened(later, outer))
    assert walk.end.tolist() == [StackEnd.UNREADABLE]
    assert not walk.shared
    assert int(walk.missing[0]) >= int(later.stack.base[0]) + COPY
    renewed = unwinder.walk(shortened(later, outer_of(later, 2)))
    assert int(renewed.pc[-1]) != 0
    assert places(renewed) == places(unwinder_of(program).walk_scalar(later))


def test_rest_that_was_read_after_the_thread_had_gone_on_is_not_its_sample_s() -> None:
    program = plain_program(X86_64, 4)
    first, other = make_lane(program, DEEP), make_lane(program, DEEP)
    batch = of_one_thread(X86_64, first)
    torn = outer_of(batch)
    words = torn.words.copy()
    later = outer_of(of_one_thread(X86_64, other)).words
    words[-len(later) // 4 :] = later[-len(words[-len(later) // 4 :]) :]
    walk = unwinder_of(program).walk(shortened(batch, OuterStack(torn.avma, words, 1)))
    assert walk.end.tolist() == [StackEnd.UNREADABLE]
    truth = places(unwinder_of(program).walk_scalar(batch))
    assert places(walk) == truth[: len(places(walk))]
