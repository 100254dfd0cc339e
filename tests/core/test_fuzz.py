"""Fuzz tests of core files, real ones with changes and generated ones: data or one clear error, in bounded time."""

from __future__ import annotations

import os
import random
import shutil
import struct
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.errors import PyprofError
from pyprof.objfile.core_file import CoreMemory, read_notes
from pyprof.objfile.elf_file import ElfFile
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from tests.core.making import crash, folder
from tests.core.writer import CoreWriter, Load, R, W, X

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

MAX_FRAMES = 300
SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def look(path: Path, exe: str = "", sysroot: str = "") -> None:
    """Run `pyprof dump --core` on a file without printing."""
    diagnostics = Diagnostics()
    try:
        process = CoreFileProcess(str(path), exe, sysroot, 1 << 16, diagnostics)
    except PyprofError:
        return
    session = Session(process.saved, UnwindOptions(max_depth=MAX_FRAMES), diagnostics)
    window = session.run(process.saved)
    if session.failure is not None:
        raise session.failure
    profile = session.profile(window, process.exe, 1.0, mode="wall")
    assert process.crashed is None or process.crashed[0] > 0
    for node in profile.stack.tolist():
        assert len(profile.path(node)) <= MAX_FRAMES + 1


@cache
def seed(arch: str) -> tuple[Path, int, str, str]:
    """Return (copy of a core that may be changed, offset of its first PT_LOAD, exe, sysroot)."""
    core = crash(arch, "core_threads.c", "-no-pie")
    path = folder() / f"fuzz-{arch}"
    shutil.copy(core.path, path)
    elf = ElfFile.open(str(path))
    return path, min(load.offset for load in elf.loads), str(core.program) if core.sysroot else "", core.sysroot


@cache
def busy_pages(path: Path, head: int) -> tuple[bytes, list[int]]:
    """Return the core's bytes and the offsets of its non-zero pages."""
    whole = path.read_bytes()
    empty = bytes(4096)
    return whole, [at for at in range(head & -4096, len(whole), 4096) if whole[at : at + 4096] != empty]


def changes(draw: random.Random, head: int, order: str) -> list[tuple[int, bytes]]:
    extremes = [0, 1, 7, 0xFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
    found = []
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(0, head - 8)
        if draw.random() < 0.5:
            found.append((at & -4, struct.pack(order + "Q", draw.choice(extremes))[: draw.choice((2, 4, 8))]))
        else:
            found.append((at, bytes([draw.randrange(256)])))
    return found


@pytest.mark.parametrize("arch", ["x86_64", "s390x", "arm"])
@SLOW
@given(number=st.integers(0, 2**32 - 1))
def test_real_core_with_changed_headers_and_notes_gives_data_or_one_error(arch: str, number: int) -> None:
    path, head, exe, sysroot = seed(arch)
    draw = random.Random(number)
    file = os.open(path, os.O_RDWR)
    try:
        saved = os.pread(file, head + 64, 0)
        for at, data in changes(draw, head, ">" if arch == "s390x" else "<"):
            os.pwrite(file, data, at)
        look(path, exe, sysroot)
    finally:
        os.pwrite(file, saved, 0)
        os.close(file)


@settings(SLOW, max_examples=20)
@given(number=st.integers(0, 2**32 - 1))
def test_link_map_and_stacks_of_a_real_core_with_changed_memory_give_data(number: int) -> None:
    """Change memory of a core without NT_FILE, where an attacker controls link map, dynamic sections and stacks."""
    path, head, exe, sysroot = seed("arm")
    draw = random.Random(number)
    whole, busy = busy_pages(path, head)
    file = os.open(path, os.O_RDWR)
    written = []
    try:
        for _ in range(draw.randrange(1, 200)):
            at = draw.choice(busy) + draw.randrange(0, 4088) & -4
            data = struct.pack("<I", draw.choice((0, 0xFFFF_FFFF, draw.randrange(2**32), 0x3FFF_F000)))
            written.append((at, whole[at : at + 4]))
            os.pwrite(file, data, at)
        look(path, exe, sysroot)
    finally:
        for at, data in written:
            os.pwrite(file, data, at)
        os.close(file)


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0, 1), arch=st.sampled_from(["x86_64", "s390x"]))
def test_real_core_cut_off_anywhere_gives_data_or_one_error(share: float, arch: str) -> None:
    path, head, exe, sysroot = seed(arch)
    cut = path.with_suffix(".cut")
    with open(path, "rb") as whole, open(cut, "wb") as out:
        shutil.copyfileobj(whole, out)
        out.truncate(int(share * (head + 4096 if share < 0.7 else path.stat().st_size)))
    look(cut, exe, sysroot)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(
        [(62, 64, "<", 27), (3, 32, "<", 17), (22, 64, ">", 27), (21, 64, "<", 48), (62, 32, "<", 27)]
    ),
)
def test_made_up_cores_give_data_or_one_error(data: st.DataObject, kind: tuple[int, int, str, int]) -> None:
    machine, elf_class, order, count = kind
    writer = CoreWriter(machine, elf_class, order, wide_registers=(machine, elf_class) == (62, 32))
    top = (1 << elf_class) - 1
    address = st.one_of(st.integers(0, top), st.sampled_from([0, 0x1000, 0x1FF8, 0x2000, top, top - 7, top & -4096]))
    wide = machine != 3
    value = address if not wide or elf_class == 64 else st.integers(0, (1 << 64) - 1)
    for tid in data.draw(st.lists(st.integers(-2, 5), max_size=4)):
        writer.thread(tid, [data.draw(value) for _ in range(count)], data.draw(st.integers(0, 70)))
    for note in data.draw(st.lists(st.sampled_from([1, 2, 3, 6, 0x46494C45, 0x53494749, 0x406]), max_size=4)):
        writer.note(note, data.draw(st.binary(max_size=200)))
    writer.auxv(*data.draw(st.lists(st.tuples(st.sampled_from([3, 7, 9, 31, 33]), address), max_size=4)))
    loads = [
        Load(
            data.draw(address),
            data.draw(st.binary(max_size=64)) * data.draw(st.sampled_from([1, 64])),
            data.draw(st.sampled_from([R, R | X, R | W, 0])),
            promised=data.draw(st.one_of(st.none(), address)),
            memory=data.draw(st.one_of(st.none(), address)),
        )
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    size = data.draw(st.one_of(st.none(), st.integers(0, top)))
    path = folder() / "made-up"
    path.write_bytes(writer.build(loads, size))
    look(path)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_core_or_one_error(data: bytes) -> None:
    for content in (data, b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00\x3e\x00" + data):
        try:
            elf = ElfFile.from_bytes(content, "core")
            CoreMemory(elf).read(0, 4096)
            read_notes(elf)
        except PyprofError:
            continue
