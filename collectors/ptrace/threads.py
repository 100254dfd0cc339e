"""One thread of a target: its open /proc files and what is known about its sleep."""

from __future__ import annotations

import os

from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.ptrace.processor_share import ProcessorShare
from pyprof.collectors.ptrace.stack_shape import StackShape
from pyprof.collectors.ptrace.steadiness import Steadiness
from pyprof.model.arch import Arch
from pyprof.model.interpreter import StackReader
from pyprof.records import dataclass, field

_SIZE = 512
_SCHED_SIZE = 4096


@dataclass(eq=False, slots=True)
class Thread:
    """What is kept of a thread between two samples.

    arch: of the code in which it was seen last. first_slot: no sampling time has passed for it yet. slept: schedstat
    of the sleep in which the thread was last seen, None if it has run. stop_wanted: the stack of its last sample needs
    a register. stopped: (sp, pc, stack bytes) of the stop that was taken in this sleep. last_sp: of its last stop.
    no_user_stack: it has no stack, until it is checked again (a leader that ended before its threads). ended: to be
    dropped. known: its name has been read. reader: of the process's interpreter, None where it is not wanted.
    still: checks in a row that found it asleep. share: of a processor. steadiness: of its turns. deep: of a stack that
    is longer than what is copied. transfers: a stop has cut one of its system calls short. started: see ThreadKey.
    schedstat_fd, syscall_fd, sched_fd: of its files, -1 where they are not open.
    """

    pid: int
    tid: int
    directory: ProcDir
    shape: StackShape
    arch: Arch
    reader: StackReader | None = None
    started: int = 0
    share: ProcessorShare = field(default_factory=ProcessorShare)
    steadiness: Steadiness = field(default_factory=Steadiness)
    first_slot: bool = True
    slept: bytes | None = None
    stop_wanted: bool = False
    stopped: tuple[int, int, bytes] | None = None
    last_sp: int = 0
    no_user_stack: bool = False
    ended: bool = False
    known: bool = False
    still: int = 0
    transfers: bool = False
    deep: DeepStack = field(default_factory=DeepStack)
    schedstat_fd: int = field(default=-1)
    syscall_fd: int = field(default=-1)
    sched_fd: int = field(default=-1)

    def open(self) -> None:
        """Raises ProcessLookupError; where descriptors are short, each read opens the file anew."""
        try:
            self.syscall_fd = self.directory.open(f"task/{self.tid}/syscall")
            self.schedstat_fd = self.directory.open(f"task/{self.tid}/schedstat")
        except ProcessLookupError:
            raise
        except OSError:
            pass

    def schedstat(self) -> bytes:
        """Time run, time waited, time slices. Raises ProcessLookupError."""
        if self.schedstat_fd >= 0:
            return os.pread(self.schedstat_fd, _SIZE, 0)
        return self.directory.read(f"task/{self.tid}/schedstat")

    def syscall(self) -> bytes:
        """b"running", or the system call in which the thread is blocked. Raises ProcessLookupError, PermissionError."""
        if self.syscall_fd >= 0:
            return os.pread(self.syscall_fd, _SIZE, 0)
        return self.directory.read(f"task/{self.tid}/syscall")

    def sched(self) -> bytes:
        """The scheduler's numbers, b"" where descriptors are short. Raises ProcessLookupError, also where the kernel
        has no such file.
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
        """Are frames of an interpreter to be copied at its stops?"""
        return self.reader is not None and self.reader.reads

    def woke(self) -> None:
        """The thread has run since it was last seen asleep."""
        self.slept = None
        self.stop_wanted = False
        self.stopped = None

    def close(self) -> None:
        for fd in (self.syscall_fd, self.schedstat_fd, self.sched_fd):
            if fd >= 0:
                os.close(fd)
        self.syscall_fd = self.schedstat_fd = self.sched_fd = -1
