"""Decoder of the Python frames that the BPF program has copied, and the offsets that the program needs.

All samples of a batch are decoded together. The BPF program (sampler.bpf.c) follows a thread's frames with the offsets
from find_offsets() and writes a row for each frame. Most rows of a batch differ only in the address of the frame. Each
distinct row is decoded once and cached.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.cpython.asyncio_tasks import TaskLayout, ThreadRows, append_coroutines, await_offsets
from pyprof.interpreters.cpython.code_objects import CodeReader
from pyprof.interpreters.cpython.frame_copier import ENTRY_OWNER
from pyprof.interpreters.cpython.frame_reader import LOST, ChainCache, row_keys, row_states
from pyprof.interpreters.cpython.frames_by_evaluator_call import sort_runs
from pyprof.interpreters.cpython.greenlet_cframes import WaitingRows
from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.object_reader import CopiedMemory, Memory, Text, Unreadable
from pyprof.interpreters.cpython.runtime_validation import PTHREAD_TID, Runtime
from pyprof.interpreters.function_table import UNREAD, FunctionTable, next_chain_number
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.interpreter_reader_protocols import FrameOffsets, FrameRows, KernelReader, ThreadPlace
from pyprof.model.loss_reason_texts import make_cause
from pyprof.problem_counters import Diagnostics

if TYPE_CHECKING:
    from pyprof.interpreters.cpython.process_reader import PythonProcess

_MAX_KNOWN = 1 << 16
_FRAME_BYTES = 112
_MAX_HEAD = 16
_MIX = 0x9E3779B97F4A7C15
_U64 = npt.NDArray[np.uint64]
_LACKS_MARKER = "an activation of the evaluator has no mark on the C stack"
_BROKEN = "a frame could not be read"
MAX_ROWS = 1024
"""Maximum number of interpreter frames of a thread that the BPF program copies; sampler.h has the same number."""


_MAX_HEADS = 1 << 14


def find_offsets(layout: Layout, greenlets: bool = False, tasks: TaskLayout | None = None) -> FrameOffsets | None:
    """Return the offsets of CPython's fields for the BPF program, or None if the fields of a frame or code object lie
    too far apart.

    Args:
        greenlets: True if greenlets may be suspended on threads' stacks.
        tasks: Layout of asyncio tasks if the tasks that await the running one are recorded.
    """
    thread, frame, code = layout.thread, layout.frame, layout.code
    named = NONE not in (thread.cframe, thread.cframe_current)
    if frame.size > _FRAME_BYTES or _head_words(layout) > _MAX_HEAD:
        return None
    return FrameOffsets(
        interpreters_head=layout.runtime.interpreters_head,
        interpreter_next=layout.interpreter.next,
        threads_head=layout.interpreter.threads_head,
        thread_next=thread.next,
        thread_id=thread.thread_id,
        native_id=thread.native_id,
        thread_frame=NONE if named else thread.frame,
        thread_cframe=thread.cframe,
        root_cframe=thread.root_cframe,
        cframe_current=thread.cframe_current,
        cframe_previous=thread.cframe_previous,
        base_frame=thread.base_frame,
        frame_code=frame.code,
        frame_previous=frame.previous,
        frame_instr=frame.instr,
        frame_flag=frame.is_entry if frame.is_entry != NONE else frame.owner,
        run_ends=ENTRY_OWNER if layout.chain is ChainKind.SHIMS else 1,
        frame_tlbc=frame.tlbc_index,
        frame_bytes=(frame.size + 7) & ~7,
        code_head=code.firstlineno & ~7,
        code_words=_head_words(layout),
        code_texts=_head_texts(layout),
        code_mask=frame.code_mask,
        instr_bytes=8 if code.bytecode != NONE else 4,
        gil_holder=layout.gil_holder,
        gil_locked=layout.gil_locked,
        tid_in_pthread=PTHREAD_TID[0],
        seeks=_sought(layout) if greenlets else 0,
        frame_object=frame.object,
        object_frame=frame.object_frame,
        object_link=frame.object_link,
        frame_height=frame.instr + 8 if layout.minor < 14 else NONE,
        awaits=await_offsets(layout, tasks) if tasks is not None else None,
    )


def _sought(layout: Layout) -> int:
    """Return the way in which the BPF program searches a stack for suspended evaluator calls of a CPython version, as a
    value of FrameOffsets.seeks.
    """
    if layout.chain is ChainKind.SHIMS:
        return int(layout.frame.object_link != NONE)
    return 2 if layout.chain is ChainKind.ENTRIES else 0


def hash_words(words: tuple[int, ...]) -> int:
    """Return the hash of the copied first words of a code object, as the BPF program computes it."""
    folded = 0
    for word in words:
        folded = (folded ^ word) * _MIX & 2**64 - 1
        folded ^= folded >> 32
    return folded


def head_words(layout: Layout, data: bytes) -> tuple[int, ...]:
    """Return the first words of a code object that the BPF program hashes.

    Args:
        data: The code object from its type on, as from CodeReader.read_head().
    """
    first = (layout.code.firstlineno & ~7) - layout.object.type
    return struct.unpack_from(f"<{_head_words(layout)}Q", data, first)


def _head_words(layout: Layout) -> int:
    return (layout.code.linetable + 8 - (layout.code.firstlineno & ~7)) // 8


def _head_texts(layout: Layout) -> int:
    return (layout.code.linetable + 8 - layout.code.filename) // 8


class _RowKey(NamedTuple):
    """The contents that the BPF program has copied of one Python frame, without the frame's address. They are the key
    of the cache of decoded frames.
    """

    code: int
    instr: int
    tlbc: int
    head: int


class FrameRowReader:
    """A decoder of the interpreter frames (rows) that the BPF program has copied from one process. `parent` is the
    decoder of the process that forked this one, with the same code objects.
    """

    def __init__(self, runtime: Runtime, memory: Memory, book: FunctionTable, parent: FrameRowReader | None) -> None:
        layout = runtime.layout
        self._parent = parent
        self._book = book
        self._memory = CopiedMemory(memory)
        self._codes = CodeReader(self._memory, layout, book, runtime.located.code_type)
        self._evaluators = runtime.located.evaluators
        self._known: dict[_RowKey, FunctionPlace | None] = {}
        self._folded: dict[tuple[int, int], bytes] = {}
        self._texts: dict[tuple[int, int], list[Text]] = {}
        self._chains = ChainCache(book)
        self._heads = CodeHistory()
        self._kind = layout.chain
        self._layout = layout
        self._waiting = WaitingRows(layout) if layout.chain is ChainKind.ENTRIES else None

    @property
    def lost(self) -> int:
        """Number of frames whose code object was freed before its name was read."""
        return self._codes.lost

    def chains(self, rows: FrameRows, others: bool = False) -> list[Chain]:
        """Return the Python frames (a Chain) of each thread of a batch, in order. Equal rows give the same Chain
        object, in all batches.

        Args:
            others: The C stacks may hold evaluator calls of suspended greenlets (Chain.others).
        """
        self._texts = self._texts_of(rows.texts)
        if self._waiting is not None:
            rows = self._waiting.filter_rows(rows)
        return self._chains.find_chains(
            row_keys(rows, others),
            lambda lanes: self._decoded(rows.take_threads(np.array(lanes, np.int64)), others),
            partial(self._at, rows),
        )

    def _at(self, rows: FrameRows, chain: Chain, lane: int) -> Chain | None:
        """Return a cached frame chain whose innermost frame is moved to the instruction of another sample. Return None
        if the innermost frame now runs another function.

        Args:
            rows: The rows of all samples.
            chain: A chain with the same rows except for the instruction of the innermost frame.
            lane: Index of the other sample.
        """
        at = int(rows.start[lane])
        _, code, instr, head = rows.frames[at].tolist()
        place = self._place(code, instr, int(rows.tlbc[at]), head)
        if place is None or place.function != chain.innermost.function:
            return None
        return chain.at(place.instruction, next_chain_number())

    def finish_batch(self) -> None:
        """Record that all rows of a batch were decoded: the rows of the next batch were sampled later."""
        self._heads.begin_round()

    def _decoded(self, rows: FrameRows, others: bool) -> list[Chain]:
        """Decode the copied Python frames of those threads whose chains of frames are not in the cache."""
        shims, each_marked = self._kind is ChainKind.SHIMS, self._kind is ChainKind.CFRAMES
        ends = rows.flag >= ENTRY_OWNER if shims else rows.flag != 0
        entry = ends & shims
        places, which = self._places(rows, entry)
        start, stand_start = rows.start.tolist(), rows.stand_start.tolist()
        broken, several, address = rows.broken.tolist(), rows.several.tolist(), rows.frames[:, 0]
        waiting, awaiting, found = rows.waiting.tolist(), rows.awaiting.tolist(), []
        absent = np.flatnonzero((rows.frames[:, 3] == 0) & ~entry)
        unsure = {*(np.searchsorted(rows.start, absent, side="right") - 1).tolist()}
        for lane, state in enumerate(row_states(rows).tolist()):
            a, b, c, d = start[lane], start[lane + 1], stand_start[lane], stand_start[lane + 1]
            own = [places[at] for at in which[a:b].tolist()]
            there = ThreadRows(own, address[a:b].tolist(), rows.flag[a:b].tolist(), ends[a:b].tolist())
            there, coroutines = there.separate_awaiting(awaiting[lane], waiting[lane])
            runs, problem = self._runs(there.places, there.address, there.ends, rows.stands[c:d].tolist())
            runs = append_coroutines(runs, there, coroutines) if awaiting[lane] else runs
            surplus = tuple(rows.stands[c:d, 0].tolist()) if each_marked and d - c > b - a else ()
            lacking = MAX_ROWS if broken[lane] and b - a == MAX_ROWS else 0
            if waiting[lane]:
                last = slice(b - waiting[lane], b)
                runs = _waiting(runs, address[last] if shims else rows.stands[d - ends[last].sum() : d, 0])
            runs = sort_runs(runs) if several[lane] else runs
            number = 0 if UNREAD in own or lane in unsure else next_chain_number()
            plain = bool(runs) and not several[lane] and runs[0].frames[:1] == (own[0],)
            chain = Chain(
                tuple(runs),
                SampleState(state),
                "" if lacking else _BROKEN if broken[lane] else problem,
                self._evaluators,
                marked=self._kind is not ChainKind.OBJECTS,
                others=others,
                lacking=lacking,
                scattered=self._kind < ChainKind.ENTRIES,
                marks=surplus,
                number=number,
                trunk=number if plain else 0,
            )
            found.append(chain)
        return found

    def _texts_of(self, rows: _U64) -> dict[tuple[int, int], list[Text]]:
        """Return the bytes that the BPF program copied of each code object, by (the object's address, hash of its first
        words).

        In the rows, a code object precedes the objects to which it refers. A later row may describe another code object
        at the same address.
        """
        texts = [Text(int(row[0]), row[2:].tobytes()[: int(row[1])]) for row in rows]
        copied: dict[tuple[int, int], list[Text]] = {}
        size = self._codes.head_at + self._codes.head_size
        for n, (code, data) in enumerate(texts):
            if len(data) >= size:
                words = head_words(self._layout, data[self._codes.head_at :])
                copied.setdefault((code, hash_words(words)), texts[n : n + 1 + _head_texts(self._layout)])
        return copied

    def _places(
        self, rows: FrameRows, entry: npt.NDArray[np.bool_]
    ) -> tuple[list[FunctionPlace | None], npt.NDArray[np.int64]]:
        """Decode all copied rows of a batch to functions and instructions. Rows of suspended frames have no copied head
        of the code object.

        Args:
            rows: The m rows.
            entry: Mask of shape (m,): True for entry frames, which run no Python code.

        Returns:
            (list of the distinct frames, int64 index into the list of shape (m,)). Frames of the interpreter itself are
            None.
        """
        frames = rows.frames
        if not len(frames):
            return [], np.zeros(0, np.int64)
        mixed = frames[:, 1] * np.uint64(0x9E3779B97F4A7C15) ^ frames[:, 2] * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= frames[:, 3] * np.uint64(0x165667B19E3779F9) + rows.tlbc
        _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
        some = zip(frames[first].tolist(), rows.tlbc[first].tolist(), entry[first].tolist(), strict=True)
        found = [None if own else self._place(code, instr, tlbc, head) for (_, code, instr, head), tlbc, own in some]
        return found, place.ravel()

    def _place(self, code: int, instr: int, tlbc: int, head: int) -> FunctionPlace | None:
        if not head:
            return self._place_of_absent(code, instr, tlbc)
        key = _RowKey(code, instr, tlbc, head)
        reader = self._knows(key)
        if reader is not None:
            self._heads.record_head(code, head)
            return reader._known[key]
        data = self._head_of(code, head)
        if not data and self._parent is not None:
            return self._parent._place(*key)
        place = self._codes.find_place(code, data, instr, tlbc)
        if place != UNREAD:  # a forked child may have the same code object at the same address, including its text
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = place
            self._heads.record_head(code, head)
        return place

    def _place_of_absent(self, code: int, instr: int, tlbc: int) -> FunctionPlace | None:
        """Decode a Python frame whose code was not in memory when it was sampled. Reading it brings it into memory for
        later samples.
        """
        self._memory.prefer_texts(())
        try:
            data = self._codes.read_head(code)
        except Unreadable:
            data = b""
        if data and not self._heads.has_same_head(code, hash_words(head_words(self._layout, data))):
            data = b""
        return self._codes.find_place(code, data, instr, tlbc)

    def _knows(self, key: _RowKey) -> FrameRowReader | None:
        """Return the decoder that has decoded a row with a given key before: this decoder or that of an ancestor
        process. None if no decoder has.

        The same head at the same address is the same code object. The FunctionTable (functions of all interpreters)
        drops the number of a function that no frame used for a long time; its rows are decoded again.
        """
        reader: FrameRowReader | None = self
        while reader is not None:
            if key in reader._known:
                place = reader._known[key]
                if place is None or self._book.has_code(place.function):
                    return reader
                del reader._known[key]
            reader = reader._parent
        return None

    def _head_of(self, code: int, head: int) -> bytes:
        """Return the head of a code object (the part that each sample copies), b"" if another code object is at its
        address now.

        Args:
            code: avma of the code object.
            head: Hash of the head that a sample contains.
        """
        known = self._folded.get((code, head))
        if known is not None:
            return known
        self._memory.prefer_texts(self._texts.get((code, head), ()))
        try:
            data = self._codes.read_head(code)
        except Unreadable:
            return b""
        if hash_words(head_words(self._layout, data)) != head:
            return b""
        if len(self._folded) >= _MAX_KNOWN:
            self._folded.clear()
        self._folded[code, head] = data
        return data

    def _runs(
        self, places: list[FunctionPlace | None], address: list[int], ends: list[bool], stands: list[list[int]]
    ) -> tuple[list[Run], str]:
        """Return (the Python frames of one thread grouped by evaluator call, innermost first; the reason why frames may
        be missing, or "").
        """
        if self._kind is ChainKind.SHIMS:
            return _by_shims(places, address, ends)
        if self._kind is ChainKind.ENTRIES:
            return _by_entries(places, address, ends, [(mark, frame) for mark, frame in stands if frame])
        marks = [mark for mark, _ in stands]
        lacks = _LACKS_MARKER if self._kind is ChainKind.CFRAMES and len(marks) < len(places) - 1 else ""
        skip = len(marks) - len(places) if marks else 0
        return [
            Run(marks[skip + n] if 0 <= skip + n < len(marks) else 0, () if place is None else (place,))
            for n, place in enumerate(places)
        ], lacks


def _waiting(runs: list[Run], marks: _U64) -> list[Run]:
    """Set Run.waits for the runs of Python frames that belong to suspended evaluator calls, and return all runs.
    `marks` has the C stack markers of those calls.
    """
    there = {*marks.tolist()}
    return [replace(run, waits=True) if run.marker in there else run for run in runs]


def _by_shims(places: list[FunctionPlace | None], address: list[int], ends: list[bool]) -> tuple[list[Run], str]:
    runs: list[Run] = []
    run: list[FunctionPlace] = []
    begun = False
    for place, avma, end in zip(places, address, ends, strict=True):
        if end:
            runs.append(Run(avma, tuple(run)))
            run, begun = [], False
            continue
        begun = True
        if place is not None:
            run.append(place)
    if begun:
        runs.append(Run(0, tuple(run)))
    return runs, _LACKS_MARKER if begun else ""


def _by_entries(
    places: list[FunctionPlace | None], address: list[int], ends: list[bool], stands: list[tuple[int, int]]
) -> tuple[list[Run], str]:
    runs: list[Run] = []
    problem = ""
    first = 0
    marks: dict[int, list[int]] = {}
    for at, (_, frame) in enumerate(stands):
        marks.setdefault(frame, []).append(at)
    least = 0
    for n, end in enumerate(ends):
        if not end and n + 1 < len(ends):
            continue
        named = marks.get(address[first], [])
        nth = bisect_left(named, least)
        mark = stands[named[nth]][0] if nth < len(named) else 0
        if mark:
            least = named[nth] + 1
        if not mark or not end:
            problem = _LACKS_MARKER
        runs.append(Run(mark, tuple(place for place in places[first : n + 1] if place is not None)))
        first = n + 1
    return runs, problem


class CodeHistory:
    """A record of which code objects were at which addresses of one process, and when. Code objects are identified by
    the hash of their head, the part that each sample copies (see hash_words()).

    It serves frames whose code object was not in memory when they were sampled. Such a code object is known if one with
    the same head was at its address before the sample and is there now.

    Samples come in rounds: all samples of a round are later than those of earlier rounds. A head that a sample
    contained counts for later rounds. A head that was read while a round was decoded counts from the next round but
    one, because the samples of the next round may be older than the read.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._met: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._read_late: dict[int, int] = {}

    def record_head(self, code: int, head: int) -> None:
        """Record that a sample of the current round contains a head (hash of the first words) of the code object at an
        address.
        """
        self._met[code] = head

    def has_same_head(self, code: int, head: int) -> bool:
        """Record the head of the code object that is at an address now. Return True if a code object with the same head
        was there before the current round of samples.
        """
        self._read[code] = head
        return self._before.get(code) == head

    def begin_round(self) -> None:
        """Begin the next round of samples in the history of code objects, and forget older ones if there are many."""
        if len(self._before) > _MAX_HEADS:
            self._before.clear()
        self._before |= self._read_late | self._met
        self._read_late, self._read, self._met = self._read, {}, {}


class PythonInKernel:
    """The decoder of CPython frames that a BPF program has copied in one process. Implements KernelReader. The caller
    must call inspect_process() of the PythonProcess first, which finds the runtime and lists threads.
    """

    def __init__(self, process: PythonProcess, diagnostics: Diagnostics) -> None:
        self._process = process
        self._diagnostics = diagnostics
        self._runtime: Runtime | None = None
        self._rows: FrameRowReader | None = None
        self._tids: tuple[int, ...] = ()

    def inspect_process(
        self, space: AddressSpace, tids: Collection[int], parent: KernelReader | None = None
    ) -> str | None:
        process = self._process
        if self._runtime is not None and not space.modules:
            return ""  # the process has ended: what is known of it explains its last samples
        self._tids = tuple(tids)
        self._take(process.expected, parent)
        if self._runtime is not None and self.offsets() is None:
            return make_cause("frames_unknown_to_program", version=self._runtime.layout.version)
        return None if process.undecided else ""

    def _take(self, runtime: Runtime | None, parent: KernelReader | None) -> None:
        before, self._runtime = self._runtime, runtime
        if runtime is None:
            self._rows = None
        elif before is None or (before.address, before.layout) != (runtime.address, runtime.layout):
            inherited = parent._rows if isinstance(parent, PythonInKernel) and parent._runs(runtime) else None
            self._rows = self._process.row_reader(runtime, inherited)

    def _runs(self, runtime: Runtime) -> bool:
        """Return True if this process runs the same CPython runtime at the same address."""
        own = self._runtime
        return own is not None and (own.address, own.layout) == (runtime.address, runtime.layout)

    def goroutines(self) -> None:
        """Return None, because Python has no goroutines."""

    def offsets(self) -> tuple[int, FrameOffsets] | None:
        if self._runtime is None:
            return None
        offsets = find_offsets(self._runtime.layout, self._process.greenlets, self._process.tasks)
        return None if offsets is None else (self._runtime.address, offsets)

    def places(self) -> list[ThreadPlace]:
        states = [(tid, self._process.thread_states(tid)) for tid in self._tids]
        return [ThreadPlace(tid, of[0].address, of[0].gil, of[0].collecting) for tid, of in states if of]

    def chains(self, rows: FrameRows) -> Sequence[Chain | None]:
        if self._rows is None:
            return [None] * (len(rows.start) - 1)
        lost = self._rows.lost
        found = self._rows.chains(rows, self._process.greenlets)
        if self._rows.lost > lost:
            self._diagnostics.count(LOST, self._rows.lost - lost)
        return found

    def finish_batch(self) -> None:
        if self._rows is not None:
            self._rows.finish_batch()
