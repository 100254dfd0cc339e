"""Tests of stacks longer than their copies: the rest is read once, and frames equal those of a complete copy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, I386, X86_64, Arch
from pyprof.model.sample import OuterStack, Piece, SampleBatch, StackBeyondCopy
from pyprof.model.walk import StackEnd, Trust, Walk
from pyprof.unwind import one_sample_walk as plain
from pyprof.unwind.interned_rules import RuleTable
from pyprof.unwind.one_sample_walk import FrameRun, PlainRules
from pyprof.unwind.rules import RegKind, RegRule, Rule
from tests.unwind.made_stacks import Program, make_lane, unwinder_of
from tests.unwind.test_cached_frames import begun_at, of_one_thread

DEEP = 1500
COPY = 16 << 10
PLAIN = ("root", "sp", "sp_fp", "fp")


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


class _Index:
    """Rule ids by return address."""

    def __init__(self, ids: dict[int, int]) -> None:
        self._ids = ids

    def rule_id(self, pc: int, exact: bool) -> int:
        assert not exact
        return self._ids[pc + 1]


BASE = 0x7F0000000000


@st.composite
def recursions(draw: st.DrawFn) -> tuple[list[Rule], list[int]]:
    """Generate rules of some functions, and a stack of them from leaf to root."""
    ra, fp = RegRule(RegKind.AT_CFA, -8), (X86_64.fp, RegRule(RegKind.AT_CFA, -16))
    kinds = st.sampled_from(["sp", "sp_fp", "fp"])
    rules = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=4)):
        size = 8 * draw(st.integers(2, 12))
        rules.append(
            Rule(X86_64.fp, 16, ra, (fp,)) if kind == "fp" else Rule(X86_64.sp, size, ra, (fp,) * (kind != "sp"))
        )
    one = st.integers(0, len(rules) - 1)
    stack: list[int] = []
    for cycle, times in draw(
        st.lists(st.tuples(st.lists(one, min_size=1, max_size=5), st.integers(1, 900)), max_size=4)
    ):
        stack += cycle * times
    return rules, stack


def laid_out(rules: list[Rule], stack: list[int]) -> tuple[np.ndarray, int, int]:
    """Return memory, sp and fp of the innermost frame. Frames with rules by fp have 24 words."""
    sizes = [rules[each].cfa_off if rules[each].cfa_reg == X86_64.sp else 192 for each in stack]
    cfas = (BASE + np.cumsum([0, *sizes]))[1:].tolist()
    words = np.zeros((sum(sizes) >> 3) + 64, np.uint64)
    fp = 0
    for place in range(len(stack) - 1, -1, -1):
        rule, at = rules[stack[place]], (cfas[place] - BASE) >> 3
        words[at - 1] = 0x1000 * (stack[place + 1] + 1) if place + 1 < len(stack) else 0
        if rule.regs:
            words[at - 2] = fp
            fp = cfas[place] - 16 if rule.cfa_reg == X86_64.fp else 0x55
    return words, BASE, fp


def columns(run: FrameRun) -> list[object]:
    return [run.pc.tolist(), run.sp.tolist(), run.fp.tolist(), run.rule.tolist(), run.root, run.last, run.top]


@settings(deadline=None, max_examples=30)
@given(
    made=recursions(), flips=st.lists(st.tuples(st.floats(0, 0.999), st.sampled_from([8, 0x1000, 1 << 40])), max_size=2)
)
def test_repetitions_found_at_once_are_those_found_frame_by_frame(
    made: tuple[list[Rule], list[int]], flips: list[tuple[float, int]]
) -> None:
    rules, stack = made
    if not stack:
        return
    table = RuleTable(X86_64)
    ids = {0x1000 * (at + 1): table.intern(rule, Trust.EH_FRAME) for at, rule in enumerate(rules)}
    words, sp, fp = laid_out(rules, stack)
    for where, bit in flips:
        words[int(where * len(words))] ^= np.uint64(bit)
    index = _Index({**dict.fromkeys((int(word) for word in np.unique(words)), 0), **ids})
    start = (words, BASE, 0x1000 * (stack[0] + 1), sp, fp, 1 << 20)
    fast = PlainRules(X86_64, index, table).follow_rules(*start)  # type: ignore[arg-type]
    most, plain._MAX_PERIOD = plain._MAX_PERIOD, 0
    try:
        slow = PlainRules(X86_64, index, table).follow_rules(*start)  # type: ignore[arg-type]
    finally:
        plain._MAX_PERIOD = most
    assert columns(fast) == columns(slow)
    assert flips or (len(fast) == len(stack) - 1 and fast.root)


def test_long_recursion_costs_no_step_a_frame() -> None:
    table = RuleTable(X86_64)
    rule = Rule(X86_64.sp, 48, RegRule(RegKind.AT_CFA, -8))
    looked: list[int] = []

    class Counting(_Index):
        def rule_id(self, pc: int, exact: bool) -> int:
            looked.append(pc)
            return super().rule_id(pc, exact)

    index = Counting({0x1000: table.intern(rule, Trust.EH_FRAME)})
    words, sp, fp = laid_out([rule], [0] * 200_000)
    rules = PlainRules(X86_64, index, table)  # type: ignore[arg-type]
    steps: list[int] = []
    rules._rules = _Counted(steps)
    run = rules.follow_rules(words, BASE, 0x1000, sp, fp, 1 << 20)
    assert len(run) == 199_999
    assert 0 < len(steps) < 5000


class _Counted(dict[int, Any]):
    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    def get(self, key: int, default: Any = None) -> Any:
        self._steps.append(key)
        return super().get(key, default)


def test_frame_pointer_that_skips_a_frame_ends_the_repetition() -> None:
    table = RuleTable(X86_64)
    rule = Rule(X86_64.fp, 16, RegRule(RegKind.AT_CFA, -8), ((X86_64.fp, RegRule(RegKind.AT_CFA, -16)),))
    index = _Index({0x1000: table.intern(rule, Trust.EH_FRAME)})
    words, sp, fp = laid_out([rule], [0] * 2000)
    slot = 24 * 1000 - 2
    words[slot] += np.uint64(192)
    run = PlainRules(X86_64, index, table).follow_rules(words, BASE, 0x1000, sp, fp, 1 << 20)  # type: ignore[arg-type]
    assert run.root
    assert len(run) == 1998
    assert (np.diff(run.sp.astype(np.int64)) == 384).sum() == 1
