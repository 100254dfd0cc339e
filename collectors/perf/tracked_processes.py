"""The processes of a recording as the kernel reports them: their address spaces, thread names, and which are alive."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.address_spaces import MappingHistory, MappingLayout
from pyprof.collectors.perf.records import (
    COMM,
    EXIT,
    FORK,
    MISC_COMM_EXEC,
    MMAP2,
    OtherRecord,
    parse_comm,
    parse_mmap2,
    parse_task,
)
from pyprof.collectors.perf.thread_names import CompiledFiles, ThreadNames
from pyprof.collectors.thread_start_times import Identities

_YOUNG_NS = 10_000_000_000


class TrackedProcesses:
    """The recorded processes, with their address spaces and names of threads.

    Attributes:
        histories: Mappings over time, by pid.
        alive: Maps the pid of each process that has not ended to its pidfd.
        lives: Start times of threads.
        names: Names of threads.
        files: Files that compilers work on.
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
        """Maps each process that has not ended to the selected process of its tree."""
        return {pid: self.histories[pid].root for pid in self.alive}

    def root_of(self, pid: int) -> int:
        """Return the selected process from which a process descends, whether the process is alive or not."""
        history = self.histories.get(pid)
        return history.root if history is not None else pid

    def parent_of(self, pid: int) -> int:
        """Return the process that forked this one, if this one still runs the same program; else 0."""
        history = self.histories.get(pid)
        return history.parent if history is not None else 0

    def track_process(self, pid: int) -> None:
        """Add a process to the recording, or check a known one after some time without records.

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
        """Apply the kernel's records about processes, in order of time."""
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
        """Return True if a new process or thread belongs to the recording. Others may reuse the pid of an earlier
        one.
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
        """Note the end of a recorded process, which poll reported for its pidfd."""
        for pid, fd in list(self.alive.items()):
            if fd == pidfd:
                os.close(fd)
                del self.alive[pid]
                self.histories[pid].note_end()

    def forget_ended(self) -> None:
        """Drop recorded processes that had already ended at the last call. Late samples of them have arrived by now."""
        for pid in self._ended:
            history = self.histories.get(pid)
            if history is not None and not history.image.alive:
                del self.histories[pid]
        self._ended = [pid for pid, history in self.histories.items() if not history.image.alive]

    def close(self) -> None:
        for fd in self.alive.values():
            os.close(fd)
        self.alive.clear()
