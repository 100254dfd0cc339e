"""Completes stacks that were truncated at the end of their copy, from a later complete stack of the same thread.

The frames around the end of the copy must be equal (same pc, same stack pointer). The memory below it must be equal
word by word, because it holds the return addresses, saved registers and variables of these frames. The complete stack
must reach as far down as the truncated one. Otherwise a thread's deep stacks, which are always truncated, would get the
outer frames of its shallow ones. If complete stacks of that time differ beyond that point, the stack stays truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.integer_array_operations import among, distinct
from pyprof.model.prefix_tree import rewrite
from pyprof.model.profile import FrameKind
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.stacks import FrameKey, StackTable
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.session.pipeline.window_row_store import Rows, RowStore

I64 = npt.NDArray[np.int64]

_WINDOW = 4096
"""Number of stack bytes directly below the end of a truncated stack copy that a complete stack must have in common with
it to complete it.
"""
_FRAMES = 8
"""Number of frames before the end of a truncated stack copy that a complete stack must have in common with it to
complete it.
"""
_MAX_CUTS = 512
_MAX_ROWS = 1 << 15
_MAX_OF_THREAD = 64
_MAX_WHOLE = 64
_BATCHES = 64
_TRIES = 4

_Joint = tuple[tuple[tuple[int, int], ...], int, bytes]
"""Type of the point at which a truncated and a complete stack are joined. It has (pc, sp) of the last frames, innermost
first; the address of the copy's end; and the stack bytes below that address.
"""


@dataclass(slots=True)
class _Cut:
    """A group of samples of one thread whose stacks were truncated at the same point. They wait for a complete stack
    that has the missing outer frames.

    Attributes:
        until: Number of the batch after which the repair is given up.
        rows: (number, original node) of each row.
        outer: The outer frames, None until they are known.
        low: Lowest stack pointer of these samples.
        tries: Number of batches with complete stacks of the thread that are still compared.
    """

    until: int
    rows: list[tuple[int, int]] = field(default_factory=list)
    outer: tuple[FrameKey, ...] | None = None
    low: int = 1 << 64
    tries: int = _TRIES


class TruncatedStackRepair:
    """The repair of one window's truncated stacks by the outer frames of complete stacks of the same threads.

    Attributes:
        completed: Number of rows that were completed.
    """

    def __init__(self, stacks: StackTable, store: RowStore) -> None:
        self._stacks = stacks
        self._store = store
        self._cuts: dict[int, dict[_Joint, _Cut]] = {}
        self._count = self._rows = self._batch = 0
        self.completed = 0

    def repair_batch(self, batch: SampleBatch, walk: Walk, rows: Rows, number: int, places: I64) -> None:
        """Store the truncated stacks of a batch, and complete stored ones by its complete stacks.

        Args:
            batch: The samples.
            walk: The unwound frames of the samples.
            rows: Rows of the window, whose stack nodes may be changed.
            number: Number of the first row.
            places: (n,) Index into `rows` of each sample of the batch.
        """
        end = batch.stack.base + batch.stack.size.astype(np.uint64)
        cut = (walk.end == StackEnd.UNREADABLE) & (walk.missing >= end) & (batch.kind == SampleKind.STOPPED)
        for lane in np.flatnonzero(cut).tolist():
            self._hold(batch, walk, lane, rows, number, int(places[lane]))
        if not self._cuts:
            return
        self._batch += 1
        if self._batch % _BATCHES == 0:
            self._expire()
        whole = (walk.end == StackEnd.ROOT) & among(rows.thread[places], self._cuts)
        whole[list(walk.shared)] = False
        threads = rows.thread[places]
        for thread in distinct(threads[whole]).tolist():
            lanes = np.flatnonzero(whole & (threads == thread))
            if len(lanes) > _MAX_WHOLE:
                lanes = lanes[np.linspace(0, len(lanes) - 1, _MAX_WHOLE).astype(np.int64)]
            self._match(thread, batch, walk, lanes, rows.node[places[lanes]].tolist())

    def _hold(self, batch: SampleBatch, walk: Walk, lane: int, rows: Rows, number: int, row: int) -> None:
        stack = batch.stack
        offset, size, first, last = (
            int(n) for n in (stack.offset[lane], stack.size[lane], walk.start[lane], walk.start[lane + 1])
        )
        if size < _WINDOW or last - first < _FRAMES or self._rows >= _MAX_ROWS:
            return
        cuts = self._cuts.setdefault(int(rows.thread[row]), {})
        window = stack.data[offset + size - _WINDOW : offset + size].tobytes()
        joint = (_frames(walk, last - _FRAMES, last), int(stack.base[lane]) + size, window)
        if joint not in cuts:
            if self._count >= _MAX_CUTS or len(cuts) >= _MAX_OF_THREAD:
                return
            self._count += 1
        held = cuts.setdefault(joint, _Cut(self._batch + _BATCHES))
        held.rows.append((number + row, int(rows.node[row])))
        held.low = min(held.low, int(walk.sp[first]))
        self._rows += 1

    def _expire(self) -> None:
        """Give up truncated stacks of threads that had no complete stack for long."""
        for thread, cuts in list(self._cuts.items()):
            for joint in [joint for joint, cut in cuts.items() if cut.until <= self._batch]:
                self._drop(cuts, joint)
            if not cuts:
                del self._cuts[thread]

    def _drop(self, cuts: dict[_Joint, _Cut], joint: _Joint) -> None:
        self._count -= 1
        self._rows -= len(cuts.pop(joint).rows)

    def _match(self, thread: int, batch: SampleBatch, walk: Walk, lanes: I64, nodes: list[int]) -> None:
        """Compare complete stacks of one thread with its truncated ones, and complete those that join.

        Args:
            thread: Number of the thread.
            batch: The samples.
            walk: Their unwound frames.
            lanes: Indices of the samples with complete stacks.
            nodes: Leaf of each of these stacks.
        """
        cuts = self._cuts[thread]
        for joint, cut in list(cuts.items()):
            for lane, node in zip(lanes.tolist(), nodes, strict=True):
                if int(walk.sp[walk.start[lane]]) > cut.low + _WINDOW:
                    continue
                outer = self._outer(joint, batch, walk, lane, node)
                if outer is not None and not self._settle(cut, outer):
                    break
            cut.tries -= 1
            if cut.tries <= 0:
                self._drop(cuts, joint)
        if not cuts:
            del self._cuts[thread]

    def _settle(self, cut: _Cut, outer: tuple[FrameKey, ...]) -> bool:
        """Complete a group of truncated stacks with the outer frames of a later complete stack of the same thread.

        Returns:
            False if an earlier complete stack had other outer frames. An earlier completion of the group is then
            undone.
        """
        if cut.outer is None:
            cut.outer = outer
            place = self._joined([before for _, before in cut.rows], outer)
            for row, before in cut.rows:
                self._store.amend(row, place[before])
            self.completed += len(cut.rows)
        elif cut.outer != outer:
            for row, before in cut.rows:
                self._store.amend(row, before)
            self.completed -= len(cut.rows)
            cut.tries = 0
            return False
        return True

    def _outer(
        self, joint: _Joint, batch: SampleBatch, walk: Walk, lane: int, node: int
    ) -> tuple[FrameKey, ...] | None:
        """Return the outer frames that a truncated stack lacks, outermost first, from a complete stack. Return None if
        the complete stack does not have the frame at which the truncated one ends.
        """
        frames, end, window = joint
        stack = batch.stack
        at = end - _WINDOW - int(stack.base[lane])
        offset = int(stack.offset[lane])
        if at < 0 or at + _WINDOW > int(stack.size[lane]):
            return None
        first, last = int(walk.start[lane]), int(walk.start[lane + 1])
        _, sp = frames[-1]
        found = np.flatnonzero(walk.sp[first:last] == np.uint64(sp))
        if not len(found) or lane in batch.chains:
            return None
        here = first + int(found[-1])
        if here + 1 - _FRAMES < first or _frames(walk, here + 1 - _FRAMES, here + 1) != frames:
            return None
        if stack.data[offset + at : offset + at + _WINDOW].tobytes() != window:
            return None
        keys = list(self._up(node))[::-1][: last - here - 1]
        return tuple(key._replace(trust=Trust.COMPLETED) for key in keys)

    def _joined(self, nodes: list[int], outer: tuple[FrameKey, ...]) -> list[int]:
        """Put the outer frames of a complete stack outside of truncated stacks. Return the new node of each old
        node.
        """
        stacks = self._stacks
        below = 0
        for key in outer:
            below = stacks.child(below, key)

        def inner(node: int) -> Sequence[FrameKey]:
            key = stacks.key(node)
            return () if key[0].kind == FrameKind.MARKER else key

        return rewrite(stacks.parent, inner, stacks, nodes, below)

    def _up(self, node: int) -> Iterator[FrameKey]:
        stacks = self._stacks
        while node > 0:
            yield stacks.frames[stacks.frame[node]]
            node = stacks.parent[node]


def _frames(walk: Walk, first: int, last: int) -> tuple[tuple[int, int], ...]:
    return tuple(zip(walk.pc[first:last].tolist(), walk.sp[first:last].tolist(), strict=True))
