"""The interpreters of a recording's processes: their readers, the merge of their frames, their names.

The collector gets a reader for each process, the recorder the merger, the symbolizer the names.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Set
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import procfs
from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.interpreters.cpython.codes import Code, CodeBook, frame_pc
from pyprof.interpreters.cpython.layout import LineTable
from pyprof.interpreters.cpython.process import PythonProcess
from pyprof.interpreters.merge import Evaluators, merge
from pyprof.interpreters.programs import NotBegun, Programs
from pyprof.model.interpreter import SampleState, StackReader
from pyprof.model.profile import Line, ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.model.stacks import Merge
from pyprof.model.walk import StackEnd, Walk
from pyprof.objfile import foreign_path
from pyprof.objfile.images import ImageStore
from pyprof.runtime_code.process import perf_map_name
from pyprof.session.evaluator_resume import EvaluatorResume
from pyprof.unwind.unwinder import Unwinder

TRAMPOLINE = "py::"
"""How CPython names its trampolines in a perf map: py::qualified.name:/path/of.py."""
_MAP_HEAD = 1 << 20
_LOOKS = -(1 << 40)
"""From here down count the address spaces that are looked at, and never sampled."""
_MANY = 256
"""From so many processes on, those that have ended are forgotten when one comes."""


class Runtimes:
    """One recording's. images: shared with the unwinder and the symbolizer."""

    def __init__(self, images: ImageStore, diagnostics: Diagnostics, follow_tasks: bool = False) -> None:
        """follow_tasks: see PythonProcess."""
        self._follow_tasks = follow_tasks
        self.processes: dict[int, PythonProcess] = {}
        self._images = images
        self._diagnostics = diagnostics
        self._book = CodeBook()
        self._programs = Programs()
        self._ids = itertools.count(_LOOKS, -1)

    def reader(self, pid: int) -> StackReader:
        """For the collector, when it begins with a process."""
        if len(self.processes) >= _MANY:
            self.processes = {pid: p for pid, p in self.processes.items() if os.path.exists(f"/proc/{pid}")}
        process = PythonProcess(self._images, self._book, self._diagnostics, _tids(pid), self._follow_tasks)
        self.processes[pid] = process
        return process

    def looked_at(self, pid: int) -> PythonProcess:
        """A process as it is now. Raises OSError, FormatError."""
        space = procfs.address_space(pid, next(self._ids), generation=0)
        process = PythonProcess(self._images, self._book, Diagnostics(), _tids(pid))
        process.look(space, procfs.tasks(pid))
        if process.runtime is not None:
            process.list_threads()
        return process

    def needs_stops(self, pid: int) -> str | None:
        """Why a process is better sampled by stops, "" if it has no frames that only stops can copy, None if it has an
        interpreter that has not begun yet.
        """
        inner = _tids(pid)
        try:
            tids = {inner(tid) for tid in procfs.tasks(pid)}
            space = procfs.address_space(pid, next(self._ids), generation=0)
            runtime = self._programs.runtime(space, tids.__contains__)
        except NotBegun:
            return None
        except (OSError, FormatError):
            return ""
        if runtime is None or perf_trampoline(pid):
            return ""
        return f"CPython {runtime.layout.version} runs in it without a perf trampoline."

    @property
    def modules(self) -> frozenset[str]:
        """Paths of the modules that hold an interpreter."""
        return frozenset(p.runtime.located.module.path for p in self.processes.values() if p.runtime is not None)

    @property
    def free_threaded(self) -> bool:
        """Does one of the interpreters work without a global lock?"""
        return any(p.runtime.layout.free_threaded for p in self.processes.values() if p.runtime is not None)

    def named(self, threads: tuple[ThreadInfo, ...]) -> tuple[ThreadInfo, ...]:
        """Threads by the names that Python gave them."""
        for process in self.processes.values():
            process.read_names()
        names = {(pid, tid): name for pid, process in self.processes.items() for tid, name in process.names.items()}
        return tuple(replace(t, name=names.get((t.pid, t.tid), t.name)) for t in threads)

    def local_values(self, pid: int, tid: int, redact: bool) -> list[tuple[int, dict[str, str]]]:
        """Of the frames that a thread has now, innermost first: (their FrameKey.word, name -> bounded repr)."""
        process = self.processes.get(pid)
        return process.local_values(tid, redact) if process else []

    def keep(self, pcs: Set[int]) -> None:
        """Forget the names of code that has not run for long. pcs: of the interpreters' frames of a closed window."""
        self._book.keep(pcs)

    def compiled(self, trampoline: str) -> int:
        """FrameKey.word of the function for which a trampoline of this name was made, 0 if the name is "". Which line
        it is at nobody says.
        """
        if not trampoline:
            return 0
        name, _, file = trampoline.removeprefix(TRAMPOLINE).partition(":")
        return frame_pc(self._book.add(Code(name, name, file, 0, LineTable.LOCATIONS, b"")), -1)

    def line(self, pc: int) -> Line:
        """The name of an interpreter's frame, from its FrameKey.word."""
        return self._book.line(pc)


def perf_trampoline(pid: int) -> bool:
    """Does the process write a perf map of Python functions (python -X perf, sys.activate_stack_trampoline)?"""
    try:
        return b" py::" in foreign_path.read_file(f"/proc/{pid}/root", perf_map_name(pid), _MAP_HEAD)
    except OSError:
        return False


def _tids(pid: int) -> Callable[[int], int]:
    """Tids as the process's own pid namespace counts them."""

    def inner(tid: int) -> int:
        try:
            return int(procfs.thread_status(tid)["NSpid"].split()[-1])
        except (OSError, KeyError, ValueError, IndexError):
            return tid

    try:
        nested = len(procfs.thread_status(pid)["NSpid"].split()) > 1
    except (OSError, KeyError):
        nested = False
    return inner if nested else int


class ChainMerger:
    """Puts the chains of a batch's lanes into their walks."""

    def __init__(self, unwinder: Unwinder, diagnostics: Diagnostics) -> None:
        self._unwinder = unwinder
        self._diagnostics = diagnostics
        self._evaluators: dict[int, Evaluators] = {}
        self._resumption = EvaluatorResume(unwinder, self._of_space, diagnostics)

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        return self._resumption.complete(batch, walk)

    def merge(self, batch: SampleBatch, walk: Walk) -> tuple[dict[int, Merge], npt.NDArray[np.int32]]:
        merged: dict[int, Merge] = {}
        states = np.zeros(len(batch), np.int32)
        for lane, chain in batch.chains.items():
            a, b = int(walk.start[lane]), int(walk.start[lane + 1])
            found = merge(
                walk.pc[a:b].tolist(),
                walk.sp[a:b].tolist(),
                walk.exact[a:b].tolist(),
                StackEnd(walk.end[lane]),
                chain,
                self._of_space(batch, int(batch.space[lane])),
            )
            if found.inserts or found.reasons:
                merged[lane] = found.inserts, found.mark
            states[lane] = SampleState(chain.state | found.reasons)
            if chain.problem:
                self._diagnostics.count(f"chain of python frames: {chain.problem}")
        return merged, states

    def _of_space(self, batch: SampleBatch, space_id: int) -> Evaluators:
        found = self._evaluators.get(space_id)
        if found is None:
            arch, space, unwinder = batch.arch, batch.spaces[space_id], self._unwinder
            found = Evaluators(lambda pc, exact: unwinder.function_range(arch, space, pc, exact))
            self._evaluators[space_id] = found
        return found

    def forget(self, space_id: int) -> None:
        self._evaluators.pop(space_id, None)
        self._resumption.forget(space_id)
