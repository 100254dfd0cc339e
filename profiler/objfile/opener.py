"""What readers of object files ask of the file system. It is the one place that they ask.

Where this process may open files, `here` does so. A process without rights lets another one answer (`use`): what it
can ask for is what stands here, and nothing else. Every descriptor is one to read from, but for scratch(), and the
caller's to close; all methods that give one raise OSError.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from functools import partial

from pyprof.objfile import foreign_path, patience
from pyprof.objfile.foreign_path import Rights, rights_below

_STATUS_SIZE = 1 << 16
ELF_MAGIC = b"\x7fELF"
_BUILD_ID = re.compile(r"[0-9a-f]{4,128}")


class Opener:
    """Answers with the rights of this process. See the functions of the same names."""

    def below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        """A file by the name that a target has for it. root: of the target's names, "" for our own."""
        found = foreign_path.find(root or "/", name, rights, follow=follow)
        return _reopened(found, rights)

    def mapped(self, pid: int, start: int, end: int) -> int:
        """The file of a mapping, by the kernel's handle."""
        return _reopened(_handle(f"/proc/{pid}/map_files/{start:x}-{end:x}"), mapped=True)

    def program(self, pid: int) -> int:
        return _reopened(_handle(f"/proc/{pid}/exe"), mapped=True)

    def named(self, path: str) -> int:
        """A file whose name is the user's, or stands below a folder of the user's; links are followed."""
        return _reopened(_handle(path))

    def regular(self, path: str) -> int:
        """A file of any file system that the user named; what is not regular is never opened."""
        found = _handle(path)
        try:
            mode = os.fstat(found).st_mode
            if not stat.S_ISREG(mode):
                code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
                raise OSError(code, os.strerror(code), path)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(found)

    def fetched(self, build_id: str) -> int:
        """A debug file that a debuginfod client has fetched."""
        if not is_build_id(build_id):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return _reopened(_handle(f"{debuginfod_cache()}/{build_id}/debuginfo"))

    def about(self, pid: int, what: str) -> bytes:
        """/proc/PID/what, of those that are for everybody: stat, status."""
        with open(_process_file(pid, what), "rb") as file:
            return file.read(_STATUS_SIZE)

    def memory(self, pid: int, what: str) -> int:
        """/proc/PID/mem or maps."""
        return _process_file(pid, what)

    def root(self, root: str) -> tuple[bool, Rights | None]:
        """(is it the root of our own names?, what the process may read whose root it is)."""
        ours = True
        with suppress(OSError):
            ours = patience.ask(partial(os.path.samefile, root or "/", "/"))
        return ours, rights_below(root)

    def kernel_symbols(self) -> int:
        return os.open("/proc/kallsyms", os.O_RDONLY | os.O_CLOEXEC)

    def scratch(self) -> int:
        """An empty file without a name, to write and to read: what would fill memory goes there."""
        import tempfile

        with tempfile.TemporaryFile(prefix="pyprof-") as file:
            return os.dup(file.fileno())

    def package(self, root: str, path: str) -> str | None:
        """The Debian package that a file is of; "" if none has it, None where dpkg is not at home."""
        from pyprof.objfile.packages import owner

        return owner(root, path)


_current = Opener()


def use(opener: Opener) -> None:
    """From now on another one answers in this process."""
    global _current
    _current = opener


def current() -> Opener:
    return _current


def below(root: str, name: str, rights: Rights | None = None, *, follow: bool = True) -> int:
    return _current.below(root, name, rights, follow)


def is_build_id(text: str) -> bool:
    """May names be made of it? A file or a recording may have anything in that place."""
    return bool(_BUILD_ID.fullmatch(text))


def debuginfod_cache() -> str:
    """Where debuginfod clients keep what they fetched."""
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
        return foreign_path.reopen(found, rights, mapped=mapped)
    finally:
        os.close(found)
