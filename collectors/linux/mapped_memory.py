"""Reads the memory of a process as it was mapped earlier: a file that is mapped there now may be another one."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence

from pyprof.collectors.linux.map_query import vma_at
from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.errors import FormatError
from pyprof.model.modules import Mapping, ReadMemory


def mapping_at(mappings: Sequence[Mapping], avma: int) -> Mapping | None:
    """mappings: ascending by start."""
    at = bisect_right(mappings, avma, key=lambda m: m.start) - 1
    return mappings[at] if at >= 0 and avma < mappings[at].end else None


def guarded(read: ReadMemory, pid: int, then: Sequence[Mapping]) -> ReadMemory:
    """Reads a file's memory only if, before and after, the place holds the part of that file that it held then.

    read: of the process's memory now. Memory that had no file is read as it is. What was not known to be mapped is
    read if it belongs to no file now, or to one that was mapped elsewhere then (the data of a library whose code is
    known).
    """
    files = {mapping.inode for mapping in then} | {0}

    def guarded_read(avma: int, size: int) -> bytes:
        was = mapping_at(then, avma)
        if was is not None and not was.inode:
            return read(avma, size)
        place = _place(pid, avma)
        if place is None or (was is None and place[0] not in files):
            return b""
        if was is not None and place != (was.inode, was.start - was.offset):
            return b""
        data = read(avma, size)
        return data if _place(pid, avma) == place else b""

    return guarded_read


def _place(pid: int, avma: int) -> tuple[int, int] | None:
    """(inode, where the file's first byte would stand) of the mapping at avma now; None without one."""
    try:
        directory = ProcDir(pid)
    except OSError:
        return None
    try:
        fd = directory.open("maps")
        try:
            start, _, offset, inode, _, _ = vma_at(fd, avma)
            return inode, start - offset
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return None
        finally:
            os.close(fd)
        now = mapping_at(parse_maps(directory.maps()), avma)  # an older kernel
        return (now.inode, now.start - now.offset) if now else None
    except (OSError, FormatError):
        return None
    finally:
        directory.close()
