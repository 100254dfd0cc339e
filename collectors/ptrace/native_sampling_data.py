"""The data that Python passes to the compiled sampling loop (collectors/native) for its rounds of samples,
and access to the interpreter frames that the loop has read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from pyprof.collectors.linux import libc
from pyprof.collectors.native.sampling_loop_bindings import (
    EXTRAS_SIZE,
    MAX_SLEPT,
    FramesRow,
    MachineRow,
    ProcessRow,
    Rounds,
    SampleRow,
    StopFlag,
    ThreadRow,
    address_of,
    rows_of,
)
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import (
    MAX_STOP_WAIT_NS,
    MIN_SPAN_BYTES,
    MIN_WHOLE_SHARE,
    RED_ZONE,
    SLACK,
    WINDOW_NS,
    StoppedThread,
    Thread,
)
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, Gather, Span

_EXTRA = struct.Struct("=3Q")
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class FramesRead:
    """The plan that says which interpreter data a stop reads, and a function that returns the data that was read."""

    plan: FrameReadPlan
    gather: Gather


class StopReads:
    """The interpreter data that the compiled sampling loop read in one stop, as a function of memory ranges.

    A decoder of frames calls it like the function that reads a live process (Gather in
    model.interpreter_reader_protocols). The first call returns all memory that the plan reads in one system
    call. Later calls return memory that the loop read by following the chain of frames. The result ends at
    the first range that was not read.
    """

    def __init__(self, memory: memoryview, begin: int, size: int) -> None:
        """Index the memory that the compiled sampling loop has read in a stop.

        Args:
            memory: The buffer that the loop has filled.
            begin: Offset in bytes at which the results of this stop start.
            size: Number of bytes that the plan reads in one system call.
        """
        self._memory = memory
        self._begin = begin
        self._first: memoryview | None = memory[begin : begin + size]
        at = begin + size
        (count,) = _COUNT.unpack_from(memory, at)
        rows = memory[at + _COUNT.size : at + _COUNT.size + count * _EXTRA.size]
        self._extras = {avma: (offset, there) for avma, there, offset in _EXTRA.iter_unpack(rows)}
        assert at + EXTRAS_SIZE <= len(memory)

    def __call__(self, spans: Sequence[Span]) -> memoryview:
        first, self._first = self._first, None
        if first is not None:
            return first
        parts = []
        for avma, size in spans:
            offset, there = self._extras.get(avma, (0, 0))
            if there < size:
                break
            begin = self._begin + offset
            parts.append(self._memory[begin : begin + size])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


MAX_SAMPLES = 256
_FRAMES = 4 << 20
_FURTHER = 32 << 10
"""Number of bytes of the buffer for a sample's interpreter frames that the loop reads one by one."""
WORD = 8
"""Size of a register in bytes."""
_LINKS = 2
"""Number of hard links of a directory without subdirectories, by which threads are counted."""

Check = tuple[Thread, int]
"""The tuple (thread to check for a sample, number of rounds that the check stands for)."""
Due = tuple[int, int]
"""The tuple (sampling time, time after which the sampling time is missed), in monotonic ns."""
NOW: Due = (0, 0)
Plan = tuple[FrameReadPlan, int]
"""The tuple (plan for reading a thread's interpreter frames, number of bytes that it reads in one system call)."""


class Round(NamedTuple):
    """A round of samples: all checks of threads at one sampling time, in their order."""

    due: Due
    checks: Sequence[Check]


class NativeRows:
    """The structures that Python and the compiled sampling loop share: Python writes which threads to check, the loop
    writes the samples.

    Attributes:
        rounds: The structure whose address the loop gets. It refers to all others.
        samples: Rows for samples, filled by the loop.
        checks: Checks of all rounds, one after the other.
        threads: Threads of the checks, each once, in the order of their rows.
        behind: Index in `checks` after the last check of each round.
        plans: Current plan for reading the interpreter frames of each thread.
        stop: Flag that ends the rounds.
    """

    def __init__(self) -> None:
        self.samples = rows_of(SampleRow, MAX_SAMPLES)
        self.stop = StopFlag()
        self.checks: list[Check] = []
        self.threads: list[Thread] = []
        self.behind: list[int] = []
        self._machine = MachineRow(
            zone=RED_ZONE,
            slack=SLACK,
            least=MIN_SPAN_BYTES,
            bound_ns=MAX_STOP_WAIT_NS,
            window_ns=WINDOW_NS,
            whole=MIN_WHOLE_SHARE,
        )
        self._process = ProcessRow()
        self._rows = rows_of(ThreadRow, 1)
        self._arena = libc.Arena(_FRAMES)
        self._memory = memoryview(self._arena.data)
        self._numbers: dict[Thread, int] = {}
        self.plans: dict[Thread, Plan] = {}
        self._target: TracedProcess | None = None
        self._kept: list[object] = []
        self._arch: Arch | None = None
        self.rounds = Rounds(
            machine=address_of(self._machine),
            processes=address_of(self._process),
            processes_count=1,
            samples=address_of(self.samples),
            stopping=address_of(self.stop),
        )

    def fill_rows(self, target: TracedProcess, ahead: Sequence[Round]) -> None:
        """Write the structures that tell the compiled sampling loop how to sample a process in its next
        rounds (`ahead`).
        """
        rounds, spaces, process = self.rounds, target.spaces, self._process
        self._kept, self.plans, self._target = [], {}, target
        self._fill_machine(spaces.image.arch)
        process.maps, process.mappings, process.mappings_count = spaces.build_query
        process.folder, process.threads = target.directory.fd, target.thread_count + _LINKS
        process.size_file, process.size = spaces.mapped_size
        self._fill_checks(target, ahead)
        rounds.frames, rounds.frames_end = self._arena.address, self._arena.address + self._arena.size
        rounds.due = rounds.samples_count = rounds.rounds = 0

    def _fill_machine(self, arch: Arch) -> None:
        machine, kernel = self._machine, arch.kernel
        if arch is self._arch:
            return
        self._arch = arch
        machine.registers_size = kernel.regset_size
        machine.sp, machine.pc = kernel.prstatus[arch.sp], kernel.prstatus[arch.pc]
        machine.call, machine.result = kernel.syscall_number, kernel.syscall_return
        code = kernel.syscall_codes[0]
        machine.call_code, machine.call_size = int.from_bytes(code, "little"), len(code)

    def _fill_checks(self, target: TracedProcess, ahead: Sequence[Round]) -> None:
        """Write which threads the compiled sampling loop checks in each of the next rounds. Rounds with equal
        checks share them.
        """
        self.checks, self.behind = [], []
        dues: list[int] = []
        before: Sequence[Check] | None = None
        first = 0
        for due, checks in ahead:
            if checks is not before:
                first, before = len(self.checks), checks
                self.checks += checks
            dues += (*due, first, len(self.checks))
            self.behind.append(len(self.checks))
        numbers: dict[Thread, int] = {}
        which = array("Q", [numbers.setdefault(thread, len(numbers)) for thread, _ in self.checks])
        self.threads = list(numbers)
        if len(self._rows) < len(numbers):
            self._rows = rows_of(ThreadRow, 2 * len(numbers))
        self._numbers = numbers
        for thread in self.threads:
            self.refill_row(target, thread)
        times, rounds = array("Q", dues), self.rounds
        rounds.dues, rounds.dues_count = times.buffer_info()[0], len(ahead)
        rounds.threads, rounds.checks, rounds.check = address_of(self._rows), which.buffer_info()[0], 0
        self._kept += [which, times]

    def find_row(self, thread: Thread) -> ThreadRow:
        return self._rows[self._numbers[thread]]

    def refill_row(self, target: TracedProcess, thread: Thread) -> None:
        """Write a thread's current state to its row for the compiled sampling loop."""
        row, image = self.find_row(thread), target.spaces.image
        row.still = row.asked = row.waiting = row.shared = row.slept_size = 0
        row.tid, row.schedstat, row.syscall = thread.tid, thread.schedstat_fd, -1
        slept = thread.slept
        if slept is not None:
            if len(slept) < MAX_SLEPT:
                row.slept_size, row.slept = len(slept), slept
            return
        if not target.spaces.settled or not _is_usual(thread, image.arch, image.pac_known):
            return
        plan = thread.reader.ahead(thread.tid) if thread.reader is not None and thread.reads else None
        if plan is not None or not thread.reads:
            self._fill_runner(row, thread, plan)

    def _fill_runner(self, row: ThreadRow, thread: Thread, plan: FrameReadPlan | None) -> None:
        """Write to a thread's row what the compiled sampling loop needs to stop and sample the thread when it runs."""
        shape, share, home = thread.shape, thread.share, thread.shape.home
        assert home is not None
        row.syscall, row.sched, row.process = thread.syscall_fd, thread.sched_fd, address_of(self._process)
        row.start, row.end, row.top, row.most = home.start, home.end, shape.top, shape.most
        row.last_sp = thread.last_sp
        row.share, row.credit = share.share, share.credit
        row.share_ran, row.share_waited = max(share.ran, 0), share.waited
        row.frames = row.frames_size = 0
        if plan is not None:
            row.frames, size = self._fill_frames(plan)
            row.frames_size = size + EXTRAS_SIZE + _FURTHER
            self.plans[thread] = plan, size

    def _fill_frames(self, plan: FrameReadPlan) -> tuple[int, int]:
        """Convert a plan for reading interpreter frames to a structure of the compiled sampling loop
        (collectors/native). Return the structure's address, and the number of bytes that one read of the plan copies.
        """
        spans = array("Q", chain.from_iterable(plan.spans))
        chunks = array("Q", chain.from_iterable(plan.chunks))
        loose = array("Q", chain.from_iterable(plan.loose))
        size = sum(spans[1::2])
        row = FramesRow(
            spans=spans.buffer_info()[0], spans_count=len(plan.spans), size=size,
            chunks=chunks.buffer_info()[0], chunks_count=len(plan.chunks),
            loose=loose.buffer_info()[0], loose_count=len(plan.loose),
            codes=plan.codes.buffer_info()[0], codes_count=len(plan.codes),
            **{name: getattr(plan, name) for name in _SAME},
        )  # fmt: skip
        self._kept += [spans, chunks, loose, plan.codes, row]
        return address_of(row), size

    def make_frames_read(self, came: SampleRow, planned: Plan) -> FramesRead:
        """Return the plan and a reader of the interpreter data that the compiled sampling loop has read for a
        sample.
        """
        plan, size = planned
        return FramesRead(plan, StopReads(self._memory, came.frames - self._arena.address, size))

    def make_stopped_thread(self, check: int, weight: int) -> StoppedThread:
        """Return the StoppedThread for a thread that the compiled sampling loop has stopped.

        Args:
            check: Index of the loop's check in `checks`.
            weight: Number of sampling times that a sample of one round stands for.
        """
        assert self._target is not None
        thread, rounds = self.checks[check]
        return StoppedThread(thread, self._target.spaces, rounds * weight)


def _is_usual(thread: Thread, arch: Arch, pac_known: bool) -> bool:
    """Return True if the compiled sampling loop can sample a thread, because its stack and registers are of
    the usual kind. Interpreter frames are not considered.
    """
    return (
        thread.shape.home is not None
        and thread.last_sp > 0
        and thread.arch.name == arch.name
        and not (thread.transfers or thread.no_user_stack or thread.first_slot)
        and (pac_known or not arch.pac_mask)
    )


_SAME = (
    *("thread_id", "interp", "frame", "chunk", "cframe", "base_frame", "ident", "interpreter", "by_cframe"),
    *("root_cframe", "cframe_size", "cframe_current", "cframe_previous", "previous", "code", "code_mask"),
    *("frame_size", "most", "room"),
)
"""Names of the fields that FrameReadPlan and the loop's structure FramesRow have in common."""
