"""struct perf_event_attr as bytes, reasons for refusals, and the periods of context-switch events.

See perf_event_open(2). A period of a context-switch event is the number of switches between two samples of a
thread. The samples of all threads together stay within a budget. A thread that switches rarely is sampled at
each switch.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.linux import libc
from pyprof.collectors.linux.sampled_arch import HERE
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.options import CollectOptions

PERIODS = (1, 3, 7, 17, 41, 101, 251, 631, 1583, 3967, 9973)
"""Possible periods of context-switch events. They are odd and mostly prime, so that a thread that waits in two places
in turn is sampled in both.
"""

_TOO_MANY, _TOO_FEW = 1.5, 6
_MIN_S, _FIRST_MEASUREMENT_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Periods:
    """The number of context switches of a thread between two of its samples, for each thread.

    Attributes:
        default: Period of all threads that are not in `own`, such as threads that inherit their events.
        own: Period by tid, of threads with their own events.
    """

    default: int
    own: Mapping[int, int] = field(default_factory=dict)

    def find_period(self, tid: int) -> int:
        return self.own.get(tid, self.default)

    def is_suitable(self, rates: Mapping[int, float], better: Periods, budget_hz: float) -> bool:
        """Return True if these periods of context-switch events are good enough, so that a change to better ones is not
        worthwhile.

        Args:
            rates: Switches off a processor per second, by tid.
            better: The periods that fit the rates best.
            budget_hz: Maximum number of samples per second of all threads.
        """
        if sum(hz / self.find_period(tid) for tid, hz in rates.items()) > _TOO_MANY * budget_hz:
            return self == better
        return all(self.find_period(tid) < _TOO_FEW * better.find_period(tid) for tid in rates)


class Tuning:
    """The current periods of context-switch events (one sample in so many switches), and the decision when to change
    them.

    The periods change at once after the first measurement. Later they change only after a second of
    measurement, or earlier if there are far too many samples.
    """

    def __init__(self, first: Periods) -> None:
        self.periods = first
        self._counts: dict[int, float] = {}
        self._seconds = self._since_s = 0.0
        self._wait_s, self._hurry_s = 0.0, _FIRST_MEASUREMENT_S

    def count_switches(self, leaves: Mapping[int, int], seconds: float) -> None:
        """Add a measurement of how often each thread left its processor, from which choose_periods() chooses
        new periods.

        Args:
            leaves: Number of switches off a processor, by tid.
            seconds: Length of the measurement in seconds.
        """
        for tid, count in leaves.items():
            self._counts[tid] = self._counts.get(tid, 0) + count
        self._seconds += seconds
        self._since_s += seconds

    def choose_periods(self, own: Callable[[int], bool], budget_hz: float) -> Periods | None:
        """Return new periods of context-switch events, or None to keep the current ones.

        Args:
            own: Function that returns True if a thread (tid) can have its own period.
            budget_hz: Maximum number of samples per second of all threads.
        """
        if not self._seconds:
            return None
        rates = {tid: count / self._seconds for tid, count in self._counts.items()}
        many = sum(hz / self.periods.find_period(tid) for tid, hz in rates.items()) > _TOO_MANY * budget_hz
        if self._since_s < min(self._wait_s, self._hurry_s if many else _MIN_S):
            return None
        self._since_s, self._wait_s = 0.0, _MIN_S
        self._hurry_s = min(2 * self._hurry_s, _MIN_S) if many else _FIRST_MEASUREMENT_S
        if self._seconds >= _MIN_S:  # the weight of older measurements decreases
            self._seconds /= 2
            self._counts = {tid: count / 2 for tid, count in self._counts.items() if count >= 1}
        found = choose_thread_periods(rates, {tid for tid in rates if own(tid)}, budget_hz)
        return None if self.periods.is_suitable(rates, found, budget_hz) else found


def choose_thread_periods(rates: Mapping[int, float], own: Collection[int], budget_hz: float) -> Periods:
    """Return periods of context-switch events that keep all threads within the budget.

    Args:
        rates: Switches off a processor per second, by tid.
        own: Threads that can have their own period. All others, including later ones, share one period.
        budget_hz: Maximum number of samples per second of all threads.
    """
    others_hz = sum(hz for tid, hz in rates.items() if tid not in own)
    default = _at_least(2 * others_hz / budget_hz)
    left_hz = budget_hz - others_hz / default
    mine = sorted((hz, tid) for tid, hz in rates.items() if tid in own)
    share = left_hz
    for place, (hz, _) in enumerate(mine):
        share = left_hz / (len(mine) - place)
        if hz > share:
            break
        left_hz -= hz
    else:
        share = float("inf")
    found = {tid: max(default, _at_least(hz / share)) for hz, tid in mine}
    return Periods(default, {tid: period for tid, period in found.items() if period != default})


def _at_least(wanted: float) -> int:
    return next((period for period in PERIODS if period >= wanted), PERIODS[-1])


SAMPLE_IP, SAMPLE_TID, SAMPLE_TIME, SAMPLE_CPU = 1 << 0, 1 << 1, 1 << 2, 1 << 7
SAMPLE_REGS_USER, SAMPLE_STACK_USER = 1 << 12, 1 << 13

SAMPLE_CALLCHAIN = 1 << 5

SAMPLE_TYPE = SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU | SAMPLE_REGS_USER | SAMPLE_STACK_USER
"""Fields of a perf sample record (perf_event_attr.sample_type), which perf/ring_buffer_records.py reads in
this order.

With PERF_SAMPLE_CALLCHAIN, the call chain comes before the registers.
"""

SAMPLE_TIDS = SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU
"""Fields (PERF_SAMPLE_*) at the end of every perf record that is not a sample (sample_id_all)."""

MOST_STACK = 65_528
"""The kernel's limit for perf_event_attr.sample_stack_user in bytes. A record has at most 65,535 bytes, so
the last few hundred bytes of such a copy are cut off.
"""

_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _EXCLUDE_IDLE = 1 << 0, 1 << 1, 1 << 5, 1 << 6, 1 << 7
_MMAP, _COMM, _FREQ, _TASK, _WATERMARK, _SAMPLE_ID_ALL = 1 << 8, 1 << 9, 1 << 10, 1 << 13, 1 << 14, 1 << 18
_EXCLUDE_CALLCHAIN_USER = 1 << 22
_MMAP2, _COMM_EXEC, _USE_CLOCKID, _CONTEXT_SWITCH, _INHERIT_THREAD = 1 << 23, 1 << 24, 1 << 25, 1 << 26, 1 << 35

_ATTR = struct.Struct("=IIQQQQQIIQQQQIiQIHH")
_HARDWARE, _SOFTWARE = 0, 1
_CYCLES, _CPU_CLOCK, _CONTEXT_SWITCHES = 0, 0, 3

TIME_RUNNING = 1 << 1
"""Value of perf_event_attr.read_format with which a read of an event returns its count and the time for which
it counted.
"""

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


class EventKind(Protocol):
    """The protocol of a kind of perf event that can be opened on a thread or processor."""

    @property
    def children(self) -> bool: ...

    def attr(self, rate_hz: float, stack_size: int, tid: int) -> bytes: ...


class PerfNotAllowed(CollectorRefused):
    """The error that the kernel does not permit perf_events. Stops by ptrace may still work."""


_DUMMY = 9


def ring_owner(watermark: int) -> bytes:
    """Return the perf_event_attr of an event that counts nothing and owns a ring buffer.

    Args:
        watermark: The kernel wakes a poll each time that the ring has this many new bytes; 0 for never.
    """
    flags = _EXCLUDE_KERNEL | _EXCLUDE_HV | _USE_CLOCKID | (_WATERMARK if watermark else 0)
    return _ATTR.pack(
        _SOFTWARE, _ATTR.size, _DUMMY, 0, SAMPLE_TIME, 0, flags, watermark,
        0, 0, 0, 0, 0, 0, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
    )  # fmt: skip


def mapping_reporter() -> bytes:
    """Return the perf_event_attr of an event that counts nothing and records each new executable mapping.

    The kernel wakes a poll at each record.
    """
    flags = _EXCLUDE_KERNEL | _EXCLUDE_HV | _MMAP | _WATERMARK
    return _ATTR.pack(_SOFTWARE, _ATTR.size, _DUMMY, 0, 0, 0, flags, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """A perf event that takes samples.

    Attributes:
        name: Name of the event for the user.
        type: perf_event_attr.type.
        config: perf_event_attr.config.
        user_only: True if it does not count while its thread is in the kernel.
        children: True if forked processes inherit it. Threads always do.
        chains: True if samples have the kernel's frames.
    """

    name: str
    type: int
    config: int
    user_only: bool
    children: bool
    chains: bool

    def attr(self, rate_hz: float, stack_size: int, tid: int = 0) -> bytes:
        """Return struct perf_event_attr of this event as bytes. A negative tid stands for all threads of a
        processor.
        """
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
        """Return the period of this perf event for a sampling rate: nanoseconds for a clock event. For cycles
        it is the rate itself in Hz.
        """
        return max(round(rate_hz if self.type == _HARDWARE else 1e9 / rate_hz), 1)


@dataclass(frozen=True, slots=True)
class SwitchEvent:
    """A perf event that records context switches, and takes samples of threads that leave their processors.

    If `stacks` is set, some switches off a processor have a sample with the kernel's frames. The kernel counts switches
    as its own time: without permission to sample the kernel there are no samples.
    """

    stacks: bool
    children: bool
    periods: Periods

    def attr(self, rate_hz: float, stack_size: int, tid: int) -> bytes:
        """Return struct perf_event_attr for context switches as bytes. `rate_hz` is ignored, because
        `periods` decides how many are sampled.
        """
        flags = _INHERIT | _EXCLUDE_HV | _TASK | _SAMPLE_ID_ALL | _USE_CLOCKID | _CONTEXT_SWITCH
        flags |= _EXCLUDE_CALLCHAIN_USER if self.stacks else _EXCLUDE_KERNEL
        flags |= 0 if self.children else _INHERIT_THREAD
        if not self.stacks:
            return _ATTR.pack(
                _SOFTWARE, _ATTR.size, _DUMMY, 0, SAMPLE_TIDS, 0, flags, 0, 0, 0, 0, 0,
                0, 0, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
            )  # fmt: skip
        return _ATTR.pack(
            _SOFTWARE, _ATTR.size, _CONTEXT_SWITCHES, self.periods.find_period(tid),
            SAMPLE_TYPE | SAMPLE_CALLCHAIN, 0, flags, 0, 0, 0, 0, 0,
            HERE.sampled, stack_size, time.CLOCK_MONOTONIC, 0, 0, 0, 0,
        )  # fmt: skip


def choose_event(tid: int, cpu: int, options: CollectOptions) -> Event:
    """Return the best perf event that the kernel permits on a thread or processor.

    Time in the kernel is included if that is permitted, and must be if kernel frames are wanted. Cycles are preferred
    to CPU time. If running threads are not wanted, the event counts nothing. A sample taken in the kernel has the
    registers and the stack with which the kernel was entered.

    On a processor (tid < 0) the event counts time instead of cycles. Cycles stand still while the processor idles, so
    the kernel would have to estimate their number for a sample again after each idle time.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        ProcessLookupError: The thread has ended.
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
    """Return an error that explains why perf_event_open(2) failed and which command helps.

    Args:
        error: The errno of perf_event_open.
        tid: The thread, negative for all threads of a processor.
        paranoid: Function that returns the value of kernel.perf_event_paranoid.
        kernel: True if kernel frames are wanted.
    """
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
            f"perf_events of the whole machine are not allowed: kernel.perf_event_paranoid is {level}, and "
            "pyprof lacks "
            "CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=0, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM) and level == 2 and kernel:
        return PerfNotAllowed(
            "The kernel's frames are not allowed: kernel.perf_event_paranoid is 2, and pyprof lacks CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=1, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM) and level > 2:
        return PerfNotAllowed(
            f"perf_events are not allowed: kernel.perf_event_paranoid is {level}, and pyprof lacks CAP_PERFMON.",
            "sudo sysctl kernel.perf_event_paranoid=2, or: sudo pyprof …",
        )
    if error in (errno.EACCES, errno.EPERM):
        return PerfNotAllowed(
            f"perf_events of thread {tid} are not allowed: the thread belongs to another user, or a "
            "container's seccomp rules forbid them.",
            "sudo pyprof …, in a container: docker run --cap-add=PERFMON …",
        )
    return PerfNotAllowed(f"perf_event_open failed: {os.strerror(error)}.", "--collector ptrace works without it.")


def counted_ns(fd: int) -> int:
    """Return the time for which a perf event that was opened with TIME_RUNNING has counted, 0 if it cannot be read."""
    try:
        found = os.read(fd, 16)
    except OSError:
        return 0
    return int.from_bytes(found[8:16], sys.byteorder)


def max_sample_rate() -> float:
    """Return kernel.perf_event_max_sample_rate in samples per second, or infinity if it cannot be read."""
    try:
        with open("/proc/sys/kernel/perf_event_max_sample_rate", encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return math.inf


def paranoid_level() -> int | None:
    """Return kernel.perf_event_paranoid, or None if the kernel has no perf_events."""
    try:
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
