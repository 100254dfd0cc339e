"""A flight recorder: of a recording that goes on for days only the last minutes are kept, and written out on request.

The recording is cut into windows. Each is a recording file in one folder. Those that are too old are deleted, and
so are the oldest ones where the folder is too large. To write out is to merge the files. What is kept is
only in the files: whoever kills pyprof leaves them, and `pyprof merge` reads them.

The sinks are values, for whichever process keeps them (session/worker/keeper.py).
"""

from __future__ import annotations

import contextlib
import os
import time

from pyprof.errors import RecordingError
from pyprof.exporters.base import Journal, JournalBeginning, Sink
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.model.several import merge, recent
from pyprof.records import dataclass, replace

MOST_FILES = 10
"""The time that is kept has so many windows, if that makes none shorter or longer than these (s)."""
SHORTEST_S, LONGEST_S = 1.0, 60.0
_SUFFIX = ".pyprof"
UNREADABLE = said("kept_unreadable")


def window_s(last_s: float) -> float:
    """Length of a window where so many seconds are kept."""
    return min(max(last_s / MOST_FILES, SHORTEST_S), LONGEST_S)


@dataclass(frozen=True, slots=True)
class Kept:
    """A Sink that keeps windows. folder: is there, and ours alone. last_s: how long a sample is kept at least.
    most_bytes: the files of whole windows have no more together, None: no limit.
    """

    folder: str
    last_s: float
    most_bytes: int | None = None

    def journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        from pyprof.recording.journal import FileJournal

        return FileJournal(self._place(number), beginning)

    def take(self, profile: Profile, number: int) -> None:
        profile.save(self._place(number), "recording")
        self._drop()

    def together(self) -> Profile:
        """What is kept, as one profile. Raises RecordingError."""
        from pyprof.recording.reader import load

        profiles, error = [], None
        for path in self.files():
            try:
                profiles.append(load(path))
            except RecordingError as broken:
                error = broken
        if not profiles:
            raise error or RecordingError(f"nothing is kept in {self.folder}")
        whole = recent(merge(profiles), self.last_s)
        notes = (*whole.summary.notes, UNREADABLE) if error else whole.summary.notes
        return replace(whole, summary=replace(whole.summary, notes=notes))

    def clear(self) -> None:
        """Nothing is kept any more."""
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)

    def _place(self, number: int) -> str:
        return os.path.join(self.folder, f"{number:08}{_SUFFIX}")

    def files(self) -> list[str]:
        """Oldest first."""
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(_SUFFIX))

    def _drop(self) -> None:
        """A file is as old as its last sample; the newest one stays."""
        *files, newest = self.files()
        found = [(path, os.stat(path)) for path in files]
        size = os.stat(newest).st_size
        since = time.time() - self.last_s
        for path, stat in reversed(found):
            size += stat.st_size
            if stat.st_mtime < since or (self.most_bytes is not None and size > self.most_bytes):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A Sink that keeps a window, and gives all that is kept to another one, as its profile of that number."""

    kept: Kept
    to: Sink
    number: int

    def journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        return self.kept.journal(beginning, number)

    def take(self, profile: Profile, number: int) -> None:
        """Raises OutputError, RecordingError; what is kept stays so."""
        self.kept.take(profile, number)
        self.to.take(self.kept.together(), self.number)


@dataclass(frozen=True, slots=True)
class LastOne(WrittenOut):
    """The same at the end of the recording: nothing is kept any more, if it could be written."""

    def take(self, profile: Profile, number: int) -> None:
        WrittenOut.take(self, profile, number)
        self.kept.clear()
