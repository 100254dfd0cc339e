"""Tests of the machine code for ptrace stops: it matches its source and structures, and all accesses are in bounds."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collectors.native import sampling_loop_bindings
from pyprof.collectors.native.sampling_loop_bindings import (
    EXTRAS_SIZE,
    FramesRow,
    MachineRow,
    ProcessRow,
    ReturnReason,
    Rounds,
    SampleRow,
    StopEnding,
    ThreadRow,
    address_of,
)
from pyprof.collectors.ptrace.running_threads import read_turn_ns
from pyprof.collectors.ptrace.sampled_thread import MIN_WHOLE_SHARE, WINDOW_NS, ProcessorShare
from tests.support import PROGRAMS, need

pytestmark = [pytest.mark.live, pytest.mark.system]

FOLDER = Path(sampling_loop_bindings.__file__).resolve().parent
MACHINES = ("x86_64", "aarch64")
_PAGE = mmap.PAGESIZE
_WORDS = 1024
"""Number of words of the corrupt memory."""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("native") / "harness.so"
    flags = ("-O1", "-shared", "-fPIC", "-ffreestanding", "-fno-builtin")
    subprocess.run([need("gcc"), *flags, "-o", library, PROGRAMS / "native_harness.c"], check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    loaded.turn_of.restype = ctypes.c_uint64
    return loaded


def numbers(harness: ctypes.CDLL, name: str, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).in_dll(harness, name))


def test_shipped_code_is_what_its_source_makes(tmp_path: Path) -> None:
    need("clang")
    need("ld.lld")
    subprocess.run([str(FOLDER / "build"), str(tmp_path)], check=True, timeout=60)
    for machine in MACHINES:
        name = f"rounds.{machine}.so"
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    assert {path.name for path in FOLDER.glob("*.so")} == {f"rounds.{machine}.so" for machine in MACHINES}


def test_code_needs_no_library_and_has_no_relocations() -> None:
    for machine in MACHINES:
        path = str(FOLDER / f"rounds.{machine}.so")
        found = subprocess.check_output([need("readelf"), "--dynamic", "--relocs", path], text=True, timeout=20)
        assert "(SYMTAB)" in found
        assert not [word for word in ("(NEEDED)", "(INIT", "Relocation section") if word in found]


def test_structures_are_those_of_the_source(harness: ctypes.CDLL) -> None:
    kinds = (MachineRow, ProcessRow, ThreadRow, SampleRow, FramesRow, Rounds)
    sizes = numbers(harness, "sizes", 10)
    assert sizes == [*map(ctypes.sizeof, kinds), EXTRAS_SIZE, 24, 32, 48]
    fields = [
        *(MachineRow.bound_ns, MachineRow.whole, ProcessRow.size, ThreadRow.slept, ThreadRow.top, ThreadRow.credit),
        *(ThreadRow.shared, SampleRow.whole, SampleRow.frames_end, SampleRow.registers, FramesRow.base_frame),
        *(FramesRow.cframe_previous, FramesRow.most, FramesRow.codes_count, Rounds.check, Rounds.own_sched, Rounds.why),
        Rounds.own_began_ns,
    ]
    assert numbers(harness, "offsets", len(fields)) == [field.offset for field in fields]
    assert numbers(harness, "endings", len(StopEnding)) == list(StopEnding)
    assert numbers(harness, "reasons", len(ReturnReason)) == list(ReturnReason)


def test_share_of_a_processor_is_what_python_finds(harness: ctypes.CDLL) -> None:
    """Compare the share of a processor, which is run time divided by runnable time, in the same windows."""
    chance = random.Random(11)
    _, waits, runs, unsure = numbers(harness, "looks", 4)
    machine, row, share = MachineRow(window_ns=WINDOW_NS, whole=MIN_WHOLE_SHARE), ThreadRow(), ProcessorShare()
    ran = waited = 0
    answers = []
    for turn in range(4000):
        row.share, row.credit, row.share_ran, row.share_waited = (
            share.share,
            share.credit,
            max(share.ran, 0),
            share.waited,
        )
        arrivals = turn
        of_code = harness.share_of(
            ctypes.c_void_p(address_of(machine)),
            ctypes.c_void_p(address_of(row)),
            *map(ctypes.c_uint64, (ran, waited, arrivals)),
        )
        known = share.share >= 0
        due = share.is_due(f"{ran} {waited} {arrivals}".encode())
        if arrivals and not known:
            assert of_code == unsure
        else:
            assert of_code == (runs if due else waits)
            assert (row.share, row.credit) == (share.share, share.credit)
            answers.append(due)
        ran += chance.randrange(12_000_000)
        waited += chance.randrange(25_000_000) * chance.randrange(2)
    assert 0.2 < sum(answers) / len(answers) < 0.8


def test_turns_are_read_as_python_reads_them(harness: ctypes.CDLL) -> None:
    text = Path("/proc/self/sched").read_bytes()
    if b"se.exec_start" not in text:
        pytest.skip("this kernel does not say when turns of threads began")
    assert harness.turn_of(text) == read_turn_ns(text) > 0
    assert harness.turn_of(b"nothing of that\n") == 0
    assert harness.turn_of(b"se.exec_start") == 0


@pytest.fixture
def room() -> Iterator[tuple[int, int]]:
    """Yield (address, end) of memory that is followed by an inaccessible page."""
    held = mmap.mmap(-1, 64 * _PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(held))
    end = address + 63 * _PAGE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), _PAGE, 0) == 0
    yield address, end
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), _PAGE, 3) == 0


def lying(chance: random.Random, at: int) -> list[int]:
    """Return random words: small numbers, addresses of other words, addresses near the end of memory, or any number."""
    kinds = (
        lambda: chance.randrange(64),
        lambda: at + 8 * chance.randrange(_WORDS),
        lambda: at + chance.randrange(8 * _WORDS),
        lambda: (1 << 64) - 8 * chance.randrange(1, 40),
        lambda: chance.randrange(1 << 64),
        lambda: 0,
    )
    return [chance.choices(kinds, (2, 16, 1, 1, 1, 6))[0]() for _ in range(_WORDS)]


def test_frames_that_lie_are_read_within_bounds(harness: ctypes.CDLL, room: tuple[int, int]) -> None:
    """Read random memory: the code writes within its buffer and lists every range that it read."""
    chance, (data, end) = random.Random(5), room
    memory = (ctypes.c_uint64 * _WORDS)()
    at = ctypes.addressof(memory)
    endings = {0: 0, 1: 0}
    more = 0
    for _ in range(800):
        ctypes.memmove(memory, array("Q", lying(chance, at)).tobytes(), 8 * _WORDS)
        begin = end - chance.randrange(1, 12) * _PAGE
        assert begin >= data
        head = 8 * chance.randrange(20, 60)
        chunks = [
            (at + 8 * chance.randrange(_WORDS - 600), 8 * chance.randrange(3, 600)) for _ in range(chance.randrange(4))
        ]
        loose = [
            (at + 8 * chance.randrange(_WORDS - 20), 8 * chance.randrange(8, 20)) for _ in range(chance.randrange(4))
        ]
        spans = [(at, head), (at + 512, 64), (at + 8, 8), *chunks, *loose]
        flat = (ctypes.c_uint64 * (2 * len(spans)))(*[word for span in spans for word in span])
        offset, placed = 0, []
        for span in spans:
            placed.append((*span, offset))
            offset += span[1]
        of_chunks, of_loose = placed[3 : 3 + len(chunks)], placed[3 + len(chunks) :]
        rows = [
            (ctypes.c_uint64 * (3 * len(some) or 1))(*[w for row in some for w in row])
            for some in (of_chunks, of_loose)
        ]
        known = sorted(memory) if chance.random() < 0.8 else sorted(chance.sample(list(memory), chance.randrange(400)))
        codes = (ctypes.c_uint64 * (len(known) or 1))(*known)
        if chunks and chance.random() < 0.7:
            memory[2], memory[3] = chunks[0][0], chunks[0][0] + 8 * chance.randrange(600)
        by_cframe = chance.random() < 0.5
        frames = FramesRow(
            spans=ctypes.addressof(flat), spans_count=len(spans), size=offset,
            thread_id=0, interp=8, frame=32, chunk=chance.choice((16, -1, -1)), cframe=40 if by_cframe else -1,
            base_frame=chance.choice((48, -1)), ident=memory[0], interpreter=memory[1], by_cframe=by_cframe,
            root_cframe=at + 56, cframe_size=24, cframe_current=0, cframe_previous=8, previous=8, code=0,
            code_mask=(1 << 64) - 1 - chance.choice((0, 1)), frame_size=8 * chance.randrange(2, 9),
            most=chance.choice((4, 2048)),
            chunks=ctypes.addressof(rows[0]), chunks_count=len(chunks), room=2048,
            loose=ctypes.addressof(rows[1]), loose_count=len(loose),
            codes=ctypes.addressof(codes), codes_count=len(known),
        )  # fmt: skip
        stack = (ctypes.c_uint64 * 64)(*chance.choices(list(memory), k=64))
        reached = ctypes.c_uint64()
        limit = min(end, begin + offset + EXTRAS_SIZE + chance.randrange(1024))
        whole = harness.frames_of(
            ctypes.c_void_p(address_of(frames)),
            ctypes.c_int64(os.getpid()),
            *map(ctypes.c_uint64, (begin, limit, at + 64, 512, ctypes.addressof(stack))),
            ctypes.byref(reached),
        )
        endings[whole] += 1
        assert begin + offset + EXTRAS_SIZE <= reached.value <= limit or not whole
        if whole:
            count = ctypes.c_uint64.from_address(begin + offset).value
            more += count
            listed = [(ctypes.c_uint64 * 3).from_address(begin + offset + 8 + 24 * n)[:] for n in range(count)]
            for avma, size, where in listed:
                assert offset + EXTRAS_SIZE <= where <= reached.value - begin - size
                assert ctypes.string_at(begin + where, size) == ctypes.string_at(avma, size)
    assert min(endings.values()) > 30
    assert more > 60, (more, endings)
