"""MINIDUMP_MEMORY_INFO_LIST: what is mapped where, of Windows and of Crashpad."""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.objfile.minidump.crash_dump import DumpRegion

COMMITTED = 0x1000
READABLE, WRITABLE, EXECUTABLE = 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80, 0x04 | 0x08 | 0x40 | 0x80, 0xF0
"""Bits of PAGE_* that allow it."""


def read_regions(entries: Iterable[tuple[int, ...]]) -> list[DumpRegion]:
    """entries: base, allocation base, its protection, padding, size, state, protection, type. Ascending."""
    found = []
    for base, _, _, _, size, state, protection, _ in entries:
        if not size or base + size > 1 << 64 or not state & COMMITTED:
            continue
        bits = (("r", READABLE), ("w", WRITABLE), ("x", EXECUTABLE))
        found.append(DumpRegion(base, base + size, "".join(c if protection & bit else "-" for c, bit in bits) + "p"))
    return sorted(found, key=lambda region: region.start)
