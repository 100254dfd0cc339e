"""A test of the memory of sampler and worker in a thousand windows, which must not grow.

Each window has a new process, threads and functions, and each fourth one a new library.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.exporters.base import JournalBeginning
from pyprof.interpreters.cpython.code_objects import PythonCode
from pyprof.interpreters.cpython.layout import LineTableFormat
from pyprof.interpreters.function_table import FunctionTable
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage
from pyprof.model.arch import X86_64
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.profile import Profile, ThreadInfo
from pyprof.model.sample_batch import SampleBatch, StackSlab
from pyprof.model.thread_identity import ThreadKey
from pyprof.options import UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.session.pipeline.interpreter_readers import Runtimes
from pyprof.session.worker.messages import Extent, NamingOptions
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_process import forked
from tests.support import build

pytestmark = pytest.mark.system

WINDOWS, EACH, PER_LIBRARY = 1000, 100, 4
THREADS = 3
LIBRARY = """
static __attribute__((noinline)) int unnamed(int n) { return n ? n * unnamed(n - 1) + n : 1; }
int answer(int n) { return n ? unnamed(n) * answer(n - 1) : 1; }
void *const inside = (void *)unnamed;
"""
_LIBC = ctypes.CDLL(None)


def blocks() -> int:
    """Return the number of blocks that Python's allocator has given out since the first call.

    The cache of type attributes is cleared: it keeps up to 4,096 names, and a `match` by class creates a new one each
    time (CPython 3.11).
    """
    if not gc.get_freeze_count():
        gc.freeze()
    gc.collect()
    getattr(sys, "_clear_type_cache", lambda: None)()
    return sys.getallocatedblocks()


class Churn:
    """A collector of one batch a window, of a process that maps a library and has ended before the next window.

    The process's memory is that of the test.
    """

    source_id = 1

    def __init__(self, library: Path, book: FunctionTable, diagnostics: Diagnostics) -> None:
        self._library = library
        self._book = book
        self._diagnostics = diagnostics
        self._infos: dict[ThreadKey, ThreadInfo] = {}
        self._leaving: DelayedRemoval[ThreadKey] = DelayedRemoval()
        self._now: set[ThreadKey] = set()

    def batches(self) -> Iterator[SampleBatch]:
        for first in range(1, WINDOWS + 1, PER_LIBRARY):
            path = self._library.with_name(f"lib{first}.so")
            shutil.copy(self._library, path)
            library = ctypes.CDLL(str(path))
            places = ctypes.cast(library.answer, ctypes.c_void_p), ctypes.c_void_p.in_dll(library, "inside")
            addresses = [place.value or 0 for place in places]
            lines = Path("/proc/self/maps").read_bytes().splitlines()
            own = os.fsencode(path)
            mappings = procfs.parse_maps(b"\n".join(line for line in lines if line.endswith(own)))
            for number in range(first, first + PER_LIBRARY):
                image = ProgramImage()
                yield self._batch(number, addresses, mappings, image)
                image.alive = False
            _LIBC.dlclose(ctypes.c_void_p(library._handle))
            path.unlink()

    def _batch(
        self, number: int, functions: Sequence[int], mappings: tuple[Mapping, ...], image: ProgramImage
    ) -> SampleBatch:
        own = os.getpid()
        space = AddressSpace(
            number, own, 0, mappings, memory_reader(own, lambda: True), f"/proc/{own}/root", image=image
        )
        tid = np.arange(THREADS) + THREADS * number
        ones = np.ones(THREADS, np.int64)
        infos = [ThreadInfo(own, t, f"thread {t}", f"process {number}", number, number) for t in tid.tolist()]
        self._now = {info.key for info in infos}
        self._infos |= {info.key: info for info in infos}
        self._diagnostics.problem(f"{self._library}.{number}", Problem("is only here to be forgotten"))
        code = self._book.add_code(
            PythonCode(f"f{number}", f"C.f{number}", f"{number}.py", 1, LineTableFormat.LOCATIONS, b"")
        )
        chain = Chain((Run(0, (FunctionPlace(code, 0),)),), SampleState.INTERPRETED, "", (), marked=False)
        regs = np.zeros((THREADS, len(X86_64.registers)), np.uint64)
        regs[:, X86_64.pc], regs[:, X86_64.sp] = np.resize(functions, THREADS) + 1, 0x7000
        slab = StackSlab(np.zeros(64, np.uint8), 0x7000 * ones.astype(np.uint64), 0 * ones, 64 * ones)
        batch = build_stackless_batch(
            X86_64, self.source_id, np.zeros(THREADS, np.uint8), ones * number, own * ones, tid
        )
        return replace(
            batch,
            space=ones.astype(np.int32) * number,
            regs=regs,
            stack=slab,
            spaces={number: space},
            chains={0: chain},
            started=ones * number,
        )

    def learn(self, feedback: Feedback) -> None: ...

    def threads(self) -> list[ThreadInfo]:
        return list(self._infos.values())

    def retire(self) -> None:
        for key in self._leaving.take_gone(self._infos.keys() - self._now):
            del self._infos[key]

    def stats(self) -> CollectorStats:
        return CollectorStats()

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Measured:
    """A sink that counts blocks in the worker."""

    path: Path

    def open_journal(self, beginning: JournalBeginning, number: int) -> None:
        """Return no journal."""

    def receive_profile(self, profile: Profile, number: int) -> None:
        assert len(profile.threads) == THREADS
        titles = {frame.title for frame in profile.frames}
        assert any("answer" in title for title in titles)
        assert any("!0x" in title for title in titles), titles
        if number % EACH == EACH - 1:
            with self.path.open("a") as out:
                out.write(f"{blocks()}\n")


def test_memory_of_both_processes_stays_flat(tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    source.write_text(LIBRARY)
    library = build(source, tmp_path / "library.so", "-shared", "-fPIC", "-O1", "-s")
    diagnostics = Diagnostics()
    runtimes = Runtimes(lambda *_: [], diagnostics)
    naming = NamingOptions("churn", 99, "cpu", ViewOptions())
    collector = Churn(library, runtimes.book, diagnostics)
    sampling = Sampling(collector, forked(), runtimes, diagnostics, UnwindOptions(), naming)
    sink, windows, own = Measured(tmp_path / "blocks"), itertools.count(1), []

    def beat() -> None:
        asked = sampling.ask(Extent.CUT, sink=sink)
        number = next(windows)
        if number % PER_LIBRARY == 0:  # the library stays mapped until it has been read
            asked.wait()
        if number % EACH == 0:
            own.append(blocks())

    try:
        sampling.run(beat)
        assert sampling.failure is None
    finally:
        sampling.close()
        gc.unfreeze()
    workers = [int(line) for line in sink.path.read_text().split()]
    assert len(own) == len(workers) == WINDOWS // EACH
    for found in own, workers:
        assert np.median(found[-3:]) - np.median(found[2:5]) < WINDOWS / 4, found
