"""The processes of a recording as the kernel's records report them: forks, execs, mappings and thread names.

ProcessEvents reads forks, execs and new file mappings from the rings early, and leaves the records there for
the next batch. The rings may also hold records of untracked processes.

The names of compiler processes include the source files that they compile.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.address_spaces import MappingHistory, MappingLayout
from pyprof.collectors.perf.ring_buffer_records import (
    COMM,
    EXIT,
    FORK,
    MISC_COMM_EXEC,
    MMAP2,
    OtherRecord,
    Ring,
    Rings,
    Scan,
    mapping_process,
    parse_comm,
    parse_mmap2,
    parse_task,
)
from pyprof.collectors.thread_start_times import DelayedRemoval, Identities, ThreadLives
from pyprof.model.analysis.compiler_command_lines import CompilerFiles, compiler_files, may_be_compiler, process_name
from pyprof.model.profile import ThreadInfo

_MAX_RECORDS = 20_000
"""Maximum number of records of one perf ring that one call reads."""
_BODY = 1 << 13
_GENERATIONS = 16
_COMING_NS = 10_000_000_000
"""Maximum time in nanoseconds for which a record of a fork waits in perf's rings before it is consumed."""
_WRITTEN_NS = 10_000_000
"""Maximum delay in nanoseconds between a perf record's time and its appearance in the ring."""


class ProcessEvents:
    """An early reader of perf's rings, which reports recorded processes with new code (fork, exec, mapped
    files).

    Args:
        rings: The rings.
        sampled: Function that returns True for a process of the recording.
        children: True if forked processes are recorded, too.
        executed: Function to call with (pid, new name) of each recorded process that called exec.
    """

    def __init__(
        self, rings: Rings, sampled: Callable[[int], bool], children: bool, executed: Callable[[int, str], None]
    ) -> None:
        self._rings = rings
        self._sampled = sampled
        self._children = children
        self._executed = executed
        self._programs: dict[int, str] = {}
        self._read: dict[int, int] = {}
        self._looked_ns = 0
        self._coming: dict[int, int] = {}

    def take_reported_pids(self) -> set[int]:
        """Return the pids of recorded processes with new code, by the records that were not yet looked at.
        The records stay in perf's ring buffers.
        """
        self._looked_ns = time.monotonic_ns()
        named_pids: set[int] = set()
        born: dict[int, int] = {}
        for cpu, ring in self._rings.rings.items():
            self._read[cpu] = self._walk(ring, max(self._read.get(cpu, 0), ring.tail), named_pids, born)
        return self._ours(named_pids, born)

    def note_scan(self, found: Scan) -> set[int]:
        """Return the pids of recorded processes with new code, by the records of one reading of perf's ring
        buffers. The caller releases these records later.
        """
        named_pids: set[int] = set()
        born: dict[int, int] = {}
        for record in found.others:
            if record.time_ns > self._looked_ns - _WRITTEN_NS:
                self._note(record.kind, record.misc, record.body, named_pids, born)
        return self._ours(named_pids, born)

    def _ours(self, named_pids: set[int], born: dict[int, int]) -> set[int]:
        now = time.monotonic_ns()
        for _ in range(_GENERATIONS):
            fresh = {
                pid for pid, parent in born.items() if self._children and self.is_recorded(parent)
            } - self._coming.keys()
            if not fresh:
                break
            named_pids |= fresh
            self._coming |= dict.fromkeys(fresh, now)
        ours = {pid for pid in named_pids if self.is_recorded(pid)}
        programs, self._programs = self._programs, {}
        for pid in programs.keys() & ours:
            self._executed(pid, programs[pid])
        self._coming = {pid: at for pid, at in self._coming.items() if now < at + _COMING_NS and not self._sampled(pid)}
        return ours

    def is_recorded(self, pid: int) -> bool:
        """Return True if a process belongs to the recording, or will belong to it as soon as the record of
        its fork is consumed.
        """
        return pid in self._coming or self._sampled(pid)

    def _walk(self, ring: Ring, position: int, named_pids: set[int], born: dict[int, int]) -> int:
        """Read the new records of one perf ring without consuming them. Add processes with new code to
        `named_pids`, and forked ones to `born` with their parents.

        Returns:
            The position after the last record.
        """
        head, words = ring.head, self._rings.words
        for _ in range(_MAX_RECORDS):
            if position >= head:
                break
            word = ring.first + (position & (ring.size - 1)) // 8
            header = int(words[word])
            kind, misc, size = header & 0xFFFF_FFFF, header >> 32 & 0xFFFF, header >> 48
            if size < 32 or size & 7 or size > head - position:
                return head
            if kind in (COMM, FORK, MMAP2) and size <= _BODY:
                ring.make_contiguous(position & (ring.size - 1), size)
                if kind != MMAP2 or int(words[word + 1]) & 0xFFFF_FFFF not in named_pids:
                    self._note(kind, misc, words[word + 1 : word + size // 8 - 3].tobytes(), named_pids, born)
            position += size
        return position

    def _note(self, kind: int, misc: int, body: bytes, named_pids: set[int], born: dict[int, int]) -> None:
        if kind == COMM and misc & MISC_COMM_EXEC and (named := parse_comm(body)) is not None:
            named_pids.add(named[0])
            self._programs[named[0]] = named[2]
        elif kind == MMAP2 and (pid := mapping_process(body)) is not None:
            named_pids.add(pid)
        elif kind == FORK and (ids := parse_task(body)) is not None and ids[0] != ids[1]:
            born[ids[0]] = ids[1]


class CompiledFiles:
    """The source file of each process that runs a compiler, by (pid, start).

    A compiler may end before its records are consumed. So its command line is read as soon as its exec record
    is found in a ring. Steps of a compiler (cc1, as) may be too short even for that. They get the source file
    of the driver that forked them.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], str] = {}
        self._read: dict[tuple[int, str], CompilerFiles] = {}

    def read_ahead(self, pid: int, comm: str) -> None:
        """Read the command line of a process whose exec record is still unread in a perf ring, because the process may
        end before the record is read.
        """
        if may_be_compiler(comm):
            self._read[pid, comm] = compiler_files(comm, procfs.read_arguments(pid))

    def add_executed(self, pid: int, started: int, comm: str) -> None:
        """Store the source file of a process that has called exec for a program with this name, if the
        program is a compiler.
        """
        read = self._read.pop((pid, comm), None)
        inherited = self._files.pop((pid, started), "")
        if may_be_compiler(comm):
            found = read or compiler_files(comm, procfs.read_arguments(pid))
            self._files[pid, started] = found.file(inherited)

    def add_forked(self, pid: int, started: int, parent: tuple[int, int]) -> None:
        """Store that a forked process of a compiler works on the source file of its parent."""
        if file := self._files.get(parent, ""):
            self._files[pid, started] = file

    def find(self, pid: int, started: int) -> str:
        """Return the source file that a process compiles, or "" if it runs no compiler."""
        return self._files.get((pid, started), "")

    def forget(self, pid: int, started: int) -> None:
        self._files.pop((pid, started), None)


_FOREVER_NS = 2**62


class ThreadNames:
    """The names of threads over time, because tids are reused and threads are renamed. `lives` has the
    threads' start times, `files` the source files of compilers.
    """

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
        """Return (pid, name) of the thread that had this tid at a time. If that thread is unknown, return
        those of the last known thread with the tid.
        """
        names = self._names.get(tid)
        if not names:
            return None
        return names.get(self._lives.find_start(tid, time_ns)) or names[max(names)]

    def _of(self, tid: int, started: int) -> tuple[int, str] | None:
        """Return (pid, name) of the thread with this tid and start time, or else those of the last known
        thread with the tid.
        """
        names = self._names.get(tid)
        return (names.get(started) or names[max(names)]) if names else None

    def find_pids(self, tids: npt.NDArray[np.integer], time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the pid of the process of each thread (tid) at a time. The tid itself is the result for an
        unknown thread.
        """
        columns = zip(tids.tolist(), time_ns.tolist(), strict=True)
        return np.array([(self.find_name(tid, at) or (tid, ""))[0] for tid, at in columns], np.int32)

    def retire(self, sampled: set[tuple[int, int]]) -> None:
        """Forget threads that had ended when the previous window was closed.

        Args:
            sampled: (tid, start time) of threads. The entries of forgotten threads are removed from it.
        """
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
        """Return the descriptions of threads, given as (tid, start time). The name of an unknown thread is its tid."""
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


_YOUNG_NS = 10_000_000_000


class TrackedProcesses:
    """The recorded processes, with their address spaces and names of threads.

    Attributes:
        histories: Mappings of each process over time, by pid.
        alive: Pidfd of each process that has not ended, by pid.
        lives: Start times of threads.
        names: Names of threads.
        files: Source files of compilers.
        filters: True if the records include processes that do not belong to the recording.
    """

    filters = False

    def __init__(self, ids: Identities, follows: bool = True) -> None:
        """Create an empty set of tracked processes.

        Args:
            ids: Identifiers shared by all collectors of the recording.
            follows: True if children of recorded processes are recorded.
        """
        self._follows = follows
        self.histories: dict[int, MappingHistory] = {}
        self.alive: dict[int, int] = {}
        self.lives = ids.lives
        self._next_id = ids.next_id
        self.files = CompiledFiles()
        self.names = ThreadNames(ids.lives, self.files)
        self._ended: list[int] = []
        self._came_ns = 0

    def add_process(self, pid: int) -> None:
        """Start to track a process that already runs.

        Raises:
            ProcessLookupError: The process has ended.
            PermissionError: The process may not be read.
        """
        directory = procfs.ProcDir(pid)
        try:
            root = self._root(pid, directory)
            self.histories[pid] = MappingHistory(
                pid, self._next_id, MappingLayout(procfs.parse_maps(directory.maps())), root
            )
            for tid in directory.threads():
                with contextlib.suppress(ProcessLookupError):
                    name = os.fsdecode(directory.read(f"task/{tid}/comm").rstrip(b"\n"))
                    started = self.lives.read_proc_start(tid)
                    self.names.add_name(tid, started, pid, name)
                    if tid == pid:
                        self.files.add_executed(pid, started, name)
        finally:
            directory.close()
        self._came_ns = time.monotonic_ns()
        self._watch(pid)

    def _root(self, pid: int, directory: procfs.ProcDir) -> int:
        known = self.histories.get(pid)
        parent = self.histories.get(directory.stat().ppid) if self._follows and known is None else known
        return parent.root if parent is not None else pid

    @property
    def roots(self) -> dict[int, int]:
        """Pid of the selected process of its process tree, by the pid of each process that has not ended."""
        return {pid: self.histories[pid].root for pid in self.alive}

    def root_of(self, pid: int) -> int:
        """Return the pid of the selected process from which a process descends. The process may have ended."""
        history = self.histories.get(pid)
        return history.root if history is not None else pid

    def parent_of(self, pid: int) -> int:
        """Return the pid of the process that forked this one. Return 0 if it has called exec since or the
        parent is unknown.
        """
        history = self.histories.get(pid)
        return history.parent if history is not None else 0

    def track_process(self, pid: int) -> None:
        """Start to track a process. If it is tracked already, check whether its mappings are still the known
        ones, and start over if they are not.

        Raises:
            ProcessLookupError: The process has ended.
            PermissionError: The process may not be read.
        """
        known = self.histories.get(pid)
        if known is None or not known.unmoved():
            if known is not None:
                known.note_end()
            self.add_process(pid)

    @property
    def young(self) -> bool:
        """True if a recorded process appeared or called exec recently."""
        return time.monotonic_ns() - self._came_ns < _YOUNG_NS

    def _watch(self, pid: int) -> None:
        if pid not in self.alive:
            with contextlib.suppress(OSError):
                self.alive[pid] = os.pidfd_open(pid)

    def apply_records(self, others: Iterable[OtherRecord]) -> None:
        """Apply the kernel's records about forks, execs, mappings and names, in order of time."""
        for record in others:
            if record.kind == MMAP2:
                self._mapped(record)
            elif record.kind == COMM:
                self._named(record)
            elif record.kind == FORK:
                self._forked(record)
            elif record.kind == EXIT:
                self._exited(record)

    def _mapped(self, record: OtherRecord) -> None:
        history = self.histories.get(int.from_bytes(record.body[:4], "little"))
        if history is None or not history.takes_mappings():
            return
        if (mapping := parse_mmap2(record.body)) is not None:
            history.add_mapping(record.time_ns, mapping)

    def _named(self, record: OtherRecord) -> None:
        found = parse_comm(record.body)
        if found is None:
            return
        pid, tid, name = found
        if self.filters and pid not in self.histories:
            return
        started = self.lives.find_start(tid, record.time_ns)
        self.names.add_name(tid, started, pid, name)
        if record.misc & MISC_COMM_EXEC and pid in self.histories:
            self._came_ns = time.monotonic_ns()
            self.histories[pid].note_exec(record.time_ns)
            self.files.add_executed(pid, started, name)

    def _forked(self, record: OtherRecord) -> None:
        ids = parse_task(record.body)
        if ids is None:
            return
        pid, parent, tid, parent_tid = ids
        if self.filters and not self._belongs(pid, parent):
            return
        self.lives.note_fork(tid, record.time_ns)
        known = self.names.find_name(parent_tid, record.time_ns) or self.names.find_name(parent, record.time_ns)
        self.names.add_name(tid, self.lives.find_start(tid, record.time_ns), pid, known[1] if known else "?")
        if pid != parent and parent in self.histories and pid not in self.alive:
            self._came_ns = time.monotonic_ns()
            self.histories[pid] = self.histories[parent].make_child(pid, record.time_ns)
            began, of_parent = (self.lives.find_start(each, record.time_ns) for each in (pid, parent))
            self.files.add_forked(pid, began, (parent, of_parent))
            self._watch(pid)

    def _belongs(self, pid: int, parent: int) -> bool:
        """Return True if a new process or thread belongs to the recording. If not, forget an earlier one with
        the same id, because the kernel has reused it.
        """
        if pid == parent or (self._follows and parent in self.histories):
            return parent in self.histories
        if pid in self.histories and pid not in self.alive:
            self.histories.pop(pid).note_end()
        return False

    def _exited(self, record: OtherRecord) -> None:
        ids = parse_task(record.body)
        if ids is not None and ids[0] not in self.alive and ids[0] == ids[2] and ids[0] in self.histories:
            self.histories[ids[0]].note_end()

    def note_end(self, pidfd: int) -> None:
        """Mark the process of a pidfd as ended, because poll(2) has reported the pidfd."""
        for pid, fd in list(self.alive.items()):
            if fd == pidfd:
                os.close(fd)
                del self.alive[pid]
                self.histories[pid].note_end()

    def forget_ended(self) -> None:
        """Drop recorded processes that had already ended at the last call. Their late samples have arrived by now."""
        for pid in self._ended:
            history = self.histories.get(pid)
            if history is not None and not history.image.alive:
                del self.histories[pid]
        self._ended = [pid for pid, history in self.histories.items() if not history.image.alive]

    def close(self) -> None:
        for fd in self.alive.values():
            os.close(fd)
        self.alive.clear()
