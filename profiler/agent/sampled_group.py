"""One collector of the agent: the recording of the processes that are sampled alike, and its windows."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyprof.agent.clock import WindowClock
from pyprof.agent.exact_sums import with_exact_sums
from pyprof.agent.process_clocks import ProcessClocks, ProcessTime
from pyprof.agent.processes import ProcessTable
from pyprof.agent.selecting import selected
from pyprof.agent.settings import SamplingChoice, Values
from pyprof.errors import PyprofError
from pyprof.handover import Stride
from pyprof.model.profile import Profile
from pyprof.options import RecordOptions
from pyprof.session import opening
from pyprof.session.recording import Recording
from pyprof.session.worker.channel import Part

_AGAIN_S = 30.0
"""After a collector that failed."""
_NAMES_S = 0.8
"""When all ends: for names that are not known by then, also if they wait for a processor."""
FLUSH_S = 1.0
"""As CollectOptions: samples wait for others until they are saved, about."""
_OF_DURABLE = 0.87
"""What is sampled is saved after such a part of windows.durable at most: the rest is for naming and writing it."""
_SOON_S = 0.001
_LOOK_S = 0.02
_READ_BEFORE_S = 0.02
"""The clocks of processes are read about this long before a window ends."""


class SampledGroup:
    """took: is given each window and its key, in a thread of this lane. save: before that its parts, see
    Recording.packed_part(). failed: what ended a recording, or kept it from beginning. left: is set where one was told
    to end and did not: a page of a target's memory holds it.

    tend(), close() and finish() are for one thread, the agent's.
    """

    def __init__(
        self,
        sampling: SamplingChoice,
        values: Values,
        table: ProcessTable,
        clock: WindowClock,
        stride: Stride,
        took: Callable[[SamplingChoice, Profile, str], None],
        save: Callable[[SamplingChoice, Sequence[Part], str], None],
        failed: Callable[[SamplingChoice, BaseException], None],
    ) -> None:
        self.sampling = sampling
        self._options = RecordOptions(
            rate=sampling.rate,
            mode=sampling.mode,
            native=sampling.python,
            collector=values.collector,
            max_overhead=values.max_stopped / 100,
        )
        self._table, self._clock, self._stride = table, clock, stride
        self._took, self._save_part, self._failed = took, save, failed
        self._saved_every_s = _OF_DURABLE * values.durable
        self.left = threading.Event()
        self._is_ending = False
        self._recording: Recording | None = None
        self._thread: threading.Thread | None = None
        self._known: frozenset[tuple[int, int]] = frozenset()
        self._not_before = 0.0
        self._clocks = ProcessClocks() if sampling.mode == "cpu" else None
        self._times: deque[list[ProcessTime]] = deque()
        self._window_ns = 0

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def tend(self) -> None:
        """Begin to record where there is something to record and nobody does. What is new is recorded from now on."""
        if self.running:
            self._find_new()
        elif time.monotonic() >= self._not_before:
            self._begin()

    def _find_new(self) -> None:
        """The collector looks for itself with each batch, which is too late for a process that is new."""
        found = self._table.chosen(self.sampling)
        if self._recording is not None:
            if not found <= self._known:
                self._recording.look_around()
            self._known = found
            if self._clocks is not None and self._recording.span_ns[0]:
                self._clocks.poll(self._table.matching(self.sampling))

    def _begin(self) -> None:
        """In a thread of its own: to open thousands of processes takes seconds, in which the agent may be ended."""
        self._release()
        self._not_before = time.monotonic() + _AGAIN_S
        self._is_ending = False
        self.left.clear()
        self._thread = threading.Thread(target=self._live, name="pyprof windows", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            selection = selected(lambda: self._table.now_recorded(self.sampling))
            if selection is None:
                self._not_before = 0.0
                return
            self._recording = opening.of_selection(selection, self._options, "agent", FLUSH_S, self._stride)
        except (PyprofError, OSError) as error:  # no room for a process, or too many files: that passes
            self._failed(self.sampling, error)
            return
        recording = self._recording
        if self._is_ending:  # nothing was recorded
            self._recording = None
            recording.close()
            return
        recording.watch(lambda _: self.left.set())
        if self._clocks is not None:
            self._clocks.begin(self._table.matching(self.sampling))
        self._times.clear()
        self._window_ns = 0
        recording.on_cut = partial(self._end_window, recording)
        recording.start()
        self._windows(recording)

    def _windows(self, recording: Recording) -> None:
        try:
            last: Profile | None = None
            while recording.running:
                ends, window = time.monotonic() + self._clock.left(time.time()), uuid.uuid4().hex
                self._save(recording, ends, window)
                recording.wait(max(ends - time.monotonic() - _READ_BEFORE_S, 0.0))
                self._read_clocks()
                last = next(recording.windows(max(ends - time.monotonic(), _SOON_S)), None)
                if last is not None:
                    self._took(self.sampling, self._exact(recording, last), window)
            rest = recording.stop()
            if rest is not last and rest.duration_ns:
                self._took(self.sampling, self._exact(recording, rest), "")
            if recording.failure is not None:
                raise recording.failure
        except BaseException as error:
            self._failed(self.sampling, error)

    def _save(self, recording: Recording, ends: float, window: str) -> None:
        """Part by part, as few as can be and all of one length, until the last one before the window's end (monotonic),
        or the recording's: each costs about the same, however much there is in it.
        """
        began = time.monotonic()
        count = math.ceil((ends - began) / self._saved_every_s)
        for nth in range(1, count):
            due = began + (ends - began) * nth / count
            if recording.wait(max(due - time.monotonic(), 0.0)):
                return
            if (part := recording.packed_part()) is not None:
                self._save_part(self.sampling, part, window)

    @property
    def recent_ns(self) -> Mapping[tuple[int, int], int]:
        """Processor time of processes in the last window, by pid and start, where it is read."""
        return self._clocks.recent_ns if self._clocks is not None else {}

    def _read_clocks(self) -> None:
        """Read the clocks of processes, for a window ends about now: its end is interpolated from this reading on."""
        if self._clocks is not None:
            self._clocks.read_near_end(self._table.matching(self.sampling))

    def _end_window(self, recording: Recording) -> None:
        """Compute how long each process was on processors in a window that has just been closed."""
        if self._clocks is not None:
            begun_ns, until_ns = recording.span_ns
            processes = self._table.matching(self.sampling)
            self._times.append(self._clocks.end_window(processes, self._window_ns or begun_ns, until_ns))
            self._window_ns = until_ns

    def _exact(self, recording: Recording, profile: Profile) -> Profile:
        """Return a window with the sums of the oldest one that has not got them yet."""
        if self._clocks is None:
            return profile
        if not self._times:  # the last one of the recording
            self._end_window(recording)
        return with_exact_sums(profile, self._times.popleft())

    def so_far(self) -> Profile | None:
        """Of the window under way. From any thread. Raises PyprofError where it ends just now."""
        recording = self._recording
        return recording.peek() if recording is not None and self.running else None

    def begin_anew(self) -> None:
        """Fewer processes are to be recorded: a collector does not let go of one that runs. Does not wait."""
        self._not_before = 0.0
        self.end()

    def end(self) -> None:
        """Does not wait."""
        is_first, self._is_ending = not self._is_ending, True
        if self._recording is not None:
            self._recording.end()
            if is_first:
                self._read_clocks()

    def close(self) -> None:
        """End, wait until the last window was taken, and release what is held."""
        self.finish()
        self._release()

    def finish(self) -> None:
        """The same where this process ends next: what it holds ends with it. One that is left is not waited for, and
        one that has not begun not for long.
        """
        self.end()
        until = time.monotonic() + _NAMES_S
        while self.running and not self.left.is_set() and self._thread is not None:
            self._thread.join(_LOOK_S)
            if time.monotonic() > until:
                if self._recording is None:
                    break
                self._recording.hasten()
                until = math.inf

    def _release(self) -> None:
        if self._recording is not None and not self.left.is_set():
            self._recording.close()
        self._recording = self._thread = None
