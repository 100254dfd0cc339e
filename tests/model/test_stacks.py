"""Tests of interned stacks: equal stacks are one node, and long ones are stored once."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from pyprof.model import stacks
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.marker_frames import LEFT_OUT, Mark, cut_mark
from pyprof.model.stacks import StackTable
from pyprof.model.unwind_result import SharedFrames, StackEnd, Trust, Walk

INTERPRETER = -100


def walk(stacks: list[list[int]], end: StackEnd = StackEnd.ROOT, trust: Trust = Trust.EH_FRAME) -> Walk:
    """Return a walk of stacks, each given as program counters from leaf to root."""
    pcs = [pc for stack in stacks for pc in stack]
    start = np.cumsum([0, *map(len, stacks)])
    zeros = np.zeros(len(stacks), np.uint64)
    return Walk(
        start,
        np.array(pcs, np.uint64),
        np.isin(np.arange(len(pcs)), start),
        np.full(len(pcs), trust, np.uint8),
        np.zeros(len(pcs), np.uint64),
        np.full(len(stacks), end, np.uint8),
        zeros,
        zeros,
        zeros.astype(np.bool_),
    )


def intern(table: StackTable, made: Walk, space: int = 1) -> list[int]:
    nodes: list[int] = table.intern(made, np.full(len(made), space, np.int32)).tolist()
    return nodes


Step = tuple[int, int] | Mark


def path(table: StackTable, node: int) -> list[Step]:
    """Return the steps of a stack from leaf to root.

    A step is (address space or code number, pc), a marker's Mark, or (INTERPRETER, number of the function).
    """
    found: list[Step] = []
    while node > 0:
        (key,) = table.key(node)
        native = (-key.code or key.space, key.pc)
        found.append(key.mark or ((INTERPRETER, key.place.function) if key.place else native))
        node = table.parent[node]
    return found


def test_equal_stacks_are_one_node_and_share_their_roots() -> None:
    table = StackTable()
    first, second, third = intern(table, walk([[1, 2, 3], [4, 2, 3], [1, 2, 3]]))
    assert first == third != second
    assert table.parent[first] == table.parent[second]
    assert path(table, second) == [(1, 4), (1, 2), (1, 3)]
    assert intern(table, walk([[4, 2, 3]])) == [second]


def test_stacks_that_differ_in_space_source_or_end_are_different() -> None:
    table = StackTable()
    nodes = [
        *intern(table, walk([[1, 2]])),
        *intern(table, walk([[1, 2]]), space=2),
        *intern(table, walk([[1, 2]], trust=Trust.FP)),
        *intern(table, walk([[1, 2]], end=StackEnd.NO_RULE)),
    ]
    assert len(set(nodes)) == 4
    assert path(table, nodes[3])[-1] == cut_mark(StackEnd.NO_RULE, 0)


def test_adopted_stack_is_the_same_elsewhere() -> None:
    table, other = StackTable(), StackTable()
    intern(table, walk([[9, 8]]))
    (node,) = intern(other, walk([[1, 2, 3]], end=StackEnd.DEPTH))
    assert path(table, table.copy_stacks(other, [node])[node]) == path(other, node)


def test_deep_stacks_that_share_their_roots_cost_no_copy_each() -> None:
    deep = list(range(10, 20_010))
    stacks = [[leaf, *deep] for leaf in range(100_000, 100_050)]
    table = StackTable()
    intern(table, walk([deep]))
    made = [walk([stack]) for stack in stacks]
    tracemalloc.start()
    for one in made:
        intern(table, one)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000 * 8 * 5


def test_deep_stacks_are_whole_frame_by_frame_wherever_they_part() -> None:
    rng = np.random.default_rng(3)
    outer = rng.integers(1, 5, 500).tolist()
    table = StackTable()
    for _ in range(40):
        kept = outer[int(rng.integers(0, 500)) :]
        stack = rng.integers(1, 5, int(rng.integers(0, 90))).tolist() + kept
        places = sorted(set(rng.integers(0, len(stack) + 1, 6).tolist()))
        inserts = tuple((at, tuple(map(FunctionPlace, rng.integers(100, 103, 2).tolist()))) for at in places)
        (node,) = table.intern(walk([stack]), np.full(1, 1, np.int32), merged={0: (inserts, None)}).tolist()
        expected: list[Step] = []
        for at in range(len(stack) + 1):
            expected += [(INTERPRETER, place.function) for place in dict(inserts).get(at, ())]
            expected += [(1, stack[at])] if at < len(stack) else []
        assert path(table, node) == expected


@pytest.mark.parametrize("seed", range(4))
def test_many_stacks_at_once_are_the_nodes_of_each_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stacks = [rng.integers(1, 3, rng.integers(1, 6)).tolist() for _ in range(300)]
    made = walk(stacks)
    made.end[rng.integers(0, 300, 60)] = StackEnd.UNREADABLE
    made.trust[rng.integers(0, len(made.pc), 30)] = Trust.FP
    if seed == 3:
        made.pc[7] = (1 << 64) - 5
        stacks = [made.pc[made.start[n] : made.start[n + 1]].tolist() for n in range(300)]
    spaces = rng.integers(1, 3, 300).astype(np.int32)
    code = np.where(rng.integers(0, 9, len(made.pc)) == 0, 10, 0).astype(np.int32)
    merged = dict.fromkeys(range(0, 300, 17), (((0, (FunctionPlace(153),)),), None))
    together, alone = StackTable(), StackTable()
    nodes = together.intern(made, spaces, code, merged).tolist()
    single = []
    for lane in range(300):
        part = slice(int(made.start[lane]), int(made.start[lane + 1]))
        one = walk([stacks[lane]], end=StackEnd(int(made.end[lane])))
        one = replace(one, exact=made.exact[part], trust=made.trust[part])
        mine = {0: merged[lane]} if lane in merged else None
        single += alone.intern(one, spaces[lane : lane + 1], code[part], mine).tolist()
    assert [path(together, node) for node in nodes] == [path(alone, node) for node in single]
    assert len(set(nodes)) == len(set(single)) < 250
    assert len(together) == len(alone)


def shared(pcs: list[int], before: tuple[SharedFrames, int, int] | None = None) -> SharedFrames:
    n = len(pcs)
    return SharedFrames(
        np.array(pcs, np.uint64),
        np.zeros(n, np.bool_),
        np.full(n, Trust.COMPLETED, np.uint8),
        np.arange(n, dtype=np.uint64),
        before,
    )


def test_few_whole_stacks_are_remembered_and_all_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_MAX_WHOLE", 8)
    table = StackTable()
    made = walk([[leaf, 2, 3] for leaf in range(100, 200)])
    first = intern(table, made)
    assert len(set(first)) == 100
    assert intern(table, made) == first
    assert 0 < len(table._whole) <= 8


def test_frames_that_lanes_share_are_the_same_nodes_as_frames_of_their_own() -> None:
    table = StackTable()
    frames = shared([10, *[20] * 300, 30])
    made = replace(walk([[1], [2], [3]]), shared={0: (frames, 1), 1: (frames, 100), 2: (frames, len(frames))})
    first, second, third = intern(table, made)
    assert path(table, first) == [(1, 1), *[(1, 20)] * 300, (1, 30)]
    assert path(table, second) == [(1, 2), *[(1, 20)] * 201, (1, 30)]
    assert path(table, third) == [(1, 3)]
    other = shared([11, 12, *frames.pc[50:].tolist()], (frames, 50, 2))
    count = len(table)
    (fourth,) = intern(table, replace(walk([[4]]), shared={0: (other, 0)}))
    assert path(table, fourth)[:4] == [(1, 4), (1, 11), (1, 12), (1, 20)]
    assert len(path(table, fourth)) == 1 + len(other)
    assert len(table) == count + 3
    assert intern(table, made.unshare_frames()) == [first, second, third]


def test_more_deep_stacks_than_can_be_kept_lose_their_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_NODES", 10_000)
    table = StackTable()
    nodes = []
    for nth in range(20):
        frames = shared([7, *[100 + (nth * at) % 97 for at in range(2000)], 8])
        nodes += intern(table, replace(walk([[1]]), shared={0: (frames, 0)}))
    depths = [len(path(table, node)) for node in nodes]
    assert depths[0] == 2003
    assert depths[-1] == 1026
    assert len(table) < 10_000 + 20 * 1026
    middle = path(table, nodes[-1])
    assert middle[513] == LEFT_OUT
    assert middle[-1] == (1, 8)
    assert middle[:2] == [(1, 1), (1, 7)]
