"""The rows of a recording's window: for each sample, once its stack is a node of the tree, the facts that are kept.

A window may have millions of rows. They are stored in blocks of one size, because a few small arrays for each batch
would fragment the heap. Full blocks are compressed.

Two classes change rows: PendingSamples completes samples of sleeping threads whose unwinding needs a register, when a
later stop in the same sleep supplies it. SurroundedStacks adds the waker's stack inside the stack of a wait, or the
lock outside it.

ThreadNumbers gives a new number to a later thread with the same tid. LastStacks has the last stack of each thread, for
samples of a thread that has not run since its previous sample.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field, field_names
from pyprof.model.sample_batch import SampleBatch, SampleKind, Surroundings
from pyprof.model.stacks import StackTable, marker_key
from pyprof.model.thread_identity import Labels, ThreadKey
from pyprof.problem_counters import Diagnostics

I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

UNKNOWN = -1
PIECE = 1 << 14
"""Number of rows in a block of a window's rows. A block has more rows if one batch has more."""
_FAST = 1
_TYPES: dict[str, type[np.signedinteger[Any]]] = {
    **{"time_ns": np.int64, "node": np.int32, "state": np.int16, "taken": np.int16},
    **{"thread": np.int32, "cpu": np.int32, "weight": np.int64, "labels": np.int32, "length_ns": np.int64},
}
_MOST = 1 << 16


@dataclass(slots=True)
class Rows:
    """Columns of shape (n,) that describe the samples of a window, one row each.

    Attributes:
        time_ns: Nanoseconds since the epoch.
        node: Node of the StackTable, UNKNOWN until the stack is known.
        state: SampleState of the code that ran.
        taken: SampleState that tells how the sample was taken.
        thread: Number of the thread in the Recorder.
        cpu: Processor, UNKNOWN if the collector does not report it.
        weight: Number of sampling periods.
        labels: Number of the set of labels in the window.
        length_ns: Time that the sample stands for, UNKNOWN if `weight` gives it.
    """

    time_ns: I64
    node: I32
    state: I16
    taken: I16
    thread: I32
    cpu: I32
    weight: I64
    labels: I32
    length_ns: I64

    def __len__(self) -> int:
        return len(self.time_ns)

    def take_rows(self, rows: I64 | Sequence[int] | slice) -> Rows:
        """Return the rows of a window with these indices."""
        return Rows(*(getattr(self, name)[rows] for name in _NAMES))


_NAMES = field_names(Rows)


def no_lengths(n: int) -> I64:
    """Return a column for n samples which says that their lengths are unknown. All n elements share one element in
    memory.
    """
    return np.broadcast_to(np.int64(UNKNOWN), n)


def _room(n: int) -> Rows:
    return Rows(*(np.empty(n, _TYPES[name]) for name in _NAMES))


@dataclass(slots=True)
class _Packed:
    """A full, compressed block of a window's rows.

    Attributes:
        size: Number of rows.
        columns: For each column the zlib-compressed differences between rows, grouped by byte position.
        nodes: Stack nodes that were changed after compression, by index of the row.
        states: States that were changed after compression, by index of the row.
    """

    size: int
    columns: tuple[bytes, ...]
    nodes: dict[int, int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)

    @classmethod
    def pack(cls, rows: Rows) -> _Packed:
        return cls(len(rows), tuple(_packed(getattr(rows, name)) for name in _NAMES))

    def rows(self) -> Rows:
        rows = Rows(*(_unpacked(data, _TYPES[name]) for name, data in zip(_NAMES, self.columns, strict=True)))
        for column, later in ((rows.node, self.nodes), (rows.state, self.states)):
            column[[*later]] = [*later.values()]
        return rows


def _packed(column: npt.NDArray[np.signedinteger[Any]]) -> bytes:
    steps = np.diff(column, prepend=column.dtype.type(0))  # differences may overflow; the cumulative sum wraps back
    return zlib.compress(steps.view(np.uint8).reshape(len(steps), -1).T.tobytes(), _FAST)


def _unpacked(data: bytes, kind: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    by_place = np.frombuffer(zlib.decompress(data), np.uint8).reshape(np.dtype(kind).itemsize, -1)
    steps = np.ascontiguousarray(by_place.T).view(kind).ravel()
    return np.cumsum(steps, dtype=kind)


class RowStore:
    """All rows (samples) of a window, numbered in the order of their arrival."""

    def __init__(self) -> None:
        self._full: list[_Packed] = []
        self._firsts: list[int] = []
        self._first = self._used = 0
        self._open = _room(0)
        self._has_lengths = False

    def __len__(self) -> int:
        return self._first + self._used

    def append_rows(self, rows: Rows) -> Rows:
        """Append a copy of samples' rows to the window.

        Returns:
            Views of the stored rows. The caller may change rows through them until the next call of append_rows(), and
            later by amend().
        """
        n = len(rows)
        if self._used + n > len(self._open):
            self._close()
            self._open = _room(max(n, PIECE))
        self._has_lengths = self._has_lengths or rows.length_ns.strides != (0,)
        here = self._open.take_rows(slice(self._used, self._used + n))
        for name in _NAMES:
            getattr(here, name)[:] = getattr(rows, name)
        self._used += n
        return here

    def _close(self) -> None:
        if self._used:
            self._full.append(_Packed.pack(self._open.take_rows(slice(self._used))))
            self._firsts.append(self._first)
            self._first, self._used = len(self), 0

    def amend(self, number: int, node: int, state: int | None = None) -> None:
        """Change the stack node of a stored row and, unless it is None, its state."""
        nodes: I32 | dict[int, int] = self._open.node
        states: I16 | dict[int, int] = self._open.state
        first = self._first
        if number < first:
            place = bisect_right(self._firsts, number) - 1
            nodes, states, first = self._full[place].nodes, self._full[place].states, self._firsts[place]
        nodes[number - first] = node
        if state is not None:
            states[number - first] = state

    def pieces(self, first: int = 0) -> Iterator[Rows]:
        """Yield the window's rows from a row number on, in blocks. The blocks are valid until rows are added or
        changed.
        """
        start = max(bisect_right(self._firsts, first) - 1, 0)
        for began, piece in zip(self._firsts[start:], self._full[start:], strict=True):
            if first < began + piece.size:
                yield piece.rows().take_rows(slice(max(first - began, 0), None))
        yield self._open.take_rows(slice(max(first - self._first, 0), self._used))

    def rows(self, first: int = 0) -> Rows:
        """Return the window's rows (samples) from a row number on.

        They are sorted by time if the samples have lengths. Such samples come from several sources, whose batches
        overlap in time.
        """
        n = max(len(self) - first, 0)
        found = _room(n)
        if not self._has_lengths:
            found.length_ns = no_lengths(n)
        at = 0
        for piece in self.pieces(first):
            for name in _NAMES[: None if self._has_lengths else -1]:
                getattr(found, name)[at : at + len(piece)] = getattr(piece, name)
            at += len(piece)
        return found.take_rows(np.argsort(found.time_ns, kind="stable")) if self._has_lengths else found


class SurroundedStacks:
    """A step that completes the stacks of waits: it adds the lock that a thread waited for, or the stack of the thread
    that ended the wait.
    """

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._referred: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, Surroundings, int], int] = {}

    def refer(self, batch: SampleBatch, nodes: npt.NDArray[np.int32]) -> None:
        """Store the stacks of threads that ended the waits of other threads. The samples of these waits arrive later,
        and refer to a stack by the waker's tid and time.
        """
        if len(self._referred) > _MOST:
            self._referred.clear()
        keys = zip(batch.tid.tolist(), batch.time_ns.tolist(), strict=True)
        self._referred.update(zip(keys, nodes.tolist(), strict=True))

    def surround(self, batch: SampleBatch, rows: Rows) -> None:
        """Add to the stack of each wait what it waited for, where the collector found that out.

        The name of the lock becomes the outermost frame. The stack of the thread that ended the wait (the waker) is
        added after the innermost frame.

        Args:
            batch: The samples. Their `around` has the locks and wakers.
            rows: The rows of these samples, whose stack nodes are changed.
        """
        for lane, around in batch.around.items():
            waker = self._referred.get(around.waker, 0)
            key = (int(rows.node[lane]), around._replace(waker=(0, 0)), waker)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._surrounded(*key)
            rows.node[lane] = found

    def _surrounded(self, node: int, around: Surroundings, waker: int) -> int:
        stacks = self._stacks
        if around.outer is not None:
            node = stacks.add_outer_marker(node, around.outer)
        if around.inner is not None:
            node = stacks.append_stack(stacks.child(node, marker_key(around.inner)), waker)
        return node


@dataclass
class _SleepRows:
    """The rows whose samples were taken in one sleep of a thread, at the same stack pointer and pc."""

    sp: int
    pc: int
    rows: list[int]


class PendingSamples:
    """The samples of sleeping threads in one window that could not be unwound, because a register was unknown. A later
    stop in the same sleep completes them.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._held: dict[int, _SleepRows] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def complete_samples(self, batch: SampleBatch, rows: Rows, first: int, incomplete: npt.NDArray[np.int64]) -> None:
        """Complete earlier samples of sleeping threads with the stack of a stop in the same sleep, which had all
        registers. Store the incomplete samples of this batch for later.

        Args:
            batch: The samples.
            rows: Rows of the samples in the store.
            first: Number of the first row.
            incomplete: Indices of samples whose unwinding needs a register.
        """
        pc, sp = batch.arch.pc, batch.arch.sp
        wanting = set(incomplete.tolist())
        for lane, (thread, kind) in enumerate(zip(rows.thread.tolist(), batch.kind.tolist(), strict=True)):
            held = self._held.get(thread)
            if lane in wanting:
                regs = batch.regs[lane]
                if held is None or (held.sp, held.pc) != (int(regs[sp]), int(regs[pc])):
                    held = self._held[thread] = _SleepRows(int(regs[sp]), int(regs[pc]), [])
                held.rows.append(first + lane)
            elif held is not None:
                if kind == SampleKind.UNCHANGED:
                    held.rows.append(first + lane)
                    continue
                regs = batch.regs[lane]
                if kind == SampleKind.STOPPED and held.sp == int(regs[sp]):
                    for row in held.rows:
                        self._store.amend(row, int(rows.node[lane]), int(rows.state[lane]))
                del self._held[thread]


MAX_LABEL_SETS = 1 << 14
"""Maximum number of sets of labels in a window. Samples with further sets have no labels."""


class ThreadNumbers:
    """A table that gives each thread of a recording a number that is never reused.

    A collector that does not know the process of a thread reports the tid as its pid. The pid of any other collector
    has precedence.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._pids: dict[int, int] = {}
        self._next = 0

    def number_threads(self, batch: SampleBatch) -> npt.NDArray[np.int32]:
        """Return the thread number of each sample, shape (n,). New threads get a new number."""
        started = np.zeros(len(batch), np.int64) if batch.started is None else batch.started
        ids = list(zip(batch.tid.tolist(), started.tolist(), strict=True))
        numbers = [self._number(tid, began) for tid, began in ids]
        for (tid, _), number, pid in set(zip(ids, numbers, batch.pid.tolist(), strict=True)):
            if pid != tid or number not in self._pids:
                self._pids[number] = pid
        return np.array(numbers, np.int32)

    def _number(self, tid: int, started: int) -> int:
        number = self._numbers.get((tid, started))
        if number is None:
            number = self._numbers[tid, started] = self._next
            self._next += 1
        return number

    def keys(self, numbers: Set[int]) -> dict[int, ThreadKey]:
        """Return the keys of the threads with these numbers."""
        return {
            number: ThreadKey(self._pids[number], tid, started)
            for (tid, started), number in self._numbers.items()
            if number in numbers
        }

    def retain_threads(self, numbers: Set[int]) -> None:
        """Forget the numbers of all threads except those with these numbers."""
        self._numbers = {ids: number for ids, number in self._numbers.items() if number in numbers}
        self._pids = {number: pid for number, pid in self._pids.items() if number in numbers}


class LastStacks:
    """The last stack of each thread of a recording, as leaves of the current window's stack tree."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    @property
    def threads(self) -> Set[int]:
        """The numbers of the threads that have a stack."""
        return self._last.keys()

    def follow(self, rows: Rows) -> None:
        """Give each sample that repeats its thread's previous one (UNCHANGED) the stack of the previous sample."""
        order = np.argsort(rows.thread, kind="stable")
        thread, node, state = rows.thread[order], rows.node[order], rows.state[order]
        firsts = np.flatnonzero(np.diff(thread, prepend=np.int32(-1)))
        for first in firsts.tolist():
            if node[first] < 0:
                node[first], state[first] = self._last.get(int(thread[first]), (0, 0))
        source = np.maximum.accumulate(np.where(node >= 0, np.arange(len(node)), 0))
        node, state = node[source], state[source]
        rows.node[order], rows.state[order] = node, state
        lasts = np.append(firsts[1:], len(order)) - 1
        stacks = zip(node[lasts].tolist(), state[lasts].tolist(), strict=True)
        self._last.update(zip(thread[lasts].tolist(), stacks, strict=True))

    def carry(self, stacks: StackTable, alive: Set[int]) -> StackTable:
        """Return a new stack tree for the next window with the last stacks of live threads. Forget the last stacks of
        all other threads.
        """
        fresh = StackTable()
        self._last = {thread: stack for thread, stack in self._last.items() if thread in alive}
        place = fresh.copy_stacks(stacks, [node for node, _ in self._last.values()])
        self._last = {thread: (place[node], state) for thread, (node, state) in self._last.items()}
        return fresh


class LabelSets:
    """The sets of labels that programs gave to the samples of a window.

    Attributes:
        sets: The sets by number. Number 0 is the empty one.
    """

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._numbers: dict[Labels, int] = {(): 0}
        self._last: dict[int, Labels] = {}

    @property
    def sets(self) -> tuple[Labels, ...]:
        return tuple(self._numbers)

    def number_samples(self, batch: SampleBatch, threads: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the number of each sample's set of labels, shape (n,).

        A sample of a thread that has not run since its last sample has the labels of that one.

        Args:
            batch: The samples.
            threads: (n,) Number of each sample's thread.
        """
        found = np.zeros(len(batch), np.int32)
        if not batch.labels and not self._last:
            return found
        for lane, (thread, kind) in enumerate(zip(threads.tolist(), batch.kind.tolist(), strict=True)):
            if kind == SampleKind.UNCHANGED:
                labels = self._last.get(thread, ())
            elif labels := batch.labels.get(lane, ()):
                self._last[thread] = labels
            else:
                self._last.pop(thread, None)
            found[lane] = self._number(labels)
        return found

    def _number(self, labels: Labels) -> int:
        number = self._numbers.get(labels)
        if number is None:
            if len(self._numbers) >= MAX_LABEL_SETS:
                self._diagnostics.count("too_many_label_sets")
                return 0
            number = self._numbers[labels] = len(self._numbers)
        return number

    def begin_window(self, threads: Set[int]) -> None:
        """Empty the table of label sets for a new window, and forget the last labels of all threads except those with
        these numbers.
        """
        self._numbers = {(): 0}
        self._last = {thread: labels for thread, labels in self._last.items() if thread in threads}
