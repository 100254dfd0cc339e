"""Tests of a program without unwind tables: no recorded stack is one that its calls cannot make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.no_tables import BUILDS, COLLECTORS, Build, Calls, is_possible, sample_program
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.system]

SAMPLES = 2000
"""Number of samples of each build by each collector. `make accuracy` takes 100,000."""
SHARED, LINKED, STRIPPED = BUILDS
CALLS = Calls(
    {
        "_start": {"main"},
        "main": {"work"},
        "work": {"sort_numbers", "puts", "written_by"},
        "sort_numbers": {"qsort"},
        "written_by": {"written"},
    },
    {"qsort": {"sort"}, "sort": {"sort"}},
    {"sort"},
    {"written"},
)
BEFORE = ["_start", "main", "work"]


@pytest.mark.parametrize(("how", "collector"), pairs([SHARED, STRIPPED], COLLECTORS), ids=name_of)
def test_no_stack_of_a_program_without_tables_is_impossible(how: Build, collector: str, tmp_path: Path) -> None:
    found = sample_program(how, collector, tmp_path, SAMPLES)
    assert found.samples >= SAMPLES
    assert found.impossible == {}
    assert found.whole >= 0.95 * found.samples


@pytest.mark.parametrize(
    ("how", "stack"),
    [
        (SHARED, [*BEFORE, "sort_numbers", "libc!0x10", "compare"]),
        (LINKED, [*BEFORE, "sort_numbers", "sort", "compare"]),
        (LINKED, ["[truncated: no unwind rule]", "sort", "compare"]),
        (LINKED, [*BEFORE, "written_by", "to_memory"]),
    ],
)
def test_stack_that_the_calls_make_is_possible(how: Build, stack: list[str]) -> None:
    assert is_possible(stack, how, CALLS)


@pytest.mark.parametrize(
    ("how", "stack"),
    [
        (SHARED, ["_start", "main", "sort_numbers"]),
        (SHARED, ["main", "work", "sort_numbers"]),
        (SHARED, [*BEFORE, "compare"]),
        (SHARED, ["[truncated: no unwind rule]", "work", "work"]),
        (LINKED, [*BEFORE, "sort_numbers", "puts"]),
        (LINKED, [*BEFORE, "sort_numbers", "compare"]),
        (LINKED, ["_start", "work"]),
        (LINKED, ["main", "work", "sort_numbers"]),
        (LINKED, [*BEFORE, "program!0x10"]),
    ],
)
def test_stack_that_the_calls_cannot_make_is_impossible(how: Build, stack: list[str]) -> None:
    assert not is_possible(stack, how, CALLS)
