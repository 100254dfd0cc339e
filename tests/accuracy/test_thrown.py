"""Tests of exceptions and longjmp: no recorded stack is one that the program cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.thrown import BUILDS, COLLECTORS, Build, is_possible, sample_program
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.system]

SAMPLES = 2000
"""Number of samples of each program by each collector. `make accuracy` takes 100,000."""
BEFORE = ["_start", "__libc_start_main", "__libc_start_call_main"]
MARKER = "[in the unwinder]"


@pytest.mark.parametrize(("how", "collector"), pairs(BUILDS, COLLECTORS), ids=name_of)
def test_no_stack_of_a_program_that_throws_is_impossible(how: Build, collector: str, tmp_path: Path) -> None:
    found = sample_program(how, collector, tmp_path, SAMPLES)
    assert found.samples >= SAMPLES
    assert found.impossible == {}
    assert found.whole > 0


@pytest.mark.parametrize(
    "stack",
    [
        [*BEFORE, "main", "attempt(int)", "level1(int)", "level2(int) (.cold)", "_Unwind_Resume", "a!0x10"],
        [*BEFORE, "main"],
        BEFORE[:2],
        [MARKER, "_Unwind_Resume", "a!0x10"],
        [MARKER, "level6", "__cxa_throw", "_Unwind_RaiseException"],
        ["[truncated: no unwind rule]", "main", "attempt"],
    ],
    ids=" ".join,
)
def test_stack_that_the_program_may_have_is_possible(stack: list[str]) -> None:
    assert is_possible(stack)


@pytest.mark.parametrize(
    "stack",
    [
        [*BEFORE, "main", "attempt", "level2"],
        [*BEFORE, "main", "attempt", "level1", "level1"],
        [*BEFORE, "level1"],
        ["[unknown]!0x7fc0000000be", "_Unwind_Resume"],
        [MARKER, "level6", "level6", "_Unwind_RaiseException"],
        [MARKER, "level6", "_Unwind_RaiseException"],
        [MARKER, "attempt", "_Unwind_Resume"],
        [*BEFORE, "main", "attempt", "__longjmp"],
        ["main", "attempt"],
    ],
    ids=" ".join,
)
def test_stack_that_the_program_cannot_have_is_impossible(stack: list[str]) -> None:
    assert not is_possible(stack)
