"""The windows of the last minutes as they were recorded, each sample with its time, for recordings on request
(requested_recordings.py).

They are files of a flight recorder (session/flight_recorder.py) in a folder of the spool, from all collectors. Their
time and size are limited, and they are dispensable: if the disk is full, they are deleted before any segment.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from pyprof.errors import PyprofError
from pyprof.model.profile import Profile
from pyprof.problem_counters import Diagnostics
from pyprof.session.flight_recorder import LastWindowsSink

FOLDER = "kept"
NOT_KEPT = "window_not_kept"
_UNFINISHED = (".pyprof-", ".part")
"""Prefix and suffix of the names of unfinished files of stored windows."""
_MODE = 0o700


class LastMinutes:
    """The stored windows of an agent's last minutes. One thread calls store_window() and clear(); any thread may call
    the other methods.
    """

    def __init__(self, root: str, last_s: float, most_bytes: int, diagnostics: Diagnostics) -> None:
        """Create the store of an agent's last windows.

        Args:
            root: Folder of the spool.
            last_s: Time in seconds for which each window is stored.
            most_bytes: Maximum total size of the stored files in bytes.
            diagnostics: Counters of the agent.
        """
        self.last_s = last_s
        self._kept = LastWindowsSink(f"{root}/{FOLDER}", last_s, most_bytes)
        self._diagnostics = diagnostics
        self._number = 0

    def open(self) -> None:
        """Create the folder for the last windows, or open the one of a previous agent: its windows stay, its unfinished
        files are deleted.

        Raises:
            OSError: The folder cannot be used.
        """
        with suppress(FileExistsError):
            os.mkdir(self._kept.folder, _MODE)
        begin, end = _UNFINISHED
        for name in os.listdir(self._kept.folder):
            if name.startswith(begin) and name.endswith(end):
                os.unlink(f"{self._kept.folder}/{name}")

    def is_removed(self) -> bool:
        """Return True if the folder, which open() has created, is gone."""
        return not os.path.isdir(self._kept.folder)

    def store_window(self, profile: Profile) -> bool:
        """Store a window of the last minutes, and return True if that succeeded."""
        self._number = max(self._number + 1, time.time_ns() // 1_000_000)
        try:
            self._kept.receive_profile(profile, self._number)
        except (PyprofError, OSError):
            self._diagnostics.count(NOT_KEPT)
            return False
        return True

    def files(self) -> list[str]:
        """Return the paths of the stored windows' files, oldest first. A file may be gone when it is opened."""
        with suppress(OSError):
            return self._kept.files()
        return []

    def bytes(self) -> int:
        """Return the total size of the stored windows' files in bytes."""
        total = 0
        for path in self.files():
            with suppress(OSError):
                total += os.stat(path).st_size
        return total

    def clear(self) -> int:
        """Delete all stored windows, and return the number of bytes freed."""
        freed = 0
        for path in self.files():
            with suppress(OSError):
                size = os.stat(path).st_size
                os.unlink(path)
                freed += size
        return freed
