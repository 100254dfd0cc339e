"""Where an object file's bytes come from: an open file, or bytes in memory.

A file is read with pread, never mapped: a mapped file that somebody truncates kills its reader with SIGBUS,
and the files of a live target are not ours to trust.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

from pyprof.errors import FormatError
from pyprof.objfile import opener, patience


class ByteSource(Protocol):
    """Random access to `size` bytes."""

    size: int

    def read(self, offset: int, size: int) -> memoryview:
        """At most size bytes at offset; shorter or empty past the end, never an exception."""
        ...


class BytesSource:
    """Bytes that are in memory already."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size <= 0:
            return memoryview(b"")
        return self._view[offset : offset + size]


class PiecesSource:
    """Bytes known in pieces, with holes between them; a read ends at a hole. pieces: (offset, data)."""

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
    """An open file, kept open: it stays readable when it is deleted or its process is gone. Owns fd."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._local = False
        try:
            status = patience.status(fd)
            self._local = patience.is_local(status.st_dev)
            self._read = patience.reader(fd, self._local)
            self.size = status.st_size
            self.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            """Equal for two sources of one file that was not changed."""
        except BaseException:
            self._fd = -1
            patience.close(fd)
            raise

    def read(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size <= 0 or offset >= self.size:
            return memoryview(b"")
        size = min(size, self.size - offset)
        try:
            data = self._read(size, offset)
            while len(data) < size:  # one pread gives at most 2 GiB
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
            close = os.close if self._local else patience.close
            close(fd)


def open_regular(path: str) -> int:
    """A descriptor of a file that the user named; what is not regular is never opened. Raises OSError, FormatError."""
    try:
        return opener.current().regular(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FormatError("file", 0, "not a regular file") from None
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
