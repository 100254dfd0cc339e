"""Tests of the names of generated JavaScript code: they are those that V8 itself writes in the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.node_names import MAX_DIFFERENT, V8Map, sample_names

pytestmark = [pytest.mark.live, pytest.mark.system]

FRAMES = 1000
"""Number of compared frames. `make accuracy` compares 100,000 in each mode."""
MAP = """1000 40 LazyCompile:*open /srv/a b.js:6:14
1040 40 JS:^ /srv/a.js:7:3
2000 80 Builtin:ArrayMap
1080 20 LazyCompile:^one /srv/a.js:6:14
1080 20 LazyCompile:*two /srv/a.js:9:14
"""


def test_names_of_generated_code_are_those_that_v8_writes(tmp_path: Path) -> None:
    found = sample_names("tiered", "auto", tmp_path, FRAMES)
    assert found.samples >= FRAMES
    assert sum(found.impossible.values()) <= MAX_DIFFERENT * found.samples, found.impossible


@pytest.mark.parametrize(
    ("pc", "name"),
    [(0xFFF, None), (0x1000, "open"), (0x103F, "open"), (0x1040, "(anonymous:7)"), (0x1090, None), (0x2010, None)],
    ids=["before", "first", "last", "anonymous", "two functions", "builtin"],
)
def test_function_of_an_address_is_read_from_the_map_of_v8(pc: int, name: str | None) -> None:
    assert V8Map(MAP).find(pc) == name
