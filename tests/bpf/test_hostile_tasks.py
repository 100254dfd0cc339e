"""Tests of the BPF program on corrupt asyncio tasks: circles of tasks or coroutines, endless sets, random words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.bpf.ring_buffer_records import Flag, LossReason
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from tests.bpf.made_memory import ENTRY, FREE, HEAP, OF_TASKS, STACK, MadeProcess
from tests.bpf.test_hostile_memory import NOWHERE, STEPS, code, run, sampled
from tests.bpf.user_space import Ran

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

MOST_TASKS, MOST_COROUTINES, MOST_SLOTS = 32, 64, 4096
TASKS, SIZE, TYPE = HEAP + 0xA0000, 0x80, HEAP + 0x9F000
COROUTINES, SIZE_OF_COROUTINE = FREE + 0x1000, 0x100
SETS, TABLE = HEAP + 0xC0000, HEAP + 0xC1000
DELETED = (1 << 64) - 1
OWN = 3
"""Number of rows of the thread's own frames."""


def task(number: int) -> int:
    return TASKS + SIZE * number


def coroutine(number: int) -> int:
    return COROUTINES + SIZE_OF_COROUTINE * number


class MadeTasks(MadeProcess):
    """A thread that runs a function in the coroutine of the first task. Tasks and coroutines are numbered."""

    def __init__(self) -> None:
        super().__init__(OF_TASKS)
        assert self.tasks is not None
        assert self.layout.awaits is not None
        self.offsets_of_task, self.awaits = self.tasks, self.layout.awaits
        entry, inner = STACK + 0x400, FREE
        self.innermost(inner)
        self.coroutine(0)
        self.frame(inner, self.frame_of(0), code(self, 0))
        self.frame(self.frame_of(0), entry, code(self, 1))
        self.frame(entry, 0, self.mark_code, ENTRY)
        self.put(self.thread + self.offsets_of_task.running_task, task(0))
        self.task(0, 0, 0)

    def frame_of(self, number: int) -> int:
        return coroutine(number) + self.awaits.iframe

    def task(self, number: int, its_coroutine: int, awaiter: int, is_set: bool = False) -> None:
        """Write a task.

        Args:
            number: Number of the task.
            its_coroutine: Number of its coroutine.
            awaiter: Address of the task that awaits it, or of a set of such tasks.
            is_set: Whether awaiter is a set.
        """
        at = task(number)
        self.put(at + self.offsets_of_task.coro, coroutine(its_coroutine))
        self.put(at + self.offsets_of_task.awaited_by, awaiter)
        self.put(at + self.offsets_of_task.is_set, is_set)

    def coroutine(self, number: int, awaits: int | None = None, depth: int = 1) -> None:
        """Write a suspended coroutine.

        Args:
            number: Number of the coroutine.
            awaits: Number of the coroutine that it awaits.
            depth: Distance of that reference below the top of the value stack, in words.
        """
        at, frame = coroutine(number), self.frame_of(number)
        self.put(at + self.layout.object.type, TYPE)
        self.frame(frame, 0, code(self, number % 1000))
        top = frame + self.layout.frame.size + 16
        self.put(frame + self.awaits.stackpointer, top)
        if awaits is not None:
            self.put(top - 8 * depth, coroutine(awaits))

    def set(self, members: dict[int, tuple[int, int]], mask: int, used: int = 1, table: int = TABLE) -> int:
        """Write a set object and return its address.

        Args:
            members: (key, hash) by slot.
            mask: The set's mask field.
            used: The set's number of members.
            table: Address of the hash table.
        """
        self.put(SETS + self.awaits.set_used, used)
        self.put(SETS + self.awaits.set_mask, mask)
        self.put(SETS + self.awaits.set_table, table)
        for slot, (key, hash_) in members.items():
            self.put(TABLE + 16 * slot, key)
            self.put(TABLE + 16 * slot + 8, hash_)
        return SETS


def awaiting(ran: Ran) -> int:
    """Return the number of rows of awaiting tasks, and check that the other rows are the thread's own."""
    record = ran.record
    found = int(record.awaiting[0])
    assert len(record.frames) == OWN + found
    assert not record.flags[0] & Flag.BROKEN
    return found


@pytest.mark.parametrize("count", [1, 2, 20, 33, 34, 200])
def test_tasks_in_a_circle_are_taken_once_and_so_many_at_most(count: int) -> None:
    process = MadeTasks()
    for n in range(count):
        process.coroutine(n) if n else None
        process.task(n, n, task((n + 1) % count))
    found = sampled(process)
    assert awaiting(found[0][0]) == min(count - 1, MOST_TASKS)
    assert found[-1][1][LossReason.OVER_BUDGET] > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 100])
def test_coroutines_are_followed_as_far_as_is_bound(count: int, depth: int) -> None:
    """Follow a circle of coroutines, in which the last one awaits the first one."""
    process = MadeTasks()
    process.task(0, 0, task(1))
    process.task(1, 1, 0)
    for n in range(count):
        process.coroutine(1 + n, 1 + (n + 1) % count, depth)
    found = sampled(process)
    assert awaiting(found[0][0]) == MOST_COROUTINES
    assert found[-1][1][LossReason.OVER_BUDGET] > 0


def test_tasks_whose_coroutines_do_not_fit_into_a_record_are_left_out() -> None:
    process = MadeTasks()
    process.coroutine(1, 1)
    for n in range(40):
        process.task(n, min(n, 1), task(n + 1))
    found = sampled(process)
    assert awaiting(found[0][0]) == (MAX_ROWS - OWN) // MOST_COROUTINES * MOST_COROUTINES


@pytest.mark.parametrize(
    ("members", "mask", "used", "table", "taken"),
    [
        ({5: (task(1), 77)}, 7, 1, TABLE, 1),
        ({5: (task(1), 77), 2: (TYPE, DELETED)}, 7, 1, TABLE, 1),
        ({MOST_SLOTS - 1: (task(1), 77)}, MOST_SLOTS - 1, 1, TABLE, 1),
        ({MOST_SLOTS - 1: (task(1), 77)}, MOST_SLOTS, 1, TABLE, 0),
        ({0: (task(1), 77)}, (1 << 64) - 1, 1, TABLE, 0),
        ({5: (task(1), 77)}, 7, 2, TABLE, 0),
        ({5: (task(2), 77), 6: (task(1), 78)}, 7, 1, TABLE, 0),
        ({5: (task(1), DELETED)}, 7, 1, TABLE, 0),
        ({}, 7, 1, TABLE, 0),
        ({5: (task(1), 77)}, 7, 1, NOWHERE, 0),
        ({5: (TYPE, 77)}, 7, 1, TABLE, 0),
        ({5: (NOWHERE, 77)}, 7, 1, TABLE, 0),
    ],
)
def test_of_a_set_its_one_member_counts(
    members: dict[int, tuple[int, int]], mask: int, used: int, table: int, taken: int
) -> None:
    process = MadeTasks()
    process.task(0, 0, process.set(members, mask, used, table), is_set=True)
    process.task(1, 1, 0)
    process.coroutine(1)
    found = sampled(process)
    assert awaiting(found[0][0]) == taken


@pytest.mark.parametrize("wrong", [NOWHERE, 0, 1, TASKS + 4, (1 << 64) - 8])
def test_task_of_which_something_cannot_be_read_ends_the_chain_before_it(wrong: int) -> None:
    process = MadeTasks()
    for n in range(3):
        process.coroutine(n) if n else None
        process.task(n, n, task(n + 1))
    process.task(2, 2, wrong)
    assert awaiting(run(process, [1])[0][0]) == 2
    process.put(task(2) + process.offsets_of_task.coro, wrong)
    assert awaiting(run(process, [1])[0][0]) == 1
    process.coroutine(1, 2)
    process.put(process.frame_of(1) + process.awaits.stackpointer, wrong)
    assert awaiting(run(process, [1])[0][0]) == 1
    process.put(process.thread + process.offsets_of_task.running_task, wrong)
    assert awaiting(run(process, [1])[0][0]) == 0


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 1 << 32), st.sampled_from([0.3, 0.8, 0.95, 1.0]), st.integers(0, 1 << 13))
def test_nonsense_ends_and_nothing_is_out_of_bounds(seed: int, density: float, place: int) -> None:
    process = MadeTasks()
    process.scatter(seed, density)
    process.innermost(FREE)
    process.frame(FREE, STACK + 0x400, code(process, 0))
    process.frame(STACK + 0x400, 0, process.mark_code, ENTRY)
    process.put(process.thread + process.offsets_of_task.running_task, FREE + 8 * place)
    run(process, STEPS)
