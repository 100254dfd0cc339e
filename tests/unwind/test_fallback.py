"""Tests of frames that no table covers: valid and invalid frame records."""

from __future__ import annotations

import pytest

from pyprof.model.arch import AARCH64
from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import Trust
from pyprof.unwind.rules import UNDEFINED, RegKind, RegRule, Rule
from tests.unwind.made_stacks import BASE, SPAN, STACK
from tests.unwind.made_world import (
    AT_RA,
    CODE,
    COVERED,
    FRAMED,
    LEAF,
    OTHER,
    PLT,
    RBP,
    ROOT,
    RSP,
    SP,
    World,
    found,
)


def test_chain_of_records_is_followed_to_the_root() -> None:
    world = World()
    first, second, third = world.call(CODE), world.call(OTHER, CODE), world.call(ROOT, OTHER)
    words = {SP + 8: SP + 32, SP + 16: second, SP + 32: 0, SP + 40: third}
    walk = world.walk({**words, SP: 1}, pc=first, fp=SP + 8)
    assert found(walk) == ([CODE + 2, OTHER + 5, ROOT + 5], "root")
    assert walk.trust.tolist() == [Trust.CONTEXT, Trust.FP, Trust.FP]


@pytest.mark.parametrize("many", [1, 40])
def test_record_that_does_not_look_like_one_is_refused(many: int) -> None:
    world = World()
    code, caller = world.call(CODE), world.call(OTHER)
    at = code + 1
    for words, fp in [
        ({SP + 8: SP + 32, SP + 16: caller + 1}, SP + 8),  # no call precedes the return address
        ({SP + 8: SP + 32, SP + 16: STACK + 64}, SP + 8),  # not code
        ({SP + 8: SP, SP + 16: caller}, SP + 8),  # leads downwards, and no table covers the caller
        ({SP + 9: SP + 32, SP + 17: caller}, SP + 9),  # not aligned
        ({SP - 16: SP + 32, SP - 8: caller}, SP - 16),  # below sp
        ({}, 0x1234560),  # outside of the stack
    ]:
        assert found(world.walk(words, pc=at, fp=fp, many=many))[1] == "no_rule", (words, fp)


def test_saved_base_may_be_anything_where_a_table_takes_over() -> None:
    world = World()
    covered, root = world.call(COVERED), world.call(ROOT)
    walk = world.walk({SP + 8: 0xABC, SP + 16: covered, SP + 32: root}, pc=BASE + CODE + 9, fp=SP + 8)
    assert found(walk) == ([CODE + 9, COVERED + 2, ROOT + 2], "root")


def test_record_past_the_copy_is_unreadable_and_named() -> None:
    world = World()
    walk = world.walk({}, pc=BASE + CODE + 9, fp=SP + 0x800)
    assert found(walk) == ([CODE + 9], "unreadable")
    assert walk.missing.tolist() == [SP + 0x800]


def test_return_address_without_a_record_is_found_by_the_calls_target() -> None:
    world = World()
    caller, root = world.call(OTHER, CODE), world.call(ROOT)
    rest = {SP + 32: 0, SP + 40: root}
    walk = world.walk({SP: caller, **rest}, pc=BASE + CODE + 4, fp=SP + 32)
    assert found(walk) == ([CODE + 4, OTHER + 5, ROOT + 2], "root")
    pushed = world.walk({SP: SP + 32, SP + 8: caller, **rest}, pc=BASE + CODE + 1, fp=SP + 32)
    assert found(pushed) == ([CODE + 1, OTHER + 5, ROOT + 2], "root")


def test_stale_return_address_on_top_does_not_hide_the_record() -> None:
    world = World()
    stale, caller, root = world.call(LEAF, PLT), world.call(OTHER, CODE), world.call(ROOT)
    words = {SP: stale, SP + 8: SP + 32, SP + 16: caller, SP + 32: 0, SP + 40: root}
    assert found(world.walk(words, pc=BASE + CODE + 40, fp=SP + 8)) == ([CODE + 40, OTHER + 5, ROOT + 2], "root")


def test_call_of_a_null_pointer_shows_its_caller() -> None:
    world = World()
    caller, root = world.call(COVERED), world.call(ROOT)
    assert found(world.walk({SP: caller, SP + 16: root}, pc=0, fp=3)) == (
        [-BASE % 2**64, COVERED + 2, ROOT + 2],
        "root",
    )


def test_link_register_of_a_leaf_is_its_caller() -> None:
    world = World(arch=AARCH64)
    world.functions = {ROOT: Rule(AARCH64.sp, 0, UNDEFINED)}
    world.code[ROOT : ROOT + 4] = (0x94000000 | (CODE - ROOT) // 4).to_bytes(4, "little")
    walk = world.walk({}, pc=BASE + CODE + 8, lr=BASE + ROOT + 4, fp=0)
    assert found(walk) == ([CODE + 8, ROOT + 4], "root")
    assert walk.trust.tolist() == [Trust.CONTEXT, Trust.LR]


def test_frame_that_cannot_be_code_is_dropped() -> None:
    world = World()
    for no_code in (5, STACK + 8, 1 << 63 | 8):
        walk = world.walk({SP: no_code}, pc=BASE + LEAF, fp=0)
        assert found(walk) == ([LEAF], "no_rule")
    many = world.walk({SP: 5}, pc=BASE + LEAF, fp=0, many=40)
    assert (many.pc - BASE).tolist() == [LEAF] * 40


def test_fallback_that_is_switched_off_refuses() -> None:
    world = World()
    words = {SP + 8: 0, SP + 16: world.call(ROOT)}
    assert found(world.walk(words, pc=BASE + CODE, fp=SP + 8))[1] == "root"
    assert found(world.walk(words, pc=BASE + CODE, fp=SP + 8, sources=("eh_frame",)))[1] == "no_rule"


def test_entry_function_without_a_table_is_the_root() -> None:
    world = World(entry=CODE)
    start = world.call(CODE + 0x20)
    assert found(world.walk({SP: start, SP + 8: 1}, pc=BASE + LEAF, fp=5)) == ([LEAF, CODE + 0x22], "root")
    world.entry = OTHER
    assert found(world.walk({SP: start, SP + 8: 1}, pc=BASE + LEAF, fp=5)) == ([LEAF, CODE + 0x22], "no_rule")


def test_base_of_zero_is_the_root_of_a_thread_that_started_without_a_table() -> None:
    world = World()
    assert found(world.walk({SP: world.call(CODE)}, pc=BASE + LEAF, fp=0)) == ([LEAF, CODE + 2], "root")
    assert found(world.walk({SP: BASE + SPAN + 8}, pc=BASE + LEAF, fp=0)) == ([LEAF, SPAN + 8], "no_rule")


def test_base_of_zero_is_no_root_where_return_addresses_stand_further_up() -> None:
    world = World()
    words = {SP: world.call(CODE), SP + 64: world.call(ROOT)}
    assert found(world.walk(words, pc=BASE + LEAF, fp=0)) == ([LEAF, CODE + 2], "no_rule")


def test_frame_pointer_that_an_inner_frame_saved_needs_no_proof() -> None:
    world = World()
    world.functions[LEAF] = Rule(RSP, 16, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),))
    framed, root = world.call(FRAMED + 0x20), world.call(ROOT + 0x20, CODE)
    words = {SP: SP + 64, SP + 8: framed, SP + 64: 0, SP + 72: root}
    walk = world.walk(words, kind=SampleKind.BLOCKED, pc=BASE + LEAF + 2)
    assert found(walk) == ([LEAF + 2, FRAMED + 0x22, ROOT + 0x25], "root")


def test_return_address_where_a_call_leaves_sp_is_the_callers_before_any_record() -> None:
    world = World()
    caller, root, beyond = world.call(COVERED), world.call(ROOT), world.call(ROOT + 0x40)
    words = {
        SP + 8: caller,
        SP + 24: root,
        SP + 32: 0,
        SP + 40: beyond,
    }  # the record at SP + 32 belongs to an outer frame
    walk = world.walk(words, sp=SP + 8, pc=BASE + CODE, fp=SP + 32)
    assert found(walk) == ([CODE, COVERED + 2, ROOT + 2], "root")


def test_handler_without_a_table_returns_to_the_trampoline_at_once() -> None:
    world = World()
    world.functions[OTHER - 1] = Rule(RSP, 0x30, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),), signal=True)
    words = {SP + 0x28: BASE + COVERED, SP + 0x40 - 8: world.call(ROOT)}
    entered = world.walk({SP - 8: BASE + OTHER, **words}, sp=SP - 8, pc=BASE + CODE, fp=7)
    assert found(entered) == ([CODE, OTHER, COVERED, ROOT + 2], "root")
    assert entered.exact.tolist() == [True, False, True, False]
    linked = world.walk({SP - 16: 7, SP - 8: BASE + OTHER, **words}, sp=SP - 16, pc=BASE + CODE + 4, fp=SP - 16)
    assert found(linked)[0][:3] == [CODE + 4, OTHER, COVERED]
