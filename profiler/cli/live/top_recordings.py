"""The recordings of one session of `pyprof top`: a change of mode needs another recording."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from pyprof.collectors.targets.launch import LaunchedCommand
from pyprof.options import RecordOptions, TargetOptions
from pyprof.records import replace
from pyprof.session import recording_factory
from pyprof.session.recording import Recorded, Recording
from pyprof.session.worker import priority
from pyprof.session.worker.worker_process import forked, spawned

_PATIENCE_S = 5.0
_OPENING_S = 0.8
"""Maximum time in seconds for a recording to begin after stop() was called."""


class WatchedTargets:
    """The targets of a session of `pyprof top`: processes, or a command that waits to be released.

    One thread makes and ends the recordings. stop() may be called from any thread or a signal handler. stuck is called
    from a thread if a recording does not end; it must end this process.
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
            priority.restore_child_priority(command.pid)

    @property
    def subject(self) -> Recorded:
        """The subject of the newest recording of `pyprof top`, also after it has ended."""
        assert self._subject is not None, "begin() was not called"
        return self._subject

    @property
    def recording(self) -> Recording:
        assert self._recording is not None, "begin() was not called"
        return self._recording

    def begin(self, mode: str) -> Recording:
        """Start the first recording of `pyprof top`, or end the current one and start the next.

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
        """End the current recording of `pyprof top`; a command continues to run."""
        if self._recording is not None:
            self._recording.detach()
            self._recording = None

    def close(self) -> int | None:
        """End the recording and the command of `pyprof top`; return the command's exit code, None if it was still
        running or there is none.
        """
        self.end()
        if self._command is None:
            return None
        code = self._command.poll()
        self._command.terminate(_PATIENCE_S)
        return code
