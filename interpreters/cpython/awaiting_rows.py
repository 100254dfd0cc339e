"""Tasks that await the running one (asyncio), as a program in the kernel copies them: what it has to know, and where
their coroutines stand in a chain.

Rows of coroutines lie between those of the thread's own frames and those of what waits on its stack (collectors/bpf/
awaiters.h): see model.interpreter.FrameRows. Stops have the same from tasks.py.
"""

from __future__ import annotations

from typing import NamedTuple

from pyprof.interpreters.cpython.layout import Layout
from pyprof.interpreters.cpython.tasks import TaskLayout
from pyprof.model.interpreter import AwaitOffsets, FunctionPlace, Run
from pyprof.records import replace

TASK_BEGINS = 1
"""The flag of a row: awaiters.h has the same number."""


class ThreadRows(NamedTuple):
    """Rows of one thread: the columns of FrameRows, and what they say. ends: does a run end there?"""

    places: list[FunctionPlace | None]
    address: list[int]
    flag: list[int]
    ends: list[bool]

    def apart(self, awaiting: int, waiting: int) -> tuple[ThreadRows, ThreadRows]:
        """(those of the thread's own stack, so many of tasks that await); so many of the first ones wait there."""
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
    """None where the version does not say what leads from one coroutine to the next."""
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


def with_coroutines(runs: list[Run], own: ThreadRows, coroutines: ThreadRows) -> list[Run]:
    """Where the frame that they belong to is the outermost one of a run. own: what the runs were made of."""
    above = _above(coroutines)
    outermost = [own.address[at - 1] if at and not own.ends[at - 1] else 0 for at, end in enumerate(own.ends) if end]
    return [
        replace(run, frames=run.frames + above[frame]) if frame in above else run
        for run, frame in zip(runs, outermost + [0] * (len(runs) - len(outermost)), strict=True)
    ]


def _above(coroutines: ThreadRows) -> dict[int, tuple[FunctionPlace, ...]]:
    """Above which frame (avma) which ones stand, innermost first."""
    tasks: dict[int, list[list[FunctionPlace]]] = {}
    for place, above, flag in zip(coroutines.places, coroutines.address, coroutines.flag, strict=True):
        of_frame = tasks.setdefault(above, [])
        if flag == TASK_BEGINS:
            of_frame.append([])
        if place is not None:
            of_frame[-1].append(place)
    return {above: tuple(place for task in each for place in reversed(task)) for above, each in tasks.items()}
