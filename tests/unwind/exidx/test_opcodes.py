"""Tests of every EXIDX instruction against readelf and llvm-readelf, which decode what the assembler wrote."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.unwind.formats.exidx_unwind_instructions import OpKind, decode_opcodes
from tests.support import need
from tests.unwind.exidx.build import assemble, function
from tests.unwind.exidx.listing import listing
from tests.unwind.exidx.readelf import readelf_entries

pytestmark = [pytest.mark.matrix, pytest.mark.system]

OPERANDS = (0x00, 0x01, 0x03, 0x0F, 0x10, 0x1F, 0x30, 0x35, 0x72, 0x7F, 0xF0, 0xFF)
PREFIXES = (*range(0x80, 0x90), 0xB1, 0xB3, 0xC6, 0xC7, 0xC8, 0xC9)
ULEBS = ((0x00,), (0x35,), (0x7F,), (0x80, 0x01), (0xF0, 0x01), (0x84, 0x3F), (0xFF, 0xFF, 0x03))

ALL = [
    *[bytes([one]) for one in range(256) if one not in PREFIXES and one != 0xB2],
    *[bytes([prefix, operand]) for prefix in PREFIXES for operand in OPERANDS],
    *[bytes([0xB2, *uleb]) for uleb in ULEBS],
]

NO_SUCH_REGISTER = re.compile(r"pop \{(b3 .*-D(1[6-9]|[23]\d)|c8 .*-D(3[2-9]|4\d)|c6 .*-wR(1[6-9]|[23]\d))\}")
"""Instructions of missing registers, which readelf decodes: "Reserved" by remarks d and e of the specification's
table.
"""


def text_of(code: bytes) -> str:
    try:
        ops = listing(code)
    except FormatError:
        return "reserved"
    assert b"".join(op.code for op in ops) == code
    return ops[0].text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "".join(
        function(f"f{number}", f"bx lr\n.unwind_raw 0, {', '.join(map(hex, code))}") for number, code in enumerate(ALL)
    )
    return assemble(text, tmp_path_factory.mktemp("opcodes"))


def test_every_instruction_reads_as_readelf_reads_it(library: Path) -> None:
    said = {}
    for entry in readelf_entries(library):
        for raw, text in entry.opcodes:
            said[raw] = "reserved" if text in ("[Reserved]", "[Spare]", "[unsupported opcode]") else text
    unlike = {}
    for code in ALL:
        mine, theirs = text_of(code), said[code.hex(" ")]
        if mine != theirs:
            unlike[code.hex(" ")] = (mine, theirs)
    assert {code[0] for code in ALL} == set(range(256))
    for raw, (mine, theirs) in unlike.items():
        assert mine == "reserved", (raw, theirs)
        assert NO_SUCH_REGISTER.fullmatch(theirs.replace("{", "{" + raw[:2] + " ")), (raw, theirs)


def test_every_instruction_reads_as_llvm_reads_it(library: Path) -> None:
    output = subprocess.run(
        [need("llvm-readelf"), "-u", str(library)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    said = {}
    for raw, text in re.findall(r"^ +((?:0x[0-9A-F]{2} )+) *; (.*)", output, re.M):
        said[raw.replace("0x", "").strip().lower()] = text
    names = {"fp": "r11", "ip": "r12", "sp": "r13", "lr": "r14", "pc": "r15"}
    unlike = set()
    for code in ALL:
        mine, theirs = text_of(code), said[code.hex(" ")].strip()
        theirs = re.sub(r"\b(fp|ip|lr|pc)\b|(?<!v)\bsp\b", lambda found: names[found[0]], theirs)
        if theirs.startswith(("reserved", "spare")) or theirs == "pop":
            theirs = "reserved"
        if run := re.fullmatch(r"pop \{([d]|wR)(\d+)(?:, .*?(\d+))?\}", theirs):
            prefix = "D" if run[1] == "d" else "wR"
            theirs = f"pop {{{prefix}{run[2]}" + (f"-{prefix}{run[3]}" if run[3] else "") + "}"
        if mine.lower().replace("{ra_auth_code}", "ra_auth_code") != theirs.lower():
            unlike.add(code[0])
    assert unlike == {0xB3, 0xB5, 0xC6, 0xC8}  # missing registers, and b5, which LLVM 14 does not know


def test_instructions_after_finish_are_not_run() -> None:
    assert [op.text for op in decode_opcodes(bytes.fromhex("a8b09d"), "s", 0)] == ["pop {r4, r14}", "finish"]


def test_entry_without_finish_finishes_at_its_end() -> None:
    assert [op.kind for op in decode_opcodes(bytes.fromhex("a8"), "s", 0)] == [OpKind.POP, OpKind.FINISH]


def test_refusal_ends_the_entry() -> None:
    assert [op.kind for op in decode_opcodes(bytes.fromhex("8000ff"), "s", 0)] == [OpKind.REFUSE]


@pytest.mark.parametrize("code", ["b1", "b3", "80", "c9", "b2", "b280", "b2ffff", "c6"])
def test_instruction_cut_off_is_refused(code: str) -> None:
    with pytest.raises(FormatError, match="cut off"):
        decode_opcodes(bytes.fromhex(code), "s", 0)


@pytest.mark.parametrize("code", ["9d", "9f", "b100", "b110", "b6", "b7", "c700", "c710", "ca", "cf", "d8", "e0", "ff"])
def test_reserved_instruction_is_refused(code: str) -> None:
    with pytest.raises(FormatError, match="reserved"):
        decode_opcodes(bytes.fromhex(code), "s", 0x40)


def test_endless_increment_is_refused() -> None:
    with pytest.raises(FormatError, match="larger"):
        decode_opcodes(b"\xb2" + b"\xff" * 1000 + b"\x01", "s", 0)
