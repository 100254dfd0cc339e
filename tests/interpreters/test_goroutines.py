"""Tests of the way from a thread of a Go program to its goroutine, which the code of Go's runtime states."""

from __future__ import annotations

import struct

import pytest

from pyprof.interpreters.goroutines import decode_labels_offset, decode_offsets
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from tests.unwind.test_go_stacks import SYSTEMSTACK

AT = 0x401000
FIXED = bytes.fromhex("64488b0425f8ffffff")
BUILDS = {
    "fixed": (FIXED, -8),
    "linked by gcc": (bytes.fromhex("64488b0425e8ffffff"), -24),
    "position-independent": (bytes.fromhex("48c7c1f8ffffff 64488b01"), -8),
    "shared": (bytes.fromhex("488b0d00010000 64488b01"), -64),
}


def space(words: dict[int, int]) -> AddressSpace:
    def read(avma: int, size: int) -> bytes:
        return struct.pack("<q", words[avma])[:size] if avma in words else b""

    return AddressSpace(0, 1, 0, (), read, "")


@pytest.mark.parametrize("build", BUILDS)
def test_offsets_are_those_that_the_code_uses(build: str) -> None:
    load, tls = BUILDS[build]
    code = SYSTEMSTACK.replace(FIXED, load)
    stored = {AT + code.index(load) + 7 + 0x100: tls}
    assert decode_offsets(code, AT, space(stored)) == GoroutineOffsets(tls, 48, 0, 80, 192, 56)


def test_other_fields_of_a_newer_version_are_read_from_the_code() -> None:
    code = SYSTEMSTACK.replace(bytes.fromhex("488b5830"), bytes.fromhex("488b5838"))
    code = code.replace(bytes.fromhex("488b13"), bytes.fromhex("488b5308"))
    code = code.replace(bytes.fromhex("483b83c0000000"), bytes.fromhex("483b83b8000000"))
    code = code.replace(bytes.fromhex("488b5a38"), bytes.fromhex("488b6240"))
    assert decode_offsets(code, AT, space({})) == GoroutineOffsets(-8, 56, 8, 80, 184, 64)


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"\x90" * 200,
        SYSTEMSTACK[:60],
        SYSTEMSTACK.replace(bytes.fromhex("483b83c0000000"), bytes.fromhex("483b83c00000f0")),
        SYSTEMSTACK.replace(bytes.fromhex("488b5a38"), bytes.fromhex("488b5a84")),
        SYSTEMSTACK.replace(FIXED, bytes.fromhex("64488b04250000007f")),
        SYSTEMSTACK.replace(FIXED, BUILDS["shared"][0]),
    ],
    ids=["none", "nops", "cut off", "far field", "field below zero", "far word", "unreadable word"],
)
def test_other_code_leads_to_no_goroutine(code: bytes) -> None:
    assert decode_offsets(code, AT, space({})) is None


@pytest.mark.parametrize(
    ("code", "offset"),
    [
        ("833d00000000 00 7508 49898668010000 c3 498dbe68010000 e800000000 c3", 360),
        ("833d00000000 00 7411 e800000000 498903 498b8e58010000 49894b08 49898658010000 c3", 344),
        ("49898600000000 c3", 0),
        ("498986680100f0 c3", 0),
        ("49898663010000 c3", 0),
        ("c3", 0),
    ],
    ids=["Go 1.19", "Go 1.22", "no offset", "far field", "odd field", "other code"],
)
def test_offset_of_labels_is_that_of_the_code_that_stores_them(code: str, offset: int) -> None:
    assert decode_labels_offset(bytes.fromhex(code)) == offset
