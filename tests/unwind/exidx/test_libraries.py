"""Tests of EXIDX in system libraries: every entry equals readelf's output."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.unwind.formats.exidx_section import Entry, Model, read_entries
from tests.support import missing
from tests.unwind.exidx.build import source_of
from tests.unwind.exidx.listing import listing
from tests.unwind.exidx.readelf import readelf_entries

pytestmark = [pytest.mark.matrix, pytest.mark.system]

FOLDER = Path("/usr/arm-linux-gnueabihf/lib")
LIBRARIES = ["libc.so.6", "ld-linux-armhf.so.3", "libstdc++.so.6", "libgcc_s.so.1", "libubsan.so.1", "libasan.so.8"]
KINDS = {Model.CANT_UNWIND: "cantunwind", Model.INLINE: "inline", Model.COMPACT: "table", Model.GENERIC: "generic"}


def library(name: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        missing(f"needs {path}: apt-get install g++-arm-linux-gnueabihf")
    return path


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_entry_reads_as_readelf_reads_it(name: str) -> None:
    path = library(name)
    ours = list(read_entries(source_of(path).index))
    said = readelf_entries(path)
    assert len(ours) == len(said) > 20
    for mine, theirs in zip(ours, said, strict=True):
        assert isinstance(mine, Entry)
        assert (mine.start, KINDS[mine.model]) == (theirs.start, theirs.kind)
        if mine.model is not Model.CANT_UNWIND:
            assert mine.personality == theirs.personality
        if mine.model in (Model.INLINE, Model.COMPACT):
            assert [(op.code.hex(" "), op.text) for op in listing(mine.code)] == theirs.opcodes


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_function_has_rows_up_to_the_next_entry(name: str) -> None:
    source = source_of(library(name))
    can = [e for e in read_entries(source.index) if isinstance(e, Entry) and e.model is not Model.CANT_UNWIND]
    functions = list(source.functions())
    assert [(f.start, f.end) for f in functions] == [(e.start, e.end) for e in can]
    for this, following in pairwise(functions):
        assert this.end <= following.start
    for function in functions:
        assert source.function_at(function.start) == source.function_at(function.end - 1) == function


def test_generic_entries_of_libstdcxx_decode_by_the_convention_of_gcc() -> None:
    source = source_of(library("libstdc++.so.6"))
    generic = [e for e in read_entries(source.index) if isinstance(e, Entry) and e.model is Model.GENERIC]
    assert len(generic) > 1000
    assert len({e.personality for e in generic}) == 1
    for entry in generic:
        try:
            ops = listing(entry.code)
        except FormatError as error:
            pytest.fail(f"{entry}: {error}")
        assert len(entry.code) % 4 == 3
        assert ops


def test_signal_restorers_of_libc_are_signal_frames() -> None:
    source = source_of(library("libc.so.6"))
    signals = [f for f in source.functions() if f.rules[0].signal]
    assert len(signals) == 2
    assert sorted(f.rules[0].cfa_off for f in signals) == [
        84,
        212,
    ]  # offsets of sp in struct sigframe and struct rt_sigframe
