"""How an output comes to its place: in one step, beside what was there, or into a stream that the user named.

In: the path as the user gave it, and who writes. Decided on descriptors: what stands at the name is looked at and
replaced, never opened. So nobody who put a pipe, a device or a link there has us write into it. A link at the name is
replaced itself; what it leads to stays as it is.
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
"""Written to in place, by exactly these names."""

_MOST_LINKS = 40

_STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")


def stream(path: str) -> int | None:
    """The descriptor of ours that a path names (-, /dev/stdout, the /dev/fd/63 of a shell's >(...)); None: a file."""
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else _STREAMS.get(path)


def write_in_place(path: str, writer: Write) -> bool:
    """False if path is a file's. Raises OSError."""
    number = stream(path)
    if number is None and path not in DEVICES:
        return False
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if number is None else os.dup(number)
    with open(fd, "wb") as out:
        writer(out)
    return True


def look(path: str, folder: int | None = None) -> os.stat_result | None:
    """What stands at a path, not what a link there leads to; None for nothing. Raises OSError, OutputError."""
    try:
        found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise OutputError(f"{path} is a directory", "name a file: -o FILE")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        kind = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
        raise OutputError(f"{path} is {kind}, not a file", f"to write into it all the same: -o - > {path}")
    return found


def replace(path: str, writer: Write) -> None:
    """Write a file beside path, then give it the name. Raises OSError; what was there is as before then. What is there
    afterwards outlives a power cut, name and all.
    """
    parent, name = os.path.split(os.path.normpath(path))
    folder = open_folder(parent or ".")
    part = f".pyprof-{os.urandom(8).hex()}.part"
    try:
        mode = _mode(look(name, folder))
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as out:
                os.fchmod(fd, mode)
                writer(out)
                out.flush()
                sync(fd)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise
        _sync_names(folder)
    finally:
        os.close(folder)


def is_ours(path: str) -> bool:
    """May nobody but root and us put names into the folder of path that we would follow?"""
    try:
        folder = open_folder(os.path.dirname(os.path.normpath(path)) or ".")
    except OSError:
        return False
    found = os.fstat(folder)
    os.close(folder)
    shared = found.st_mode & stat.S_IWOTH and not (found.st_mode & stat.S_ISVTX and _links_are_guarded())
    return found.st_uid in (0, os.geteuid()) and not shared


def _links_are_guarded() -> bool:
    """Does the kernel refuse to follow links of others in folders like /tmp?"""
    try:
        with open("/proc/sys/fs/protected_symlinks", "rb") as file:
            return int(file.read()) > 0
    except (OSError, ValueError):
        return False


def open_folder(path: str) -> int:
    """A link that belongs to neither root nor us leads to its owner's folders only: whoever may write to a folder on
    the way can put one there at any moment. Raises OSError.
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
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            others |= {found.st_uid} - {0, os.geteuid()}
            if found.st_dev == _proc():  # what such a link says is not where it leads
                at = _enter(part, at, opened, 0)
                continue
            text = os.readlink("", dir_fd=there)
            rest.extendleft(reversed(text.split("/")))
            at = _enter("/", None, opened) if text.startswith("/") else at
        found = os.fstat(at)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if others - {found.st_uid}:
            raise OSError(errno.EPERM, "a link of another user leads there")
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
    """What a killed recording of that name left: SQLite would take it for part of the one that is there now."""
    for left in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.unlink(path + left)


def _mode(old: os.stat_result | None) -> int:
    """That of any new file; a file of ours keeps its mode, and what another user put there never widens it."""
    usual = 0o666 & ~_umask()
    if old is None or not stat.S_ISREG(old.st_mode):
        return usual
    kept = old.st_mode & 0o777
    return kept if old.st_uid == os.geteuid() else kept & usual


def create(path: str, mode: int) -> int:
    """A new file in a folder into which nobody else may write. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def folder(path: str, how: int = 0) -> int:
    """A folder, to lock it or to have its names kept. how: further flags of open(2). Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | how)


def _sync_names(folder: int) -> None:
    """Of a folder that may be open for its path only. One that we may not read keeps its names as it likes."""
    with contextlib.suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def sync(fd: int) -> None:
    """What was written, or named, stays whatever happens to the machine. Raises OSError."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no fsync
            raise


def _umask() -> int:
    """Ours. Asking by umask(2) would set another one for all threads meanwhile."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o077)
