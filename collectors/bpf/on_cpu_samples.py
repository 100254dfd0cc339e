"""Samples of running threads that a BPF program takes: registers, stack and interpreter frames of one instant.

No thread is stopped. Records of perf_events report processes and mappings, as they do for the samples of perf_events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.bpf.ring_buffer_records import MOST_PAGES, PAGE
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.cpu_time_accounting import LostSamples
from pyprof.collectors.perf.kernel_collector import KernelRecords, KernelSamples
from pyprof.collectors.perf.per_thread_events import FOREVER_NS
from pyprof.collectors.perf.random_sampling import Decimation
from pyprof.collectors.perf.records_to_batches import RingBatches, split_by_width
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

NOTE = make_note("by_program")


class BpfSamples(KernelSamples):
    """The on-CPU samples that the BPF program takes, in a collector that reads kernel records. The rings need
    not be polled: the kernel wakes the collector when rings are full and when the recording's processes
    change.
    """

    most_copy = MOST_PAGES * PAGE
    hold_s = 16.0  # the ring has room for it, and samples teach little for later ones
    young_wait_ns = 1_000_000_000  # functions of an interpreter are read from the process with their first samples
    silent_flushes = 4  # each empty batch wakes a processor

    def __init__(
        self, records: KernelRecords, source: BpfSource, options: CollectOptions, before_exec: bool, why: str = ""
    ) -> None:
        """Begin to sample the processes of a recording.

        Args:
            records: The processes. Their close() closes the source.
            source: Source of the samples.
            options: Options of the recording.
            before_exec: True if the processes will call exec, and only the new program is wanted.
            why: Why this source was chosen (see make_cause), "" if that needs no note.
        """
        self.source = source
        self._records, self._options, self._why = records, options, why
        self._decimation = Decimation(options.stride)
        self._taken = self._used = 0
        records.closing.callback(source.close)
        records.accounts.lost = lambda: LostSamples(source.lost, records.accounts.is_alone)
        records.waiting.waiter.for_rings(source.sampler.ring.fd, records.reader.rings.owners.values())
        records.members.joined = source.processes.add_processes
        source.processes.parent_of = records.members.tracked.parent_of
        (source.processes.add_before_exec if before_exec else source.processes.add_processes)(records.members.alive)

    def longest_wait_ns(self) -> int:
        return FOREVER_NS

    def is_full(self) -> bool:
        return self.source.sampler.full or self._records.reader.rings.much_used

    def begin(self, at_ns: int) -> None:
        if self._options.running:
            self.source.discard_samples(at_ns)

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        records, source = self._records, self.source
        self.reopen_events()
        if until_ns == FOREVER_NS:
            source.sampler.stop_program()
        samples = source.take_samples(until_ns)
        chosen, every = self._decimation.choose(len(samples))
        samples = samples.select_rows(chosen)
        taken = records.take_samples(until_ns, samples, source.words)
        records.accounts.read_times(until_ns)
        lanes = np.flatnonzero(taken.wanted)
        self.count_samples(len(lanes), every)
        batch = source.with_frames(taken.switched.take_samples(lanes), chosen[lanes])
        if every > 1:
            batch = replace(batch, weight=batch.weight * every)
        for part in split_by_width(batch, np.ones(len(lanes), np.bool_), samples.narrow[lanes]):
            records.accounts.count_batch(part)
            yield part
        self.release_samples(taken)

    def count_samples(self, used: int, every: int = 1) -> None:
        """Count `used` samples, each of which stands for `every` sampling times."""
        self._used += used
        self._taken += every * used

    def reopen_events(self) -> None:
        """Open perf events again on processors that came back online: events that report mappings, and events that
        trigger samples.
        """
        found = self.source.sampler.reopen_events()
        if found or not self._options.running:
            found |= self._records.reopen_events()
        self._records.accounts.note_offline(found)

    def release_samples(self, taken: RingBatches) -> None:
        """Release the ring buffer memory of samples that were read together, after all batches made from them were
        unwound.
        """
        self.source.release_samples()
        self._records.release_samples(taken.scan)
        self.source.processes.keep_only(self._records.members.tracked.histories)

    def learn(self, feedback: Feedback) -> None:
        self.source.learn(feedback)

    def retire(self) -> None:
        self.source.processes.retire()

    def stats(self) -> CollectorStats:
        period_ns, lost = round(1e9 / self._options.rate_hz), self.source.lost
        note = make_note("by_program_because", why=self._why) if self._why else NOTE
        return CollectorStats(
            ticks=self._used, ticking_ns=(self._taken + lost) * period_ns, skipped=lost, notes=(note,)
        )
