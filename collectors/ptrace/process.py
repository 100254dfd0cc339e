"""One sampled process: its threads, its address spaces, its end."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.map_query import MapQuery
from pyprof.collectors.linux.procfs import ENDED_STATES, ProcDir
from pyprof.collectors.ptrace.copy_size import StackShape
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.ptrace.thread_choice import MIN_SUBSAMPLED_THREADS, IdleSubsampling, ThreadChoice, Wants
from pyprof.collectors.ptrace.thread_processor_share import ProcessorShare, ShortThreads
from pyprof.collectors.ptrace.threads import Thread
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.collectors.thread_start_times import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.model.compiler_command_lines import compiler_files, may_be_compiler, process_name
from pyprof.model.interpreter_state import StackReader
from pyprof.model.profile import ThreadInfo
from pyprof.options import CollectOptions

_RELIST_NS = 50_000_000
_LATEST_LIST_NS = 1_000_000_000
_LIST_BUDGET = 100  # after a listing that used t of processor time there is none for 100 t
_NAMES_NS = 1_000_000_000
_FEW = 16
"""Maximum number of threads of a process for which the displaced one is looked for first. Each check costs 0.02 ms."""


class TracedProcess:
    """A process that is sampled by short stops.

    Every method that reads the process raises ProcessLookupError if it has ended, and PermissionError if it may not be
    read.

    Attributes:
        started: Start of its first thread; see ThreadKey.
        bridged: See DeepStack; value of the process's last thread with a long stack.
    """

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        ids: Identities,
        diagnostics: Diagnostics,
        reader: StackReader | None = None,
        wanted: Wants | None = None,
        kin: ShortThreads | None = None,
    ) -> None:
        """Open the /proc files of a process that is sampled by stops.

        Args:
            pid: Pid of the process.
            options: Options of the recording.
            ids: Identifiers shared by all collectors of the recording.
            diagnostics: Counts problems.
            reader: Reader of its interpreter's frames, or None if they are not wanted.
            wanted: Returns True if a thread (pid, tid) should be sampled.
            kin: The short-lived threads of its process tree.
        """
        self.pid = pid
        self._lives = ids.lives
        self.directory = ProcDir(pid)
        query = MapQuery(partial(self.directory.open, "maps"))
        try:
            self.spaces = SpaceTracker(
                self.directory,
                ids.next_id,
                lambda: diagnostics.count("modules_changed"),
                query,
            )
        except BaseException:
            query.close()
            self.directory.close()
            raise
        self.threads: dict[int, Thread] = {}
        self.bridged = 0
        self.reader = reader
        self._file = ""
        self.name = self._named(procfs.read_name(pid))
        self.started = self._lives.read_proc_start(pid)
        self.denied = False
        self._options = options
        self._choice = ThreadChoice(options.thread, wanted)
        self._rounds = IdleSubsampling(random.random)
        self._kin = kin or ShortThreads()
        self._count = -1
        self._relist_at = self._names_at = 0
        self._execs = 0
        self._departed: list[ThreadInfo] = []
        self._turn: list[tuple[Thread, int]] = []

    def update(self, builder: BatchBuilder[ArenaMemory]) -> None:
        """Update the modules and threads of the process before a round of samples."""
        self.look_at_modules(builder)
        if self.spaces.exec_count != self._execs:
            self._execs = self.spaces.exec_count
            self.name = self._named(procfs.read_name(self.pid))
            for thread in self.threads.values():
                thread.shape = StackShape(self._options.stack_size)
                thread.arch = self.spaces.image.arch
                thread.has_name = False
                thread.note_wakeup()
        now = time.monotonic_ns()
        count = self.directory.thread_count()
        if count != self._count or now >= self._relist_at or self._has_lost_one():
            before = time.thread_time_ns()
            self._relist(count)
            spent = time.thread_time_ns() - before
            self._relist_at = time.monotonic_ns() + min(max(_RELIST_NS, _LIST_BUDGET * spent), _LATEST_LIST_NS)
        if self.reader is not None:
            self.reader.inspect_process(self.spaces.current, self.threads)

    def has_ended(self) -> bool:
        """Return True if this process has ended, even if another one has its pid now."""
        try:
            return self.directory.stat().is_zombie
        except OSError:
            return True

    def look_at_modules(self, builder: BatchBuilder[ArenaMemory], force: bool = False, last: bool = False) -> None:
        """Read the mappings of the process if the budget allows, and assign samples since the last reading to their
        address space.

        Args:
            builder: The batch with the samples.
            force: Ignore the budget.
            last: True before the batch is yielded.
        """
        for lane, space in self.spaces.refresh_space(time.monotonic_ns, force, last=last):
            builder.move_to_space(lane, space)

    def _relist(self, count: int) -> None:
        tids = self.directory.threads()
        self._choice.forget_choices()
        self._count = count
        alive = set(tids)
        for tid in [tid for tid, thread in self.threads.items() if thread.ended or tid not in alive]:
            self._left(self.threads.pop(tid))
        if not tids or (len(tids) == 1 and self.directory.state() in ENDED_STATES):
            raise ProcessLookupError(self.pid)
        for thread in self.threads.values():
            thread.no_user_stack = False
        for tid in tids:
            if tid not in self.threads:
                with contextlib.suppress(ProcessLookupError):
                    self._meet(tid)

    @property
    def is_many(self) -> bool:
        """True if the process has so many threads that not every round checks all."""
        return len(self.threads) >= MIN_SUBSAMPLED_THREADS

    @property
    def thread_count(self) -> int:
        """Number of threads of the process at the last listing."""
        return self._count

    def _meet(self, tid: int) -> Thread:
        """Add a thread of the process that was not known yet.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        shape = StackShape(self._options.stack_size)
        share, deep = ProcessorShare(self._kin), DeepStack(bridged=self.bridged)
        thread = Thread(
            self.pid, tid, self.directory, shape, self.spaces.image.arch, self.reader, share=share, deep=deep
        )
        try:
            thread.open_files()
        except ProcessLookupError:
            thread.close()
            raise
        thread.started = self._lives.find_seen_start(tid)
        self.threads[tid] = thread
        self._kin.born += 1
        self.spaces.force_read()  # its stack may be a new mapping
        return thread

    @property
    def is_searched(self) -> bool:
        """True if find_displaced() checks all threads of this process."""
        return self._options.thread is None and 0 < self._count <= _FEW

    def find_displaced(self, is_displaced: Callable[[bytes], bool]) -> Thread | None:
        """Return the thread that the sampler displaced from its processor, according to /proc/TID/sched. The search
        begins with the youngest thread.

        It returns None if threads are selected by name, or if there are too many.

        Raises:
            ProcessLookupError: The process has ended.
        """
        if not self.is_searched:
            return None
        for tid in reversed(self.directory.threads()):
            with contextlib.suppress(ProcessLookupError):
                if is_displaced(self.directory.read(f"task/{tid}/sched")):
                    return self.threads.get(tid) or self._newcomer(tid)
        return None

    def _newcomer(self, tid: int) -> Thread:
        """Add a thread that was not known yet and that is sampled before the next update().

        Raises:
            ProcessLookupError: The thread has ended.
        """
        thread = self._meet(tid)
        if self.reader is not None:
            self.reader.inspect_process(self.spaces.current, self.threads)
        return thread

    def choose_threads(self) -> list[tuple[Thread, int]]:
        """Return the threads of the process to check now, each with the number of rounds that its check stands for."""
        wanted = self._choice.select_threads(self.threads, self.describe_thread)
        self._turn = [(thread, 1) for thread in wanted] if self._options.idle else self._rounds.choose_threads(wanted)
        return self._turn

    def list_chosen(self) -> list[Thread]:
        """Return the threads of the process that are recorded, whether they run or not."""
        return self._choice.select_threads(self.threads, self.describe_thread)

    def _has_lost_one(self) -> bool:
        """Return True if a thread of the process that was checked in this round has ended. Only the check shows
        that.
        """
        return any(thread.ended for thread, _ in self._turn)

    def find_late_threads(self) -> list[tuple[Thread, int]]:
        """Return threads of the process that replaced ended ones since update(). The number of threads alone did not
        show that.
        """
        if not self._has_lost_one():
            return []
        known = set(self.threads)
        self._relist(self.directory.thread_count())
        if self.reader is not None and self.threads.keys() - known:
            self.reader.inspect_process(self.spaces.current, self.threads)
        wanted = self._choice.select_threads(self.threads, self.describe_thread)
        self._turn = [(thread, 1) for thread in wanted if thread.tid not in known]
        return self._turn

    def assign_spaces(self, builder: BatchBuilder[ArenaMemory]) -> None:
        """Assign all samples of the process to address spaces before the batch is yielded."""
        with contextlib.suppress(OSError):
            self.look_at_modules(builder, force=self.spaces.stale, last=True)
        self.spaces.forget_unsettled()

    def read_names(self, now_ns: int, force: bool = False) -> Iterator[ThreadInfo]:
        """Yield the names of the process's sampled threads, at most once a second."""
        if now_ns < self._names_at and not force:
            return
        self._names_at = now_ns + _NAMES_NS
        for tid, thread in self.threads.items():
            if thread.has_name:
                info = self.describe_thread(tid)
                if info is not None:
                    yield info

    def describe_thread(self, tid: int) -> ThreadInfo | None:
        try:
            comm = self.directory.read(f"task/{tid}/comm")
        except OSError:
            return None
        name = comm.rstrip(b"\n").decode("utf-8", "replace")
        if tid == self.pid:
            self.name = process_name(name, self._file)
        return self.describe_known(tid, name)

    def _named(self, comm: str) -> str:
        """Return the process's name with its current program, including the file that a compiler works on."""
        self._file = compiler_files(comm, procfs.read_arguments(self.pid)).file() if may_be_compiler(comm) else ""
        return process_name(comm, self._file)

    def describe_known(self, tid: int, name: str) -> ThreadInfo:
        """Return the description of an existing thread of the process with a given name."""
        thread = self.threads.get(tid)
        started = thread.started if thread else 0
        return ThreadInfo(self.pid, tid, name, self.name, started, self.started)

    def _left(self, thread: Thread) -> None:
        """Close the files of a thread that has ended."""
        thread.close()
        self._lives.note_end(thread.tid, thread.started)
        name = self.reader.left(thread.tid) if self.reader is not None else ""
        if name and thread.has_name:
            self._departed.append(ThreadInfo(self.pid, thread.tid, name, self.name, thread.started, self.started))

    def take_ended_threads(self) -> list[ThreadInfo]:
        """Return threads of the process that ended since the last call, with the names that an interpreter gave
        them.
        """
        departed, self._departed = self._departed, []
        return departed

    def close_ended(self) -> None:
        """Release the process after it has ended, and all of its threads."""
        for thread in self.threads.values():
            self._left(thread)
        self.threads.clear()
        self.close()

    def close(self) -> None:
        """Close the process's files; it is not sampled any more."""
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()
        self.spaces.close()
        self.directory.close()
