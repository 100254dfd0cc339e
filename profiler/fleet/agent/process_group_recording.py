"""One collector of the agent: the recording of the processes that are sampled in the same way, and its windows."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyprof.collector_control import Stride
from pyprof.collectors.bpf.process_ends import ProcessEnd
from pyprof.errors import PyprofError
from pyprof.fleet.agent.config import Values
from pyprof.fleet.agent.process_rules import SamplingChoice
from pyprof.fleet.agent.process_table import ProcessTable, RuleSelection, selected
from pyprof.fleet.agent.scale_to_cpu_time import ProcessClocks, ProcessTime, summed_times, with_exact_sums
from pyprof.fleet.agent.windows import WindowClock, WindowPart, extended
from pyprof.model.profile import Profile
from pyprof.options import RecordOptions
from pyprof.session import recording_factory
from pyprof.session.recording import Recording
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.message_channel import Part

IS_CONFINED = False
"""True if recordings of an agent confine their worker process in a sandbox. A worker without rights could not leave
SCHED_IDLE (process_priority.py).
"""
_AGAIN_S = 30.0
"""Time in seconds before a failed collector of the agent starts again."""
_NAMES_S = 0.8
"""Time in seconds that an ending agent spends on resolving names, including time spent waiting for a processor."""
FLUSH_S = 1.0
"""Approximate time in seconds that samples wait in buffers until they are saved (CollectOptions)."""
_OF_DURABLE = 0.87
"""Interval at which an unfinished window is saved, as a fraction of the setting windows.durable. The rest of that time
is for looking up names and writing.
"""
_SOON_S = 0.001
_LOOK_S = 0.02
_MAX_GAP_NS = 60_000_000_000
"""Maximum time between two recordings, in nanoseconds, for the first window of the second one to begin where the first
recording ended.
"""
_MAX_RENEWAL_DELAY_S = 60.0
"""Maximum time in seconds that a change of the recorded processes waits for the end of the window."""
_READ_BEFORE_S = 0.02
"""Time in seconds before the end of a window at which the processor clocks of processes are read."""


class SampledGroup:
    """A recording of the agent, and the recordings that replace it later. It samples all processes for which the rules
    choose the same way of sampling, and divides the time into windows. Only the agent's thread calls tend(), close()
    and finish().

    Attributes:
        left: Set if a recording did not end in time, because a memory page of a target blocks it.
        starts: Number of recordings that were started.
        when_idle: Function that is called each time that there is no process to record.
        before_reading: Function that is called before the processor clocks of a window, or a part of it, are summed.
    """

    def __init__(
        self,
        sampling: SamplingChoice,
        values: Values,
        table: ProcessTable,
        clock: WindowClock,
        stride: Stride,
        took: Callable[[SamplingChoice, Profile, str], None],
        save: Callable[[SamplingChoice, WindowPart, str], bool],
        failed: Callable[[SamplingChoice, BaseException, str], None],
    ) -> None:
        """Create the recording of the processes that are sampled in the same way. tend() starts it.

        Args:
            stride: N if only every Nth sampling time is used, to keep the budget.
            took: Function that receives each finished window and its key. A thread of this object calls it.
            save: Function that receives a part of an unfinished window, and returns True if it has stored the part.
            failed: Function that receives the error that ended a recording or prevented its start, and the key of the
                unfinished window, "" for none.
        """
        self.sampling = sampling
        self._options = RecordOptions(
            rate=sampling.rate,
            mode=sampling.mode,
            native=sampling.python,
            collector=values.collector,
            max_overhead=values.max_stopped / 100,
            sandbox=IS_CONFINED,
        )
        self._table, self._clock, self._stride = table, clock, stride
        self._took, self._save_part, self._failed = took, save, failed
        self._saved_every_s = _OF_DURABLE * values.durable
        self.left = threading.Event()
        self.starts = 0
        self.when_idle: Callable[[], None] = lambda: None
        self.before_reading: Callable[[], None] = lambda: None
        self._is_ending = self._renews = False
        self._window_ends_at = 0.0
        self._recording: Recording | None = None
        self._thread: threading.Thread | None = None
        self._known: frozenset[tuple[int, int]] = frozenset()
        self._not_before = 0.0
        self._clocks = ProcessClocks() if sampling.mode == "cpu" else None
        self._times: deque[list[ProcessTime]] = deque()
        self._window_ns = self._counted_ns = self._stored_ns = 0
        self._resumed_from_ns = self._unsampled_ns = 0
        self._carried: list[ProcessTime] = []
        self._stored: list[ProcessTime] = []
        self._unstored: list[ProcessTime] = []

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_opening(self) -> bool:
        """True while a recording attaches to its processes, or is about to be replaced by one that must attach.
        Attaching takes a minute on a machine with a load average of 40.
        """
        return self.running and (self._recording is None or self._renews)

    def tend(self) -> None:
        """Start the recording if it does not run, or let the running recording find new processes. The agent's main
        loop calls this.
        """
        if self.running:
            self._find_new()
        elif time.monotonic() >= self._not_before:
            self._begin()
        else:
            self._poll_clocks()

    def _find_new(self) -> None:
        """Let the recording search for new processes now. Otherwise its collector searches only when it delivers a
        batch.
        """
        found = self._table.chosen(self.sampling)
        if self._recording is not None:
            if not found <= self._known:
                self._recording.look_around()
            self._known = found
        self._poll_clocks()

    def _poll_clocks(self) -> None:
        if self._clocks is not None:
            self._clocks.poll(self._table.matching(self.sampling))

    def _begin(self) -> None:
        """Start the recording in a separate thread: attaching to thousands of processes takes seconds, and the agent
        must be able to end meanwhile.
        """
        self._release()
        self._not_before = time.monotonic() + _AGAIN_S
        self._is_ending = self._renews = False
        self.left.clear()
        self._thread = threading.Thread(target=self._live, name="pyprof windows", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            selection = selected(lambda: self._table.now_recorded(self.sampling))
            if selection is None:
                self._not_before = 0.0
                self.when_idle()
                return
            self._begin_clocks()
            recording = self._open(selection)
        except (PyprofError, OSError) as error:  # too many processes or open files, which is temporary
            self._failed(self.sampling, error, "")
            return
        self._recording = recording
        if self._is_ending:  # nothing was recorded
            self._recording = None
            recording.close()
            return
        self._start(recording)
        while (following := self._windows(recording)) is not None:
            recording = following

    def _open(self, selection: RuleSelection) -> Recording:
        """Attach a recording to processes, without starting to sample."""
        return recording_factory.of_selection(selection, self._options, "agent", FLUSH_S, self._stride)

    def _start(self, recording: Recording) -> None:
        recording.watch(lambda _: self.left.set(), is_awaited=False)
        recording.on_cut = partial(self._end_window, recording)
        recording.on_part = partial(self._end_part, recording)
        self.starts += 1
        recording.start()

    def _begin_clocks(self) -> None:
        """Start the sums of processor time for a new recording. They continue from the last sums in the spool, so that
        no time is lost if the worker was killed; if there are none, they start now.

        The recording then reads the files of all processes before its first sample, which takes seconds on a busy host.
        """
        if self._clocks is None:
            return
        self._times.clear()
        self._stored, self._carried = [], self._unstored
        processes = self._table.matching(self.sampling)
        if self._stored_ns and time.monotonic_ns() < self._stored_ns + _MAX_GAP_NS:
            self._resumed_from_ns, self._window_ns = self._stored_ns, self._counted_ns
            self._clocks.resume(processes)
        else:
            self._stored_ns, self._carried, self._unstored = 0, [], []
            self._clocks.begin(processes)
            self._window_ns = self._counted_ns = self._resumed_from_ns = time.monotonic_ns()

    def _windows(self, recording: Recording) -> Recording | None:
        """Deliver the windows of a recording until it ends.

        Returns:
            The recording of a new choice of processes that has replaced this one, None if there is none.
        """
        window = ""
        following: Recording | None = None
        try:
            last: Profile | None = None
            while recording.running:
                ends, window = time.monotonic() + self._clock.left(time.time()), uuid.uuid4().hex
                self._window_ends_at = ends
                self._save(recording, ends, window)
                if not self._is_renewal_urgent:
                    recording.wait(max(ends - time.monotonic() - _READ_BEFORE_S, 0.0))
                if self._renews:
                    following = self._open_following()
                self._read_clocks()
                if self._renews:
                    last = None
                    if following is not None:
                        self._replace(recording, following)
                    break
                last = next(recording.windows(max(ends - time.monotonic(), _SOON_S)), None)
                if last is not None:
                    self._deliver(recording, last, window)
            rest = recording.stop()
            if rest is not last and rest.duration_ns:
                self._deliver(recording, rest, "" if last is not None else window)
            if recording.failure is not None:
                raise recording.failure
        except BaseException as error:  # noqa: BLE001 - handed to the agent's own thread
            self._note_failure(recording)
            self._failed(self.sampling, error, window)
        if following is not None:
            recording.close()
            self._begin_clocks()
        return following

    @property
    def _is_renewal_urgent(self) -> bool:
        """True if the set of recorded processes must change and the window still lasts too long to wait for its end."""
        return self._renews and self._window_ends_at > time.monotonic() + _MAX_RENEWAL_DELAY_S

    def _open_following(self) -> Recording | None:
        """Attach a new recording to the processes that must be recorded from now on, while the present one still
        samples.

        Returns:
            The new recording, or None if there is no process or attaching failed. The next call of tend() then tries
                again.
        """
        try:
            selection = selected(lambda: self._table.now_recorded(self.sampling))
            return self._open(selection) if selection is not None else None
        except (PyprofError, OSError):
            return None

    def _replace(self, recording: Recording, following: Recording) -> None:
        """End a recording and begin the one that replaces it. Samples are missing for milliseconds in between."""
        self._renews = False
        recording.end()
        self._recording = following
        self._start(following)
        if self._is_ending:
            following.end()

    def _deliver(self, recording: Recording, profile: Profile, window: str) -> None:
        self._took(self.sampling, self._exact(recording, profile), window)
        self._stored_ns, self._stored, self._unstored = self._counted_ns, [], []

    def _save(self, recording: Recording, ends: float, window: str) -> None:
        """Save checkpoints of the window at equal intervals, until the window ends (monotonic time) or the recording
        ends.

        Each checkpoint costs about the same, whatever its size. So there are as few as the setting windows.durable
        allows.
        """
        began = time.monotonic()
        count = math.ceil((ends - began) / self._saved_every_s)
        for nth in range(1, count):
            due = began + (ends - began) * nth / count
            if recording.wait(max(due - time.monotonic(), 0.0)):
                return
            self._read_clocks()
            if (part := recording.packed_part()) is None:
                return
            self._keep_part(part, window)
            if self._is_renewal_urgent:
                return

    def _keep_part(self, part: Sequence[Part], window: str) -> None:
        """Save a checkpoint: the window's new data, and those sums of processor time that the spool does not
        have yet.
        """
        times = self._unstored if self._clocks is not None else None
        if self._save_part(self.sampling, WindowPart(part, times, self._unsampled_ns), window):
            self._stored_ns, self._stored = self._counted_ns, summed_times([*self._stored, *self._unstored])
            self._unstored = []

    def _note_failure(self, recording: Recording) -> None:
        """Record up to which time the spool has sums of processor time, if a recording failed before its first
        checkpoint.
        """
        if not self._stored_ns:
            self._stored_ns = self._counted_ns = self._window_ns or recording.span_ns[0]

    @property
    def recent_ns(self) -> Mapping[tuple[int, int], int]:
        """Processor time of processes in the last window, by pid and start. It is empty if the processor clocks are not
        read.
        """
        return self._clocks.recent_ns if self._clocks is not None else {}

    def _read_clocks(self) -> None:
        """Read the processor clocks of processes shortly before a window or a part of it ends.

        The clocks' values at the exact end are interpolated between this reading and the next one.
        """
        if self._clocks is not None:
            self._clocks.read_near_end(self._table.matching(self.sampling))

    def add_end(self, end: ProcessEnd, kin: str | None, is_known: bool) -> None:
        """Add the final processor time of a process that has ended (ProcessClocks.add_end)."""
        if self._clocks is not None:
            self._clocks.add_end(end, kin, is_known)

    def _end_part(self, recording: Recording) -> None:
        """Compute the on-CPU time of each process in a part of a window that was just taken from the recording."""
        if self._clocks is not None:
            self.before_reading()
            begun_ns, until_ns = recording.span_ns
            processes = self._table.matching(self.sampling)
            times = self._clocks.end_part(processes, self._window_ns or begun_ns, until_ns)
            self._unstored, self._counted_ns = summed_times([*self._unstored, *times]), until_ns
            self._unsampled_ns = max(begun_ns - self._resumed_from_ns, 0) if self._resumed_from_ns else 0

    def _end_window(self, recording: Recording) -> None:
        """Compute the on-CPU time of each process in a window that was just closed."""
        if self._clocks is not None:
            self.before_reading()
            begun_ns, until_ns = recording.span_ns
            processes = self._table.matching(self.sampling)
            times = self._clocks.end_window(processes, self._window_ns or begun_ns, until_ns)
            times = summed_times([*self._carried, *times])
            stored = (each._replace(ns=-each.ns, unread_ns=-each.unread_ns) for each in self._stored)
            rest = summed_times([*stored, *times])
            self._unstored, self._carried = [each._replace(ns=max(each.ns, 0)) for each in rest], []
            self._times.append(times)
            self._window_ns = self._counted_ns = until_ns

    def _exact(self, recording: Recording, profile: Profile) -> Profile:
        """Scale the samples of a window so that each process has the processor time that the kernel's clocks measured
        in it.

        The first window also has the time until the first sample: since the last sums in the spool after a failure, or
        since the recording was opened.
        """
        if self._clocks is None:
            return profile
        if not self._times:  # the last one of the recording
            self._end_window(recording)
        if self._resumed_from_ns:
            profile = extended(profile, max(recording.span_ns[0] - self._resumed_from_ns, 0))
            self._resumed_from_ns = 0
        return with_exact_sums(profile, self._times.popleft())

    def so_far(self) -> Profile | None:
        """Return the unfinished window of the recording as a profile. Any thread may call this.

        Raises:
            PyprofError: The window is just ending.
        """
        recording = self._recording
        return recording.peek() if recording is not None and self.running else None

    def begin_anew(self) -> None:
        """Replace the recording by one of another set of processes, without waiting, because a collector cannot release
        a running process.

        The new recording begins at the end of the window, so that no window is cut. If that end is far away, it begins
        at the next checkpoint. It attaches to its processes while the present recording still samples.
        """
        self._not_before = 0.0
        self._renews = True

    def end(self) -> None:
        """End the recording of this group of processes, without waiting for its last window."""
        is_first, self._is_ending = not self._is_ending, True
        if self._recording is not None:
            self._recording.end()
            if is_first:
                self._read_clocks()

    def close(self) -> None:
        """End the recording of this group, wait until the last window was delivered, and release all resources."""
        self.finish()
        self._release()

    def finish(self) -> None:
        """End the recording of this group and wait for the end, without releasing resources, because the agent's
        process ends next.

        A recording that is blocked is not waited for. For one that has not started to sample, the wait is short.
        """
        self.end()
        until = time.monotonic() + _NAMES_S
        while self.running and not self.left.is_set() and self._thread is not None:
            self._thread.join(_LOOK_S)
            if time.monotonic() > until:
                if self._recording is None:
                    break
                self._recording.end(EndUrgency.IMMEDIATE)
                until = math.inf

    def _release(self) -> None:
        if self._recording is not None and not self.left.is_set():
            self._recording.close()
        self._recording = self._thread = None
