"""Tests of the unwind rules of EXIDX instructions, written by hand and by each assembler directive."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import ARM
from pyprof.unwind.formats.exidx_unwind_instructions import compile_rule, decode_opcodes
from pyprof.unwind.rule_text import describe_rule
from tests.unwind.exidx.build import assemble, function, source_of, symbols

pytestmark = [pytest.mark.matrix, pytest.mark.system]


def rule_text(code: str) -> str:
    rule = compile_rule(decode_opcodes(bytes.fromhex(code), "s", 0), ARM, "s", 0)
    return "cannot unwind" if rule is None else describe_rule(rule, ARM)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("b0", "cfa = sp; ra = lr"),
        ("a8", "cfa = sp + 8; r4 = [cfa - 8]; ra = [cfa - 4]"),
        ("8408", "cfa = sp + 8; r7 = [cfa - 8]; ra = [cfa - 4]"),
        ("8800", "cfa = sp + 4; ra = [cfa - 4]"),
        ("01 a8", "cfa = sp + 16; r4 = [cfa - 8]; ra = [cfa - 4]"),
        ("a8 01", "cfa = sp + 16; r4 = [cfa - 16]; ra = [cfa - 12]"),  # spilled argument registers lie above
        ("01 a0 41", "cfa = sp + 4; r4 = [cfa + 4]; ra = lr"),
        ("97 84 08", "cfa = r7 + 8; r7 = [cfa - 8]; ra = [cfa - 4]"),
        ("9b 41 84 80", "cfa = fp; fp = [cfa - 8]; ra = [cfa - 4]"),
        ("a0 97 84 08", "cfa = r7 + 8; r4 = [sp]; r7 = [cfa - 8]; ra = [cfa - 4]"),
        ("b1 08 84 00", "cfa = sp + 8; r3 = [cfa - 8]; ra = [cfa - 4]"),
        ("b2 00 84 00", "cfa = sp + 520; ra = [cfa - 4]"),
        ("b2 84 3f", "cfa = sp + 32788; ra = lr"),  # a uleb128 of two bytes
        ("b2 04 3f", "cfa = sp + 788; ra = lr"),  # a uleb128 of one byte, and another instruction
        ("b3 81 84 00", "cfa = sp + 24; ra = [cfa - 4]"),  # two registers and the word of FSTMX
        ("b9 84 00", "cfa = sp + 24; ra = [cfa - 4]"),
        ("c9 83 84 00", "cfa = sp + 36; ra = [cfa - 4]"),
        ("c8 01 84 00", "cfa = sp + 20; ra = [cfa - 4]"),
        ("d7 84 00", "cfa = sp + 68; ra = [cfa - 4]"),
        ("c1 84 00", "cfa = sp + 20; ra = [cfa - 4]"),
        ("c6 a2 84 00", "cfa = sp + 28; ra = [cfa - 4]"),
        ("c7 05 84 00", "cfa = sp + 12; ra = [cfa - 4]"),
        ("b4 84 00", "cfa = sp + 8; ra = [cfa - 4]"),
        ("84 00 b5 b4", "cfa = sp + 8; ra = [cfa - 8]"),
        ("8d 00", "cfa = sp + 12; r12 = [cfa - 12]; lr = [cfa - 8]; ra = [cfa - 4]"),
        ("a8 a0", "cfa = sp + 12; r4 = [cfa - 4]; ra = [cfa - 8]"),  # the last pop of a register applies
        ("80 00", "cannot unwind"),
        ("82 00", "cfa = [sp]; ra = lr"),
        ("a0 94 a9", "cfa = expr(breg13 0; deref; consts 12; plus); r4 = [cfa - 12]; r5 = [cfa - 8]; ra = [cfa - 4]"),
        ("a1 94 85 00", "cfa = expr(breg13 0; deref; consts 8; plus); r4 = [sp]; r5 = [sp + 4]; r12 = [cfa - 8]"),
    ],
)
def test_instructions_become_one_rule(code: str, expected: str) -> None:
    assert rule_text(code).startswith(expected)


def test_pops_of_sp_and_pc_together_are_a_signal_frame() -> None:
    saved = [f"{name} = [sp + {32 + 4 * n}]" for n, name in enumerate(ARM.registers) if name not in ("sp", "pc")]
    saved[11] = "fp" + saved[11].removeprefix("r11")
    assert rule_text("07 b10f 8fff") == "; ".join(["cfa = [sp + 84]", *saved, "ra = [sp + 92]", "signal"])


def test_pop_from_loaded_stack_becomes_an_expression() -> None:
    text = rule_text("a0 94 a1 97 84 80")
    assert text == (
        "cfa = r7 + 8; r4 = [expr(breg13 0; deref)]; r5 = [expr(breg13 0; deref; consts 4; plus)]; "
        "fp = [cfa - 8]; ra = [cfa - 4]"
    )


def test_chain_of_loads_is_refused() -> None:
    rule_text("a0 94" * 4)
    with pytest.raises(FormatError, match="too many words"):
        rule_text("a0 94" * 5)


def test_vsp_that_leaves_every_frame_is_refused() -> None:
    with pytest.raises(FormatError, match="leaves every frame"):
        rule_text("b2 ffffff1f" * 3)


DIRECTIVES = {
    "save": ("push {r4, r5, lr}\n.save {r4, r5, lr}", "cfa = sp + 12; r4 = [cfa - 12]; r5 = [cfa - 8]; ra = [cfa - 4]"),
    "save_odd": (
        "push {r3, r7, lr}\n.save {r3, r7, lr}",
        "cfa = sp + 12; r3 = [cfa - 12]; r7 = [cfa - 8]; ra = [cfa - 4]",
    ),
    "save_twice": (
        "push {r1-r3}\n.save {r1-r3}\npush {r11, lr}\n.save {r11, lr}",
        "cfa = sp + 20; r1 = [cfa - 12]; r2 = [cfa - 8]; r3 = [cfa - 4]; fp = [cfa - 20]; ra = [cfa - 16]",
    ),
    "pad": ("push {r4, lr}\n.save {r4, lr}\nsub sp, #24\n.pad #24", "cfa = sp + 32; r4 = [cfa - 8]; ra = [cfa - 4]"),
    "pad_large": ("push {lr}\n.save {lr}\nsub sp, #4096\n.pad #4096", "cfa = sp + 4100; ra = [cfa - 4]"),
    "vsave": ("push {lr}\n.save {lr}\nvpush {d8-d10}\n.vsave {d8-d10}", "cfa = sp + 28; ra = [cfa - 4]"),
    "vsave_low": ("push {lr}\n.save {lr}\nvpush {d2-d4}\n.vsave {d2-d4}", "cfa = sp + 28; ra = [cfa - 4]"),
    "vsave_high": ("push {lr}\n.save {lr}\nvpush {d16-d17}\n.vsave {d16-d17}", "cfa = sp + 20; ra = [cfa - 4]"),
    "setfp": (
        "push {r7, lr}\n.save {r7, lr}\nadd r7, sp, #0\n.setfp r7, sp, #0\nsub sp, #64\n.pad #64",
        "cfa = r7 + 8; r7 = [cfa - 8]; ra = [cfa - 4]",
    ),
    "setfp_offset": (
        "push {r11, lr}\n.save {r11, lr}\nadd r11, sp, #4\n.setfp r11, sp, #4",
        "cfa = fp + 4; fp = [cfa - 8]; ra = [cfa - 4]",
    ),
    "movsp": (
        "mov r12, sp\n.movsp r12\npush {r4, lr}\n.save {r4, lr}",
        "cfa = r12; r4 = [sp]; ra = [sp + 4]",
    ),
    "wmmx": (".save {wr10-wr12}", "cfa = sp + 16; ra = lr"),  # binutils 2.40 writes one register less
    "save_cg": (".save {wcgr0, wcgr1}", "cfa = sp + 8; ra = lr"),
    "refused": (".unwind_raw 0, 0x80, 0x00", None),
    "cantunwind": (".cantunwind", None),
    "nothing": ("", "cfa = sp; ra = lr"),
}


@pytest.fixture(scope="module", params=["arm", "thumb"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "".join(function(name, f"{body}\n1: b 1b", request.param) for name, (body, _) in DIRECTIVES.items())
    return assemble(text, tmp_path_factory.mktemp("directives"))


@pytest.mark.parametrize("name", DIRECTIVES)
def test_directive_gives_its_rule(name: str, library: Path) -> None:
    address = symbols(library)[name]
    rows = source_of(library).function_at(address)
    expected = DIRECTIVES[name][1]
    assert (None if rows is None else describe_rule(rows.rules[-1], ARM)) == expected
    if rows is not None:
        assert rows.starts[0] == rows.start == address


def test_function_ends_where_the_next_begins(library: Path) -> None:
    source, places = source_of(library), symbols(library)
    for name, following in zip(list(DIRECTIVES), list(DIRECTIVES)[1:], strict=False):
        rows = source.function_at(places[following] - 1)
        if rows is not None:
            assert (rows.start, rows.end) == (places[name], places[following])
