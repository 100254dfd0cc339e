"""A flight recorder: a recording runs for days, only its last minutes are kept, and they are saved on request or by a
trigger.

The recording is split into windows. Each is a recording file in one folder. Old files are deleted, and so are the
oldest ones if the folder gets too large. To save means to merge the files. All data is in the files, so they survive if
pyprof is killed, and `pyprof merge` reads them.

The sinks are values that can be sent to the file broker (session/worker/file_broker.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pyprof.collectors.linux.process_cpu_times import read_process_ns
from pyprof.errors import RecordingError, UsageError
from pyprof.exporters.base import Journal, JournalBeginning, Sink
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.merge import merge, recent
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile

MAX_FILES = 10
"""Number of windows into which a flight recorder divides the time that it keeps. There are fewer if each would be
shorter than MIN_S, and more if each would be longer than MAX_S.
"""
MIN_S, MAX_S = 1.0, 60.0
_SUFFIX = ".pyprof"
UNREADABLE = make_note("kept_unreadable")


def window_s(last_s: float) -> float:
    """Return how long each window of a flight recorder is, in seconds, if it keeps the last `last_s` seconds."""
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
        from pyprof.recording.writer import FileJournal

        return FileJournal(self._place(number), beginning)

    def receive_profile(self, profile: Profile, number: int) -> None:
        profile.save(self._place(number), "recording")
        self._drop()

    def together(self) -> Profile:
        """Return all windows that the flight recorder still has, merged into one profile.

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
            raise error or RecordingError(f"{self.folder} has no recorded window")
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
        """Return the paths of the files with the flight recorder's windows, oldest first."""
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(_SUFFIX))

    def _drop(self) -> None:
        """Delete the flight recorder's files that are too old, and the oldest ones beyond the size limit.

        The age of a file is that of its last sample. The newest file always stays.
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
    """A Sink that a trigger of a flight recorder uses: it stores the window that it receives, and gives all stored
    windows to another sink as one profile.

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
    """A WrittenOut for the end of a flight recording: it deletes the stored windows after they were written
    successfully.
    """

    def receive_profile(self, profile: Profile, number: int) -> None:
        WrittenOut.receive_profile(self, profile, number)
        self.kept.clear()


LOOK_S = 1.0
"""Time in seconds between two checks of a flight recorder's trigger conditions. A target's processor time is measured
over this interval.
"""
_CPU = re.compile(r"cpu>(\d+(?:\.\d+)?)%?")
_FILE = "file:"


class Condition(Protocol):
    """A trigger condition of a flight recorder, which is checked once a second."""

    def check(self) -> str:
        """Return a text with the observed value if the trigger condition holds, else ""."""
        ...


@dataclass
class _Cpu:
    """The trigger condition that all recorded processes together have used more than a share of one processor since the
    last check.

    Attributes:
        share: The share of one processor.
        pids: Returns the pids of the recorded processes.
    """

    share: float
    pids: Callable[[], Iterable[int]]

    def __post_init__(self) -> None:
        self._before = time.monotonic_ns(), self._spent()

    def _spent(self) -> dict[int, int]:
        return {pid: read_process_ns(pid) for pid in self.pids()}

    def check(self) -> str:
        """Return the measured share as text if the recorded processes used more processor time since the last check
        than the condition allows, else "". A process that is new or has ended is not counted this time.
        """
        then, before = self._before
        self._before = now, after = time.monotonic_ns(), self._spent()
        spent = sum(max(ns - before[pid], 0) for pid, ns in after.items() if pid in before)
        if now <= then or spent <= self.share * (now - then):
            return ""
        return f"cpu>{100 * self.share:g}: {100 * spent / (now - then):.0f} % of a processor"


@dataclass(frozen=True, slots=True)
class _File:
    path: str

    def check(self) -> str:
        return f"{self.path} appeared" if os.path.lexists(self.path) else ""


def condition(text: str, pids: Callable[[], Iterable[int]]) -> Condition:
    """Parse a trigger condition such as `cpu>80` or `file:/run/dump-me`.

    Args:
        text: "cpu>N" with N percent of one processor, or "file:PATH".
        pids: Returns the pids of the recorded processes.

    Raises:
        UsageError: The text is no condition.
    """
    if found := _CPU.fullmatch(text.replace(" ", "")):
        return _Cpu(float(found[1]) / 100, pids)
    if text.startswith(_FILE) and len(text) > len(_FILE):
        return _File(text.removeprefix(_FILE))
    raise UsageError(f"{text!r} is not a trigger", "--trigger 'cpu>80', or --trigger file:PATH")


class Triggers:
    """A checker of a flight recorder's trigger conditions. It calls fire(observations) when a condition begins to hold,
    at most once in pause_s.

    A condition that holds at the start must first become false.
    """

    def __init__(
        self,
        conditions: Iterable[Condition],
        fire: Callable[[str], None],
        pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conditions = list(conditions)
        self._held = [True] * len(self._conditions)
        self._fire = fire
        self._pause_s = pause_s
        self._clock = clock
        self._next = clock()
        self._not_before = self._next

    def check_conditions(self) -> None:
        """Check all trigger conditions if LOOK_S has passed since the last check, and call fire() if one has begun to
        hold. The caller may call this at any rate.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LOOK_S
        found = [condition.check() for condition in self._conditions]
        before, self._held = self._held, [bool(each) for each in found]
        begun = [each for each, held in zip(found, before, strict=True) if each and not held]
        if begun and now >= self._not_before:
            self._not_before = now + self._pause_s
            self._fire(", ".join(begun))
