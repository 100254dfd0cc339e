"""Fuzz tests of SFrame with random and mutated sections: rows or FormatError in bounded time."""

from __future__ import annotations

import gzip
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_source import open_sframe, read_sframe
from tests.unwind.sframe.fixtures import FOLDER, NAMES, load

pytestmark = pytest.mark.fuzz

SECTIONS = {}
for _name in NAMES:
    _elf, _arch = load(_name)
    _data = _elf.section(".sframe")
    assert _data is not None
    SECTIONS[_name] = (bytes(_data), _elf.sections[".sframe"].addr, _arch)


def check_place(error: FormatError, data: bytes) -> None:
    assert 0 <= error.offset <= len(data)


def exhaust(data: bytes, svma: int, arch: Arch) -> None:
    """Call every method of a section. The listing never has more rows than the section has bytes."""
    try:
        source = read_sframe(data, svma, arch)
    except FormatError as error:
        check_place(error, data)
        return
    rows = list(source.functions())
    assert sum(len(function.starts) for function in rows) <= len(data) + len(source)
    for function in islice(rows, 20):
        assert all(a < b for a, b in zip(function.starts, function.starts[1:], strict=False))
        for at in (function.start, function.end - 1):
            try:
                source.function_at(at & (1 << 64) - 1)
            except FormatError as error:
                check_place(error, data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SECTIONS)), st.data())
def test_mutated_real_section_gives_rows_or_format_error(name: str, choose: st.DataObject) -> None:
    data, svma, arch = SECTIONS[name]
    changed = bytearray(data)
    for _ in range(choose.draw(st.integers(1, 8))):
        at = choose.draw(st.integers(0, len(changed) - 1) | st.integers(0, min(80, len(changed) - 1)))
        changed[at] = choose.draw(st.integers(0, 255))
    end = choose.draw(st.just(len(changed)) | st.integers(0, len(changed)))
    exhaust(bytes(changed[:end]), svma, arch)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([1, 2, 3]), st.sampled_from(sorted(SECTIONS)))
def test_random_bytes_behind_a_right_preamble_give_rows_or_format_error(tail: bytes, version: int, name: str) -> None:
    data, svma, arch = SECTIONS[name]
    exhaust(data[:2] + bytes([version]) + data[3:8] + tail, svma, arch)
    exhaust(tail, svma, arch)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["v3-relocatable.o", "llvm-relocatable.o", "v2-x86_64-v3.so"]), st.data())
def test_mutated_real_file_gives_a_source_or_format_error(name: str, choose: st.DataObject) -> None:
    data = bytearray(gzip.decompress((FOLDER / f"{name}.gz").read_bytes()))
    for _ in range(choose.draw(st.integers(1, 6))):
        data[choose.draw(st.integers(16, len(data) - 1))] = choose.draw(st.integers(0, 255))
    try:
        elf = ElfFile.from_bytes(bytes(data), name)
        arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
        source = open_sframe(elf, arch, Diagnostics()) if arch else None
    except FormatError:
        return
    if source is not None:
        list(source.functions())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_section_made_to_be_slow_is_read_in_linear_work(version: int) -> None:
    """Let all functions refer to the same rows, as many as possible."""
    functions, rows = 4000, 30_000
    per = {1: 17, 2: 20, 3: 16}[version]
    count = 65_535 if version == 3 else rows
    index = bytearray()
    for n in range(functions):
        start = (16 * n).to_bytes(8 if version == 3 else 4, "little")
        index += start + (1 << 31).to_bytes(4, "little") + bytes(4)
        index += b"" if version == 3 else count.to_bytes(4, "little") + b"\2" + bytes(per - 17)
    body = b"".join(n.to_bytes(4, "little") + b"\1" for n in range(rows))
    if version == 3:
        body = rows.to_bytes(2, "little") + b"\2\0\0" + body
    head = b"\xe2\xde" + bytes([version, 1, 3, 0, 0xF8, 0])
    sizes = (functions, rows, len(body), 0, len(index))
    data = head + b"".join(n.to_bytes(4, "little") for n in sizes) + bytes(index) + body
    source = read_sframe(data, 0, find_arch(62, 64, "little"))  # type: ignore[arg-type]
    assert sum(len(function.starts) for function in source.functions()) <= len(data)
