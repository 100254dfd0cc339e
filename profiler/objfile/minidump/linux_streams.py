"""Breakpad's Linux streams: copies of /proc/PID files, and the dynamic loader's list of objects."""

from __future__ import annotations

import struct
from collections.abc import Callable

from pyprof.objfile.byte_source import ByteSource
from pyprof.objfile.minidump.crash_dump import DumpRegion

MAX_REGIONS = 1 << 18
MAX_OBJECTS = 1 << 14


def read_pid(status: bytes) -> int:
    """Return the process ID from a copy of /proc/PID/status, 0 if it is missing."""
    for line in status.splitlines():
        if line.startswith(b"Pid:") and line[4:].strip().isdigit():
            return int(line[4:])
    return 0


def read_auxv(data: bytes, wide: bool) -> dict[int, int]:
    """Return the values of a copy of /proc/PID/auxv by type."""
    pair = struct.Struct("<QQ" if wide else "<II")
    found: dict[int, int] = {}
    for kind, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if kind == 0:
            break
        found.setdefault(kind, value)
    return found


def read_maps(data: bytes) -> list[DumpRegion]:
    """Return the mappings of a copy of /proc/PID/maps in a dump, ascending. An invalid line is left out."""
    found = []
    for line in data.split(b"\n", MAX_REGIONS)[:MAX_REGIONS]:
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        low, _, high = fields[0].partition(b"-")
        try:
            start, end = int(low, 16), int(high, 16)
        except ValueError:
            continue
        if 0 <= start < end <= 1 << 64:
            path = fields[5].decode("utf-8", "surrogateescape").strip() if len(fields) > 5 else ""
            found.append(DumpRegion(start, end, fields[1].decode("ascii", "replace"), path))
    return sorted(found, key=lambda region: region.start)


def read_objects(data: bytes, source: ByteSource, wide: bool, string: Callable[[int], str]) -> list[tuple[int, str]]:
    """Return (load bias, name) of each object in the link map of a dump (MDRawDebug).

    Args:
        data: Bytes of the stream MDRawDebug.
        source: The whole dump.
        wide: Addresses have 64 bits.
        string: Reads a MINIDUMP_STRING at an offset.
    """
    head = struct.Struct("<III")
    if len(data) < head.size:
        return []
    _, rva, count = head.unpack_from(data)
    # address, name, address of the dynamic table, with the padding of the target's compiler
    entry = struct.Struct("<QI4xQ" if wide else "<III")
    table = source.read(rva, entry.size * min(count, MAX_OBJECTS))
    whole = len(table) // entry.size * entry.size
    return [(bias, string(name)) for bias, name, _ in entry.iter_unpack(table[:whole])]
