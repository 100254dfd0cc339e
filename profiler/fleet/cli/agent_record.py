"""`pyprof agent record`: request the last minutes of a service and a recording at a higher rate from a running
agent.

The client merges the last minutes and the requested recording into one profile.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from pyprof.cli.arguments import chosen_format
from pyprof.cli.output_files import Names, check_writable, write
from pyprof.cli.signal_thread import listen
from pyprof.cli.terminal_output import complain, line, printable
from pyprof.errors import FormatError, PyprofError, RecordingError, UsageError
from pyprof.exporters import output_file, registry
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.agent.control_socket import (
    ASKED,
    KEPT,
    RECORDING,
    ControlRequest,
    ControlResponse,
    answers,
    connected,
)
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.merge import merge
from pyprof.model.analysis.sample_filter import of_threads, selected
from pyprof.model.profile import Profile

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def joined(kept: Sequence[Profile], asked: Profile, service: str, last_s: float) -> Profile:
    """Merge the stored windows of a service and its requested recording into one profile.

    Samples of windows count only if they belong to the service and were taken in the last `last_s` seconds before the
    requested recording began.

    Args:
        kept: Windows of all services. A window may be present twice: unfinished, and finished.
        asked: The requested recording.

    Raises:
        UsageError: The profiles cannot be merged.
    """
    windows: dict[int, Profile] = {}
    for profile in sorted(kept, key=lambda each: each.duration_ns):
        if profile.value_types == asked.value_types:
            windows[profile.start_ns] = profile  # the longest one
    parts = [asked, *_parts(windows.values(), service, asked.start_ns - round(last_s * 1e9), asked.start_ns)]
    starts: dict[tuple[int, int], list[int]] = {}
    return replace(merge([_same_threads(part, starts) for part in parts]), title=service)


def _same_threads(profile: Profile, starts: dict[tuple[int, int], list[int]]) -> Profile:
    """Give threads of several recordings equal start times, so that they count as one.

    Each recording reads a thread's start time with limited accuracy (model/thread_identity.py); times within a tick are
    equal.

    Args:
        starts: Start times of the threads of earlier recordings, by pid and tid. Those of this recording are added.
    """

    def start(pid: int, tid: int, started: int) -> int:
        known = starts.setdefault((pid, tid), [])
        found = next((each for each in known if abs(each - started) <= _TICK_NS), None)
        if found is None:
            known.append(started)
        return started if found is None else found

    threads = [
        replace(
            each,
            started=start(each.pid, each.tid, each.started),
            process_started=start(each.pid, each.pid, each.process_started),
        )
        for each in profile.threads
    ]
    return replace(profile, threads=tuple(threads))


def _parts(windows: Iterable[Profile], service: str, first: int, last: int) -> Iterator[Profile]:
    for profile in windows:
        start, end = max(profile.start_ns, first), min(profile.start_ns + profile.duration_ns, last)
        if start < end:
            mine = of_threads(profile, lambda thread: ("service", service) in thread.labels)
            within = (profile.time_ns >= start) & (profile.time_ns < end)
            yield replace(selected(profile, mine & within), start_ns=start, duration_ns=end - start)


_PATIENCE_S = 60.0
"""Maximum silence of the agent in seconds, beyond the length of the requested recording. The agent may have to open
files for the first time.
"""
_LEAVE_S = 0.15
"""Time in seconds that the command waits for the rest of the agent's answer after the user gave up. A file may never
arrive.
"""
_GIVEN_UP = 130
_MAX_ROWS = 1 << 24
"""Maximum total number of samples, stack nodes and frames in all recordings of an agent's answer. Even a small file may
have a million samples.
"""


class _Interrupted(PyprofError):
    exit_code = _GIVEN_UP


def record(arguments: argparse.Namespace, root: str) -> int:
    """Run the command `pyprof agent record`.

    Args:
        root: Folder of the agent's spool.
    """
    if not arguments.service:
        raise UsageError("no service is named", "use --service NAME; pyprof agent status lists the services")
    request = ControlRequest(arguments.service, arguments.duration, arguments.rate, arguments.mode)
    template = arguments.output or "pyprof-%n-%t.pyprof"
    output = Names(0, request.service, time.time(), 0).expand(template)
    exporter = chosen_format(arguments.format, output)
    check_writable(output)
    profile = _AgentRequest(request).profile(root)
    place = write(output, lambda out: exporter.write(profile, out, ExportOptions(evidence=True)))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    if place != "-":
        line(f"pyprof: wrote {place}", sys.stderr)
    return 0


class _AgentRequest:
    """A request to a running agent for a recording."""

    def __init__(self, request: ControlRequest) -> None:
        self._request = request
        self._interrupts = 0
        self._given_up = False
        self._folder = ""

    def profile(self, root: str) -> Profile:
        """Send the request to the agent and return the merged profile.

        Raises:
            PyprofError: The agent refused the request, or its answer is wrong.
        """
        with connected(root) as connection, tempfile.TemporaryDirectory(prefix="pyprof-") as self._folder:
            listen(lambda number: self._interrupted(connection, number))
            connection.settimeout(self._request.seconds + _PATIENCE_S)
            with suppress(BrokenPipeError):  # the agent may refuse the connection before it reads the request
                connection.sendall(self._request.line())
            try:
                with connection.makefile("rb") as lines:
                    return self._joined(answers(lines.readline, lines.read))
            except FormatError as error:
                if self._given_up:
                    raise _Interrupted("interrupted, nothing was written") from None
                raise PyprofError(error.problem, "read the agent's log") from None

    def _joined(self, found: Iterator[ControlResponse]) -> Profile:
        kept: list[Profile] = []
        asked, last_s, rows = None, 0.0, 0
        for answer in found:
            if answer.kind == RECORDING:
                last_s = self._begun(answer)
            elif answer.kind == ASKED:
                asked = _loaded(answer.data, self._folder)
            elif answer.kind == KEPT:
                with suppress(RecordingError):  # a disk error costs only one window
                    kept.append(_loaded(answer.data, self._folder))
                    rows += len(kept[-1].stack) + len(kept[-1].parent) + len(kept[-1].frames)
                    if rows > _MAX_ROWS:
                        raise PyprofError("the agent's recording has too many samples", "set a smaller record.last")
        if asked is None:
            raise PyprofError("the agent sent no recording")
        return joined(kept, asked, self._request.service, last_s)

    def _begun(self, answer: ControlResponse) -> float:
        """Tell the user that the requested recording has begun. Return the length of the time before it, in seconds,
        whose stored windows the agent will send.
        """
        request, last_s = self._request, answer.fields.get("last_s")
        processes = f"{answer.number:,} process{'es' * (answer.number != 1)}"
        what = f"{printable(request.service)}, {processes}, for {request.seconds:g} s at {request.rate:g} Hz"
        line(f"pyprof: the agent records {what} (Ctrl-C ends it)", sys.stderr)
        return float(last_s) if isinstance(last_s, int | float) and 0 <= last_s < 1e9 else 0.0

    def _interrupted(self, connection: socket.socket, number: int) -> None:
        """Handle a signal during a request to the agent. The first SIGINT ends the recording early; any other signal
        gives up the request.
        """
        self._interrupts += 1
        self._given_up = self._interrupts > 1 or number != signal.SIGINT
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR if self._given_up else socket.SHUT_WR)
        if self._given_up:
            timer = threading.Timer(_LEAVE_S, self._leave)
            timer.daemon = True
            timer.start()

    def _leave(self) -> None:
        """Exit the command at once, without waiting for the main thread, which may be blocked."""
        shutil.rmtree(self._folder, ignore_errors=True)
        complain("interrupted, nothing was written")
        os._exit(_GIVEN_UP)


def _loaded(data: bytes, folder: str) -> Profile:
    """Load a recording from the agent's answer.

    Raises:
        RecordingError: The recording is broken.
    """
    from pyprof.recording.reader import load_recording

    path = os.path.join(folder, "part.pyprof")

    def write_all(out: BinaryIO) -> None:
        out.write(data)

    output_file.replace_file(path, write_all)
    return load_recording(path)
