"""Tests of recovering the frame pointer of a sleeping thread in LEAF, called by FRAMED, whose rule needs it."""

from __future__ import annotations

from collections import Counter

import pytest

from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.unwind.heuristics import call_target_checks
from pyprof.unwind.heuristics import frame_pointer_recovery as recover
from pyprof.unwind.heuristics.call_target_checks import CallSites
from pyprof.unwind.reference_unwinder import ReferenceUnwinder
from pyprof.unwind.rules import RegKind, RegRule, Rule
from tests.unwind.made_stacks import BASE
from tests.unwind.made_world import CODE, COVERED, FP_RULE, FRAMED, LEAF, OTHER, PLT, RBP, ROOT, SP, World, found

PROLOGUE = bytes.fromhex("554889e5 53 4883ec38")  # push %rbp; mov %rsp,%rbp; push %rbx; sub $56,%rsp
ROOM = 64
"""Distance from FRAMED's sp to its frame pointer according to PROLOGUE. Its sp is SP + 8."""


def asleep(world: World, words: dict[int, int], pc: int = BASE + LEAF + 2, size: int = 0x400) -> Walk:
    return world.walk(words, kind=SampleKind.BLOCKED, pc=pc, size=size)


def framed_world(prologue: bytes = b"") -> tuple[World, int]:
    """Return a world in which FRAMED, with this code, has called LEAF, and the return address."""
    world = World()
    world.functions[CODE] = FP_RULE
    world.code[FRAMED : FRAMED + len(prologue)] = prologue
    return world, world.call(FRAMED + 0x40, LEAF)


INSIDE = [LEAF + 2, FRAMED + 0x45]


def test_frame_pointer_of_a_sleeper_is_found_where_the_record_is_proved() -> None:
    world, framed = framed_world()
    root = world.call(ROOT + 0x20, FRAMED)
    walk = asleep(world, {SP: framed, SP + 64: 0, SP + 72: root})
    assert found(walk) == ([*INSIDE, ROOT + 0x25], "root")
    assert walk.trust.tolist() == [Trust.CONTEXT, Trust.EH_FRAME, Trust.FP]
    assert not walk.lacks_register[0]


def test_frame_pointer_is_not_guessed_where_two_places_do() -> None:
    world, framed = framed_world()
    root = world.call(ROOT + 0x20, FRAMED)
    walk = asleep(world, {SP: framed, SP + 64: 0, SP + 72: root, SP + 128: 0, SP + 136: root})
    assert found(walk) == (INSIDE, "no_rule")
    assert walk.lacks_register[0]


@pytest.mark.parametrize("wrong", ["target", "no call", "no root", "none"])
def test_frame_pointer_is_not_guessed_where_the_proof_has_a_gap(wrong: str) -> None:
    world, framed = framed_world()
    root = world.call(ROOT + 0x20, FRAMED)
    match wrong:
        case "target":
            root = world.call(ROOT + 0x60, COVERED)
        case "no call":
            root += 1
        case "no root":
            del world.functions[ROOT]
        case "none":
            root = 0
    walk = asleep(world, {SP: framed, SP + 64: 1, SP + 72: root})
    assert found(walk) == (INSIDE, "no_rule")
    assert walk.lacks_register[0]


def test_outer_frame_that_was_called_through_a_pointer_is_no_rival_of_a_proof() -> None:
    world, framed = framed_world()
    code, root = world.call(CODE + 0x20, FRAMED), world.call(ROOT + 0x20)
    walk = asleep(world, {SP: framed, SP + 64: SP + 96, SP + 72: code, SP + 96: 0, SP + 104: root})
    assert found(walk) == ([*INSIDE, CODE + 0x25, ROOT + 0x22], "root")


def test_call_through_a_pointer_alone_proves_nothing() -> None:
    world, framed = framed_world()
    assert found(asleep(world, {SP: framed, SP + 64: 0, SP + 72: world.call(ROOT + 0x20)})) == (INSIDE, "no_rule")


def test_call_through_a_pointer_is_believed_where_the_functions_room_ends() -> None:
    world, framed = framed_world(PROLOGUE)
    stale, root = world.call(CODE + 0x20), world.call(ROOT + 0x20)
    fp = SP + 8 + ROOM
    words = {SP: framed, fp: 0, fp + 8: root}
    assert found(asleep(world, words)) == ([*INSIDE, ROOT + 0x22], "root")
    below = {SP + 24: fp + 32, SP + 32: stale, fp + 32: 0, fp + 40: root}  # stale words of an earlier call
    assert found(asleep(world, words | below)) == ([*INSIDE, ROOT + 0x22], "root")


def test_room_of_128_bytes_is_made_by_an_addition() -> None:
    """Use `add $-128,%rsp`, as gcc and clang do: -128 fits into a byte and 128 does not."""
    world, framed = framed_world(bytes.fromhex("554889e5 53 4883c480"))
    fp, root = SP + 8 + 8 + 128, world.call(ROOT + 0x20)
    assert found(asleep(world, {SP: framed, fp: 0, fp + 8: root})) == ([*INSIDE, ROOT + 0x22], "root")


@pytest.mark.parametrize(("pops", "size"), [("4883c420", 32), ("4881c400010000", 256), ("4883ec80", 128)])
def test_room_counts_the_arguments_that_are_popped_behind_the_call(pops: str, size: int) -> None:
    world, framed = framed_world(PROLOGUE)
    at, popping = FRAMED + 0x45, bytes.fromhex(pops)  # add $32,%rsp and the like
    world.code[at : at + len(popping)] = popping
    fp, root = SP + 8 + ROOM + size, world.call(ROOT + 0x20)
    assert found(asleep(world, {SP: framed, fp: 0, fp + 8: root})) == ([*INSIDE, ROOT + 0x22], "root")


@pytest.mark.parametrize(
    "pushes",
    ["4151 4157", "4883ec08 6a01", "6801000000 ff75e8", "50 51 4159 52"],
    ids=["registers", "alignment", "numbers", "popped"],
)
def test_room_counts_the_arguments_that_are_pushed_before_the_call(pushes: str) -> None:
    """Push arguments, which gcc pops somewhere after the call."""
    world, framed = framed_world(PROLOGUE)
    argued = bytes.fromhex("e800000000 f2ff10 6a01 7400") + bytes.fromhex(pushes)  # a call, another, an argument, je
    world.code[FRAMED + len(PROLOGUE) : FRAMED + 0x40] = argued.rjust(0x40 - len(PROLOGUE), b"\x90")
    fp, root = SP + 8 + ROOM + 16, world.call(ROOT + 0x20)
    assert found(asleep(world, {SP: framed, fp: 0, fp + 8: root})) == ([*INSIDE, ROOT + 0x22], "root")
    assert found(asleep(world, {SP: framed, fp - 16: 0, fp - 8: root})) == (INSIDE, "no_rule")


def test_room_of_an_outer_frame_must_hold_as_well() -> None:
    world, framed = framed_world(PROLOGUE)
    world.code[CODE : CODE + len(PROLOGUE)] = PROLOGUE
    fp, code, root = SP + 8 + ROOM, world.call(CODE + 0x40, FRAMED), world.call(ROOT + 0x20, CODE)
    outer = fp + 16 + ROOM
    words = {SP: framed, fp: outer, fp + 8: code, outer: 0, outer + 8: root}
    assert found(asleep(world, words)) == ([*INSIDE, CODE + 0x45, ROOT + 0x25], "root")
    longer = {SP: framed, fp: outer + 16, fp + 8: code, outer + 16: 0, outer + 24: root}
    assert found(asleep(world, longer))[1] == "no_rule"


def moving_world() -> tuple[World, int]:
    """Return a world in which FRAMED changes sp by an amount that its code does not contain."""
    world, framed = framed_world(PROLOGUE)
    world.code[FRAMED + 0x20 : FRAMED + 0x23] = bytes.fromhex("4829c4")  # sub %rax,%rsp
    return world, framed


def test_room_that_is_not_fixed_tells_nothing_but_how_much_it_is_at_least() -> None:
    world, framed = moving_world()
    fp, direct = SP + 8 + ROOM, world.call(ROOT + 0x40, FRAMED)
    beyond = {SP: framed, fp + 64: 0, fp + 72: direct}
    assert found(asleep(world, beyond)) == ([*INSIDE, ROOT + 0x45], "root")
    stale = {SP + 40: 0, SP + 48: direct}  # stale words of an earlier call of the same function
    assert found(asleep(world, beyond | stale)) == ([*INSIDE, ROOT + 0x45], "root")


def test_function_with_variable_sp_called_by_pointer_has_its_only_caller() -> None:
    world, framed = moving_world()
    fp, pointer, code = SP + 8 + ROOM, world.call(ROOT + 0x20), world.call(CODE + 0x20)
    alone = {SP: framed, fp + 64: 0, fp + 72: pointer}
    assert found(asleep(world, alone)) == ([*INSIDE, ROOT + 0x22], "root")
    inside = {
        fp + 16: fp + 32,
        fp + 24: code,
        fp + 40: 1,
    }  # this chain does not reach the root, but may be the true one
    assert found(asleep(world, alone | inside)) == (INSIDE, "no_rule")


def test_proof_is_none_where_the_calls_caller_may_have_called_anew() -> None:
    world, framed = moving_world()
    world.functions |= {OTHER: FP_RULE, COVERED: FP_RULE, PLT: FP_RULE}
    fp = SP + 8 + ROOM
    calls = [world.call(CODE + 0x20, FRAMED), world.call(OTHER + 0x20), world.call(COVERED + 0x20, OTHER),
             world.call(PLT + 0x20, COVERED), world.call(ROOT + 0x20, PLT)]  # fmt: skip
    words = {SP: framed}
    for n, ra in enumerate(calls, 1):
        words |= {fp + 64 * n: fp + 64 * (n + 1) if n < len(calls) else 0, fp + 64 * n + 8: ra}
    # either OTHER has called CODE, which has called FRAMED, or OTHER has called FRAMED where it called CODE before
    assert found(asleep(world, words)) == (INSIDE, "no_rule")
    words[fp + 136] = world.call(OTHER + 0x40, CODE)
    assert found(asleep(world, words))[1] == "root"


def test_innermost_of_a_functions_own_calls_is_its_caller() -> None:
    world, framed = framed_world()
    again, root = world.call(FRAMED + 0x60, FRAMED), world.call(ROOT + 0x20, FRAMED)
    words = {SP: framed, SP + 64: SP + 96, SP + 72: again, SP + 96: 0, SP + 104: root}
    assert found(asleep(world, words)) == ([*INSIDE, FRAMED + 0x65, ROOT + 0x25], "root")


def test_proof_is_none_where_a_call_through_a_pointer_leads_to_it() -> None:
    world, framed = framed_world()
    root, pointer = world.call(ROOT + 0x20, FRAMED), world.call(FRAMED + 0x60)
    words = {SP: framed, SP + 64: 0, SP + 72: root}
    assert found(asleep(world, words))[1] == "root"
    assert found(asleep(world, words | {SP + 32: SP + 64, SP + 40: pointer})) == (INSIDE, "no_rule")


def test_call_through_the_plt_goes_where_its_slot_points() -> None:
    world, framed = framed_world()
    world.code[PLT : PLT + 6] = bytes.fromhex("ff25 00010000")
    slot = BASE + PLT + 6 + 0x100
    words = {SP: framed, SP + 64: 0, SP + 72: world.call(ROOT + 0x20, PLT)}
    assert found(asleep(world, words)) == (INSIDE, "no_rule")  # the PLT's slot cannot be read
    world.pointers[slot] = BASE + FRAMED
    assert found(asleep(world, words)) == ([*INSIDE, ROOT + 0x25], "root")
    world.pointers[slot] = BASE + COVERED
    assert found(asleep(world, words)) == (INSIDE, "no_rule")


def test_call_by_a_slot_of_its_module_goes_where_that_points() -> None:
    world, framed = framed_world()
    root = world.call(ROOT + 0x26, 0) + 1
    world.code[ROOT + 0x26 : ROOT + 0x2C] = bytes.fromhex("ff15 00010000")
    words = {SP: framed, SP + 64: 0, SP + 72: root}
    world.pointers[root + 0x100] = BASE + FRAMED
    assert found(asleep(world, words)) == ([*INSIDE, ROOT + 0x2C], "root")


@pytest.mark.parametrize("hops", [1, 2])
def test_function_that_jumps_on_has_called_the_one_that_it_jumps_to(hops: int) -> None:
    world, framed = framed_world()
    root = world.call(ROOT + 0x20, OTHER)
    world.functions[OTHER] = world.functions[LEAF]
    for at, to in ((OTHER + 8, COVERED), (COVERED + 10, FRAMED)) if hops == 2 else ((OTHER + 8, FRAMED),):
        world.code[at : at + 5] = b"\xe9" + (to - at - 5).to_bytes(4, "little", signed=True)
    words = {SP: framed, SP + 64: 0, SP + 72: root}
    assert found(asleep(world, words)) == ([*INSIDE, ROOT + 0x25], "root")


def test_start_of_a_function_without_a_table_is_where_it_links_its_record() -> None:
    world = World()
    del world.functions[FRAMED]
    world.code[FRAMED : FRAMED + 4] = PROLOGUE[:4]
    world.code[FRAMED + 0x20 : FRAMED + 0x23] = bytes.fromhex("4829c4")
    framed = world.call(FRAMED + 0x40, LEAF)
    words = {SP: framed, SP + 64: 0}
    assert found(asleep(world, words | {SP + 72: world.call(ROOT + 0x20, FRAMED)})) == ([*INSIDE, ROOT + 0x25], "root")
    assert found(asleep(world, words | {SP + 72: world.call(ROOT + 0x20, COVERED)})) == (INSIDE, "no_rule")


def test_realigned_frame_is_found_by_the_address_that_it_keeps_of_its_caller() -> None:
    world, framed = framed_world()
    kept = RegRule(RegKind.AT_REG, 0, RBP)
    world.functions[FRAMED] = Rule(RBP, -8, RegRule(RegKind.AT_CFA, -8), ((RBP, kept),), cfa_deref=True)
    root = world.call(ROOT + 0x20, FRAMED)
    words = {SP: framed, SP + 56: SP + 112, SP + 64: 0, SP + 72: root, SP + 104: root}
    assert found(asleep(world, words)) == ([*INSIDE, ROOT + 0x25], "root")


def test_copy_that_is_too_short_to_tell_says_so() -> None:
    world, framed = framed_world(PROLOGUE)
    walk = asleep(world, {SP: framed}, size=32)
    assert found(walk) == (INSIDE, "unreadable")
    assert walk.missing[0] == SP + 8 + ROOM + 8


@pytest.mark.parametrize("kind", ["refuted", "allowed", "proved", "deep"])
def test_work_is_bounded_for_a_stack_full_of_return_addresses(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, framed = framed_world()
    step, link, done = ReferenceUnwinder.find_caller, CallSites.call_evidence, Counter[str]()

    def counted_step(*arguments: object) -> object:
        done["frames"] += 1
        return step(*arguments)  # type: ignore[arg-type]

    def counted_link(*arguments: object) -> object:
        done["links"] += 1
        return link(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ReferenceUnwinder, "find_caller", counted_step)
    monkeypatch.setattr(CallSites, "call_evidence", counted_link)
    ras = []
    for n in range(0x100):
        at = FRAMED + 0x60 + n * 3 if kind == "allowed" else FRAMED + 0x60 + n * 6
        if at > FRAMED + 0x3F0:
            break
        ras.append(world.call(at, {"allowed": None, "refuted": COVERED}.get(kind, FRAMED)))
    words = {SP: framed}
    for n in range(1 << 16):
        where = SP + 8 + 16 * n
        words[where] = where + 16 if kind == "deep" else SP + 24 + 16 * (n * 7919 % (1 << 16))
        words[where + 8] = ras[n % len(ras)]
    walk = asleep(world, words, size=1 << 20)
    assert found(walk)[0] == INSIDE
    assert StackEnd(walk.end[0]) in (StackEnd.NO_RULE, StackEnd.UNREADABLE)
    times = 2  # each walker counts once
    assert done["links"] > 0
    assert done["frames"] <= times * (recover.MAX_FRAMES + 2 * recover.MAX_PLACES)
    assert done["links"] <= done["frames"] + times * (recover.MAX_PLACES + 2)
    assert call_target_checks.MAX_SCANNED <= recover.MAX_PLACES
