"""A test double for the spool's disk that fails or crashes at a chosen system call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pyprof.fleet.file_system_calls import Disk, FolderEntry


class Crash(BaseException):
    """The simulated end of the process. It derives from BaseException so that no handler of the agent catches it."""


class CrashingDisk(Disk):
    """A disk on a real folder that can fail or crash at a chosen call.

    Attributes:
        crash_at: Number of the call, counted from 1, at which the process ends.
        crash_after: Whether the crash comes after the call has taken effect instead of before.
        room: Capacity of the disk in bytes. A write fails with ENOSPC while the disk holds more; None means no limit.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.calls = 0
        self.crash_at = 0
        self.crash_after = False
        self.room: int | None = None
        self._open: set[int] = set()
        self._unsynced: set[int] = set()
        self._unnamed: list[tuple[str, str]] = []

    def _call(self, do: Callable[[], object]) -> object:
        self.calls += 1
        dies = self.calls == self.crash_at
        if dies and not self.crash_after:
            raise Crash
        found = do()
        if dies:
            raise Crash
        return found

    def power_loss(self) -> None:
        """Undo everything that was not synced: truncate unsynced files and revert unsynced renames."""
        for folder, _, names in os.walk(self.root):
            for at in (os.path.join(folder, name) for name in names):
                if os.stat(at).st_ino in self._unsynced:
                    os.truncate(at, 0)
        for old, new in reversed(self._unnamed):
            with suppress(FileNotFoundError):
                os.rename(new, old) if old else os.unlink(new)

    def forget(self) -> None:
        for fd in self._open:
            with suppress(OSError):
                os.close(fd)

    def used(self) -> int:
        seen = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                status = os.stat(os.path.join(folder, name))
                seen[status.st_ino] = status.st_size
        return sum(seen.values())

    def list_folder(self, folder: str) -> Iterator[FolderEntry]:
        return iter(self._call(lambda: list(super(CrashingDisk, self).list_folder(folder))))  # type: ignore[call-overload,no-any-return]

    def make_folder(self, path: str) -> bool:
        return bool(self._call(lambda: super(CrashingDisk, self).make_folder(path)))

    def create(self, path: str) -> int:
        def do() -> int:
            fd = super(CrashingDisk, self).create(path)
            self._open.add(fd)
            self._unsynced.add(os.fstat(fd).st_ino)
            return fd

        return int(str(self._call(do)))

    def write(self, fd: int, data: bytes) -> None:
        def do() -> None:
            if self.room is not None and self.used() + len(data) > self.room:
                super(CrashingDisk, self).write(fd, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super(CrashingDisk, self).write(fd, data)

        self._call(do)

    def sync(self, fd: int) -> None:
        def do() -> None:
            super(CrashingDisk, self).sync(fd)
            self._unsynced.discard(os.fstat(fd).st_ino)

        self._call(do)

    def close(self, fd: int) -> None:
        self._call(lambda: super(CrashingDisk, self).close(fd))
        self._open.discard(fd)

    def rename(self, path: str, to: str) -> None:
        def do() -> None:
            super(CrashingDisk, self).rename(path, to)
            self._unnamed.append((path, to))

        self._call(do)

    def link(self, path: str, to: str) -> None:
        def do() -> None:
            super(CrashingDisk, self).link(path, to)
            self._unnamed.append(("", to))

        self._call(do)

    def unlink(self, path: str) -> None:
        def do() -> None:
            if os.stat(path).st_nlink == 1:  # a new file may reuse the inode number
                self._unsynced.discard(os.stat(path).st_ino)
            super(CrashingDisk, self).unlink(path)

        self._call(do)

    def remove_folder(self, path: str) -> None:
        self._call(lambda: super(CrashingDisk, self).remove_folder(path))

    def sync_folder(self, path: str) -> None:
        def do() -> None:
            super(CrashingDisk, self).sync_folder(path)
            self._unnamed = [(old, new) for old, new in self._unnamed if str(Path(new).parent) != path]

        self._call(do)
