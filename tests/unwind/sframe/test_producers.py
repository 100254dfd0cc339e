"""Tests of the rows of real toolchains against the listings of the same toolchains' objdump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_source import SFrame, open_sframe
from tests.unwind.sframe.fixtures import FOLDER, NAMES, listing, load
from tests.unwind.sframe.listing import Listed, as_listed, read_listing

PLT_GOT = ((0, "sp+16", "u", "u"),)


def corrected(function: Listed) -> Listed:
    """Fix the row of .plt.got, which ld 2.44 to 2.47 writes wrong: an entry is a single jump, so its CFA is sp + 8."""
    return replace(function, rows=((0, "sp+8", "u", "u"),)) if function.rows == PLT_GOT else function


def differences(name: str, folder: Path = FOLDER) -> list[str]:
    """Return the differences between pyprof's rows of a fixture and its listing."""
    elf, arch = load(name, folder)
    diagnostics = Diagnostics()
    source = open_sframe(elf, arch, diagnostics)
    assert isinstance(source, SFrame)
    assert not diagnostics.counts
    ours = sorted(as_listed(source, i, arch) for i in range(len(source)))
    theirs = [corrected(function) for function in read_listing(listing(name, folder))]
    assert len(ours) == len(theirs) > 0
    return [
        f"{name}: ours {a}\n  theirs {b}"
        for a, b in zip(ours, theirs, strict=True)
        if a != b and b.size  # the reader drops the rows of an empty function
    ]


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_fixture_are_those_of_its_producers_listing(name: str) -> None:
    assert differences(name) == []


@pytest.mark.parametrize(
    ("name", "version", "flags"),
    [
        ("v1-x86_64.so", 1, 0x1),
        ("v2-x86_64.so", 2, 0x1),
        ("llvm-x86_64.so", 2, 0x4),
        ("llvm-relocatable.o", 2, 0x4),
        ("v3-x86_64.so", 3, 0x5),
        ("v3-relocatable.o", 3, 0x4),
        ("v3-s390x.so", 3, 0x5),
        ("v2-aarch64_be.so", 2, 0x1),
    ],
)
def test_version_and_flags_are_those_of_the_producer(name: str, version: int, flags: int) -> None:
    elf, arch = load(name)
    source = open_sframe(elf, arch, Diagnostics())
    assert source is not None
    assert (source.version, source.index.flags, source.frame_pointers) == (version, flags, False)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".so")])
def test_function_at_finds_each_function_by_its_first_and_last_byte(name: str) -> None:
    elf, arch = load(name)
    source = open_sframe(elf, arch, Diagnostics())
    assert source is not None
    functions = list(source.functions())
    assert functions
    for rows in functions:
        assert source.function_at(rows.end - 1) == rows
        assert source.function_at(rows.starts[0]) == rows
        if rows.starts[0] > rows.start:  # the first instructions have no rule
            assert source.function_at(rows.start) is None
    assert source.function_at(functions[0].start - 1) is None
    assert source.function_at(functions[-1].end) is None


@pytest.mark.parametrize("name", ["v2-x86_64.so", "v3-x86_64.so"])
def test_wrong_row_of_plt_got_is_corrected_and_counted(name: str) -> None:
    elf, arch = load(name)
    assert [f.rows for f in read_listing(listing(name))].count(PLT_GOT) == 1
    diagnostics = Diagnostics()
    source = open_sframe(elf, arch, diagnostics)
    assert source is not None
    rows = source.function_at(elf.sections[".plt.got"].addr)
    assert rows is not None
    assert [rule.cfa_off for rule in rows.rules] == [8]
    assert diagnostics.counts == {"sframe_plt_got_corrected": 1}
