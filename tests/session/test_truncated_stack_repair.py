"""Tests of completing truncated stacks from a later complete stack of the same thread, if the memory is the same."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from pyprof.model.stacks import StackTable
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.session.pipeline.truncated_stack_repair import TruncatedStackRepair
from pyprof.session.pipeline.window_row_store import Rows, RowStore

FRAME = 0x200
DEPTH, CUT = 60, 40
BASE = 0x10_0000
END = BASE + CUT * FRAME


class Bench:
    """Table, rows and repair of one window. Frame i of every stack has pc 0x1000 + i and sp BASE + i * FRAME."""

    def __init__(self) -> None:
        self.stacks = StackTable()
        self.store = RowStore()
        self.repair = TruncatedStackRepair(self.stacks, self.store)
        self.memory = np.random.default_rng(1).integers(0, 256, DEPTH * FRAME, np.uint8)

    def add(
        self, depth: int, *, tid: int = 7, outer: int = 0, memory: np.ndarray | None = None, returned: int = 0
    ) -> np.ndarray:
        """Add a batch of one sample.

        Args:
            depth: Number of frames. DEPTH frames are a complete stack.
            tid: Thread id.
            outer: Number that is added to the pcs beyond the truncation.
            memory: Contents of the stack, or None for the usual ones.
            returned: Number of leaf frames that have returned.
        """
        data = self.memory if memory is None else memory
        size = depth * FRAME
        number = np.arange(returned, depth)
        pc = (0x1000 + number + np.where(number >= CUT, outer, 0)).astype(np.uint64)
        end = StackEnd.ROOT if depth == DEPTH else StackEnd.UNREADABLE
        missing = 0 if depth == DEPTH else BASE + size
        depth -= returned
        walk = Walk(
            start=np.array([0, depth]),
            pc=pc,
            exact=np.zeros(depth, np.bool_),
            trust=np.full(depth, Trust.EH_FRAME, np.uint8),
            sp=(BASE + number * FRAME).astype(np.uint64),
            end=np.array([end], np.uint8),
            missing=np.array([missing], np.uint64),
            top=np.array([BASE + size], np.uint64),
            lacks_register=np.zeros(1, np.bool_),
        )
        stack = StackSlab(data[:size], np.array([BASE], np.uint64), np.zeros(1, np.int64), np.array([size]))
        batch = SampleBatch(
            arch=X86_64,
            kind=np.array([SampleKind.STOPPED], np.uint8),
            time_ns=np.zeros(1, np.int64),
            tid=np.array([tid], np.int32),
            pid=np.ones(1, np.int32),
            space=np.ones(1, np.int32),
            cpu=np.zeros(1, np.int32),
            weight=np.ones(1, np.int64),
            regs=np.zeros((1, len(X86_64.registers)), np.uint64),
            stack=stack,
            spaces={},
        )
        node, none = self.stacks.intern(walk, batch.space), np.zeros(1, np.int64)
        state = np.zeros(1, np.int16)
        first = len(self.store)
        rows = self.store.append_rows(
            Rows(none, node, state, state, batch.tid, batch.cpu, none, none.astype(np.int32), none)
        )
        self.repair.repair_batch(batch, walk, rows, first, none)
        found: np.ndarray = rows.node
        return found

    def frames(self, rows: np.ndarray) -> list[tuple[int, int]]:
        """Return (pc, trust) from leaf to root. A marker has pc -1."""
        node, found = int(rows[0]), []
        while node > 0:
            (key,) = self.stacks.key(node)
            found.append((-1 if key.mark else key.pc, key.trust))
            node = self.stacks.parent[node]
        return found


def test_cut_stack_gets_the_outer_frames_of_the_whole_one_and_they_say_so() -> None:
    bench = Bench()
    rows = bench.add(CUT)
    assert bench.frames(rows)[-1] == (-1, 0)
    bench.add(DEPTH)
    found = bench.frames(rows)
    assert [pc for pc, _ in found] == [0x1000 + i for i in range(DEPTH)]
    assert {trust for _, trust in found[:CUT]} == {Trust.EH_FRAME}
    assert {trust for _, trust in found[CUT:]} == {Trust.COMPLETED}
    assert bench.repair.completed == 1


def test_nothing_is_joined_where_one_byte_of_the_memory_differs() -> None:
    bench = Bench()
    rows = bench.add(CUT)
    other = bench.memory.copy()
    other[END - BASE - 4096] ^= 1
    bench.add(DEPTH, memory=other)
    assert bench.frames(rows)[-1] == (-1, 0)


def test_nothing_is_joined_to_the_stack_of_another_thread() -> None:
    bench = Bench()
    rows = bench.add(CUT)
    bench.add(DEPTH, tid=8)
    assert bench.frames(rows)[-1] == (-1, 0)


@pytest.mark.parametrize("between", [0, 2])
def test_whole_stacks_that_go_on_in_different_ways_prove_nothing(between: int) -> None:
    bench = Bench()
    rows = bench.add(CUT)
    for _ in range(between + 1):
        bench.add(DEPTH)
    assert bench.repair.completed == 1
    bench.add(DEPTH, outer=5)
    assert bench.frames(rows)[-1] == (-1, 0)
    assert bench.repair.completed == 0


def test_cut_samples_are_not_waited_for_without_end() -> None:
    bench = Bench()
    rows = bench.add(CUT)
    other = bench.memory + np.uint8(1)
    for _ in range(4):
        bench.add(DEPTH, memory=other)
    bench.add(DEPTH)
    assert bench.frames(rows)[-1] == (-1, 0)
    assert not bench.repair._cuts


def test_shallower_whole_stack_says_nothing_of_deeper_cut_ones() -> None:
    bench = Bench()
    rows = bench.add(CUT)
    bench.add(DEPTH, returned=20)
    assert bench.frames(rows)[-1] == (-1, 0)
    bench.add(DEPTH, returned=2)
    assert bench.repair.completed == 1


def test_threads_that_are_never_whole_leave_room_for_others() -> None:
    bench = Bench()
    for number in range(200):
        memory = bench.memory.copy()
        memory[END - BASE - 8 : END - BASE] = number
        bench.add(CUT, tid=number % 2, memory=memory)
    rows = bench.add(CUT, tid=9)
    bench.add(DEPTH, tid=9)
    assert bench.frames(rows)[-1] != (-1, 0)
    assert bench.repair._count <= 128
    for _ in range(300):
        bench.add(CUT, tid=10)
    assert bench.repair._count == 1
