"""Tests of line tables against the interpreters that wrote them, and with random bytes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.interpreters.cpython.code_objects import find_first_instruction, find_line
from pyprof.interpreters.cpython.layout import LineTableFormat
from tests.interpreters.pythons import KINDS, Python

pytestmark = [pytest.mark.matrix, pytest.mark.system]

SAY = """
import dis, json, importlib, sys, types
found = []
def add(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    if sys.version_info >= (3, 10):
        spans = [list(span) for span in code.co_lines()]
    else:
        starts = list(dis.findlinestarts(code)) + [(len(code.co_code), 0)]
        spans = [[a, b, line] for (a, line), (b, _) in zip(starts, starts[1:])]
    found.append([code.co_firstlineno, table.hex(), spans])
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            add(const)
for name in ("argparse", "typing"):
    path = importlib.import_module(name).__file__
    add(compile(open(path).read(), path, "exec"))
print(json.dumps(found))
"""


@KINDS
def test_every_instruction_of_library_modules_has_the_line_that_python_says(python: Python) -> None:
    done = subprocess.run([*python.command, "-c", SAY], capture_output=True, text=True, timeout=120, check=True)
    codes: list[list[Any]] = json.loads(done.stdout)
    assert len(codes) > 200
    kind = (
        LineTableFormat.LNOTAB
        if python.minor < 10
        else LineTableFormat.LINETABLE
        if python.minor == 10
        else LineTableFormat.LOCATIONS
    )
    unit = 1 if kind is LineTableFormat.LNOTAB else 2
    checked = 0
    for first, table, spans in codes:
        data = bytes.fromhex(table)
        for start, end, line in spans:
            for at in {start, end - 2}:
                if start <= at < end:
                    assert find_line(kind, data, first, at // unit) == (line or 0), (first, at)
        starts: dict[int, int] = {}
        for start, end, line in spans:
            found = starts.setdefault(line or 0, start // unit) if start < end else 0
            for at in {start, end - 2}:
                if start <= at < end:
                    assert find_first_instruction(kind, data, first, at // unit) == found, (first, at)
                    checked += 1
    assert checked > 2000


@given(st.sampled_from(LineTableFormat), st.binary(max_size=200), st.integers(-5, 1 << 20), st.integers(-1, 1 << 33))
def test_nonsense_gives_some_line_and_ends(kind: LineTableFormat, table: bytes, first: int, instruction: int) -> None:
    line = find_line(kind, table, first, instruction)
    assert isinstance(line, int)
    if instruction >= 0:
        settled = find_first_instruction(kind, table, first, instruction)
        assert 0 <= settled <= instruction
        assert find_line(kind, table, first, settled) == line
