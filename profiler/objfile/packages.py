"""Which command brings the symbols of a file: looked up in the target's own package database, once a root."""

from __future__ import annotations

import os
import re

from pyprof.objfile import foreign_path

MAX_LIST = 64 << 20
_OF_DISTRIBUTIONS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OF_OTHERS = re.compile(r"^/usr/local/|/(?:site|dist)-packages/|/node_modules/")


class Packages:
    """Files of installed Debian packages, by root; empty where dpkg is not at home."""

    def __init__(self) -> None:
        self._by_root: dict[str, dict[str, str]] = {}

    def symbols_remedy(self, path: str, build_id: str, root: str) -> str:
        """A command, "" if none is known: no server has what was built here or came as a wheel. path: as the target
        names the file; root: where its names start.
        """
        if root not in self._by_root:
            self._by_root[root] = _read(root)
        packages = self._by_root[root]
        package = packages.get(path) or packages.get(path.removeprefix("/usr"))
        if package in ("libc6", "libc-bin"):
            return "apt-get install libc6-dbg"
        if package:
            return f"apt-get install {package}-dbgsym  # from the archive of debug packages"
        if build_id and not packages and path.startswith(_OF_DISTRIBUTIONS) and not _OF_OTHERS.search(path):
            return f"debuginfod-find debuginfo {build_id}"
        return ""


def _read(root: str) -> dict[str, str]:
    try:
        info = foreign_path.find(root, "var/lib/dpkg/info")
    except OSError:
        return {}
    try:
        return _read_lists(f"/proc/self/fd/{info}")
    except OSError:
        return {}
    finally:
        os.close(info)


def _read_lists(folder: str) -> dict[str, str]:
    """Raises OSError."""
    lists = sorted(name for name in os.listdir(folder) if name.endswith(".list"))
    found: dict[str, str] = {}
    budget = MAX_LIST
    for name in lists:
        try:
            data = foreign_path.read_file(folder, name, budget)
        except OSError:
            continue
        text = data.decode("utf-8", "replace")
        budget -= len(text)
        package = name.removesuffix(".list").partition(":")[0]
        for line in text.split("\n"):
            if "/bin/" in line or "/sbin/" in line or "/lib" in line:
                found.setdefault(line, package)
    return found
