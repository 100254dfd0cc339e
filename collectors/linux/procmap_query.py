"""Checks of single mappings of a process, and reads of memory that is still mapped as before.

Mappings are checked with PROCMAP_QUERY, without reading the text of /proc/PID/maps. One query (linux/fs.h,
Linux 6.11) takes about 1 us, the text 50 us or more. So a query is fast enough while a thread is stopped. The
descriptor belongs to one process image: after an exec a query fails with ESRCH.

make_guarded_reader() discards a read if another file may have been mapped at the address meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto

from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.errors import FormatError
from pyprof.model.address_space import Mapping, ReadMemory

_PROCMAP_QUERY = 0xC0686611
_EXECUTABLE = 0x04
_COVERING_OR_NEXT = 0x10
_STRUCT = struct.Struct("=9Q4I2Q")
"""Format of struct procmap_query: size, flags, address; start, end, flags, page size, offset, inode; major,
minor, name size, build ID size; addresses of name and build ID.
"""
_QUESTION, _ANSWER = struct.Struct("=3Q"), struct.Struct("=24x2Q16x2Q2I")
Vma = tuple[int, int, int, int, int, int]
"""The tuple (start, end, offset, inode, major device number, minor device number) of an executable mapping."""


class Answer(Enum):
    UNKNOWN = auto()  # the kernel does not answer
    SAME = auto()  # every executable mapping is as expected
    NEAR = auto()  # it is the same image, and the mapping in question is as expected
    CHANGED = auto()
    REPLACED = auto()  # the image in question has ended by an exec


def pack_executable_vmas(mappings: Iterable[Mapping]) -> tuple[Vma, ...]:
    """Return the executable ones among some mappings as Vma tuples, which can be compared with answers of
    PROCMAP_QUERY. [vsyscall] is left out, because it is not a mapping of the process.
    """
    found = []
    for m in mappings:
        if m.executable and m.path != "[vsyscall]":
            major, _, minor = m.dev.partition(":")
            found.append((m.start, m.end, m.offset, m.inode, int(major, 16), int(minor, 16)))
    return tuple(found)


class MapQuery:
    """PROCMAP_QUERY queries for a process's mappings. Methods never raise, because they are called during a stop.

    Args:
        open_maps: Function that returns a descriptor of the process's /proc/PID/maps.

    Attributes:
        fd: The descriptor of /proc/PID/maps, -1 if the kernel has no such queries.
    """

    def __init__(self, open_maps: Callable[[], int]) -> None:
        self._open = open_maps
        self.fd = -1
        self._buffer = bytearray(_STRUCT.size)
        self.reopen_maps()

    def reopen_maps(self) -> None:
        """Open /proc/PID/maps again, so that queries refer to the process's current image."""
        self.close()
        try:
            self.fd = self._open()
        except OSError:
            self.fd = -1

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def check_mapping_at(self, pc: int, expected: Collection[Vma]) -> Answer:
        """Check by PROCMAP_QUERY whether the process's mapping at pc is one of the expected ones."""
        if self.fd < 0:
            return Answer.UNKNOWN
        try:
            return Answer.NEAR if _query(self.fd, _EXECUTABLE, pc, self._buffer) in expected else Answer.CHANGED
        except OSError as error:
            return self._refused(error)

    def check_all_mappings(self, expected: Sequence[Vma]) -> Answer:
        """Check by PROCMAP_QUERY whether the process's executable mappings are exactly the expected ones,
        which must be ascending.
        """
        if self.fd < 0:
            return Answer.UNKNOWN
        try:
            return self._compare(expected)
        except OSError as error:
            return self._refused(error)

    def _refused(self, error: OSError) -> Answer:
        if error.errno == errno.ESRCH:
            return Answer.REPLACED
        if error.errno == errno.ENOENT:
            return Answer.CHANGED
        self.close()  # an older kernel
        return Answer.UNKNOWN

    def _compare(self, expected: Sequence[Vma]) -> Answer:
        at = 0
        for vma in expected:
            if self._executable(at) != vma:
                return Answer.CHANGED
            at = vma[1]
        try:
            self._executable(at)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return Answer.SAME
            raise
        return Answer.CHANGED

    def _executable(self, address: int) -> Vma:
        """Return the executable mapping of a process at an address, or the next one.

        Raises:
            OSError: ENOENT if there is none.
        """
        return _query(self.fd, _EXECUTABLE | _COVERING_OR_NEXT, address, self._buffer)


def query_vma(fd: int, avma: int) -> Vma:
    """Return the mapping of a process at an address, executable or not.

    Args:
        fd: Descriptor of /proc/PID/maps.
        avma: The address in the process.

    Raises:
        OSError: ENOENT if nothing is mapped there. ESRCH if the image has ended. Other errors if the kernel has no such
            query.
    """
    if not 0 <= avma < 1 << 64:
        raise OSError(errno.ENOENT, "no address")
    return _query(fd, 0, avma, bytearray(_STRUCT.size))


def _query(fd: int, flags: int, address: int, buffer: bytearray) -> Vma:
    """Make a PROCMAP_QUERY and leave the answer in the buffer, which has the size of _STRUCT. An earlier
    answer may remain in the buffer, because the kernel ignores it.
    """
    _QUESTION.pack_into(buffer, 0, _STRUCT.size, flags, address)
    fcntl.ioctl(fd, _PROCMAP_QUERY, buffer, True)
    return _ANSWER.unpack_from(buffer)


_CHUNK = 1 << 16


def find_mapping(mappings: Sequence[Mapping], avma: int) -> Mapping | None:
    """Return the mapping that contains an address, or None. The mappings must be in ascending order."""
    at = bisect_right(mappings, avma, key=lambda m: m.start) - 1
    return mappings[at] if at >= 0 and avma < mappings[at].end else None


def make_guarded_reader(read: ReadMemory, open_maps: Callable[[], int], then: Sequence[Mapping]) -> ReadMemory:
    """Return a ReadMemory that reads a mapped file's memory only while the address maps the same part of the
    same file as before.

    Each read checks that before and after it. Memory that had no file is read without a check. An address
    that was not mapped before is read if it now belongs to no file, or to a file that was mapped elsewhere
    (the data of a library whose code is known).

    Args:
        read: Function that reads the process's current memory.
        open_maps: Function that returns a descriptor of the process's mappings, or raises OSError.
        then: The mappings as they were before.
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
    """Return where the file at an address is mapped now, as (inode, address of the file's first byte), or None."""
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
