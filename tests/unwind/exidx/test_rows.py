"""Tests of rows in prologues and epilogues: the decoder against objdump, and the rows against .debug_frame."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import ARM
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import open_debug_frame
from pyprof.unwind.formats.exidx_prologue_rows import Decoder, Effect, RowReader
from pyprof.unwind.formats.exidx_unwind_instructions import compile_rule, decode_opcodes
from pyprof.unwind.rule_text import describe_rule
from tests.support import build, need
from tests.unwind.exidx.build import assemble, function, source_of, symbols
from tests.unwind.exidx.call_sites import SHAPES, frame, rule_at

pytestmark = [pytest.mark.matrix, pytest.mark.system]

INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t([0-9a-f ]+?) *\t(\S+)(?:\t([^@\n]*))?", re.M)


def disassembly(path: Path) -> list[tuple[int, str, str, str]]:
    """Return (svma, code in hex, mnemonic, operands) of each instruction, without data."""
    text = subprocess.run(
        [need("arm-linux-gnueabihf-objdump"), "-d", str(path)], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    found = [(int(at, 16), raw, name, operands.strip()) for at, raw, name, operands in INSTRUCTION.findall(text)]
    return [row for row in found if not row[2].startswith((".", "@"))]


def count(registers: str) -> int:
    """Return the number of registers in a list such as {r4, r5, lr} or {d8-d11}."""
    total = 0
    for part in registers.strip("{} ").split(","):
        low, _, high = part.strip().partition("-")
        total += int(high[1:]) - int(low[1:]) + 1 if high else 1
    return total


def expected(name: str, operands: str) -> tuple[Effect, int] | None:
    """Return an instruction's effect on sp according to its text, or None if this function does not know it."""
    base = name.removesuffix(".w").removesuffix(".n")
    number = re.search(r"#(-?\d+)", operands)
    n = int(number[1]) if number else 0
    lists = re.search(r"\{.*\}", operands)
    if base == "push" or (base == "stmdb" and operands.startswith("sp!")):
        return Effect.MOVE, -4 * count(lists[0]) if lists else 0
    if base == "pop" or (base == "ldmia" and operands.startswith("sp!")):
        listed = lists[0] if lists else ""
        return (Effect.LEAVE if "pc" in listed else Effect.MOVE), 4 * count(listed)
    if base == "vpush":
        return Effect.MOVE, -8 * count(lists[0]) if lists else 0
    if base == "vpop":
        return Effect.MOVE, 8 * count(lists[0]) if lists else 0
    if base in ("sub", "subw", "add", "addw") and re.match(r"sp, (sp, )?#", operands):
        return Effect.MOVE, -n if base.startswith("sub") else n
    if base == "str" and operands.endswith("]!") and "[sp, #-" in operands:
        return Effect.MOVE, n
    if base == "ldr" and "[sp], #" in operands:
        return (Effect.LEAVE if operands.startswith("pc") else Effect.MOVE), n
    if name == "bx":
        return Effect.LEAVE, 0
    if base in ("b", "bl", "blx"):
        return (Effect.LEAVE if base == "b" else Effect.CALL), 0
    if base in ("ldr", "str", "ldrb", "cmp", "cmn", "tst", "mul", "movw", "movt", "strb", "nop", "it", "lsl", "lsls"):
        return Effect.OTHER, 0
    return None


@pytest.fixture(scope="module", params=["-marm", "-mthumb"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "shapes"
    return build(SHAPES, path, request.param, "-O2", "-g", "-static", compiler="arm-linux-gnueabihf-g++")


def test_decoder_knows_what_each_instruction_does_to_sp(program: Path) -> None:
    decoder = Decoder()
    known = set()
    for at, raw, name, operands in disassembly(program)[:40000]:
        wanted = expected(name, operands)
        units = raw.split()
        if wanted is None or units == ["e7fe", "e7fe"]:
            continue
        code = b"".join(int(unit, 16).to_bytes(len(unit) // 2, "little") for unit in units)
        thumb = len(units[0]) == 4
        insns = decoder.decode_block(code, at, thumb)
        found = (insns[0].effect, insns[0].n) if insns else (Effect.OTHER, 0)
        assert found == wanted, (hex(at), raw, name, operands)
        known.add((name, found[0]))
    assert {effect for _, effect in known} >= {Effect.MOVE, Effect.LEAVE, Effect.CALL, Effect.OTHER}
    assert len(known) > 25


@pytest.mark.parametrize("mode", ["-marm", "-mthumb"])
@pytest.mark.parametrize(
    ("flags", "least"), [("-O2", 0.99), ("-O0", 0.99), ("-Os", 0.99), ("-O2 -fno-omit-frame-pointer", 0.98)]
)
def test_nearly_every_instruction_has_the_frame_that_debug_frame_says(
    mode: str, flags: str, least: float, tmp_path: Path
) -> None:
    options = [mode, *flags.split(), "-g", "-funwind-tables"]
    path = build(SHAPES, tmp_path / "shapes", *options, compiler="arm-linux-gnueabihf-g++")
    exidx, frames = source_of(path), open_debug_frame(ElfFile.open(str(path)), ARM, Diagnostics())
    assert frames is not None
    same, unlike = 0, []
    for at, _, _, _ in disassembly(path):
        ours, theirs = rule_at(exidx.function_at(at), at), rule_at(frames.function_at(at), at)
        if ours is not None and theirs is not None:
            one, other = frame(ours), frame(theirs)
            if one == other or (
                one[0] != other[0] and one[3:] == other[3:]
            ):  # CFA by sp or fp with equal register slots
                same += 1
            else:
                unlike.append((hex(at), describe_rule(ours, ARM), describe_rule(theirs, ARM)))
    assert same / (same + len(unlike)) >= least, unlike


def rows_text(path: Path, name: str) -> list[str]:
    rows = source_of(path).function_at(symbols(path)[name])
    assert rows is not None
    return [
        f"+{start - rows.start}: {describe_rule(rule, ARM)}"
        for start, rule in zip(rows.starts, rows.rules, strict=True)
    ]


BODY = """push {r4, lr}
.save {r4, lr}
mov r4, r0
sub sp, sp, #8
.pad #8
bl elsewhere
add sp, sp, #8
pop {r4, pc}"""


@pytest.mark.parametrize(("mode", "size"), [("arm", 4), ("thumb", 2)])
def test_prologue_and_epilogue_get_rows_of_their_own(mode: str, size: int, tmp_path: Path) -> None:
    path = assemble(".hidden elsewhere\n" + function("f", BODY, mode) + function("elsewhere", "bx lr", mode), tmp_path)
    whole = "cfa = sp + 16; r4 = [cfa - 8]; ra = [cfa - 4]"
    pushed = "cfa = sp + 8; r4 = [cfa - 8]; ra = [cfa - 4]"
    call = 3 * size + 4
    assert rows_text(path, "f") == [
        "+0: cfa = sp; ra = lr",
        f"+{size}: {pushed}",
        f"+{3 * size}: {whole}",
        f"+{call + size}: {pushed}",
    ]


def test_return_before_the_frame_is_begun_has_none(tmp_path: Path) -> None:
    body = f"cmp r0, #0\nbne 1f\nmovs r0, #1\nbx lr\n1: {BODY}"
    path = assemble(".hidden elsewhere\n" + function("f", body, "thumb") + function("elsewhere", "bx lr"), tmp_path)
    assert rows_text(path, "f")[:2] == ["+0: cfa = sp; ra = lr", "+10: cfa = sp + 8; r4 = [cfa - 8]; ra = [cfa - 4]"]


def test_code_that_does_not_add_up_to_the_frame_leaves_the_table_alone(tmp_path: Path) -> None:
    body = BODY.replace("sub sp, sp, #8", "sub sp, sp, #16")
    path = assemble(".hidden elsewhere\n" + function("f", body) + function("elsewhere", "bx lr"), tmp_path)
    assert rows_text(path, "f") == ["+0: cfa = sp + 16; r4 = [cfa - 8]; ra = [cfa - 4]"]


def test_every_function_of_a_merged_entry_has_its_prologue(tmp_path: Path) -> None:
    merged = BODY + "\n.balign 4\ng:\n" + BODY.replace(".save {r4, lr}\n", "").replace(".pad #8\n", "")
    path = assemble(".hidden elsewhere\n" + function("f", merged) + function("elsewhere", "bx lr"), tmp_path)
    assert rows_text(path, "f")[4:6] == [
        "+24: cfa = sp; ra = lr",
        "+28: cfa = sp + 8; r4 = [cfa - 8]; ra = [cfa - 4]",
    ]


PUSHED_LATER = """push {r4, r5, r6, r7, lr}
.save {r4, r5, r6, r7, lr}
add r7, sp, #12
.setfp r7, sp, #12
push.w {r8, r9, r11}
.save {r8, r9, r11}
sub sp, #16
bl elsewhere
add sp, #16
pop.w {r8, r9, r11}
pop {r4, r5, r6, r7, pc}"""


def test_registers_pushed_behind_the_frame_register_are_not_saved_before(tmp_path: Path) -> None:
    text = ".hidden elsewhere\n" + function("f", PUSHED_LATER, "thumb") + function("elsewhere", "bx lr")
    low = "r4 = [cfa - 20]; r5 = [cfa - 16]; r6 = [cfa - 12]; r7 = [cfa - 8]"
    high = "r8 = [cfa - 32]; r9 = [cfa - 28]; fp = [cfa - 24]"
    assert rows_text(assemble(text, tmp_path), "f")[:4] == [
        "+0: cfa = sp; ra = lr",
        f"+2: cfa = sp + 20; {low}; ra = [cfa - 4]",
        f"+4: cfa = r7 + 8; {low}; ra = [cfa - 4]",
        f"+8: cfa = r7 + 8; {low}; {high}; ra = [cfa - 4]",
    ]


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from(["a8b0b0", "01a8b0", "978408", "9b418480", "b108a8", "d78400"]))
def test_random_code_gives_ascending_rows_that_begin_at_the_start(code: bytes, instructions: str) -> None:
    rule = compile_rule(decode_opcodes(bytes.fromhex(instructions), "s", 0), ARM, "s", 0)
    assert rule is not None
    starts, rules = RowReader(ARM, lambda svma, size: code[svma - 0x1000 :][:size]).rows(rule, 0x1000, 0x1000 + 2048)
    assert starts[0] == 0x1000
    assert list(starts) == sorted(set(starts))
    assert len(starts) == len(rules)
    assert rules[-1] == rule or starts[-1] < 0x1000 + 2048
