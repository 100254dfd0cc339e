"""Conversion of records in perf's ring buffers to sample batches, whose stacks are views of the rings' memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.sampled_arch import HERE, NARROW, WIDE
from pyprof.collectors.perf.cpu_wide_events import Scope
from pyprof.collectors.perf.per_thread_events import FOREVER_NS
from pyprof.collectors.perf.processes_from_records import TrackedProcesses
from pyprof.collectors.perf.ring_buffer_records import (
    LOST,
    LOST_SAMPLES,
    NO_SAMPLES,
    THROTTLE,
    U64,
    Rings,
    SampleRecords,
    Scan,
    parse_lost,
    read_samples,
)
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.integer_array_operations import among, distinct
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

_LOOK_NS = 1_000_000_000

Mask = npt.NDArray[np.bool_]

Elsewhere = Callable[[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""The type of a function (pid, tid, time) that returns a mask of the samples whose thread was sampled by
another collector at that time.
"""


@dataclass(frozen=True, slots=True)
class RingBatches:
    """The batches from one reading of perf's ring buffers.

    Attributes:
        scan: The records that were read. Their memory must be released after the batches are unwound.
        running: Batches of samples of running threads.
        switched: One batch of all samples that were taken when threads left their processors.
        wanted: Mask of the samples of `switched` to keep.
    """

    scan: Scan
    running: list[SampleBatch]
    switched: SampleBatch
    wanted: Mask


class BatchMaker:
    """A converter of perf's ring records to batches of samples.

    Attributes:
        untracked: Pids of processes whose samples are ignored.
        sampled: Threads that were sampled, as (tid, start time).
        lost: Number of records that found no room in a ring buffer.
        elsewhere: Function that finds samples of threads which another collector samples, None if there is
            none.
        end_ns: Time from which on samples are left out.
    """

    def __init__(
        self,
        rings: Rings,
        scope: Scope,
        tracked: TrackedProcesses,
        options: CollectOptions,
        diagnostics: Diagnostics,
        source_id: int,
        excluded_pids: set[int],
    ) -> None:
        """Create a converter of ring records to sample batches.

        Args:
            source_id: Identifier of the converter's batches.
            excluded_pids: Pids of the profiler's processes, and of others that are not recorded.
        """
        self._source_id = source_id
        self._excluded_pids = excluded_pids
        self.untracked: set[int] = set(excluded_pids)
        self.sampled: set[tuple[int, int]] = set()
        self.lost = 0
        self.elsewhere: Elsewhere | None = None
        self.end_ns = FOREVER_NS
        self._rings = rings
        self._scope = scope
        self._tracked = tracked
        self._pattern = options.thread
        self._running, self._handover = options.running, options.handover
        self._diagnostics = diagnostics
        self._kernel: set[int] = set()
        self._looked_ns = 0

    @cached_property
    def nothing(self) -> SampleBatch:
        """A batch without samples, which lets the consumer act between batches."""
        return self._batch(NO_SAMPLES, np.zeros(0, np.uint64), {}, np.zeros(0, np.int32))

    def convert_scan(self, found: Scan, switched: SampleRecords = NO_SAMPLES, words: U64 | None = None) -> RingBatches:
        """Convert the records of one reading of perf's ring buffers to batches, together with samples of the same time
        from other ring buffers.

        Args:
            found: The records that were read.
            switched: Samples from other ring buffers.
            words: Memory of those ring buffers, None if it is that of perf's.
        """
        lost = 0
        for record in found.others:
            if record.kind in (LOST, LOST_SAMPLES):
                lost += parse_lost(record.kind, record.body)
            elif record.kind == THROTTLE:
                self._diagnostics.count("kernel_throttled")
        self._tracked.apply_records(found.others)
        samples, left_out = read_samples(
            self._rings.words,
            found.samples,
            self._scope.event.chains,
            self._tracked.histories if self._scope.filtered else None,
        )
        self._count_left_out(left_out)
        if self._scope.everything:
            self._meet({*samples.pid.tolist(), *switched.pid.tolist()})
        spaces, (space, switched_space) = self._place(samples, switched)
        kept, switched_kept = self._kept(samples, space), self._kept(switched, switched_space)
        if lost:
            self.lost += lost
            self._diagnostics.count("samples_lost", lost)
            for history in self._tracked.histories.values():
                if history.image.alive:
                    history.distrust_mappings()
        batch = self._batch(samples, self._rings.words, spaces, space)
        further = self._batch(switched, self._rings.words if words is None else words, spaces, switched_space)
        return RingBatches(found, split_by_width(batch, kept, samples.narrow), further, switched_kept)

    def _count_left_out(self, pids: npt.NDArray[np.int32]) -> None:
        """Count samples without user registers in the diagnostics, except for samples of idle processors (pid
        0). `pids` has the process of each such sample.
        """
        kernel = among(pids, self._of_kernel(set(pids[pids > 0].tolist())))
        if kernel.any():
            self._diagnostics.count("kernel_thread_sample", int(np.count_nonzero(kernel)))
        if (ending := (pids != 0) & ~kernel).any():
            self._diagnostics.count("sample_without_registers", int(np.count_nonzero(ending)))

    def _of_kernel(self, pids: set[int]) -> set[int]:
        """Return those of the pids that are kernel threads."""
        self._kernel.update(pid for pid in pids - self._tracked.histories.keys() - self._kernel if _of_kernel(pid))
        return pids & self._kernel

    def _place(self, *parts: SampleRecords) -> tuple[dict[int, AddressSpace], list[npt.NDArray[np.int32]]]:
        """Find the address space of each sample of one reading of perf's ring buffers.

        Returns:
            All address spaces, and for each part a column of their identifiers; 0 for unknown processes.
        """
        spaces: dict[int, AddressSpace] = {}
        space = [np.zeros(len(part), np.int32) for part in parts]
        sampled = {pid for part in parts for pid in distinct(part.pid).tolist()}
        for pid, history in list(self._tracked.histories.items()):
            if pid not in sampled:
                history.apply_changes()
                continue
            lanes = [np.flatnonzero(part.pid == pid) for part in parts]
            time_ns = np.concatenate([part.time_ns[at] for part, at in zip(parts, lanes, strict=True)])
            pcs = np.concatenate([part.regs[at, WIDE.pc] for part, at in zip(parts, lanes, strict=True)])
            order = np.argsort(time_ns, kind="stable")
            found, used = history.assign_spaces(time_ns[order], pcs[order])
            self._handover.steps += 1
            unsorted = np.empty_like(found)
            unsorted[order] = found
            ends = np.cumsum([len(at) for at in lanes])
            for to, at, of in zip(space, lanes, np.split(unsorted, ends[:-1]), strict=True):
                to[at] = of
            spaces.update(used)
        return spaces, space

    def _kept(self, samples: SampleRecords, space: npt.NDArray[np.int32]) -> Mask:
        """Return a mask of the samples to keep, and count those of unknown processes, which are dropped."""
        unknown = (space == 0) & ~among(samples.pid, self._excluded_pids)
        if unknown.any():
            self._diagnostics.count("unknown_process_sample", int(np.count_nonzero(unknown)))
        kept: Mask = (space > 0) & self.mask_wanted(samples.tid, samples.time_ns)
        kept &= samples.time_ns < min(self.end_ns, self._handover.ended_ns or FOREVER_NS)
        if self._running:
            kept &= samples.time_ns >= self._handover.begun_ns  # earlier ones are from the opening
        if self.elsewhere is not None:
            kept &= ~self.elsewhere(samples.pid, samples.tid, samples.time_ns)
        return kept

    def mask_wanted(self, tid: npt.NDArray[np.integer], time_ns: npt.NDArray[np.int64]) -> Mask:
        """Return a mask of the samples whose thread matches the user's selection of threads by the name that
        it had at that time.
        """
        if self._pattern is None:
            return np.ones(len(tid), np.bool_)
        threads = list(zip(tid.tolist(), self._tracked.lives.started(tid, time_ns).tolist(), strict=True))
        names = {(info.tid, info.started): info.name for info in self._tracked.names.describe_threads(set(threads))}
        return np.array([self._pattern.search(names[thread]) is not None for thread in threads], np.bool_)

    def forget_untracked(self) -> None:
        """Drop ignored processes from the list after they have ended, because the kernel may reuse their pids."""
        now = time.monotonic_ns()
        if now > self._looked_ns + _LOOK_NS:
            self._looked_ns = now
            for those in (self.untracked, self._kernel):
                those.difference_update([pid for pid in those if not os.path.exists(f"/proc/{pid}")])

    def mask_recorded(self, pid: npt.NDArray[np.integer]) -> Mask:
        """Return a mask of the pids that belong to the recording.

        Kernel threads, which never leave their processors for user space, belong to it only after a sample.
        """
        if self._scope.everything:
            fresh = set(pid.tolist()) - self._tracked.histories.keys() - self.untracked - self._kernel
            self._meet(fresh - self._of_kernel(fresh))
        return among(pid, self._tracked.histories)

    def mask_shown(self, tid: npt.NDArray[np.integer], time_ns: npt.NDArray[np.int64]) -> Mask:
        """Return a mask of the samples whose thread was selected by the user and has a known name. From now
        on these threads count as sampled.
        """
        named = [each for each in set(tid.tolist()) if each in self._tracked.names]
        found: Mask = self.mask_wanted(tid, time_ns) & among(tid, named)
        self._saw(tid[found], self._tracked.lives.started(tid[found], time_ns[found]))
        return found

    def _saw(self, tid: npt.NDArray[np.integer], started: npt.NDArray[np.int64]) -> None:
        self.sampled.update(zip(tid.tolist(), started.tolist(), strict=True))

    def _batch(
        self, samples: SampleRecords, words: U64, spaces: dict[int, AddressSpace], space: npt.NDArray[np.int32]
    ) -> SampleBatch:
        """Return the samples of one reading as a single batch, with the registers of 64-bit code."""
        kind = np.full(len(samples), SampleKind.STOPPED, np.uint8)
        started = self._tracked.lives.started(samples.tid, samples.time_ns)
        self._saw(samples.tid, started)
        return replace(
            build_stackless_batch(WIDE, self._source_id, kind, samples.time_ns, samples.pid, samples.tid),
            space=space,
            cpu=samples.cpu,
            regs=samples.regs,
            stack=StackSlab(words.view(np.uint8), samples.base, samples.offset, samples.size),
            spaces=spaces,
            kernel_stack=samples.kernel_stack,
            kernel_stacks=samples.kernel_stacks,
            followed=False,
            stopped=False,
            started=started,
        )

    def _meet(self, pids: set[int]) -> None:
        for pid in pids - self._tracked.histories.keys() - self.untracked:
            self._handover.steps += 1
            try:
                self._tracked.add_process(pid)
            except (ProcessLookupError, PermissionError):
                self.untracked.add(pid)


def _of_kernel(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return procfs.parse_stat(file.read()).is_kernel_thread
    except (OSError, FormatError):
        return False


def split_by_width(batch: SampleBatch, selected: Mask, narrow: Mask) -> list[SampleBatch]:
    """Split those samples of a batch that are to be kept into a batch of 64-bit code and one of 32-bit code,
    if there is any.
    """
    if narrow.any():
        some = batch.take_samples(np.flatnonzero(selected & narrow))
        regs = some.regs[:, HERE.narrow_columns] & np.uint64(NARROW.mask)
        return [batch.take_samples(np.flatnonzero(selected & ~narrow)), replace(some, arch=NARROW, regs=regs)]
    return [batch if selected.all() else batch.take_samples(np.flatnonzero(selected))]
