"""A collector of samples that the kernel takes, its records about the recorded processes, and perf_events' samples.

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
"""Function (pid, processor, options, everything) that chooses the perf events of a recording."""


class KernelRecords:
    """The processes of a recording, the perf events that report on them, the rings of these events, and their waits.

    Attributes:
        source_id: Identifier of the batches.
        members: The processes of the recording.
        events: The perf events.
        reader: Reader of their rings.
        maker: Converter of records to batches.
        waiting: The waits between two readings of the rings.
        accounts: Processor time of the recording, with the sampling times of other collectors.
        handover: The flushes of the recording.
        is_stopping: True if no further processes are wanted, because the recording ends.
        closing: Closes all of it. Its functions are called once, the last one first.
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
        """Open the perf events and the rings.

        Args:
            pid: The process to record.
            options: Options of the recording.
            diagnostics: Counts problems.
            choose_scope: Chooses the perf events.
            ids: Identifiers shared with other collectors of the recording.
            selection: Further processes, including those that will match later.
            before_exec: True if pid will call exec, and only the new program is wanted.
            ring_size: Bytes of each processor's ring, a power of two; 0 chooses it by the rate and the memory limit.
            wakes: True if the rings hold no samples, and the kernel wakes their reader when records arrive.

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
        """Return the samples of perf's rings up to a time. The caller must call release_samples().

        Args:
            until_ns: The time.
            others: Samples of that time from another ring buffer.
            words: Memory of that buffer.
        """
        self.waiting.note_ends()
        self.events.change_rates()
        found = self.events.scan(until_ns)
        taken = self.maker.convert_scan(found, others, words)
        self.events.took(found, self.maker.lost)
        return taken

    def discard_opening(self, begun_ns: int) -> None:
        """Discard the samples from before the recording has begun. What the records report is noted."""
        found = self.events.scan_opening(begun_ns)
        self.members.tracked.apply_records(found.others)
        self.members.note_scan(found)
        found.discard_records()

    def release_samples(self, found: Scan) -> None:
        """Release the ring memory of one reading after all its batches were unwound, and look for new processes."""
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
            Processors with a new event, and for how long each had none.
        """
        found = self.events.revive()
        if self._wakes:
            self.waiting.waiter.add_rings(self.reader.rings.owners.values())
        return found


class KernelSamples(Protocol):
    """The samples that one facility of the kernel takes of the processes in a recording's KernelRecords.

    Attributes:
        most_copy: Maximum number of stack bytes in a sample.
        hold_s: See Cadence.
        young_wait_ns: Maximum time for which samples wait for others if a process is young.
        silent_flushes: Number of flush_s without samples after which the collector yields an empty batch, if no
            consumer waits for one.
    """

    most_copy: int
    hold_s: float
    young_wait_ns: int
    silent_flushes: int

    def longest_wait_ns(self) -> int:
        """Return the number of nanoseconds until perf's ring buffers can be full at the earliest."""

    def is_full(self) -> bool:
        """Return True if a ring buffer is filling faster than expected and must be read now."""
        return False

    def begin(self, at_ns: int) -> None:
        """Begin the recording now, at at_ns, and discard earlier samples that are not in perf's rings."""
        return

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        """Yield the samples that were taken before until_ns, and release their memory after they were unwound."""

    def learn(self, feedback: Feedback) -> None:
        """Accept the feedback about a batch of these samples."""

    def threads(self) -> Iterable[ThreadInfo]:
        """Return threads that were sampled and are unknown to the kernel's records."""
        return ()

    def retire(self) -> None:
        """Drop what is stored about threads that had already ended when the previous window was closed."""
        return

    def stats(self) -> CollectorStats:
        """Return the statistics of the samples. Their notes say how they were taken."""

    def stop(self) -> None:
        """Let the next reading be short, because the recording ends."""
        return


class KernelCollector:
    """A collector of samples by the kernel until the processes of the recording end or stop() is called.

    Attributes:
        records: The processes and the kernel's records about them.
        samples: The samples.
        source_ids: Identifiers of its batches.
    """

    def __init__(self, records: KernelRecords, samples: KernelSamples, options: CollectOptions) -> None:
        """Collect samples of processes whose records are open. close() closes the records."""
        self.records, self.samples = records, samples
        self.source_ids = frozenset((records.source_id,))
        self._options = options
        self._leaving = self._has_new_code = False
        records.handover.samples_when_open = True
        records.handover.on_begin = self._begin_recording

    def _begin_recording(self) -> None:
        """Begin to account for time, and discard the samples of the opening.

        Opening takes seconds if there are many processes. Its samples would leave no room for those of the recording.
        Samples of waits are kept, because waits continue into the recording.
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
        """Return the maximum time in nanoseconds that a sample stays in perf's ring buffers, so that it is read
        together with later ones.
        """
        longest_ns = self.samples.longest_wait_ns()
        return min(longest_ns, self.samples.young_wait_ns) if self.records.members.tracked.young else longest_ns

    def yield_until(self, until_ns: int = FOREVER_NS) -> Iterator[SampleBatch]:
        """Yield the samples that were taken before until_ns, without waiting. It is for a caller that has its own
        wait.
        """
        return self.samples.read_batches(until_ns)

    def learn(self, feedback: Feedback) -> None:
        self.samples.learn(feedback)
        self.records.waiting.look = feedback.look
        self._has_new_code |= feedback.has_new_code

    def leave_samples(self, elsewhere: Elsewhere) -> None:
        """End the iteration of batches() after the samples that are in perf's ring buffers now, because another
        collector starts to stop some threads for their samples.

        yield_until() still works, and batches() may be called again.

        Args:
            elsewhere: Returns a mask of the samples whose threads the other collector samples.
        """
        self._leaving = True
        self.records.maker.elsewhere = elsewhere
        self.records.events.forget()

    @property
    def alive(self) -> list[int]:
        """The recorded processes that have not ended."""
        return self.records.members.alive

    def take_new_processes(self) -> set[int]:
        """Return processes that appeared or called exec since the last call. Some may have ended."""
        return self.records.members.take_new_processes()

    def end_now(self) -> None:
        """End the iteration of batches() with the samples until this moment, because another collector takes over."""
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
    """The samples of perf_events in the rings of a recording's KernelRecords."""

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

        If events are on processors and no collector stops threads, all missing samples were lost in this way.
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
        if self._starvation is not None and self._starvation.is_starved(births, *records.accounts.totals()):
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
