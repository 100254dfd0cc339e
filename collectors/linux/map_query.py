"""Checks single mappings of a process with PROCMAP_QUERY, without reading the text of /proc/PID/maps.

One query (linux/fs.h, Linux 6.11) takes about 1 us, the text 50 us and more: short enough while a thread is stopped.
The descriptor belongs to one image: after an exec it says ESRCH.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto

from pyprof.model.modules import Mapping

_PROCMAP_QUERY = 0xC0686611
_EXECUTABLE = 0x04
_COVERING_OR_NEXT = 0x10
_STRUCT = struct.Struct("=9Q4I2Q")
"""size, flags, address; start, end, flags, page size, offset, inode; major, minor, name size, id size; addresses."""
_QUESTION, _ANSWER = struct.Struct("=3Q"), struct.Struct("=24x2Q16x2Q2I")
Vma = tuple[int, int, int, int, int, int]
"""start, end, offset, inode, major and minor number of an executable mapping"""


class Answer(Enum):
    UNKNOWN = auto()  # the kernel does not say
    SAME = auto()  # every executable mapping is as expected
    NEAR = auto()  # it is the same image, and the mapping that was asked for is as expected
    CHANGED = auto()
    REPLACED = auto()  # the image that was asked about is gone: exec


def executable_vmas(mappings: Iterable[Mapping]) -> tuple[Vma, ...]:
    """What the kernel should answer for these mappings. [vsyscall] is no mapping of the process."""
    found = []
    for m in mappings:
        if m.executable and m.path != "[vsyscall]":
            major, _, minor = m.dev.partition(":")
            found.append((m.start, m.end, m.offset, m.inode, int(major, 16), int(minor, 16)))
    return tuple(found)


class MapQuery:
    """open_maps: gives a descriptor of the process's maps; fd: it, -1 where the kernel knows no such questions. Methods
    never raise: they are called at a stop.
    """

    def __init__(self, open_maps: Callable[[], int]) -> None:
        self._open = open_maps
        self.fd = -1
        self._buffer = bytearray(_STRUCT.size)
        self.renew()

    def renew(self) -> None:
        """From now on questions are for the image that the process has now."""
        self.close()
        try:
            self.fd = self._open()
        except OSError:
            self.fd = -1

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def near(self, pc: int, expected: Collection[Vma]) -> Answer:
        """Is the mapping at pc among those expected?"""
        if self.fd < 0:
            return Answer.UNKNOWN
        try:
            return Answer.NEAR if _query(self.fd, _EXECUTABLE, pc, self._buffer) in expected else Answer.CHANGED
        except OSError as error:
            return self._refused(error)

    def every(self, expected: Sequence[Vma]) -> Answer:
        """Are the executable mappings these, ascending?"""
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
        """The executable mapping at an address, or the next one. Raises OSError: ENOENT where there is none."""
        return _query(self.fd, _EXECUTABLE | _COVERING_OR_NEXT, address, self._buffer)


def vma_at(fd: int, avma: int) -> Vma:
    """The mapping at an address, executable or not. fd: of /proc/PID/maps.

    Raises OSError: ENOENT where nothing is mapped, ESRCH where the image is gone, else where the kernel does not know
    the question.
    """
    if not 0 <= avma < 1 << 64:
        raise OSError(errno.ENOENT, "no address")
    return _query(fd, 0, avma, bytearray(_STRUCT.size))


def _query(fd: int, flags: int, address: int, buffer: bytearray) -> Vma:
    """buffer: of the size of _STRUCT. Behind the question it holds zeros or an answer, which the kernel ignores."""
    _QUESTION.pack_into(buffer, 0, _STRUCT.size, flags, address)
    fcntl.ioctl(fd, _PROCMAP_QUERY, buffer, True)
    return _ANSWER.unpack_from(buffer)
