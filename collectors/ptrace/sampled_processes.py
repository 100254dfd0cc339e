"""The processes that are sampled by stops, their threads, and a record of those that ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from pyprof.collectors.base import Feedback
from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import ShortThreads, Thread
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.collectors.thread_start_times import DelayedRemoval, Identities
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_reader_protocols import StackReader
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind, keys_of
from pyprof.model.thread_identity import ThreadKey
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

CUT_COUNTER = "stack_size_exceeded"

_FEW = 16
"""Maximum number of sampled processes whose children are searched for the process from which the sampler took
its processor.
"""

Readers = Callable[[int], StackReader]


class Targets:
    """The processes that are sampled by ptrace stops, and the names of all threads that were sampled.

    Attributes:
        by_pid: Processes that are sampled now, by pid.
        refused: Pids that may not be read.
        birth_count: Number of threads that were found, and of processes that ended before they could be read.
        brief: Number of processes that ended before they could be read.
        fresh: True if a process, a module or a sampled thread is new since the last batch. The caller that
            reads it sets it to False.
    """

    def __init__(
        self,
        options: CollectOptions,
        diagnostics: Diagnostics,
        ids: Identities,
        readers: Readers | None,
        wanted: Callable[[int, int], bool] | None,
    ) -> None:
        """Create an empty set of processes. See PtraceCollector.__init__ for the arguments."""
        self.by_pid: dict[int, TracedProcess] = {}
        self.refused: set[int] = set()
        self.brief = 0
        self.fresh = False
        self._past_births = 0
        self._options = options
        self._diagnostics = diagnostics
        self._ids = replace(ids, next_id=partial(self._of_fresh, ids.next_id))
        self._readers = readers
        self._wanted = wanted
        self._infos: dict[ThreadKey, ThreadInfo] = {}
        self._root_of: dict[int, int] = {}
        self._young: dict[int, ShortThreads] = {}
        self._seen: set[int] = set()
        self._reported: dict[int, AddressSpace] = {}
        self._leaving: DelayedRemoval[ThreadKey] = DelayedRemoval()
        self._unseen: DelayedRemoval[int] = DelayedRemoval()

    def _of_fresh(self, next_id: Callable[[], int]) -> int:
        """Return an identifier for a new address space, and set `fresh`, because the worker process does not
        know the address space yet.
        """
        self.fresh = True
        return next_id()

    def add_process(self, pid: int) -> None:
        """Start to sample a process by short ptrace stops.

        Raises:
            ProcessLookupError: The process has ended.
            PermissionError: The process may not be read.
        """
        self._options.handover.steps += 1
        reader = self._readers(pid) if self._readers else None
        root = self._root(pid)
        young = self._young.setdefault(root, ShortThreads())
        self.by_pid[pid] = TracedProcess(pid, self._options, self._ids, self._diagnostics, reader, self._wanted, young)
        self._root_of[pid] = root

    def _root(self, pid: int) -> int:
        """Return the pid of the selected process from which a process descends."""
        if not self._options.subprocesses:
            return pid
        directory = ProcDir(pid)
        try:
            return self._root_of.get(directory.stat().ppid, pid)
        finally:
            directory.close()

    def add_processes(self, pids: Iterable[int]) -> None:
        """Start to sample those of the processes that are not sampled yet."""
        for pid in pids:
            if self._is_sampled(pid) or pid in procfs.own_pids():
                continue
            try:
                self.add_process(pid)
            except ProcessLookupError:
                self._diagnostics.count("process_ended_early")
                self._past_births += 1
                self.brief += 1
                self._seen.add(pid)
            except PermissionError:
                self.refused.add(pid)
                self._diagnostics.count("process_not_permitted")

    def find_new_child(self, is_it: Callable[[bytes], bool]) -> int:
        """Return the pid of a child process that is not sampled yet and whose /proc/TID/sched satisfies
        `is_it`, 0 if there is none. Only children of the first few sampled processes are searched.
        """
        for target in list(self.by_pid.values())[:_FEW]:
            with contextlib.suppress(OSError):
                for pid in target.directory.children():
                    if pid not in self.by_pid and pid not in self.refused and is_it(procfs.read_sched(pid)):
                        return pid
        return 0

    def open_child(self, pid: int, builder: BatchBuilder[ArenaMemory]) -> tuple[Thread, SpaceTracker] | None:
        """Start to sample a child process. Return its first thread and its address spaces, or None if the
        process has ended or may not be read.
        """
        self.add_processes([pid])
        target = self.by_pid.get(pid)
        if target is None:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            target.update(builder)
        thread = target.threads.get(pid)
        return (thread, target.spaces) if thread is not None else None

    def _is_sampled(self, pid: int) -> bool:
        """Return True if a process with this pid is sampled and has not ended."""
        target = self.by_pid.get(pid)
        if target is not None and target.has_ended():
            self.remove_ended(target)
            return False
        return target is not None

    def has_been_sampled(self, pid: int) -> bool:
        """Return True if a thread of the process was ever sampled, or if the process ended before that."""
        return pid in self._seen

    @property
    def roots(self) -> dict[int, int]:
        """Pid of the selected process from which each sampled process descends, by pid."""
        return {pid: self._root_of[pid] for pid in self.by_pid}

    def root_of(self, pid: int) -> int:
        """Return the pid of the selected process from which a process descends, even if it has ended."""
        return self._root_of.get(pid, pid)

    def count_rounds(self, rounds: int = 1) -> None:
        """Count rounds of samples for the processor share of short-lived threads. In each round, every thread
        counts for one sampling time.
        """
        for young in self._young.values():
            young.rounds += rounds

    def settle_young(self, spent_ns: Callable[[int], int]) -> None:
        """Update the processor shares of short-lived threads. `spent_ns` returns the processor time of a
        process tree by the pid of its selected process.
        """
        now = time.monotonic_ns()
        for root, young in self._young.items():
            young.update_share(now, spent_ns(root))

    @property
    def birth_count(self) -> int:
        return self._past_births + sum(young.born for young in self._young.values())

    def describe_thread(self, target: TracedProcess, thread: Thread) -> None:
        """Store the names of a thread when it is sampled for the first time."""
        thread.has_name = self.fresh = True
        self._seen.add(target.pid)
        info = target.describe_thread(thread.tid) or target.describe_known(thread.tid, "?")
        self._infos[info.key] = info

    def describe_late(self, batch: SampleBatch) -> None:
        """Store the names of threads whose first sample came from a stop that finished late."""
        for key in keys_of(batch):
            self._seen.add(key.pid)
            target = self.by_pid.get(key.pid)
            thread = target.threads.get(key.tid) if target else None
            if target and thread and thread.started == key.started and not thread.has_name:
                self.describe_thread(target, thread)
            elif key not in self._infos:  # it has ended meanwhile
                began = self._ids.lives.find_process(key.pid, key.started)
                names = (info.process for info in self._infos.values() if info.process_key == (key.pid, began))
                name = target.name if target else next(names, "?")
                self._infos[key] = ThreadInfo(*key[:2], name, name, key.started, began)

    def complete_batch(self, builder: BatchBuilder[ArenaMemory]) -> None:
        """Assign the samples of all processes to address spaces and store new names of threads, before the batch is
        yielded.
        """
        for target in self.by_pid.values():
            target.assign_spaces(builder)
            self._name(target.take_ended_threads())
            self._name(target.read_names(time.monotonic_ns()))

    def _name(self, infos: Iterable[ThreadInfo]) -> None:
        self._infos.update((info.key, info) for info in infos)

    def remove_ended(self, target: TracedProcess) -> None:
        """Remove a process that has ended from the sampled ones, and close its files."""
        self.by_pid.pop(target.pid, None)
        target.spaces.forget_unsettled()
        target.spaces.image.alive = False
        target.close_ended()
        self._name(target.take_ended_threads())

    def note_denied(self, target: TracedProcess) -> None:
        """Mark a process as one that may no longer be read, so that it is no longer sampled."""
        if not target.denied:
            target.denied = True
            self._diagnostics.count("process_permission_lost")

    def learn(self, feedback: Feedback) -> None:
        """Store how much stack the walks of a batch needed, for the next copies of the same threads."""
        batch = feedback.batch
        columns = (batch.kind, batch.pid, batch.tid, feedback.top, feedback.missing, feedback.stop)
        for lane, (kind, pid, tid, top, missing, stop) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            target = self.by_pid.get(pid) if kind != SampleKind.UNCHANGED else None
            thread = target.threads.get(tid) if target else None
            if target is None or thread is None or self._is_beyond(target, thread, batch, lane, top, missing):
                continue
            if missing:
                target.spaces.force_read()
            region = target.spaces.find_region(missing) if missing else None
            learned = thread.shape.learn(int(batch.stack.base[lane]), top, missing, region)
            if learned and kind == SampleKind.BLOCKED and missing:
                thread.slept = None  # its stack is the same, but more of it must be copied
            if kind == SampleKind.BLOCKED and stop:
                thread.stop_wanted = True

    def _is_beyond(
        self, target: TracedProcess, thread: Thread, batch: SampleBatch, lane: int, top: int, missing: int
    ) -> bool:
        """Store what one sample shows about how much to copy of a deep stack, which is longer than its copy.

        Returns:
            True if the sample shows nothing about the size of copies of shorter stacks.
        """
        beyond = batch.stack.beyond.get(lane)
        if beyond is None:
            return False
        base, deep = int(batch.stack.base[lane]), thread.deep
        needed = top - base if base < top <= base + int(batch.stack.size[lane]) else 0
        if deep.learn(beyond, top > 0, missing, self._options.stack_size, needed):
            thread.slept = None  # also if the thread sleeps
        target.bridged = deep.bridged
        if missing:
            self._diagnostics.count(CUT_COUNTER)
        return needed > 0 or base <= missing < base + beyond.length

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call."""
        before, self._reported = self._reported, {pid: target.spaces.current for pid, target in self.by_pid.items()}
        return {pid for pid, space in self._reported.items() if before.get(pid) is not space}

    def list_threads(self) -> list[ThreadInfo]:
        """Return every thread that was ever sampled, with its latest name."""
        for target in self.by_pid.values():
            self._name(target.take_ended_threads())
            self._name(target.read_names(0, force=True))
        return [self._infos[key] for key in sorted(self._infos)]

    def retire(self) -> None:
        """Forget sampled threads and processes that had ended when the previous window was closed."""
        there = {(t.pid, thread.tid, thread.started) for t in self.by_pid.values() for thread in t.threads.values()}
        for key in self._leaving.take_gone({key for key in self._infos if key not in there}):
            del self._infos[key]
        known = {key.pid for key in self._infos} | self.by_pid.keys()
        for pid in self._unseen.take_gone((self._seen | self._root_of.keys()) - known):
            self._seen.discard(pid)
            self._root_of.pop(pid, None)
        roots = set(self._root_of.values())
        for root in self._young.keys() - roots:
            self._past_births += self._young.pop(root).born
        self.refused = {pid for pid in self.refused if os.path.exists(f"/proc/{pid}")}
        self._ids.lives.retire()

    def close(self) -> None:
        for target in self.by_pid.values():
            target.close()
        self.by_pid.clear()
