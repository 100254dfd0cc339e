"""One thread of a target: its open /proc files, the state of its sleep, its use of a processor, and its stop.

Stopping a thread on another processor takes some 0.05 ms, during which it continues to run. A thread that rarely gives
up its processor is still at the same place then. A thread that often gives it up is found where it waits.
"""

from __future__ import annotations

import os
from enum import IntEnum

from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.linux.syscalls import BlockedCall
from pyprof.collectors.ptrace.copy_size import StackShape
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.ptrace.thread_processor_share import ProcessorShare
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.model.arch import Arch
from pyprof.model.interpreter_state import StackReader
from pyprof.records import dataclass, field

MIN_STEADY_NS = 4_000_000
"""Average running time in ns between two waits above which a thread counts as steady."""
_WINDOW_NS = 50_000_000
_WINDOW_TIMES = _WINDOW_NS // MIN_STEADY_NS


@dataclass(eq=False, slots=True)
class ProcessorUse:
    """The way in which a thread used processors in the last 0.05 s of its running time.

    Before it has run that long, all of its running time counts. `steady` is False while nothing is known.
    """

    steady: bool = False
    _young: bool = True
    _ran_ns: int = 0
    _waits: int = 0

    def learn(self, ran_ns: int, waits: int) -> None:
        """Update a thread's processor use from its total running time and its number of voluntary switches."""
        ran, times = ran_ns - self._ran_ns, waits - self._waits
        whole = ran >= _WINDOW_NS or times > _WINDOW_TIMES
        if whole or self._young:
            self.steady = ran >= MIN_STEADY_NS * (times + 1)
        if whole:
            self._young, self._ran_ns, self._waits = False, ran_ns, waits


_SIZE = 512
_SCHED_SIZE = 4096


@dataclass(eq=False, slots=True)
class Thread:
    """The state of a thread between two samples.

    Attributes:
        pid: Pid of its process.
        tid: The thread's id.
        directory: The process's directory in /proc.
        shape: Amount of its stack to copy.
        arch: Architecture of the code in which it was last seen.
        reader: Reader of the process's interpreter, or None if its frames are not wanted.
        started: See ThreadKey.
        share: Its share of a processor.
        steadiness: Whether the thread keeps its processor.
        first_slot: True until its first sampling time.
        slept: schedstat of the sleep in which it was last seen, or None if it has run since.
        stop_wanted: True if the stack of its last sample needs a register.
        stopped: (sp, pc, stack bytes) of a stop in this sleep.
        last_sp: sp at its last stop.
        no_user_stack: True if it has no stack (a leader that ended before its threads), until it is checked again.
        ended: True if it must be dropped.
        has_name: True if its name was read.
        asleep_checks: Number of consecutive checks that found it asleep.
        transfers: True if a stop has cut one of its system calls short.
        deep: State of a stack that is longer than the maximum copy.
        schedstat_fd: Descriptor of its schedstat file, -1 if not open.
        syscall_fd: Descriptor of its syscall file, -1 if not open.
        sched_fd: Descriptor of its sched file, -1 if not open.
    """

    pid: int
    tid: int
    directory: ProcDir
    shape: StackShape
    arch: Arch
    reader: StackReader | None = None
    started: int = 0
    share: ProcessorShare = field(default_factory=ProcessorShare)
    steadiness: ProcessorUse = field(default_factory=ProcessorUse)
    first_slot: bool = True
    slept: bytes | None = None
    stop_wanted: bool = False
    stopped: tuple[int, int, bytes] | None = None
    last_sp: int = 0
    no_user_stack: bool = False
    ended: bool = False
    has_name: bool = False
    asleep_checks: int = 0
    transfers: bool = False
    deep: DeepStack = field(default_factory=DeepStack)
    schedstat_fd: int = field(default=-1)
    syscall_fd: int = field(default=-1)
    sched_fd: int = field(default=-1)

    def open_files(self) -> None:
        """Open the thread's /proc files. If there are no free descriptors, each read opens its file again.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        try:
            self.syscall_fd = self.directory.open(f"task/{self.tid}/syscall")
            self.schedstat_fd = self.directory.open(f"task/{self.tid}/schedstat")
        except ProcessLookupError:
            raise
        except OSError:
            pass

    def read_schedstat(self) -> bytes:
        """Return the thread's schedstat: a line with the time run, the time waited and the number of time slices.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        if self.schedstat_fd >= 0:
            return os.pread(self.schedstat_fd, _SIZE, 0)
        return self.directory.read(f"task/{self.tid}/schedstat")

    def read_syscall(self) -> bytes:
        """Return the thread's /proc syscall file: b"running", or a line with the system call in which the thread is
        blocked.

        Raises:
            ProcessLookupError: The thread has ended.
            PermissionError: The thread may not be read.
        """
        if self.syscall_fd >= 0:
            return os.pread(self.syscall_fd, _SIZE, 0)
        return self.directory.read(f"task/{self.tid}/syscall")

    def read_sched(self) -> bytes:
        """Return the scheduler's statistics of the thread, or b"" if there are no free descriptors.

        Raises:
            ProcessLookupError: The thread has ended, or the kernel has no such file.
        """
        if self.sched_fd < 0:
            try:
                self.sched_fd = self.directory.open(f"task/{self.tid}/sched")
            except ProcessLookupError:
                raise
            except OSError:
                return b""
        return os.pread(self.sched_fd, _SCHED_SIZE, 0)

    @property
    def reads(self) -> bool:
        """True if stops of the thread should copy interpreter frames."""
        return self.reader is not None and self.reader.reads

    def note_wakeup(self) -> None:
        """Note that the thread has run since it was last seen asleep."""
        self.slept = None
        self.stop_wanted = False
        self.stopped = None

    def close(self) -> None:
        for fd in (self.syscall_fd, self.schedstat_fd, self.sched_fd):
            if fd >= 0:
                os.close(fd)
        self.syscall_fd = self.schedstat_fd = self.sched_fd = -1


MAX_STOP_WAIT_NS = 200_000
"""Maximum time in ns to wait for one thread to stop. After that it is checked between the other samples.

A running thread stops in some 10 us. A thread that waits for a processor stops when it gets one.
"""


@dataclass(eq=False, slots=True)
class StoppedThread:
    """A thread that is seized by ptrace.

    Attributes:
        thread: The thread.
        spaces: Address spaces of its process.
        weight: Weight of its sample.
        since_ns: Monotonic time at which it was last known to run.
        asked_ns: Monotonic time at which it was interrupted.
        asleep: The system call in which it slept before that, or None if it ran.
    """

    thread: Thread
    spaces: SpaceTracker
    weight: int
    since_ns: int = 0
    asked_ns: int = 0
    asleep: BlockedCall | None = None


def find_no_thread() -> None:
    """Return None: no thread is stopped outside Stopper.stopped_threads."""
    return None


class Outcome(IntEnum):
    """The outcome of an attempt to sample a thread by a stop."""

    TAKEN = 0
    PENDING = 1  # it has not stopped yet (uninterruptible sleep, or it waits for a processor)
    REFUSED = 2  # a debugger traces it, or we may not
    GONE = 3
    UNUSABLE = 4  # it stopped, but there is nothing to unwind
    ASLEEP = 5  # it had fallen asleep before it stopped, and sleeping threads are not sampled
