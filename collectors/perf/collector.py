"""A collector that uses the kernel's perf_events: no thread is ever stopped.

The kernel copies registers and stack of a running thread into rings. Batches are views of the rings: nothing is copied
before it is unwound, and a ring's room is released when the next batch is requested. Records in the same rings report
mappings.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.cpu_accounts import LostSamples
from pyprof.collectors.linux.confinement import raise_file_limit
from pyprof.collectors.perf.batch_maker import BatchMaker, Elsewhere, RingBatches
from pyprof.collectors.perf.cpu_wide_events import Scope, choose_scope
from pyprof.collectors.perf.event_attributes import MOST_STACK, PerfNotAllowed
from pyprof.collectors.perf.event_manager import EventManager
from pyprof.collectors.perf.event_set import FOREVER_NS, RingReader
from pyprof.collectors.perf.process_set import ProcessSet, RecordAccounts
from pyprof.collectors.perf.processes_from_records import TrackedProcesses
from pyprof.collectors.perf.random_sampling import Decimation, Starvation
from pyprof.collectors.perf.records import FORK, U64, SampleRecords, Scan, list_online_cpus, open_rings
from pyprof.collectors.perf.stack_copy_size import AbsentPages, choose_ring_size
from pyprof.collectors.perf.waiter import FIRST_FLUSH_NS, Cadence, RecordWait
from pyprof.collectors.targets.process_selection import Selection
from pyprof.collectors.thread_start_times import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.model.profile import ThreadInfo
from pyprof.model.reason_lookup import Note, make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

if TYPE_CHECKING:
    from pyprof.collectors.perf.cpu_wide_events import Silent

USER_ONLY = make_note("kernel_not_sampled")
NEVER_STOPPED = make_note("never_stopped")


class PerfCollector:
    """A collector that samples a process, with its children if options.subprocesses is set, until they end or stop() is
    called.

    It takes a sample each 1/rate seconds of a thread's own time on a processor, so threads that do not run cost
    nothing.

    Attributes:
        source_id: Identifier of its batches.
        members: The processes of the recording.
        maker: Converter of records to batches.
        waiting: Its waits between two readings of the rings.
        accounts: Processor time of the recording, with the sampling times of other collectors.
        handover: The flushes of the recording.
        most_copy: Maximum number of stack bytes in a sample.
        wakes: True if the rings hold no samples, and the kernel wakes the collector when records arrive.
        hold_s: See Cadence.
        young_wait_ns: Maximum time for which samples wait for others if a process is young.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        NoSuchProcess: The process has ended.
        AccessDenied: The process may not be sampled.
    """

    most_copy = MOST_STACK
    wakes = False
    hold_s = 0.0
    young_wait_ns = 2_000_000_000

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        ring_size: int = 0,
        ids: Identities | None = None,
        selection: Selection | None = None,
        before_exec: bool = False,
    ) -> None:
        """Open the perf events of a process.

        Args:
            pid: The process.
            ring_size: Bytes of each processor's ring, a power of two; 0 chooses it by the rate and the memory limit.
            ids: Identifiers shared with other collectors of the recording.
            selection: Further processes, including those that will match later.
            before_exec: True if pid will call exec, and only the new program is wanted.
        """
        ids = ids or Identities()
        self.source_id = ids.next_id()
        self.members = ProcessSet(pid, selection, options, TrackedProcesses(ids, options.subprocesses))
        self.handover = options.handover
        self._options = options
        self._decimation = Decimation(options.stride)
        self._stopping = self._leaving = False
        self._has_new_code = False
        self._absent = AbsentPages(MOST_STACK)
        self._starvation: Starvation | None = None
        raise_file_limit(1 << 20)  # a descriptor for each thread and processor
        with contextlib.ExitStack() as undo:
            self.waiting = RecordWait(options, self.members, self.wakes)
            undo.callback(self.waiting.close)
            undo.callback(self.members.tracked.close)
            try:
                self._open(pid, ring_size, diagnostics, undo)
                if before_exec:
                    self.members.tracked.histories[pid].hide_mappings()
            except ProcessLookupError:
                raise NoSuchProcess(f"there is no process {pid}", "list processes with: ps -e") from None
            except PerfNotAllowed:
                raise
            except PermissionError:
                raise AccessDenied(f"process {pid} may not be looked at", f"try: pyprof doctor {pid}") from None
            self._undo = undo.pop_all()

    def _open(self, pid: int, size: int, diagnostics: Diagnostics, undo: contextlib.ExitStack) -> None:
        """Open the ring buffers and the perf events; `undo` closes them."""
        cpus = list_online_cpus()
        options, members = self._options, self.members
        scope = self._scope(pid, cpus[0])
        rings = open_rings(cpus, size or choose_ring_size(options, len(cpus)), bool(size), self.wakes)
        undo.callback(rings.close)
        known = members.tracked.histories if scope.filtered else None
        self._reader = RingReader(rings, diagnostics, known)
        self._events = EventManager(scope, options, self._reader)
        undo.callback(self._events.close)
        members.tracked.filters = scope.filtered
        self.maker = BatchMaker(
            rings, scope, members.tracked, options, diagnostics, self.source_id, members.excluded_pids
        )
        self.accounts = RecordAccounts(options, members, scope.event.user_only, self._lost, self._events.endings)
        self.handover.samples_when_open = True
        self.handover.on_window_end = self.accounts.note_clocks
        self.handover.on_begin = self._begin_recording
        members.watch_rings(rings)
        if self.accounts.is_on and not scope.processors and options.thread is None:
            self._starvation = Starvation(options.rate_hz)
        self._begin()

    def _scope(self, pid: int, cpu: int) -> Scope:
        return choose_scope(pid, cpu, self._options, self.members.everything)

    def _lost(self) -> LostSamples:
        """Return the number of samples that were lost because perf's ring buffers were full.

        If events are on processors and no collector stops threads, all missing samples were lost in this way.
        """
        return LostSamples(self._events.lost, self._events.scope.processors and self.accounts.is_alone)

    def _longest_wait_ns(self) -> int:
        """Return the number of nanoseconds until perf's ring buffers can be full at the earliest."""
        return self._events.longest_wait_ns()

    def _full(self) -> bool:
        """Return True if a ring buffer is filling faster than expected and must be read now."""
        return False

    def _begin(self) -> None:
        """Open perf events on all existing threads or processors."""
        self.members.track_processes(self._events.begin(self.members.selected_pids, self.members.children))
        self.accounts.start()

    def _begin_recording(self) -> None:
        """Begin to account for time, and discard the samples of the opening.

        Opening takes seconds if there are many processes. Its samples would leave no room for those of the recording.
        Samples of waits are kept, because waits continue into the recording.
        """
        self.accounts.start()
        if not self._options.running or self._options.idle:
            return
        found = self._events.scan_opening(self.handover.begun_ns)
        self.members.tracked.apply_records(found.others)
        self.members.note_scan(found)
        found.discard_records()

    def batches(self) -> Iterator[SampleBatch]:
        cadence, handover = Cadence(self._options, self.hold_s), self.handover
        handover.wake = self.waiting.waiter.wake
        if self._events.scope.processors:
            self.waiting.open_alarm(self._reader)
        handover.report_sampling()
        last = self._leaving = False
        begun_ns, end_ns = time.monotonic_ns(), 0
        while not last and not self._leaving:
            if self._has_new_code:
                cadence.restart()
                self._has_new_code = False
            hold_ns = min(cadence.wait_ns, self._patience_ns())
            due_ns = min(begun_ns + hold_ns, time.monotonic_ns() + max(self._silent_ns(), FIRST_FLUSH_NS))
            self.waiting.wait_until(due_ns, lambda: self._stopping or self._full(), self._events.change_rates)
            if self._leaving:
                break
            ends = self._stopping or not self.members.has_processes_left
            now = time.monotonic_ns()
            if ends:
                now = end_ns = end_ns or handover.ended_ns or now
                last = not handover.ends_window(end_ns)  # a late collector first closes the windows that are due
            elif now - begun_ns < hold_ns and now < handover.next_ns and not self._full():
                yield self.maker.nothing
                continue
            spent_ns = time.thread_time_ns()
            until_ns = FOREVER_NS if last else handover.bound(now)
            yield from self._hand_out(until_ns)
            begun_ns = min(until_ns, now)
            cadence.note_flush(time.thread_time_ns() - spent_ns)
            if not last and handover.acknowledge_flush(until_ns):
                yield self.maker.nothing

    def _silent_ns(self) -> int:
        """Return the time in ns without samples after which an empty batch is yielded."""
        return round(1e9 * self._options.flush_s)

    def _patience_ns(self) -> int:
        """Return the maximum time in nanoseconds that a sample stays in perf's ring buffers, so that it is read
        together with later ones.
        """
        patience_ns = self._longest_wait_ns()
        if self.members.tracked.young:
            patience_ns = min(patience_ns, self.young_wait_ns)
        if self._starvation is not None:
            patience_ns = min(patience_ns, self._starvation.check_interval_ns)
        return patience_ns

    def yield_until(self, until_ns: int = FOREVER_NS) -> Iterator[SampleBatch]:
        """Yield the samples that were taken before until_ns, without waiting. It is for a caller that has its own
        wait.
        """
        self.waiting.note_ends()
        self._events.change_rates()
        yield from self._hand_out(until_ns)

    def take_samples(self, until_ns: int, switched: SampleRecords, words: U64) -> RingBatches:
        """Return the samples of perf's ring buffers up to a time, together with samples of the same time from another
        ring buffer (`switched`). The caller must call release_samples() afterwards.
        """
        self.waiting.note_ends()
        self._events.change_rates()
        found = self._events.scan(until_ns)
        taken = self.maker.convert_scan(found, switched, words)
        self._events.took(found, self.maker.lost)
        return taken

    def release_samples(self, found: Scan) -> None:
        """Release the ring memory of one reading after all its batches were unwound, and look for new processes."""
        members, untracked = self.members, self.maker.untracked
        members.note_scan(found)
        found.release_records()
        self._events.unwound(found, members.tracked.alive)
        self.maker.forget_untracked()
        if self._events.counting:
            diagnostics = self._reader.diagnostics
            untracked.update(
                members.add_matching(untracked, self._events.add_process, diagnostics, lambda: self._stopping)
            )
        members.tracked.forget_ended()

    def _hand_out(self, until_ns: int) -> Iterator[SampleBatch]:
        """Yield the samples in perf's rings that were taken before until_ns, and release their memory after they were
        unwound.
        """
        self._revive()
        found = self._events.scan(until_ns)
        self._events.took(found, self.maker.lost)
        self.accounts.read_times(until_ns)
        if until_ns == FOREVER_NS:
            self._events.close()
        for batch in map(self._decimation.thin_batch, self.maker.batches(found)):
            self.accounts.count_batch(batch)
            yield batch
        births = sum(record.kind == FORK for record in found.others)
        if self._starvation is not None and self._starvation.is_starved(births, *self.accounts.totals()):
            self._events.multiply(self.members.tracked.alive)
        self.release_samples(found)

    def _revive(self) -> None:
        """Open perf events on processors that came online, and note processors that had none for some time."""
        self.accounts.note_offline(self._revived())

    def _revived(self) -> Silent:
        found = self._events.revive()
        if self.wakes:
            self.waiting.waiter.add_rings(self._reader.rings.owners.values())
        return found

    def learn(self, feedback: Feedback) -> None:
        self._events.learn(feedback)
        self._absent.learn(feedback)
        self.waiting.look = feedback.look
        self._has_new_code |= feedback.has_new_code

    def leave_samples(self, elsewhere: Elsewhere) -> None:
        """End the iteration of batches() after the samples that are in perf's ring buffers now, because another
        collector starts to stop some threads for their samples.

        yield_until() still works, and batches() may be called again.

        Args:
            elsewhere: Returns a mask of the samples whose threads the other collector samples.
        """
        self._leaving = True
        self.maker.elsewhere = elsewhere
        self._events.forget()

    @property
    def source_ids(self) -> frozenset[int]:
        return frozenset((self.source_id,))

    @property
    def alive(self) -> list[int]:
        """The recorded processes that have not ended."""
        return self.members.alive

    def take_new_processes(self) -> set[int]:
        """Return processes that appeared or called exec since the last call. Some may have ended."""
        return self.members.take_new_processes()

    def end_now(self) -> None:
        """End the iteration of batches() with the samples until this moment, because another collector takes over."""
        self.maker.end_ns = time.monotonic_ns()
        self.stop()

    def threads(self) -> list[ThreadInfo]:
        return self.members.tracked.names.describe_threads(self.maker.sampled)

    def retire(self) -> None:
        self.members.tracked.names.retire(self.maker.sampled)
        self.accounts.retire()

    def stats(self) -> CollectorStats:
        ticks = self._events.ticks
        return CollectorStats(
            ticks=round(ticks.used),
            ticking_ns=ticks.ticking_ns,
            skipped=self.maker.lost,
            notes=self._notes(),
            accounts=self.accounts.result(),
        )

    def _notes(self) -> tuple[Note, ...]:
        event = self._events.scope.event
        never_stopped = (NEVER_STOPPED,) if self.maker.elsewhere is None else ()
        user_only = (USER_ONLY,) if event.user_only else ()
        return (
            make_note("by_events", event=event.name),
            *never_stopped,
            *user_only,
            *self.accounts.describe_offline(),
            *self.members.refused,
        )

    def stop(self) -> None:
        self._stopping = True
        self.waiting.waiter.wake()

    def close(self) -> None:
        self._undo.close()


__all__ = ["PerfCollector", "PerfNotAllowed"]
