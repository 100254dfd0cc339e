"""A file that its process keeps writing: read from where we were, from the start again where it was replaced."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from pyprof.objfile import patience
from pyprof.records import dataclass, field

MAX_READ = 256 << 20
"""Most bytes that are read of one file."""
PIECE = 1 << 20
"""Most bytes that are read at once."""

_TAIL = 256


@dataclass(eq=False)
class GrowingFile:
    """find: gives a descriptor of what has the name now, or raises OSError: it may come into being later.
    owners: user ids whose file is accepted. A file of another user could contain anything. since_ns: a file that was
    last written before this time (wall clock) is not accepted either: an earlier process wrote it. cut: there is more
    than MAX_READ bytes. silent: its file system does not answer.
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

    def more(self) -> tuple[bytes, bool]:
        """(the next bytes that came since the last call, b"" where there are none, did the file begin anew?)."""
        anew = self._reopen()
        if self._fd < 0:
            return b"", anew
        try:
            status = patience.status(self._fd)
            size, read = status.st_size, patience.reader(self._fd, patience.is_local(status.st_dev))
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

    def head(self, size: int) -> bytes:
        """Its first bytes, at most size; b"" where there is no such file."""
        self._reopen()
        if self._fd < 0:
            return b""
        return patience.reader(self._fd, patience.is_local(patience.status(self._fd).st_dev))(size, 0)

    def _reopen(self) -> bool:
        """Follow the name if another file has it now."""
        try:
            fd = self.find()
            status = patience.status(fd)
        except OSError as error:  # what was open stays so: its process may have taken the name away
            self.silent = error.errno == errno.ETIMEDOUT
            return False
        if (status.st_dev, status.st_ino) == self._identity or not self._accepts(status):
            patience.close(fd)
            return False
        self.close()
        self._fd, self._identity = fd, (status.st_dev, status.st_ino)
        replaced, self._offset, self._tail = self._offset > 0, 0, b""
        return replaced

    def _accepts(self, status: os.stat_result) -> bool:
        return status.st_uid in self.owners and status.st_mtime_ns >= self.since_ns

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        patience.close(fd)

    def __del__(self) -> None:
        self.close()
