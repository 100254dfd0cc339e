"""asyncio tasks that await the running task, read from the target or from rows of the BPF program.

CPython 3.14 and later state which task awaits another. The thread's own frames already contain the running coroutine
and those that it awaits. With `--async`, the coroutines of the awaiting task follow as callers, then those of the task
that awaits that one, and so on. They are read after the thread's stop, while those tasks wait. The sequence ends at a
task that cannot be read or that several tasks await. The BPF program reads the same at its samples
(collectors/bpf/awaiters.h).

Source: struct _Py_AsyncioModuleDebugOffsets, section .AsyncioDebug of _asyncio (Modules/_asynciomodule.c).

In the rows that the BPF program copies, these coroutines lie between the thread's own frames and the frames of
suspended evaluator calls on its stack (collectors/bpf/awaiters.h, model.interpreter_reader_protocols.FrameRows).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyprof.interpreters.cpython.code_objects import CodeReader
from pyprof.interpreters.cpython.layout import AwaitLayout, Layout
from pyprof.interpreters.cpython.object_reader import Memory, Unreadable
from pyprof.interpreters.detection_symbols import KnownSymbols, Wanted
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import FunctionPlace, Run
from pyprof.model.interpreter_reader_protocols import AwaitOffsets

_WANTED = Wanted(b"", section=".AsyncioDebug")
MAX_TASKS = 32
MAX_COROUTINES = 64
_WORDS = 13
_MAX_OFFSET = 1 << 14
_MAX_SLOTS = 1 << 12


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """Offsets in bytes of the fields of an asyncio Task of CPython. running_task is an offset in the thread state
    (PyThreadState).
    """

    awaited_by: int
    is_set: int
    coro: int
    running_task: int


def find_tasks(space: AddressSpace, symbols: KnownSymbols, memory: Memory) -> TaskLayout | None:
    """Return the layout of asyncio tasks in a process, or None if asyncio is not loaded or does not state its
    layout.
    """
    for module in space.modules:
        if "asyncio" not in module.name and "python" not in module.name:
            continue
        found = symbols.find_first(space, [module], _WANTED)
        section = found[1].section if found is not None else None
        if section is None or section[1] != 8 * _WORDS:
            continue
        try:
            words = memory.read_words(section[0], _WORDS)
        except Unreadable:
            continue
        if max(words[:7] + words[9:]) < _MAX_OFFSET:  # the other words are offsets in the interpreter state
            return TaskLayout(words[2], words[4], words[5], words[11])
    return None


class Awaiters:
    """A reader of the asyncio tasks that await other tasks in one process."""

    def __init__(
        self, memory: Memory, layout: Layout, awaits: AwaitLayout, tasks: TaskLayout, codes: CodeReader
    ) -> None:
        self._memory = memory
        self._layout = layout
        self._awaits = awaits
        self._tasks = tasks
        self._codes = codes

    def find_running_task(self, thread: int) -> int:
        """Return the avma of the asyncio task that a thread runs now, 0 if there is none."""
        try:
            return self._memory.read_u64(thread + self._tasks.running_task)
        except Unreadable:
            return 0

    def find_coroutine_frame(self, task: int) -> int:
        """Return the avma of the frame of an asyncio task's outermost coroutine, 0 if it is not known."""
        try:
            return self._memory.read_u64(task + self._tasks.coro) + self._awaits.iframe
        except Unreadable:
            return 0

    def read_awaiting_frames(self, task: int) -> tuple[FunctionPlace, ...]:
        """Return the coroutines of the asyncio tasks that await a task, innermost first."""
        found: list[FunctionPlace] = []
        seen = {task}
        try:
            for _ in range(MAX_TASKS):
                task = self._awaiter(task)
                if not task or task in seen:
                    break
                seen.add(task)
                found += reversed(list(self._coroutines(self._memory.read_u64(task + self._tasks.coro))))
        except Unreadable:
            pass
        return tuple(found)

    def _awaiter(self, task: int) -> int:
        """Return the avma of the only asyncio task that awaits a given task, 0 if no task or more than one awaits
        it.
        """
        memory, awaits = self._memory, self._awaits
        awaiter = memory.read_u64(task + self._tasks.awaited_by)
        if not awaiter or not memory.read_memory(task + self._tasks.is_set, 1)[0]:
            return awaiter
        if memory.read_u64(awaiter + awaits.set_used) != 1:
            return 0
        slots = memory.read_u64(awaiter + awaits.set_mask) + 1
        if slots > _MAX_SLOTS:
            return 0
        table = struct.iter_unpack("<QQ", memory.read_memory(memory.read_u64(awaiter + awaits.set_table), 16 * slots))
        # in a set with one member the other slots are empty or deleted; a deleted slot has the hash -1
        members = [key for key, hash_ in table if key and hash_ != 2**64 - 1]
        return members[0] if len(members) == 1 else 0

    def _coroutines(self, coroutine: int) -> Iterator[FunctionPlace]:
        """Yield a suspended coroutine and the coroutines that it awaits, outermost first."""
        memory, layout, awaits = self._memory, self._layout, self._awaits
        kind = memory.read_u64(coroutine + layout.object.type)
        for _ in range(MAX_COROUTINES):
            frame = coroutine + awaits.iframe
            place = self._frame(frame)
            if place is not None:
                yield place
            top = memory.read_u64(frame + awaits.stackpointer)
            if not frame < top < frame + (1 << 20):
                return
            coroutine = self._awaited(top, kind)
            if not coroutine:
                return

    def _awaited(self, top: int, kind: int) -> int:
        """Return the coroutine that a suspended coroutine awaits, 0 if it awaits an object of another type.

        Args:
            top: Top of the suspended frame's stack; 3.15 has a word above the awaited object.
            kind: Address of the type of coroutines.
        """
        for at in (top - 8, top - 16):
            try:
                found = self._memory.read_u64(at) & self._layout.frame.code_mask
                if found and self._memory.read_u64(found + self._layout.object.type) == kind:
                    return found
            except Unreadable:
                continue
        return 0

    def _frame(self, frame: int) -> FunctionPlace | None:
        memory, layout, codes = self._memory, self._layout.frame, self._codes
        code = memory.read_u64(frame + layout.code) & layout.code_mask
        head = memory.read_memory(code + codes.head_at, codes.head_size)
        return codes.find_place(code, head, memory.read_u64(frame + layout.instr))


TASK_BEGINS = 1
"""Flag in a copied row of the first coroutine of an asyncio task. awaiters.h of the BPF program has the same number."""


class ThreadRows(NamedTuple):
    """Rows that the BPF program has copied of one thread's Python frames, as columns, with the decoded frame of each.

    Attributes:
        places: Decoded frame of each row, None for frames that belong to the interpreter itself.
        address: avma of the frame. For a coroutine of an awaiting task, the avma of the frame whose task is awaited.
        flag: Flag of each row, such as TASK_BEGINS.
        ends: True if the row is the outermost one of its evaluator call.
    """

    places: list[FunctionPlace | None]
    address: list[int]
    flag: list[int]
    ends: list[bool]

    def separate_awaiting(self, awaiting: int, waiting: int) -> tuple[ThreadRows, ThreadRows]:
        """Separate the frame rows of awaiting asyncio tasks from those of the thread's own stack.

        Args:
            awaiting: Number of rows of awaiting tasks. They are followed by the `waiting` rows.
            waiting: Number of rows at the end that belong to suspended evaluator calls on the stack.

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
    """Return the offsets by which the BPF program finds the coroutines of awaiting tasks, or None if this CPython
    version does not state them.
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
    """Append the coroutines of awaiting asyncio tasks to runs of Python frames (the frames of one evaluator call each),
    and return the runs. A run gets them if its outermost frame belongs to the awaited task.

    Args:
        runs: The runs, decoded from the rows in `own`.
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
    """Return the coroutines of awaiting tasks, innermost first, by the avma of the Python frame whose task is
    awaited.
    """
    tasks: dict[int, list[list[FunctionPlace]]] = {}
    for place, above, flag in zip(coroutines.places, coroutines.address, coroutines.flag, strict=True):
        of_frame = tasks.setdefault(above, [])
        if flag == TASK_BEGINS:
            of_frame.append([])
        if place is not None:
            of_frame[-1].append(place)
    return {above: tuple(place for task in each for place in reversed(task)) for above, each in tasks.items()}
