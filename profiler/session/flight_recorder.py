"""A flight recorder: a recording runs for days, only its last minutes are kept, and they are saved on request.

The recording is split into windows. Each is a recording file in one folder. Old files are deleted, and so are the
oldest ones if the folder gets too large. To save means to merge the files. All data is in the files, so they survive if
pyprof is killed, and `pyprof merge` reads them.

The sinks are values that can be sent to the file broker (session/worker/file_broker.py).
"""

from __future__ import annotations

import contextlib
import os
import time

from pyprof.errors import RecordingError
from pyprof.exporters.base import Journal, JournalBeginning, Sink
from pyprof.model.merge import merge, recent
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.records import dataclass, replace

MAX_FILES = 10
"""Number of a flight recorder's windows in the kept time, unless a window would be shorter than MIN_S or longer
than MAX_S.
"""
MIN_S, MAX_S = 1.0, 60.0
_SUFFIX = ".pyprof"
UNREADABLE = said("kept_unreadable")


def window_s(last_s: float) -> float:
    """Return the length of a flight recorder's window for a kept time, both in seconds."""
    return min(max(last_s / MAX_FILES, MIN_S), MAX_S)


@dataclass(frozen=True, slots=True)
class LastWindowsSink:
    """A Sink that keeps the last windows of a flight recorder as files.

    Attributes:
        folder: An existing folder that only pyprof uses.
        last_s: Minimum time for which a sample is kept, in seconds.
        most_bytes: Maximum size of all complete files, None for no limit.
    """

    folder: str
    last_s: float
    most_bytes: int | None = None

    def open_journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        from pyprof.recording.journal import FileJournal

        return FileJournal(self._place(number), beginning)

    def receive_profile(self, profile: Profile, number: int) -> None:
        profile.save(self._place(number), "recording")
        self._drop()

    def together(self) -> Profile:
        """Merge all windows that the flight recorder has kept into one profile.

        Raises:
            RecordingError: No window can be read.
        """
        from pyprof.recording.reader import load_recording

        profiles, error = [], None
        for path in self.files():
            try:
                profiles.append(load_recording(path))
            except RecordingError as broken:
                error = broken
        if not profiles:
            raise error or RecordingError(f"nothing is kept in {self.folder}")
        whole = recent(merge(profiles), self.last_s)
        notes = (*whole.summary.notes, UNREADABLE) if error else whole.summary.notes
        return replace(whole, summary=replace(whole.summary, notes=notes))

    def clear(self) -> None:
        """Delete the folder with the flight recorder's windows."""
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)

    def _place(self, number: int) -> str:
        return os.path.join(self.folder, f"{number:08}{_SUFFIX}")

    def files(self) -> list[str]:
        """Return the paths of the flight recorder's kept windows, oldest first."""
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(_SUFFIX))

    def _drop(self) -> None:
        """Delete the flight recorder's files that are too old or exceed the size limit.

        The age of a file is that of its last sample; the newest stays.
        """
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
    """A Sink that keeps a window, and then gives all kept windows as one profile to another sink.

    Attributes:
        kept: Keeps the windows.
        to: Receives the merged profile.
        number: Number of the merged profile.
    """

    kept: LastWindowsSink
    to: Sink
    number: int

    def open_journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        return self.kept.open_journal(beginning, number)

    def receive_profile(self, profile: Profile, number: int) -> None:
        """Keep a window of the flight recorder, and give the profile of all kept windows to the other sink.

        Raises:
            OutputError: The other sink cannot write. The kept windows stay.
            RecordingError: No kept window can be read.
        """
        self.kept.receive_profile(profile, number)
        self.to.receive_profile(self.kept.together(), self.number)


@dataclass(frozen=True, slots=True)
class FlightRecordingEnd(WrittenOut):
    """A WrittenOut for the end of a flight recording: it deletes the kept windows after a successful write."""

    def receive_profile(self, profile: Profile, number: int) -> None:
        WrittenOut.receive_profile(self, profile, number)
        self.kept.clear()
