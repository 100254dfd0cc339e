"""The file system calls that the agent's spool and the server make, one method for each, so that a test can let each
one fail or crash.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator

from pyprof.errors import OutputError
from pyprof.exporters import output_file
from pyprof.lazy_dataclasses import dataclass

MIN_FREE_BYTES = 1 << 20
"""Number of free bytes at or below which a disk counts as full after a file could not be written."""
_FOLDER, _FILE = 0o750, 0o640


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder that was found in a folder. `size` is the size of a file in bytes. Entries of other kinds are
    never listed.
    """

    name: str
    size: int
    is_folder: bool


class Disk:
    """The file system as the spool uses it. All methods raise OSError. Only the spool's user may write into the folders
    of these paths.
    """

    def list_folder(self, folder: str) -> Iterator[FolderEntry]:
        """Yield the entries of a folder, nothing if the folder does not exist."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                        yield FolderEntry(entry.name, status.st_size, stat.S_ISDIR(status.st_mode))
        except (FileNotFoundError, NotADirectoryError):
            return

    def make_folder(self, path: str) -> bool:
        """Make a folder. Return False if it already exists."""
        try:
            os.mkdir(path, _FOLDER)
        except FileExistsError:
            return False
        return True

    def create(self, path: str) -> int:
        return output_file.create_file(path, _FILE)

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        output_file.sync_file(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, path: str, to: str) -> None:
        os.rename(path, to)

    def link(self, path: str, to: str) -> None:
        os.link(path, to, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder survive a power failure."""
        fd = output_file.open_directory(path)
        try:
            output_file.sync_file(fd)
        finally:
            os.close(fd)


def has_room(root: str) -> bool:
    """Return True if the disk of a folder does not count as full: it has more than MIN_FREE_BYTES free, or half of a
    tiny file system.
    """
    try:
        found = os.statvfs(root)
    except OSError:
        return False
    return found.f_bavail > min(MIN_FREE_BYTES // found.f_frsize, found.f_blocks // 2)


def locked(root: str) -> int:
    """Create and lock the folder of a spool or a server, and return its descriptor. While the descriptor is open, no
    other agent or server can use the folder.

    Raises:
        OutputError: The folder cannot be used, or another agent uses it.
    """
    try:
        os.makedirs(root, _FOLDER, exist_ok=True)
        if not output_file.is_private(os.path.join(root, "x")) or os.stat(root).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OutputError(f"other users may write in {root}", f"chmod go-w {root}, or choose another folder")
        fd = output_file.open_directory(root)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{root} cannot be used: {error.strerror}", "choose another folder") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise OutputError(
            f"another agent or server writes into {root}", "give each of them a folder of its own"
        ) from None
    return fd
