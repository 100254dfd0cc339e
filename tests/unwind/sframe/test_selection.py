"""Tests of the order of SFrame and .eh_frame for each pc (docs/unwind-tables.md)."""

from __future__ import annotations

import pytest

from pyprof.problem_counters import Diagnostics
from pyprof.unwind.module_unwind_sources import open_sources, order_sources
from tests.unwind.sframe.fixtures import load


@pytest.mark.parametrize(
    ("name", "exact", "first"),
    [
        ("v1-code.so", True, "eh_frame"),
        ("v2-code.so", True, "eh_frame"),
        ("v3-code.so", True, "sframe"),
        ("v1-code.so", False, "sframe"),
        ("v3-code.so", False, "sframe"),
    ],
)
def test_table_that_is_less_exact_is_asked_last_at_exact_pcs(name: str, exact: bool, first: str) -> None:
    elf, arch = load(name)
    sources = open_sources(elf, arch, ("sframe", "eh_frame", "fp"), Diagnostics())
    assert {source.name for source in sources} == {"sframe", "eh_frame"}
    assert order_sources(sources, exact)[0].name == first


def test_broken_section_costs_only_itself_and_is_named() -> None:
    elf, arch = load("v3-code.so")
    section = elf.section(".sframe")
    assert section is not None
    at = bytes(elf.source.read(0, elf.source.size)).index(bytes(section))
    data = bytearray(elf.source.read(0, elf.source.size))
    data[at + 2] = 9
    broken = type(elf).from_bytes(bytes(data), "broken.so")
    diagnostics = Diagnostics()
    sources = open_sources(broken, arch, ("sframe", "eh_frame"), diagnostics)
    assert [source.name for source in sources] == ["eh_frame"]
    assert diagnostics.counts["unwind_table_broken:sframe"] == 1
    assert [problem.text for problem in diagnostics.problems["broken.so"]] == [".sframe+0x2: version 9 is unknown"]
