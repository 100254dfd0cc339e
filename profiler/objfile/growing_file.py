"""A file that its process keeps writing: read from where we were, from the start again where it was replaced."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

MAX_READ = 256 << 20
"""Most bytes that are read of one file."""

_TAIL = 256


@dataclass(eq=False)
class GrowingFile:
    """path: may come into being later. owners: user ids whose file is believed; others could lie about the target.

    Of a name in a folder that everybody may write to, no symbolic link is followed and nothing but a plain file opened.
    follow: path is one of the kernel's own links (/proc/PID/map_files).
    """

    path: str
    owners: frozenset[int]
    follow: bool = False
    _fd: int = -1
    _identity: tuple[int, int] = (0, 0)
    _offset: int = 0
    _tail: bytes = b""
    _spent: int = field(default=0)

    def more(self) -> tuple[bytes, bool]:
        """(bytes that came since the last call, did the file begin anew?)."""
        anew = self._reopen()
        if self._fd < 0:
            return b"", anew
        try:
            size = os.fstat(self._fd).st_size
            if size < self._offset or os.pread(self._fd, len(self._tail), self._offset - len(self._tail)) != self._tail:
                self._offset, self._tail, anew = 0, b"", True
            size = min(size - self._offset, MAX_READ - self._spent)
            data = bytearray()
            while len(data) < size:
                chunk = os.pread(self._fd, size - len(data), self._offset + len(data))
                if not chunk:
                    break
                data += chunk
        except OSError:
            return b"", anew
        self._offset += len(data)
        self._spent += len(data)
        self._tail = (self._tail + bytes(data[-_TAIL:]))[-_TAIL:]
        return bytes(data), anew

    def _reopen(self) -> bool:
        """Follow the name if another file has it now."""
        try:
            found = os.stat(self.path, follow_symlinks=self.follow)
        except OSError:
            return False  # what was open stays so: its process may have taken the name away
        if (found.st_dev, found.st_ino) == self._identity:
            return False
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if self.follow else os.O_NOFOLLOW)
            fd = os.open(self.path, flags)
        except OSError:
            return False
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode) or opened.st_uid not in self.owners:
            os.close(fd)
            return False
        self.close()
        self._fd, self._identity = fd, (opened.st_dev, opened.st_ino)
        replaced, self._offset, self._tail = self._offset > 0, 0, b""
        return replaced

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
