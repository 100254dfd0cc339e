"""Tests of the memory limits for contents of foreign files, for one section and for all together."""

from __future__ import annotations

import gc
import lzma
import struct
import zlib
from collections.abc import Callable

import pytest

from pyprof.errors import FormatError
from pyprof.objfile import byte_source
from pyprof.objfile.byte_source import SMALL, count_held_bytes, hold_bytes
from pyprof.objfile.elf_sections import (
    ALWAYS_ALLOWED,
    MAX_RATIO,
    inflate_debugdata,
    inflate_section,
    inflate_zdebug,
)

SIZE = 4 * SMALL


def test_bytes_count_until_no_reference_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = count_held_bytes()
    monkeypatch.setattr(byte_source, "MAX_HELD", before + 3 * SIZE)
    kept = [hold_bytes("a", SIZE, lambda: bytes(SIZE)) for _ in range(3)]
    part = kept[0][5:7]
    with pytest.raises(FormatError, match="in memory"):
        hold_bytes("b", SIZE, lambda: pytest.fail("nobody reads it"))
    kept[0] = memoryview(b"")
    with pytest.raises(FormatError, match="in memory"):
        hold_bytes("b", SIZE, lambda: bytes(SIZE))
    part.release()
    del part
    assert hold_bytes("b", SIZE, lambda: bytes(SIZE)).nbytes == SIZE
    kept.clear()
    assert count_held_bytes() == before


def test_what_is_shorter_than_it_said_counts_as_it_is() -> None:
    before = count_held_bytes()
    kept = hold_bytes("a", 100 * SIZE, lambda: bytes(SIZE))
    assert count_held_bytes() == before + SIZE
    del kept
    assert count_held_bytes() == before


def test_failure_leaves_nothing_counted() -> None:
    before = count_held_bytes()
    with pytest.raises(ZeroDivisionError):
        hold_bytes("a", SIZE, lambda: bytes(1 // 0))
    assert count_held_bytes() == before


def section(content: bytes) -> Callable[[], memoryview]:
    header = struct.pack("<IIQQ", 1, 0, len(content), 1)
    packed = memoryview(header + zlib.compress(content, 9))
    return lambda: inflate_section(".debug_info", packed, 64, "little")


def zdebug(content: bytes) -> Callable[[], memoryview]:
    packed = memoryview(b"ZLIB" + len(content).to_bytes(8, "big") + zlib.compress(content, 9))
    return lambda: inflate_zdebug(".zdebug_info", packed)


def debugdata(content: bytes) -> Callable[[], memoryview]:
    packed = memoryview(lzma.compress(content))
    return lambda: inflate_debugdata(packed)


@pytest.mark.parametrize("pack", [section, zdebug, debugdata])
def test_bombs_are_refused(pack: Callable[[bytes], Callable[[], memoryview]]) -> None:
    before = count_held_bytes()
    content = bytes(range(256)) * 1024
    assert pack(content)() == content
    assert (
        len(pack(bytes(ALWAYS_ALLOWED))()) == ALWAYS_ALLOWED > MAX_RATIO * len(zlib.compress(bytes(ALWAYS_ALLOWED), 9))
    )
    with pytest.raises(FormatError):
        pack(bytes(ALWAYS_ALLOWED + 1))()
    assert count_held_bytes() == before


def test_debugdata_that_is_cut_off_is_refused() -> None:
    with pytest.raises(FormatError, match="cut off"):
        inflate_debugdata(memoryview(lzma.compress(bytes(range(256)) * 1024))[:-20])
