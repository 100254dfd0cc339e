"""The latest names of threads, from the kernel's records, and the files that compilers among them work on."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import procfs
from pyprof.collectors.thread_start_times import DelayedRemoval, ThreadLives
from pyprof.model.compiler_command_lines import CompilerFiles, compiler_files, may_be_compiler, process_name
from pyprof.model.profile import ThreadInfo


class CompiledFiles:
    """The source file of each process that runs a compiler, by (pid, start).

    A compiler may end before its records are consumed. So its command line is read as soon as its exec record is found
    in a ring. Steps of a compiler that are too short for that get the file of the driver that forked them, which lives
    as long as all of them.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], str] = {}
        self._read: dict[tuple[int, str], CompilerFiles] = {}

    def read_ahead(self, pid: int, comm: str) -> None:
        """Read the command line of a process whose exec record is still in a perf ring."""
        if may_be_compiler(comm):
            self._read[pid, comm] = compiler_files(comm, procfs.read_arguments(pid))

    def add_executed(self, pid: int, started: int, comm: str) -> None:
        """Note that a process has begun to run a program of this name."""
        read = self._read.pop((pid, comm), None)
        inherited = self._files.pop((pid, started), "")
        if may_be_compiler(comm):
            found = read or compiler_files(comm, procfs.read_arguments(pid))
            self._files[pid, started] = found.file(inherited)

    def add_forked(self, pid: int, started: int, parent: tuple[int, int]) -> None:
        """Note that a forked compiler works on the source file of its parent."""
        if file := self._files.get(parent, ""):
            self._files[pid, started] = file

    def find(self, pid: int, started: int) -> str:
        """Return the source file that a process compiles, or "" if it runs no compiler."""
        return self._files.get((pid, started), "")

    def forget(self, pid: int, started: int) -> None:
        self._files.pop((pid, started), None)


_FOREVER_NS = 2**62


class ThreadNames:
    """Names of threads; `lives` has the threads' start times, `files` the source files of compilers."""

    def __init__(self, lives: ThreadLives, files: CompiledFiles) -> None:
        self._lives = lives
        self._files = files
        self._names: dict[int, dict[int, tuple[int, str]]] = {}
        self._leaving: DelayedRemoval[tuple[int, int]] = DelayedRemoval()

    def add_name(self, tid: int, started: int, pid: int, name: str) -> None:
        self._names.setdefault(tid, {})[started] = pid, name

    def __contains__(self, tid: int) -> bool:
        return tid in self._names

    def find_name(self, tid: int, time_ns: int) -> tuple[int, str] | None:
        """Return (pid, name) of the thread that had a tid at a time, or those of the tid's last known thread."""
        names = self._names.get(tid)
        if not names:
            return None
        return names.get(self._lives.find_start(tid, time_ns)) or names[max(names)]

    def _of(self, tid: int, started: int) -> tuple[int, str] | None:
        """Return (pid, name) of a thread, or those of the last known thread with its tid."""
        names = self._names.get(tid)
        return (names.get(started) or names[max(names)]) if names else None

    def find_pids(self, tids: npt.NDArray[np.integer], time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the process of each thread (tid) at a time. An unknown thread is its own process."""
        columns = zip(tids.tolist(), time_ns.tolist(), strict=True)
        return np.array([(self.find_name(tid, at) or (tid, ""))[0] for tid, at in columns], np.int32)

    def retire(self, sampled: set[tuple[int, int]]) -> None:
        """Forget the names of threads that had ended when the previous window was closed, here and in `sampled`."""
        known = sampled | {(tid, started) for tid, names in self._names.items() for started in names}
        there = {tid: self._lives.find_start(tid, _FOREVER_NS) for tid in {tid for tid, _ in known} if _exists(tid)}
        gone = {(tid, started) for tid, started in known if there.get(tid) != started}
        for tid, started in self._leaving.take_gone(gone):
            sampled.discard((tid, started))
            self._files.forget(tid, started)
            names = self._names.get(tid, {})
            names.pop(started, None)
            if not names:
                self._names.pop(tid, None)
        self._lives.retire()

    def describe_threads(self, threads: Iterable[tuple[int, int]]) -> list[ThreadInfo]:
        """Describe threads (tid, started). The name of an unknown thread is its tid."""
        found = []
        for tid, started in threads:
            pid, name = self._of(tid, started) or (tid, str(tid))
            began = self._lives.find_process(pid, started)
            program = (self._of(pid, began) or (pid, name))[1]
            process = process_name(program, self._files.find(pid, began))
            found.append(ThreadInfo(pid, tid, name, process, started, began))
        return sorted(found, key=lambda info: info.key)


def _exists(tid: int) -> bool:
    return os.path.exists(f"/proc/{tid}")
