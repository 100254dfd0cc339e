"""Tests of corrupt interpreter memory: it costs Python frames, but neither unbounded time nor exceptions."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.interpreters.cpython import debug_offsets
from pyprof.interpreters.cpython.code_objects import CodeReader
from pyprof.interpreters.cpython.frame_copier import ENTRY_OWNER, MAX_FRAMES, Copier, make_greenlet_search
from pyprof.interpreters.cpython.frames_by_evaluator_call import RunReader
from pyprof.interpreters.cpython.greenlets import EntrySearch, SwitchedThread, count_waiting_bytes
from pyprof.interpreters.cpython.layout import LAYOUTS, Layout
from pyprof.interpreters.cpython.object_reader import LocalReader, Memory, Objects, Unreadable, make_gather
from pyprof.interpreters.cpython.runtime_validation import PyThread
from pyprof.interpreters.cpython.thread_snapshot import ReadHints
from pyprof.interpreters.frame_merge import Evaluators, merge_chain
from pyprof.interpreters.function_table import FunctionTable
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.unwind_result import StackEnd

pytestmark = pytest.mark.fuzz

BASE = 0x7F00_0000_0000
SIZE = 1 << 16
MAX_AT_ONCE = 2 << 20
"""Maximum size of a read in bytes, whatever size a structure states."""


@pytest.mark.parametrize("avma", [-8, 0, (1 << 64) - 1 + 24])
def test_word_that_is_no_address_is_unreadable_and_never_asked_for(avma: int) -> None:
    def read(asked: int, size: int) -> bytes:
        raise AssertionError(f"{asked:#x}")

    with pytest.raises(Unreadable):
        Memory(read).read_u64(avma)


def nonsense(seed: int) -> Callable[[int, int], bytes]:
    """Return a reader of memory at BASE in which nearly all words point into itself."""
    rng = random.Random(seed)
    words = [
        rng.choice((0, 1, 3, BASE + 8 * rng.randrange(SIZE // 8), rng.getrandbits(64), rng.randrange(200)))
        for _ in range(SIZE // 8)
    ]
    data = struct.pack(f"<{len(words)}Q", *words)

    def read(avma: int, size: int) -> bytes:
        assert size <= MAX_AT_ONCE
        at = avma - BASE
        return data[at : at + size] if 0 <= at <= SIZE else b""

    return read


class Nonsense:
    """A greenlets.StoppedMemory of random words that limits the number of reads."""

    def __init__(self, seed: int) -> None:
        self.memory, self.left = nonsense(seed), 4096

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        self.left -= 1
        data = self.memory(avma, size) if self.left > 0 and avma & 7 == 0 else b""
        return (memoryview(data).cast("Q"), 0) if len(data) == size else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None:
        assert len(avmas) <= 256


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([11, 12, 13]), st.integers(0, 1 << 32), st.lists(st.integers(0, 500), max_size=8))
def test_greenlets_of_nonsense_end(minor: int, seed: int, marks: list[int]) -> None:
    """Plant evaluator marks, entry frames and CFrames that lead anywhere."""
    layout = LAYOUTS[min(minor, 12)]
    if minor == 13:
        layout = replace(layout, thread=replace(layout.thread, cframe=-1, cframe_current=-1, cframe_previous=-1))
    reader = Nonsense(seed)
    words = struct.unpack("<512Q", reader.memory(BASE, 4096))
    planted = list(words)
    shim = {layout.frame.instr >> 3: 0x1234, layout.frame.code >> 3: 0x5678, layout.frame.owner >> 3: 3 << 48}
    for mark in [0, *marks]:
        for at, word in shim.items():
            if mark + at < 512:
                planted[mark + at] = word
        if minor == 11:
            planted[mark] = BASE + layout.thread.root_cframe
    stack = memoryview(struct.pack("<512Q", *planted)).cast("Q")
    greenlets = make_greenlet_search(layout)
    assert greenlets is not None
    frames = [(stack, 0, BASE)] if minor > 11 else []
    waiter = SwitchedThread(BASE, frames, [], 0, stack, BASE)
    slots: dict[int, tuple[int, int]] = {}
    for _ in range(2):
        if not greenlets.has_nothing(waiter):
            found = greenlets.search(waiter, slots, reader)
            assert len(found.frames) < 1 << 16
            assert found.markers <= {BASE + 8 * at for at in range(512)}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(LAYOUTS)), st.integers(0, 1 << 32))
def test_chains_of_nonsense_end(minor: int, seed: int) -> None:
    layout = LAYOUTS[minor]
    memory = Memory(nonsense(seed))
    codes = CodeReader(memory, layout, FunctionTable())
    thread_at = BASE + 64 * (seed % 512)
    ident, interpreter = (memory.read_u64(thread_at + at) for at in (layout.thread.thread_id, layout.thread.interp))
    thread = PyThread(thread_at, 1, ident, interpreter, 0, BASE, BASE + 8)
    copier = Copier(layout, codes.head_at, codes.head_size, 1 << 19)
    habits = ReadHints()
    for _ in range(2):
        stack = memoryview(memory.read_memory(BASE, 4096)).cast("Q")
        copied = copier.copy_frames(thread, habits, stack, BASE, make_gather(memory))
        copier.finish_copy(copied)
        runs = RunReader(layout, codes).read_runs(copied)
        assert sum(len(run.frames) for run in runs) <= MAX_FRAMES


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(LAYOUTS)), st.integers(0, 1 << 32), st.integers(0, SIZE // 8 - 1))
def test_objects_of_nonsense_are_unreadable_or_bounded(minor: int, seed: int, word: int) -> None:
    layout, memory, at = LAYOUTS[minor], Memory(nonsense(seed)), BASE + 8 * word
    objects = Objects(memory, layout.object, minor)
    for read in (
        objects.read_str,
        objects.read_bytes_object,
        objects.tuple_items,
        objects.read_int,
        LocalReader(memory, layout, True).format_object,
    ):
        try:
            assert len(str(read(at))) < 1 << 20
        except Unreadable:
            continue
    for items in (objects.dict_items, objects.attributes):
        try:
            assert len(list(items(at))) <= 1 << 16
        except Unreadable:
            continue
    assert isinstance(LocalReader(memory, layout, True).read_locals(at, at), dict)


def table(minor: int, values: Sequence[int], version: int = 0) -> bytes:
    head = debug_offsets.COOKIE + struct.pack("<QQ", version or 0x030000F0 | minor << 16, 0)
    return head + struct.pack(f"<{len(values)}Q", *values)


@settings(deadline=None)
@given(st.sampled_from(sorted(debug_offsets.FIELDS)), st.data())
def test_tables_of_offsets_are_refused_or_within_their_structures(minor: int, data: st.DataObject) -> None:
    count = len(debug_offsets.FIELDS[minor])
    values = data.draw(st.lists(st.integers(0, 600), min_size=count, max_size=count))
    try:
        layout = debug_offsets.read_layout(table(minor, values))
    except FormatError:
        return
    assert isinstance(layout, Layout)
    assert layout.thread.size <= 616
    frame = layout.frame
    assert max(frame.code, frame.previous, frame.instr, frame.owner & ~7, frame.tlbc_index & ~7) + 8 <= frame.size
    assert min(layout.gil_holder, layout.gil_locked) >= 0


@pytest.mark.parametrize("minor", sorted(debug_offsets.FIELDS))
def test_each_number_of_a_table_is_looked_at(minor: int) -> None:
    fields = debug_offsets.FIELDS[minor]
    good = [512 if field == "size" else 64 for _, field in fields]
    assert debug_offsets.read_layout(table(minor, good)).thread.size <= 512
    wrong = [(at, 1 << 25) for at in range(len(fields))]
    for name, value in (("gil_runtime_state", 72), ("linetable", 60)):  # offsets before the enclosing structure
        wrong += [(at, value) for at, (_, field) in enumerate(fields) if field == name]
    for at, value in wrong:
        with pytest.raises(FormatError):
            debug_offsets.read_layout(table(minor, [*good[:at], value, *good[at + 1 :]]))


@given(st.binary(max_size=1000))
def test_any_bytes_as_table_are_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        debug_offsets.read_layout(data)


@pytest.mark.parametrize(
    ("minor", "version"), [(16, 0x031000F0), (15, 0x030F00B3), (12, 0x030C00F0), (13, 0x020D00F0), (13, 1 << 40)]
)
def test_unknown_versions_are_refused(minor: int, version: int) -> None:
    fields = debug_offsets.FIELDS.get(minor, debug_offsets.FIELDS[max(debug_offsets.FIELDS)])
    right = [512 if field == "size" else 64 for _, field in fields]
    with pytest.raises(FormatError, match=r"version|newer|release"):
        debug_offsets.read_layout(table(minor, right, version))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 1 << 16), max_size=30),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 3)), max_size=12),
    st.booleans(),
    st.sampled_from([StackEnd.ROOT, StackEnd.UNREADABLE]),
)
def test_no_run_is_lost_by_a_merge_and_their_order_stays(
    sps: list[int], runs: list[tuple[int, int]], marked: bool, end: StackEnd
) -> None:
    chain_runs, number = [], 0
    for marker, count in runs:
        chain_runs.append(Run(marker, tuple(map(FunctionPlace, range(number, number + count)))))
        number += count
    chain = Chain(tuple(chain_runs), SampleState.INTERPRETED, "", (0x100,), marked)
    evaluators = Evaluators(lambda pc, exact: (pc & ~0xFF, (pc & ~0xFF) + 0x80))
    pcs = [0x100 + 0x40 * (sp % 7) for sp in sps]
    exacts = [at == 0 for at in range(len(sps))]
    merged = merge_chain(pcs, sps, exacts, end, chain, evaluators)
    places = [at for at, _ in merged.inserts]
    assert places == sorted(set(places))
    assert all(0 <= at <= len(sps) for at in places)
    assert [frame.function for _, frames in merged.inserts for frame in frames] == list(range(number))
    assert bool(merged.reasons) >= bool(merged.unplaced or merged.without_run)


class _Ring:
    """A circle of frames in memory that needs no reads. It counts the accesses."""

    AT = 0x5555_0000_0000
    COUNT = 2048

    def __init__(self, layout: Layout) -> None:
        self.size, frame = count_waiting_bytes(layout), layout.frame
        self.words = memoryview(bytearray(self.COUNT * self.size + 4096)).cast("Q")
        self.looks = 0
        for number in range(self.COUNT):
            at = number * self.size >> 3
            self.words[at + (frame.previous >> 3)] = self.AT + (number + 1) % self.COUNT * self.size
            self.words[at + (frame.instr >> 3) + 1] = 0xFFFF_FFFF
            self.words[at + (frame.object >> 3)] = self.AT + number * self.size
            self.words[at + (frame.object_frame >> 3)] = self.AT + number * self.size

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        self.looks += 1
        inside = self.AT <= avma < self.AT + self.COUNT * self.size
        return (self.words, avma - self.AT >> 3) if inside else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None: ...


@pytest.mark.parametrize("entries", [2, 32, 100])
def test_search_for_greenlets_is_bounded_on_any_stack(entries: int) -> None:
    layout, base, apart = LAYOUTS[12], 0x7FFF_F000_0000, 300
    frame = layout.frame
    stack = memoryview(bytearray(8 << 15)).cast("Q")
    ring = _Ring(layout)
    for number in range(entries):
        at = number * apart
        stack[at + (frame.instr >> 3)], stack[at + (frame.code >> 3)] = 0x1234_5678_1234_5678, 0x2222_2220
        stack[at + (frame.owner >> 3)] = ENTRY_OWNER << 8 * (frame.owner & 7)
        for place in range(40, apart - 20):
            stack[at + place] = ring.AT + (place - 40) * 8 * ring.size % (ring.COUNT * ring.size)
        stack[at + (frame.previous >> 3)] = ring.AT
    thread = SwitchedThread(0x10000, [(ring.words, 0, ring.AT), (stack, 0, base)], [], 0, stack, base)
    EntrySearch(layout, ENTRY_OWNER).search(thread, {}, ring)
    assert ring.looks < 20_000
