"""The windows of the last minutes as they were recorded, each sample with its time: for those who ask (on_demand.py).

A flight recorder's files (session/flight.py) in a folder of the spool, of all collectors together. They are bounded by
time and bytes, and may be missed: a disk that is full loses them before any segment.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from pyprof.diagnostics import Diagnostics
from pyprof.errors import PyprofError
from pyprof.model.profile import Profile
from pyprof.session.flight import Kept

FOLDER = "kept"
NOT_KEPT = "spool: window not kept for pyprof agent record, it could not be written"
_UNFINISHED = (".pyprof-", ".part")
"""How the name of a file begins and ends that was being written."""
_MODE = 0o700


class LastMinutes:
    """root: the spool's folder. last_s: how long a window is kept at least. most_bytes: of all files together. take()
    and clear() are for one thread at a time, the rest for any.
    """

    def __init__(self, root: str, last_s: float, most_bytes: int, diagnostics: Diagnostics) -> None:
        self.last_s = last_s
        self._kept = Kept(f"{root}/{FOLDER}", last_s, most_bytes)
        self._diagnostics = diagnostics
        self._number = 0

    def open(self) -> None:
        """What an agent of before has kept stays; what it was writing goes. Raises OSError."""
        with suppress(FileExistsError):
            os.mkdir(self._kept.folder, _MODE)
        begin, end = _UNFINISHED
        for name in os.listdir(self._kept.folder):
            if name.startswith(begin) and name.endswith(end):
                os.unlink(f"{self._kept.folder}/{name}")

    def take(self, profile: Profile) -> bool:
        """A window. Could it be kept?"""
        self._number = max(self._number + 1, time.time_ns() // 1_000_000)
        try:
            self._kept.take(profile, self._number)
        except (PyprofError, OSError):
            self._diagnostics.count(NOT_KEPT)
            return False
        return True

    def files(self) -> list[str]:
        """Oldest first. One may be gone when it is opened."""
        with suppress(OSError):
            return self._kept.files()
        return []

    def bytes(self) -> int:
        """Of all files."""
        total = 0
        for path in self.files():
            with suppress(OSError):
                total += os.stat(path).st_size
        return total

    def clear(self) -> int:
        """Nothing is kept any more. Bytes that are free now."""
        freed = 0
        for path in self.files():
            with suppress(OSError):
                size = os.stat(path).st_size
                os.unlink(path)
                freed += size
        return freed
