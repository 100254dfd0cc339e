"""The ring buffer that the BPF programs fill, its records as columns, and the values of the BPF maps.

sampler.h has the layout of the records and of the maps. Stacks are not copied: a batch refers to the ring
(Documentation/bpf/ringbuf.rst). The data pages are mapped twice in a row, so a record that wraps is contiguous.
release_records() releases a record's room; until then arrays may refer to it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.sampled_arch import WIDE, order_reads
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.marker_frames import KernelStack

REGISTERS = len(WIDE.registers)
GOROUTINE_WORDS = 20
HEAD_WORDS = 17 + REGISTERS + GOROUTINE_WORDS
ENDED_WORDS = 13
FRAME_WORDS = 5
ANCHOR_WORDS = 2
TEXT_WORDS = 32
LABEL_NAME = 64
"""Number of bytes for a label's name in a text row of a record. The label's value follows them."""
PAGE = 4096
MOST_STACK = 1 << 20
MOST_PAGES = 512
SENT_WORDS = 2 + MOST_PAGES // 64
STACK_SLACK = 256

LAYOUT = struct.Struct("=20IQ22I")
PROCESS = struct.Struct("=QIIQQ56xq6I")
THREAD = struct.Struct("=QQQQ")
STACK_ALONE = 1
"""The bit in a thread's stack end (BPF map of threads) that says that the memory below the end is only this
thread's stack.
"""
STACK_KEY = struct.Struct("=QQ")
WAIT = struct.Struct("=8QIIIiIIQIIiI16s")
LIMITS = struct.Struct("=QQQ")
BUCKETS = 32
"""Number of buckets of the histogram of the BPF program's run times: one for each power of two of nanoseconds."""


class LossReason(IntEnum):
    """Reasons why a part of a sample is missing; format_losses_header() generates enum reason in losses.h from them.

    Attributes:
        comment: Comment in losses.h.
        counted: The counter (profiler/model/loss_reason_table.py), "" for none.
    """

    comment: str
    counted: str

    def __new__(cls, number: int, comment: str, counted: str = "") -> LossReason:
        self = int.__new__(cls, number)
        self._value_, self.comment, self.counted = number, comment, counted
        return self

    SAMPLED = 0, "a record was submitted"
    RING_FULL = 1, "no room for the record", "samples_lost"
    NO_USER_MODE = 2, "a kernel thread, or no registers"
    STACK_UNREADABLE = 3, "pages of the stack could not be read: never touched, or swapped out"
    STACK_CUT = 4, "longer than MOST_STACK", "bpf_stack_too_long"
    STACK_END_GUESSED = 5, "the list of mappings was locked", "stack_end_unknown"
    NO_THREAD_STATE = (
        6,
        "of an interpreter's process: the thread has none",
        "thread_without_interpreter_state",
    )
    FRAME_UNREADABLE = 7, "of an interpreter", "interpreter_frame_not_in_memory"
    TOO_MANY_FRAMES = (
        8,
        "more than MOST_FRAMES",
        "bpf_too_many_interpreter_frames",
    )
    OVER_BUDGET = (
        9,
        "the run took longer than MOST_RUN_NS: frames and stack end where it was then",
        "bpf_time_limit",
    )
    WAIT_LOST = (
        10,
        "no room for the end of a wait, or for its thread in the table: only in the sums, or nowhere",
        "wait_end_lost",
    )
    NO_STACK_OF_WAIT = 11, "its thread waits so often that not each wait is copied, or there was no room for it"
    ARRIVAL_MISSED = (
        12,
        "a thread leaves its processor, and the program was not called when it came",
        "switch_in_missed",
    )


def format_losses_header() -> str:
    """Return the text of the C header losses.h, which gives each reason for a lost sample its number."""
    rows = "".join(f"\t{reason.name}, /* {reason.comment} */\n" for reason in LossReason)
    licence = "/* SPDX-License-Identifier: MIT OR GPL-2.0-only */\n"
    what = (
        "/* Why something of a sample is missing: one counter each. Made of collectors/bpf/ring_buffer_records.py. */\n"
    )
    return f"{licence}{what}enum reason {{\n{rows}\tREASONS\n}};\n"


class Flag(IntFlag):
    """Flags of a record that the BPF program writes into the ring (struct record.flags)."""

    CHAIN = 1
    HOLDS_LOCK = 2
    COLLECTING = 4
    BROKEN = 8
    CUT = 16
    KERNEL = 32
    NARROW = 64
    WAITS = 128
    ENDED = 256
    GONE = 512
    WAKER = 1024
    SEVERAL = 2048
    LABELS = 4096
    UNLABELED = 8192
    PAGES = 16384
    EXITS = 32768


U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_BASE = 3 + REGISTERS
"""Index of the 64-bit word in a BPF sample record that follows the registers."""


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of n BPF sample records in order of time. sampler.h describes the fields.

    Some columns have a variable number of rows for each sample. They are stored in separate arrays with the start of
    each sample's rows: sample i has the rows from start[i] up to start[i + 1]. The starts in `frame` belong to `frames`
    (m, 5), `anchor` to `anchors` (k, 2), `text` to `texts` (j, 32), `inside` to `kernel` (l, 1). A long stack, of which
    only some pages were sent, has one row of `sent_pages` (p, SENT_WORDS), to which `sent` belongs.

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
        why: State of the task when its thread left its processor, 0 if it was preempted.
        call: Number of the thread's system call.
        waiting: Number of frames of suspended evaluator calls that were found on the stack (greenlets). They
            are the last rows of each sample.
        awaiting: Number of frames of asyncio tasks that await the running one. They precede the `waiting`
            rows.
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
    sent: I64
    sent_pages: U64

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
        sent, sent_pages = _part(self.sent, self.sent_pages, lanes)
        some = {name: getattr(self, name)[lanes] for name in _COLUMNS}
        return Records(
            **some, frame=frame, frames=frames, anchor=anchor, anchors=anchors, text=text, texts=texts,
            inside=inside, kernel=kernel, sent=sent, sent_pages=sent_pages,
        )  # fmt: skip

    @property
    def lacks_stack(self) -> npt.NDArray[np.bool_]:
        """(n,) True for each sample without memory at its sp."""
        lacks: npt.NDArray[np.bool_] = (self.size == 0) | (self.holes & np.uint64(1) != 0)
        return lacks

    def read_texts(self, pid: int) -> U64:
        """Return the interpreter strings in the records of one process as rows of 64-bit words, shape (j, 32)."""
        _, texts = _part(self.text, self.texts, np.flatnonzero(self.pid == pid))
        return texts


_ROWS = ("frame", "frames", "anchor", "anchors", "text", "texts", "inside", "kernel", "sent", "sent_pages")
_COLUMNS = tuple(name for name in Records.__slots__ if name not in _ROWS)


def read_records(words: U64, places: Sequence[int]) -> Records:
    """Read BPF sample records as columns. `places` are the indices of the words in the ring at which they begin."""
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
    sent_at = kernel_at + kernels
    with_pages = (halves[:, 5] & Flag.PAGES != 0).astype(np.int64)
    stack_at = sent_at + SENT_WORDS * with_pages
    frame, frame_rows = _rows(words, rows_at, frames, FRAME_WORDS)
    anchor, anchor_rows = _rows(words, anchors_at, anchors, ANCHOR_WORDS)
    text, text_rows = _rows(words, texts_at, texts, TEXT_WORDS)
    inside, kernel_rows = _rows(words, kernel_at, kernels, 1)
    sent, sent_rows = _rows(words, sent_at, with_pages, SENT_WORDS)
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
        sent=sent,
        sent_pages=sent_rows,
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
    """Read the records of ended waits as columns. `places` are the indices of the words in the ring at which
    they begin.
    """
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
    """Return (number of the kernel stack of each BPF record, the different kernel stacks). Stack number 0 is
    (), which means none.
    """
    known: dict[KernelStack, int] = {(): 0}
    starts, words = records.inside.tolist(), records.kernel[:, 0].tolist()
    found = [
        known.setdefault(tuple(words[start:end]), len(known)) if end > start else 0 for start, end in pairwise(starts)
    ]
    return np.array(found, np.int32), tuple(known)


def split_positions(words: U64, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split the positions of BPF records into two lists (positions of samples, positions of ended waits)."""
    at = np.array(places, np.int64)
    ends = (words[at + 2] >> np.uint64(32)) & np.uint64(Flag.ENDED | Flag.GONE) != 0
    return at[~ends].tolist(), at[ends].tolist()


def _rows(words: U64, at: I64, counts: I64, width: int) -> tuple[I64, U64]:
    """Return the rows that each BPF record has, of which there may be any number, as (index of each record's
    first row, all rows as (m, width) words).
    """
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


_PAGE = mmap.PAGESIZE
_BUSY, _DISCARD = 1 << 31, 1 << 30
_HEAD = 8
FOREVER_NS = 2**63 - 1


class RecordRing:
    """The ring buffer that the BPF programs fill with records.

    A record begins with its time. Records of several processors are nearly in order of time.

    Attributes:
        words: All data as 64-bit words. It is mapped twice in a row, so that each record is contiguous.
        size: Size of the data in bytes.
        fd: Descriptor of the BPF map.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the BPF ring buffer into memory; `size` is a power of two."""
        self.size = size
        self.fd = fd
        self._mask = size - 1
        self._consumer = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._memory = mmap.mmap(fd, _PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        everything = np.frombuffer(self._memory, np.uint64)
        self._producer = everything[:1]
        self.words: npt.NDArray[np.uint64] = everything[_PAGE // 8 :]
        self._heads = everything[_PAGE // 8 :].view(np.uint32)
        self._at = struct.unpack_from("=Q", self._consumer)[0]

    def take_records(self, until_ns: int = FOREVER_NS, max_records: int = 1 << 20) -> tuple[list[int], int]:
        """Return the next records of the BPF ring buffer.

        Args:
            until_ns: Stop at the first record after this time.
            max_records: Maximum number of records.

        Returns:
            (indices of the words at which the records begin, position to pass to release_records()).
        """
        found, self._at = self._scan(until_ns, max_records)
        return found, self._at

    def find_later_records(self, max_records: int = 1 << 20) -> list[int]:
        """Return the indices of the words at which the records begin that take_records() has left in the BPF
        ring buffer.
        """
        return self._scan(FOREVER_NS, max_records)[0]

    def _scan(self, until_ns: int, most: int) -> tuple[list[int], int]:
        at, end, mask, heads = self._at, int(self._producer[0]), self._mask, self._heads
        order_reads()
        found: list[int] = []
        while at < end and len(found) < most:
            place = at & mask
            head = int(heads[place >> 2])
            if head & _BUSY:
                break
            size = head & ~(_BUSY | _DISCARD)
            if not head & _DISCARD:
                word = (place + _HEAD) >> 3
                if int(self.words[word]) > until_ns:
                    break
                found.append(word)
            at += (size + _HEAD + 7) & ~7
        order_reads()
        return found, at

    def release_records(self, until: int) -> None:
        """Release all ring buffer records before a position, so that the kernel may overwrite them."""
        order_reads()
        struct.pack_into("=Q", self._consumer, 0, until)

    @property
    def used(self) -> int:
        """Number of bytes in the BPF ring buffer that the reader has not released."""
        return int(self._producer[0]) - int(struct.unpack_from("=Q", self._consumer)[0])


def find_spans(base: int, size: int, holes: int) -> list[tuple[int, int]]:
    """Return (begin, end) of each part of a stack copy that was in memory; adjacent pages are merged."""
    edges = [0, *range(PAGE - base % PAGE, size, PAGE), size] if size else [0]
    spans: list[tuple[int, int]] = []
    for n, (low, high) in enumerate(pairwise(edges)):
        if not holes >> n & 1:
            spans.append((spans.pop()[0], high) if spans and spans[-1][1] == low else (low, high))
    return spans
