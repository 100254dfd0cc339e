"""Tests of each directive of libunwind's dynamic unwind info (unwind/formats/libunwind_regions.py)."""

from __future__ import annotations

import pytest

from pyprof.model.arch import AARCH64, I386, X86_64, Arch
from pyprof.unwind.formats.libunwind_regions import NotDescribed, Procedure
from pyprof.unwind.formats.libunwind_registrations import Op, Region, Tag
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule

RBX, RBP, RSP, R12, R13, R14, RIP = 3, 6, 7, 12, 13, 14, 16
RA = RegRule(RegKind.AT_CFA, -8)


def at_cfa(n: int) -> RegRule:
    return RegRule(RegKind.AT_CFA, n)


def add(when: int, n: int, reg: int = RSP) -> Op:
    return Op(Tag.ADD, reg, when, n)


def spill(when: int, reg: int, n: int = 0) -> Op:
    return Op(Tag.SPILL_SP_REL, reg, when, n)


def save(when: int, reg: int, to: int) -> Op:
    return Op(Tag.SAVE_REG, reg, when, to)


def rules(*regions: Region, size: int = 100, arch: Arch = X86_64, elsewhere: Rule | None = None) -> Procedure:
    return Procedure(regions, size, arch, lambda pc: elsewhere)


def rule(procedure: Procedure, offset: int) -> Rule:
    placed = procedure.rule_at(offset)
    assert placed.low <= offset < placed.high
    for place in (placed.low, placed.high - 1):
        assert procedure.rule_at(place) == placed, "the rule holds where it is said to"
    return placed.rule


def test_no_regions_mean_the_calls_own_state() -> None:
    assert rule(rules(), 50) == Rule(RSP, 8, RA)
    assert rule(rules(arch=AARCH64), 50) == Rule(AARCH64.sp, 0, SAME)


def test_directive_is_in_force_behind_its_instruction_whichever_byte_of_it_is_named() -> None:
    for when in (4, 5, 7):  # sub $0x10,%rsp has bytes 4 to 7, the next instruction begins at 8
        procedure = rules(Region(20, (add(when, -16),)))
        assert rule(procedure, 4) == Rule(RSP, 8, RA)
        assert rule(procedure, 8) == Rule(RSP, 24, RA)


def test_order_of_the_list_says_nothing() -> None:
    ops = (add(0, -8), spill(0, RBX), add(1, -8), spill(1, RBP), add(2, -32))
    backwards = rules(Region(50, tuple(reversed(ops))))
    for offset in (0, 1, 2, 3, 40):
        assert rule(backwards, offset) == rule(rules(Region(50, ops)), offset)
    assert rule(backwards, 3) == Rule(RSP, 56, RA, ((RBX, at_cfa(-16)), (RBP, at_cfa(-24))))


def test_spill_is_relative_to_the_stack_pointer_behind_its_own_instruction() -> None:
    """Check that later changes of sp do not move the spill slot."""
    procedure = rules(Region(50, (add(0, -32), spill(4, RBX, 16), add(8, -64))))
    assert rule(procedure, 5) == Rule(RSP, 40, RA, ((RBX, at_cfa(16 - 40)),))
    assert rule(procedure, 9) == Rule(RSP, 104, RA, ((RBX, at_cfa(16 - 40)),))


def test_saved_stack_pointer_gives_the_cfa_from_then_on() -> None:
    procedure = rules(Region(50, (add(0, -8), spill(0, RBP), save(1, RSP, RBP), add(4, -128))))
    assert rule(procedure, 1) == Rule(RSP, 16, RA, ((RBP, at_cfa(-16)),))
    assert rule(procedure, 2) == rule(procedure, 40) == Rule(RBP, 16, RA, ((RBP, at_cfa(-16)),))


def test_frame_pointer_spill_is_relative_to_the_register_that_keeps_sp() -> None:
    ops = (add(0, -8), save(1, RSP, R12), Op(Tag.SPILL_FP_REL, RBX, 2, -24))
    assert dict(rule(rules(Region(50, ops)), 9).regs)[RBX] == at_cfa(-24 - 16)
    alone = Op(Tag.SPILL_FP_REL, RBX, 2, -24)
    assert dict(rule(rules(Region(50, (alone,))), 9).regs)[RBX] == RegRule(RegKind.AT_REG, -24, RBP)


def test_register_saved_in_another_is_found_there_and_saved_in_itself_is_back() -> None:
    procedure = rules(Region(50, (save(0, RBX, R13), save(9, RBX, RBX))))
    assert dict(rule(procedure, 5).regs) == {RBX: RegRule(RegKind.REG_PLUS, 0, R13)}
    assert rule(procedure, 10).regs == ()


def test_pop_frames_restores_the_entrys_stack_and_keeps_what_registers_hold() -> None:
    ops = (add(0, -8), spill(0, RBP), save(1, RSP, RBP), save(2, RBX, R13), Op(Tag.POP_FRAMES, 0, 30, 1))
    procedure = rules(Region(40, ops))
    assert rule(procedure, 31) == Rule(RSP, 8, RA, ((RBX, RegRule(RegKind.REG_PLUS, 0, R13)),))


@pytest.mark.parametrize(("levels", "cfa"), [(0, 8 + 48), (1, 8 + 16), (2, 8), (99, 8)])
def test_pop_frames_undoes_as_many_regions_as_it_says_its_own_first(levels: int, cfa: int) -> None:
    procedure = rules(
        Region(10, (add(0, -16),)), Region(10, (add(0, -32), Op(Tag.POP_FRAMES, 0, 5, levels))), Region(10, ())
    )
    assert rule(procedure, 18) == Rule(RSP, 8, RA)
    assert rule(procedure, 20).cfa_off == cfa


def test_copied_state_is_the_whole_labelled_one() -> None:
    label, copy = Op(Tag.LABEL_STATE, 0, -1, 7), Op(Tag.COPY_STATE, 0, -1, 7)
    procedure = rules(
        Region(10, (add(0, -8), spill(0, RBX), save(1, RSP, R12), label)),
        Region(10, (Op(Tag.POP_FRAMES, 0, 2, 2),)),
        Region(10, (copy, add(3, -8))),
    )
    assert rule(procedure, 15) == Rule(RSP, 8, RA)
    assert rule(procedure, 20) == rule(procedure, 9) == Rule(R12, 16, RA, ((RBX, at_cfa(-16)),))
    with pytest.raises(NotDescribed, match="no label"):
        rules(Region(10, (copy,))).rule_at(5)


def test_empty_region_sets_the_state_of_what_follows() -> None:
    procedure = rules(Region(0, (add(0, -8), spill(0, RBX), add(0, -16))), Region(40, ()))
    assert rule(procedure, 0) == Rule(RSP, 32, RA, ((RBX, at_cfa(-16)),))


def test_directives_of_one_instruction_are_taken_together() -> None:
    """Evaluate a prologue as MoarVM registers it: as one instruction, with the spill before the change of sp by its
    push.
    """
    ops = (
        spill(0, RBP, 0), add(0, -8), save(0, RSP, RBP), add(0, -0x100, reg=RBP),
        spill(0, R14, -8), spill(0, R13, -0x10), spill(0, 1, -0x18),
    )  # fmt: skip
    procedure = rules(Region(26, ops), Region(500, ()), Region(30, ()), size=300)
    found = rule(procedure, 200)
    assert (found.cfa_reg, found.cfa_off, found.ra) == (RBP, 16, RA)
    assert {RBP: at_cfa(-16), R14: at_cfa(-24), R13: at_cfa(-32)}.items() <= dict(found.regs).items()


def test_empty_first_region_that_spills_the_return_address_describes_the_call() -> None:
    call = Region(0, (add(0, -8), spill(0, RIP)))
    procedure = rules(call, Region(40, (add(0, -8), spill(0, RBP))))
    assert rule(procedure, 0) == Rule(RSP, 8, RA)
    assert rule(procedure, 1) == Rule(RSP, 16, RA, ((RBP, at_cfa(-16)),))


def test_negative_region_covers_the_end() -> None:
    procedure = rules(Region(10, (add(0, -16),)), Region(-20, (add(4, 16),)))
    assert [rule(procedure, offset).cfa_off for offset in (0, 5, 50, 84, 85, 99)] == [8, 24, 24, 24, 8, 8]
    with pytest.raises(NotDescribed, match="not the last"):
        rules(Region(-20, ()), Region(10, ())).rule_at(90)


def test_alias_is_the_other_codes_rule_as_far_into_it() -> None:
    asked: list[int] = []

    def elsewhere(pc: int) -> Rule | None:
        asked.append(pc)
        return Rule(RSP, 64, RA) if pc < 0x1000 + 30 else None

    alias = Region(40, (Op(Tag.ALIAS, 0, -1, 0x1000), add(0, -999)))
    procedure = Procedure((alias, Region(10, ())), 100, X86_64, elsewhere)
    assert procedure.rule_at(25).rule == Rule(RSP, 64, RA)
    assert asked == [0x1000 + 25]
    with pytest.raises(NotDescribed, match="alias of code without a rule"):
        procedure.rule_at(35)
    empty = rules(Region(0, (Op(Tag.ALIAS, 0, -1, 0x1000),)), Region(10, (add(0, -8),)), elsewhere=Rule(RSP, 64, RA))
    assert rule(empty, 5).cfa_off == 72


def test_link_register_and_its_saved_places() -> None:
    lr, sp = 30, 31
    procedure = rules(Region(40, (add(0, -32, reg=sp), spill(4, lr, 8), Op(Tag.POP_FRAMES, 0, 32, 1))), arch=AARCH64)
    assert rule(procedure, 0) == Rule(AARCH64.sp, 0, SAME)
    assert rule(procedure, 8) == Rule(AARCH64.sp, 32, at_cfa(8 - 32))
    assert rule(procedure, 36) == Rule(AARCH64.sp, 0, SAME)


def test_registers_of_i386_have_libunwinds_numbers() -> None:
    """Use libunwind's numbers: UNW_X86_EBP is 6 and UNW_X86_ESP is 7, which DWARF numbers the other way round."""
    found = rule(rules(Region(40, (add(0, -4, reg=7), spill(0, 6), save(1, 7, 6))), arch=I386), 9)
    assert (found.cfa_reg, found.cfa_off, found.ra) == (I386.fp, 8, at_cfa(-4))
    assert dict(found.regs) == {I386.fp: at_cfa(-8)}
