"""A thread that makes a snapshot of each window of a recording."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyprof.cli.live.snapshot_merge import Snapshot, SnapshotBuilder
from pyprof.cli.terminal_output import advice
from pyprof.errors import PyprofError
from pyprof.session.recording import Recording

OVER = "the target has ended"
ENOUGH = "the duration is over"


class Feed:
    """A thread that makes a snapshot of each window of one running recording.

    Args:
        posted: Called with each snapshot, in the feed's thread.
        shows_idle: See Snapshot.
    """

    def __init__(
        self, recording: Recording, every_s: float, posted: Callable[[Snapshot], None], shows_idle: bool
    ) -> None:
        self._recording = recording
        self._every_s = every_s
        self._began = time.monotonic()
        self._posted = posted
        self._gathering = SnapshotBuilder(recording.subject.title, recording.options.mode, shows_idle)
        self._thread = threading.Thread(target=self._run, name="pyprof windows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        why = ""
        try:
            for profile in self._recording.windows(self._every_s):
                self._posted(self._gathering.add_window(profile))
            failure = self._recording.failure
            why = _sentence(failure) if failure else ENOUGH if self._late() else OVER
        except Exception as error:
            why = _sentence(error)
        self._posted(self._gathering.end(why))

    def _late(self) -> bool:
        lasts = self._recording.options.duration
        return lasts is not None and time.monotonic() - self._began >= lasts

    def end(self) -> None:
        """End the recording without closing it, and wait for the thread that makes snapshots."""
        self._recording.end()
        self._thread.join()


def _sentence(error: BaseException) -> str:
    if isinstance(error, PyprofError):
        return f"{error.message} ({advice(error.hint)})" if error.hint else error.message
    return f"{type(error).__name__}: {error}"
