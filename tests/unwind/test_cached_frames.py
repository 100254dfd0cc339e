"""Tests of caching the outer frames of deep stacks: walks that reuse them find the same frames as a full walk."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, S390X, X86_64, Arch
from pyprof.model.sample import SampleBatch
from pyprof.model.walk import StackEnd
from pyprof.unwind.heuristics.outer_frame_cache import MIN_FRAMES
from pyprof.unwind.scalar import ScalarWalker
from tests.unwind.made_stacks import MadeLane, Program, batch_of, make_lane, unwinder_of
from tests.unwind.test_batch import assert_same, damage

DEEP = MIN_FRAMES + 50


def of_one_thread(arch: Arch, *lanes: MadeLane) -> SampleBatch:
    return replace(batch_of(arch, lanes), tid=np.full(len(lanes), 7, np.int32))


def begun_at(lane: MadeLane, registers: list[int | None], arch: Arch) -> MadeLane:
    """Return the stack that begins at an outer frame with these registers."""
    values = {column: value for column, value in enumerate(registers) if value is not None}
    base = max(values[arch.sp] - 0x80, lane.base) & ~7 | lane.base & 7
    return replace(deepcopy(lane), registers=values, base=base, size=lane.base + lane.size - base)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    step = ScalarWalker.find_caller

    def counting(self: ScalarWalker, *arguments: object) -> object:
        counted["step"] += 1
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ScalarWalker, "find_caller", counting)
    return counted


@pytest.mark.parametrize("arch", [X86_64, AARCH64, S390X], ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1 << 32))
def test_walk_that_joins_an_earlier_one_finds_the_same(arch: Arch, seed: int) -> None:
    program = Program(arch, seed)
    rng = np.random.default_rng(seed)
    unwinder = unwinder_of(program)
    first = make_lane(program, DEEP)
    batch = of_one_thread(arch, first)
    assert_same(unwinder.walk(batch), unwinder.walk_scalar(batch))
    registers = unwinder.registers(batch)[0]
    for _ in range(12):
        lane = begun_at(first, registers[int(rng.integers(0, 40))], arch)
        if rng.integers(2):
            damage(lane, rng, arch)
        later = of_one_thread(arch, lane)
        assert_same(unwinder.walk(later), unwinder_of(program).walk_scalar(later))


def test_second_deep_stack_costs_only_its_own_frames(steps: Counter[str]) -> None:
    program = Program(X86_64, 5)
    unwinder = unwinder_of(program)
    first = make_lane(program, DEEP)
    unwinder.walk(of_one_thread(X86_64, first))
    registers = unwinder.registers(of_one_thread(X86_64, first))[0]
    steps.clear()
    walk = unwinder.walk(of_one_thread(X86_64, *(begun_at(first, registers[at], X86_64) for at in range(20))))
    assert (walk.end == StackEnd.ROOT).all()
    assert np.diff(walk.start).tolist() == [DEEP + 1 - at for at in range(20)]
    assert steps["step"] < 20 * 8


def test_changed_word_of_an_outer_frame_is_seen(steps: Counter[str]) -> None:
    program = Program(X86_64, 5)
    unwinder = unwinder_of(program)
    first = make_lane(program, DEEP)
    unwinder.walk(of_one_thread(X86_64, first))
    changed = deepcopy(first)
    at = sorted(changed.memory)[len(changed.memory) // 2]
    changed.memory[at] ^= 8
    steps.clear()
    batch = of_one_thread(X86_64, changed)
    assert_same(unwinder.walk(batch), unwinder_of(program).walk_scalar(batch))
    assert steps["step"] > DEEP // 3
