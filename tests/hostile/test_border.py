"""Tests of numeric limits: whatever a file contains, readers return values in range or refuse it.

Each reader of tests/fuzz/readers.py reads real inputs in which single numbers are replaced by the limits of field
widths, of Python, numpy and SQLite integers, and by text that is no number. The readers in VALUES also return what they
read (files of /proc are included where a stub provides them).
"""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Dictionary
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from pyprof.collectors.gdb_stub.target_modules import parse_libraries
from pyprof.collectors.gdb_stub.threads_and_registers import parse_description
from pyprof.collectors.linux.procfs import parse_maps
from pyprof.errors import PyprofError
from pyprof.importers import collapsed, perf, pprof, speedscope
from pyprof.lazy_dataclasses import field_names, is_record
from pyprof.model.address_space import Mapping
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.core_file import read_notes
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.jitdump import JitdumpReader
from pyprof.objfile.minidump import read_microdump, read_minidump
from pyprof.recording.column_blocks import unpack_columns
from tests.fuzz.readers import READERS
from tests.fuzz.seeds import seeds
from tests.support import BUILDS

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

TEXTS = {"breakpad", "perf_map", "gdb_packets", "gdb_documents", "procfs", "cython", "names", "speedscope", "collapsed"}
"""Readers whose input is text or begins with text. Numbers in it are replaced as digits, in all others as words."""
NUMBERS = [0, 1, *(2**bits + off for bits in (7, 8, 15, 16, 31, 32, 52, 53, 63, 64) for off in (-1, 0))]
WORDS = [
    *(struct.pack("<Q", number) for number in NUMBERS if number < 2**64),
    *(struct.pack(">Q", number) for number in NUMBERS if number < 2**64),
    *(struct.pack("<I", number) for number in NUMBERS if number < 2**32),
    *(struct.pack("<d", number) for number in (math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324)),
    b"\xff" * 9 + b"\1",
    b"\xff" * 16,
]
DIGITS = [str(number).encode() for number in (*NUMBERS, -1, -(2**63), -(2**63) - 1, 10**30)] + [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1e-400", b"0x", b"-", b"", b"9" * 5000, b"f" * 16),
]
CHANGES = 100
MAX_SEED = 1 << 14


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Dictionary[str, list[bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BUILDS, str(tmp_path_factory.mktemp("border")))
        return seeds()


def changed(data: bytes, text: bool, rng: random.Random) -> Iterator[bytes]:
    """Yield the input many times with one number replaced."""
    if text:
        places = [match.span() for match in re.finditer(rb"-?\d+(?:\.\d+)?|\b[0-9a-f]{2,}\b", data)] or [(0, 0)]
        for _ in range(CHANGES):
            start, end = rng.choice(places)
            yield data[:start] + rng.choice(DIGITS) + data[end:]
        return
    for _ in range(CHANGES):
        # headers are at the start and aligned to words
        most = rng.choice((64, 512, len(data)))
        at = rng.randrange(max(min(most, len(data)), 1)) & rng.choice((-8, -4, -1))
        word = rng.choice(WORDS)
        yield data[:at] + word + data[at + len(word) :]


def as_text(name: str, data: bytes) -> bool:
    return name in TEXTS or (name == "imported" and data[:1] in (b"\0", b"\2", b"\3"))


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_values_out_of_range(name: str, inputs: Dictionary[str, list[bytes]]) -> None:
    rng = random.Random(name)
    read = 0
    for data in sorted(inputs.get(name, [b"\0" * 256]), key=len)[: 4 if name == "imported" else 2]:
        for each in changed(data[:MAX_SEED] if name not in WHOLE else data, as_text(name, data), rng):
            READERS[name](each)
            read += 1
    assert read >= (CHANGES if inputs.get(name) else 0)


WHOLE = {"elf", "symbol_tables", "dwarf", "core", "minidump", "imported"}
"""Readers whose inputs are useless if truncated."""


def _elf(data: bytes) -> object:
    file = ElfFile.from_bytes(data, "border")
    return file.sections, file.segments, file.entry, file.build_id


def _description(data: bytes) -> object:
    return parse_description({"target.xml": data}.get)


VALUES: dict[str, tuple[str, Callable[[bytes], object]]] = {
    "sections": ("elf", _elf),
    "notes": ("core", lambda data: read_notes(ElfFile.from_bytes(data, "core"))),
    "minidump": ("minidump", lambda data: read_minidump(BytesSource(data))),
    "microdump": ("microdump", lambda data: read_microdump(BytesSource(data))),
    "jitdump": ("jitdump", lambda data: JitdumpReader().read(data)),
    "maps": ("procfs", parse_maps),
    "libraries": ("gdb_documents", lambda data: list(parse_libraries(data))),
    "description": ("gdb_documents", _description),
    "speedscope": ("imported", lambda data: speedscope.read_speedscope(data[1:], "x")),
    "pprof": ("imported", lambda data: pprof.read_pprof(data[1:], "x")),
    "collapsed": ("imported", lambda data: collapsed.read_collapsed(data[1:], "x")),
    "perf_script": ("imported", lambda data: perf.read_perf_script(data[1:], "x")),
    "columns": ("sample_columns", lambda data: unpack_columns(data, 5, 3)),
}


def out_of_range(value: object, place: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the numbers that no field of pyprof can hold."""
    if isinstance(value, (bool, str, bytes, memoryview)) or value is None or depth > 8:
        return
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            yield f"{place}: {value}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{place}: {value}"
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"{place}: not finite"
    elif isinstance(value, Dictionary):
        for key, each in value.items():
            yield from out_of_range(key, f"{place} key", depth + 1)
            yield from out_of_range(each, f"{place}[{key!r:.20}]", depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for at, each in enumerate(value):
            yield from out_of_range(each, f"{place}[{at}]", depth + 1)
    elif is_record(type(value)):
        for name in field_names(type(value)):
            yield from out_of_range(getattr(value, name, None), f"{place}.{name}", depth + 1)


def is_read(read: Callable[[bytes], object], data: bytes) -> bool:
    """Return True if the reader accepts the input. The inputs of several formats are mixed."""
    try:
        read(data)
    except PyprofError:
        return False
    return True


@pytest.mark.parametrize("name", VALUES)
def test_values_that_readers_give_are_in_range(name: str, inputs: Dictionary[str, list[bytes]]) -> None:
    of, read = VALUES[name]
    rng = random.Random(name)
    given = 0
    readable = (data for data in sorted(inputs.get(of, [b"\0" * 256]), key=len) if is_read(read, data))
    for data in islice(readable, 2):
        for each in (data, *changed(data, as_text(of, data), rng)):
            try:
                found = read(each)
            except PyprofError:
                continue
            given += 1
            assert list(out_of_range(found, name)) == []
    assert given or of not in inputs


def test_values_out_of_range_are_detected() -> None:
    mapping = Mapping(0x1000, 2**64, "r-xp", 0, "00:00", 7, "/lib/a.so")
    found = {"a": [1, (2**64, -(2**63) - 1)], "b": Path("/"), "c": np.array([math.nan]), "d": [math.inf, 0.5, True]}
    assert len(list(out_of_range({**found, "e": mapping}))) == 5
