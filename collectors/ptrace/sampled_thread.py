"""One thread of a target: its /proc files, its sleep, its share of a processor, and the size of its stack copies.

A runnable thread either has a processor or waits for one. The share of its runnable time in which it has one
decides how often it is sampled. The kernel reports both times for a thread that lives long enough. Shorter
threads of a process tree are treated as one group. Their share is the processor time of the tree, minus the
time for which older threads are sampled, divided by how often a short thread was found. Without that, four
threads of a millisecond on one processor would get four times the time that they ran.

The amount of stack to copy is learned for each thread from what the walks needed. The home stack is the stack
on which the thread usually runs. Its first copy extends to the end of the mapping, later copies to the
highest address that a walk has used. If a thread is on another stack (of a signal handler, of a coroutine),
that stack is copied. A part of its home stack is copied too, from the lowest address on to which the other
stack refers.

Stopping a thread on another processor takes some 0.05 ms, during which it continues to run. A thread that rarely gives
up its processor is still at the same place then. A thread that often gives it up is found where it waits.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from enum import IntEnum

from pyprof.collectors.linux.interrupted_syscalls import BlockedCall
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.targets.address_spaces import SpaceTracker
from pyprof.collectors.targets.mapping_changes import StackMapping
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch import Arch
from pyprof.model.interpreter_reader_protocols import StackReader

_MIN_NS = 80_000_000
_KEPT = 0.7
"""Weight of the earlier counts of runnable short-lived threads in the next estimate of their share."""
_MAX_PAID = 0.5
"""Maximum share of the due samples of short-lived threads that is left out because there were too many
samples before.
"""
_MAX_BEHIND = 4
"""Maximum number of missing samples of short-lived threads that later samples make up for. More could never
be taken.
"""


class ShortThreads:
    """The short-lived threads of one process tree, whose share of the processors is estimated together.

    While that share is not known, too many samples may be taken. Later ones are left out to compensate.

    Attributes:
        share: Probability with which a young thread that is found runnable should be sampled.
        rounds: Number of sampling times since the last update_share().
        born: Number of threads of any age that were found.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.rounds = self.born = 0
        self._runnable = self._taken = self._others = 0
        self._expected = self._found = self._ahead = 0.0
        self._since_ns = self._spent_ns = -1

    def count_runnable(self, young: bool, sampled: bool) -> None:
        """Count a check that found a thread runnable.

        Args:
            young: True if the thread's own share of a processor is not known yet.
            sampled: True if it was sampled.
        """
        self._runnable += young
        self._taken += sampled and young
        self._others += sampled and not young

    def count_older(self, sampled: int) -> None:
        """Add the number of samples of runnable threads whose own share of a processor is known."""
        self._others += sampled

    def update_share(self, now_ns: int, spent_ns: int) -> None:
        """Compute the probability with which a short-lived runnable thread is sampled. `spent_ns` is the
        process tree's processor time since the recording began.
        """
        elapsed = now_ns - self._since_ns
        if self._since_ns < 0:
            self._since_ns, self._spent_ns, self.rounds = now_ns, spent_ns, 0
        elif elapsed >= _MIN_NS:
            ran = (spent_ns - self._spent_ns) / elapsed * self.rounds
            due = max(ran - self._others, 0)
            self._ahead = max(self._ahead + self._taken - due, -_MAX_BEHIND)
            paid = min(self._ahead, _MAX_PAID * due)
            self._expected = _KEPT * self._expected + due
            self._found = _KEPT * self._found + self._runnable
            if self._found >= 1:
                self.share = min(max((self._expected - paid) / self._found, 0), 1.0)
            self._since_ns, self._spent_ns = now_ns, spent_ns
            self._runnable = self._taken = self._others = self.rounds = 0


WINDOW_NS = 100_000_000
"""Time in ns that a thread must run or wait for a processor before its share of a processor is known. The
kernel updates both times only at ticks and context switches.
"""
MIN_WHOLE_SHARE = 0.9
"""Share of a processor from which on a thread counts as always running when it is runnable. The profiler and
a few context switches cause the rest.
"""


@dataclass(eq=False, slots=True)
class ProcessorShare:
    """The share of its runnable time in which a thread has a processor. In the rest of that time it waits for
    one.

    Attributes:
        young: Threads of the same processes whose share is not known yet.
        ran: Running time in ns when the share was last computed; -1 before.
        waited: Time in ns that it had waited for a processor at that moment.
        share: The share, or -1 if it is not known yet.
        credit: Sum of the shares at all checks. A sample is due when the sum reaches 1, which is then
            subtracted.
    """

    young: ShortThreads = field(default_factory=ShortThreads)
    ran: int = -1
    waited: int = 0
    share: float = -1.0
    credit: float = field(default_factory=random.random)

    def is_due(self, schedstat: bytes) -> bool:
        """Return True if a runnable thread should be sampled now.

        The share of samples is the share of the thread's runnable time in which it had a processor. Otherwise
        ten threads on two processors would get ten seconds of processor time in each second. A thread that
        never had a processor is not sampled, however long it waits.
        """
        ran, waited, turns = map(int, schedstat.split()[:3])
        if not turns:
            return False
        if self.ran < 0:
            self.ran, self.waited = ran, waited
        more, idle = ran - self.ran, waited - self.waited
        if more + idle >= WINDOW_NS:
            share = more / (more + idle)
            self.share = share if share < MIN_WHOLE_SHARE else 1.0
            self.ran, self.waited = ran, waited
        is_young = self.share < 0
        self.credit += self.young.share if is_young else self.share
        taken = self.credit >= 1
        self.credit -= taken
        self.young.count_runnable(is_young, taken)
        return taken


RED_ZONE = 128
"""Number of bytes below sp that a leaf function may use without moving sp (System V ABI, x86-64)."""

RegionAt = Callable[[int], StackMapping | None]
"""The type of a function that returns the writable mapping at an address, or None if that is unknown."""

MIN_SPAN_BYTES = 4096
SLACK = 256
_AWAY = 32 << 10
_GROWTH = 16 << 10


@dataclass(slots=True)
class StackShape:
    """The known facts about the stack of one thread: its mapping, and which part of it walks need.

    Attributes:
        most: Maximum size of a copy in bytes (--stack-size).
        home: The home stack, on which the thread usually runs, or None if it is not known yet.
        top: Highest address in the home stack that a walk needed; 0 if not known yet.
        away: Number of bytes to copy if the thread is on another stack than its home stack.
    """

    most: int
    home: StackMapping | None = None
    top: int = 0
    away: int = _AWAY

    def is_home(self, sp: int, region_at: RegionAt) -> bool:
        """Return True if sp is in the thread's home stack, on which it usually runs."""
        home = self.home
        if home is not None and home.start <= sp < (self.top or home.end):
            return True
        region = region_at(sp)
        if home is None:
            self.home = region
            return region is not None
        if region is None:  # an unlisted part of a main stack, which grows downwards
            return home.end - max(self.most, 8 << 20) <= sp < home.start
        if region.start < home.end and home.start < region.end:
            self.home = region
            return not self.top or sp < self.top
        return False

    @property
    def occupied(self) -> StackMapping | None:
        """The part of the thread's home stack (on which it usually runs) that can contain frames."""
        home = self.home
        return StackMapping(home.start, self.top or home.end) if home is not None else None

    def span(self, sp: int, region_at: RegionAt) -> tuple[int, int]:
        """Return (avma, size) of the stack copy for a thread with this sp."""
        base, length = self.length(sp, region_at)
        return base, min(length, self.most)

    def length(self, sp: int, region_at: RegionAt) -> tuple[int, int]:
        """Return (avma, size) of the stack on which a thread with this sp runs, up to the highest address
        that a walk may need. The size is not limited to that of a copy.
        """
        base = max(sp - RED_ZONE, 0) & ~7
        if self.is_home(sp, region_at):
            assert self.home is not None
            end = self.home.end
            if sp < self.top:
                end = min(end, max(self.top + SLACK, base + MIN_SPAN_BYTES))
        else:
            # the stack of a new thread may be newer than the last reading of the maps: then the read ends where the
            # stack does
            end = base + min(self.away if self.home else self.most, self.most)
            region = region_at(sp)
            if region is not None:
                end = min(end, region.end)
        return base, end - base

    def home_span(self, lowest: int) -> tuple[int, int]:
        """Return (avma, size) of the part to copy of the thread's home stack, on which it usually runs, while
        it is on another stack.

        Args:
            lowest: Lowest address in the home stack to which the other stack refers.
        """
        assert self.home is not None
        base = max(lowest - RED_ZONE, 0) & ~7
        end = self.home.end
        if lowest < self.top:
            end = min(end, self.top + SLACK)
        return base, min(end - base, self.most)

    def learn(self, base: int, top: int, missing: int, region: StackMapping | None) -> bool:
        """Store what the walk of one sample shows about which part of the thread's stack walks need.

        Args:
            base: Address of the copy.
            top: Highest stack address that the walk needed, see Feedback.
            missing: Address of the word that the walk lacked, 0 for none.
            region: Writable mapping around `missing`, None if that is unknown.

        Returns:
            True if the next copy of the thread's stack will differ.
        """
        home = self.home
        before = home, self.top, self.away
        if missing:
            if home is not None and base in home and missing in home:
                reach = missing + max(_GROWTH, missing - base)
                self.top = min(max(self.top, reach), home.end)
            elif home is not None and missing in home:
                self.top = min(max(self.top, missing + _GROWTH), home.end)
            elif region is not None and not (region.start <= base < region.end):
                self.home, self.top = region, 0
            else:
                self.away = min(self.most, max(2 * self.away, missing - base + MIN_SPAN_BYTES))
        elif home is not None and home.start <= top <= home.end and top > self.top:
            self.top = top
        return (self.home, self.top, self.away) != before


MIN_STEADY_NS = 4_000_000
"""Average running time in ns between two waits from which on a thread counts as steady: it rarely leaves its
processor.
"""
_WINDOW_NS = 50_000_000
_WINDOW_TIMES = _WINDOW_NS // MIN_STEADY_NS


@dataclass(eq=False, slots=True)
class ProcessorUse:
    """Whether a thread rarely leaves its processor (`steady`), by the last 0.05 s of its running time.

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
    """The state that the ptrace collector keeps of one thread from sample to sample.

    Attributes:
        pid: Pid of its process.
        tid: The thread's id.
        directory: The process's directory in /proc.
        shape: The known facts about its stack, which decide how much of it is copied.
        arch: Architecture of the code in which it was last seen.
        reader: Reader of the process's interpreter, or None if its frames are not wanted.
        started: Start time of the thread (see ThreadKey).
        share: Its share of a processor.
        steadiness: How often it leaves its processor, which decides whether it is steady (rarely leaves it).
        first_slot: True until its first sampling time.
        slept: Contents of its schedstat during the sleep in which it was last seen, or None if it has run
            since.
        waited: Contents of its schedstat when it was last found waiting for a processor. The kernel changes
            the file when the thread gets one.
        stop_wanted: True if the walk of its last sample needs registers that only a stop shows.
        stopped: (sp, pc, stack bytes) from a stop in its present sleep, None if it was not stopped.
        last_sp: sp at its last stop.
        no_user_stack: True if it has no stack (a leader that ended before its threads), until it is checked again.
        ended: True if it must be dropped.
        has_name: True if its name was read, which is done at its first sample.
        asleep_checks: Number of consecutive checks that found it asleep.
        transfers: True if a stop has cut one of its system calls short.
        deep: State of its stack while that is longer than the maximum copy.
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
    waited: bytes = b""
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
        """Open the thread's /proc files. Without free descriptors they are opened for each read instead.

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
        """Return the contents of the thread's schedstat: a line with the time run, the time waited for a
        processor, and the number of time slices.

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
        """Return the contents of the thread's sched file (the scheduler's statistics), or b"" if there are no
        free descriptors.

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
        """True if stops must copy the interpreter frames of the thread."""
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
"""Maximum time in ns to wait for one thread to stop. A thread that needs longer is polled between the
following samples.

A running thread stops in some 10 us. A thread that waits for a processor stops when it gets one.
"""


@dataclass(eq=False, slots=True)
class StoppedThread:
    """A thread that is seized by ptrace and has been interrupted. It may not have stopped yet.

    Attributes:
        thread: The thread.
        spaces: Address spaces of its process.
        weight: Number of sampling times that its sample stands for.
        since_ns: Monotonic time at which it was last known to run.
        asked_ns: Monotonic time at which it was interrupted.
        asleep: The system call in which it slept before it was interrupted, or None if it ran.
    """

    thread: Thread
    spaces: SpaceTracker
    weight: int
    since_ns: int = 0
    asked_ns: int = 0
    asleep: BlockedCall | None = None


def find_no_thread() -> None:
    """Return None, which means that no stopped thread is unknown to Stopper. This is the default of
    Stopper.find_unclaimed.
    """
    return None


class Outcome(IntEnum):
    """The outcome of an attempt to sample a thread by a stop."""

    TAKEN = 0
    PENDING = 1  # it has not stopped yet (uninterruptible sleep, or it waits for a processor)
    REFUSED = 2  # a debugger traces it, or we may not
    GONE = 3
    UNUSABLE = 4  # it stopped, but there is nothing to unwind
    ASLEEP = 5  # it had fallen asleep before it stopped, and sleeping threads are not sampled
