"""asyncio tasks that await the running task, as the BPF program copies them: the offsets it needs, and the place of the
tasks' coroutines in a chain.

The rows of these coroutines lie between the thread's own frames and the evaluator calls that wait on its stack
(collectors/bpf/awaiters.h, model.interpreter_state.FrameRows). For samples by stops, asyncio_tasks.py does the same.
"""

from __future__ import annotations

from typing import NamedTuple

from pyprof.interpreters.cpython.asyncio_tasks import TaskLayout
from pyprof.interpreters.cpython.layout import Layout
from pyprof.model.interpreter_state import AwaitOffsets, FunctionPlace, Run
from pyprof.records import replace

TASK_BEGINS = 1
"""Flag of a row of copied frames with which an asyncio task begins; awaiters.h has the same number."""


class ThreadRows(NamedTuple):
    """The rows of interpreter frames that the BPF program has copied of one thread: columns of FrameRows and what they
    mean.

    Attributes:
        places: Decoded frame of each row, None for the interpreter's own.
        address: avma of the frame; for a coroutine of an awaiting task, of the frame above which it stands.
        flag: The row's flag.
        ends: True if the row ends a run.
    """

    places: list[FunctionPlace | None]
    address: list[int]
    flag: list[int]
    ends: list[bool]

    def separate_awaiting(self, awaiting: int, waiting: int) -> tuple[ThreadRows, ThreadRows]:
        """Separate the frame rows of awaiting asyncio tasks from those of the thread's own stack.

        Args:
            awaiting: Number of rows of awaiting tasks; they stand before the waiting ones.
            waiting: Number of last rows, of evaluator calls that wait on the stack.

        Returns:
            (rows of the thread's own stack, rows of awaiting tasks).
        """
        last = len(self.places) - waiting
        first = last - awaiting
        places, address, flag, ends = self
        return ThreadRows(
            places[:first] + places[last:],
            address[:first] + address[last:],
            flag[:first] + flag[last:],
            ends[:first] + ends[last:],
        ), ThreadRows(places[first:last], address[first:last], flag[first:last], ends[first:last])


def await_offsets(layout: Layout, tasks: TaskLayout) -> AwaitOffsets | None:
    """Return the offsets that lead from one awaiting coroutine to the next, or None if this CPython version does not
    state them.
    """
    awaits = layout.awaits
    if awaits is None:
        return None
    return AwaitOffsets(
        running_task=tasks.running_task,
        task_awaited_by=tasks.awaited_by,
        task_is_set=tasks.is_set,
        task_coroutine=tasks.coro,
        object_type=layout.object.type,
        coroutine_frame=awaits.iframe,
        frame_top=awaits.stackpointer,
        set_used=awaits.set_used,
        set_table=awaits.set_table,
        set_mask=awaits.set_mask,
    )


def append_coroutines(runs: list[Run], own: ThreadRows, coroutines: ThreadRows) -> list[Run]:
    """Append the coroutines of awaiting asyncio tasks to each run of frames whose outermost frame belongs to the
    awaited task.

    Args:
        runs: Runs that were made of the rows in `own`.
        own: Rows of the thread's own stack.
        coroutines: Rows of the awaiting tasks.
    """
    above = _above(coroutines)
    outermost = [own.address[at - 1] if at and not own.ends[at - 1] else 0 for at, end in enumerate(own.ends) if end]
    return [
        replace(run, frames=run.frames + above[frame]) if frame in above else run
        for run, frame in zip(runs, outermost + [0] * (len(runs) - len(outermost)), strict=True)
    ]


def _above(coroutines: ThreadRows) -> dict[int, tuple[FunctionPlace, ...]]:
    """Map the avma of each awaited frame to the coroutines that await it, innermost first."""
    tasks: dict[int, list[list[FunctionPlace]]] = {}
    for place, above, flag in zip(coroutines.places, coroutines.address, coroutines.flag, strict=True):
        of_frame = tasks.setdefault(above, [])
        if flag == TASK_BEGINS:
            of_frame.append([])
        if place is not None:
            of_frame[-1].append(place)
    return {above: tuple(place for task in each for place in reversed(task)) for above, each in tasks.items()}
