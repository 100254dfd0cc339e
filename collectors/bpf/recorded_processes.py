"""The processes that the BPF program samples, with the readers of their interpreters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container

import numpy as np

from pyprof.collectors.bpf.kernel_program import BpfSampler
from pyprof.collectors.bpf.ring_buffer_records import STACK_SLACK, U64, Flag, Records, find_spans
from pyprof.collectors.linux import procfs
from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain
from pyprof.model.interpreter_reader_protocols import CopiedStack, FrameRows, KernelReader
from pyprof.model.loss_reason_texts import make_cause
from pyprof.model.sample_batch import SampleBatch


class RecordedProcesses:
    """The processes that the BPF program samples, with the readers of their interpreters.

    Attributes:
        parent_of: Function that returns the pid of the process that forked another one, or 0 if that is
            unknown.
    """

    def __init__(
        self, sampler: BpfSampler, next_id: Callable[[], int], reader: Callable[[int], KernelReader] | None
    ) -> None:
        """Create an empty set of recorded processes.

        Args:
            sampler: The loaded BPF program.
            next_id: Function that returns a new identifier for an address space at each call.
            reader: Function that returns the interpreter reader of a process by pid; None if no interpreter
                is wanted.
        """
        self.parent_of: Callable[[int], int] = lambda pid: 0
        self._sampler = sampler
        self._next_id = next_id
        self._make = reader
        self._readers: dict[int, KernelReader] = {}
        self._ended: set[int] = set()
        self._placed: dict[int, tuple[int, int, int]] = {}

    def add_processes(self, pids: list[int]) -> None:
        """Sample existing processes by the BPF program. Their interpreters are read before their first sample."""
        for pid in pids:
            if not self._sampler.is_recorded(pid):
                self._place_stack(pid)
                self.find_interpreter(pid)
                if not self._sampler.is_recorded(pid):
                    self._sampler.add_process(pid)

    def add_before_exec(self, pids: list[int]) -> None:
        """Start to sample processes that are about to call exec. Their samples before the exec are dropped."""
        for pid in pids:
            self._sampler.add_process(pid)

    def find_interpreter(self, pid: int) -> str | None:
        """Find the interpreter of a process, so that the BPF program copies its frames.

        Returns:
            "" if the program can sample all of the process. None if it has an interpreter that has not
                started yet. Otherwise the reason why samples by ptrace stops are better.
        """
        if self._make is None:
            return ""
        reader = self._find_reader(pid)
        try:
            space = procfs.read_address_space(pid, self._next_id(), generation=0)
            needs = reader.inspect_process(space, procfs.list_tasks(pid), self._readers.get(self.parent_of(pid)))
        except (OSError, FormatError):
            return ""
        found, goroutines = reader.offsets(), reader.goroutines()
        if found is not None or goroutines is not None:
            self._place(reader)
            runtime, offsets = found or (0, None)
            self._sampler.add_process(pid, runtime, offsets, goroutines)
        if found is not None and needs == "" and found[1].seeks and not self._sampler.seeks:
            return make_cause("waits_of_greenlets")
        return needs

    def _find_reader(self, pid: int) -> KernelReader:
        assert self._make is not None
        if pid not in self._readers:
            self._readers[pid] = self._make(pid)
        return self._readers[pid]

    def find_gil_addresses(self, pid: int) -> set[int]:
        """Return the known addresses of the GILs of a process's interpreters."""
        reader = self._readers.get(pid)
        return {place.gil for place in reader.places() if place.gil} if reader is not None else set()

    def keep_only(self, pids: Container[int]) -> None:
        """Stop recording all processes that are not in `pids`, because they have ended.

        A process is dropped only at the second such call, after its last records in the ring buffer were read.
        """
        ended = {pid for pid in self._readers if pid not in pids}
        for pid in ended & self._ended:
            del self._readers[pid]
            self._sampler.forget_process(pid)
        self._ended = ended - self._ended

    def retire(self) -> None:
        """Drop what is stored about threads that have ended."""
        for tid in [tid for tid in self._placed if not os.path.exists(f"/proc/{tid}")]:
            del self._placed[tid]
            self._sampler.forget_thread(tid)

    def _place_stack(self, pid: int) -> None:
        """Tell the BPF program the end of the stack of a process's first thread. For other threads it is the end of the
        stack's mapping.
        """
        with contextlib.suppress(OSError, FormatError):
            directory = procfs.ProcDir(pid)
            try:
                first = directory.stat().stack
            finally:
                directory.close()
            if first:
                self._sampler.set_stack_end(pid, (first + STACK_SLACK) & ~7)

    def _place(self, reader: KernelReader) -> None:
        for thread in reader.places():
            known = (thread.address, thread.gil, thread.collecting)
            if self._placed.get(thread.tid) != known:
                self._placed[thread.tid] = known
                self._sampler.set_interpreter_addresses(thread)

    def read_chains(self, batch: SampleBatch, records: Records, all_records: Records, words: U64) -> dict[int, Chain]:
        """Return the chains of interpreter frames of samples, by the index of the sample.

        Args:
            batch: The samples.
            records: Their records.
            all_records: All records of the same reading. A chain of `records` may refer to strings that
                another record has.
            words: Memory of the ring as 64-bit words.
        """
        found: dict[int, Chain] = {}
        if self._make is None:
            return found
        has = (records.flags & Flag.CHAIN) != 0
        for pid in set(batch.pid.tolist()) & (self._readers.keys() | set(batch.pid[has].tolist())):
            reader, mine = self._find_reader(pid), batch.pid == pid
            space: AddressSpace = batch.spaces[int(batch.space[np.flatnonzero(mine)[-1]])]
            tids = set(batch.tid[mine].tolist())
            with contextlib.suppress(OSError):
                tids.update(procfs.list_tasks(pid))
            reader.inspect_process(space, tids, self._readers.get(self.parent_of(pid)))
            if reader.offsets() is None:
                continue
            self._place(reader)
            lanes = np.flatnonzero(mine & has)
            if len(lanes):
                chains = reader.chains(build_frame_rows(records.select_rows(lanes), all_records.read_texts(pid), words))
                found |= {lane: chain for lane, chain in zip(lanes.tolist(), chains, strict=True) if chain is not None}
        return found

    def finish_batch(self) -> None:
        """Tell the interpreter readers that all samples which were read from the ring together have been unwound."""
        for reader in self._readers.values():
            reader.finish_batch()


def build_frame_rows(records: Records, texts: U64, words: U64) -> FrameRows:
    """Return the interpreter frames of samples as rows that an interpreter's reader decodes.

    Args:
        records: Records that the BPF program wrote.
        texts: Rows of interpreter strings (Records.texts), such as names of functions.
        words: Memory of the ring that the records were read from.
    """
    halves = np.ascontiguousarray(records.frames[:, 3]).view(np.uint32).reshape(-1, 2)
    return FrameRows(
        start=records.frame,
        waiting=records.waiting,
        awaiting=records.awaiting,
        frames=np.ascontiguousarray(records.frames[:, [0, 1, 2, 4]]),
        flag=halves[:, 0].astype(np.uint8),
        tlbc=halves[:, 1],
        stand_start=records.anchor,
        stands=records.anchors,
        texts=texts,
        holds=(records.flags & Flag.HOLDS_LOCK) != 0,
        collecting=(records.flags & Flag.COLLECTING) != 0,
        broken=(records.flags & Flag.BROKEN) != 0,
        several=(records.flags & Flag.SEVERAL) != 0,
        copies={int(lane): _copied_stack(records, lane, words) for lane in np.flatnonzero(records.waiting)},
    )


def _copied_stack(records: Records, lane: np.int64, words: U64) -> CopiedStack:
    base, size, end = int(records.base[lane]), int(records.size[lane]), int(records.frame[lane + 1])
    first = int(records.offset[lane]) >> 3
    copy = words[first : first + (size >> 3)]
    holes = int(records.holes[lane])
    if holes:
        copy = np.zeros_like(copy)
        for low, high in find_spans(base, size, holes):
            copy[low >> 3 : high >> 3] = words[first + (low >> 3) : first + (high >> 3)]
    links = records.frames[end - int(records.waiting[lane]) : end, 3]
    return CopiedStack(int(records.state[lane]), base, copy.data, links)
