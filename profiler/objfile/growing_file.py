"""Reader of a file to which its process keeps writing.

It continues where it stopped, or restarts if the file was replaced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from pyprof.objfile import io_deadline
from pyprof.records import dataclass, field

MAX_READ = 256 << 20
"""Maximum number of bytes that are read from one file to which a process keeps writing."""
PIECE = 1 << 20
"""Maximum number of bytes that are read at once from a file to which a process keeps writing."""

_TAIL = 256


@dataclass(eq=False)
class GrowingFile:
    """A file to which a process keeps writing, and which may not exist yet.

    Attributes:
        find: Returns a descriptor of the file that has the name now, or raises OSError.
        owners: User IDs whose files are accepted. A file of another user could contain anything.
        since_ns: Wall-clock time in ns. A file that was last written before belongs to an earlier process and is
            rejected.
        cut: The file has more than MAX_READ bytes.
        silent: The file system does not respond.
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
        """Open the file that has the name now, and return True if it replaced a file that was read before."""
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
