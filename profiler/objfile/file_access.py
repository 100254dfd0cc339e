"""The file system operations of all readers of object files. Readers call nothing else to open files.

A process that may open files uses Opener itself. A process without rights installs an implementation that delegates to
another process (`use_opener`). Then the functions here are all that it can request. Every descriptor is readable,
except that create_scratch_file() is writable too, and the caller closes it. All methods that return one raise OSError.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from functools import partial

from pyprof.objfile import foreign_path, io_deadline
from pyprof.objfile.foreign_path import Rights, rights_below

_STATUS_SIZE = 1 << 16
ELF_MAGIC = b"\x7fELF"
_BUILD_ID = re.compile(r"[0-9a-f]{4,128}")


class Opener:
    """The operations that open foreign files, with the rights of this process. The module's functions use the current
    Opener.
    """

    def open_below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        """Open a file by the name that a target has for it.

        Args:
            root: Directory at which the target's names start, "" for those of this process.
            name: Name of the file, as the target knows it.
            rights: Rights of the target, None for those of this process.
            follow: Follow a symbolic link in the last component too.
        """
        found = foreign_path.find_file(root or "/", name, rights, follow=follow)
        return _reopened(found, rights)

    def open_mapped(self, pid: int, start: int, end: int) -> int:
        """Open the file of a mapping of a process by the kernel's handle (/proc/PID/map_files)."""
        return _reopened(_handle(f"/proc/{pid}/map_files/{start:x}-{end:x}"), mapped=True)

    def open_program(self, pid: int) -> int:
        return _reopened(_handle(f"/proc/{pid}/exe"), mapped=True)

    def open_named(self, path: str) -> int:
        """Open a file that the user named, or one below a directory that the user named. Links are followed."""
        return _reopened(_handle(path))

    def open_regular(self, path: str) -> int:
        """Open a file that the user named, on any file system. A file that is not regular is never opened."""
        found = _handle(path)
        try:
            mode = os.fstat(found).st_mode
            if not stat.S_ISREG(mode):
                code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
                raise OSError(code, os.strerror(code), path)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(found)

    def open_downloaded(self, build_id: str) -> int:
        """Open a debug file that a debuginfod client has downloaded."""
        if not is_build_id(build_id):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return _reopened(_handle(f"{debuginfod_cache()}/{build_id}/debuginfo"))

    def read_status(self, pid: int, what: str) -> bytes:
        """Return the content of /proc/PID/stat or status, which all users may read."""
        with open(_process_file(pid, what), "rb") as file:
            return file.read(_STATUS_SIZE)

    def open_memory(self, pid: int, what: str) -> int:
        """Open the memory or the mappings of a process (/proc/PID/mem or maps)."""
        return _process_file(pid, what)

    def describe_root(self, root: str) -> tuple[bool, Rights | None]:
        """Return (whether this is the root of this process, the rights of the process whose root it is)."""
        ours = True
        with suppress(OSError):
            ours = io_deadline.run_with_timeout(partial(os.path.samefile, root or "/", "/"))
        return ours, rights_below(root)

    def open_kernel_symbols(self) -> int:
        return os.open("/proc/kallsyms", os.O_RDONLY | os.O_CLOEXEC)

    def create_scratch_file(self) -> int:
        """Create an empty unnamed file for reading and writing, for content that is too large for memory."""
        import tempfile

        with tempfile.TemporaryFile(prefix="pyprof-") as file:
            return os.dup(file.fileno())

    def find_package(self, root: str, path: str) -> str | None:
        """Return the Debian package of a file, "" if no package has it, None if there is no dpkg database."""
        from pyprof.objfile.debug_packages import find_owner

        return find_owner(root, path)


_current = Opener()


def use_opener(opener: Opener) -> None:
    """Replace the object (Opener) by which this process opens foreign files."""
    global _current
    _current = opener


def current_opener() -> Opener:
    return _current


def open_below(root: str, name: str, rights: Rights | None = None, *, follow: bool = True) -> int:
    return _current.open_below(root, name, rights, follow)


def is_build_id(text: str) -> bool:
    """Return True if the text is a build ID in hex. Files and recordings may contain any text in its place."""
    return bool(_BUILD_ID.fullmatch(text))


def debuginfod_cache() -> str:
    """Return the cache directory of debuginfod clients."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("DEBUGINFOD_CACHE_PATH") or os.path.join(caches, "debuginfod_client")


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _process_file(pid: int, what: str) -> int:
    folder = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.open(what, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def _reopened(found: int, rights: Rights | None = None, *, mapped: bool = False) -> int:
    try:
        return foreign_path.reopen_file(found, rights, mapped=mapped)
    finally:
        os.close(found)
