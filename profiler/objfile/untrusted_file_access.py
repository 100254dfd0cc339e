"""File system operations of the readers of object files. Only this module opens files whose names are foreign.

A call takes a root directory and a file name below it, and returns a descriptor of a regular file on an ordinary file
system. It opens the components of the name one by one with descriptors, as openat2(2) does with RESOLVE_IN_ROOT and
RESOLVE_NO_MAGICLINKS (Linux 5.6, and often refused by seccomp filters). So no link leads out of the root, and no magic
link of /proc is followed. A file is opened with O_PATH and checked before it is opened for reading, because opening a
pipe blocks and opening a device may have any effect.

pyprof may be root while the target is not. A file that the target itself could not read is not read (Rights).

A process that may open files uses Opener itself. A process without rights installs an implementation that delegates to
another process (`use_opener`). Then the functions here are all that it can request. Every descriptor is readable,
except that create_scratch_file() is writable too, and the caller closes it. All methods that return a descriptor may
raise OSError.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from functools import partial

from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile import io_deadline

MAX_STEPS = 256
MAX_LINKS = 40
_NOBODY = -1
_ROOT = re.compile(r"/proc/(\d+)/root/?")
_OVERRIDES = 1 << 1 | 1 << 2
"""The capabilities CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH as a mask."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a process to read files, by their mode bits.

    If an access control list grants more than the mode bits, only the owner's permissions are used.

    Attributes:
        uid: User ID of the process, -1 if it is unknown.
        groups: Group IDs of the process.
        everything: The process may read all files.
    """

    uid: int = _NOBODY
    groups: frozenset[int] = frozenset()
    everything: bool = False

    def allow(self, found: int, status: os.stat_result) -> bool:
        """Return True if the process may read a file or search a directory.

        Args:
            found: Descriptor of the file.
            status: Result of fstat(2) for the file.
        """
        wanted = 1 if stat.S_ISDIR(status.st_mode) else 4
        if self.everything:
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode >> 6 & wanted)
        if _has_access_list(found):
            return False
        return bool(status.st_mode >> (3 if status.st_gid in self.groups else 0) & wanted)


def rights_below(root: str) -> Rights | None:
    """Return the rights of a process, given the path of its root directory (/proc/PID/root).

    A process that has ended gets the rights of any user.

    Returns:
        None if the kernel's check of pyprof's own permissions suffices: pyprof is not root, or the root is not a
        process's.
    """
    match = _ROOT.fullmatch(root)
    if os.geteuid() != 0 or match is None:
        return None
    try:
        with open(f"/proc/{match[1]}/status", "rb") as file:
            pairs = (line.partition(b":") for line in file)
            fields = {key: value.split() for key, _, value in pairs}
        same = os.stat(f"/proc/{match[1]}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino
        groups = frozenset(map(int, (fields[b"Gid"][3], *fields[b"Groups"])))
        return Rights(int(fields[b"Uid"][3]), groups, same and bool(int(fields[b"CapEff"][0], 16) & _OVERRIDES))
    except (OSError, KeyError, IndexError, ValueError):
        return Rights()


def find_file(root: str, name: str, rights: Rights | None = None, *, follow: bool = True) -> int:
    """Return an O_PATH descriptor of a file by its name.

    Args:
        root: Directory at which names start.
        name: Name of the file.
        rights: Rights of the target, None for those of this process.
        follow: Follow a symbolic link in the last component too.

    Raises:
        OSError: The file is not found, not allowed, or its file system does not respond.
    """
    return io_deadline.run_with_timeout(partial(_find, root, name, rights, follow), os.close)


def _find(root: str, name: str, rights: Rights | None, follow: bool) -> int:
    parts = name.split("/")[::-1]
    way = [os.open(root or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    steps = links = 0
    try:
        io_deadline.use_mount(way[0])
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            steps += 1
            if steps > MAX_STEPS:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            if part == "..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            _check(way[-1], rights)
            way.append(_open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, way[-1]))
            io_deadline.use_mount(way[-1])
            if stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                links += 1
                if links > MAX_LINKS or not (follow or parts) or not _is_ordinary(way[-1]):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=way[-1])
                os.close(way.pop())
                while target.startswith("/") and len(way) > 1:
                    os.close(way.pop())
                parts += target.split("/")[::-1]
        return way.pop()
    finally:
        for folder in way:
            os.close(folder)


def reopen_file(found: int, rights: Rights | None = None, *, mapped: bool = False) -> int:
    """Return a readable descriptor for a descriptor from find_file(). The caller closes both.

    Args:
        found: The O_PATH descriptor.
        rights: Rights of the target, None for those of this process.
        mapped: The descriptor is the kernel's handle of a mapped file. A memfd is on a file system without blocks.

    Raises:
        OSError: The file is not regular, not on an ordinary file system, not allowed, or its file system does not
            respond.
    """
    return io_deadline.run_with_timeout(partial(_reopen, found, rights, mapped), os.close)


def _reopen(found: int, rights: Rights | None, mapped: bool) -> int:
    io_deadline.use_mount(found, is_file=True)
    if not stat.S_ISREG(os.fstat(found).st_mode) or not (mapped or _is_ordinary(found)):
        raise OSError(errno.EINVAL, "not a regular file")
    _check(found, rights)
    fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not os.major(os.fstat(fd).st_dev):
            os.pread(fd, 1, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_file(root: str, name: str, rights: Rights | None = None) -> int:
    """Open a file for reading by its name, and return the descriptor.

    Raises:
        OSError: The same errors as find_file() and reopen_file().
    """
    found = find_file(root, name, rights)
    try:
        return reopen_file(found, rights)
    finally:
        os.close(found)


def read_file(root: str, name: str, max_bytes: int, rights: Rights | None = None) -> bytes:
    """Return at most `max_bytes` bytes from the beginning of a file.

    Raises:
        OSError: The same errors as find_file() and reopen_file().
    """
    fd = open_file(root, name, rights)
    try:
        status = io_deadline.stat_descriptor(fd)
        read, data = io_deadline.make_reader(fd, io_deadline.is_local(status.st_dev)), bytearray()
        while (left := min(max_bytes, status.st_size) - len(data)) > 0 and (more := read(left, len(data))):
            data += more
        return bytes(data)
    finally:
        io_deadline.close_descriptor(fd)


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except ValueError as error:  # a NUL, or a character that cannot be encoded
        raise OSError(errno.EINVAL, str(error)) from None


def _check(found: int, rights: Rights | None) -> None:
    if rights is not None and not rights.allow(found, os.fstat(found)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_ordinary(found: int) -> bool:
    """Return True if a file is on an ordinary file system, which has blocks.

    File systems that the kernel generates (proc, sysfs, tracefs, cgroup) have no blocks.
    """
    return os.fstatvfs(found).f_blocks > 0


def _has_access_list(found: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/self/fd/{found}", "system.posix_acl_access"))
    except OSError:
        return False


_STATUS_SIZE = 1 << 16
ELF_MAGIC = b"\x7fELF"
_BUILD_ID = re.compile(r"[0-9a-f]{4,128}")


class Opener:
    """The functions that open foreign files, with the rights of this process. A worker without rights replaces this
    object by a client of the file broker.
    """

    def open_below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        """Open a file by the name that a target has for it.

        Args:
            root: Directory at which the target's names start, "" for those of this process.
            name: Name of the file, as the target knows it.
            rights: Rights of the target, None for those of this process.
            follow: Follow a symbolic link in the last component too.
        """
        found = find_file(root or "/", name, rights, follow=follow)
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
        """Return two facts about a root directory: whether it is that of pyprof, and the rights of the process to which
        it belongs.
        """
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
        from pyprof.objfile.debug_files import find_owner

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
        return reopen_file(found, rights, mapped=mapped)
    finally:
        os.close(found)
