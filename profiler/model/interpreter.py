"""What an interpreter was doing in a thread when its sample was taken: runs of its frames, and where they belong."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.modules import AddressSpace
from pyprof.records import dataclass, field, replace

_I64 = npt.NDArray[np.int64]


class SampleState(IntFlag):
    """What else is known of a sample."""

    INTERPRETED = 1  # the thread belongs to an interpreter
    HOLDS_LOCK = 2  # it holds the interpreter's global lock
    COLLECTING = 4  # it collects garbage
    NATIVE_CUT = 8  # a run of the interpreter's frames lies beyond the end of a native stack that is cut short
    NO_PLACE = 16  # a run's marker lies in no unwound frame
    NO_MARKER = 32  # a run has no marker
    NO_RUN = 64  # an activation of the evaluator has no run
    BROKEN_CHAIN = 128  # the interpreter's own chain could not be read to its end
    LONG_CHAIN = 256  # the chain is longer than what is copied
    STOPPED = 512  # the thread was stopped for the sample; by none of these three: the kernel took it
    ASLEEP = 1024  # the thread slept: its stack was read from outside
    UNCHANGED = 2048  # the thread had not run since its last sample: that one's stack again


PARTIAL: dict[SampleState, str] = {
    SampleState.NATIVE_CUT: "python frames beyond a native stack that is cut short",
    SampleState.NO_PLACE: "python frames on no native frame",
    SampleState.NO_MARKER: "python frames without a mark on the C stack",
    SampleState.NO_RUN: "evaluator on the stack without python frames",
    SampleState.BROKEN_CHAIN: "chain of python frames not whole",
    SampleState.LONG_CHAIN: "more python frames than are copied",
}
"""Why the frames of an interpreter and the native ones could not all be matched, as it is counted."""


class FunctionPlace(NamedTuple):
    """A frame of an interpreter. function: the number that its function has in the recording. instruction: as the
    function's table of lines counts, -1 if it has not begun.
    """

    function: int
    instruction: int = -1


@dataclass(frozen=True, slots=True)
class Run:
    """The frames that one activation of the evaluator runs, innermost first.

    marker: an address on the activation's own C stack, 0 where this version keeps none. waits: the thread does not name
    this activation itself, it was found on its C stack.
    """

    marker: int
    frames: tuple[FunctionPlace, ...]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A thread's runs, innermost first. problem: why it may lack frames, "" if it is whole. evaluators: where the
    evaluator's parts begin, as far as symbols say. marked: this version marks the C stack. marks: all marks, innermost
    first, where it is not known which of them belongs to which run. others: the C stack may hold activations that are
    not in the chain, outside it (those of other greenlets). lacking: about so many of the outermost frames are missing,
    because more is copied of no chain; enough: bytes of --stack-size that would copy all of it, 0 if none
    would; scattered: nothing would, each frame is a read of its own. number: no other one of this process has it, 0:
    it has none. One with a number may come again and again, and is sent between processes once. trunk: chains that have
    the same one differ in the instruction of their innermost frame only, 0: none has it.
    """

    runs: tuple[Run, ...]
    state: SampleState
    problem: str
    evaluators: tuple[int, ...]
    marked: bool
    marks: tuple[int, ...] = ()
    others: bool = False
    lacking: int = 0
    enough: int = 0
    scattered: bool = False
    number: int = 0
    trunk: int = 0

    @property
    def innermost(self) -> FunctionPlace:
        """Of a chain with a trunk."""
        return self.runs[0].frames[0]

    def at(self, instruction: int, number: int) -> Chain:
        """The one of the same trunk that is at another instruction."""
        run = self.runs[0]
        frames = (FunctionPlace(run.frames[0].function, instruction), *run.frames[1:])
        return replace(self, runs=(Run(run.marker, frames, run.waits), *self.runs[1:]), number=number)


Span = tuple[int, int]
"""(avma, bytes)"""

Gather = Callable[[Sequence[Span]], memoryview]
"""Reads spans one behind the other into one buffer, which the next call overwrites; shorter where one cannot be read:
the rest is missing from there on."""


class PlacedSpan(NamedTuple):
    """Bytes of a process, and where they stand in what was read."""

    avma: int
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class FramesAhead:
    """What a stop reads of an interpreter's frames without asking anybody: first the spans, of which the first one is
    the head of the thread's state; then, along its chain of frames, those that are in none of these. Offsets are bytes
    in the head or in a frame, -1: this version has no such field.

    key: of who made it. ident, interpreter: what the head must say. chunks: of the data stack, newest first; room:
    bytes of the newest one that count beyond its top; loose: frames that lie elsewhere. cframe: of the pointer to the
    innermost CFrame, by_cframe: which names the innermost frame; root_cframe: the one that names none. most: frames
    that are followed. codes: of which all is known, ascending; a frame of another one is not foreseen.
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


class StackReader(Protocol):
    """Reads an interpreter's frames of the threads of one process, together with each thread's stack.

    look, then for each sample copy (while the thread stands still) and take (when it runs again). A copy that was only
    made to know better what to read at the next one is followed by learn.
    """

    @property
    def reads(self) -> bool:
        """Does an interpreter run there whose frames are to be copied? As look() has found it."""
        ...

    def look(self, space: AddressSpace, tids: Collection[int]) -> None:
        """Before samples are taken: the modules and threads as they are now."""
        ...

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        """Read what the frames of a thread need. stack: its stack copy, which stood at base."""
        ...

    def learn(self) -> None:
        """What the copy that was made last says of the next one."""
        ...

    def ahead(self, tid: int) -> FramesAhead | None:
        """What the next stop of a thread is to read; None where only copy() knows how."""
        ...

    def copied_ahead(
        self, tid: int, ahead: FramesAhead, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> None:
        """What ahead says was read in a stop: copy() of that, when the thread runs again. gather: gives what was read;
        now: reads what is there now.
        """
        ...

    def left(self, tid: int) -> str:
        """A thread has ended; its number may come again. The name that the interpreter gave it, "" if none."""
        ...

    def take(self) -> Chain | None:
        """Of the thread that was copied last; None if it has no frames of the interpreter and never had."""
        ...


@dataclass(frozen=True, slots=True)
class AwaitOffsets:
    """What leads from a thread's state to the task that it runs (asyncio), from a task to those that await it and to
    its coroutine, and from a coroutine to the one that it awaits. Byte offsets; frame_top: of the pointer to the end of
    a suspended frame's stack.

    It has ten fields, as FrameOffsets has many.
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
    """Where an interpreter keeps its threads and frames, for a reader that does not know the interpreter: a
    program in the kernel. Byte offsets, -1 where a version has no such field; the names are those of CPython.

    frame_flag: a byte that ends a run (is_entry, owner) where it is at least run_ends. code_head, code_words: words of
    a code object that identify it; the last code_texts of them point to what its names and lines are read from.
    instr_bytes: 4 or 8. frame_bytes: that hold all of a frame's fields. seeks: not 0 where activations may wait on a
    thread's stack that are in no chain: 1 where they are found by the fields behind it, 2 by CFrames. frame_height: of
    a half word of ones in frames that call native code. awaits: None where it is not asked, or not known, which tasks
    await which.
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
    """A thread's state in its interpreter. address, gil, collecting: avmas."""

    tid: int
    address: int
    gil: int
    collecting: int


class CopiedStack(NamedTuple):
    """A thread's stack as it was copied with rows of frames that may wait on it. state: avma of its thread state.
    words: that stood at base; 0 where they could not be read. links: of each of these rows, the frame that is outside
    of it, whether it ends a run (the low byte), and whether it calls native code (the next bit); see sampler.h.
    """

    state: int
    base: int
    words: memoryview
    links: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FrameRows:
    """What a program in the kernel has copied of n threads' frames. start (n + 1,): where the rows of each begin.
    waiting (n,): the last so many of them are of activations that wait on the stack, in no chain. awaiting (n,): so
    many before those are of tasks that await the running one. Their address is that of the frame of its outermost
    coroutine, their flag 1 where a task begins: tasks stand in order outwards, the coroutines of each inwards.

    frames (m, 4) uint64: address, code, instruction, the code's head folded (fold()). flag (m,): what the frame says of
    itself, its owner or whether it is an entry. tlbc (m,): which copy of the instructions it runs (free-threaded
    builds). stands (k, 2): marks on the C stack, with the frames that they name; stand_start (n + 1,). texts (j, 32):
    code objects and what these refer to, as they were when they were met first: avma, how many bytes, and these. holds,
    collecting, broken: (n,) bool; several: rows of several interpreters, one behind the other.
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

    def take(self, lanes: npt.NDArray[np.int64]) -> FrameRows:
        """Those of these indices, with all texts."""
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
    """(where the rows of each of these begin among theirs, which rows these are)."""
    counts = np.diff(start)[lanes]
    some = np.zeros(len(lanes) + 1, np.int64)
    np.cumsum(counts, out=some[1:])
    return some, np.arange(some[-1]) + np.repeat(start[lanes] - some[:-1], counts)


class KernelReader(Protocol):
    """What a program in the kernel needs of one process's interpreter, and what its rows mean."""

    def look(self, space: AddressSpace, tids: Collection[int], parent: KernelReader | None = None) -> str | None:
        """Before the others are asked: the modules and threads as they are now; it may have ended. parent: of the
        process that forked it, if that ran the same program. "": its chains say all; None: there is an interpreter that
        has not begun; else what only a stop can find.
        """
        ...

    def offsets(self) -> tuple[int, FrameOffsets] | None:
        """(avma of the runtime, where its fields are); None where there is no interpreter, or none that the program can
        read.
        """
        ...

    def places(self) -> list[ThreadPlace]:
        """Of the threads that are known now."""
        ...

    def chains(self, rows: FrameRows) -> Sequence[Chain | None]:
        """What n threads ran; None of one without frames."""
        ...

    def done(self) -> None:
        """Rows to come are of later samples than all those until now."""
        ...
