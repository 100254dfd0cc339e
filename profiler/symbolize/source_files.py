"""The text of source files that a profile names. The names are foreign, so only files that the user allows are opened.

SourceFiles takes directories of the user. It looks for a file below each of them, by its complete path first and then
by ever shorter ends of the path: /build/app/src/a.c is DIR/build/app/src/a.c, else DIR/app/src/a.c, DIR/src/a.c or
DIR/a.c. No link leads out of a directory. Outside of them, a file is read by its complete path only if all users may
read it. A recording could name a private file of the user, and its output is often passed on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from pyprof.errors import UsageError
from pyprof.model.line_costs import SourceText, line_costs
from pyprof.model.profile import Profile
from pyprof.objfile import io_deadline
from pyprof.objfile.byte_source import FileSource
from pyprof.objfile.foreign_path import Rights, open_file

MAX_BYTES = 4 << 20
MAX_FILES, MAX_LETTERS = 2000, 64 << 20
"""Maximum number of source files of one profile, and of characters in all of them."""
MAX_PARTS = 32
"""Maximum number of components of a source path that are used, from its end."""
_EVERYBODY = Rights()


class SourceFiles:
    """A finder of source files, which reads each of them once."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """Create a search for source files in the given directories.

        Raises:
            UsageError: A path is not a directory.
        """
        for folder in folders:
            if not os.path.isdir(folder):
                raise UsageError(f"--source {folder}: no such folder")
        self._folders = tuple(folders)
        self._read: dict[tuple[str, int], SourceText | None] = {}

    def source_text(self, path: str, last: int) -> SourceText | None:
        """Return the text of a source file, or None.

        A file with fewer than `last` lines is not the one that the profile means.
        """
        if (path, last) not in self._read:
            self._read[path, last] = self._found(path, last)
        return self._read[path, last]

    def _found(self, path: str, last: int) -> SourceText | None:
        parts = [part for part in path.split("/") if part not in ("", ".")][-MAX_PARTS:]
        if not parts or ".." in parts[-1:] or "\0" in path:
            return None
        first = len(parts) - parts[::-1].index("..") if ".." in parts else 0
        places: list[tuple[str, str, Rights | None]] = [
            (folder, "/".join(parts[at:]), None) for folder in self._folders for at in range(first, len(parts))
        ]
        if path.startswith("/"):
            places.append(("/", path, _EVERYBODY))
        for root, name, rights in places:
            found = _text(root, name, rights)
            if found is not None and len(found.lines) >= last:
                return found
        return None


def read_source_texts(profile: Profile, files: SourceFiles) -> dict[str, SourceText]:
    """Return the source files of a profile's lines by the names in the profile, the most expensive first."""
    last: defaultdict[str, int] = defaultdict(int)
    for cost in line_costs(profile):
        last[cost.place.file] = max(last[cost.place.file], cost.place.line)
    found: dict[str, SourceText] = {}
    letters = 0
    for path in list(last)[:MAX_FILES]:
        text = files.source_text(path, last[path]) if path else None
        if text is not None:
            letters += sum(map(len, text.lines))
            if letters > MAX_LETTERS:
                break
            found[path] = text
    return found


def _text(root: str, name: str, rights: Rights | None) -> SourceText | None:
    try:
        fd = open_file(root, name, rights)
        try:
            status = io_deadline.stat_descriptor(fd)
        except BaseException:
            io_deadline.close_descriptor(fd)
            raise
        source = FileSource(fd)
        if source.size > MAX_BYTES:
            return None
        data = bytes(source.read(0, source.size))
    except OSError:
        return None
    lines = data.decode("utf-8", "replace").splitlines() if b"\0" not in data else []
    return SourceText(os.path.join(root, name), tuple(lines), status.st_mtime_ns)
