"""One invocation of `pyprof top`: its recordings, the screen or the tables for scripts, signals, a command's own
output.

The event loop takes keys and the newest snapshot until the user quits. A change of mode needs another recording. Tables
instead of a screen are for scripts, and for terminals that cannot be drawn on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from time import monotonic
from typing import IO

from pyprof.cli import top_view_state as keys
from pyprof.cli.signal_thread import EndBySignals, listen
from pyprof.cli.terminal_output import advice, complain, failure, line
from pyprof.cli.top_screen import Screen, Terminal, picture, plain, room
from pyprof.cli.top_snapshots import Snapshot, SnapshotBuilder, saved
from pyprof.cli.top_view_state import Around, View, pressed, rows
from pyprof.cli.top_window_costs import RowTree, opened
from pyprof.collectors.targets.command_launch import LaunchedCommand, launch
from pyprof.errors import PyprofError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.idle_waits import without_idle
from pyprof.options import SIMPLE_MODES, RecordOptions, TargetOptions
from pyprof.session import process_priority, recording_factory
from pyprof.session.recording import Recorded, Recording
from pyprof.session.worker.worker_process import forked, freeze_loaded_objects, spawned

_WAIT_S = 1.0
_LATE_S = 3.0
"""Age in seconds from which the screen of `pyprof top` shows that the snapshot is old."""


@dataclass(frozen=True, slots=True)
class Acts:
    """The actions that the event loop of `pyprof top` can request, as functions.

    Attributes:
        to_mode: Replaces the recording by one in another mode; raises PyprofError.
        suspend: Stops this process until SIGCONT.
        save: Saves the snapshot into a file ("" for the default name) and returns a message; raises PyprofError.
    """

    to_mode: Callable[[str], None]
    suspend: Callable[[], None]
    save: Callable[[Snapshot, str], str]


class Loop:
    """The event loop of `pyprof top`. Any thread may call post() and leave(). `newest` is the last snapshot."""

    def __init__(self, screen: Screen, view: View, snapshot: Snapshot, acts: Acts) -> None:
        self.view = view
        self._screen = screen
        self.newest = self._shown = snapshot
        self._acts = acts
        self._left = False
        self._posted_at = monotonic()

    def post(self, snapshot: Snapshot) -> None:
        """Pass a new snapshot to the event loop, which shows it unless the display is paused."""
        self.newest, self._posted_at = snapshot, monotonic()
        self._screen.wake()

    def leave(self) -> None:
        self._left = True
        self._screen.wake()

    def run(self) -> None:
        """Draw the screen of `pyprof top` and handle keys until the user quits.

        Raises:
            OSError: The terminal is gone.
        """
        while not self._left:
            if not self.view.paused:
                self._shown = self.newest
            self._draw()
            for name in self._screen.keys(_WAIT_S):
                self._press(name)

    def _draw(self) -> None:
        age = monotonic() - self._posted_at
        late = f" [{age:.0f} s old]" if age >= _LATE_S else ""
        self._screen.draw(picture(self._shown, self.view, self._stacks(), late, *self._screen.size()))

    def _stacks(self) -> RowTree | None:
        """Return the callers or callees of the row that the user has opened, None if no row is open."""
        view, seen = self.view, self._shown.seen
        profile = seen.profile(view.span_s) if view.opened is not None and seen is not None else None
        if profile is None or view.opened is None:
            return None
        shown = profile if self._shown.shows_idle else without_idle(profile)
        return opened(shown, view.table, view.opened, view.callers)

    def _press(self, name: str) -> None:
        view = self.view
        shown = rows(self._shown.table(view.table, view.span_s).tables[view.table], view)
        view = pressed(view, name, Around(shown, room(self._screen.size()[1])))
        self.view = replace(view, wants="")
        self._do(view.wants)

    def _do(self, what: str) -> None:
        if what == keys.QUIT:
            self._left = True
        elif what == keys.SUSPEND:
            self._screen.leave_for(self._acts.suspend)
        elif what == keys.REDRAW:
            self._screen.redraw()
        elif what == keys.SAVE:
            self._save()
        elif what == keys.MODE:
            now = self.newest.mode
            after = SIMPLE_MODES.index(now) + 1 if now in SIMPLE_MODES else 0
            self._to_mode(SIMPLE_MODES[after % len(SIMPLE_MODES)])

    def _save(self) -> None:
        path = self.view.typed
        self.view = replace(self.view, message="saving …", typed="")
        self._draw()
        try:
            self.view = replace(self.view, message=self._acts.save(self._shown, path))
        except PyprofError as error:
            self.view = replace(self.view, message=error.message)

    def _to_mode(self, mode: str) -> None:
        self.view = replace(self.view, message=f"beginning anew: {mode} …", paused=False)
        self._draw()
        try:
            self._acts.to_mode(mode)
            self.view = replace(self.view, message="")
        except PyprofError as error:
            self.view = replace(self.view, message=error.message)


_PATIENCE_S = 5.0
_OPENING_S = 0.8
"""Maximum time in seconds that a recording of `pyprof top` which is still starting may take after stop() was called."""


class WatchedTargets:
    """The targets of a session of `pyprof top`: processes, or a command that is started but waits for its release.

    One thread begins and ends the recordings. Any thread and any signal handler may call stop(). The function `stuck`
    is called in another thread if a recording does not end; it must end this process.
    """

    def __init__(
        self,
        targets: TargetOptions | None,
        command: LaunchedCommand | None,
        options: RecordOptions,
        stuck: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self.options = options
        self._targets = targets
        self._command = command
        self._stuck = stuck
        self._recording: Recording | None = None
        self._subject: Recorded | None = None
        self._begun = False
        self._stopped = False
        if command is not None:
            process_priority.restore_child_priority(command.pid)

    @property
    def subject(self) -> Recorded:
        """Description of the target of the newest recording of `pyprof top`, also after that recording has ended."""
        assert self._subject is not None, "begin() was not called"
        return self._subject

    @property
    def recording(self) -> Recording:
        assert self._recording is not None, "begin() was not called"
        return self._recording

    def begin(self, mode: str) -> Recording:
        """Start a recording of `pyprof top`. A recording that already runs is ended first.

        Raises:
            PyprofError: The recording cannot be opened (see session.recording_factory).
        """
        self.end()
        self.options = replace(self.options, mode=mode)
        if self._begun:
            # other threads of this process run by now, so it must not fork
            recording = recording_factory.of_processes(*self._again(), spawned)
        elif self._command is not None:
            recording = recording_factory.of_command(self._command, self.options, forked)
        else:
            assert self._targets is not None, "neither processes nor a command"
            recording = recording_factory.of_processes(self._targets, self.options, forked)
        self._begun = True
        self._recording, self._subject = recording, recording.subject
        recording.watch(lambda _: self._stuck())
        if self._stopped:
            recording.end()
        recording.start()
        return recording

    def _again(self) -> tuple[TargetOptions, RecordOptions]:
        if self._command is None:
            assert self._targets is not None
            return self._targets, self.options
        followed = self.options.subprocesses is not False
        return TargetOptions(pids=(self._command.pid,)), replace(self.options, subprocesses=followed)

    def stop(self) -> None:
        """End all recordings of `pyprof top` without waiting for them."""
        self._stopped = True
        if (recording := self._recording) is not None:
            recording.end()
        elif not self._begun:
            timer = threading.Timer(_OPENING_S, self._leave_opening)
            timer.daemon = True
            timer.start()

    def _leave_opening(self) -> None:
        if not self._begun:
            self._stuck()

    def end(self) -> None:
        """End the current recording of `pyprof top`. A recorded command continues to run."""
        if self._recording is not None:
            self._recording.close(ends_command=False)
            self._recording = None

    def close(self) -> int | None:
        """End the recording and the command of `pyprof top`. Return the command's exit code, None if it was still
        running or there is no command.
        """
        self.end()
        if self._command is None:
            return None
        code = self._command.poll()
        self._command.terminate(_PATIENCE_S)
        return code


OVER = "the target has ended"
ENOUGH = "the duration is over"


class Feed:
    """A thread that makes a snapshot of each window of one running recording.

    Args:
        posted: Function that receives each snapshot, in the thread of this object.
        shows_idle: True if the tables include the waits of idle threads.
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
        except Exception as error:  # noqa: BLE001 - shown to the user as the reason of the end
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
        targets: Pids or the selection of processes; None for a command, () if no target is given.
        every_s: Time between two snapshots in seconds.
        output: Path of a file with all samples, which is written at the end; None for none.
        shows_idle: True if the tables include the waits of idle threads.
    """

    targets: TargetOptions | None
    command: tuple[str, ...]
    environment: dict[str, str]
    options: RecordOptions
    every_s: float
    output: str | None
    shows_idle: bool


class LiveSession:
    """One invocation of `pyprof top`. It is used once, by the main thread."""

    def __init__(self, wanted: LiveOptions) -> None:
        self._wanted = wanted
        self._said = tempfile.TemporaryFile() if wanted.command else None  # noqa: SIM115 - closed in run()
        self._watched = WatchedTargets(wanted.targets, self._launched(), wanted.options, self._stuck)
        self._terminal = Terminal()
        self._loop: Loop | None = None
        self._feed: Feed | None = None
        self._ending = EndBySignals(self._leave, self._stuck)

    def _launched(self) -> LaunchedCommand | None:
        """Start the command of `pyprof top`. Output that would go to the terminal of the screen goes into a file, and
        is printed at the end.
        """
        if self._said is None:
            return None
        with _elsewhere(self._said):
            return launch(self._wanted.command, self._wanted.environment)

    def run(self, view: View) -> int:
        """Run `pyprof top` until the user quits, and return the exit code."""
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
        """Suspend `pyprof top` (Ctrl-Z) between two batches of samples, when ptrace stops no thread of the target."""
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
    """Stop this process as the terminal's Ctrl-Z does (SIGTSTP)."""
    os.kill(os.getpid(), signal.SIGTSTP)


@contextlib.contextmanager
def _elsewhere(file: IO[bytes]) -> Iterator[None]:
    """Redirect the standard streams that are terminals while the context lasts: output goes to a file, input comes from
    /dev/null.
    """
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


@dataclass(frozen=True, slots=True)
class Printed:
    """The options of the tables that `pyprof top` prints for scripts.

    Attributes:
        every_s: Seconds that each table covers.
        once: Print only one table.
        width: Maximum length of a line.
        rows: Maximum number of rows.
        output: Path of a file with all samples, None for none.
        shows_idle: True if the tables include the waits of idle threads.
    """

    every_s: float
    once: bool
    width: int
    rows: int
    output: str | None
    shows_idle: bool


def print_tables(watched: WatchedTargets, view: View, how: Printed) -> int:
    """Print the tables of `pyprof top` for scripts until the target has ended or stop() is called. Return the exit
    code.
    """
    recording = watched.begin(watched.options.mode)
    gathering = SnapshotBuilder(recording.subject.title, recording.options.mode, how.shows_idle)
    sampled = False
    for profile in recording.windows(how.every_s):
        snapshot = gathering.add_window(profile)
        if len(profile.stack) or recording.running:
            for text in plain(snapshot, view, how.width, how.rows):
                line(text)
            if not how.once:
                line("")
            sys.stdout.flush()
        sampled |= len(profile.stack) > 0
        if how.once:
            break
    if how.output and sampled:
        line(f"pyprof: {saved(gathering.snapshot, how.output, recording.subject)}", sys.stderr)
    if recording.failure is not None:
        failure(recording.failure)
        return 1
    if how.once and not sampled:
        complain("nothing was sampled", "" if recording.options.mode == "wall" else "--mode wall also shows waits")
        return 1
    return 0
