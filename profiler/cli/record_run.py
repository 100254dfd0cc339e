"""One invocation of `pyprof record`: signals, the command that is started, progress and messages."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyprof.cli.number_and_name_format import many, shorten
from pyprof.cli.recording_options import Flight, wait
from pyprof.cli.terminal_output import columns, complain, failure, one_terminal, printable
from pyprof.cli.window_writer import WindowOptions, WindowWriter
from pyprof.errors import OutputError, PyprofError
from pyprof.lazy_dataclasses import dataclass, field

if TYPE_CHECKING:
    from pyprof.cli.recording_options import Timing
    from pyprof.collectors.base import CollectorStats
    from pyprof.collectors.targets.command_launch import LaunchedCommand
    from pyprof.options import RecordOptions, RemoteOptions, TargetOptions
    from pyprof.session.recording import Recording
    from pyprof.session.worker.worker_process import Start


SECOND_S = 0.12
"""Time in seconds for writing the profile after the user's second signal, in which no more names are resolved. Time
spent waiting for a processor does not count.
"""
_MAX_SECOND_S = 2.0
"""Maximum time in seconds for writing the profile after a second signal, including time spent waiting for a
processor.
"""
_NOT_BEGUN = "ended before the recording began: nothing was written"
_LOOK_S = 0.02
_OFTEN_S = 1.0
"""Interval in seconds between checkpoints of the recording file, and between updates of the progress line."""


_START_S = 0.15
"""Processor time in seconds that a fast machine needs to import all modules of `pyprof record`."""


def times_as_slow() -> float:
    """Return how many times slower this machine is than the one on which the time limits are based, at least 1.

    The measure is the processor time that this process has used so far. It must have done nothing but start `pyprof
    record`.
    """
    return max(time.process_time() / _START_S, 1.0)


def _exit(why: str, code: int = 1) -> None:
    """End this process at once, from any thread. The kernel releases stopped threads and open files."""
    from pyprof.session.worker.worker_process import exit_at_once

    complain(why)
    exit_at_once(code)


class Invocation:
    """One invocation of `pyprof record`, from its options to its output."""

    def __init__(self, when: Timing, options: RecordOptions, how: WindowOptions) -> None:
        self._when = when
        self._options = options
        self._how = how
        self._recording: Recording | None = None
        self._flight: Flight | None = None
        self._command: LaunchedCommand | None = None
        self._ended_by = 0
        self._is_write_out_due = False
        self._same_until = 0.0
        self._over = threading.Event()
        self._slow = times_as_slow()

    def run(
        self,
        command: list[str],
        targets: TargetOptions | None,
        remote: RemoteOptions | None,
        environment: dict[str, str],
    ) -> int:
        from pyprof.session.worker.worker_process import forked, forked_early

        if targets is not None and not targets.pids:  # a worker would be among the processes that are searched
            start: Start = partial(forked, sink_fds=self._how.descriptors)
            self._recording = self._opened(command, targets, remote, environment, start)
        else:
            with forked_early(self._options.confined, self._how.descriptors) as start:
                self._recording = self._opened(command, targets, remote, environment, start)
        return self._record(self._recording)

    def _opened(
        self,
        command: list[str],
        targets: TargetOptions | None,
        remote: RemoteOptions | None,
        environment: dict[str, str],
        start: Start,
    ) -> Recording:
        from pyprof.cli.signal_thread import listen

        listen(self._taken, (signal.SIGUSR1,) if self._when.last_s else ())

        from pyprof.collectors.targets.command_launch import launch
        from pyprof.session import process_priority, recording_factory
        from pyprof.session.worker.worker_process import freeze_loaded_objects

        freeze_loaded_objects()
        if command:
            self._command = launch(command, environment)
            process_priority.restore_child_priority(self._command.pid)
        self._delay()
        given = self._when.as_text()
        if self._command:
            return recording_factory.of_command(self._command, self._options, start, given)
        if remote is not None:
            return recording_factory.of_stub(remote, self._options, start, given)
        assert targets is not None  # run() checked this
        return recording_factory.of_processes(targets, self._options, start, given)

    def _delay(self) -> None:
        """Wait for the time of --delay before the recording begins. A command that is recorded already runs in this
        time.

        Raises:
            PyprofError: The command ended before the recording began.
        """
        delay, command = self._when.delay, self._command
        if delay is None:
            return
        if command:
            command.release()
        wait(delay, lambda: command is not None and command.poll() is not None)
        if command and command.poll() is not None:
            raise PyprofError(f"the command ended within the {delay:g} s of --delay: nothing was recorded")

    def _taken(self, number: int) -> None:
        """Handle a signal that `pyprof record` has received."""
        if number != signal.SIGUSR1:
            self._end(number)
        elif self._flight is not None and self._recording is not None and self._recording.has_begun:
            self._flight.write_out("SIGUSR1")
        else:
            self._is_write_out_due = True

    def _end(self, number: int) -> None:
        """End the recording at the user's request. A second request leaves little time for writing.

        The terminal sends Ctrl-C to the recorded command too. A SIGTERM or SIGHUP that is meant for both is forwarded
        to the command.
        """
        from pyprof.cli.signal_thread import SAME_S

        again, self._ended_by = bool(self._ended_by), self._ended_by or number
        if self._command and number in (signal.SIGTERM, signal.SIGHUP):
            self._command.send_signal(number)
        if again and time.monotonic() < self._same_until:
            return
        recording = self._recording
        if recording is None:
            _exit(_NOT_BEGUN, 128 + number)
            return
        from pyprof.session.worker.deadline import EndUrgency

        recording.end(EndUrgency.IMMEDIATE if again else EndUrgency.PROMPT)
        self._same_until = time.monotonic() + SAME_S
        if not again:
            return

        from pyprof.session.shutdown_watchdog import GrantedTime

        clock, until = GrantedTime(recording.waits), time.monotonic() + self._slow * _MAX_SECOND_S
        while not self._over.wait(_LOOK_S):
            if clock.seconds() > self._slow * SECOND_S or time.monotonic() > until:
                recording.end(EndUrgency.ABANDON)
                _exit("ended at the second request: what was not written yet is lost")

    @property
    def _leave_s(self) -> float:
        from pyprof.session.shutdown_watchdog import LEAVE_S, STUB_S

        return STUB_S if self._how.target == "stub" else LEAVE_S

    def _left(self, written: bool) -> None:
        """Exit this process with a message about what is lost, because the recording loop did not end in time.
        `written` says whether the worker process has written its data.
        """
        recording = self._recording
        if recording is not None and not recording.has_begun:
            if self._flight is not None:
                self._flight.discard()
            _exit(_NOT_BEGUN, 128 + (self._ended_by or signal.SIGTERM))
        from pyprof.session.shutdown_watchdog import EndFailure

        lost = "what came after the last samples that were read" if written else "the recording"
        why = "a read of the target's memory or files did not return"
        if recording is not None and recording.end_failure is EndFailure.SLOW:
            why = "the last samples could not be read in time (too many processes, or the machine is too busy)"
        _exit(f"{why}: {lost} is lost")

    def _record(self, recording: Recording) -> int:
        subject = recording.subject
        sink = WindowWriter(self._how, subject, self._options)
        shared = self._command is not None and one_terminal()  # the command's output and prompts stay intact
        progress = Progress(subject.title, self._how.quiet or shared, self._options.duration)
        flight = self._delivered(recording, sink)
        if flight or sink.kept or progress.is_shown:
            recording.deliveries.flush_every(_OFTEN_S)

        def begun() -> None:
            sink.say(f"pyprof: recording {printable(subject.title)}{self._how_long}")
            progress.begin()

        def beat() -> None:
            if recording.has_begun:
                progress.update(recording.stats, recording.samples)
            if flight is not None:
                flight.beat()
                if self._is_write_out_due and recording.samples:
                    self._is_write_out_due = False
                    flight.write_out("SIGUSR1")

        recording.watch(self._left, self._leave_s, self._slow)
        recording.run(beat, begun)
        progress.clear()
        if self._ended_by and not recording.has_begun:
            return self._not_begun(recording, flight, sink, progress)
        if not (recording.asked_to_end or self._command or recording.failure):
            sink.say("pyprof: the target has ended")
        failures: list[BaseException] = []
        is_empty = not (recording.samples or recording.deliveries.count or sink.is_of_locks)
        try:
            recording.deliveries.rest(flight.at_end if flight is not None else sink)
        except Exception as error:  # noqa: BLE001 - reported after all windows are written
            failures.append(error)
        failures += [*recording.deliveries.failures(), *([recording.failure] if recording.failure else [])]
        recording.close(ends_command=False)
        self._over.set()
        for each in dict.fromkeys(failures):
            if not isinstance(each, OutputError):  # the sink has reported these
                failure(each, subject.pid)
        if flight is not None and flight.left:
            sink.say(f"pyprof: what was kept is in {flight.left}: pyprof merge reads it")
        code = int(bool(failures))
        return (
            int(is_empty) or code
            if self._command is None
            else self._waited_for(self._command, recording, sink, progress) or code
        )

    @property
    def _how_long(self) -> str:
        """Part of the message at the start of a recording that says how long it lasts, or how to end it."""
        if self._when.last_s:
            return f"; kill -USR1 {os.getpid()} writes the last part, Ctrl-C to finish"
        lasts = "until it ends" if self._command else ""
        lasts = f"{self._options.duration:g} s" if self._options.duration else lasts
        return f", {lasts}; Ctrl-C to finish" if lasts else "; Ctrl-C to finish"

    def _not_begun(self, recording: Recording, flight: Flight | None, sink: WindowWriter, progress: Progress) -> int:
        """End a recording that a signal stopped before samples were taken, and return the exit code."""
        recording.close(ends_command=False)
        if flight is not None:
            flight.discard()
        self._over.set()
        complain(_NOT_BEGUN)
        code = 128 + self._ended_by
        return code if self._command is None else self._waited_for(self._command, recording, sink, progress) or code

    def _delivered(self, recording: Recording, sink: WindowWriter) -> Flight | None:
        """Choose the sink that receives each window of the recording: the output files, or a flight recorder. Return
        the flight recorder, None if there is none.
        """
        if self._when.last_s:
            self._flight = Flight(self._when, recording, sink, self._how.output, sink.say)
        else:
            recording.deliveries.inherit(sink)
        if self._when.every:
            recording.deliveries.every(self._when.every, sink)
        return self._flight

    def _waited_for(
        self, command: LaunchedCommand, recording: Recording, sink: WindowWriter, progress: Progress
    ) -> int:
        """Wait for the recorded command to end, and return its exit code."""
        if command.poll() is None:
            sink.say(
                f"pyprof: {printable(recording.subject.name)} is still running; waiting for it to end (Ctrl-C ends it)"
            )
            progress.wait(lambda: recording.returncode is not None)
        return command.wait()


_GLANCE_S = 0.1


@dataclass
class Progress:
    """A live progress line on a terminal. Nothing is printed if standard error is not a terminal, or with -q.

    Attributes:
        duration_s: Length of the recording in seconds, None if it is not known.
    """

    title: str
    quiet: bool
    duration_s: float | None = None
    interval_s: float = 0.25
    _start: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _shown: bool = False

    @property
    def is_shown(self) -> bool:
        return not self.quiet and sys.stderr.isatty()

    def begin(self) -> None:
        """Restart the clock of the progress line."""
        self._start = time.monotonic()

    def update(self, stats: Callable[[], CollectorStats], samples: int) -> None:
        """Draw the progress line if it is due. The function `stats` is called only then."""
        now = time.monotonic()
        if now < self._next or not self.is_shown:
            return
        self._next = now + self.interval_s
        self._show(self.line(now - self._start, stats(), samples, columns() - 1))

    def line(self, elapsed_s: float, stats: CollectorStats, samples: int, width: int) -> str:
        """Format the progress line in at most `width` characters. Parts that do not fit are left out."""
        left = ""
        if self.duration_s is not None:
            left = f", {max(self.duration_s - elapsed_s, 0):.0f} s left"
        parts = [f"{elapsed_s:.0f} s{left}", many(samples, "sample")]
        if self.duration_s is None:
            parts.append("Ctrl-C to finish")
        if len(stats.pauses):
            parts.append(f"stops of {stats.pauses.percentile_ns(50) / 1000:.0f} µs")
        text = shorten(printable(self.title), max(width - len(parts[0]) - 2, 8))
        for part in parts:
            if len(text) + 2 + len(part) <= width:
                text += f"  {part}"
        return text[:width]

    def wait(self, ended: Callable[[], bool]) -> None:
        """Wait until the recorded command has ended, and show that in the progress line. Without a terminal, return at
        once.
        """
        start = time.monotonic()
        while not self.quiet and sys.stderr.isatty() and not ended():
            self._show(f"{printable(self.title)}  waiting for it to end, {time.monotonic() - start:.0f} s")
            time.sleep(_GLANCE_S)
        self.clear()

    def _show(self, text: str) -> None:
        """Replace the progress line on the terminal."""
        width = columns() - 1
        try:
            sys.stderr.write("\r\x1b[K" + shorten(text, width))
            sys.stderr.flush()
        except OSError:  # the terminal was closed
            self.quiet = True
        self._shown = not self.quiet

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
