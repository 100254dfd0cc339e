"""The recording half of a session: batches in, rows of (time, stack node, thread, weight) out, cut into windows.

A recording is a window over a collector that lives longer than it: cut() closes one window and begins the next
without the collector noticing. Nothing here knows which collector it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.diagnostics import Diagnostics
from pyprof.model.keys import ThreadKey
from pyprof.model.markers import Mark, MarkKind, cut_mark
from pyprof.model.modules import AddressSpace
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.model.stacks import UNREADABLE, Merge, StackTable
from pyprof.model.walk import SharedFrames, StackEnd, Walk
from pyprof.records import dataclass, field
from pyprof.session.rows import UNKNOWN, Rows, joined, no_lengths
from pyprof.session.truncated_stack_repair import TruncatedStackRepair
from pyprof.session.unfollowed import NOTHING, Spent

COMPLETED = "stack completed by the outer frames of a later one of its thread"


def _needed(batch: SampleBatch, walk: Walk) -> dict[int, Mark]:
    """Markers of the stacks that an option has cut, by lane: they say what would have been enough."""
    found = {}
    for lane in np.flatnonzero((walk.end == StackEnd.UNREADABLE) | (walk.end == StackEnd.DEPTH)).tolist():
        beyond = batch.stack.beyond.get(lane)
        length = beyond.length if beyond is not None else int(batch.stack.size[lane])
        base, end = int(batch.stack.base[lane]), StackEnd(walk.end[lane])
        if end is StackEnd.UNREADABLE and beyond is not None and base <= int(walk.missing[lane]) < base + length:
            found[lane] = cut_mark(end, max(length, beyond.longest))
        elif end is StackEnd.DEPTH:
            first, last = int(walk.start[lane]), int(walk.start[lane + 1])
            span = int(walk.sp[last - 1]) - int(walk.sp[first])
            found[lane] = cut_mark(end, 2 * (last - first) * length // max(span, 1) if 0 < span <= length else 0)
    return found


class Walker(Protocol):
    def walk(self, batch: SampleBatch) -> Walk: ...


class CodeBinder(Protocol):
    """Knows code that no file describes."""

    def bind(self, batch: SampleBatch, walk: Walk) -> npt.NDArray[np.int32] | None:
        """What StackTable.intern calls code; None where no frame lies in such code."""
        ...

    @property
    def watched(self) -> bool:
        """May such code come and go in a way that look() sees at once?"""
        ...

    def look(self) -> None:
        """See what is registered now."""
        ...


class Merger(Protocol):
    """Finds the place of an interpreter's frames among those of a walk."""

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        """The walk, with what the interpreter's frames tell of native frames that it did not reach."""
        ...

    def merge(self, batch: SampleBatch, walk: Walk) -> tuple[dict[int, Merge], npt.NDArray[np.int32]]:
        """What each lane's stack gets, by lane, and the SampleState of all lanes."""
        ...

    def forget(self, space_id: int) -> None: ...


@dataclass(frozen=True)
class Window:
    """One closed part of a recording, its names not yet looked up.

    time_ns, node, thread, weight, length_ns, state, cpu: columns of Rows. keys: the threads by their numbers. before,
    after: the collector's statistics at the window's two ends. errors: what was counted in between, by everybody.
    unfollowed: what children that are not recorded spent beside their parents.

    It has more fields than other classes: it is all that outlives the recording of a window, for other processes, too.
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
    unfollowed: Spent = NOTHING


@dataclass(frozen=True, slots=True)
class Clock:
    """now_ns: since the epoch; monotonic_ns: the clock of samples, read at the same moment when a recording begins."""

    now_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns


HERE = Clock()


@dataclass
class _Held:
    """Samples of a sleeping thread whose stack needs a register; the next stop of the same sleep completes them."""

    sp: int
    pc: int
    rows: list[tuple[Rows, int]]


@dataclass
class Recorder:
    """Takes batches; hands out windows."""

    collector: Collector
    walker: Walker
    diagnostics: Diagnostics
    clock: Clock = HERE
    binder: CodeBinder | None = None
    merger: Merger | None = None
    samples: int = 0
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    _pids: dict[int, int] = field(default_factory=dict)
    _next_number: int = 0
    _stacks: StackTable = field(default_factory=StackTable)
    _spaces: dict[int, AddressSpace] = field(default_factory=dict)
    _rows: list[Rows] = field(default_factory=list)
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)
    _held: dict[int, _Held] = field(default_factory=dict)
    _end_ns: int = 0

    def __post_init__(self) -> None:
        self._completion = TruncatedStackRepair(self._stacks)
        self._begin_ns = self.clock.now_ns()
        self._epoch_ns = self._begin_ns - self.clock.monotonic_ns()
        self._before = self.collector.stats()
        self._counts = Counter(self.diagnostics.counts)

    def add(self, batch: SampleBatch) -> None:
        """Unwind a batch, intern its stacks, tell the collector what was learned."""
        if not len(batch):
            return
        self._spaces.update(batch.spaces)
        rows = self._fresh_rows(batch)
        live = np.flatnonzero(batch.kind < SampleKind.UNCHANGED)
        if len(live):
            fresh = batch if len(live) == len(batch) else batch.take(live)
            walk = self.walker.walk(fresh)
            if fresh.chains and self.merger is not None:
                walk = self.merger.complete(fresh, walk.whole())
            code = self.binder.bind(fresh, walk) if self.binder else None
            cut = _needed(fresh, walk)
            if fresh.chains and self.merger is not None:
                merged, state = self.merger.merge(fresh, walk)
                rows.node[live] = self._stacks.intern(walk, fresh.space, code, merged, cut=cut)
                rows.state[live] = state
            else:
                rows.node[live] = self._stacks.intern(
                    walk, fresh.space, code, code_of=partial(self._code_of, fresh), cut=cut
                )
            if fresh.tip is not None:
                rows.node[live] = self._inside(rows.node[live], fresh.tip, fresh.tips)
            stop = walk.lacks_register & (fresh.kind == SampleKind.BLOCKED)
            top = np.where(walk.end == StackEnd.ROOT, walk.top, np.uint64(0))
            look = self.binder.look if self.binder and self.binder.watched else None
            self.collector.learn(Feedback(fresh, top, walk.missing, stop, look))
            if batch.stopped and (self._held or stop.any()):
                self._hold(batch, rows, live[stop])
            self._completion.take(fresh, walk, rows, live)
        for lane in np.flatnonzero(batch.kind == SampleKind.UNSEEN).tolist():
            rows.node[lane] = self._stacks.unseen(batch.tips[int(batch.tip[lane])] if batch.tip is not None else ())
        if batch.followed:
            self._follow(rows)
        self._rows.append(rows)
        self.samples += len(batch)

    def _code_of(self, batch: SampleBatch, lane: int, frames: SharedFrames) -> npt.NDArray[np.int32] | None:
        """What CodeBinder.bind says of frames that lanes share, at the time of one of them."""
        if self.binder is None:
            return None
        none = np.zeros(1, np.uint64)
        walk = Walk(
            np.array([0, len(frames)], np.int64),
            frames.pc,
            frames.exact,
            frames.trust,
            frames.sp,
            np.full(1, StackEnd.ROOT, np.uint8),
            none,
            none,
            np.zeros(1, np.bool_),
        )
        return self.binder.bind(batch.take(np.array([lane], np.int64)), walk)

    def _fresh_rows(self, batch: SampleBatch) -> Rows:
        """Rows whose stacks are not known yet."""
        n = len(batch)
        return Rows(
            time_ns=batch.time_ns + self._epoch_ns,
            node=np.full(n, UNKNOWN, np.int32),
            state=np.zeros(n, np.int32),
            thread=self._threads_of(batch),
            cpu=batch.cpu,
            weight=batch.weight,
            length_ns=no_lengths(n) if batch.length_ns is None else batch.length_ns,
        )

    def _threads_of(self, batch: SampleBatch) -> npt.NDArray[np.int32]:
        """Numbers of threads; one that has the tid of an earlier one is another. A source that does not know a thread's
        process says that it is its own: what others say of it counts.
        """
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
            number = self._numbers[tid, started] = self._next_number
            self._next_number += 1
        return number

    def _inside(
        self, nodes: npt.NDArray[np.int32], tip: npt.NDArray[np.int32], tips: tuple[tuple[int, ...], ...]
    ) -> npt.NDArray[np.int32]:
        """The stacks with what the kernel did for them."""
        pairs, place = np.unique(np.stack([nodes, tip], axis=1), axis=0, return_inverse=True)
        found = [self._stacks.extend(node, tips[at]) for node, at in pairs.tolist()]
        return np.array(found, np.int32)[place.ravel()]

    def _follow(self, rows: Rows) -> None:
        """Give each UNCHANGED row, whose node is not known, the stack of its thread's sample before it."""
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

    def _hold(self, batch: SampleBatch, rows: Rows, lacking: npt.NDArray[np.int64]) -> None:
        pc, sp = batch.arch.pc, batch.arch.sp
        wanting = set(lacking.tolist())
        for lane, (thread, kind) in enumerate(zip(rows.thread.tolist(), batch.kind.tolist(), strict=True)):
            held = self._held.get(thread)
            if lane in wanting:
                regs = batch.regs[lane]
                if held is None or (held.sp, held.pc) != (int(regs[sp]), int(regs[pc])):
                    held = self._held[thread] = _Held(int(regs[sp]), int(regs[pc]), [])
                held.rows.append((rows, lane))
            elif held is not None:
                if kind == SampleKind.UNCHANGED:
                    held.rows.append((rows, lane))
                    continue
                regs = batch.regs[lane]
                if kind == SampleKind.STOPPED and held.sp == int(regs[sp]):
                    for earlier, row in held.rows:
                        earlier.node[row], earlier.state[row] = rows.node[lane], rows.state[lane]
                del self._held[thread]

    def forget(self, space_id: int) -> None:
        """No sample will name this address space again."""
        if self.merger is not None:
            self.merger.forget(space_id)

    @property
    def seen(self) -> set[int]:
        """Tids that were sampled."""
        return {tid for (tid, _), number in self._numbers.items() if number in self._last}

    def unsettled(self) -> bool:
        """Could another look make a thread's last stack whole?"""
        if self._held:
            return True
        for node, _ in self._last.values():
            while self._stacks.parent[node] > 0:
                node = self._stacks.parent[node]
            mark = self._stacks.frames[self._stacks.frame[node]].mark if node else UNREADABLE
            if mark is not None and mark.kind is MarkKind.CUT and mark.end is StackEnd.UNREADABLE:
                return True
        return False

    @property
    def spaces(self) -> set[int]:
        """Address spaces that stacks of this window refer to."""
        return set(self._spaces)

    @property
    def codes(self) -> set[int]:
        """Numbers of described code that stacks of this window refer to (FrameKey.code)."""
        return {key.code for key in self._stacks.frames if key.code}

    def end(self) -> None:
        """Nothing is recorded from now on, though what was is still to be unwound."""
        self._end_ns = self._end_ns or self.clock.now_ns()

    def look(self) -> Window:
        """The window as it is now. Its tables grow with the next batch."""
        now, after = self._end_ns or self.clock.now_ns(), self.collector.stats()
        counts = Counter(self.diagnostics.counts) - self._counts
        if self._completion.completed:
            counts[COMPLETED] += self._completion.completed
        rows = joined(self._rows)
        seen = set(rows.thread.tolist())
        wanted = {ids: number for ids, number in self._numbers.items() if number in seen}
        listed = [thread for thread in self.collector.threads() if (thread.tid, thread.started) in wanted]
        keys = {number: ThreadKey(self._pids[number], *ids) for ids, number in wanted.items()}
        keys |= {wanted[thread.tid, thread.started]: thread.key for thread in listed}
        return Window(
            stacks=self._stacks,
            spaces=dict(self._spaces),
            threads=(*listed, *_nameless(set(keys.values()), listed)),
            time_ns=rows.time_ns,
            node=rows.node,
            thread=rows.thread,
            weight=rows.weight,
            length_ns=rows.length_ns,
            state=rows.state,
            cpu=rows.cpu,
            start_ns=self._begin_ns,
            duration_ns=now - self._begin_ns,
            before=self._before,
            after=after,
            errors=dict(counts),
            keys=keys,
        )

    def cut(self) -> Window:
        """Close the window and begin the next; stacks of sleeping threads are carried over."""
        window = self.look()
        if self._completion.completed:
            self.diagnostics.count(COMPLETED, self._completion.completed)
        self._counts = Counter(self.diagnostics.counts)
        fresh = StackTable()
        listed = {thread.key for thread in self.collector.threads()}
        alive = {number for number, key in window.keys.items() if key in listed}
        self._last = {thread: stack for thread, stack in self._last.items() if thread in alive}
        place = fresh.adopt(self._stacks, [node for node, _ in self._last.values()])
        self._last = {thread: (place[node], state) for thread, (node, state) in self._last.items()}
        carried = {key.space for key in fresh.frames}
        self._spaces = {space: self._spaces[space] for space in carried if space in self._spaces}
        self._stacks, self._rows, self._held = fresh, [], {}
        self._numbers = {ids: number for ids, number in self._numbers.items() if number in self._last}
        self._pids = {number: pid for number, pid in self._pids.items() if number in self._last}
        self._completion = TruncatedStackRepair(fresh)
        self._begin_ns, self._before = window.start_ns + window.duration_ns, window.after
        self.samples = 0
        return window


def _nameless(keys: Set[ThreadKey], listed: Sequence[ThreadInfo]) -> list[ThreadInfo]:
    """Threads that ended before anybody asked for their names; they have their process's."""
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
