"""The text of source files that a profile names. The names are foreign: what is opened is what the user allows.

In: folders of the user's. A file is looked for below each, by its whole path first and then by shorter and shorter
ends of it: /build/app/src/a.c is DIR/build/app/src/a.c, else DIR/app/src/a.c, DIR/src/a.c or DIR/a.c. No link leads out
of a folder. Elsewhere a file is read only if everybody may read it, by its whole path: a recording could name a
private file of the user, and what is shown is often passed on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from pyprof.errors import UsageError
from pyprof.model.line_costs import line_costs
from pyprof.model.profile import Profile
from pyprof.model.source_text import SourceText
from pyprof.objfile import patience
from pyprof.objfile.foreign_path import Rights, open_file
from pyprof.objfile.source import FileSource

MOST_BYTES = 4 << 20
MOST_FILES, MOST_LETTERS = 2000, 64 << 20
"""Of one profile."""
MOST_PARTS = 32
"""Parts of a path that are looked at, its last ones."""
_EVERYBODY = Rights()


class SourceFiles:
    """Each file is read once."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """Raises UsageError for what is no folder."""
        for folder in folders:
            if not os.path.isdir(folder):
                raise UsageError(f"--source {folder}: no such folder")
        self._folders = tuple(folders)
        self._read: dict[tuple[str, int], SourceText | None] = {}

    def text(self, path: str, last: int) -> SourceText | None:
        """last: a line that the file must have: one that is shorter is another file."""
        if (path, last) not in self._read:
            self._read[path, last] = self._found(path, last)
        return self._read[path, last]

    def _found(self, path: str, last: int) -> SourceText | None:
        parts = [part for part in path.split("/") if part not in ("", ".")][-MOST_PARTS:]
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


def texts(profile: Profile, files: SourceFiles) -> dict[str, SourceText]:
    """The files of a profile's lines that are here, by their names in it, dearest first."""
    last: defaultdict[str, int] = defaultdict(int)
    for cost in line_costs(profile):
        last[cost.place.file] = max(last[cost.place.file], cost.place.line)
    found: dict[str, SourceText] = {}
    letters = 0
    for path in list(last)[:MOST_FILES]:
        text = files.text(path, last[path]) if path else None
        if text is not None:
            letters += sum(map(len, text.lines))
            if letters > MOST_LETTERS:
                break
            found[path] = text
    return found


def _text(root: str, name: str, rights: Rights | None) -> SourceText | None:
    try:
        fd = open_file(root, name, rights)
        try:
            status = patience.status(fd)
        except BaseException:
            patience.close(fd)
            raise
        source = FileSource(fd)
        if source.size > MOST_BYTES:
            return None
        data = bytes(source.read(0, source.size))
    except OSError:
        return None
    lines = data.decode("utf-8", "replace").splitlines() if b"\0" not in data else []
    return SourceText(os.path.join(root, name), tuple(lines), status.st_mtime_ns)
