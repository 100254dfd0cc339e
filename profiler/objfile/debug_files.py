"""Separate debug files: by build ID, by .gnu_debuglink (CRC checked), from debuginfod's cache (read only).

Source: GDB manual, "Debugging Information in Separate Files"; debuginfod(8), "FILES".
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.objfile import io_deadline
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.file_access import current_opener, debuginfod_cache, open_below
from pyprof.objfile.foreign_path import Rights
from pyprof.objfile.formats import open_object_file

CRC_CHUNK = 1 << 20
MAX_CRC = 4 << 30
_Way = tuple[Callable[[], int], str]
"""Way to a debug file: a function that opens a candidate and returns its descriptor, and the candidate's name."""


class DebugFiles:
    """A finder of separate debug files, with one search for each object file. It keeps each as long as its object file
    exists.
    """

    def __init__(self, diagnostics: Diagnostics, debug_dirs: Sequence[str]) -> None:
        self._diagnostics = diagnostics
        self._dirs = tuple(debug_dirs)
        self._found: WeakKeyDictionary[ObjectFile, ObjectFile | None] = WeakKeyDictionary()

    def find(self, file: ObjectFile, path: str, root: str, rights: Rights | None = None) -> ObjectFile | None:
        """Return the debug file of an object file, or None if there is none.

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
            root: As in `find`.
            rights: As in `find`.
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
        """Yield candidates in the debug directories, whose names have only the build ID from the target.

        Below the target's root, the target controls what these names lead to. Below this process's root, the user does.
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
    """Return the directories in which debug files are searched: the target's root, then the root of this process."""
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
