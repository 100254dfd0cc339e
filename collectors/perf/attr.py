"""struct perf_event_attr as bytes, and what the kernel says when it refuses one (perf_event_open(2))."""

from __future__ import annotations

import errno
import math
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.linux import libc
from pyprof.collectors.linux.perf_arch import HERE
from pyprof.collectors.perf.switch_periods import Periods
from pyprof.options import CollectOptions
from pyprof.records import dataclass

SAMPLE_IP, SAMPLE_TID, SAMPLE_TIME, SAMPLE_CPU = 1 << 0, 1 << 1, 1 << 2, 1 << 7
SAMPLE_REGS_USER, SAMPLE_STACK_USER = 1 << 12, 1 << 13

SAMPLE_CALLCHAIN = 1 << 5

SAMPLE_TYPE = SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU | SAMPLE_REGS_USER | SAMPLE_STACK_USER
"""What a record holds; perf/records.py reads it in this order. With SAMPLE_CALLCHAIN it stands before the registers."""

SAMPLE_TIDS = SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU
"""What every record ends with."""

MOST_STACK = 65_528
"""The kernel's limit for sample_stack_user. A record has at most 65,535 bytes: the last few hundred are cut off."""

_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _EXCLUDE_IDLE = 1 << 0, 1 << 1, 1 << 5, 1 << 6, 1 << 7
_MMAP, _COMM, _FREQ, _TASK, _WATERMARK, _SAMPLE_ID_ALL = 1 << 8, 1 << 9, 1 << 10, 1 << 13, 1 << 14, 1 << 18
_EXCLUDE_CALLCHAIN_USER = 1 << 22
_MMAP2, _COMM_EXEC, _USE_CLOCKID, _CONTEXT_SWITCH, _INHERIT_THREAD = 1 << 23, 1 << 24, 1 << 25, 1 << 26, 1 << 35

_ATTR = struct.Struct("=IIQQQQQIIQQQQIiQIHH")
_HARDWARE, _SOFTWARE = 0, 1
_CYCLES, _CPU_CLOCK, _CONTEXT_SWITCHES = 0, 0, 3

TIME_RUNNING = 1 << 1
"""What is read of an event: its count, and the time in which it counted."""
"""Format of what is read from an event: beside its count, how long it counted."""

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


class EventKind(Protocol):
    """What can be counted of a thread."""

    @property
    def children(self) -> bool: ...

    def attr(self, rate_hz: float, stack_size: int, tid: int) -> bytes: ...


class PerfNotAllowed(CollectorRefused):
    """perf_events cannot be used here; ptrace still may."""


_DUMMY = 9


def ring_owner(watermark: int) -> bytes:
    """Counts nothing. watermark: whoever polls it is woken when more bytes than these have come into its ring, each
    time; 0: never.
    """
    flags = _EXCLUDE_KERNEL | _EXCLUDE_HV | _USE_CLOCKID | (_WATERMARK if watermark else 0)
    return _ATTR.pack(
        _SOFTWARE, _ATTR.size, _DUMMY, 0, SAMPLE_TIME, 0, flags, watermark,
        0, 0, 0, 0, 0, 0, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """What is counted, and how often it makes a sample. name: for the reader. children: processes that a thread forks
    inherit the event, too; threads always do. chains: samples have the kernel's frames.
    """

    name: str
    type: int
    config: int
    user_only: bool
    children: bool
    chains: bool

    def attr(self, rate_hz: float, stack_size: int, tid: int = 0) -> bytes:
        """struct perf_event_attr. tid: negative for whatever runs on a processor."""
        flags = _INHERIT | _EXCLUDE_HV | _MMAP | _MMAP2 | _COMM | _COMM_EXEC | _TASK | _SAMPLE_ID_ALL | _USE_CLOCKID
        flags |= 0 if self.children else _INHERIT_THREAD
        flags |= _EXCLUDE_IDLE if tid < 0 else 0
        flags |= _EXCLUDE_KERNEL if self.user_only else 0
        flags |= _EXCLUDE_CALLCHAIN_USER if self.chains else 0
        flags |= _FREQ if self.type == _HARDWARE else 0
        return _ATTR.pack(
            self.type, _ATTR.size, self.config, self.period(rate_hz),
            SAMPLE_TYPE | (SAMPLE_CALLCHAIN if self.chains else 0), TIME_RUNNING, flags, 0, 0, 0, 0, 0,
            HERE.sampled, stack_size, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
        )  # fmt: skip

    def period(self, rate_hz: float) -> int:
        """Return what the kernel takes for rate_hz samples a second: nanoseconds, of cycles the rate itself in Hz."""
        return max(round(rate_hz if self.type == _HARDWARE else 1e9 / rate_hz), 1)


@dataclass(frozen=True, slots=True)
class SwitchEvent:
    """Records of each time a thread leaves its processor or comes back, with stacks a sample (with the kernel's frames)
    at some of the leaves. The kernel counts these for itself: whoever may not see its time gets no samples.
    """

    stacks: bool
    children: bool
    periods: Periods

    def attr(self, rate_hz: float, stack_size: int, tid: int) -> bytes:
        """struct perf_event_attr. rate_hz: not used."""
        flags = _INHERIT | _EXCLUDE_HV | _TASK | _SAMPLE_ID_ALL | _USE_CLOCKID | _CONTEXT_SWITCH
        flags |= _EXCLUDE_CALLCHAIN_USER if self.stacks else _EXCLUDE_KERNEL
        flags |= 0 if self.children else _INHERIT_THREAD
        if not self.stacks:
            return _ATTR.pack(
                _SOFTWARE, _ATTR.size, _DUMMY, 0, SAMPLE_TIDS, 0, flags, 0, 0, 0, 0, 0,
                0, 0, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
            )  # fmt: skip
        return _ATTR.pack(
            _SOFTWARE, _ATTR.size, _CONTEXT_SWITCHES, self.periods.of(tid),
            SAMPLE_TYPE | SAMPLE_CALLCHAIN, 0, flags, 0, 0, 0, 0, 0,
            HERE.sampled, stack_size, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
        )  # fmt: skip


def choose_event(tid: int, cpu: int, options: CollectOptions) -> Event:
    """The best event that the kernel lets us have on a thread: time in the kernel included if it may be (it must be
    where its frames are wanted), cycles if they can be counted; nothing where threads that run are not wanted.
    On a processor (tid < 0) its time is counted, not its cycles: those stand still as often as it idles, so that their
    number for a sample would have to be guessed anew after each rest.

    With time in the kernel included, a sample taken there has the registers and the stack with which it was entered.
    Raises PerfNotAllowed, ProcessLookupError.
    """
    refused = 0
    kinds = [(_HARDWARE, _CYCLES, "cycles"), (_SOFTWARE, _CPU_CLOCK, "cpu-clock")]
    if tid < 0:
        kinds = kinds[1:]
    if not options.running:
        kinds = [(_SOFTWARE, _DUMMY, "context-switches")]
    for user_only in (False,) if options.kernel else (False, True):
        for kind, config, name in kinds:
            event = Event(name, kind, config, user_only, options.subprocesses, options.kernel)
            fd = libc.perf_event_open(event.attr(options.rate_hz, 1024), tid, cpu)
            if fd >= 0:
                os.close(fd)
                return event
            if -fd == errno.ESRCH:
                raise ProcessLookupError(tid)
            refused = -fd
    raise refusal(refused, tid, kernel=options.kernel)


def refusal(
    error: int, tid: int, paranoid: Callable[[], int | None] | None = None, kernel: bool = False
) -> PerfNotAllowed:
    """Why perf_event_open failed, with the command that mends it. kernel: its frames were asked for."""
    level = (paranoid or paranoid_level)()
    if level is None or error == errno.ENOSYS:
        return PerfNotAllowed("This kernel has no perf_events.", "--collector ptrace needs none.")
    if error in TOO_MANY_FILES:
        return PerfNotAllowed(
            "perf_events need one file for each thread and processor, and there are not enough.",
            "ulimit -n $(ulimit -Hn), or: --collector ptrace",
        )
    if error in (errno.EACCES, errno.EPERM) and tid < 0:
        return PerfNotAllowed(
            f"perf_events of the whole machine are not allowed: kernel.perf_event_paranoid is {level}, and we have no "
            "CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=0, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM) and level == 2 and kernel:
        return PerfNotAllowed(
            "The kernel's frames are not allowed: kernel.perf_event_paranoid is 2, and we have no CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=1, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM) and level > 2:
        return PerfNotAllowed(
            f"perf_events are not allowed: kernel.perf_event_paranoid is {level}, and we have no CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=2, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM):
        return PerfNotAllowed(
            f"perf_events of thread {tid} are not allowed: it is not ours, or a container's seccomp rules refuse them.",
            "sudo pyprof …, in a container: docker run --cap-add=PERFMON …",
        )
    return PerfNotAllowed(f"perf_event_open failed: {os.strerror(error)}.", "--collector ptrace works without it.")


def counted_ns(fd: int) -> int:
    """read(2) of an event that was opened with TIME_RUNNING; 0 where it has ended."""
    try:
        found = os.read(fd, 16)
    except OSError:
        return 0
    return int.from_bytes(found[8:16], sys.byteorder)


def max_sample_rate() -> float:
    """Return kernel.perf_event_max_sample_rate, in samples a second; infinity where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/perf_event_max_sample_rate", encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return math.inf


def paranoid_level() -> int | None:
    """kernel.perf_event_paranoid; None in a kernel without perf_events."""
    try:
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
