"""Atomic replacement of output files, and writing to streams that the user named.

All decisions are made on file descriptors: what exists at a name is inspected and replaced, but never opened. So
another user who puts a pipe, a device or a link there cannot make pyprof write into it. A symbolic link with the
output's name is replaced by the file; its target stays unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from pyprof.errors import OutputError

Write = Callable[[BinaryIO], None]

DEVICES = ("/dev/null", "/dev/full", "/dev/tty")
"""Names of devices, such as /dev/null, that are written in place if the user gives exactly these names."""

_MAX_LINKS = 40

_STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")


def find_stream(path: str) -> int | None:
    """Return the descriptor of this process that a path names: -, /dev/stdout, or the /dev/fd/63 of a shell's >(...).
    Return None for the path of a file.
    """
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else _STREAMS.get(path)


def write_in_place(path: str, writer: Write) -> bool:
    """Write output directly to the stream or device that a path names. Return False if the path names a file, which is
    not written.

    Raises:
        OSError: Writing failed.
    """
    number = find_stream(path)
    if number is None and path not in DEVICES:
        return False
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if number is None else os.dup(number)
    with open(fd, "wb") as out:
        writer(out)
    return True


def stat_entry(path: str, folder: int | None = None) -> os.stat_result | None:
    """Return the status of a file or link, without following the link; None if nothing is there.

    Raises:
        OSError: The path cannot be inspected.
        OutputError: The entry is neither a file nor a link.
    """
    try:
        found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise OutputError(f"{path} is a directory", "name a file: -o FILE")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        kind = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
        raise OutputError(f"{path} is {kind}, not a file", f"to write into it anyway: -o - > {path}")
    return found


def replace_file(path: str, writer: Write) -> None:
    """Write a new file next to `path`, then rename it to `path`. The file and its name survive a power failure.

    Raises:
        OSError: Writing failed; a previous file is unchanged.
    """
    parent, name = os.path.split(os.path.normpath(path))
    folder = open_folder(parent or ".")
    part = f".pyprof-{os.urandom(8).hex()}.part"
    try:
        mode = _mode(stat_entry(name, folder))
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as out:
                os.fchmod(fd, mode)
                writer(out)
                out.flush()
                sync_file(fd)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise
        _sync_names(folder)
    finally:
        os.close(folder)


def is_private(path: str) -> bool:
    """Return True if no user but root and this one can put names that pyprof would follow into the folder of a path."""
    try:
        folder = open_folder(os.path.dirname(os.path.normpath(path)) or ".")
    except OSError:
        return False
    found = os.fstat(folder)
    os.close(folder)
    shared = found.st_mode & stat.S_IWOTH and not (found.st_mode & stat.S_ISVTX and _links_are_guarded())
    return found.st_uid in (0, os.geteuid()) and not shared


def _links_are_guarded() -> bool:
    """Return True if the kernel does not follow other users' links in folders like /tmp (fs.protected_symlinks)."""
    try:
        with open("/proc/sys/fs/protected_symlinks", "rb") as file:
            return int(file.read()) > 0
    except (OSError, ValueError):
        return False


def open_folder(path: str) -> int:
    """Open a folder, but refuse symbolic links of other users that lead to a third user's folder.

    A user who may write to a folder on the path can put a link there at any moment. A link that belongs to neither root
    nor this user may therefore lead only to its owner's folders.

    Raises:
        OSError: The folder cannot be opened, or a link is refused.
    """
    rest, links, others = deque(path.split("/")), 0, set[int]()
    with contextlib.ExitStack() as opened:
        at = _enter("/" if path.startswith("/") else ".", None, opened)
        while rest:
            part = rest.popleft() or "."
            there = _enter(part, at, opened)
            found = os.fstat(there)
            if not stat.S_ISLNK(found.st_mode):
                at = there
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            others |= {found.st_uid} - {0, os.geteuid()}
            if found.st_dev == _proc():  # the text of a link in /proc is not where it leads
                at = _enter(part, at, opened, 0)
                continue
            text = os.readlink("", dir_fd=there)
            rest.extendleft(reversed(text.split("/")))
            at = _enter("/", None, opened) if text.startswith("/") else at
        found = os.fstat(at)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if others - {found.st_uid}:
            raise OSError(errno.EPERM, "it is a symbolic link of another user")
        return os.dup(at)


def _enter(name: str, folder: int | None, opened: contextlib.ExitStack, how: int = os.O_NOFOLLOW) -> int:
    fd = os.open(name, os.O_PATH | os.O_CLOEXEC | how, dir_fd=folder)
    opened.callback(os.close, fd)
    return fd


def _proc() -> int:
    try:
        return os.stat("/proc").st_dev
    except OSError:
        return -1


def drop_logs(path: str) -> None:
    """Delete SQLite's logs that a killed recording has left next to a file: SQLite would apply them to the new file."""
    for left in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.unlink(path + left)


def _mode(old: os.stat_result | None) -> int:
    """Return the permission bits for a new output file, which may replace an old one.

    A file of this user keeps its mode. A file of another user never widens the default mode.
    """
    usual = 0o666 & ~_umask()
    if old is None or not stat.S_ISREG(old.st_mode):
        return usual
    kept = old.st_mode & 0o777
    return kept if old.st_uid == os.geteuid() else kept & usual


def create_file(path: str, mode: int) -> int:
    """Create a file in a folder into which no other user may write.

    Raises:
        OSError: The file exists already, or cannot be created.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_directory(path: str, how: int = 0) -> int:
    """Open a folder, to lock it or to sync the names in it.

    Args:
        how: Further flags of open(2).

    Raises:
        OSError: The folder cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | how)


def _sync_names(folder: int) -> None:
    """Make the names in a folder survive a power failure. The given descriptor may be O_PATH. Do nothing if the folder
    is not readable.
    """
    with contextlib.suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def sync_file(fd: int) -> None:
    """Sync an open file or folder (fsync), so that its contents or names survive a power failure.

    Raises:
        OSError: The kernel reports a failure.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support fsync
            raise


def _umask() -> int:
    """Return this process's umask from /proc: umask(2) cannot read it without changing it for all threads."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o077)
