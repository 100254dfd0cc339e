"""One invocation of `pyprof top` on a terminal: the recording, the screen, signals, a command's own output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

from pyprof.cli.interrupts import EndBySignals, listen
from pyprof.cli.live.event_loop import Acts, Loop
from pyprof.cli.live.snapshot_merge import Snapshot, SnapshotBuilder, saved
from pyprof.cli.live.terminal_screen import Terminal
from pyprof.cli.live.top_recordings import WatchedTargets
from pyprof.cli.live.view_state import View
from pyprof.cli.terminal_output import advice, line
from pyprof.collectors.targets.launch import LaunchedCommand, launch
from pyprof.errors import PyprofError
from pyprof.options import RecordOptions, TargetOptions
from pyprof.records import dataclass
from pyprof.session.recording import Recording
from pyprof.session.worker.worker_process import freeze_loaded_objects

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


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of one invocation of `pyprof top`.

    Attributes:
        targets: None with a command, () without targets.
        every_s: Time between two snapshots in seconds.
        output: File for all that was recorded, written at the end; None for none.
        shows_idle: See Snapshot.
    """

    targets: TargetOptions | None
    command: tuple[str, ...]
    environment: dict[str, str]
    options: RecordOptions
    every_s: float
    output: str | None
    shows_idle: bool


class LiveSession:
    """One invocation of `pyprof top`; the main thread uses it once."""

    def __init__(self, wanted: LiveOptions) -> None:
        self._wanted = wanted
        self._said = tempfile.TemporaryFile() if wanted.command else None  # noqa: SIM115 - closed in run()
        self._watched = WatchedTargets(wanted.targets, self._launched(), wanted.options, self._stuck)
        self._terminal = Terminal()
        self._loop: Loop | None = None
        self._feed: Feed | None = None
        self._ending = EndBySignals(self._leave, self._stuck)

    def _launched(self) -> LaunchedCommand | None:
        """Start the command of `pyprof top`. Its output to the terminal that the screen uses goes into a file and is
        printed at the end.
        """
        if self._said is None:
            return None
        with _elsewhere(self._said):
            return launch(self._wanted.command, self._wanted.environment)

    def run(self, view: View) -> int:
        """Run `pyprof top` until the user leaves, and return the exit code."""
        freeze_loaded_objects()
        listen(self._ending)
        try:
            recording = self._watched.begin(self._wanted.options.mode)
            first = Snapshot(recording.subject.title, recording.options.mode)
            self._loop = Loop(self._terminal, view, first, Acts(self._to_mode, self._suspend, self._save))
            with self._terminal, contextlib.suppress(OSError):  # the terminal is gone, and its user with it
                self._feed = self._fed(recording, self._loop)
                if not self._ending.asked_at:
                    self._loop.run()
        finally:
            code = self._close()
        return code or 0

    def _close(self) -> int | None:
        if self._feed is not None:
            self._feed.end()
        code = self._watched.close()
        if self._said is not None:
            self._said.seek(0)
            with contextlib.suppress(OSError):
                while data := self._said.read(1 << 16):
                    sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            self._said.close()
        if self._wanted.output and self._loop is not None and self._loop.newest.seen is not None:
            line(f"pyprof: {saved(self._loop.newest, self._wanted.output, self._watched.subject)}", sys.stderr)
        return code

    def _to_mode(self, mode: str) -> None:
        assert self._feed is not None, "run() has made it"
        assert self._loop is not None, "likewise"
        self._feed.end()
        recording = self._watched.begin(mode)
        self._loop.post(Snapshot(recording.subject.title, mode))
        self._feed = self._fed(recording, self._loop)

    def _fed(self, recording: Recording, loop: Loop) -> Feed:
        return Feed(recording, self._wanted.every_s, loop.post, self._wanted.shows_idle)

    def _save(self, snapshot: Snapshot, path: str) -> str:
        return saved(snapshot, path, self._watched.subject)

    def _suspend(self) -> None:
        """Suspend this process between two batches, when no thread of the target is stopped."""
        self._watched.recording.between(_stop_here)

    def _leave(self) -> None:
        if self._loop is not None:
            self._loop.leave()
        self._watched.stop()

    def _stuck(self) -> None:
        from pyprof.session.worker.worker_process import exit_at_once

        self._terminal.restore()
        exit_at_once(1)


def _stop_here() -> None:
    """Stop this process as Ctrl-Z does by default."""
    os.kill(os.getpid(), signal.SIGTSTP)


@contextlib.contextmanager
def _elsewhere(file: IO[bytes]) -> Iterator[None]:
    """Redirect those standard streams that are terminals to a file, and standard input to /dev/null."""
    kept = [os.dup(fd) for fd in range(3)]
    with open("/dev/null", "rb") as nothing:
        for fd, instead in ((0, nothing), (1, file), (2, file)):
            if os.isatty(fd):
                os.dup2(instead.fileno(), fd)
        try:
            yield
        finally:
            for fd, before in enumerate(kept):
                os.dup2(before, fd)
                os.close(before)
