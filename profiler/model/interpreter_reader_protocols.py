"""The interface between collectors and interpreters: how the frames of an interpreter are read from a process.

Interpreters make plans and offsets (FrameReadPlan, FrameOffsets, GoroutineOffsets). Collectors read the memory with
these: while a thread is stopped (StackReader), or by a BPF program (KernelReader, FrameRows).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain

_I64 = npt.NDArray[np.int64]

Span = tuple[int, int]
"""A range of a process's memory: (address, number of bytes)."""


Gather = Callable[[Sequence[Span]], memoryview]
"""Type of a function that reads spans of memory one after the other into one buffer, and returns it.

The next call overwrites the buffer. It is shorter if a span cannot be read: data from there on is missing.
"""


class PlacedSpan(NamedTuple):
    """A range of a process's memory, and the offset of its copy in a buffer."""

    avma: int
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class FrameReadPlan:
    """A plan by which a collector reads CPython's frames while it has stopped the thread, without calling the
    interpreter's reader.

    The collector first reads the spans, the first of which is the head of the thread state. It then follows the chain
    of frames and reads those that lie in none of the spans. Offsets are bytes in the head or in a frame, -1 if this
    version has no such field.

    Attributes:
        key: Identifies the object that made the plan.
        spans: The ranges of memory that are read first.
        chunks: Chunks of the data stack, newest first.
        loose: Frames outside of the data stack.
        codes: Addresses of fully known code objects, ascending. A frame of any other code object needs more reads.
        ident: Value that thread_id in the head must have.
        interpreter: Value that interp in the head must have.
        cframe: Offset of the pointer to the innermost CFrame.
        by_cframe: True if the CFrame links the innermost frame.
        root_cframe: Address of the thread's outermost CFrame, which links no frame.
        most: Maximum number of frames that are followed.
        room: Number of bytes beyond the top of the newest chunk that are read.
    """

    key: object
    spans: Sequence[Span]
    chunks: Sequence[PlacedSpan]
    loose: Sequence[PlacedSpan]
    codes: array[int]
    ident: int
    interpreter: int
    thread_id: int
    interp: int
    frame: int
    chunk: int
    cframe: int
    base_frame: int
    by_cframe: bool
    root_cframe: int
    cframe_size: int
    cframe_current: int
    cframe_previous: int
    previous: int
    code: int
    code_mask: int
    frame_size: int
    most: int
    room: int


@dataclass(frozen=True, slots=True)
class GoroutineOffsets:
    """Byte offsets that lead from a thread of a Go program to its goroutine.

    Attributes:
        tls: Offset from the thread pointer of the address of the current struct g.
        m: Offset in struct g of the address of the thread's struct m.
        g0: Offset in struct m of the struct g with the stack of the scheduler.
        gsignal: Offset in struct m of the struct g with the stack of signal handlers.
        curg: Offset in struct m of the goroutine that the thread runs.
        sched: Offset in struct g of the stack pointer with which a goroutine left its stack.
        labels: Offset in struct g of the address of its labels, 0 if the program sets none.
    """

    tls: int
    m: int
    g0: int
    gsignal: int
    curg: int
    sched: int
    labels: int = 0


class StackReader(Protocol):
    """Reader of an interpreter's frames in the threads of one process, together with each thread's stack.

    The caller first calls inspect_process(). For each sample it calls copy() while the thread is stopped, and
    take_chain() after the thread was continued. If a copy only serves to improve the next one, it calls learn() in
    place of take_chain().
    """

    @property
    def reads(self) -> bool:
        """Return True if the process has an interpreter whose frames must be copied while its threads are stopped. Call
        inspect_process() first.
        """
        ...

    @property
    def goroutines(self) -> GoroutineOffsets | None:
        """Return the offsets of the process's Go runtime that inspect_process() has found, or None if it has none."""
        ...

    def inspect_process(self, space: AddressSpace, tids: Collection[int]) -> None:
        """Inspect the current modules and threads of the process, before samples are taken."""
        ...

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        """Copy the memory with the interpreter frames of a stopped thread.

        Args:
            tid: The thread.
            stack: Copy of the thread's stack.
            base: Address in the target of the first byte of `stack`.
            gather: Reads the target's memory.
        """
        ...

    def learn(self) -> None:
        """Use the last copy of interpreter frames only to improve the next copy: choose what has to be read in
        addition.
        """
        ...

    def ahead(self, tid: int) -> FrameReadPlan | None:
        """Return a plan with which the collector can read a thread's interpreter frames during a stop, in place of a
        call of copy(). Return None if only copy() can read them.
        """
        ...

    def copied_ahead(
        self, tid: int, ahead: FrameReadPlan, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> None:
        """Accept the memory with interpreter frames that the collector has read by a plan of ahead(), in place of a
        call of copy(). The thread may already run again.

        Args:
            tid: The thread.
            ahead: The plan.
            stack: Copy of the thread's stack.
            base: Address in the target of the first byte of `stack`.
            gather: Returns the memory that was read during the stop.
            now: Reads the current memory of the process.
        """
        ...

    def left(self, tid: int) -> str:
        """Forget a thread that has ended, because the kernel may reuse its tid.

        Returns:
            The name that the program gave the thread in its interpreter, "" if none.
        """
        ...

    def take_chain(self) -> Chain | None:
        """Return the interpreter frames of the thread of the last copy(), or None if the thread never had any."""
        ...


@dataclass(frozen=True, slots=True)
class AwaitOffsets:
    """Byte offsets of fields by which a reader follows asyncio tasks and coroutines that await each other.

    They lead from a thread state to the task that it runs, from a task to its awaiters and to its coroutine, and from a
    coroutine to the one that it awaits. frame_top is the offset of the pointer to the end of a suspended frame's stack.
    """

    running_task: int
    task_awaited_by: int
    task_is_set: int
    task_coroutine: int
    object_type: int
    coroutine_frame: int
    frame_top: int
    set_used: int
    set_table: int
    set_mask: int


@dataclass(frozen=True, slots=True)
class FrameOffsets:
    """Byte offsets of an interpreter's threads and frames, for a BPF program that does not know the interpreter.

    An offset is -1 if a version has no such field. The names are those of CPython.

    Attributes:
        frame_flag: A byte of a frame (is_entry, owner). If it is at least run_ends, the frame is the outermost of its
            evaluator call.
        run_ends: See frame_flag.
        frame_bytes: Number of bytes that contain all fields of a frame.
        code_head: Offset of the words of a code object that identify it.
        code_words: Number of those words.
        code_texts: Number of those words, at their end, that point to the data of names and lines.
        instr_bytes: 4 or 8.
        seeks: How the C stack is searched for waiting evaluator calls that are in no chain of frames. 0: not at all; 1:
            by the fields that follow this one; 2: by CFrames.
        frame_height: A 16-bit field that is all ones in frames that call native code.
        awaits: None if awaiting tasks are not requested, or unknown.
    """

    interpreters_head: int
    interpreter_next: int
    threads_head: int
    thread_next: int
    thread_id: int
    native_id: int
    thread_frame: int
    thread_cframe: int
    root_cframe: int
    cframe_current: int
    cframe_previous: int
    base_frame: int
    frame_code: int
    frame_previous: int
    frame_instr: int
    frame_flag: int
    run_ends: int
    frame_tlbc: int
    frame_bytes: int
    code_head: int
    code_words: int
    code_texts: int
    code_mask: int
    instr_bytes: int
    gil_holder: int
    gil_locked: int
    tid_in_pthread: int
    seeks: int
    frame_object: int
    object_frame: int
    object_link: int
    frame_height: int
    awaits: AwaitOffsets | None = None


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """The addresses that belong to one interpreter thread: its thread state, its GIL, and the flag that says whether
    the garbage collector runs.
    """

    tid: int
    address: int
    gil: int
    collecting: int


class CopiedStack(NamedTuple):
    """A copy of a thread's stack, with links between the waiting interpreter frames on it (those of suspended evaluator
    calls).

    Attributes:
        state: Address of the thread state.
        base: Address of the copy.
        words: The copy; 0 where memory was unreadable.
        links: For each row of a waiting frame the address of its caller's frame, and flags. The low byte says that the
            frame is the outermost of its evaluator call, the next bit that it calls native code (see sampler.h).
    """

    state: int
    base: int
    words: memoryview
    links: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The interpreter frames of n threads as a BPF program has copied them, in rows that KernelReader.chains() decodes.

    The rows of a thread end with those of awaiting tasks, and then those of waiting evaluator calls. A row of an
    awaiting task has the address of the frame of its outermost coroutine, and flag 1 where a task begins. The tasks are
    in order outwards, the coroutines of each task inwards.

    Attributes:
        start: (n + 1,) First row of each thread.
        waiting: (n,) Number of rows of evaluator calls that wait on the stack and are in no chain.
        awaiting: (n,) Number of rows of tasks that await the running one.
        frames: (m, 4) uint64: address, code, instruction, hash of the code's head (see hash_words()).
        flag: (m,) Owner of the frame, or whether it is an entry frame.
        tlbc: (m,) Copy of the bytecode that it runs (free-threaded builds).
        stand_start: (n + 1,) First marker of each thread.
        stands: (k, 2) Markers on the C stack with the frames that they refer to.
        texts: (j, 32) New code objects and the objects that they refer to: avma, number of bytes, and the bytes.
        holds: (n,) True if the thread holds the GIL.
        collecting: (n,) True if it collects garbage.
        broken: (n,) True if its chain could not be read to the end.
        several: (n,) True if its rows belong to several interpreters, one after the other.
        copies: Copied stacks by thread index.
    """

    start: npt.NDArray[np.int64]
    waiting: npt.NDArray[np.int64]
    awaiting: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint64]
    flag: npt.NDArray[np.uint8]
    tlbc: npt.NDArray[np.uint32]
    stand_start: npt.NDArray[np.int64]
    stands: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.uint64]
    holds: npt.NDArray[np.bool_]
    collecting: npt.NDArray[np.bool_]
    broken: npt.NDArray[np.bool_]
    several: npt.NDArray[np.bool_]
    copies: Mapping[int, CopiedStack] = field(default_factory=dict)

    def take_threads(self, lanes: npt.NDArray[np.int64]) -> FrameRows:
        """Return the rows of the threads with these indices. The copies of code objects and texts are not divided by
        thread, and all stay.
        """
        start, at = _part(self.start, lanes)
        stand_start, stand_at = _part(self.stand_start, lanes)
        return FrameRows(
            start,
            self.waiting[lanes],
            self.awaiting[lanes],
            self.frames[at],
            self.flag[at],
            self.tlbc[at],
            stand_start,
            self.stands[stand_at],
            self.texts,
            self.holds[lanes],
            self.collecting[lanes],
            self.broken[lanes],
            self.several[lanes],
            {n: self.copies[lane] for n, lane in enumerate(lanes.tolist()) if lane in self.copies},
        )


def _part(start: npt.NDArray[np.int64], lanes: npt.NDArray[np.int64]) -> tuple[_I64, _I64]:
    """Select the rows of interpreter frames that belong to some threads.

    Returns:
        (first row of each thread in the selection, indices of the selected rows).
    """
    counts = np.diff(start)[lanes]
    some = np.zeros(len(lanes) + 1, np.int64)
    np.cumsum(counts, out=some[1:])
    return some, np.arange(some[-1]) + np.repeat(start[lanes] - some[:-1], counts)


class KernelReader(Protocol):
    """The reader of one process's interpreter frames if a BPF program copies them. It supplies the field offsets that
    the program needs, and decodes the rows that the program has copied.
    """

    def inspect_process(
        self, space: AddressSpace, tids: Collection[int], parent: KernelReader | None = None
    ) -> str | None:
        """Inspect the current modules and threads of the process before the other methods are called. The process may
        have ended.

        Args:
            space: The modules.
            tids: The threads.
            parent: Reader of the process that forked this one, if both run the same program.

        Returns:
            "" if chains contain all frames; None if an interpreter has not finished its start-up; else the cause for
            which some frames can be read only while the thread is stopped.
        """
        ...

    def offsets(self) -> tuple[int, FrameOffsets] | None:
        """Return (address of the interpreter's runtime structure, offsets of fields for the BPF program), or None if
        the process has no interpreter that BPF can read.
        """
        ...

    def goroutines(self) -> GoroutineOffsets | None:
        """Return the offsets of the process's Go runtime, or None if it has none that is known."""
        ...

    def places(self) -> list[ThreadPlace]:
        """Return the addresses of the interpreter state of each thread whose state is known now."""
        ...

    def chains(self, rows: FrameRows) -> Sequence[Chain | None]:
        """Return the interpreter frames of each thread of these rows as a chain, None for a thread without frames."""
        ...

    def finish_batch(self) -> None:
        """Note that all rows which the BPF program has copied up to now were decoded, so that cached copies of code
        objects and texts can be dropped.
        """
        ...
