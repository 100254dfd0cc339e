"""Reads of a process's memory as it was mapped earlier: another file may be mapped there now."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence

from pyprof.collectors.linux.map_query import query_vma
from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.errors import FormatError
from pyprof.model.modules import Mapping, ReadMemory

_CHUNK = 1 << 16


def find_mapping(mappings: Sequence[Mapping], avma: int) -> Mapping | None:
    """Return the mapping of a process at an address, or None; the mappings are in ascending order."""
    at = bisect_right(mappings, avma, key=lambda m: m.start) - 1
    return mappings[at] if at >= 0 and avma < mappings[at].end else None


def make_guarded_reader(read: ReadMemory, open_maps: Callable[[], int], then: Sequence[Mapping]) -> ReadMemory:
    """Return a ReadMemory that reads a file's memory only if the address still maps the same part of the same file.

    It checks that before and after the read. Memory that had no file is read without a check. An address that was not
    known to be mapped is read if it now belongs to no file, or to a file that was mapped elsewhere (the data of a
    library whose code is known).

    Args:
        read: Function that reads the process's current memory.
        open_maps: Returns a descriptor of its mappings (maps_of), or raises OSError.
        then: The earlier mappings.
    """
    files = {mapping.inode for mapping in then} | {0}

    def guarded_read(avma: int, size: int) -> bytes:
        was = find_mapping(then, avma)
        if was is not None and not was.inode:
            return read(avma, size)
        place = _place(open_maps, avma)
        if place is None or (was is None and place[0] not in files):
            return b""
        if was is not None and place != (was.inode, was.start - was.offset):
            return b""
        data = read(avma, size)
        return data if _place(open_maps, avma) == place else b""

    return guarded_read


def make_maps_reader(pid: int) -> Callable[[], int]:
    """Return a function for make_guarded_reader() that opens the maps of a process."""

    def opened() -> int:
        directory = ProcDir(pid)
        try:
            return directory.open("maps")
        finally:
            directory.close()

    return opened


def _place(open_maps: Callable[[], int], avma: int) -> tuple[int, int] | None:
    """Return (inode, address of the file's first byte) of the process's current mapping at avma, or None."""
    try:
        fd = open_maps()
    except OSError:
        return None
    try:
        start, _, offset, inode, _, _ = query_vma(fd, avma)
        return inode, start - offset
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return None
        return _place_in_text(fd, avma)  # an older kernel
    finally:
        os.close(fd)


def _place_in_text(fd: int, avma: int) -> tuple[int, int] | None:
    try:
        text = bytearray()
        while chunk := os.pread(fd, _CHUNK, len(text)):
            text += chunk
        now = find_mapping(parse_maps(bytes(text)), avma)
    except (OSError, FormatError):
        return None
    return (now.inode, now.start - now.offset) if now else None
