"""Tests of x86 instruction lengths against objdump, on system libraries."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.arch.x86_instructions import LONGEST, instruction_length
from tests.support import need

pytestmark = pytest.mark.system

LIBRARIES = {"x86-64": ("gcc", "libm.so.6"), "i386": ("i686-linux-gnu-gcc", "libc.so.6")}
MAX_BYTES = 300_000


@pytest.mark.parametrize("name", LIBRARIES)
def test_lengths_of_instructions_are_those_that_objdump_finds(name: str) -> None:
    compiler, library = LIBRARIES[name]
    path = output(need(compiler), f"-print-file-name={library}").strip()
    start = next(
        int(line.split()[3], 16) for line in output(need("objdump"), "-h", path).splitlines() if " .text " in line
    )
    span = (f"--start-address={start}", f"--stop-address={start + MAX_BYTES}")
    seen = 0
    for line in output(need("objdump"), "-d", "-w", *span, path).splitlines()[
        :-LONGEST
    ]:  # the last instruction may be truncated
        parts = line.split("\t")
        if len(parts) < 3 or "(bad)" in line:
            continue
        code = bytes.fromhex(parts[1])
        if code[0] != 0x9B:  # objdump shows fwait as a prefix of the next instruction
            assert instruction_length(code + bytes(LONGEST), 0, name == "x86-64") == len(code), line
            seen += 1
    assert seen > 40_000


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@given(st.binary(max_size=20), st.booleans())
def test_length_of_any_bytes_is_within_them(code: bytes, wide: bool) -> None:
    assert 0 <= instruction_length(code, 0, wide) <= min(len(code), LONGEST)
