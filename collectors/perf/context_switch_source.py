"""A source of context switches: samples of running threads, and the times at which they leave processors."""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.context_switch_protocol import ENDED, I64, Mask, SwitchBatch
from pyprof.collectors.perf.context_switches import Switches, SwitchReading
from pyprof.collectors.perf.kernel_collector import KernelCollector
from pyprof.collectors.perf.records_to_batches import RingBatches, split_by_width
from pyprof.collectors.perf.stack_copy_size import mask_beyond_copy
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch


@dataclass
class PerfSwitchSource:
    """A SwitchSource that combines two sets of perf_events, and closes them: samples of running threads, and
    context switches.

    Args:
        running: Collector that samples threads on processors.
        switches: Perf events that record when threads leave and enter processors.

    Raises:
        PerfNotAllowed: The kernel permits no events.
    """

    running: KernelCollector
    switches: Switches
    _cuts: bool = False
    _under_way: tuple[SwitchReading, RingBatches] | None = field(default=None)

    def __post_init__(self) -> None:
        self.running.records.members.joined = self.switches.attach_events
        with contextlib.suppress(ProcessLookupError):  # the process has already ended
            self.switches.attach_events(self.running.records.members.alive)

    @property
    def source_ids(self) -> frozenset[int]:
        return frozenset((self.running.records.source_id, self.switches.source_id))

    @property
    def flush_s(self) -> float:
        return self.switches.flush_s

    @property
    def alive(self) -> list[int]:
        return self.running.alive

    @property
    def paused(self) -> frozenset[int]:
        return self.switches.cycle.paused

    def take_switches(self, now_ns: int) -> SwitchBatch:
        switched = self.switches.take_switches(now_ns)
        taken = self.running.records.take_samples(now_ns, switched.samples, self.switches.rings.words)
        self._under_way = switched, taken
        wanted = np.flatnonzero(taken.wanted)
        known = self.running.records.maker.mask_recorded(switched.pid) | (switched.switches.kind == ENDED)
        return SwitchBatch(
            running=taken.running,
            left=replace(taken.switched.take_samples(wanted), source_id=self.switches.source_id),
            narrow=switched.samples.narrow[wanted],
            switches=switched.switches.select_points(known),
            since_ns=self.switches.since_ns,
            gaps=switched.gaps,
            paused=switched.paused,
            unsampled=taken.scan.gaps,
        )

    def release_switches(self) -> tuple[frozenset[int], int]:
        assert self._under_way is not None  # the caller has called take()
        switched, taken = self._under_way
        self._under_way = None
        self.running.records.release_samples(taken.scan)
        return self.switches.release_switches(switched, self.running.records.members.alive)

    def split_by_width(self, batch: SampleBatch, narrow: Mask) -> list[SampleBatch]:
        return split_by_width(batch, np.ones(len(batch), np.bool_), narrow)

    def mask_recorded(self, pid: npt.NDArray[np.integer]) -> Mask:
        return self.running.records.maker.mask_recorded(pid)

    def mask_shown(self, tid: npt.NDArray[np.integer], time_ns: I64) -> Mask:
        return self.running.records.maker.mask_shown(tid, time_ns)

    def find_thread_ids(self, tid: npt.NDArray[np.integer], time_ns: I64) -> tuple[npt.NDArray[np.int32], I64]:
        tracked = self.running.records.members.tracked
        return tracked.names.find_pids(tid, time_ns), tracked.lives.started(tid, time_ns)

    def take_new_processes(self) -> set[int]:
        return self.running.take_new_processes()

    def learn(self, feedback: Feedback) -> None:
        is_switch = feedback.batch.source_id == self.switches.source_id
        (self.switches if is_switch else self.running).learn(feedback)
        self._cuts |= bool(mask_beyond_copy(feedback).any())

    def threads(self) -> list[ThreadInfo]:
        return self.running.threads()

    def retire(self) -> None:
        self.running.retire()
        self.switches.cycle.retire()

    def stats(self) -> CollectorStats:
        stats = self.running.stats()
        return replace(stats, notes=(*stats.notes, *self._notes()))

    def _notes(self) -> tuple[Note, ...]:
        notes = [make_note("waits") if self.switches.stacks else make_note("waits_from_outside")]
        if lost_ns := self.switches.lost_ns:
            notes.append(make_note("switches_lost", seconds=lost_ns / 1e9))
        if self._cuts:
            notes.append(make_note("stacks_not_copied"))
        if count := self.switches.cycle.rests:
            in_part = make_note("switches_in_part", threads=count)
            notes.append(make_note("switches_of_machine_in_part") if self.switches.everything else in_part)
        return tuple(notes)

    def close(self) -> None:
        try:
            self.running.close()
        finally:
            self.switches.close()
