"""Records of the ring as columns. Stacks are not copied: a batch refers to the ring."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.abi import (
    ANCHOR_WORDS,
    ENDED_WORDS,
    FRAME_WORDS,
    HEAD_WORDS,
    REGISTERS,
    TEXT_WORDS,
    Flag,
)
from pyprof.model.marker_frames import KernelStack
from pyprof.records import dataclass

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_BASE = 3 + REGISTERS
"""Index of the 64-bit word in a BPF sample record that follows the registers."""


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of n BPF sample records in order of time. sampler.h describes the fields.

    Rows of a sample i are at [start[i], start[i + 1]) in a separate array, where start has n + 1 elements: `frame` for
    `frames` (m, 5), `anchor` for `anchors` (k, 2), `text` for `texts` (j, 32), and `inside` for `kernel` (l, 1).

    Attributes:
        regs: Registers (n, k), in the columns of perf_arch.WIDE.
        offset: Offset of the stack copy in the ring, in bytes.
        holes: Bits of pages of the copy that were not in memory.
        below_base: Address of a second copy, which follows the first. It is the stack that a signal handler on an
            alternate stack has interrupted, or the root part of a longer stack.
        below_holes: Bits of its missing pages.
        below_size: Its size in bytes.
        goroutine: Address of the goroutine (struct g) that a thread of a Go program runs, 0 if it runs none.
        goroutine_head: (n, GOROUTINE_WORDS) The memory at that address.
        goroutine_base: Address of a third copy, which follows the second: the goroutine's stack, if the thread has left
            it.
        goroutine_holes: Bits of its missing pages.
        goroutine_size: Its size in bytes.
        why: Why the thread stopped running: state of the task, for threads that leave their processor.
        call: Number of the thread's system call.
        waiting: Number of frames, at the end of each sample's rows, of interpreter evaluator calls that wait on the
        stack. awaiting: Number of frames before those of tasks that await the running one.
    """

    time_ns: I64
    pid: npt.NDArray[np.int32]
    tid: npt.NDArray[np.int32]
    cpu: npt.NDArray[np.int32]
    flags: U32
    regs: U64
    base: U64
    offset: I64
    size: I64
    state: U64
    holes: U64
    below_base: U64
    below_holes: U64
    below_size: I64
    goroutine: U64
    goroutine_head: U64
    goroutine_base: U64
    goroutine_holes: U64
    goroutine_size: I64
    run_ns: U32
    why: U32
    call: npt.NDArray[np.int32]
    waiting: I64
    awaiting: I64
    frame: I64
    frames: U64
    anchor: I64
    anchors: U64
    text: I64
    texts: U64
    inside: I64
    kernel: U64

    def __len__(self) -> int:
        return len(self.time_ns)

    def select_rows(self, lanes: I64) -> Records:
        """Return the sample records at these ascending indices."""
        if len(lanes) == len(self):
            return self
        frame, frames = _part(self.frame, self.frames, lanes)
        anchor, anchors = _part(self.anchor, self.anchors, lanes)
        text, texts = _part(self.text, self.texts, lanes)
        inside, kernel = _part(self.inside, self.kernel, lanes)
        some = {name: getattr(self, name)[lanes] for name in _COLUMNS}
        return Records(
            **some, frame=frame, frames=frames, anchor=anchor, anchors=anchors, text=text, texts=texts,
            inside=inside, kernel=kernel,
        )  # fmt: skip

    def read_texts(self, pid: int) -> U64:
        """Return the interpreter strings of all samples of a process."""
        _, texts = _part(self.text, self.texts, np.flatnonzero(self.pid == pid))
        return texts


_ROWS = ("frame", "frames", "anchor", "anchors", "text", "texts", "inside", "kernel")
_COLUMNS = tuple(name for name in Records.__slots__ if name not in _ROWS)


def read_records(words: U64, places: Sequence[int]) -> Records:
    """Read BPF sample records; `places` are the words of the ring at which they begin."""
    at = np.array(places, np.int64)
    heads = words[at[:, None] + np.arange(HEAD_WORDS)]
    order = np.argsort(heads[:, 0], kind="stable")
    at, heads = at[order], heads[order]
    halves = np.ascontiguousarray(heads).view(np.uint32).reshape(len(at), 2 * HEAD_WORDS)
    frames, anchors, texts, kernels = (halves[:, 2 * _BASE + n].astype(np.int64) for n in (3, 4, 15, 18))
    rows_at = at + HEAD_WORDS
    anchors_at = rows_at + FRAME_WORDS * frames
    texts_at = anchors_at + ANCHOR_WORDS * anchors
    kernel_at = texts_at + TEXT_WORDS * texts
    stack_at = kernel_at + kernels
    frame, frame_rows = _rows(words, rows_at, frames, FRAME_WORDS)
    anchor, anchor_rows = _rows(words, anchors_at, anchors, ANCHOR_WORDS)
    text, text_rows = _rows(words, texts_at, texts, TEXT_WORDS)
    inside, kernel_rows = _rows(words, kernel_at, kernels, 1)
    return Records(
        time_ns=heads[:, 0].view(np.int64),
        pid=halves[:, 2].view(np.int32),
        tid=halves[:, 3].view(np.int32),
        cpu=halves[:, 4].view(np.int32),
        flags=halves[:, 5],
        regs=heads[:, 3:_BASE],
        base=heads[:, _BASE],
        offset=8 * stack_at,
        size=halves[:, 2 * _BASE + 2].astype(np.int64),
        state=heads[:, _BASE + 3],
        holes=heads[:, _BASE + 4],
        below_base=heads[:, _BASE + 5],
        below_holes=heads[:, _BASE + 6],
        below_size=halves[:, 2 * _BASE + 14].astype(np.int64),
        goroutine=heads[:, _BASE + 11],
        goroutine_head=heads[:, _BASE + 14 : HEAD_WORDS],
        goroutine_base=heads[:, _BASE + 12],
        goroutine_holes=heads[:, _BASE + 13],
        goroutine_size=halves[:, 2 * _BASE + 21].astype(np.int64),
        run_ns=halves[:, 2 * _BASE + 5],
        why=halves[:, 2 * _BASE + 16],
        call=halves[:, 2 * _BASE + 17].view(np.int32),
        waiting=halves[:, 2 * _BASE + 19].astype(np.int64),
        awaiting=halves[:, 2 * _BASE + 20].astype(np.int64),
        frame=frame,
        frames=frame_rows,
        anchor=anchor,
        anchors=anchor_rows,
        text=text,
        texts=text_rows,
        inside=inside,
        kernel=kernel_rows,
    )


@dataclass(frozen=True, slots=True)
class WaitEnds:
    """Columns of n ended waits and ended threads in order of time; see struct ended in sampler.h."""

    time_ns: I64
    pid: npt.NDArray[np.int32]
    tid: npt.NDArray[np.int32]
    flags: U32
    off_ns: I64
    waking_ns: I64
    why: U32
    call: npt.NDArray[np.int32]
    blocked_ns: I64
    runnable_ns: I64
    object: I64
    waker_pid: npt.NDArray[np.int32]
    waker_tid: npt.NDArray[np.int32]
    waker_call: npt.NDArray[np.int32]
    waker_name: npt.NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.time_ns)


def read_wait_ends(words: U64, places: Sequence[int]) -> WaitEnds:
    """Read the records of ended waits; `places` are the words of the ring at which they begin."""
    at = np.array(places, np.int64)
    rows = words[at[:, None] + np.arange(ENDED_WORDS)]
    rows = np.ascontiguousarray(rows[np.argsort(rows[:, 0], kind="stable")])
    halves = rows.view(np.uint32).reshape(len(at), 2 * ENDED_WORDS)
    time_ns, off_ns, waking_ns, blocked_ns, runnable_ns = (rows[:, n].view(np.int64) for n in (0, 3, 4, 6, 7))
    return WaitEnds(
        time_ns=time_ns,
        pid=halves[:, 2].view(np.int32),
        tid=halves[:, 3].view(np.int32),
        flags=halves[:, 5],
        off_ns=off_ns,
        waking_ns=waking_ns,
        why=halves[:, 10],
        call=halves[:, 11].view(np.int32),
        blocked_ns=blocked_ns,
        runnable_ns=runnable_ns,
        object=rows[:, 8].view(np.int64),
        waker_pid=halves[:, 18].view(np.int32),
        waker_tid=halves[:, 19].view(np.int32),
        waker_call=halves[:, 20].view(np.int32),
        waker_name=np.ascontiguousarray(rows[:, 11:13]).view("S16")[:, 0],
    )


def read_kernel_stacks(records: Records) -> tuple[npt.NDArray[np.int32], tuple[KernelStack, ...]]:
    """Return the index of each BPF record's kernel stack, and the stacks; the first one is ()."""
    known: dict[KernelStack, int] = {(): 0}
    starts, words = records.inside.tolist(), records.kernel[:, 0].tolist()
    found = [
        known.setdefault(tuple(words[start:end]), len(known)) if end > start else 0 for start, end in pairwise(starts)
    ]
    return np.array(found, np.int32), tuple(known)


def split_positions(words: U64, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split the positions of BPF records into (those of samples, those of ended waits)."""
    at = np.array(places, np.int64)
    ends = (words[at + 2] >> np.uint64(32)) & np.uint64(Flag.ENDED | Flag.GONE) != 0
    return at[~ends].tolist(), at[ends].tolist()


def _rows(words: U64, at: I64, counts: I64, width: int) -> tuple[I64, U64]:
    """Return (index of each record's first row, all rows) of the variable-length part of BPF records."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    first = np.repeat(at, counts) + width * inside
    return starts, words[first[:, None] + np.arange(width)]


def _part(starts: I64, rows: U64, lanes: I64) -> tuple[I64, U64]:
    counts = np.diff(starts)[lanes]
    some = np.zeros(len(lanes) + 1, np.int64)
    np.cumsum(counts, out=some[1:])
    return some, rows[np.arange(some[-1]) + np.repeat(starts[:-1][lanes] - some[:-1], counts)]


NO_RECORDS = read_records(np.zeros(0, np.uint64), ())
NO_ENDS = read_wait_ends(np.zeros(0, np.uint64), ())
