"""Recordings on request: a client of the agent's control socket names a service, a length in seconds and a rate.

Such a recording runs in addition to the recordings of the windows, which continue unchanged. The client receives the
windows of the last minutes, the unfinished window as it was when the recording began, and the recording. The client
merges them (agent_record.py), which costs the agent nothing.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pyprof.collector_control import Stride
from pyprof.errors import PyprofError
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.agent.config import Values
from pyprof.fleet.agent.control_socket import ASKED, KEPT, ControlClient, ControlRefused, ControlRequest
from pyprof.fleet.agent.last_minutes import LastMinutes
from pyprof.fleet.agent.process_group_recording import FLUSH_S, IS_CONFINED, SampledGroup
from pyprof.fleet.agent.process_rules import SamplingChoice
from pyprof.fleet.agent.process_table import ProcessTable, selected
from pyprof.fleet.agent.windows import labelled
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.profile import Profile
from pyprof.objfile.byte_source import open_regular
from pyprof.options import RecordOptions
from pyprof.session import recording_factory
from pyprof.session.recording import Recording

MAX_AT_ONCE = 2
_LOOK_S = 0.05
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class RecordedNow:
    """The agent's configuration and recordings at one moment, for a request for a recording. When the configuration is
    reloaded, a new object replaces it.
    """

    values: Values
    table: ProcessTable
    groups: Sequence[SampledGroup]


class OnDemand:
    """The handler of clients' requests for a separate recording of a service, for example at a higher rate.

    Attributes:
        under_way: Number of requests that are being served.
    """

    def __init__(self, now: Callable[[], RecordedNow], kept: LastMinutes) -> None:
        """Create the agent's handler of requested recordings.

        Args:
            now: Function that returns what the agent records.
            kept: The windows of the last minutes.
        """
        self._now, self._kept = now, kept
        self._room = threading.Semaphore(MAX_AT_ONCE)
        self._ending = threading.Event()
        self._recordings: set[Recording] = set()
        self.under_way = 0

    def end(self) -> None:
        """End all requested recordings early, without waiting; clients get what was recorded until then."""
        self._ending.set()
        for recording in tuple(self._recordings):
            recording.end()

    def answer(self, request: ControlRequest, asker: ControlClient) -> None:
        """Serve the request of a client for a recording.

        Raises:
            ControlRefused: The request cannot be served.
            OSError: The client has disconnected.
        """
        if self._ending.is_set():
            raise ControlRefused("ask_agent_ends")
        if not self._room.acquire(blocking=False):
            raise ControlRefused("ask_busy")
        self.under_way += 1
        try:
            self._answer(request, asker)
        finally:
            self.under_way -= 1
            self._room.release()

    def _answer(self, request: ControlRequest, asker: ControlClient) -> None:
        now = self._now()
        choice = choice_of(now.table, request)
        try:
            selection = selected(lambda: now.table.of_service(request.service))
            if selection is None:
                raise ControlRefused("ask_failed", f"no process of {request.service} may be sampled")
            options = _options(now.values, choice, request)
            with recording_factory.of_selection(selection, options, request.service, FLUSH_S, Stride()) as recording:
                recording.start()
                self._recordings.add(recording)
                try:
                    asker.say(recording=len(selection.pids), mode=choice.mode, last_s=self._kept.last_s)
                    before = [_file(labelled(part, now.table.verdict)) for part in _under_way(now.groups, choice)]
                    self._wait(recording, asker)
                finally:
                    self._recordings.discard(recording)
                if asker.is_gone():
                    return
                profile = recording.stop()
            if recording.failure is not None:
                raise recording.failure
        except PyprofError as error:
            raise error if isinstance(error, ControlRefused) else ControlRefused("ask_failed", error.message) from error
        self._send(before, _file(labelled(profile, now.table.verdict)), asker)

    def _wait(self, recording: Recording, asker: ControlClient) -> None:
        while recording.running and not self._ending.is_set() and asker.wants_more(_LOOK_S):
            pass

    def _send(self, before: Iterable[bytes], asked: bytes, asker: ControlClient) -> None:
        for data in before:
            asker.send(KEPT, data)
        for path in self._kept.files():
            # the file became too old meanwhile
            with suppress(FileNotFoundError), open(open_regular(path), "rb") as file:
                asker.send(KEPT, file.read())
        asker.send(ASKED, asked)
        asker.say(done=1)


def _file(profile: Profile) -> bytes:
    """Return a profile as the bytes of a recording file."""
    from pyprof.recording.writer import write

    out = io.BytesIO()
    write(profile, out, ExportOptions())
    return out.getvalue()


def choice_of(table: ProcessTable, request: ControlRequest) -> SamplingChoice:
    """Return the way in which the agent samples the processes of a service.

    Raises:
        ControlRefused: No process of the service is recorded.
    """
    table.find_processes()
    choices = dict.fromkeys(
        choice for seen in table.of_service(request.service).values() for choice in seen.verdict.samplings
    )
    if not choices:
        known = sorted({seen.verdict.service for seen in table.by_pid.values() if seen.verdict.samplings})
        shown = f"{', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}" or "none"
        raise ControlRefused("ask_no_service", f"no process of {request.service} is recorded; services are: {shown}")
    found = next((choice for choice in choices if request.mode in ("", choice.mode)), None)
    if found is None:
        modes = ", ".join(dict.fromkeys(choice.mode for choice in choices))
        raise ControlRefused("ask_no_service", f"{request.service} is recorded in the mode {modes}")
    return found


def _options(values: Values, choice: SamplingChoice, request: ControlRequest) -> RecordOptions:
    return RecordOptions(
        rate=request.rate,
        mode=choice.mode,
        native=choice.python,
        collector=values.collector,
        max_overhead=values.max_stopped / 100,
        duration=request.seconds,
        sandbox=IS_CONFINED,
    )


def _under_way(groups: Sequence[SampledGroup], choice: SamplingChoice) -> Iterable[Profile]:
    """Yield the unfinished windows of the agent's recordings that sample in the given way."""
    for group in groups:
        if group.sampling.mode == choice.mode:
            with suppress(PyprofError):  # the window has just ended
                if (profile := group.so_far()) is not None:
                    yield profile
