"""Tests of the CFI row machine for each instruction."""

from __future__ import annotations

import dataclasses

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, ARM, X86_64
from pyprof.problem_counters import Diagnostics
from tests.unwind.cfi_assembler import (
    REMEMBER,
    RESTORE_STATE,
    Frames,
    advance,
    advance1,
    def_cfa,
    def_cfa_expression,
    def_cfa_offset,
    def_cfa_register,
    expression,
    in_register,
    offset,
    restore,
    rows_of,
    same_value,
    sleb,
    uleb,
    undefined,
    val_expression,
)

AARCH64_START = def_cfa(31, 0)
RBX, RBP, RSP, R10, R12 = 3, 6, 7, 10, 12
RA = "ra = [cfa - 8]"


def test_function_without_instructions_has_the_row_of_its_cie() -> None:
    assert rows_of() == [f"+0x0 cfa = sp + 8; {RA}"]


def test_prologue_of_a_function_with_frame_pointer() -> None:
    code = advance(1), def_cfa_offset(16), offset(RBP, 2), advance(3), def_cfa_register(RBP)
    assert rows_of(*code) == [
        f"+0x0 cfa = sp + 8; {RA}",
        f"+0x1 cfa = sp + 16; fp = [cfa - 16]; {RA}",
        f"+0x4 cfa = fp + 16; fp = [cfa - 16]; {RA}",
    ]


@pytest.mark.parametrize(
    ("code", "at"),
    [
        (advance(0x3F), 0x3F),
        (advance1(0xFF), 0xFF),
        (b"\x03\x34\x12", 0x1234),
        (b"\x04\x78\x56\x34\x00", 0x345678),
        (advance(2) + advance1(3) + b"\x03\x04\x00", 9),
    ],
)
def test_advances_add_up(code: bytes, at: int) -> None:
    assert rows_of(code, def_cfa_offset(16), size=1 << 30)[1:] == [f"+{at:#x} cfa = sp + 16; {RA}"]


def test_advance_loc8_reaches_beyond_4_gib() -> None:
    frames = Frames()
    cie = frames.cie(encoding=0x04)
    at = frames.fde(cie, 0x1000, 1 << 40, b"\x1d\x00\x00\x00\x00\x01\x00\x00\x00", def_cfa_offset(16))
    assert frames.rows(at)[1] == f"+0x100000000 cfa = sp + 16; {RA}"


def test_advances_are_multiplied_by_the_code_alignment() -> None:
    rows = rows_of(advance(3), def_cfa_offset(16), arch=AARCH64, initial=AARCH64_START, code_align=4, ra=30)
    assert rows[1] == "+0xc cfa = sp + 16; ra = x30"


def test_advance_by_nothing_makes_no_row() -> None:
    assert rows_of(advance(0), def_cfa_offset(16), advance1(0)) == [f"+0x0 cfa = sp + 16; {RA}"]


def test_equal_neighbours_are_one_row() -> None:
    assert len(rows_of(advance(1), b"\x2e\x10", advance(1), def_cfa_offset(8), advance(1))) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (offset(RBX, 3), "rbx = [cfa - 24]"),
        (offset(RBX, 200), "rbx = [cfa - 1600]"),
        (b"\x05" + uleb(RBX) + uleb(3), "rbx = [cfa - 24]"),
        (b"\x11" + uleb(RBX) + sleb(-3), "rbx = [cfa + 24]"),
        (b"\x2f" + uleb(RBX) + uleb(3), "rbx = [cfa + 24]"),
        (b"\x14" + uleb(RBX) + uleb(2), "rbx = cfa - 16"),
        (b"\x15" + uleb(RBX) + sleb(-2), "rbx = cfa + 16"),
        (in_register(RBX, R12), "rbx = r12"),
        (undefined(RBX), "rbx = undefined"),
        (same_value(RBX), "rbx = rbx"),
        (expression(RBX, b"\x76\x08\x06"), "rbx = [expr(breg6 8; deref)]"),
        (expression(RBX, b"\x76\x78"), "rbx = [fp - 8]"),
        (expression(RBX, b"\x92\x06\x78"), "rbx = [fp - 8]"),
        (val_expression(RBX, b"\x76\x08\x06"), "rbx = [fp + 8]"),
        (val_expression(RBX, b"\x76\x78"), "rbx = fp - 8"),
        (val_expression(RBX, b"\x23\x08\x06"), "rbx = expr(plus_uconst 8; deref)"),
        (val_expression(RBX, b""), "rbx = expr()"),
    ],
)
def test_each_register_rule(code: bytes, words: str) -> None:
    assert rows_of(code) == [f"+0x0 cfa = sp + 8; {words}; {RA}"]


@pytest.mark.parametrize(
    ("code", "cfa"),
    [
        (def_cfa(RBP, 16), "fp + 16"),
        (def_cfa(RBP, 0), "fp"),
        (def_cfa(R10, 0), "r10"),
        (b"\x12" + uleb(RBP) + sleb(-2), "fp + 16"),
        (b"\x13" + sleb(-3), "sp + 24"),
        (b"\x13" + sleb(3), "sp - 24"),
        (def_cfa_offset(0x12345), "sp + 74565"),
        (def_cfa_register(RBP), "fp + 8"),
        (def_cfa_expression(b"\x76\x78\x06"), "[fp - 8]"),
        (def_cfa_expression(b"\x92\x0a\x10"), "r10 + 16"),
        (def_cfa_expression(b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"),
         "expr(breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus)"),
        (def_cfa_expression(b"\x76\x78\x06\x06"), "expr(breg6 -8; deref; deref)"),
        (def_cfa_expression(b"\xff\x01\x02"), "expr(ff 01 02)"),
    ],
)  # fmt: skip
def test_each_cfa_rule(code: bytes, cfa: str) -> None:
    assert rows_of(code) == [f"+0x0 cfa = {cfa}; {RA}"]


def test_offset_behind_an_expression_waits_for_the_next_register() -> None:
    code = def_cfa_expression(b"\x76\x78\x06"), def_cfa_offset(32), advance(1), def_cfa_register(RBP)
    assert rows_of(*code) == [f"+0x0 cfa = [fp - 8]; {RA}", f"+0x1 cfa = fp + 32; {RA}"]


def test_restore_goes_back_to_the_rule_of_the_cie() -> None:
    initial = def_cfa(7, 8) + offset(16, 1) + same_value(RBX)
    code = offset(RBX, 2), offset(R12, 3), advance(1), restore(RBX), b"\x06" + uleb(R12)
    assert rows_of(*code, initial=initial) == [
        f"+0x0 cfa = sp + 8; rbx = [cfa - 16]; r12 = [cfa - 24]; {RA}",
        f"+0x1 cfa = sp + 8; rbx = rbx; {RA}",
    ]


def test_restore_inside_a_cie_does_not_stay_in_the_functions() -> None:
    initial = offset(RBX, 2) + restore(RBX) + def_cfa(7, 8) + offset(16, 1) + offset(RBX, 4)
    code = offset(RBX, 2), advance(1), restore(RBX)
    assert rows_of(*code, initial=initial)[1] == f"+0x1 cfa = sp + 8; rbx = [cfa - 32]; {RA}"


def test_remembered_states_nest_and_bring_the_cfa_back() -> None:
    code = (
        *(advance(1), def_cfa_offset(16), REMEMBER),
        *(advance(1), def_cfa(RBP, 24), offset(RBX, 3), REMEMBER),
        *(advance(1), def_cfa_offset(8), restore(RBX)),
        *(advance(1), RESTORE_STATE),
        *(advance(1), RESTORE_STATE),
    )
    assert rows_of(*code) == [
        f"+0x0 cfa = sp + 8; {RA}",
        f"+0x1 cfa = sp + 16; {RA}",
        f"+0x2 cfa = fp + 24; rbx = [cfa - 24]; {RA}",
        f"+0x3 cfa = fp + 8; {RA}",
        f"+0x4 cfa = fp + 24; rbx = [cfa - 24]; {RA}",
        f"+0x5 cfa = sp + 16; {RA}",
    ]


def test_registers_that_no_sample_holds_are_passed_over() -> None:
    xmm0, mxcsr, k0 = 17, 64, 118
    code = offset(xmm0, 4), b"\x05" + uleb(mxcsr) + uleb(5), undefined(k0), restore(xmm0), same_value(xmm0)
    assert rows_of(*code) == [f"+0x0 cfa = sp + 8; {RA}"]


def test_register_that_went_to_an_unknown_one_is_lost() -> None:
    assert rows_of(in_register(RBX, 17)) == [f"+0x0 cfa = sp + 8; rbx = undefined; {RA}"]


def test_undefined_return_address_is_the_outermost_frame() -> None:
    assert rows_of(undefined(16)) == ["+0x0 cfa = sp + 8; ra = undefined"]


def test_unspecified_return_address_is_no_end_of_the_stack() -> None:
    assert rows_of(initial=def_cfa(7, 8)) == ["+0x0 cfa = sp + 8; ra = rip"]


def test_return_address_in_a_register() -> None:
    assert rows_of(in_register(16, 5)) == ["+0x0 cfa = sp + 8; ra = rdi"]


def test_unspecified_link_register_holds_the_return_address() -> None:
    rows = rows_of(advance(4), def_cfa_offset(16), b"\x9e\x01", arch=AARCH64, initial=AARCH64_START, ra=30)
    assert rows == ["+0x0 cfa = sp; ra = x30", "+0x4 cfa = sp + 16; x30 = [cfa - 8]; ra = [cfa - 8]"]


def test_explicit_rule_of_the_stack_pointer_is_kept() -> None:
    assert rows_of(b"\x14" + uleb(RSP) + uleb(0)) == [f"+0x0 cfa = sp + 8; sp = cfa; {RA}"]


def test_signature_of_the_return_address_is_switched_on_and_off() -> None:
    code = advance(4), b"\x2d", advance(4), REMEMBER, b"\x2d", advance(4), RESTORE_STATE, advance(4), b"\x2c"
    rows = rows_of(*code, arch=AARCH64, initial=AARCH64_START, ra=30)
    assert rows == [
        "+0x0 cfa = sp; ra = x30",
        "+0x4 cfa = sp; ra = x30; pac",
        "+0x8 cfa = sp; ra = x30",
        "+0xc cfa = sp; ra = x30; pac",
        "+0x10 cfa = sp; ra = x30",
    ]


def test_signature_of_the_return_address_may_be_set_as_a_register() -> None:
    code = val_expression(34, b"\x31"), advance(4), val_expression(34, b"\x30")
    rows = rows_of(*code, arch=AARCH64, initial=AARCH64_START, ra=30)
    assert rows == ["+0x0 cfa = sp; ra = x30; pac", "+0x4 cfa = sp; ra = x30"]


def test_window_save_of_sparc_saves_the_locals_and_ins() -> None:
    names = (*X86_64.registers[:16], *(f"w{n}" for n in range(16)), "pc")
    sparc = dataclasses.replace(X86_64, name="sparc64", registers=names, dwarf={n: n for n in range(33)}, pc=32)
    row = rows_of(b"\x2d", arch=sparc, initial=def_cfa(7, 8), ra=15)[0]
    assert row.startswith("+0x0 cfa = sp + 8; w0 = [cfa]; w1 = [cfa + 8]; ")
    assert row.endswith("w15 = [cfa + 120]; ra = r15")


def test_rows_behind_the_function_are_dropped() -> None:
    code = advance(4), def_cfa_offset(16), advance(4), def_cfa_offset(24), advance(9), def_cfa_offset(8)
    assert [row.split()[0] for row in rows_of(*code, size=8)] == ["+0x0", "+0x4"]
    assert [row.split()[0] for row in rows_of(*code, size=9)] == ["+0x0", "+0x4", "+0x8"]


def test_code_before_the_first_cfa_is_not_covered() -> None:
    frames = Frames()
    cie = frames.cie(initial=b"")
    frames.fde(cie, 0x1000, 0x20, advance(4), def_cfa(7, 8), offset(16, 1))
    source = frames.eh_frame(frames.hdr(0x8000), 0x8000, Diagnostics())
    assert source.function_at(0x1003) is None
    found = source.function_at(0x1004)
    assert found is not None
    assert (found.start, found.end, found.starts) == (0x1004, 0x1020, (0x1004,))


def test_set_loc_is_absolute_and_not_shared_by_functions() -> None:
    frames = Frames()
    cie = frames.cie(encoding=0x00)
    code = b"\x01" + (0x1008).to_bytes(8, "little") + def_cfa_offset(16)
    first, second = frames.fde(cie, 0x1000, 0x20, code), frames.fde(cie, 0x1004, 0x20, code)
    assert frames.rows(first)[1] == f"+0x8 cfa = sp + 16; {RA}"
    table = frames.table()
    table.programs.rows(table.entries.fde(first))
    assert table.programs.rows(table.entries.fde(second)).starts == (0x1004, 0x1008)


def test_set_loc_is_relative_to_its_place_where_the_cie_says_so() -> None:
    frames = Frames()
    cie = frames.cie()
    here = frames.code_svma(cie, before=1)
    at = frames.fde(cie, 0x1000, 0x20, b"\x01" + (0x1008 - here).to_bytes(4, "little", signed=True), def_cfa_offset(16))
    assert frames.rows(at)[1] == f"+0x8 cfa = sp + 16; {RA}"


def test_equal_rules_are_one_object_over_functions_and_cies() -> None:
    frames = Frames()
    for start in (0x1000, 0x2000):
        frames.fde(frames.cie(), start, 0x20, advance(start >> 12), def_cfa_offset(16))
        frames.fde(
            frames.cie(code_align=2),
            start + 0x100,
            0x20,
            advance(1),
            def_cfa_offset(24),
            advance(1),
            def_cfa_offset(16),
        )
    rules = [rule for f in frames.table().functions() for rule in f.rules]
    assert len(rules) == 10
    assert len({id(rule) for rule in rules}) == 3


def test_unsigned_offsets_wrap_to_what_a_column_holds() -> None:
    assert rows_of(def_cfa_offset((1 << 64) - 16)) == [f"+0x0 cfa = sp - 16; {RA}"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (b"\x17\x00", "unknown instruction 0x17"),
        (b"\x3f", "unknown instruction 0x3f"),
        (b"\x2d", "0x2d is not defined on x86_64"),
        (b"\x2c", "0x2c is not defined on x86_64"),
        (RESTORE_STATE, "not remembered"),
        (REMEMBER * 2000, "too many states"),
        (def_cfa(17, 8), "register 17, which x86_64 does not have"),
        (def_cfa_register(99), "register 99, which x86_64 does not have"),
        (def_cfa_expression(b""), "a CFA by an empty expression"),
        (in_register(16, 17), "return address is in register 17"),
        (b"\x0c\x07" + b"\xff" * 20 + b"\x00", "more than 64 bits"),
        (b"\x13" + b"\xff" * 20 + b"\x00", "more than 64 bits"),
        (def_cfa_expression(b"\x76\x78\x06")[:1] + b"\x40\x76", "end inside an instruction"),
        (b"\x00\x00\x04", "end inside an instruction"),
        (b"\x00\x00\x86", "end inside an instruction"),
        (b"\x00\x00\x02", "end inside an instruction"),
        (b"\x00\x00\x0e", "end inside an instruction"),
    ],
)
def test_instruction_that_cannot_be_is_a_format_error_of_the_function(code: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        rows_of(code)
    assert caught.value.section == ".eh_frame"


def test_location_that_goes_back_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="goes back to 0x1004"):
        rows_of(advance(8), b"\x01" + (0x1004).to_bytes(8, "little"), encoding=0)


def test_function_that_never_has_a_cfa_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="no row has a CFA"):
        rows_of(initial=offset(16, 1))


def test_cfa_that_is_lost_again_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="a row without a CFA"):
        rows_of(REMEMBER, def_cfa(7, 8), advance(1), RESTORE_STATE, advance(1), initial=offset(16, 1))


def test_broken_function_leaves_the_others_alone() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x10, b"\x3f")
    good = frames.fde(cie, 0x1010, 0x10)
    table = frames.table()
    with pytest.raises(FormatError):
        table.rows_at(table.find(0x1008), 0x1008)
    assert table.find(0x1018) == table.entries.fde(good)
    assert [f.start for f in table.functions()] == [0x1010]


def test_broken_initial_instructions_cost_the_functions_of_that_cie_only() -> None:
    frames = Frames()
    frames.fde(frames.cie(initial=b"\x3f"), 0x1000, 0x10)
    frames.fde(frames.cie(), 0x1010, 0x10)
    assert [f.start for f in frames.table().functions()] == [0x1010]


def test_32_bit_and_big_endian_operands() -> None:
    big = dataclasses.replace(ARM, byteorder="big")
    code = b"\x03\x00\x02", def_cfa_offset(16), b"\x04\x00\x00\x01\x00", def_cfa_offset(8)
    rows = rows_of(*code, arch=big, initial=def_cfa(13, 0), ra=14, data_align=-4, size=0x2000)
    assert rows == ["+0x0 cfa = sp; ra = lr", "+0x2 cfa = sp + 16; ra = lr", "+0x102 cfa = sp + 8; ra = lr"]
