"""One sampled process: its threads and which of them are sampled, its address spaces, its end.

In a round, the threads of a process are checked at one sampling time, and sampled if they run. Checking a
sleeping thread takes 3 us, or 8 us with cold caches. For 500 threads at 100 Hz that is 15 % of a processor.
So if a process has many threads, a thread that slept at its last checks is checked only in one of
QUIET_INTERVAL rounds, at random. With more threads the interval is larger, so that a round checks about
MAX_QUIET_CHECKS of such threads. If the thread runs at a check, its sample counts for all of these rounds. So
the expected time of each thread is the time that it ran.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.procfs import ENDED_STATES, ProcDir
from pyprof.collectors.linux.procmap_query import MapQuery
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.ptrace.sampled_thread import ProcessorShare, ShortThreads, StackShape, Thread
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.analysis.compiler_command_lines import compiler_files, may_be_compiler, process_name
from pyprof.model.interpreter_reader_protocols import StackReader
from pyprof.model.profile import ThreadInfo
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

QUIET_INTERVAL = 8
MAX_QUIET_CHECKS = 256
"""Approximate maximum number of sleeping threads that one round of samples checks."""
MIN_SUBSAMPLED_THREADS = 64
"""Number of threads of a process from which on a round of samples checks only some of them."""
QUIET_AFTER_CHECKS = 16
"""Number of consecutive checks that find a thread asleep, after which the thread is checked less often.

If a process has more than USUAL_THREADS threads, this number and SORT_INTERVAL are reduced in proportion.
"""
USUAL_THREADS = 512
SORT_INTERVAL = 32
"""Number of rounds of samples after which threads are divided into active and quiet ones again."""
_MIN_INTERVAL = 2


class IdleSubsampling:
    """The choice of the threads of one process that a round of samples checks: all active threads, and a
    random part of those that sleep.

    `random` is a function that returns a number uniform in [0, 1).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._threads: list[Thread] = []
        self._awake: list[Thread] = []
        self._quiet: list[Thread] = []
        self._asked: list[Thread] = []
        self._left = 0
        self._every = QUIET_INTERVAL

    def choose_threads(self, threads: list[Thread]) -> list[tuple[Thread, int]]:
        """Return the threads to check in this round, each with the number of rounds that its check stands for."""
        if len(threads) < MIN_SUBSAMPLED_THREADS:
            return [(thread, 1) for thread in threads]
        woken = [thread for thread in self._asked if not thread.asleep_checks]
        if woken:
            self._awake += woken
            self._quiet = [thread for thread in self._quiet if thread.asleep_checks]
        if self._left == 0 or threads != self._threads:
            still, self._left = (
                max(most * USUAL_THREADS // max(len(threads), USUAL_THREADS), _MIN_INTERVAL)
                for most in (QUIET_AFTER_CHECKS, SORT_INTERVAL)
            )
            self._threads = threads
            self._awake = [thread for thread in threads if thread.asleep_checks < still]
            self._quiet = [thread for thread in threads if thread.asleep_checks >= still]
            self._every = max(QUIET_INTERVAL, len(self._quiet) // MAX_QUIET_CHECKS)
        self._left -= 1
        self._asked = self._quiet[int(self._random() * self._every) :: self._every]
        return [*((thread, 1) for thread in self._awake), *((thread, self._every) for thread in self._asked)]


_NAMES_NS = 1_000_000_000

Wants = Callable[[int, int], bool]
"""The type of a function (pid, tid) that returns True if the thread should be sampled."""
Describe = Callable[[int], ThreadInfo | None]
"""The type of a function that returns the description of a thread by its tid, or None if the thread has ended."""


class ThreadChoice:
    """The choice of a process's threads that the user wants to record.

    Args:
        pattern: Pattern to find in names of threads, None for all names. The names are read once a second,
            because most threads get their name after their start.
        wants: Function (pid, tid) that returns True if the thread should be sampled; None for all threads.
    """

    def __init__(self, pattern: re.Pattern[str] | None, wants: Wants | None) -> None:
        self._pattern = pattern
        self._wants = wants
        self._named: list[Thread] | None = None
        self._read_at = 0

    def forget_choices(self) -> None:
        """Forget which threads were selected, because threads have started or ended."""
        self._named = None

    def select_threads(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        """Return those of a process's threads that the user has selected."""
        found = self._by_name(threads, describe)
        wants = self._wants
        return found if wants is None else [each for each in found if wants(each.pid, each.tid)]

    def _by_name(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        if self._pattern is None:
            return list(threads.values())
        now = time.monotonic_ns()
        if self._named is None or now >= self._read_at:
            self._read_at = now + _NAMES_NS
            pattern, names = self._pattern, {tid: describe(tid) for tid in threads}
            fits = {tid for tid, info in names.items() if info is not None and pattern.search(info.name)}
            self._named = [thread for tid, thread in threads.items() if tid in fits]
        return self._named


_RELIST_NS = 50_000_000
_LATEST_LIST_NS = 1_000_000_000
_LIST_BUDGET = 100  # after a listing that used t of processor time there is none for 100 t
_FEW = 16
"""Maximum number of threads of a process that are searched for the thread from which the sampler took its
processor. Each check costs 0.02 ms.
"""


class TracedProcess:
    """A process that is sampled by short ptrace stops, with its threads and mappings.

    Every method that reads the process raises ProcessLookupError if it has ended, and PermissionError if it may not be
    read.

    Attributes:
        started: Start time of its first thread, see ThreadKey.
        bridged: Value of DeepStack.bridged of the process's last thread with a deep stack, for new threads.
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
            diagnostics: The recording's counters of problems.
            reader: Reader of its interpreter's frames, or None if they are not wanted.
            wanted: Function that returns True if a thread (pid, tid) should be sampled; None for all.
            kin: The short-lived threads of its process tree, whose processor share is estimated together.
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
        """Read /proc/PID/maps if the budget of time permits, and assign the samples since the last reading to
        address spaces.

        Args:
            builder: The batch with the samples.
            force: True to ignore the budget.
            last: True for the last call before the batch is yielded.
        """
        for lane, space in self.spaces.refresh_space(time.monotonic_ns, force, last=last):
            builder.move_to_space(lane, space)

    def find_first_threads(self) -> None:
        """List the threads of the process if that was never done, without the other work of update()."""
        if self._count < 0:
            self._relist(self.directory.thread_count())

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
        """True if the process has so many threads that one round of samples checks only some of them."""
        return len(self.threads) >= MIN_SUBSAMPLED_THREADS

    @property
    def thread_count(self) -> int:
        """Number of threads of the process at the last listing."""
        return self._count

    def _meet(self, tid: int) -> Thread:
        """Create and return the state of a thread that is seen for the first time.

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
        """True if find_displaced() searches the threads of this process. It does not if the process has too
        many threads or they are selected by name.
        """
        return self._options.thread is None and 0 < self._count <= _FEW

    def find_displaced(self, is_displaced: Callable[[bytes], bool]) -> Thread | None:
        """Return the thread that ran on the sampler's processor until the sampler took it (a displaced
        thread). The search reads /proc/TID/sched and begins with the youngest thread.

        The result is None if there is no such thread, or if this process is not searched (is_searched).

        Args:
            is_displaced: Function that returns True for the contents of such a thread's sched file.

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
        """Create and return the state of a new thread that must be sampled before the next update() would
        find it.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        thread = self._meet(tid)
        if self.reader is not None:
            self.reader.inspect_process(self.spaces.current, self.threads)
        return thread

    def choose_threads(self) -> list[tuple[Thread, int]]:
        """Return the threads of the process to check in the next round, each with the number of rounds that
        its check stands for.
        """
        wanted = self._choice.select_threads(self.threads, self.describe_thread)
        self._turn = [(thread, 1) for thread in wanted] if self._options.idle else self._rounds.choose_threads(wanted)
        return self._turn

    def list_chosen(self) -> list[Thread]:
        """Return the threads of the process that the user wants to record, whether they run or not."""
        return self._choice.select_threads(self.threads, self.describe_thread)

    def _has_lost_one(self) -> bool:
        """Return True if a check in this round of samples found that a thread of the process has ended."""
        return any(thread.ended for thread, _ in self._turn)

    def find_late_threads(self) -> list[tuple[Thread, int]]:
        """Return threads that started after update() in this round, each with the number of rounds that its
        check stands for.

        update() misses them if as many other threads have ended, because it compares only the number of
        threads.
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
        if not self.spaces.has_unsettled:
            return
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
        """Return the name of the process's current program. For a compiler it includes the name of the file
        that the process compiles.
        """
        self._file = compiler_files(comm, procfs.read_arguments(self.pid)).file() if may_be_compiler(comm) else ""
        return process_name(comm, self._file)

    def describe_known(self, tid: int, name: str) -> ThreadInfo:
        """Return the description (ThreadInfo) of a thread of the process whose name was already read."""
        thread = self.threads.get(tid)
        started = thread.started if thread else 0
        return ThreadInfo(self.pid, tid, name, self.name, started, self.started)

    def _left(self, thread: Thread) -> None:
        """Close the /proc files of a thread that has ended."""
        thread.close()
        self._lives.note_end(thread.tid, thread.started)
        name = self.reader.left(thread.tid) if self.reader is not None else ""
        if name and thread.has_name:
            self._departed.append(ThreadInfo(self.pid, thread.tid, name, self.name, thread.started, self.started))

    def take_ended_threads(self) -> list[ThreadInfo]:
        """Return descriptions of threads that ended since the last call and had a name from an interpreter."""
        departed, self._departed = self._departed, []
        return departed

    def close_ended(self) -> None:
        """Release the process after it has ended, and all of its threads."""
        for thread in self.threads.values():
            self._left(thread)
        self.threads.clear()
        self.close()

    def close(self) -> None:
        """Close the files of the process and its threads, because it is not sampled any more."""
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()
        self.spaces.close()
        self.directory.close()
