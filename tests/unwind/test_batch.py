"""Tests that the batch walker and the scalar walker find the same frames, which are those of the synthetic stacks."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, ARM, I386, PPC64LE, S390X, X86_64, Arch
from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.options import UnwindOptions
from pyprof.unwind.rule_cache import SLOW, SP_SAVED, encode_fast_rule
from pyprof.unwind.rules import RegKind, RegRule
from tests.unwind.made_stacks import BASE, MadeLane, Program, batch_of, make_lane, unwinder_of
from tests.unwind.made_world import COVERED, FP_RULE, FRAMED, ROOT, RSP, SP, World, found

ARCHES = [X86_64, AARCH64, ARM, S390X, I386, PPC64LE]
FEW, MANY = 9, 24
"""Number of samples that are walked one by one, and number that are walked together."""


def assert_same(one: Walk, other: Walk) -> None:
    assert not one.shared
    assert not other.shared
    for column in fields(Walk):
        if column.name == "shared":
            continue
        left, right = getattr(one, column.name), getattr(other, column.name)
        assert left.dtype == right.dtype, column.name
        assert np.array_equal(left, right), column.name


def frames_of(walk: Walk, lane: int) -> list[tuple[int, bool, int]]:
    part = slice(int(walk.start[lane]), int(walk.start[lane + 1]))
    return list(zip(walk.pc[part].tolist(), walk.exact[part].tolist(), walk.trust[part].tolist(), strict=True))


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1 << 32), signals=st.booleans(), many=st.sampled_from([FEW, MANY]))
def test_made_stacks_are_found_whole(arch: Arch, seed: int, signals: bool, many: int) -> None:
    program = Program(arch, seed)
    lanes = [make_lane(program, 1 + n % 17, signals and n % 3 == 0 and n % 17 > 2) for n in range(many)]
    for n, lane in enumerate(lanes):
        lane.space = 1 + n % 2 * (seed % 2)
    batch = batch_of(arch, lanes)
    unwinder = unwinder_of(program)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    for number, lane in enumerate(lanes):
        assert frames_of(walk, number) == lane.frames
        assert walk.end[number] == StackEnd.ROOT
    assert_same(walk, unwinder.walk(batch))


def damage(lane: MadeLane, rng: np.random.Generator, arch: Arch) -> None:
    match rng.integers(8):
        case 0:
            lane.size = int(rng.integers(0, lane.size + 1))
        case 1:
            lane.kind = SampleKind.BLOCKED
        case 2:
            shift = min(int(rng.integers(1, 24)), lane.size)
            lane.base += shift
            lane.size -= shift
        case 3:
            lane.registers[arch.sp] = max(lane.registers[arch.sp] + int(rng.integers(-64, 64)), 0)
        case 4:
            lane.registers[int(rng.integers(len(arch.registers)))] = int(rng.integers(0, arch.mask, dtype=np.uint64))
        case 5:
            lane.pieces = []
        case 6 if lane.memory:
            for avma in rng.choice(list(lane.memory), size=3).tolist():
                lane.memory[avma] = (0, avma, lane.base, lane.frames[0][0], arch.mask)[rng.integers(5)]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    max_depth=st.sampled_from([1, 2, 5, 1 << 17]),
    fallback=st.booleans(),
    many=st.sampled_from([FEW, MANY]),
    spaces=st.sampled_from([1, 5]),
)
@example(
    seed=45575, max_depth=5, fallback=False, many=FEW, spaces=1
)  # on ARM the root's CFA is below that of the last frame
def test_damaged_stacks_end_alike_in_both_walkers(
    arch: Arch, seed: int, max_depth: int, fallback: bool, many: int, spaces: int
) -> None:
    program = Program(arch, seed)
    rng = np.random.default_rng(seed)
    lanes = [make_lane(program, 1 + n % 9, n % 4 == 3) for n in range(many)]
    for number, lane in enumerate(lanes):
        lane.space = 1 + number % spaces
        for _ in range(int(rng.integers(0, 3))):
            damage(lane, rng, arch)
    batch = batch_of(arch, lanes)
    sources = ("eh_frame", "fp") if fallback else ("eh_frame",)
    unwinder = unwinder_of(program, UnwindOptions(sources=sources, max_depth=max_depth))
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    assert (np.diff(walk.start) <= max_depth).all()
    assert (walk.end != StackEnd.RUNNING).all()
    assert ((walk.missing != 0) <= (walk.end == StackEnd.UNREADABLE)).all()


def test_words_below_an_unaligned_copy_are_read_alike() -> None:
    program = Program(X86_64, 5)
    lanes = [make_lane(program, 6) for _ in range(MANY)]
    for lane in lanes:
        lane.base -= 3
        lane.size += 3
    batch = batch_of(X86_64, lanes)
    unwinder = unwinder_of(program)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    assert [frames_of(walk, n) for n in range(MANY)] == [lane.frames for lane in lanes]


def test_unchanged_lane_has_no_frames_and_is_not_walked() -> None:
    program = Program(X86_64, 6)
    lanes = [make_lane(program, 4) for _ in range(MANY)]
    lanes[3].kind = SampleKind.UNCHANGED
    walk = unwinder_of(program).walk(batch_of(X86_64, lanes))
    assert walk.start[3] == walk.start[4]
    assert walk.end[3] == StackEnd.RUNNING
    assert frames_of(walk, 4) == lanes[4].frames


def test_copy_that_is_short_names_the_missing_word_and_how_far_it_looked() -> None:
    program = Program(X86_64, 7, uncovered=False)
    lanes = [make_lane(program, 12) for _ in range(MANY)]
    whole = unwinder_of(program).walk(batch_of(X86_64, lanes))
    for lane in lanes:
        lane.size = 0x400
    short = unwinder_of(program).walk(batch_of(X86_64, lanes))
    cut = short.end == StackEnd.UNREADABLE
    assert cut.any()
    for n in np.flatnonzero(cut).tolist():
        assert short.missing[n] + 8 > lanes[n].base + 0x400
        assert lanes[n].base <= short.top[n] <= lanes[n].base + 0x400
        assert frames_of(whole, n)[: len(frames_of(short, n))] == frames_of(short, n)


def test_empty_batch_gives_an_empty_walk() -> None:
    program = Program(X86_64, 8)
    walk = unwinder_of(program).walk(batch_of(X86_64, []))
    assert len(walk) == 0
    assert walk.start.tolist() == [0]


def test_deep_lanes_are_whole_and_depth_is_a_limit() -> None:
    program = Program(X86_64, 9, uncovered=False)
    lanes = [make_lane(program, 400 if n == 0 else 3) for n in range(MANY)]
    batch = batch_of(X86_64, lanes)
    walk = unwinder_of(program).walk(batch)
    assert frames_of(walk, 0) == lanes[0].frames
    limited = unwinder_of(program, UnwindOptions(max_depth=100)).walk(batch)
    assert frames_of(limited, 0) == lanes[0].frames[:100]
    assert limited.end[0] == StackEnd.DEPTH
    exactly = unwinder_of(program, UnwindOptions(max_depth=401)).walk(batch)
    assert exactly.end[0] == StackEnd.ROOT


def test_second_generation_gives_the_same_frames_after_the_first_is_forgotten() -> None:
    program = Program(X86_64, 10)
    lanes = [make_lane(program, 8) for _ in range(MANY)]
    unwinder = unwinder_of(program)
    first = unwinder.walk(batch_of(X86_64, lanes))
    unwinder.forget(1)
    second = unwinder.walk(batch_of(X86_64, [replace(lane, space=2) for lane in lanes]))
    assert_same(first, second)


@pytest.mark.parametrize("many", [FEW, MANY])
@pytest.mark.parametrize("slot", [SP + 0x100, SP + 0x101, SP - 8, 0])
def test_callers_sp_that_a_frame_holds_is_read_alike(many: int, slot: int) -> None:
    rule = FP_RULE._replace(regs=(*FP_RULE.regs, (RSP, RegRule(RegKind.AT_CFA, -24))))
    assert encode_fast_rule(rule, X86_64)[0] & SP_SAVED
    assert encode_fast_rule(rule._replace(signal=True), X86_64)[0] == SLOW
    world = World(functions={**World().functions, FRAMED: rule})
    words = {SP + 0x38: slot, SP + 0x40: 0, SP + 0x48: BASE + COVERED + 8, SP + 0x108: BASE + ROOT + 8}
    walk = world.walk(words, fp=SP + 0x40, pc=BASE + FRAMED + 8, many=many)
    whole = [FRAMED + 8, COVERED + 8, ROOT + 8]
    if slot == SP + 0x100:
        assert found(walk) == (whole * many, "root")
    else:
        assert found(walk)[1] != "root"


def test_frame_whose_slot_of_sp_is_not_copied_is_walked_alike() -> None:
    rule = FP_RULE._replace(regs=(*FP_RULE.regs, (RSP, RegRule(RegKind.AT_CFA, 0x10000))))
    world = World(functions={**World().functions, FRAMED: rule})
    words = {SP + 0x40: 0, SP + 0x48: BASE + COVERED + 8}
    assert found(world.walk(words, fp=SP + 0x40, pc=BASE + FRAMED + 8, many=MANY))[1] != "root"
