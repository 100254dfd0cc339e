"""The command that installs the debug symbols of a file, from the package database of the target's root file system."""

from __future__ import annotations

import os
import re
from functools import partial

from pyprof.objfile import foreign_path, io_deadline
from pyprof.objfile.file_access import current_opener

MAX_LIST = 64 << 20
_AT_ONCE = 32
"""Number of dpkg package lists that one call with a timeout reads."""
_OF_DISTRIBUTIONS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OF_OTHERS = re.compile(r"^/usr/local/|/(?:site|dist)-packages/|/node_modules/")


class Packages:
    """A finder of the installed Debian package of a file, with a cache by root directory."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}

    @property
    def kept(self) -> int:
        """The number of files whose Debian packages are cached."""
        return len(self._known)

    def symbols_remedy(self, path: str, build_id: str, root: str) -> str:
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

    The lists of files are searched without parsing.
    """
    try:
        info = foreign_path.find_file(root, "var/lib/dpkg/info")
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
    """Search dpkg's lists of files for the package of a file. Lists whose names begin like that of the file are read
    first.

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
    """Return (the first of these package lists that contains one of the lines or "", number of bytes read)."""
    size = 0
    for name in names:
        try:
            data = foreign_path.read_file(folder, name, budget - size)
        except OSError:
            continue
        size += len(data)
        if any(line in data for line in lines):
            return name, size
    return "", size
