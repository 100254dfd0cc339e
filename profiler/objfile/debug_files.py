"""Separate debug files on this machine, and the command that installs missing ones.

Debug files are found by build ID, by .gnu_debuglink (CRC checked), and in debuginfod's cache (read only).
Source: GDB manual, "Debugging Information in Separate Files"; debuginfod(8), "FILES".

The command comes from the package database of the target's root file system.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

from pyprof.errors import FormatError
from pyprof.objfile import io_deadline, untrusted_file_access
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.objfile.untrusted_file_access import Rights, current_opener, debuginfod_cache, open_below
from pyprof.problem_counters import Diagnostics

CRC_CHUNK = 1 << 20
MAX_CRC = 4 << 30
_Way = tuple[Callable[[], int], str]
"""A candidate for a debug file: (function that opens it and returns a descriptor, its name)."""


class DebugFiles:
    """A finder of separate debug files, with one search for each object file. It keeps a debug file as long as its
    object file exists.
    """

    def __init__(self, diagnostics: Diagnostics, debug_dirs: Sequence[str]) -> None:
        self._diagnostics = diagnostics
        self._dirs = tuple(debug_dirs)
        self._found: WeakKeyDictionary[ObjectFile, ObjectFile | None] = WeakKeyDictionary()

    def find(self, file: ObjectFile, path: str, root: str, rights: Rights | None = None) -> ObjectFile | None:
        """Return the separate debug file of an object file, or None if there is none.

        Args:
            file: The object file.
            path: Path of the object file, as the target names it.
            root: The directory at which the target's names start.
            rights: Permissions of the target. Names that the target chose are opened with these permissions, also below
                the root of this process. None stands for the permissions of this process.
        """
        if file not in self._found:
            self._found[file] = self._search(file, path, root, rights)
        return self._found[file]

    def find_alternate(self, debug: ObjectFile, root: str, rights: Rights | None = None) -> ObjectFile | None:
        """Return the file of .gnu_debugaltlink, to which dwz moved the data that several debug files share, or None.

        Args:
            debug: The debug file that has the link.
            root: The directory at which the target's names start.
            rights: Permissions of the target, with which names that it chose are opened. None stands for those of this
                process.
        """
        try:
            link = bytes(debug.section(".gnu_debugaltlink") or b"")[:4096]
        except FormatError:
            return None
        name, _, build_id = link.partition(b"\0")
        if not build_id:
            return None
        path = os.path.normpath(os.path.join(os.path.dirname(debug.name), os.fsdecode(name)))
        wanted = build_id.hex()
        for prefix in _prefixes(root):
            ways = list(self._in_debug_dirs(prefix, wanted, rights))
            ways.append((partial(open_below, prefix, path, rights), path))
            for way in ways:
                found = self._open(*way)
                if found is not None and found.build_id == wanted:
                    return found
        self._diagnostics.count("shared_debug_file_not_found")
        return None

    def _search(self, file: ObjectFile, path: str, root: str, rights: Rights | None) -> ObjectFile | None:
        for name in self._by_build_id(file, root, rights):
            debug = self._open(*name)
            if debug is not None and debug.build_id == file.build_id:
                return debug
        link = read_debug_link(file)
        if link is None:
            return None
        for name in self._by_link(link[0], path, root, rights):
            debug = self._open(*name)
            if debug is None or debug.arch is not file.arch:
                continue
            same = debug.build_id == file.build_id if debug.build_id and file.build_id else _crc(debug) == link[1]
            if same:
                return debug
            self._diagnostics.count("debug_file_of_other_build")
        return None

    def _by_build_id(self, file: ObjectFile, root: str, rights: Rights | None) -> Iterator[_Way]:
        build_id = file.build_id
        if len(build_id) < 4:
            return
        for prefix in _prefixes(root):
            yield from self._in_debug_dirs(prefix, build_id, rights)
        yield partial(current_opener().open_downloaded, build_id), f"{debuginfod_cache()}/{build_id}/debuginfo"

    def _in_debug_dirs(self, prefix: str, build_id: str, rights: Rights | None) -> Iterator[_Way]:
        """Yield candidates for a debug file in the debug directories. Of their names, only the build ID comes from the
        target.

        Below the target's root directory, the target controls to which files these names lead. Below the root directory
        of pyprof, the user does.
        """
        for folder in self._dirs:
            name = f"{folder}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
            yield partial(open_below, prefix, name, rights if prefix else None), name

    def _by_link(self, name: str, path: str, root: str, rights: Rights | None) -> Iterator[_Way]:
        folder = os.path.dirname(path)
        if not path.startswith("/"):
            return
        folders = [folder, f"{folder}/.debug", *(f"{debug_dir}{folder}" for debug_dir in self._dirs)]
        for prefix in _prefixes(root):
            yield from ((partial(open_below, prefix, f"{each}/{name}", rights), f"{each}/{name}") for each in folders)

    def _open(self, way: Callable[[], int], name: str) -> ObjectFile | None:
        try:
            fd = way()
        except OSError as error:
            if error.errno == errno.EACCES:
                self._diagnostics.count("debug_file_unreadable")
            return None
        try:
            file = open_object_file(fd)
            file.name = name
            return file
        except (OSError, ValueError):
            self._diagnostics.count("debug_file_unreadable")
            return None
        finally:
            io_deadline.close_descriptor(fd)


def read_debug_link(file: ObjectFile) -> tuple[str, int] | None:
    """Return (file name, CRC) of .gnu_debuglink, or None if the file has none."""
    try:
        data = file.section(".gnu_debuglink")
    except FormatError:
        return None
    if data is None:
        return None
    raw = bytes(data[:4096])
    end = raw.find(b"\0")
    at = (end + 4) & ~3
    name = os.fsdecode(raw[:end])
    if end <= 0 or at + 4 > len(raw) or "/" in name:
        return None
    return name, int.from_bytes(raw[at : at + 4], file.byteorder)


def _prefixes(root: str) -> list[str]:
    """Return the root directories in which debug files are searched: that of the target, then that of this process."""
    return list(dict.fromkeys([root.rstrip("/"), ""]))


def _crc(file: ObjectFile) -> int:
    """Return the CRC-32 of a file.

    For a huge (sparse) file, only the beginning is read, so that the CRC does not match.
    """
    crc = at = 0
    while at < MAX_CRC:
        chunk = file.read(at, CRC_CHUNK)
        if not chunk:
            break
        crc = zlib.crc32(chunk, crc)
        at += len(chunk)
    return crc


MAX_LIST = 64 << 20
_AT_ONCE = 32
"""Number of dpkg package lists that are read within one timeout."""
_OF_DISTRIBUTIONS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OF_OTHERS = re.compile(r"^/usr/local/|/(?:site|dist)-packages/|/node_modules/")


class Packages:
    """A finder of the installed Debian package to which a file belongs, with a cache for each root directory."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}

    @property
    def kept(self) -> int:
        """The number of files whose Debian packages are cached."""
        return len(self._known)

    def find_hint_for_symbols(self, path: str, build_id: str, root: str) -> str:
        """Return a command that installs the debug symbols of a file, "" if none is known.

        No server has symbols of files that were built locally or came as a wheel.

        Args:
            path: Path of the file, as the target names it.
            build_id: Build ID of the file.
            root: Directory at which the target's names start.
        """
        if not path.startswith(_OF_DISTRIBUTIONS) or _OF_OTHERS.search(path):
            return ""
        if (root, path) not in self._known:
            self._known[root, path] = current_opener().find_package(root, path)
        package = self._known[root, path]
        if package in ("libc6", "libc-bin"):
            return "apt-get install libc6-dbg"
        if package:
            return f"apt-get install {package}-dbgsym  # from the archive of debug packages"
        if build_id and package is None:
            return f"debuginfod-find debuginfo {build_id}"
        return ""


def find_owner(root: str, path: str) -> str | None:
    """Return the name of a file's Debian package, "" if no package has it, None if there is no dpkg database.

    The package lists are searched as text, without parsing.
    """
    try:
        info = untrusted_file_access.find_file(root, "var/lib/dpkg/info")
    except OSError:
        return None
    try:
        return _owner_in(f"/proc/self/fd/{info}", path)
    except OSError:
        return None
    finally:
        os.close(info)


def _alike(one: str, other: str) -> int:
    """Return the length of the common prefix of two names."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _owner_in(folder: str, path: str) -> str | None:
    """Search dpkg's lists of files for the package that has a file. Lists of packages whose names resemble the file's
    name are read first.

    Raises:
        OSError: The directory cannot be read.
    """
    file = os.path.basename(path)
    lists = [name for name in io_deadline.run_with_timeout(partial(os.listdir, folder)) if name.endswith(".list")]
    lists.sort(key=lambda name: (-_alike(name, file), len(name), name))
    lines = [f"\n{each}\n".encode("utf-8", "surrogateescape") for each in (path, path.removeprefix("/usr"))]
    budget = MAX_LIST
    for first in range(0, len(lists), _AT_ONCE):
        names = lists[first : first + _AT_ONCE]
        found, size = io_deadline.run_with_timeout(partial(_listing, folder, names, lines, budget))
        if found:
            return found.removesuffix(".list").partition(":")[0]
        budget -= size
    return "" if lists else None


def _listing(folder: str, names: list[str], lines: list[bytes], budget: int) -> tuple[str, int]:
    """Search dpkg's package lists for lines that name a file, and return (name of the first list with one of the lines
    or "", number of bytes read).
    """
    size = 0
    for name in names:
        try:
            data = untrusted_file_access.read_file(folder, name, budget - size)
        except OSError:
            continue
        size += len(data)
        if any(line in data for line in lines):
            return name, size
    return "", size
