"""Tests that the native walker finds what the reference unwinder finds, on random tables and on hostile addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, S390X, X86_64, Arch
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind import native_unwinder, unwinder
from pyprof.unwind.native_unwinder import UNKNOWN, FrameRun, NativeWalker, find_library
from pyprof.unwind.reference_unwinder import ReferenceUnwinder
from pyprof.unwind.rule_cache import SLOW, RuleTable, encode_fast_rule
from pyprof.unwind.rules import RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.replay.playing import LOGS
from tests.unwind.hostile_walks import (
    ARCHES,
    FUNCTIONS,
    compare_random,
    compare_recorded,
    source_of,
    walk_lies,
)
from tests.unwind.made_stacks import (
    BASE,
    FUNCTION,
    STACK,
    HandImages,
    MadeLane,
    Program,
    batch_of,
    little_elf,
    make_lane,
    reader_of,
    unwinder_of,
)
from tests.unwind.test_batch import assert_same

pytestmark = pytest.mark.skipif(find_library() is None, reason="no native walker for this machine")

MIX = 0x9E3779B97F4A7C15
"""The factor of the hash function in native/walk/tables.h."""


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 32), trust=st.sampled_from([Trust.EH_FRAME, Trust.CODE]))
def test_random_tables_and_stacks_are_walked_alike(arch: Arch, seed: int, trust: Trust) -> None:
    compare_random(arch, seed, trust)


@pytest.mark.parametrize("name", ["native", "python", "offcpu", "remote", "core"])
def test_recorded_batches_are_walked_alike(name: str) -> None:
    assert compare_recorded(LOGS / f"{name}.zip") > 0


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_lies_in_columns_and_answers_end_each_walk_within_its_depth(arch: Arch) -> None:
    library = find_library()
    assert library is not None
    for seed in range(40):
        walk_lies(library, arch, seed)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the frames for which the reference unwinder is asked."""
    steps = [0]
    step = ReferenceUnwinder.find_caller

    def counting(self: ReferenceUnwinder, *arguments: object) -> object:
        steps[0] += 1
        return step(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(ReferenceUnwinder, "find_caller", counting)
        yield steps


def test_frames_of_plain_rules_and_records_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(X86_64, 1)
    program.functions = [each for each in program.functions if each.kind in ("root", "sp", "fp", "record")]
    lanes = [make_lane(program, 30) for _ in range(20)]
    batch = batch_of(X86_64, lanes)
    found = unwinder_of(program)
    with counted(monkeypatch) as steps:
        first = found.walk(batch)
        asked = steps[0]
        assert_same(first, found.walk(batch))
    by_record = int((first.trust == Trust.FP).sum())
    again = steps[0] - asked  # the innermost frame is always judged by its code, and the last record leads nowhere
    assert again <= 2 * len(lanes) < by_record / 2


def test_frame_that_a_slow_rule_finds_costs_one_step_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(X86_64, 2, uncovered=False)
    program.functions = [each for each in program.functions if each.kind in ("root", "sp_fp", "expr")]
    lanes = [make_lane(program, 20) for _ in range(20)]
    slow = sum(
        program.functions[0].rule is not None and encode_fast_rule(function.rule, X86_64)[0] == SLOW
        for lane in lanes
        for pc, _, _ in lane.frames
        for function in program.functions
        if function.rule is not None and function.svma <= pc - BASE < function.svma + FUNCTION
    )
    assert slow > 50
    with counted(monkeypatch) as steps:
        unwinder_of(program).walk(batch_of(X86_64, lanes))
    assert steps[0] == slow


def test_calls_that_code_rules_find_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of([Rule(X86_64.sp, 16, RegRule(RegKind.AT_CFA, -8))] * FUNCTIONS, Trust.CODE)
    code = bytearray(FUNCTION * (FUNCTIONS + 4))
    for at in range(16, len(code), 16):
        code[at - 2 : at] = b"\xff\xd0"  # an indirect call may call every function
    memory = {STACK + 0x1000 + 16 * n + 8: BASE + FUNCTION * (1 + n % 10) + 16 for n in range(40)}
    memory[STACK + 0x1000 + 16 * 40 + 8] = 0
    lane = MadeLane({X86_64.sp: STACK + 0x1000, X86_64.pc: BASE + FUNCTION + 16}, memory, [], STACK + 0x1000, 0x1000)
    found = Unwinder(
        HandImages(little_elf(X86_64, bytes(code))),
        UnwindOptions(sources=("eh_frame",)),
        Diagnostics(),
        {"eh_frame": reader_of(source)},
    )
    batch = batch_of(X86_64, [lane])
    assert len(found.walk(batch).pc) == 41
    with counted(monkeypatch) as steps:
        assert len(found.walk(batch).pc) == 41
    assert steps[0] == 1  # the root, which a rule from code does not prove


def colliding(count: int) -> list[int]:
    """Return offsets in a large module whose lookup pcs all have the first slot of every table of up to 2**12."""
    inverse = pow(MIX, -1, 1 << 64)
    found: list[int] = []
    number = 0
    while len(found) < count:
        number += 1
        pc = number * inverse & (1 << 64) - 1
        if pc * MIX >> 52 & 0xFFF == 0 and 0 < pc < 1 << 63:
            found.append(pc)
    return found


def test_addresses_that_collide_in_the_tables_are_found_with_bounded_work() -> None:
    library = find_library()
    assert library is not None
    table = RuleTable(X86_64)
    rules = [table.intern(Rule(X86_64.sp, 8 * size, RegRule(RegKind.AT_CFA, -8)), Trust.EH_FRAME) for size in (2, 3, 4)]
    pcs = colliding(200)
    ids = {pc: rules[number % 3] for number, pc in enumerate(pcs)}
    walker = NativeWalker(library, X86_64, table, 1000)
    index = _Index(ids)
    words, at = np.zeros(1000, np.uint64), 0
    expected: list[int] = []
    for pc in pcs[1:]:
        at += int(table.cfa_off[ids[pcs[len(expected)]]]) >> 3
        words[at - 1] = pc + 1
        expected.append(pc + 1)
    tables = walker.open_space(False)
    for _ in range(3):
        run = walker.follow_rules(index, tables, words, (STACK, pcs[0] + 1, STACK, UNKNOWN), 1000)  # type: ignore[arg-type]
        assert run.pc.tolist()[: len(expected)] == expected
    assert index.asked > 3 * (len(pcs) - 64)  # the tables hold the few that a search of bounded length reaches


class _Index:
    """Rules by lookup pc of return addresses, as SpaceIndex gives them."""

    version = 1

    def __init__(self, ids: dict[int, int]) -> None:
        self._ids = ids
        self.asked = 0

    def lasting_rule_id(self, pc: int, exact: bool) -> tuple[int, bool]:
        assert not exact
        self.asked += 1
        return self._ids.get(pc, 0), True


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


def laid_out(rules: list[Rule], stack: list[int]) -> tuple[np.ndarray, int]:
    """Return the memory of a stack, and fp of its innermost frame. Frames with rules by fp have 24 words."""
    sizes = [rules[each].cfa_off if rules[each].cfa_reg == X86_64.sp else 192 for each in stack]
    cfas = (STACK + np.cumsum([0, *sizes]))[1:].tolist()
    words = np.zeros((sum(sizes) >> 3) + 64, np.uint64)
    fp = 0
    for place in range(len(stack) - 1, -1, -1):
        rule, at = rules[stack[place]], (cfas[place] - STACK) >> 3
        words[at - 1] = 0x1000 * (stack[place + 1] + 1) if place + 1 < len(stack) else 0
        if rule.regs:
            words[at - 2] = fp
            fp = cfas[place] - 16 if rule.cfa_reg == X86_64.fp else 0x55
    return words, fp


def followed(rules: list[Rule], stack: list[int], words: np.ndarray, fp: int, most: int) -> tuple[FrameRun, _Index]:
    """Return the callers of a stack's innermost frame."""
    library = find_library()
    assert library is not None
    table = RuleTable(X86_64)
    ids = {0x1000 * (at + 1) - 1: table.intern(rule, Trust.EH_FRAME) for at, rule in enumerate(rules)}
    index = _Index(ids)
    walker = NativeWalker(library, X86_64, table, 1 << 17)
    start = STACK, 0x1000 * (stack[0] + 1), STACK, fp
    return walker.follow_rules(index, walker.open_space(True), words, start, most), index  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(made=recursions(), most=st.sampled_from([1, 7, 1 << 13]))
def test_callers_by_the_simplest_rules_are_those_of_the_stack(made: tuple[list[Rule], list[int]], most: int) -> None:
    rules, stack = made
    if not stack:
        return
    words, fp = laid_out(rules, stack)
    run, index = followed(rules, stack, words, fp, most)
    assert run.pc.tolist() == [0x1000 * (each + 1) for each in stack[1 : most + 1]]
    assert run.root == (len(stack) - 1 <= most)
    assert index.asked <= len(rules)
    cfas = STACK + np.cumsum([rules[each].cfa_off if rules[each].cfa_reg == X86_64.sp else 192 for each in stack])
    assert run.sp.tolist() == cfas[: len(run)].tolist()
    if run.root:
        assert run.top == cfas[-1]


def test_recursion_of_200_000_frames_is_followed_to_its_root() -> None:
    rule = Rule(X86_64.sp, 48, RegRule(RegKind.AT_CFA, -8))
    stack = [0] * 200_000
    words, fp = laid_out([rule], stack)
    run, index = followed([rule], stack, words, fp, 1 << 20)
    assert len(run) == 199_999
    assert run.root
    assert index.asked == 1


def test_slot_of_fp_outside_the_memory_ends_the_simplest_rules() -> None:
    rule = Rule(X86_64.sp, 16, RegRule(RegKind.AT_CFA, -8), ((X86_64.fp, RegRule(RegKind.AT_CFA, -4096)),))
    words = np.full(64, 0x1000, np.uint64)
    run, _ = followed([rule], [0], words, 7, 10)
    assert (len(run), run.root) == (0, False)


def test_more_frames_than_there_is_room_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_unwinder, "_FIRST_ROOM", 1)
    program = Program(X86_64, 3)
    lanes = [make_lane(program, 1 + n % 40) for n in range(60)]
    found = unwinder_of(program)
    batch = batch_of(X86_64, lanes)
    assert_same(found.walk(batch), found.walk_scalar(batch))


def test_tables_that_are_full_are_cleared_and_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_unwinder, "_MAX_BITS", 4)
    program = Program(X86_64, 4)
    found = unwinder_of(program)
    for _ in range(4):
        batch = batch_of(X86_64, [make_lane(program, 25) for _ in range(30)])
        assert_same(found.walk(batch), found.walk_scalar(batch))


@pytest.mark.parametrize("arch", [X86_64, AARCH64, S390X], ids=lambda arch: arch.name)
def test_without_a_native_walker_the_reference_walks_all_stacks(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(arch, 6)
    lanes = [make_lane(program, 1 + n % 30, n % 7 == 6) for n in range(60)]
    batch = batch_of(arch, lanes)
    with_native = unwinder_of(program).walk(batch)
    monkeypatch.setattr(unwinder, "find_library", lambda: None)
    walk = unwinder_of(program).walk(batch)
    assert_same(walk, with_native)
    assert (walk.end == StackEnd.ROOT).all()
