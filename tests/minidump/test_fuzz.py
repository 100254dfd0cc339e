"""Fuzz tests of dumps, real ones with changes and generated ones: data or one clear error, in bounded time."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.collectors.postmortem.crash_dump_process import DumpedProcess
from pyprof.errors import PyprofError
from pyprof.options import DEFAULT_SOURCES, SCAN, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from tests.core.making import crash
from tests.minidump.from_core import microdump, minidump, symbols
from tests.minidump.test_published import write

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

MAX_FRAMES = 300
SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
EXTREMES = [0, 1, 7, 0xFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]


def look(path: Path, store: str) -> None:
    """Run `pyprof dump --minidump` on a file without printing."""
    diagnostics = Diagnostics()
    try:
        process = DumpedProcess(str(path), "", "", 1 << 16, diagnostics)
    except PyprofError:
        return
    options = UnwindOptions((*DEFAULT_SOURCES, SCAN), MAX_FRAMES, (store,))
    session = Session(process.saved, options, diagnostics)
    window = session.run(process.saved)
    if session.failure is not None:
        raise session.failure
    profile = session.profile(window, process.exe, 1.0, mode="wall")
    assert set(process.states) == set(process.order)
    for batch in process.saved.sample_again():
        for frames in session.unwinder.registers(batch):
            assert len(frames) <= MAX_FRAMES
    for node in profile.stack.tolist():
        assert len(profile.path(node)) <= MAX_FRAMES + 1


@cache
def seed(kind: str) -> tuple[bytes, str]:
    """Return a dump and its symbol store."""
    if kind == "windows":
        path, store = write(Path(tempfile.mkdtemp(prefix="pyprof-minidump-")))
        return path.read_bytes(), str(store)
    core = crash("x86_64" if kind == "amd64" else "arm", "core_threads.c")
    return minidump(core, paths="/gone").read_bytes(), str(symbols(core))


def looked_at(data: bytes, store: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="pyprof-hostile-") as file:
        file.write(data)
        file.flush()
        look(Path(file.name), store)


@pytest.mark.parametrize("kind", ["amd64", "arm", "windows"])
@SLOW
@given(number=st.integers(0, 2**32 - 1))
def test_changed_dump_is_an_error_or_data(kind: str, number: int) -> None:
    whole, store = seed(kind)
    data, draw = bytearray(whole), random.Random(number)
    structures = _structures(whole)
    for _ in range(draw.randrange(1, 6)):
        start, size = draw.choice(structures) if draw.random() < 0.8 else (0, len(data))
        at = start + draw.randrange(max(size - 8, 1))
        if draw.random() < 0.6:
            value = struct.pack("<Q", draw.choice(EXTREMES))[: draw.choice((2, 4, 8))]
            at &= -4
        else:
            value = bytes([draw.randrange(256)])
        data[at : at + len(value)] = value
    looked_at(bytes(data[: draw.randrange(len(data))] if draw.random() < 0.2 else data), store)


def _structures(data: bytes) -> list[tuple[int, int]]:
    """Return (offset, size) of the header and of all streams."""
    (count,) = struct.unpack_from("<I", data, 8)
    found = [(0, 32 + 12 * count)]
    for at in range(32, 32 + 12 * count, 12):
        _, size, rva = struct.unpack_from("<III", data, at)
        found.append((rva, max(size, 8)))
    return found


@SLOW
@given(data=st.binary(max_size=400))
def test_noise_behind_the_signature_is_an_error_or_data(data: bytes) -> None:
    looked_at(b"MDMP\x93\xa7\0\0" + data, seed("windows")[1])


@SLOW
@given(number=st.integers(0, 2**32 - 1))
def test_changed_microdump_is_an_error_or_data(number: int) -> None:
    core = crash("arm", "core_threads.c")
    draw, text = random.Random(number), _microdump()
    data = bytearray(text[: draw.randrange(len(text))] if draw.random() < 0.3 else text)
    for _ in range(draw.randrange(1, 8)):
        at = draw.randrange(len(data)) if data else 0
        data[at : at + draw.choice((0, 1, 3))] = draw.choice((b"", b" ", b"\n", b"f" * 17, b"\xff", b"-", b"0" * 40))
    looked_at(bytes(data), str(symbols(core)))


@cache
def _microdump() -> bytes:
    return microdump(crash("arm", "core_threads.c"))[: 96 << 10].encode()


def test_lists_that_claim_billions_take_no_memory() -> None:
    whole, store = seed("amd64")
    for stream in _structures(whole)[1:]:
        data = bytearray(whole)
        data[stream[0] : stream[0] + 4] = b"\xff" * 4
        looked_at(bytes(data), store)


def test_thing_that_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "none", Path("/dev/null")):
        with pytest.raises(PyprofError):
            DumpedProcess(str(path), "", "", 1 << 16, Diagnostics())
