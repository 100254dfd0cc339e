"""MINIDUMP_MEMORY_INFO_LIST: the memory mappings, in dumps of Windows and Crashpad."""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.objfile.minidump.crash_dump import DumpRegion

COMMITTED = 0x1000
READABLE, WRITABLE, EXECUTABLE = 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80, 0x04 | 0x08 | 0x40 | 0x80, 0xF0
"""Masks of the PAGE_* bits that grant each permission."""


def read_regions(entries: Iterable[tuple[int, ...]]) -> list[DumpRegion]:
    """Return the committed regions, ascending.

    Args:
        entries: (base, allocation base, its protection, padding, size, state, protection, type) of each entry.
    """
    found = []
    for base, _, _, _, size, state, protection, _ in entries:
        if not size or base + size > 1 << 64 or not state & COMMITTED:
            continue
        bits = (("r", READABLE), ("w", WRITABLE), ("x", EXECUTABLE))
        found.append(DumpRegion(base, base + size, "".join(c if protection & bit else "-" for c, bit in bits) + "p"))
    return sorted(found, key=lambda region: region.start)
