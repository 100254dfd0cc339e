"""Turns batches of samples into rows of (time, stack node, thread, weight), and splits the rows into windows.

A recording is a sequence of windows over one collector. cut() closes a window and begins the next one, and the
collector does not notice. This module works with every collector.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorState, CollectorStats, Feedback
from pyprof.collectors.linux.process_cpu_times import NOTHING, Spent
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.integer_array_operations import distinct
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.stacks import FrameKey, StackTable
from pyprof.model.thread_identity import Labels, ThreadKey
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.batch_to_stacks import Interned, Interning
from pyprof.session.pipeline.truncated_stack_repair import TruncatedStackRepair
from pyprof.session.pipeline.window_row_store import (
    UNKNOWN,
    LabelSets,
    LastStacks,
    PendingSamples,
    Rows,
    RowStore,
    SurroundedStacks,
    ThreadNumbers,
    no_lengths,
)

CLIPPED = "waits_clipped"
COMPLETED = "stack_completed"


_NEW_CODE = 4
"""Limit for the ratio of a batch's samples to the functions that are new in it. If it is lower, the collector delivers
its next samples without delay, because much code is new.
"""


@dataclass(frozen=True)
class Window:
    """One closed part of a recording with its samples and stacks. The names of frames are not resolved yet.

    Attributes:
        stacks: The stack tree.
        spaces: Address spaces by number.
        threads: The sampled threads.
        time_ns: Column with the time of each sample. The columns node, thread, weight, length_ns, state, cpu and labels
            are described in Rows.
        start_ns: Beginning in nanoseconds since the epoch.
        duration_ns: Length in nanoseconds.
        before: State of the collector at the beginning.
        after: State of the collector at the end.
        errors: Diagnostic counters of the window.
        keys: Threads by number.
        label_sets: Sets of labels by number.
        unfollowed: Processor time of children that are not recorded.
        epoch_ns: Difference between the times of this window and the monotonic clock.
    """

    stacks: StackTable
    spaces: dict[int, AddressSpace]
    threads: tuple[ThreadInfo, ...]
    time_ns: npt.NDArray[np.int64]
    node: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    weight: npt.NDArray[np.int64]
    length_ns: npt.NDArray[np.int64]
    state: npt.NDArray[np.int32]
    start_ns: int
    duration_ns: int
    before: CollectorStats
    after: CollectorStats
    errors: dict[str, int]
    cpu: npt.NDArray[np.int32]
    keys: Mapping[int, ThreadKey]
    labels: npt.NDArray[np.int32]
    label_sets: tuple[Labels, ...]
    unfollowed: Spent = NOTHING
    epoch_ns: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of a recording: nanoseconds since the epoch (now_ns), and the clock of samples (monotonic_ns).

    Attributes:
        is_of_samples: False if the samples have the times of another clock, because they come from a log.
    """

    now_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    is_of_samples: bool = True


HERE = Clock()
_CLOCK_STEP_NS = 1_000_000_000
"""Minimum step of the wall clock, relative to the clock of samples, in nanoseconds. After a larger step a new window
takes over the new wall-clock time.
"""
_OPENING_NS = 1_000_000_000
"""Maximum time, in nanoseconds, by which a sample may be older than the beginning of the recording. An even older time
comes from another clock.
"""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The time at which a window begins, and the state of the collector at that time.

    Attributes:
        ns: Time in nanoseconds since the epoch.
        stats: State of the collector.
        counts: Diagnostic counters.
        alone: True if samples from before this time belong to this window, because no earlier window can contain them.
    """

    ns: int
    stats: CollectorStats
    counts: Counter[str]
    alone: bool = False

    def with_samples(self, time_ns: npt.NDArray[np.int64]) -> int:
        """Return the time at which a window with these samples begins, in nanoseconds since the epoch.

        It can be earlier than `ns`: a collector may take samples while it is opened, or yield some after the recording
        has ended.

        Args:
            time_ns: Times of the window's samples in nanoseconds since the epoch.
        """
        early = int(time_ns.min(initial=self.ns)) if self.alone else self.ns
        return early if early > self.ns - _OPENING_NS else self.ns


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """Counters and statistics of a window, closed or current. The fields have the meaning of those of Window."""

    before: CollectorStats
    after: CollectorStats
    errors: Mapping[str, int]
    duration_ns: int


@dataclass(frozen=True, slots=True)
class WindowPosition:
    """A position in the current window: its numbers of rows, frames and tree nodes at some time. Recorder.since()
    returns what was added after it.
    """

    rows: int = 0
    frames: int = 0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class WindowAdditions:
    """The rows, frames and tree nodes that were added to a window after a WindowPosition.

    Attributes:
        upto: The new position.
        rows: New rows.
        frames: New frames of the tree.
        parent: Parents of the new nodes.
        frame: Frames of the new nodes.
        threads: ((number of the thread, number of the labels), thread) of all threads of the new rows.
    """

    upto: WindowPosition
    rows: Rows
    frames: list[FrameKey]
    parent: list[int]
    frame: list[int]
    threads: list[tuple[tuple[int, int], ThreadInfo]]


class Recorder:
    """The component that unwinds batches and stores their samples as rows of the current window.

    Attributes:
        samples: Number of samples in the current window.
        interning: Unwinds and interns stacks.
    """

    def __init__(
        self, collector: CollectorState, interning: Interning, diagnostics: Diagnostics, clock: Clock = HERE
    ) -> None:
        self.samples = 0
        self._collector = collector
        self.interning = interning
        self._diagnostics = diagnostics
        self._clock = clock
        self._threads = ThreadNumbers()
        self._last = LastStacks()
        self._labels = LabelSets(diagnostics)
        self._stacks = StackTable()
        self._spaces: dict[int, AddressSpace] = {}
        self._rows = RowStore()
        self._held = PendingSamples(self._rows)
        self._repair = TruncatedStackRepair(self._stacks, self._rows)
        self._around = SurroundedStacks(self._stacks)
        self._end_ns = 0
        self._began = _Beginning(clock.now_ns(), collector.stats(), Counter(diagnostics.counts), True)
        self._parted = self._began, 0
        self._epoch_ns = self._began.ns - clock.monotonic_ns()

    def add_batch(self, batch: SampleBatch) -> None:
        """Unwind a batch, add its stacks to the tree, and give the collector its Feedback."""
        if not len(batch):
            return
        self._spaces.update(batch.spaces)
        if batch.reference_only:
            self._around.refer(batch, self._interned(batch).node)
            return
        first = len(self._rows)
        rows = self._rows.append_rows(self._fresh_rows(batch))
        live = np.flatnonzero(batch.kind < SampleKind.UNCHANGED)
        if len(live):
            self._add_live(batch, rows, first, live)
        for lane in np.flatnonzero(batch.kind == SampleKind.UNSEEN).tolist():
            inside = 0 if batch.kernel_stack is None else int(batch.kernel_stack[lane])
            rows.node[lane] = self._stacks.add_unread_stack(batch.kernel_stacks[inside])
        for lane in np.flatnonzero(batch.kind == SampleKind.LOST).tolist():
            rows.node[lane] = self._stacks.add_lost_time()
        if batch.followed:
            self._last.follow(rows)
        if batch.kernel_stack is not None:
            self._wait_otherwise(batch, rows)
        if batch.around:
            self._around.surround(batch, rows)
        self.samples += len(batch)

    def _add_live(self, batch: SampleBatch, rows: Rows, first: int, live: npt.NDArray[np.int64]) -> None:
        """Add those samples of a batch that have registers, and so must be unwound, to the window.

        Args:
            batch: All samples.
            rows: Rows of the samples.
            first: Number of the first row.
            live: Indices of the samples with registers.
        """
        fresh = batch if len(live) == len(batch) else batch.take_samples(live)
        found = self._interned(fresh)
        rows.node[live] = found.node
        if found.state is not None:
            rows.state[live] = found.state
        if batch.stopped:
            stop = _needs_stop(fresh, found.walk)
            if self._held or stop.any():
                self._held.complete_samples(batch, rows, first, live[stop])
        if not batch.around:
            self._repair.repair_batch(fresh, found.walk, rows, first, live)

    def _wait_otherwise(self, batch: SampleBatch, rows: Rows) -> None:
        """Replace the kernel frames of samples whose threads have not run in user space since their last sample, but
        now wait at another place in the kernel.
        """
        assert batch.kernel_stack is not None
        for lane in np.flatnonzero((batch.kind == SampleKind.UNCHANGED) & (batch.kernel_stack > 0)).tolist():
            frames, node = batch.kernel_stacks[int(batch.kernel_stack[lane])], int(rows.node[lane])
            if node > 0 and self._stacks.key(node)[0].blocked is not None:
                node = self._stacks.parent[node]
            rows.node[lane] = self._stacks.extend(node, frames) if node > 0 else self._stacks.add_unread_stack(frames)

    def _interned(self, batch: SampleBatch) -> Interned:
        """Unwind samples that all have registers, add their stacks to the tree, and give the collector its Feedback."""
        found = self.interning.intern(batch, self._stacks)
        walk = found.walk
        top = np.where(walk.end == StackEnd.ROOT, walk.top, np.uint64(0))
        binder = self.interning.binder
        look = binder.update_code if binder and binder.watched else None
        has_new_code = binder is not None and _NEW_CODE * binder.take_new_functions() > len(batch)
        stop = _needs_stop(batch, walk)
        self._collector.learn(Feedback(batch, top, walk.missing, stop, look, has_new_code=has_new_code))
        return found

    def _fresh_rows(self, batch: SampleBatch) -> Rows:
        """Return a new row for each sample of a batch, without its stack."""
        n, thread = len(batch), self._threads.number_threads(batch)
        return Rows(
            time_ns=batch.time_ns + self._epoch_ns,
            node=np.full(n, UNKNOWN, np.int32),
            state=np.zeros(n, np.int16),
            taken=_taken(batch),
            thread=thread,
            cpu=batch.cpu,
            weight=batch.weight,
            labels=self._labels.number_samples(batch, thread),
            length_ns=no_lengths(n) if batch.length_ns is None else batch.length_ns,
        )

    def unwind_leaves_only(self) -> None:
        """Find only the innermost frame of each sample from now on, because the deadline has passed."""
        self.interning = self.interning.with_leaves_only()

    def forget(self, space_id: int) -> None:
        """Free the data about an address space to which no further sample belongs."""
        if self.interning.merger is not None:
            self.interning.merger.forget(space_id)

    @property
    def spaces(self) -> set[int]:
        """The numbers of the address spaces in the current window."""
        return set(self._spaces)

    @property
    def codes(self) -> set[int]:
        """The numbers of JIT code in the current window (FrameKey.code)."""
        return {key.code for key in self._stacks.frames if key.code}

    def end(self) -> None:
        """Set the end of the recording to the current time. Samples that were taken before can still be added."""
        self._end_ns = self._end_ns or self._now_ns()

    def _now_ns(self) -> int:
        """Return the current time by the clock of this window's samples, in nanoseconds since the epoch."""
        return self._epoch_ns + self._clock.monotonic_ns()

    def peek_window(self) -> Window:
        """Return the current window of the recording without closing it. Its tables grow when the next batch is
        added.
        """
        return self._window(self._began, self._rows.rows(), self._stacks)

    def part(self) -> Window:
        """Return the samples that were added to the current window since the last call, as a Window that contains only
        their stacks. The first call returns all samples since the window began.
        """
        began, upto = self._parted
        rows, stacks = self._rows.rows(upto), StackTable()
        leaves = sorted(leaf for leaf in distinct(rows.node).tolist() if leaf > 0)
        place = np.array(stacks.copy_stacks(self._stacks, leaves), np.int32)
        part = self._window(began, replace(rows, node=place[np.maximum(rows.node, 0)]), stacks)
        counts = Counter(self._diagnostics.counts)
        self._parted = _Beginning(part.start_ns + part.duration_ns, part.after, counts), len(self._rows)
        return part

    def _window(self, began: _Beginning, rows: Rows, stacks: StackTable) -> Window:
        """Make a window of the recording with the given rows and stack tree."""
        counted = self._counted(began)
        start_ns = began.with_samples(rows.time_ns[rows.length_ns < 0])
        duration_ns = began.ns + counted.duration_ns - start_ns
        is_clipped = self._clock.is_of_samples
        length_ns, clipped_ms = _clipped(rows, duration_ns) if is_clipped else (rows.length_ns, 0)
        errors = Counter(counted.errors)
        errors[CLIPPED] += clipped_ms
        keys = self._threads.keys(set(rows.thread.tolist()))
        numbers = {(key.tid, key.started): number for number, key in keys.items()}
        listed = [thread for thread in self._collector.threads() if (thread.tid, thread.started) in numbers]
        keys |= {numbers[thread.tid, thread.started]: thread.key for thread in listed}
        return Window(
            stacks=stacks,
            spaces=dict(self._spaces),
            threads=(*listed, *_nameless(set(keys.values()), listed)),
            time_ns=rows.time_ns,
            node=rows.node,
            thread=rows.thread,
            weight=rows.weight,
            length_ns=length_ns,
            state=(rows.state | rows.taken).astype(np.int32),
            cpu=rows.cpu,
            epoch_ns=self._epoch_ns,
            start_ns=start_ns,
            duration_ns=duration_ns,
            before=counted.before,
            after=counted.after,
            errors=dict(+errors),
            keys=keys,
            labels=rows.labels,
            label_sets=self._labels.sets,
        )

    def counted(self) -> WindowStatistics:
        """Return the counters of the current window of the recording."""
        return self._counted(self._began)

    def _counted(self, began: _Beginning) -> WindowStatistics:
        now, after = self._end_ns or self._now_ns(), self._collector.stats()
        counts = Counter(self._diagnostics.counts) - began.counts
        if self._repair.completed and began is self._began:
            counts[COMPLETED] += self._repair.completed
        return WindowStatistics(began.stats, after, counts, now - began.ns)

    def since(self, begun: WindowPosition) -> WindowAdditions:
        """Return the rows that a window has gained since a position.

        The stack nodes of rows may still change, because stacks are repaired until the window is closed.
        """
        rows, stacks, sets = self._rows.rows(begun.rows), self._stacks, self._labels.sets
        keys = self._threads.keys(set(rows.thread.tolist()))
        listed = {thread.key: thread for thread in self._collector.threads()}
        infos = listed | {thread.key: thread for thread in _nameless(set(keys.values()), [*listed.values()])}
        return WindowAdditions(
            WindowPosition(len(self._rows), len(stacks.frames), len(stacks)),
            rows,
            stacks.frames[begun.frames :],
            stacks.parent[begun.nodes :].tolist(),
            stacks.frame[begun.nodes :].tolist(),
            [
                ((number, labels), replace(infos[keys[number]], labels=sets[labels]))
                for number, labels in sorted(set(zip(rows.thread.tolist(), rows.labels.tolist(), strict=True)))
            ],
        )

    def leaves_since(self, rows: int) -> tuple[StackTable, set[int], int]:
        """Return the leaves of the stacks of new rows in the current window, with the window's stack tree.

        Args:
            rows: Number of rows that the caller has already seen.

        Returns:
            (stack tree, leaves of the later rows' stacks, number of all rows). Each window has another tree.
        """
        fresh = self._rows.pieces(rows)
        return self._stacks, {leaf for piece in fresh for leaf in distinct(piece.node).tolist()}, len(self._rows)

    @property
    def stacks(self) -> StackTable:
        """The stack tree of the current window. Each window has a separate tree."""
        return self._stacks

    @property
    def began_ns(self) -> int:
        """The beginning of the current window in nanoseconds since the epoch."""
        return self._began.ns

    @property
    def known_spaces(self) -> Mapping[int, AddressSpace]:
        return self._spaces

    def cut(self) -> Window:
        """Close the current window, return it, and begin the next one. Stacks of sleeping threads are carried over to
        the next window.
        """
        window = self.peek_window()
        if self._repair.completed:
            self._diagnostics.count(COMPLETED, self._repair.completed)
        counts = Counter(self._diagnostics.counts)
        listed = {thread.key for thread in self._collector.threads()}
        alive = {number for number, key in window.keys.items() if key in listed}
        fresh = self._last.carry(self._stacks, alive)
        carried = {key.space for key in fresh.frames}
        self._spaces = {space: self._spaces[space] for space in carried if space in self._spaces}
        self._stacks, self._rows = fresh, RowStore()
        self._held = PendingSamples(self._rows)
        self._threads.retain_threads(self._last.threads)
        self._labels.begin_window(self._last.threads)
        self._repair = TruncatedStackRepair(fresh, self._rows)
        self._around = SurroundedStacks(fresh)
        cut_ns = window.start_ns + window.duration_ns + self._follow_clock_steps()
        self._began = _Beginning(cut_ns, window.after, counts, alone=cut_ns == self._end_ns)
        self._parted = self._began, 0
        self.samples = 0
        return window

    def _follow_clock_steps(self) -> int:
        """Find out by how much the wall clock was set since the last window, and use the new wall clock for later
        samples. Return the step in nanoseconds.

        The clock may have been set, or the machine may have been suspended.
        """
        step_ns = self._clock.now_ns() - self._clock.monotonic_ns() - self._epoch_ns
        if abs(step_ns) < _CLOCK_STEP_NS or self._end_ns:
            return 0
        self._epoch_ns += step_ns
        return step_ns


def _clipped(rows: Rows, duration_ns: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the lengths of a window's rows, reduced so that the sum of each thread's rows is at most the window's
    length, and the time that was cut off.

    Returns:
        The lengths in nanoseconds, shape (n,), and the milliseconds that were left out.
    """
    known = np.flatnonzero(rows.length_ns > 0)
    thread, length_ns = rows.thread[known], rows.length_ns[known]
    total_ns = np.bincount(thread, length_ns) if len(known) else np.zeros(0)
    if total_ns.max(initial=0) <= duration_ns:
        return rows.length_ns, 0
    share = np.minimum(duration_ns / np.maximum(total_ns, 1), 1)
    clipped = rows.length_ns.copy()
    clipped[known] = np.floor(length_ns * share[thread]).astype(np.int64)
    return clipped, round(float(np.maximum(total_ns - duration_ns, 0).sum()) / 1e6)


def _taken(batch: SampleBatch) -> npt.NDArray[np.int16]:
    """Return how each sample of a batch was taken, as a column (n,) of SampleState flags. It is 0 for samples that the
    kernel took.
    """
    of_kind = np.zeros(len(SampleKind), np.int16)
    of_kind[SampleKind.STOPPED] = SampleState.STOPPED if batch.stopped else 0
    of_kind[SampleKind.BLOCKED] = SampleState.ASLEEP
    of_kind[SampleKind.UNCHANGED] = SampleState.UNCHANGED
    return of_kind[batch.kind]


def _needs_stop(batch: SampleBatch, walk: Walk) -> npt.NDArray[np.bool_]:
    needs: npt.NDArray[np.bool_] = walk.lacks_register & (batch.kind == SampleKind.BLOCKED)
    return needs


def _nameless(keys: Set[ThreadKey], listed: Sequence[ThreadInfo]) -> list[ThreadInfo]:
    """Return descriptions of those threads of a window that ended before their names were read. Each gets the name of
    its process.

    Args:
        keys: Keys of all threads of the window.
        listed: Threads whose names are known.
    """
    processes: dict[int, list[ThreadInfo]] = {}
    for thread in sorted(listed, key=lambda thread: thread.started):
        processes.setdefault(thread.pid, []).append(thread)
    found = []
    for key in sorted(keys - {thread.key for thread in listed}):
        kin = processes.get(key.pid, [])
        near = next((each for each in reversed(kin) if each.process_started <= key.started), kin[0] if kin else None)
        name, began = (near.process, near.process_started) if near is not None else (str(key.pid), 0)
        found.append(ThreadInfo(key.pid, key.tid, name, name, key.started, began))
    return found
