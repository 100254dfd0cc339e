"""A collector that uses a program in the kernel: registers, stack and interpreter frames of one instant.

No thread is stopped. Records of perf_events report processes and mappings, as they do for the samples of perf_events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.bpf.sample_source import BpfSource
from pyprof.collectors.cpu_accounts import LostSamples
from pyprof.collectors.perf.batch_maker import RingBatches, split_by_width
from pyprof.collectors.perf.collector import NEVER_STOPPED, PerfCollector
from pyprof.collectors.perf.cpu_wide_events import Scope, Silent, choose_record_scope
from pyprof.collectors.perf.event_set import FOREVER_NS
from pyprof.collectors.targets.process_selection import Selection
from pyprof.collectors.thread_start_times import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.model.reason_lookup import Note, make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions
from pyprof.records import replace

NOTE = make_note("by_program")
_SILENT = 4
"""Factor for the time after which the collector yields an empty batch if no consumer waits for one. Each empty batch
wakes a processor.
"""


class BpfCollector(PerfCollector):
    """A collector that takes its samples from a BpfSource, which it closes.

    It does not poll: the kernel wakes it when rings are full and when the recording's processes change.
    """

    wakes = True
    hold_s = 16.0  # the ring has room for it, and samples teach little for later ones
    young_wait_ns = 1_000_000_000  # functions of an interpreter are read from the process with their first samples

    def __init__(
        self,
        source: BpfSource,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        ids: Identities,
        selection: Selection,
        before_exec: bool,
        why: str = "",
    ) -> None:
        """Load the BPF program and begin to record the processes.

        Args:
            source: Source of the samples.
            pid: The process to record.
            options: Options of the recording.
            diagnostics: Counts problems.
            ids: Identifiers shared with other collectors of the recording.
            selection: Further processes, including those that will match later.
            before_exec: True if pid will call exec, and only the new program is wanted.
            why: Why this collector was chosen (see make_cause), "" if that needs no note.
        """
        self.source = source
        self._why = why
        self._taken = self._used = 0
        super().__init__(pid, options, diagnostics, ids=ids, selection=selection, before_exec=before_exec)
        self._starvation = None
        self.waiting.waiter.for_rings(source.ring_fd, self._reader.rings.owners.values())
        self.most_copy = source.most_copy
        self.members.joined = source.add_processes
        source.parent_of = self.members.tracked.parent_of
        if not before_exec:
            source.add_processes(self.members.alive)
        else:
            source.add_before_exec(self.members.alive)

    def _begin_recording(self) -> None:
        super()._begin_recording()
        if self._options.running and not self._options.idle:
            self.source.discard_samples(self.handover.begun_ns)

    def _scope(self, pid: int, cpu: int) -> Scope:
        """Choose the processors or threads on which the collector opens perf events that take no samples and only
        report forks, exits and mappings of processes.
        """
        return choose_record_scope(pid, cpu, self._options, self.members.everything)

    def _lost(self) -> LostSamples:
        return LostSamples(self.source.lost, self.accounts.is_alone)

    def _longest_wait_ns(self) -> int:
        return FOREVER_NS

    def _silent_ns(self) -> int:
        return super()._silent_ns() * (1 if self._options.handover.is_watched else _SILENT)

    def _full(self) -> bool:
        return self.source.full or self._reader.rings.much_used

    def _hand_out(self, until_ns: int) -> Iterator[SampleBatch]:
        source = self.source
        self._revive()
        if until_ns == FOREVER_NS:
            source.stop_sampling()
        samples = source.take_samples(until_ns)
        chosen, every = self._decimation.choose(len(samples))
        samples = samples.select_rows(chosen)
        taken = self.take_samples(until_ns, samples, source.words)
        self.accounts.read_times(until_ns)
        lanes = np.flatnonzero(taken.wanted)
        self._used += len(lanes)
        self._taken += every * len(lanes)
        batch = source.with_frames(taken.switched.take_samples(lanes), chosen[lanes])
        if every > 1:
            batch = replace(batch, weight=batch.weight * every)
        for part in split_by_width(batch, np.ones(len(lanes), np.bool_), samples.narrow[lanes]):
            self.accounts.count_batch(part)
            yield part
        self._unwound(taken)

    def _revived(self) -> Silent:
        """Open perf events again on processors that came back online: events that report mappings, and events that
        trigger samples.
        """
        found = self.source.reopen_events()
        if found or not self._options.running:
            found |= super()._revived()
        return found

    def _unwound(self, taken: RingBatches) -> None:
        """Release the ring buffer memory of samples that were read together, after all batches made from them were
        unwound.
        """
        source = self.source
        source.release_samples()
        self.release_samples(taken.scan)
        source.keep_only(self.members.tracked.histories)

    def learn(self, feedback: Feedback) -> None:
        super().learn(feedback)
        self.source.learn(feedback)

    def retire(self) -> None:
        super().retire()
        self.source.retire()

    def stats(self) -> CollectorStats:
        period_ns, lost = round(1e9 / self._options.rate_hz), self.source.lost
        ticking_ns = (self._taken + lost) * period_ns
        return replace(super().stats(), ticks=self._used, ticking_ns=ticking_ns, skipped=lost)

    def _notes(self) -> tuple[Note, ...]:
        note = make_note("by_program_because", why=self._why) if self._why else NOTE
        never_stopped = (NEVER_STOPPED,) if self.maker.elsewhere is None else ()
        return (note, *never_stopped, *self.accounts.describe_offline(), *self.members.refused)

    def close(self) -> None:
        try:
            self.source.close()
        finally:
            super().close()
