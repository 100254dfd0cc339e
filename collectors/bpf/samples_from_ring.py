"""The samples in the ring buffer of the BPF program as columns, and the limits for recording single waits.

The limits are such that as many single waits are recorded as can be unwound. If there are few waits, shorter
ones are recorded, too.

Everything but samples comes from perf_events' records (perf/kernel_collector.py). The input are processes
as they appear. The output are columns of samples over the ring, then their interpreter frames and additional memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from pyprof.collectors.base import Feedback
from pyprof.collectors.bpf.kernel_program import BpfSampler
from pyprof.collectors.bpf.long_stacks import LongStacks
from pyprof.collectors.bpf.recorded_processes import RecordedProcesses
from pyprof.collectors.bpf.ring_buffer_records import (
    FOREVER_NS,
    LABEL_NAME,
    MOST_STACK,
    NO_ENDS,
    NO_RECORDS,
    PAGE,
    Flag,
    LossReason,
    Records,
    WaitEnds,
    find_spans,
    read_kernel_stacks,
    read_records,
    read_wait_ends,
    split_positions,
)
from pyprof.collectors.perf.ring_buffer_records import SampleRecords
from pyprof.collectors.perf.stack_copy_size import AbsentPages
from pyprof.lazy_dataclasses import replace
from pyprof.model.interpreter_reader_protocols import KernelReader
from pyprof.model.sample_batch import Piece, SampleBatch, StackBeyondCopy, StackSlab, make_goroutine_pieces
from pyprof.model.thread_identity import Labels, read_program_labels
from pyprof.problem_counters import Diagnostics

_FEW_HZ, _MANY_HZ = 300.0, 2000.0
"""Rates of wait records per second that count as few and as many. Unwinding one record takes some 20 us."""
_SHARE, _FIRST_SHARE, _MAX_SHARE = 32, 256, 1 << 14
_MUCH_USED = 0.1
"""Share of the ring buffer that is used before a reading, above which fewer stacks of waits are copied."""
_LOWEST_NS = 20_000
_HIGHER = 64
"""Factor by which the minimum duration of waits with a record may exceed WaitRates.most_ns, if waits are very
frequent.
"""
_AFTER_NS = 100_000_000


class WaitRates:
    """Limits that adapt how many single waits the BPF program records, and how much time it spends on copying their
    stacks.

    The limits follow the rate of records, so that all recorded waits can be unwound in time.

    Attributes:
        least_ns: Minimum duration of a wait with a separate record, unless its stack was copied.
        share: At most 1/share of a thread's time is spent on copies of its stack at waits.
        most_ns: Maximum of least_ns in nanoseconds, unless waits of that length are too frequent.
    """

    def __init__(self, most_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Begin with the highest minimum: only waits of at least most_ns get a separate record."""
        self.least_ns, self.share = most_ns, _FIRST_SHARE
        self.most_ns = most_ns
        self._copies = self._ends = 0
        self._clock = clock
        self._since_ns = clock()

    def adjust_limits(self, copies: int, ends: int, used: float) -> bool:
        """Adjust the minimum length of recorded waits and the time for stack copies to the rate of records. Return True
        if a limit has changed.

        Args:
            copies: Number of stacks of waits that were read.
            ends: Number of ends of waits that were read.
            used: Share of the ring buffer that was used before this reading.
        """
        if used > _MUCH_USED:
            self.share = min(4 * self.share, _MAX_SHARE)
            return True
        self._copies += copies
        self._ends += ends
        passed_ns = self._clock() - self._since_ns
        if passed_ns < _AFTER_NS:
            return False
        before = self.least_ns, self.share
        copies_hz, ends_hz = 1e9 * self._copies / passed_ns, 1e9 * self._ends / passed_ns
        if copies_hz > _MANY_HZ:
            self.share = min(2 * self.share, _MAX_SHARE)
        elif copies_hz < _FEW_HZ:
            self.share = max(self.share // 2, _SHARE)
        if ends_hz > _MANY_HZ:
            most_ns = self.most_ns if ends_hz < 2 * _MANY_HZ else _HIGHER * self.most_ns
            self.least_ns = min(2 * self.least_ns, max(most_ns, self.least_ns))
        elif ends_hz < _FEW_HZ:
            self.least_ns = max(self.least_ns // 2, min(_LOWEST_NS, self.most_ns))
        self._copies = self._ends = 0
        self._since_ns += passed_ns
        return before != (self.least_ns, self.share)


_MAX_EXITS, _MAX_EXIT_BYTES = 256, 64 << 10
"""Maximum number of stacks of exiting threads that are kept for later batches, and their maximum size in bytes."""
_FIRST_COPY, _MIN_COPY = 128 << 10, 64 << 10
"""Number of stack bytes that the BPF program copies before the first walks, and the minimum number after them."""


class BpfSource:
    """A source of the samples that the BPF program in the kernel takes.

    Attributes:
        sampler: The loaded BPF program.
        lost: Number of samples that found no room in the ring buffer.
        processes: The processes that it samples.
        records: Samples that the last call of take_samples() found.
        ended: Ends of waits that the last call of take_samples() found.
        rates: Limits for recording single waits.
    """

    def __init__(
        self,
        sampler: BpfSampler,
        diagnostics: Diagnostics,
        next_id: Callable[[], int],
        reader: Callable[[int], KernelReader] | None,
        least_ns: int = 0,
    ) -> None:
        """Create a source of samples by the BPF program.

        Args:
            sampler: The loaded BPF program.
            diagnostics: The recording's counters of problems.
            next_id: Function that returns a new identifier for an address space at each call.
            reader: Function that returns the interpreter reader of a process by pid; None if no interpreter
                is wanted.
            least_ns: Time in ns below which a wait needs no separate record.
        """
        self.lost = self._lost_before = 0
        self.words = sampler.ring.words
        self.processes = RecordedProcesses(sampler, next_id, reader)
        self.sampler = sampler
        self._diagnostics = diagnostics
        self._counted: dict[LossReason, int] = {}
        self.records, self.ended, self._until = NO_RECORDS, NO_ENDS, 0
        self.rates = WaitRates(least_ns)
        self._absent = AbsentPages(MOST_STACK)
        self._stacks = LongStacks(sampler.forget_stack)
        self._beyond: Mapping[int, StackBeyondCopy] = {}
        self._used = 0.0
        self._exits: dict[tuple[int, int], Piece] = {}
        """Stacks of the latest threads that began to exit, by (pid, tid)."""
        self._copy = _FIRST_COPY
        self._limit()

    def _limit(self) -> None:
        self.sampler.set_limits(self._copy, self.rates.least_ns, self.rates.share)

    def take_samples(self, until_ns: int = FOREVER_NS) -> SampleRecords:
        """Return the samples in the ring buffer up to a time, in order of time. The caller must release their
        memory by release_samples().
        """
        ring = self.sampler.ring
        self._used = ring.used / ring.size
        places, self._until = ring.take_records(until_ns)
        samples, ends = split_positions(self.words, places)
        found = read_records(self.words, samples)
        beyond = self._stacks.read_records(found, self.words.view(np.uint8))
        kept = np.flatnonzero((found.flags & Flag.EXITS) == 0)
        self._note_exits(found)
        self.records = records = found.select_rows(kept)
        self._beyond = {at: beyond[lane] for at, lane in enumerate(kept.tolist()) if lane in beyond}
        self.ended = read_wait_ends(self.words, ends)
        inside, stacks = read_kernel_stacks(records) if len(records.kernel) else (None, ((),))
        return SampleRecords(
            time_ns=records.time_ns,
            pid=records.pid,
            tid=records.tid,
            cpu=records.cpu,
            regs=records.regs,
            base=records.base,
            offset=records.offset,
            size=records.size,
            kernel_stack=inside,
            kernel_stacks=stacks,
            narrow=(records.flags & Flag.NARROW) != 0,
        )

    def discard_samples(self, until_ns: int) -> None:
        """Drop the samples in the ring buffer up to a time, and reset the count of lost samples.

        Opening the recording takes seconds if there are many processes. Samples of that time fill the ring buffer.
        """
        ring = self.sampler.ring
        places, until = ring.take_records(until_ns)
        records = read_records(self.words, split_positions(self.words, places)[0])
        self._stacks.read_records(records, self.words.view(np.uint8))
        ring.release_records(until)
        self._counted, _ = self.sampler.read_counts()
        self._lost_before = self._counted[LossReason.RING_FULL]

    def read_later_ends(self) -> WaitEnds:
        """Return the ends of waits that are still in the ring buffer after take_samples(). They stay there."""
        return read_wait_ends(self.words, split_positions(self.words, self.sampler.ring.find_later_records())[1])

    def with_frames(self, batch: SampleBatch, lanes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> SampleBatch:
        """Return a batch of samples with the interpreter frames and the additional memory pieces that the BPF program
        copied for them.

        Args:
            batch: The batch.
            lanes: Indices of its samples among those of the last take_samples().
        """
        records = self.records.select_rows(lanes)
        self._bring_holes(records)
        beyond = {at: self._beyond[lane] for at, lane in enumerate(lanes.tolist()) if lane in self._beyond}
        stack, chains = (
            self._with_exits(_with_pieces(replace(batch.stack, beyond=beyond), records), records),
            self.processes.read_chains(batch, records, self.records, self.words),
        )
        return replace(batch, stack=stack, chains=chains, labels=self._labels_of(records))

    def _note_exits(self, records: Records) -> None:
        """Keep the stacks of threads that begin to exit, for samples of them in later batches."""
        for lane in np.flatnonzero(((records.flags & Flag.EXITS) != 0) & (records.holes == 0)).tolist():
            at = int(records.offset[lane])
            data = self.words.view(np.uint8)[at : at + min(int(records.size[lane]), _MAX_EXIT_BYTES)]
            thread = int(records.pid[lane]), int(records.tid[lane])
            self._exits.pop(thread, None)
            self._exits[thread] = Piece(int(records.base[lane]), data.tobytes())
            if len(self._exits) > _MAX_EXITS:
                self._exits.pop(next(iter(self._exits)))

    def _with_exits(self, stack: StackSlab, records: Records) -> StackSlab:
        """Give samples of exiting threads, whose memory was gone, the stacks with which the threads began to exit."""
        lacking = np.flatnonzero(records.lacks_stack) if self._exits else ()
        threads = ((int(lane), (int(records.pid[lane]), int(records.tid[lane]))) for lane in lacking)
        found = {lane: (self._exits[thread],) for lane, thread in threads if thread in self._exits}
        return replace(stack, pieces={**stack.pieces, **found}) if found else stack

    def _labels_of(self, records: Records) -> dict[int, Labels]:
        """Return the labels (runtime/pprof) of the goroutines that samples run, by the index of the sample."""
        unread = int(np.count_nonzero(records.flags & Flag.UNLABELED))
        if unread:
            self._diagnostics.count("goroutine_labels_unreadable", unread)
        labelled = np.flatnonzero((records.flags & Flag.LABELS) != 0).tolist()
        return {lane: labels for lane in labelled if (labels := read_labels(records, lane))}

    def _bring_holes(self, records: Records) -> None:
        """Read the stack pages of the sampled threads that were not in memory, so that the kernel can copy
        these pages in later samples. Samples that lack pages now are unwound separately.
        """
        odd = np.flatnonzero(records.holes)
        columns = (records.pid, records.base, records.size, records.holes)
        for pid, base, size, holes in {*zip(*(column[odd].tolist() for column in columns), strict=True)}:
            page = base & -PAGE
            for n in range(min(-(-(base + size - page) // PAGE), 64)):
                if holes >> n & 1:
                    self._absent.read_pages(pid, page + n * PAGE, page + n * PAGE)

    def release_samples(self) -> None:
        """Release the ring buffer memory of the samples that take_samples() returned, when all were unwound."""
        self.sampler.ring.release_records(self._until)
        self.processes.finish_batch()
        copies = int(np.count_nonzero(self.records.flags & Flag.WAITS))
        if self.rates.adjust_limits(copies, len(self.ended), self._used):
            self._limit()
        self.records, self.ended = NO_RECORDS, NO_ENDS
        counts, _ = self.sampler.read_counts()
        self.lost = counts[LossReason.RING_FULL] - self._lost_before
        self._count_lost({reason: n - self._counted.get(reason, 0) for reason, n in counts.items()})
        self._counted = counts

    def _count_lost(self, more: dict[LossReason, int]) -> None:
        """Add to the diagnostics the losses that the BPF program has counted since the last call."""
        for reason, n in more.items():
            if n and reason.counted:
                self._diagnostics.count(reason.counted, n)

    def learn(self, feedback: Feedback) -> None:
        """Choose the number of stack bytes to copy from what the unwinding of earlier samples needed.

        The number is four times the need, or the maximum if a copy was too short. Only the end of a thread's
        own stack is known. A stack in an arena (of a coroutine) would be copied together with what follows
        it, so the first samples may also lower the size. Later samples do not, because deep calls come and
        go.
        """
        self._absent.learn(feedback)
        stack, top, missing = feedback.batch.stack, feedback.top.copy(), feedback.missing
        base = stack.base
        top[list(stack.beyond)] = 0  # the limit is not for those
        needed = int((top[top > base] - base[top > base]).max(initial=0))
        if (missing > base).any():
            needed = MOST_STACK
        wanted = min(max(4 * needed, _MIN_COPY), MOST_STACK)
        if wanted > self._copy or self._copy == _FIRST_COPY:
            self._copy = wanted
            self._limit()

    def close(self) -> None:
        self.sampler.close()


def read_labels(records: Records, lane: int) -> Labels:
    """Return the labels (runtime/pprof) of the goroutine that one sample's thread runs.

    Args:
        records: Records that the BPF program wrote. In `texts`, each row of the sample is one label as the program
            copied it: the length of the name, the length of the value, then both.
        lane: Index of the sample.
    """
    rows = records.texts[records.text[lane] : records.text[lane + 1]]
    pairs = []
    for name_size, value_size, data in ((int(row[0]), int(row[1]), row[2:].tobytes()) for row in rows):
        end = min(LABEL_NAME + value_size, len(data))
        pairs.append((data[: min(name_size, LABEL_NAME)], data[LABEL_NAME:end]))
    return read_program_labels(pairs)


def _with_pieces(stack: StackSlab, records: Records) -> StackSlab:
    """End each stack copy at its first missing page, and attach the rest of the memory as pieces.

    The pieces are the memory after that page, the root part of a longer stack, the stack that a signal handler on an
    alternate stack has interrupted, and the stack of a goroutine that its thread has left.
    """
    odd = np.flatnonzero((records.holes != 0) | (records.below_size > 0) | (records.goroutine_size > 0))
    if not len(odd):
        return stack
    size = stack.size.copy()
    pieces = {}
    for lane in odd.tolist():
        base, at = int(stack.base[lane]), int(stack.offset[lane])
        whole = int(stack.size[lane])
        spans = find_spans(base, whole, int(records.holes[lane]))
        size[lane] = spans[0][1] if spans and not spans[0][0] else 0
        found = [(base + low, at + low, high - low) for low, high in spans if low]
        base, at = int(records.below_base[lane]), at + whole
        below = find_spans(base, int(records.below_size[lane]), int(records.below_holes[lane]))
        found += [(base + low, at + low, high - low) for low, high in below]
        copied = [Piece(avma, stack.data[place : place + length].tobytes()) for avma, place, length in found]
        if records.goroutine_size[lane]:
            at += int(records.below_size[lane])
            copied += _goroutine_pieces(stack, records, lane, at)
        pieces[lane] = tuple(copied)
    return replace(stack, size=size, pieces=pieces)


def _goroutine_pieces(stack: StackSlab, records: Records, lane: int, at: int) -> tuple[Piece, ...]:
    """Return the memory pieces of a sample whose thread has left its goroutine's stack, which the copy contains at
    offset `at`.

    The goroutine's stack ends at its first missing page.
    """
    base = int(records.goroutine_base[lane])
    spans = find_spans(base, int(records.goroutine_size[lane]), int(records.goroutine_holes[lane]))
    end = at + (spans[0][1] if spans and not spans[0][0] else 0)
    head = records.goroutine_head[lane].tobytes()
    return make_goroutine_pieces(int(records.goroutine[lane]), head, base, stack.data[at:end].tobytes())
