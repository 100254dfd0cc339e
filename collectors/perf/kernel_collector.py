"""A collector of samples that the kernel takes (perf_events or BPF), the kernel's records about the recorded
processes, and the samples of perf_events.

The kernel copies registers and stack of a running thread into rings. Batches are views of the rings: nothing is copied
before it is unwound, and a ring's room is released when the next batch is requested. Records of perf_events report
processes and mappings.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.cpu_time_accounting import LostSamples
from pyprof.collectors.linux.process_sandbox import raise_file_limit
from pyprof.collectors.perf.cpu_wide_events import Scope, Silent
from pyprof.collectors.perf.event_attributes import MOST_STACK, PerfNotAllowed
from pyprof.collectors.perf.event_manager import EventManager
from pyprof.collectors.perf.per_thread_events import FOREVER_NS, RingReader
from pyprof.collectors.perf.process_set import ProcessSet, RecordAccounts
from pyprof.collectors.perf.processes_from_records import TrackedProcesses
from pyprof.collectors.perf.random_sampling import Decimation, Starvation
from pyprof.collectors.perf.records_to_batches import BatchMaker, Elsewhere, RingBatches
from pyprof.collectors.perf.ring_buffer_polling import FIRST_FLUSH_NS, Cadence, RecordWait
from pyprof.collectors.perf.ring_buffer_records import (
    FORK,
    NO_SAMPLES,
    U64,
    SampleRecords,
    Scan,
    list_online_cpus,
    open_rings,
)
from pyprof.collectors.perf.stack_copy_size import AbsentPages, choose_ring_size
from pyprof.collectors.targets.process_selection import Selection
from pyprof.collectors.thread_start_times import Identities
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

NEVER_STOPPED = make_note("never_stopped")


ChooseScope = Callable[[int, int, CollectOptions, bool], Scope]
"""The type of a function (pid, processor, options, everything) that chooses on what a recording's perf events
are opened. `everything` is True if all processes are recorded.
"""


class KernelRecords:
    """The processes of a recording, the perf events that report on them, the ring buffers of these events,
    and the waits for records.

    Attributes:
        source_id: Identifier of the batches of this collector.
        members: The processes of the recording.
        events: The perf events.
        reader: Reader of their rings.
        maker: Converter of records to batches.
        waiting: The waits between two readings of the rings.
        accounts: Processor time of the recorded processes.
        handover: The flushes of the recording.
        is_stopping: True if no further processes are wanted, because the recording ends.
        closing: Stack of functions that close all of it. They are called once, the last one first.
    """

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        choose_scope: ChooseScope,
        ids: Identities,
        selection: Selection | None = None,
        before_exec: bool = False,
        ring_size: int = 0,
        wakes: bool = False,
    ) -> None:
        """Open the perf events that report on the recorded processes, and the ring buffers for their records.

        Args:
            pid: The process to record.
            options: Options of the recording.
            diagnostics: The recording's counters of problems.
            choose_scope: Function that chooses the perf events.
            ids: Identifiers shared with other collectors of the recording.
            selection: Further processes, including those that will match later.
            before_exec: True if pid will call exec, and only the new program is wanted.
            ring_size: Bytes of each processor's ring, a power of two; 0 to choose it by the sampling rate and
                the memory limit.
            wakes: True if the rings hold only records without samples, and the kernel wakes their reader when
                records arrive.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            NoSuchProcess: The process has ended.
            AccessDenied: The process may not be sampled.
        """
        self.source_id = ids.next_id()
        self.members = ProcessSet(pid, selection, options, TrackedProcesses(ids, options.subprocesses))
        self.handover = options.handover
        self.is_stopping = False
        self._wakes = wakes
        raise_file_limit(1 << 20)  # a descriptor for each thread and processor
        with contextlib.ExitStack() as closing:
            self.waiting = RecordWait(options, self.members, wakes)
            closing.callback(self.waiting.close)
            closing.callback(self.members.tracked.close)
            try:
                cpus, members = list_online_cpus(), self.members
                scope = choose_scope(pid, cpus[0], options, members.everything)
                rings = open_rings(cpus, ring_size or choose_ring_size(options, len(cpus)), bool(ring_size), wakes)
                closing.callback(rings.close)
                known = members.tracked.histories if scope.filtered else None
                self.reader = RingReader(rings, diagnostics, known)
                self.events = EventManager(scope, options, self.reader)
                closing.callback(self.events.close)
                members.tracked.filters = scope.filtered
                self.maker = BatchMaker(
                    rings, scope, members.tracked, options, diagnostics, self.source_id, members.excluded_pids
                )
                self.accounts = RecordAccounts(options, members, scope.event.user_only, self.events.endings)
                self.handover.on_window_end = self.accounts.note_clocks
                members.watch_rings(rings)
                members.track_processes(self.events.begin(members.selected_pids, members.children))
                self.accounts.start()
                if before_exec:
                    members.tracked.histories[pid].hide_mappings()
            except ProcessLookupError:
                raise NoSuchProcess(f"there is no process {pid}", "list processes with: ps -e") from None
            except PerfNotAllowed:
                raise
            except PermissionError:
                raise AccessDenied(f"process {pid} may not be looked at", f"try: pyprof doctor {pid}") from None
            self.closing = closing.pop_all()

    def take_samples(self, until_ns: int, others: SampleRecords = NO_SAMPLES, words: U64 | None = None) -> RingBatches:
        """Return the samples of perf's rings up to until_ns. The caller must release their memory by
        release_samples().

        Args:
            until_ns: The time.
            others: Samples of the same time from another ring buffer (of a BPF program).
            words: Memory of that ring buffer as 64-bit words.
        """
        self.waiting.note_ends()
        self.events.change_rates()
        found = self.events.scan(until_ns)
        taken = self.maker.convert_scan(found, others, words)
        self.events.took(found, self.maker.lost)
        return taken

    def discard_opening(self, begun_ns: int) -> None:
        """Discard the samples from before the recording began. Other records of that time, such as forks and
        mappings, are applied.
        """
        found = self.events.scan_opening(begun_ns)
        self.members.tracked.apply_records(found.others)
        self.members.note_scan(found)
        found.discard_records()

    def release_samples(self, found: Scan) -> None:
        """Release the ring memory of one reading after all its batches were unwound, and add new processes
        that match the user's selection.
        """
        members, untracked = self.members, self.maker.untracked
        members.note_scan(found)
        found.release_records()
        self.events.unwound(found, members.tracked.alive)
        self.maker.forget_untracked()
        if self.events.counting:
            untracked.update(
                members.add_matching(
                    untracked, self.events.add_process, self.reader.diagnostics, lambda: self.is_stopping
                )
            )
        members.tracked.forget_ended()

    def reopen_events(self) -> Silent:
        """Open perf events on processors that came online.

        Returns:
            The time in ns for which a processor had no event, by processor with a new event.
        """
        found = self.events.revive()
        if self._wakes:
            self.waiting.waiter.add_rings(self.reader.rings.owners.values())
        return found


class KernelSamples(Protocol):
    """The samples of a recording by one facility of the kernel: perf_events or a BPF program. KernelRecords
    has the recorded processes.

    Attributes:
        most_copy: Maximum number of stack bytes in a sample.
        hold_s: Maximum time in seconds for which samples wait for others before they are read as one batch
            (Cadence).
        young_wait_ns: The same maximum in nanoseconds while a process has just appeared.
        silent_flushes: Number of intervals of CollectOptions.flush_s without samples after which the
            collector yields an empty batch, if no consumer waits for one.
    """

    most_copy: int
    hold_s: float
    young_wait_ns: int
    silent_flushes: int

    def longest_wait_ns(self) -> int:
        """Return the time in nanoseconds after which perf's ring buffers could be full, so that they must be read."""

    def is_full(self) -> bool:
        """Return True if a ring buffer is filling faster than expected and must be read now."""
        return False

    def begin(self, at_ns: int) -> None:
        """Begin the recording at at_ns, and discard earlier samples in other ring buffers than those of perf_events."""
        return

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        """Yield the samples that were taken before until_ns as batches. Their memory is released after all of
        them were unwound.
        """

    def learn(self, feedback: Feedback) -> None:
        """Accept the feedback of the unwinding of a batch of these samples."""

    def threads(self) -> Iterable[ThreadInfo]:
        """Return threads with samples that the kernel's records do not name."""
        return ()

    def retire(self) -> None:
        """Drop what is stored about threads that had already ended when the previous window was closed."""
        return

    def stats(self) -> CollectorStats:
        """Return the statistics of the samples. Their notes say how they were taken."""

    def stop(self) -> None:
        """Make the next reading short, because the recording ends."""
        return


class KernelCollector:
    """A collector of samples that the kernel takes. It runs until the processes of the recording have ended
    or stop() is called.

    Attributes:
        records: The processes and the kernel's records about them.
        samples: The samples of one facility of the kernel.
        source_ids: Identifiers of its batches.
    """

    def __init__(self, records: KernelRecords, samples: KernelSamples, options: CollectOptions) -> None:
        """Create a collector from open records of the processes and their samples. close() closes both."""
        self.records, self.samples = records, samples
        self.source_ids = frozenset((records.source_id,))
        self._options = options
        self._leaving = self._has_new_code = False
        records.handover.samples_when_open = True
        records.handover.on_begin = self._begin_recording

    def _begin_recording(self) -> None:
        """Begin the accounting of processor time, and discard the samples from before the recording began.

        Opening takes seconds if there are many processes. Samples of that time would leave no room for those
        of the recording. Samples of waits are kept, because waits continue into the recording.
        """
        self.records.accounts.start()
        if self._options.running and not self._options.idle:
            self.records.discard_opening(self.records.handover.begun_ns)
        self.samples.begin(self.records.handover.begun_ns)

    def batches(self) -> Iterator[SampleBatch]:
        records, samples = self.records, self.samples
        cadence, handover = Cadence(self._options, samples.hold_s), records.handover
        handover.wake = records.waiting.waiter.wake
        if records.events.scope.processors:
            records.waiting.open_alarm(records.reader)
        handover.report_sampling()
        last = self._leaving = False
        begun_ns, end_ns = time.monotonic_ns(), 0
        while not last and not self._leaving:
            if self._has_new_code:
                cadence.restart()
                self._has_new_code = False
            hold_ns = min(cadence.wait_ns, self.longest_wait_ns())
            due_ns = min(begun_ns + hold_ns, time.monotonic_ns() + max(self._silent_ns(), FIRST_FLUSH_NS))
            records.waiting.wait_until(
                due_ns, lambda: records.is_stopping or samples.is_full(), records.events.change_rates
            )
            if self._leaving:
                break
            ends = records.is_stopping or not records.members.has_processes_left
            now = time.monotonic_ns()
            if ends:
                now = end_ns = end_ns or handover.ended_ns or now
                last = not handover.ends_window(end_ns)  # a late collector first closes the windows that are due
            elif handover.ends_window(now):  # reading the samples takes long on a busy machine
                records.accounts.note_clocks()
            elif now - begun_ns < hold_ns and now < handover.next_ns and not samples.is_full():
                yield records.maker.nothing
                continue
            spent_ns = time.thread_time_ns()
            until_ns = FOREVER_NS if last else handover.bound(now)
            yield from samples.read_batches(until_ns)
            begun_ns = min(until_ns, now)
            cadence.note_flush(time.thread_time_ns() - spent_ns)
            if not last and handover.acknowledge_flush(until_ns):
                yield records.maker.nothing

    def _silent_ns(self) -> int:
        """Return the time in ns without samples after which an empty batch is yielded."""
        flushes = 1 if self.records.handover.is_watched else self.samples.silent_flushes
        return round(1e9 * self._options.flush_s * flushes)

    def longest_wait_ns(self) -> int:
        """Return the maximum time in nanoseconds for which a sample may stay in the ring buffers, so that it
        is read together with later ones.
        """
        longest_ns = self.samples.longest_wait_ns()
        return min(longest_ns, self.samples.young_wait_ns) if self.records.members.tracked.young else longest_ns

    def yield_until(self, until_ns: int = FOREVER_NS) -> Iterator[SampleBatch]:
        """Yield the samples that were taken before until_ns, without waiting for others. It is for a caller
        that itself waits for the right time.
        """
        return self.samples.read_batches(until_ns)

    def learn(self, feedback: Feedback) -> None:
        self.samples.learn(feedback)
        self.records.waiting.look = feedback.look
        self._has_new_code |= feedback.has_new_code

    def leave_samples(self, elsewhere: Elsewhere) -> None:
        """End the iteration of batches() after the samples that are in the ring buffers now. From then on
        another collector samples some threads by stops.

        yield_until() still works, and batches() may be called again.

        Args:
            elsewhere: Function that returns a mask of the samples whose threads the other collector samples.
        """
        self._leaving = True
        self.records.maker.elsewhere = elsewhere
        self.records.events.forget()

    @property
    def alive(self) -> list[int]:
        """Pids of the recorded processes that have not ended."""
        return self.records.members.alive

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call. Some may have ended."""
        return self.records.members.take_new_processes()

    def end_now(self) -> None:
        """End the iteration of batches() with the samples until this moment, because another source becomes
        the main source.
        """
        self.records.maker.end_ns = time.monotonic_ns()
        self.stop()

    def threads(self) -> list[ThreadInfo]:
        own = self.records.members.tracked.names.describe_threads(self.records.maker.sampled)
        known = {info.key: info for info in (*self.samples.threads(), *own)}
        return [known[key] for key in sorted(known)]

    def retire(self) -> None:
        self.records.members.tracked.names.retire(self.records.maker.sampled)
        self.records.accounts.retire()
        self.samples.retire()

    def stats(self) -> CollectorStats:
        found, records = self.samples.stats(), self.records
        by, *more = found.notes
        never_stopped = (NEVER_STOPPED,) if records.maker.elsewhere is None else ()
        notes = (by, *never_stopped, *more, *records.accounts.describe_offline(), *records.members.refused)
        return replace(found, notes=notes, accounts=records.accounts.result())

    def stop(self) -> None:
        self.records.is_stopping = True
        self.samples.stop()
        self.records.waiting.waiter.wake()

    def close(self) -> None:
        self.records.closing.close()


USER_ONLY = make_note("kernel_not_sampled")


class PerfSamples(KernelSamples):
    """The samples of a recording that perf_events take."""

    most_copy = MOST_STACK
    hold_s = 0.0
    young_wait_ns = 2_000_000_000
    silent_flushes = 1

    def __init__(self, records: KernelRecords, options: CollectOptions) -> None:
        self._records, self._events = records, records.events
        self._decimation = Decimation(options.stride)
        self._absent = AbsentPages(MOST_STACK)
        records.accounts.lost = self._count_lost
        judges = records.accounts.is_on and not self._events.scope.processors and options.thread is None
        self._starvation = Starvation(options.rate_hz) if judges else None

    def _count_lost(self) -> LostSamples:
        """Return the number of samples that were lost because perf's ring buffers were full.

        If events are on processors and no other collector stops threads, samples can be missing for no other
        reason.
        """
        events = self._events
        return LostSamples(events.lost, events.scope.processors and self._records.accounts.is_alone)

    def longest_wait_ns(self) -> int:
        judged_ns = self._starvation.check_interval_ns if self._starvation is not None else FOREVER_NS
        return min(self._events.longest_wait_ns(), judged_ns)

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        records, events = self._records, self._events
        records.accounts.note_offline(records.reopen_events())
        taken = records.take_samples(until_ns)
        records.accounts.read_times(until_ns)
        if until_ns == FOREVER_NS:
            events.close()
        for batch in map(self._decimation.thin_batch, taken.running):
            records.accounts.count_batch(batch)
            yield batch
        births = sum(record.kind == FORK for record in taken.scan.others)
        totals = records.accounts.totals()
        if self._starvation is not None and self._starvation.is_starved(births, totals.due_ns, totals.seen_ns):
            events.multiply(records.members.tracked.alive)
        records.release_samples(taken.scan)

    def learn(self, feedback: Feedback) -> None:
        self._events.learn(feedback)
        self._absent.learn(feedback)

    def stats(self) -> CollectorStats:
        ticks, event = self._events.ticks, self._events.scope.event
        notes = (make_note("by_events", event=event.name), *((USER_ONLY,) if event.user_only else ()))
        return CollectorStats(
            ticks=round(ticks.used), ticking_ns=ticks.ticking_ns, skipped=self._records.maker.lost, notes=notes
        )
