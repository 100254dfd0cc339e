"""Tests of circular and wild pointers read during a stop: the stop stays short, and the next one is complete."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

import pytest

from pyprof.collectors.linux.libc import Gatherer, memory_reader
from pyprof.errors import FormatError
from pyprof.interpreters.cpython import debug_offsets
from pyprof.interpreters.cpython.code_objects import CodeReader
from pyprof.interpreters.cpython.frame_copier import Copier
from pyprof.interpreters.cpython.layout import LAYOUTS, Layout
from pyprof.interpreters.cpython.object_reader import Memory
from pyprof.interpreters.cpython.runtime_validation import PyThread, Runtime
from pyprof.interpreters.cpython.thread_snapshot import MAX_FAILURES, MAX_IN_STOP, Copied, ReadHints
from pyprof.interpreters.function_table import FunctionTable
from pyprof.model.interpreter_reader_protocols import Span

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

EMPTY = memoryview(b"").cast("Q")
BAD = 2**64 - 8
"""A pointer so large that an offset overflows it."""


class Scene:
    """A thread state, frames and code in the memory of this process, read like a target's."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._buffer = ctypes.create_string_buffer(1 << 19)
        self.thread_at = ctypes.addressof(self._buffer) + 63 & ~63
        self.frames_at = self.thread_at + 8192
        self.code_at = self.thread_at + (1 << 18)
        self.memory = Memory(memory_reader(os.getpid(), lambda: True))
        codes = CodeReader(self.memory, layout, FunctionTable())
        self._copier = Copier(layout, codes.head_at, codes.head_size, 1 << 19)
        self._gatherer = Gatherer(1 << 20)
        self.habits = ReadHints()
        self.calls = 0
        self.put(self.thread_at + layout.thread.thread_id, 5)
        self.put(self.thread_at + layout.thread.interp, 6)

    def put(self, avma: int, word: int) -> None:
        ctypes.c_uint64.from_address(avma).value = word

    def chain(self, codes: Sequence[int]) -> None:
        """Write frames with these code objects from leaf to root."""
        layout = self.layout
        size = layout.frame.size + 15 & ~15
        self.put(self.thread_at + layout.thread.frame, self.frames_at if codes else 0)
        for n, code in enumerate(codes):
            at = self.frames_at + n * size
            self.put(at + layout.frame.code, code)
            self.put(at + layout.frame.previous, at + size if n + 1 < len(codes) else 0)

    def _gather(self, spans: Sequence[Span]) -> memoryview:
        self.calls += 1
        return self._gatherer(spans)

    def copy(self) -> Copied:
        self.calls = 0
        self._gatherer.start_reads(os.getpid())
        thread = PyThread(self.thread_at, 1, 5, 6, 0, 0, self.thread_at)
        copied = self._copier.copy_frames(thread, self.habits, EMPTY, 0, self._gather)
        self._copier.learn_reads(copied)
        return copied


@pytest.fixture
def old() -> Scene:
    """Return a scene of CPython 3.9, whose frames are separate objects."""
    return Scene(LAYOUTS[9])


def test_reads_end_when_their_time_is_over_and_begin_anew() -> None:
    word = ctypes.c_uint64(7)
    gatherer = Gatherer(1 << 24)
    for _ in range(2):
        gatherer.start_reads(os.getpid())
        got = [len(gatherer([(ctypes.addressof(word), 8)])) for _ in range(100_000)]
        assert got[:16] == [8] * 16
        assert got[-1] == 0


@pytest.mark.parametrize("bad", [BAD + 8, -8])
def test_span_that_is_none_hides_only_what_is_behind_it(bad: int) -> None:
    word = ctypes.c_uint64(7)
    gatherer = Gatherer(1 << 12)
    gatherer.start_reads(os.getpid())
    here = (ctypes.addressof(word), 8)
    assert gatherer([here, (bad, 8), here]) == b"\7" + bytes(7)
    assert gatherer([here]) == b"\7" + bytes(7)


@pytest.mark.parametrize("minor", [10, 11, 12])
def test_stands_that_go_in_circles_end_with_a_problem(minor: int) -> None:
    scene = Scene(LAYOUTS[minor])
    thread = scene.layout.thread
    scene.put(scene.thread_at + thread.cframe, scene.frames_at)
    scene.put(scene.frames_at + thread.cframe_previous, scene.frames_at)
    copied = scene.copy()
    assert scene.calls <= MAX_IN_STOP + 8
    scene._copier.finish_copy(copied)
    assert copied.problem


def test_code_that_cannot_be_read_is_tried_a_few_times_only(old: Scene) -> None:
    old.chain([8 * n for n in range(1, 1001)])
    for _ in range(2):
        copied = old.copy()
        tried = old.calls - len(copied.frames)
        assert tried <= MAX_FAILURES + 8
        assert copied.problem


@pytest.mark.parametrize("bad", [BAD, BAD & ~0xFFF, 1 << 62, 8])
def test_bad_pointer_to_code_costs_one_name_and_nothing_later(old: Scene, bad: int) -> None:
    old.chain([old.code_at, bad, old.code_at + 512])
    for _ in range(3):
        copied = old.copy()
        assert not copied.stale
        assert len(copied.frames) == 3
        assert [len(copied.codes[code]) > 0 for code in (old.code_at, bad, old.code_at + 512)] == [True, False, True]
        assert copied.problem
    old.chain([old.code_at])
    assert old.copy().problem == ""


def test_bad_chunk_of_a_data_stack_is_not_asked_for_again() -> None:
    scene = Scene(LAYOUTS[11])
    at = scene.thread_at + scene.layout.thread.chunk
    for bad in (BAD, 1 << 62, 8):
        scene.put(at, bad)
        scene.put(at + 8, bad)
        for _ in range(2):
            assert not scene.copy().stale
        assert scene.habits.chunks == []


def test_habits_that_cannot_be_read_are_given_up(old: Scene) -> None:
    old.habits.chunks = [(old.frames_at, 1 << 20, 1 << 20)] * 2  # exceeds the maximum size
    assert old.copy().stale
    assert not old.copy().stale


def test_thread_states_in_a_circle_are_listed_once_each() -> None:
    scene = Scene(LAYOUTS[12])
    layout, at = scene.layout, scene.frames_at
    interpreters, threads = (at, at + 8192), (at + 16384, at + 20480)
    runtime_at = at + 32768
    scene.put(runtime_at + layout.runtime.interpreters_head, interpreters[0])
    for n in (0, 1):
        scene.put(interpreters[n] + layout.interpreter.next, interpreters[1 - n])
        scene.put(interpreters[n] + layout.interpreter.threads_head, threads[0])
        scene.put(threads[n] + layout.thread.next, threads[1 - n])
    runtime = Runtime(None, layout, runtime_at)  # type: ignore[arg-type]
    assert [found for found, _ in runtime.read_interpreters(scene.memory)] == list(interpreters)
    assert [found.address for found in runtime.read_threads(scene.memory, lambda tid: False)] == list(threads)


def table(**changed: int) -> bytes:
    """Return a debug offsets table of 3.13 with offset 8 for all fields but some of the thread state and these
    changes.
    """
    fields = debug_offsets.FIELDS[13]
    states = {"interp": 16, "thread_id": 24, "current_frame": 32, "datastack_chunk": 40}
    known = {f"thread_state__{name}": at for name, at in states.items()} | changed
    values = [known.get(f"{group}__{name}", 4096 if name == "size" else 8) for group, name in fields]
    head = debug_offsets.COOKIE + struct.pack("<QQ", 0x030D00F0, 0)
    return head + struct.pack(f"<{len(values)}Q", *values)


def test_frame_is_as_large_as_its_farthest_field() -> None:
    layout = debug_offsets.read_layout(table(interpreter_frame__previous=4000))
    assert layout.frame.size >= 4008
    scene = Scene(layout)
    scene.put(scene.thread_at + layout.thread.frame, scene.frames_at)
    scene.put(scene.frames_at + layout.frame.previous, scene.frames_at + 4096)
    assert len(scene.copy().frames) == 2


def test_lock_holds_its_holder_or_is_refused() -> None:
    layout = debug_offsets.read_layout(table(interpreter_state__gil_runtime_state_holder=800))
    assert len(Scene(layout).copy().lock) > layout.gil_holder >> 3
    for holder in (0, 4000):
        with pytest.raises(FormatError):
            debug_offsets.read_layout(table(interpreter_state__gil_runtime_state_holder=holder))
