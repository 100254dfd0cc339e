"""The BPF program that samples in the kernel, with its maps and the events that trigger it, as one unit.

The input are the processes and the sampling rate, the output are records in a ring, and counters. The kernel removes
everything with the descriptors, however the profiler ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import struct
from importlib import resources

import numpy as np

from pyprof.collectors.bpf import ring_buffer_records
from pyprof.collectors.bpf.bpf_object import BpfObject, ProgramRefused, find_member_offset, read_kernel_types
from pyprof.collectors.bpf.ring_buffer_records import RecordRing
from pyprof.collectors.linux import bpf_syscall, libc
from pyprof.collectors.linux.sampled_arch import HERE, MACHINE
from pyprof.collectors.perf.cpu_wide_events import ProcessorEvents, Silent
from pyprof.collectors.perf.event_attributes import TIME_RUNNING, max_sample_rate
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.interpreter_reader_protocols import AwaitOffsets, FrameOffsets, GoroutineOffsets, ThreadPlace

_SET_BPF, _ENABLE = 0x40042408, 0x2400
_SOFTWARE, _CPU_CLOCK = 1, 0
_DISABLED, _EXCLUDE_HV, _EXCLUDE_IDLE = 1 << 0, 1 << 6, 1 << 7
_ATTR = struct.Struct("=IIQQQQQ72x")
_NONE = 0xFFFFFFFF
_MAX_LAYOUTS = 64
_LATEST_GO = 0
"""Key under which the BPF map of processes has the offsets of the latest Go program. The BPF program uses
them for processes whose own offsets are not known yet.
"""
_FULL = 2
"""The kernel wakes the reader of the ring buffer when 1/_FULL of it is full."""
KINDS = {
    "perf_event/sample": bpf_syscall.PERF_EVENT,
    "raw_tp/sched_process_fork": bpf_syscall.RAW_TRACEPOINT,
    "raw_tp/sched_process_exec": bpf_syscall.RAW_TRACEPOINT,
    "raw_tp/sched_process_exit": bpf_syscall.RAW_TRACEPOINT,
}
OF_WAITS = {"raw_tp/sched_switch": bpf_syscall.RAW_TRACEPOINT, "raw_tp/sched_waking": bpf_syscall.RAW_TRACEPOINT}
_POINTS = {"forked": "sched_process_fork", "executed": "sched_process_exec", "exits": "sched_process_exit"}
_POINTS_OF_WAITS = {"switched": "sched_switch", "woken": "sched_waking"}
_OFFSETS = {
    "tgid_of_task": ("task_struct", "tgid"),
    "pid_of_task": ("task_struct", "pid"),
    "memory_of_task": ("task_struct", "mm"),
    "code_of_memory": ("mm_struct", "exec_vm"),
    "stack_of_memory": ("mm_struct", "start_stack"),
}
"""Constants of the BPF program that are offsets of this kernel's fields: name -> (structure, member)."""
_U32 = struct.Struct("=I")
_OVERFLOW = 1 << 16
"""Unit of the BPF program's constant overflows_per_sample, which counts in parts of 1/_OVERFLOW (sampler.h)."""
_OVERFLOWS_PER_SAMPLE = (4.1, 4.9)
"""Range from which a recording draws how often a perf event overflows for one sample.

It contains no whole number. Otherwise overflows would meet the same few phases of a program whose period is that of the
samples, or a fraction of it.
"""


_MIN_RING, _MAX_RING, _RING_OF_WAITS = 16 << 20, 256 << 20, 64 << 20
_SMALL_RING, _RING_A_PROCESSOR = 32 << 20, 2 << 20
_RECORD, _LATE_S = 72 << 10, 0.25
"""Size in bytes of a ring record with the first copy of a stack, and the time in seconds by which its reader
may be late while all processors are busy.
"""


def choose_ring_size(watched: KernelTargets, processors: int) -> int:
    """Return the size of the BPF ring buffer in bytes, a power of two: at most 32 MB up to 16 processors.

    The ring buffer is kernel memory. If waits are recorded, it is at least large enough for a burst of wait records.
    """
    least = _RING_OF_WAITS if watched.waits else _MIN_RING
    most = min(max(_SMALL_RING, _RING_A_PROCESSOR * processors, least), _MAX_RING)
    wanted = round(watched.rate_hz * processors * _RECORD * _LATE_S)
    return min(max(1 << max(wanted - 1, 0).bit_length(), least), 1 << (most - 1).bit_length())


def read_program(machine: str = MACHINE) -> bytes:
    """Return the compiled BPF object file for a machine, one of perf_arch.PERF_ARCHES."""
    return resources.files("pyprof.collectors.bpf").joinpath(f"sampler.{machine}.o").read_bytes()


@dataclass(frozen=True, slots=True)
class KernelTargets:
    """The choice of processes and events that the BPF program records.

    Attributes:
        rate_hz: Samples per second of each processor, 0 for none.
        everything: True for all processes.
        follow: True to include children.
        waits: True to record the waits of threads, that is, each time that a thread leaves its processor.
        runnable: True to include waits of preempted threads, which are runnable and wait for a processor.
        kernel: True to include the kernel's frames.
        wakers: True to record the threads that wake others, with their stacks.
        locks: True to record only waits for futexes.
        seeks: True to search stacks for suspended calls of an interpreter's evaluator that its chain of
            frames lacks (greenlets).
        tasks: True to find the asyncio tasks that await the one that a thread runs.
    """

    rate_hz: float
    everything: bool = False
    follow: bool = False
    waits: bool = False
    runnable: bool = False
    kernel: bool = False
    wakers: bool = False
    locks: bool = False
    seeks: bool = True
    tasks: bool = False


@dataclass(frozen=True, slots=True)
class WaitingThread:
    """The waits of one thread as the BPF program counts them. Waits that are too short get no separate record
    in the ring, only sums.

    Attributes:
        pid: The thread's process.
        tid: The thread's id.
        off_ns: Start of its current wait, 0 if it does not wait.
        waking_ns: Time of its wakeup, 0 if it was not woken yet.
        why: State of the task when it left its processor (bits of include/linux/sched.h, 0 if it was
            preempted).
        call: Number of its system call.
        copied: True if its stack was copied for the current wait.
        blocked_ns: Sum of the blocked time of all waits without a separate record.
        runnable_ns: Sum of the time that it waited for a processor, in waits without a separate record.
        count: Number of waits without a separate record.
        on_ns: Time since which it runs on its processor, 0 if it does not run or its start was not seen.
        run_ns: Total on-CPU time since it was first seen, without the current run.
    """

    pid: int
    tid: int
    off_ns: int
    waking_ns: int
    why: int
    call: int
    copied: bool
    blocked_ns: int
    runnable_ns: int
    count: int
    on_ns: int
    run_ns: int


class BpfSampler:
    """The BPF program in the kernel, with its maps and the events that trigger it.

    Attributes:
        ring: The ring buffer with the records.
        seeks: True if the program searches stacks for suspended evaluator calls (KernelTargets.seeks).
        overflow_hz: Rate at which each processor's event calls the program, which takes a sample at random calls.

    Raises:
        ProgramRefused: The kernel refuses the program or the events.
    """

    def __init__(self, watched: KernelTargets, ring_size: int, cpus: list[int]) -> None:
        """Load the BPF program; `ring_size` is in bytes and a power of two."""
        self._object = BpfObject(read_program(), "sampler.o")
        self.cpus = cpus
        self.seeks = watched.seeks
        self._descriptors: list[int] = []
        self._events: ProcessorEvents | None = None
        self._layouts: dict[FrameOffsets, int] = {}
        self._processors = _possible_processors()
        self.overflow_hz = choose_overflow_rate(watched.rate_hz)
        fill, overflows = ring_size // _FULL, self.overflow_hz / (watched.rate_hz or 1)
        chosen = {"fill": fill, "overflows_per_sample": round(_OVERFLOW * overflows)}
        try:
            constants = _wanted(watched) | _places(read_kernel_types()) | chosen
        except (OSError, FormatError) as error:
            raise ProgramRefused(
                f"This kernel has no type information: {error}.", "--collector perf needs none."
            ) from None
        for name, value in constants.items():
            self._object.set_constant(name, _U32.pack(value))
        self._object.set_entries("ring", ring_size)
        self._object.set_entries("scratch", self._processors)
        try:
            self._object.load(KINDS | OF_WAITS if watched.waits else KINDS)
            self.ring = RecordRing(self._object.maps["ring"], ring_size)
            for name, point in (_POINTS | _POINTS_OF_WAITS if watched.waits else _POINTS).items():
                fd = bpf_syscall.open_raw_tracepoint(self._object.programs[name], point)
                self._descriptors.append(_taken(fd, f"the tracepoint {point}"))
            if watched.rate_hz:
                self._events = ProcessorEvents(cpus, lambda cpu: self._attach(self.overflow_hz, cpu))
        except BaseException:
            self.close()
            raise

    def _attach(self, rate_hz: float, cpu: int) -> int:
        """Open a perf event on a processor and return its descriptor, negative if the processor is offline."""
        flags = _DISABLED | _EXCLUDE_HV | _EXCLUDE_IDLE
        period = max(round(1e9 / rate_hz), 1)
        attr = _ATTR.pack(_SOFTWARE, _ATTR.size, _CPU_CLOCK, period, 0, TIME_RUNNING, flags)
        fd = libc.perf_event_open(attr, -1, cpu)
        if -fd == errno.ENODEV:
            return fd
        _taken(fd, "events on processors")
        try:
            fcntl.ioctl(fd, _SET_BPF, self._object.programs["sample"])
            fcntl.ioctl(fd, _ENABLE, 0)
        except OSError as error:
            os.close(fd)
            raise ProgramRefused(f"The kernel refuses programs at events: {error.strerror}.", "") from None
        return fd

    def reopen_events(self) -> Silent:
        """Open perf events on processors that were offline or are new. Return the time in ns that each of
        them had no event, by processor.
        """
        return self._events.reopen_events(list_online_cpus) if self._events is not None else {}

    def add_process(
        self,
        pid: int,
        runtime: int = 0,
        offsets: FrameOffsets | None = None,
        goroutines: GoroutineOffsets | None = None,
    ) -> None:
        """Make the BPF program record a process from now on.

        Args:
            pid: The process to record.
            runtime: Address of the runtime structure of its interpreter, 0 if it is not known yet.
            offsets: Offsets in its interpreter's structures, None if it has no interpreter.
            goroutines: Offsets in the structures of its Go runtime, None if it has none.
        """
        place = self._layout(offsets) if offsets is not None else _MAX_LAYOUTS
        if place == _MAX_LAYOUTS:
            runtime = place = 0
        device = inode = 0
        if runtime:
            device, inode = _namespace(pid)
        value = ring_buffer_records.PROCESS.pack(runtime, place, 0, device, inode, *_pack_goroutines(goroutines))
        bpf_syscall.update_element(self._object.maps["processes"], _U32.pack(pid), value)
        if goroutines is not None:
            bpf_syscall.update_element(self._object.maps["processes"], _U32.pack(_LATEST_GO), value)

    def _layout(self, offsets: FrameOffsets) -> int:
        place = self._layouts.setdefault(offsets, min(len(self._layouts), _MAX_LAYOUTS))
        if place < _MAX_LAYOUTS:
            bpf_syscall.update_element(self._object.maps["layouts"], _U32.pack(place), pack_offsets(offsets))
        return place

    def set_interpreter_addresses(self, thread: ThreadPlace) -> None:
        """Tell the BPF program at which addresses it finds the interpreter's data of a thread, such as its current
        frame.
        """
        end, *_ = self._thread(thread.tid)
        self._set_thread(thread.tid, end, thread.address, thread.gil, thread.collecting)

    def set_stack_end(self, tid: int, end: int) -> None:
        """Tell the BPF program where a thread's stack ends, and that the memory below `end` is only this
        stack.

        By default the program uses the end of the mapping in which it first sees the thread. That is another stack if
        the thread then runs a signal handler on an alternate stack.
        """
        _, *rest = self._thread(tid)
        self._set_thread(tid, end | ring_buffer_records.STACK_ALONE, *rest)

    def _thread(self, tid: int) -> tuple[int, ...]:
        value = bpf_syscall.lookup_element(
            self._object.maps["threads"], _U32.pack(tid), ring_buffer_records.THREAD.size
        )
        return ring_buffer_records.THREAD.unpack(value) if value is not None else (0,) * 4

    def _set_thread(self, tid: int, *words: int) -> None:
        bpf_syscall.update_element(
            self._object.maps["threads"], _U32.pack(tid), ring_buffer_records.THREAD.pack(*words)
        )

    def is_recorded(self, pid: int) -> bool:
        """Return True if the BPF program records the process, either by add_process() or because it was
        forked by a recorded process.
        """
        return (
            bpf_syscall.lookup_element(self._object.maps["processes"], _U32.pack(pid), ring_buffer_records.PROCESS.size)
            is not None
        )

    def set_limits(self, stack: int, min_wait_ns: int, copy_time_divisor: int) -> None:
        """Set the limits of the BPF program for stacks and waits from now on.

        Args:
            stack: Number of stack bytes that are copied.
            min_wait_ns: Minimum duration of a wait with a separate record, in nanoseconds.
            copy_time_divisor: At most 1/copy_time_divisor of a thread's time is spent on copies at its waits.
        """
        bpf_syscall.update_element(
            self._object.maps["limits"],
            bytes(4),
            ring_buffer_records.LIMITS.pack(stack, min_wait_ns, copy_time_divisor),
        )

    def read_waiting_threads(self) -> list[WaitingThread]:
        """Return the BPF program's table of waits, with one entry for each thread that it knows."""
        found = []
        for value in bpf_syscall.read_values(self._object.maps["waits"], 8, ring_buffer_records.WAIT.size):
            off, waking, blocked, runnable, count, _, on, run, pid, tid, why, call, copied, *_ = (
                ring_buffer_records.WAIT.unpack(value)
            )
            found.append(
                WaitingThread(pid, tid, off, waking, why, call, bool(copied), blocked, runnable, count, on, run)
            )
        return found

    def forget_process(self, pid: int) -> None:
        """Make the BPF program forget a process that has ended."""
        bpf_syscall.delete_element(self._object.maps["processes"], _U32.pack(pid))

    def forget_stack(self, pid: int, end: int) -> None:
        """Make the BPF program send all pages of a long stack with its next sample, not only the changed ones."""
        bpf_syscall.delete_element(self._object.maps["known_stacks"], ring_buffer_records.STACK_KEY.pack(end, pid))

    def forget_thread(self, tid: int) -> None:
        """Make the BPF program forget a thread that has ended."""
        bpf_syscall.delete_element(self._object.maps["threads"], _U32.pack(tid))

    def read_counts(self) -> tuple[dict[ring_buffer_records.LossReason, int], list[int]]:
        """Return the BPF program's counters by reason, and the histogram of its run times: element n is the
        number of runs that took 2^n to 2^(n+1) ns.
        """
        words = len(ring_buffer_records.LossReason) + ring_buffer_records.BUCKETS
        raw = (
            bpf_syscall.lookup_element(self._object.maps["counters"], bytes(4), 8 * words * self._processors)
            if self._object.maps
            else None
        )
        if raw is None:
            return {}, [0] * ring_buffer_records.BUCKETS
        total = np.frombuffer(raw, np.uint64).reshape(self._processors, words).sum(axis=0).tolist()
        return {reason: total[reason] for reason in ring_buffer_records.LossReason}, total[
            len(ring_buffer_records.LossReason) :
        ]

    @property
    def full(self) -> bool:
        """True if the ring buffer is so full that the kernel wakes its reader."""
        return self.ring.used >= self.ring.size // _FULL

    def stop_program(self) -> None:
        """Stop the BPF program. Records in the ring buffer can still be read."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
        if self._events is not None:
            self._events.close()
            self._events = None

    def close(self) -> None:
        self.stop_program()
        self._object.close()


def choose_overflow_rate(rate_hz: float) -> float:
    """Return the random rate in Hz, a little over four times rate_hz, at which the perf event of each
    processor overflows. At random overflows, rate_hz a second, the BPF program takes a sample.

    The kernel throttles events that overflow more often than kernel.perf_event_max_sample_rate.
    """
    return max(min(rate_hz * random.uniform(*_OVERFLOWS_PER_SAMPLE), max_sample_rate()), rate_hz)


def _wanted(watched: KernelTargets) -> dict[str, int]:
    """Return the values of the BPF program's constants that select the processes and events to record, as a dict by
    constant name.
    """
    return {
        "everything": watched.everything,
        "follow": watched.follow or watched.everything,
        "own_tgid": os.getpid(),
        "runnable": watched.runnable,
        "kernel_stacks": watched.kernel,
        "wakers": watched.wakers,
        "locks": watched.locks,
        "seeks_waiting": watched.seeks,
        "hash_salt": random.getrandbits(32),
        "follows_tasks": watched.tasks,
    }


def _places(types: bytes) -> dict[str, int]:
    """Return the values of the BPF program's constants that depend on the running kernel, as a dict by constant name:
    offsets of members in kernel structures.
    """
    found = {name: find_member_offset(types, structure, member) for name, (structure, member) in _OFFSETS.items()}
    inside = find_member_offset(types, "thread_struct", HERE.thread_pointer)
    return found | {"pointer_of_task": find_member_offset(types, "task_struct", "thread") + inside}


def _taken(fd: int, what: str) -> int:
    if fd < 0:
        raise ProgramRefused(f"The kernel refuses {what}: {os.strerror(-fd)}.", "--collector perf")
    return fd


def _pack_goroutines(offsets: GoroutineOffsets | None) -> tuple[int, ...]:
    if offsets is None:
        return (0,) * 7
    o = offsets
    return o.tls, o.m, o.g0, o.gsignal, o.curg, o.sched, o.labels


def pack_offsets(offsets: FrameOffsets) -> bytes:
    """Return the offsets in an interpreter's structures as bytes in the layout of the BPF program's struct for them."""
    o = offsets
    fields = (
        o.interpreters_head, o.interpreter_next, o.threads_head, o.thread_next, o.thread_id, o.native_id,
        o.thread_frame, o.thread_cframe, o.root_cframe, o.cframe_current, o.cframe_previous, o.base_frame,
        o.frame_code, o.frame_previous, o.frame_instr, o.frame_flag, o.frame_tlbc, o.code_head, o.code_words,
        o.code_texts,
    )  # fmt: skip
    waiting = (o.frame_object, o.object_frame, o.object_link, o.frame_height)
    rest = (o.gil_holder, o.gil_locked, o.tid_in_pthread, o.instr_bytes, o.frame_bytes, o.run_ends, o.seeks, *waiting)
    first, last = ([_NONE if field < 0 else field for field in some] for some in (fields, rest))
    return ring_buffer_records.LAYOUT.pack(*first, o.code_mask, *last, *_packed_awaits(o.awaits), 0)


def _packed_awaits(awaits: AwaitOffsets | None) -> tuple[int, ...]:
    if awaits is None:
        return (_NONE,) * 10
    a = awaits
    task = (a.running_task, a.task_awaited_by, a.task_is_set, a.task_coroutine, a.object_type, a.coroutine_frame)
    return (*task, a.frame_top, a.set_used, a.set_table, a.set_mask)


def _namespace(pid: int) -> tuple[int, int]:
    """Return (device, inode) of a process's pid namespace, or (0, 0) if it is that of the profiler."""
    try:
        own, other = os.stat("/proc/self/ns/pid"), os.stat(f"/proc/{pid}/ns/pid")
    except OSError:
        return 0, 0
    return (0, 0) if own.st_ino == other.st_ino else (other.st_dev, other.st_ino)


def _possible_processors() -> int:
    """Return the number of processors for which the kernel keeps per-CPU values."""
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
