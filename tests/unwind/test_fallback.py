"""Frames that no table covers: records that are believed, records that are not, and recovery of a frame pointer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import AARCH64, X86_64, Arch
from pyprof.model.sample import SampleKind
from pyprof.model.walk import StackEnd, Trust, Walk
from pyprof.options import UnwindOptions
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import BASE, SPAN, STACK, HandImages, HandSource, MadeLane, batch_of, little_elf

RBX, RBP, RSP, RIP = 3, 6, 7, 16
SP = STACK + 0x1000
AT_RA = RegRule(RegKind.AT_CFA, -8)
ROOT_RULE = Rule(RSP, 8, UNDEFINED)
FP_RULE = Rule(RBP, 16, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),))
LEAF_RULE = Rule(RSP, 8, AT_RA)

ROOT, CODE, OTHER, COVERED, FRAMED, LEAF, PLT = (0x1000 * n for n in range(1, 8))
"""svma of functions: covered by ROOT_RULE; not covered; not covered; LEAF_RULE + 8; FP_RULE; LEAF_RULE; a jump."""


@dataclass
class World:
    """Code and tables of a program, a stack, and the walk of both walkers over it."""

    arch: Arch = X86_64
    entry: int = 0
    code: bytearray = field(default_factory=lambda: bytearray(SPAN))
    functions: dict[int, Rule] = field(
        default_factory=lambda: {ROOT: ROOT_RULE, COVERED: Rule(RSP, 16, AT_RA), FRAMED: FP_RULE, LEAF: LEAF_RULE}
    )
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def call(self, at: int, target: int | None = None) -> int:
        """Put a call into the code, direct or (target None) indirect; its return address as avma."""
        if target is None:
            self.code[at : at + 2] = b"\xff\xd0"
            return BASE + at + 2
        self.code[at : at + 5] = b"\xe8" + (target - at - 5).to_bytes(4, "little", signed=True)
        return BASE + at + 5

    def walk(
        self,
        words: dict[int, int],
        size: int = 0x400,
        kind: SampleKind = SampleKind.STOPPED,
        sources: tuple[str, ...] = ("eh_frame", "fp"),
        many: int = 1,
        **registers: int,
    ) -> Walk:
        names = {"sp": self.arch.sp, "fp": self.arch.fp, "pc": self.arch.pc, "lr": self.arch.lr}
        known = {names.get(n, -1): v for n, v in {"sp": SP, **registers}.items()}
        lane = MadeLane(known, words, [], SP - 0x80, size + 0x80, kind)
        rows = [FunctionRows(svma, svma + 0x400, (svma,), (rule,)) for svma, rule in self.functions.items()]
        unwinder = Unwinder(
            HandImages(little_elf(self.arch, bytes(self.code), self.entry)),
            UnwindOptions(sources=sources),
            self.diagnostics,
            {"eh_frame": lambda elf, arch, diagnostics: HandSource(rows)},
        )
        batch = batch_of(self.arch, [lane] * many)
        walk = unwinder.walk_scalar(batch)
        assert walk.pc.tolist() == unwinder.walk(batch).pc.tolist()
        return walk


def found(walk: Walk) -> tuple[list[int], str]:
    return (walk.pc - BASE).tolist(), StackEnd(walk.end[0]).label


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
        ({SP + 8: SP + 32, SP + 16: caller + 1}, SP + 8),  # no call before the return address
        ({SP + 8: SP + 32, SP + 16: STACK + 64}, SP + 8),  # not code
        ({SP + 8: SP, SP + 16: caller}, SP + 8),  # goes down, and no table covers the caller
        ({SP + 9: SP + 32, SP + 17: caller}, SP + 9),  # not aligned
        ({SP - 16: SP + 32, SP - 8: caller}, SP - 16),  # below sp
        ({}, 0x1234560),  # nowhere
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


def test_return_address_of_a_function_without_its_record_is_found_by_the_calls_target() -> None:
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


# A thread asleep in LEAF, called by FRAMED, whose rule needs the frame pointer that nobody saved.


def asleep(world: World, words: dict[int, int], pc: int = BASE + LEAF + 2) -> Walk:
    return world.walk(words, kind=SampleKind.BLOCKED, pc=pc)


def test_frame_pointer_of_a_sleeper_is_found_where_the_record_is_proved() -> None:
    world = World()
    framed, root = world.call(FRAMED + 0x20, LEAF), world.call(ROOT + 0x20, FRAMED)
    walk = asleep(world, {SP: framed, SP + 64: 0, SP + 72: root})
    assert found(walk) == ([LEAF + 2, FRAMED + 0x25, ROOT + 0x25], "root")
    assert walk.trust.tolist() == [Trust.CONTEXT, Trust.EH_FRAME, Trust.FP]
    assert not walk.lacks_register[0]


def test_frame_pointer_is_not_guessed_where_two_places_do() -> None:
    world = World()
    framed, root = world.call(FRAMED + 0x20, LEAF), world.call(ROOT + 0x20, FRAMED)
    walk = asleep(world, {SP: framed, SP + 64: 0, SP + 72: root, SP + 128: 0, SP + 136: root})
    assert found(walk) == ([LEAF + 2, FRAMED + 0x25], "no_rule")
    assert walk.lacks_register[0]


@pytest.mark.parametrize("wrong", ["target", "no call", "no root", "none"])
def test_frame_pointer_is_not_guessed_where_the_proof_has_a_gap(wrong: str) -> None:
    world = World()
    framed, root = world.call(FRAMED + 0x20, LEAF), world.call(ROOT + 0x20, FRAMED)
    match wrong:
        case "target":
            root = world.call(ROOT + 0x40, COVERED)
        case "no call":
            root += 1
        case "no root":
            del world.functions[ROOT]
        case "none":
            root = 0
    walk = asleep(world, {SP: framed, SP + 64: 1, SP + 72: root})
    assert found(walk) == ([LEAF + 2, FRAMED + 0x25], "no_rule")
    assert walk.lacks_register[0]


def test_call_through_the_plt_is_a_proof() -> None:
    world = World()
    world.code[PLT : PLT + 6] = b"\xff\x25\0\0\0\0"
    framed, root = world.call(FRAMED + 0x20, LEAF), world.call(ROOT + 0x20, PLT)
    assert found(asleep(world, {SP: framed, SP + 64: 0, SP + 72: root}))[1] == "root"


def test_frame_pointer_that_an_inner_frame_saved_needs_no_proof() -> None:
    world = World()
    world.functions[LEAF] = Rule(RSP, 16, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),))
    framed, root = world.call(FRAMED + 0x20), world.call(ROOT + 0x20, CODE)
    walk = asleep(world, {SP: SP + 64, SP + 8: framed, SP + 64: 0, SP + 72: root})
    assert found(walk) == ([LEAF + 2, FRAMED + 0x22, ROOT + 0x25], "root")


def test_return_address_where_a_call_leaves_sp_is_the_callers_before_any_record() -> None:
    world = World()
    caller, root, beyond = world.call(COVERED), world.call(ROOT), world.call(ROOT + 0x40)
    words = {SP + 8: caller, SP + 24: root, SP + 32: 0, SP + 40: beyond}  # the record at SP + 32 is an outer frame's
    walk = world.walk(words, sp=SP + 8, pc=BASE + CODE, fp=SP + 32)
    assert found(walk) == ([CODE, COVERED + 2, ROOT + 2], "root")


def test_handler_without_a_table_returns_to_the_trampoline_from_its_first_instruction_on() -> None:
    world = World()
    world.functions[OTHER - 1] = Rule(RSP, 0x30, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),), signal=True)
    words = {SP + 0x28: BASE + COVERED, SP + 0x40 - 8: world.call(ROOT)}
    entered = world.walk({SP - 8: BASE + OTHER, **words}, sp=SP - 8, pc=BASE + CODE, fp=7)
    assert found(entered) == ([CODE, OTHER, COVERED, ROOT + 2], "root")
    assert entered.exact.tolist() == [True, False, True, False]
    linked = world.walk({SP - 16: 7, SP - 8: BASE + OTHER, **words}, sp=SP - 16, pc=BASE + CODE + 4, fp=SP - 16)
    assert found(linked)[0][:3] == [CODE + 4, OTHER, COVERED]
