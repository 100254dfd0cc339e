"""Tests of a Java program whose call graph is known: no recorded stack is one that the program cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.java import sample_java
from tests.accuracy.thrown import COLLECTORS
from tests.jit.java_ladder import compile_ladder, impossible_calls

pytestmark = [pytest.mark.live, pytest.mark.system]

SAMPLES = 2000
"""Number of samples by each collector. `make accuracy` takes 100,000 in each mode of the virtual machine."""


@pytest.mark.parametrize("collector", COLLECTORS)
def test_no_stack_of_a_java_program_is_impossible(collector: str, tmp_path: Path) -> None:
    found = sample_java("tiered", collector, compile_ladder(tmp_path), tmp_path, SAMPLES)
    assert found.samples >= SAMPLES
    assert found.impossible == {}
    assert found.whole > 0.98 * found.samples


@pytest.mark.parametrize(
    ("stack", "calls"),
    [
        (("start", "Ladder.main", "Ladder.all", "Ladder.sort", "java.util.Arrays.sort", "Ladder$$Lambda.compare"), []),
        (("[truncated: no unwind rule]", "Ladder.two", "Ladder.one / Ladder.java:17"), []),
        (("start", "Ladder.all", "Ladder.copy"), [("", "all")]),
        (("start", "Ladder.main", "Ladder.two", "Ladder.one"), [("main", "two")]),
        (("start", "Ladder.main", "Ladder.all", "Ladder.copy", "Ladder$A.area"), [("copy", "A.area")]),
    ],
    ids=["whole", "truncated", "other root", "frame left out", "frame too many"],
)
def test_calls_that_the_program_does_not_make_are_impossible(
    stack: tuple[str, ...], calls: list[tuple[str, str]]
) -> None:
    assert impossible_calls(stack) == calls
