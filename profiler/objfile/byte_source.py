"""Random access to an object file's bytes, files that grow, and a limit on content in memory.

A file is read with pread and never mapped. If another process truncates a mapped file, its reader is killed by SIGBUS,
and the files of a live target cannot be trusted.

The content of foreign files in memory is limited for the whole process, regardless of the sizes that files claim. Bytes
count until the last reference to them is gone. If the limit is exceeded, FormatError is raised: the new content
is lost, and content that is already in memory stays.

The reader of a file to which its process keeps writing continues where it stopped, or restarts if the file was
replaced.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.objfile import io_deadline, untrusted_file_access


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
        return untrusted_file_access.current_opener().open_regular(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FormatError("file", 0, "not a regular file") from None
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


MAX_HELD = 1 << 30
SMALL = 1 << 16
"""Size in bytes up to which content of foreign files is not counted for the memory limit."""
_lock = threading.RLock()  # reentrant, because a finalizer may run at any point
_held = 0


def hold_bytes(name: str, size: int, make: Callable[[], bytes | memoryview]) -> memoryview:
    """Call `make` to read bytes of a foreign file, count them against the memory limit for such bytes, and return them.

    Args:
        name: Name for messages.
        size: Maximum size of the bytes.
        make: Returns the bytes.

    Raises:
        FormatError: The limit is exceeded.
    """
    if size <= SMALL:
        return memoryview(make())
    _claim(name, size)
    try:
        # A memoryview keeps its array alive, and unlike bytes, an array can have a finalizer.
        content = np.frombuffer(make(), np.uint8)
    except BaseException:
        _release(size)
        raise
    _release(size - len(content))
    weakref.finalize(content, _release, len(content)).atexit = False
    return content.data


class ContentReservation:
    """A reservation within the memory limit for the content of foreign files, which grows while the content is read. It
    ends when this object is deleted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sizes: list[int] = []
        weakref.finalize(self, _release_all, self._sizes).atexit = False

    def count_bytes(self, size: int) -> None:
        """Count further bytes of foreign files that are kept in memory.

        Raises:
            FormatError: The limit is exceeded.
        """
        _claim(self._name, size)
        self._sizes.append(size)


def count_held_bytes() -> int:
    """Return the number of bytes of foreign files that currently count for the memory limit."""
    return _held


def _claim(name: str, size: int) -> None:
    global _held
    with _lock:
        if _held + size > MAX_HELD:
            raise FormatError(name, 0, f"{size} bytes, while {_held >> 20} MB of files are in memory: not read")
        _held += size


def _release_all(sizes: list[int]) -> None:
    _release(sum(sizes))


def _release(size: int) -> None:
    global _held
    with _lock:
        _held -= size


MAX_READ = 256 << 20
"""Maximum number of bytes that are read from one file to which a process keeps writing."""
PIECE = 1 << 20
"""Maximum number of bytes that are read at once from a file to which a process keeps writing."""

_TAIL = 256


@dataclass(eq=False)
class GrowingFile:
    """A file to which a process keeps writing, and which may not exist yet.

    Attributes:
        find: Opens the file that has the name at present and returns its descriptor, or raises OSError.
        owners: User IDs whose files are accepted. A file of another user could contain anything.
        since_ns: Wall-clock time in ns. A file that was last written before this time belongs to an earlier process and
            is rejected.
        cut: The file has more than MAX_READ bytes.
        silent: The file system of the file does not respond.
    """

    find: Callable[[], int]
    owners: frozenset[int]
    since_ns: int = 0
    cut: bool = False
    silent: bool = False
    _fd: int = -1
    _identity: tuple[int, int] = (0, 0)
    _offset: int = 0
    _tail: bytes = b""
    _spent: int = field(default=0)

    def read_appended(self) -> tuple[bytes, bool]:
        """Return (bytes that were appended since the last call, whether the file was replaced)."""
        anew = self._reopen()
        if self._fd < 0:
            return b"", anew
        try:
            status = io_deadline.stat_descriptor(self._fd)
            size, read = status.st_size, io_deadline.make_reader(self._fd, io_deadline.is_local(status.st_dev))
            if size < self._offset or read(len(self._tail), self._offset - len(self._tail)) != self._tail:
                self._offset, self._tail, anew = 0, b"", True
            self.cut = size - self._offset > MAX_READ - self._spent
            size = min(size - self._offset, MAX_READ - self._spent, PIECE)
            data = bytearray()
            while len(data) < size:
                chunk = read(size - len(data), self._offset + len(data))
                if not chunk:
                    break
                data += chunk
        except OSError as error:
            self.silent = error.errno == errno.ETIMEDOUT
            return b"", anew
        self._offset += len(data)
        self._spent += len(data)
        self._tail = (self._tail + bytes(data[-_TAIL:]))[-_TAIL:]
        return bytes(data), anew

    def read_head(self, size: int) -> bytes:
        """Return the first bytes of the file, at most `size`; b"" if there is no such file."""
        self._reopen()
        if self._fd < 0:
            return b""
        return io_deadline.make_reader(self._fd, io_deadline.is_local(io_deadline.stat_descriptor(self._fd).st_dev))(
            size, 0
        )

    def _reopen(self) -> bool:
        """Open the file that has the name at present. Return True if it is another file than the one that was read
        before.
        """
        try:
            fd = self.find()
            status = io_deadline.stat_descriptor(fd)
        except OSError as error:  # keep the open file: its process may have unlinked it
            self.silent = error.errno == errno.ETIMEDOUT
            return False
        if (status.st_dev, status.st_ino) == self._identity or not self._accepts(status):
            io_deadline.close_descriptor(fd)
            return False
        self.close()
        self._fd, self._identity = fd, (status.st_dev, status.st_ino)
        replaced, self._offset, self._tail = self._offset > 0, 0, b""
        return replaced

    def _accepts(self, status: os.stat_result) -> bool:
        return status.st_uid in self.owners and status.st_mtime_ns >= self.since_ns

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        io_deadline.close_descriptor(fd)

    def __del__(self) -> None:
        self.close()
