"""Tests of the reader of one process during imports, exec, and samples of threads that are not listed yet."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.interpreters.base import InterpreterContext
from pyprof.interpreters.cpython.bpf_frame_decoder import FrameRowReader, hash_words, head_words
from pyprof.interpreters.cpython.detection import CPythonFileCache
from pyprof.interpreters.cpython.object_reader import Memory, make_gather
from pyprof.interpreters.cpython.process_reader import PythonProcess
from pyprof.interpreters.cpython.runtime_validation import Runtime, UnreadRuntime, open_runtime
from pyprof.interpreters.cpython.threads import PythonThreadNames
from pyprof.interpreters.detection_symbols import FoundSymbols, KnownSymbols, Wanted, read_symbols
from pyprof.interpreters.function_table import FunctionTable
from pyprof.model.address_space import AddressSpace, Mapping, Module, ReadMemory
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.interpreter_reader_protocols import FrameRows
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from tests.interpreters.pythons import HERE, Python, pythons

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

OWN = [python for python in pythons() if python.name.startswith("debian")] or [HERE]
"""Debian's interpreters, which are not position-independent and so keep their addresses after exec."""
EMPTY = memoryview(b"").cast("Q")


class CountedReads:
    """A ReadSymbols function.

    Attributes:
        reads: Number of modules whose files were requested.
    """

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, space: AddressSpace, modules: Sequence[Module], wanted: Wanted) -> Sequence[FoundSymbols | None]:
        self.reads += len(modules)
        return read_symbols(ImageStore(Diagnostics()), space, modules, wanted)


class Reader:
    """A PythonProcess for a live process, with everything that it needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.book = FunctionTable()
        self.files = CountedReads()
        symbols = KnownSymbols(self.files)
        self.process = PythonProcess(
            InterpreterContext(symbols, Diagnostics(), self.book), CPythonFileCache(symbols), int
        )
        self.tracker = SpaceTracker(ProcDir(pid), itertools.count(1).__next__, lambda: None)

    def names(self) -> list[str]:
        """Return the functions of the main thread from leaf to root."""
        self.tracker.refresh_space(time.monotonic_ns, force=True)
        self.process.inspect_process(self.tracker.current, procfs.list_tasks(self.pid))
        return self.sample()

    def sample(self, tid: int = 0) -> list[str]:
        self.process.copy(tid or self.pid, EMPTY, 0, make_gather(Memory(memory_reader(self.pid, lambda: True))))
        return self.taken()

    def taken(self) -> list[str]:
        """Return the functions of the last copied stack."""
        chain = self.process.take_chain()
        return [self.book.line(pc).function for run in chain.runs for pc in run.frames] if chain else []


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("python", [HERE, pythons()[-1]], ids=lambda python: python.name)
def test_names_of_threads_are_found_in_a_forked_child_without_a_look_at_each_module(python: Python) -> None:
    program = (
        "import argparse, json, os, subprocess, sys, threading\n"
        "if not os.fork():\n    print(os.getpid(), flush=True)\nsys.stdin.read()\n"
    )
    with started(*python.command, "-c", program) as parent:
        child = int(said(parent))
        reads = 0

        def counted(avma: int, size: int) -> bytes:
            nonlocal reads
            reads += 1
            return memory_reader(child, lambda: True)(avma, size)

        reader = Reader(child)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        keys: dict[str, int] = {}
        assert list(
            PythonThreadNames(runtime, Memory(memory_reader(parent.pid, lambda: True)), keys).read_names().values()
        )
        assert keys.keys() == {"threading", "_active", "_name"}
        found = {}
        for name, known in {"known": keys, "nothing": {}, "false": dict.fromkeys(keys, 4096)}.items():
            reads = 0
            names = PythonThreadNames(runtime, Memory(counted), dict(known)).read_names()
            assert list(names.values()) == ["MainThread"]
            found[name] = reads
        assert 0 < 3 * found["known"] < found["nothing"] == found["false"]


@pytest.mark.parametrize("python", pythons() or [HERE], ids=lambda python: python.name)
def test_modules_are_searched_for_threading_only_once_new_ones_came(python: Python) -> None:
    program = (
        "import sys\nassert 'threading' not in sys.modules\nsys.modules['spare'] = sys\n"
        "print(1, flush=True)\nsys.stdin.readline()\n"
        "del sys.modules['spare']\nimport threading\nprint(2, flush=True)\nsys.stdin.readline()\n"
    )
    with started(*python.command, "-S", "-c", program) as process:
        assert said(process) == "1\n"
        reads = 0

        def counted(avma: int, size: int) -> bytes:
            nonlocal reads
            reads += 1
            return memory_reader(process.pid, lambda: True)(avma, size)

        reader = Reader(process.pid)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        names = PythonThreadNames(runtime, Memory(counted), {})
        needed = []
        for _ in range(3):
            reads = 0
            assert names.read_names() == {}
            needed.append(reads)
        assert needed[0] > 3 * needed[1] > 0
        assert needed[1] == needed[2]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert said(process) == "2\n"
        assert list(names.read_names().values()) == ["MainThread"]


@pytest.mark.parametrize("randomized", [True, False])
@pytest.mark.parametrize("python", OWN, ids=lambda python: python.name)
def test_functions_have_names_after_a_program_has_replaced_itself(python: Python, randomized: bool) -> None:
    second = "def after():\n    print(2, flush=True)\n    sys.stdin.read()\nimport sys\nafter()\n"
    first = (
        "def before():\n    print(1, flush=True)\n    sys.stdin.readline()\nimport os, sys\nbefore()\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {second!r}])\n"
    )
    fixed = () if randomized else ("setarch", "-R")
    with started(*fixed, *python.command, "-c", first) as process:
        assert said(process) == "1\n"
        reader = Reader(process.pid)
        deadline = time.monotonic() + 60
        while (names := reader.names()) != ["before", "<module>"]:
            assert time.monotonic() < deadline, names
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert said(process) == "2\n"
        deadline = time.monotonic() + 60
        while (names := reader.names()) != ["after", "<module>"]:
            assert time.monotonic() < deadline, names


@pytest.mark.parametrize("torn", [1, 100])
def test_list_that_changes_while_it_is_read_is_read_again(torn: int) -> None:
    """Change the list of thread states during a read. The reader refuses a runtime that never becomes consistent."""
    with started(sys.executable, "-c", "print(1, flush=True); import sys; sys.stdin.read()") as process:
        assert said(process) == "1\n"
        reader = Reader(process.pid)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        read, times = memory_reader(process.pid, lambda: True), itertools.count(1)
        thread = next(runtime.read_threads(Memory(read), {process.pid}.__contains__))

        def tearing(avma: int, size: int) -> bytes:
            data = read(avma, size)
            return b"\x01" * size if avma == thread.address and next(times) <= torn else data

        if torn == 1:
            assert open_runtime(runtime.located, Memory(tearing), {process.pid}.__contains__) == runtime
        else:
            with pytest.raises(UnreadRuntime):
                open_runtime(runtime.located, Memory(tearing), {process.pid}.__contains__)


UNNAMED = "[function freed or swapped out before its name was read]"
FUNCTION_THAT_WAITS = "def f():\n    print(id(f.__code__), flush=True)\n    sys.stdin.read()\nimport sys\nf()\n"


def row_of(runtime: Runtime, read: ReadMemory, code: int) -> tuple[npt.NDArray[np.uint64], tuple[int, ...]]:
    """Return the row of one frame and the words of its code that were hashed, as the BPF program copies them."""
    layout = runtime.layout
    words = head_words(layout, read(code + layout.object.type, 240))
    return np.array([[0, code, 0, hash_words(words)]], np.uint64), words


def decoded(rows: FrameRowReader, frames: npt.NDArray[np.uint64], copied_words: bytes = b"") -> FunctionPlace:
    """Return the only frame of a sample."""
    one, none, zero = np.array([0, 1]), np.array([False]), np.zeros(1, np.int64)
    copied = np.frombuffer(copied_words, np.uint64).reshape(-1, 32)
    flag, tlbc = np.zeros(1, np.uint8), np.zeros(1, np.uint32)
    states = none, none, none, none
    (chain,) = rows.chains(FrameRows(one, zero, zero, frames, flag, tlbc, 0 * one, frames[:0, :2], copied, *states))
    assert chain is not None
    return chain.runs[0].frames[0]


def test_what_is_known_of_a_process_that_has_ended_says_what_its_last_samples_mean() -> None:
    with started(sys.executable, "-c", "print(1, flush=True); import sys; sys.stdin.read()") as process:
        assert said(process) == "1\n"
        reader = Reader(process.pid)
        reader.names()
        kernel, space = reader.process.kernel_reader(), reader.tracker.current
        kernel.inspect_process(space, [process.pid])
        before = kernel.offsets()
    kernel.inspect_process(replace(space, mappings=(), generation=space.generation + 1), [])
    assert kernel.offsets() == before is not None


def test_unreadable_code_has_its_name_once_a_sample_brings_its_text() -> None:
    """Sample children with equal code at one address, the first of which ends before its code is read."""
    with started(sys.executable, "-c", FUNCTION_THAT_WAITS) as process:
        code = int(said(process))
        reader = Reader(process.pid)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        read = memory_reader(process.pid, lambda: True)
        frames, words = row_of(runtime, read, code)
        texts = b"".join(struct.pack("<QQ240s", at, 240, read(at, 240)) for at in (code, *words[-4:]))

    def name(rows: FrameRowReader, copied_words: bytes) -> str:
        return reader.book.line(decoded(rows, frames, copied_words)).function

    gone = Memory(lambda avma, size: b"")
    parent = FrameRowReader(runtime, gone, reader.book, None)
    unread = name(FrameRowReader(runtime, gone, reader.book, parent), b"")
    assert (unread, name(FrameRowReader(runtime, gone, reader.book, parent), texts)) == (unread, "f")
    assert unread != "f"


def test_function_that_runs_again_after_its_name_was_dropped_is_read_again() -> None:
    with started(sys.executable, "-c", FUNCTION_THAT_WAITS) as process:
        code = int(said(process))
        reader = Reader(process.pid)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        memory = Memory(memory_reader(process.pid, lambda: True))
        rows = FrameRowReader(runtime, memory, reader.book, None)
        frames, _ = row_of(runtime, memory_reader(process.pid, lambda: True), code)
        for _ in range(2):
            assert reader.book.line(decoded(rows, frames)).function == "f"
            reader.book.drop_unused(set())
            reader.book.drop_unused(set())


def test_code_that_was_not_in_memory_has_its_name_if_it_is_the_same_before_and_now() -> None:
    """Sample a frame whose code is swapped out, so that the sample has no words of it."""
    with started(sys.executable, "-c", FUNCTION_THAT_WAITS) as process:
        code = int(said(process))
        reader = Reader(process.pid)
        reader.names()
        runtime = reader.process.runtime
        assert runtime is not None
        read = memory_reader(process.pid, lambda: True)
        frames, _ = row_of(runtime, read, code)
        absent = frames * np.array([1, 1, 1, 0], np.uint64)
        other = [False]
        memory = Memory(lambda avma, size: bytes(size) if other[0] else read(avma, size))

        def names(*batches: npt.NDArray[np.uint64]) -> list[str]:
            rows = FrameRowReader(runtime, memory, reader.book, None)
            found: list[str] = []
            for row in batches:
                found += [reader.book.line(decoded(rows, row)).function for _ in range(2)]
                rows.finish_batch()
            other[0] = True  # from now on the address has other code
            found.append(reader.book.line(decoded(rows, absent)).function)
            other[0] = False
            assert rows.lost == found.count(UNNAMED)
            return found

        assert names(frames, absent) == [*4 * ["f"], UNNAMED]
        assert names(absent, absent, absent) == [*4 * [UNNAMED], "f", "f", UNNAMED]


def test_program_without_python_is_searched_once_however_its_code_grows() -> None:
    with started("cat") as process:
        reader = Reader(process.pid)
        while not any("libc" in module.name for module in reader.tracker.current.modules):
            reader.tracker.refresh_space(time.monotonic_ns, force=True)
        space = reader.tracker.current
        reader.process.inspect_process(space, [process.pid])
        looks = reader.files.reads
        assert looks > 1
        for n in range(1, 5):
            made = Mapping(0x10000 * n, 0x10000 * n + 4096, "r-xp", 0, "00:00", 0, "")
            grown = replace(space, mappings=(made, *space.mappings))
            assert len(grown.modules) == len(space.modules) + 1
            reader.process.inspect_process(grown, [process.pid])
        assert reader.files.reads == looks
        lib = Mapping(0x90000, 0x91000, "r-xp", 0, "fe:01", 1 << 40, "/nonexistent/libpython3.12.so.1.0")
        reader.process.inspect_process(replace(space, mappings=(lib, *space.mappings)), [process.pid])
        assert reader.files.reads > looks


def test_thread_that_is_not_listed_yet_is_found_by_what_the_stop_reads_alone() -> None:
    with started(
        sys.executable, "-c", "def spin():\n    print(1, flush=True)\n    while True: pass\nspin()\n"
    ) as process:
        assert said(process) == "1\n"
        reader = Reader(process.pid)
        deadline = time.monotonic() + 60
        while reader.names()[:1] != ["spin"]:
            assert time.monotonic() < deadline
        assert reader.process.threads is not None
        reader.process.threads.known.clear()
        memory = reader.process._finder.memory

        def refuse(avma: int, size: int) -> bytes:
            raise AssertionError("read behind the collector's back")

        memory.change_space(refuse)
        reader.process.copy(process.pid, EMPTY, 0, make_gather(Memory(memory_reader(process.pid, lambda: True))))
        memory.change_space(memory_reader(process.pid, lambda: True))
        chain = reader.process.take_chain()
        assert chain is not None
        assert [reader.book.line(pc).function for pc in chain.runs[0].frames] == ["spin", "<module>"]
        reader.process.copy(os.getpid(), EMPTY, 0, lambda spans: EMPTY)
        assert reader.process.take_chain() is None


@pytest.mark.parametrize("python", [*pythons()[:1], HERE], ids=lambda python: python.name)
def test_thread_that_has_just_begun_is_known_before_all_are_listed_again(python: Python) -> None:
    program = (
        "import sys, threading, time\ndef young():\n    print(2, flush=True)\n    time.sleep(1000)\n"
        "def old():\n    print(1, flush=True)\n    sys.stdin.readline()\n"
        "    threading.Thread(target=young).start()\n    time.sleep(1000)\nold()\n"
    )
    with started(*python.command, "-c", program) as process:
        assert said(process) == "1\n"
        reader = Reader(process.pid)
        deadline = time.monotonic() + 60
        while reader.names() != ["old", "<module>"]:
            assert time.monotonic() < deadline
        assert reader.process.threads is not None
        reader.process.threads._relist_at = 1 << 63
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert said(process) == "2\n"
        (young,) = set(procfs.list_tasks(process.pid)) - {process.pid}
        reader.names()
        assert reader.sample(young)[:2] == ["young", "Thread.run" if python.minor >= 11 else "run"]
        assert reader.sample() != []
