"""Random access to an object file's bytes: an open file, or bytes in memory.

A file is read with pread and never mapped. If another process truncates a mapped file, its reader is killed by SIGBUS,
and the files of a live target cannot be trusted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

from pyprof.errors import FormatError
from pyprof.objfile import file_access, io_deadline


class ByteSource(Protocol):
    """The protocol of the bytes of an object file, readable at any offset."""

    size: int

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes of the object file from an offset on, `size` bytes or fewer; none past the end. Never raises."""
        ...


class BytesSource:
    """A ByteSource of bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size <= 0:
            return memoryview(b"")
        return self._view[offset : offset + size]


class PiecesSource:
    """A ByteSource of pieces (offset, data) with holes between them. A read ends at a hole."""

    def __init__(self, pieces: Sequence[tuple[int, memoryview]]) -> None:
        self._pieces = sorted(pieces, key=lambda piece: piece[0])
        self.size = max((offset + len(data) for offset, data in self._pieces), default=0)

    def read(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size <= 0:
            return memoryview(b"")
        for start, data in self._pieces:
            if start <= offset < start + len(data):
                return data[offset - start : offset - start + size]
        return memoryview(b"")


class FileSource:
    """A ByteSource of an open file, which owns the descriptor. The file stays readable after it is deleted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._local = False
        try:
            status = io_deadline.stat_descriptor(fd)
            self._local = io_deadline.is_local(status.st_dev)
            self._read = io_deadline.make_reader(fd, self._local)
            self.size = status.st_size
            self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            """A key that is equal for two open files that are one unchanged file."""
        except BaseException:
            self._fd = -1
            io_deadline.close_descriptor(fd)
            raise

    def read(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size <= 0 or offset >= self.size:
            return memoryview(b"")
        size = min(size, self.size - offset)
        try:
            data = self._read(size, offset)
            while len(data) < size:  # one pread returns at most 2 GiB
                more = self._read(size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError:
            return memoryview(b"")
        return memoryview(data)

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            close = os.close if self._local else io_deadline.close_descriptor
            close(fd)


def open_regular(path: str) -> int:
    """Open a file that the user named, and return the descriptor. A file that is not regular is never opened.

    Raises:
        OSError: The file cannot be opened.
        FormatError: The file is not a regular file.
    """
    try:
        return file_access.current_opener().open_regular(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FormatError("file", 0, "not a regular file") from None
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
