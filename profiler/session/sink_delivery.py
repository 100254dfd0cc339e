"""Delivery of a recording's profiles to a Sink. The sink is pickled and called in another process, the file broker."""

from __future__ import annotations

import time
from collections import deque

from pyprof.collector_control import FlushProtocol
from pyprof.errors import PyprofError
from pyprof.exporters.base import Sink
from pyprof.lazy_dataclasses import dataclass
from pyprof.session.worker.file_broker_client import BROKER_GONE, BROKER_HINT
from pyprof.session.worker.messages import Extent
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_client import Pending


@dataclass(slots=True)
class _Windows:
    """The sink that receives closed windows at a regular interval, and the monotonic time at which the current window
    ends; 0 before the recording has begun.
    """

    every_ns: int
    sink: Sink
    due_ns: int = 0


@dataclass(slots=True)
class _Delivery:
    """A request to the worker to give one window to a sink."""

    pending: Pending
    sink: Sink
    number: int


class Deliveries:
    """The deliveries of one recording's windows to sinks.

    The caller uses every() and inherit() before the recording runs, and rest() and failures() after that.
    """

    def __init__(self, sampling: Sampling, handover: FlushProtocol) -> None:
        """Create the delivery of a recording's windows to sinks. No sink is set yet.

        Args:
            sampling: The recording.
            handover: Flush protocol with the collector.
        """
        self._handover = handover
        self._sampling: Sampling | None = sampling
        self._windows: _Windows | None = None
        self._wanted: deque[tuple[int, Sink]] = deque()
        self._pending: list[_Delivery] = []
        self._failed: list[Exception] = []
        self._count = 0
        self._is_broker_missed = False

    def every(self, seconds: float, sink: Sink) -> None:
        """Deliver a profile of the recording to a sink at this interval.

        The last window is not included: Recording.stop() returns it, or rest() delivers it.

        Args:
            seconds: Length of the interval.
            sink: Receives the profiles.
        """
        self._windows = _Windows(round(seconds * 1e9), sink)

    def flush_every(self, seconds: float) -> None:
        """Flush samples at least this often (in seconds), because a viewer or a journal reads the current window."""
        self._handover.flush_every(round(seconds * 1e9))

    def inherit(self, sink: Sink) -> None:
        """Set the sink that receives the current window if this process is killed."""
        self._open.sink = sink

    def write_out(self, sink: Sink) -> None:
        """Close the current window soon and give it to the sink. May be called from any thread."""
        at_ns = time.monotonic_ns()
        self._wanted.append((at_ns, sink))
        self._handover.request_flush(at_ns)

    def rest(self, sink: Sink) -> None:
        """Deliver the last profile of the recording to a sink, in place of Recording.stop(), which would return it.

        Raises:
            WorkerDied: The worker has ended.
            Exception: What the sink raises.
        """
        self._finish(self._ask(sink))

    @property
    def count(self) -> int:
        """The number of windows that were given to a sink."""
        return self._sampling.delivered if self._sampling else self._count

    def failures(self) -> list[Exception]:
        """Wait for all deliveries of windows, and return the exceptions that sinks raised."""
        self._collect(wait=True)
        return self._failed

    def send_due(self) -> None:
        """Start the deliveries of windows that are due. Only for the recording's loop, between two batches."""
        while self._wanted and self._handover.is_ready(self._wanted[0][0]):
            self._send(self._wanted.popleft()[1])
        windows = self._windows
        if windows and self._handover.is_ready(windows.due_ns):
            if windows.due_ns and not self._handover.is_end_near(windows.due_ns, windows.every_ns):
                self._send(windows.sink)
            windows.due_ns = (windows.due_ns or self._handover.begun_ns) + windows.every_ns
            self._handover.request_flush(windows.due_ns)

    def _send(self, sink: Sink) -> None:
        self._collect(wait=False)
        self._pending.append(self._ask(sink))

    def _ask(self, sink: Sink) -> _Delivery:
        number = self._open.delivered
        return _Delivery(self._open.ask(Extent.CUT, sink), sink, number)

    def _finish(self, delivery: _Delivery) -> None:
        """Wait until a sink has received its window. If the file broker was killed, give the sink the profile in this
        process. This raises the same errors as rest().
        """
        if not delivery.pending.packed():
            return
        delivery.sink.receive_profile(delivery.pending.profile(), delivery.number)
        if not self._is_broker_missed:
            self._is_broker_missed = True
            raise PyprofError(
                f"{BROKER_GONE}: what was recorded is written without it, some names may be missing", BROKER_HINT
            )

    def close(self) -> None:
        """Release the recording whose windows were delivered. `count` stays valid. This may be called twice."""
        self._count, self._sampling, self._pending = self.count, None, []

    @property
    def _open(self) -> Sampling:
        assert self._sampling is not None, "the recording is closed"
        return self._sampling

    def _collect(self, wait: bool) -> None:
        ended = [each for each in self._pending if wait or each.pending.done]
        self._pending = [each for each in self._pending if each not in ended]
        for each in ended:
            try:
                self._finish(each)
            except Exception as error:  # noqa: BLE001 - reported with the other failures
                self._failed.append(error)
