"""Walks that take outer parts from earlier ones find what the scalar walker finds, whatever the stacks hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import I386, X86_64, Arch
from pyprof.model.sample import SampleBatch
from pyprof.options import UnwindOptions
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import Program, batch_of, made_space, make_lane, unwinder_of
from tests.unwind.test_batch import assert_same

ROUNDS = 10
"""More batches than it takes until every group is learned from."""


FAST = ("root", "sp", "sp_fp", "fp", "fp_lost")


def made(
    arch: Arch, seed: int, lanes: int = 24, signals: bool = False, fast: bool = True
) -> tuple[SampleBatch, Unwinder]:
    """fast: only functions that need no scalar walk."""
    program = Program(arch, seed)
    if fast:
        program.functions = [function for function in program.functions if function.kind in FAST]
    stacks = [make_lane(program, 1 + n % 17, signals and n % 3 == 0 and n % 17 > 2) for n in range(lanes)]
    return batch_of(arch, stacks), unwinder_of(program)


def learned(unwinder: Unwinder, batch: SampleBatch) -> int:
    """How many outer parts are known."""
    return len(unwinder._space(batch.arch, made_space(1)).index.outer)


@pytest.mark.parametrize("arch", [X86_64, I386], ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1 << 32), signals=st.booleans(), fast=st.booleans())
def test_stacks_that_come_again_are_found_the_same(arch: Arch, seed: int, signals: bool, fast: bool) -> None:
    batch, unwinder = made(arch, seed, signals=signals, fast=fast)
    truth = unwinder.walk_scalar(batch)
    for _ in range(ROUNDS):
        assert_same(unwinder.walk(batch), truth)


def test_stacks_that_come_again_are_learned() -> None:
    batch, unwinder = made(X86_64, 3)
    unwinder.walk(batch)
    assert learned(unwinder, batch) > 50


@pytest.mark.parametrize("arch", [X86_64, I386], ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1 << 32), damage=st.integers(0, 1 << 32))
def test_stacks_in_which_words_have_changed_are_walked_by_what_they_hold_now(
    arch: Arch, seed: int, damage: int
) -> None:
    batch, unwinder = made(arch, seed)
    rng = np.random.default_rng(damage)
    for _ in range(ROUNDS):
        unwinder.walk(batch)
    for _ in range(3):
        words = batch.stack.data.copy().view(f"u{arch.word}")
        used = np.flatnonzero(words)
        hit = rng.choice(used, 1 + rng.integers(30))
        words[hit] = np.where(rng.random(len(hit)) < 0.5, rng.choice(words[used], len(hit)), rng.integers(0, 1 << 31))
        changed = replace(batch, stack=replace(batch.stack, data=words.view(np.uint8)))
        truth = unwinder.walk_scalar(changed)
        assert_same(unwinder.walk(changed), truth)
        assert_same(unwinder.walk(changed), truth)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1 << 32), change=st.integers(0, 1 << 32))
def test_lanes_with_other_registers_are_walked_by_these(seed: int, change: int) -> None:
    batch, unwinder = made(X86_64, seed)
    rng = np.random.default_rng(change)
    for _ in range(ROUNDS):
        unwinder.walk(batch)
    regs = batch.regs.copy()
    for column in (X86_64.fp, X86_64.sp, X86_64.pc):
        lanes = rng.integers(0, len(batch), 6)
        regs[lanes, column] = regs[rng.integers(0, len(batch), 6), column] + np.uint64(8) * rng.integers(
            0, 2, 6, np.uint64
        )
    changed = replace(batch, regs=regs)
    assert_same(unwinder.walk(changed), unwinder.walk_scalar(changed))


def test_copies_that_are_shorter_than_what_is_known_end_where_they_end() -> None:
    batch, unwinder = made(X86_64, 5)
    for _ in range(ROUNDS):
        unwinder.walk(batch)
    short = replace(batch, stack=replace(batch.stack, size=batch.stack.size // 2 & ~7))
    assert_same(unwinder.walk(short), unwinder.walk_scalar(short))


def test_depth_limit_holds_for_known_stacks_too() -> None:
    program = Program(X86_64, 7)
    batch = batch_of(X86_64, [make_lane(program, 12) for _ in range(24)])
    whole, cut = unwinder_of(program), unwinder_of(program, UnwindOptions(max_depth=6))
    for _ in range(ROUNDS):
        assert_same(cut.walk(batch), cut.walk_scalar(batch))
        assert_same(whole.walk(batch), whole.walk_scalar(batch))


def test_stacks_deeper_than_what_is_kept_of_a_walk_are_learned_bit_by_bit() -> None:
    program = Program(X86_64, 11)
    program.functions = [function for function in program.functions if function.kind in FAST]
    batch = batch_of(X86_64, [make_lane(program, 540 + 10 * n) for n in range(20)])
    unwinder = unwinder_of(program)
    truth = unwinder.walk_scalar(batch)
    known = []
    for _ in range(ROUNDS):
        assert_same(unwinder.walk(batch), truth)
        known.append(learned(unwinder, batch))
    assert known[0] < known[-1]
