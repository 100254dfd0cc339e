"""The processes of a perf_events or BPF recording: the selected ones, later matches and their children, and
their processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyprof.collectors.cpu_time_accounting import Account, Accounts, EndedThreadTimes, LostSamples, TotalTimes
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.collectors.perf.per_thread_events import FOREVER_NS
from pyprof.collectors.perf.processes_from_records import ProcessEvents, TrackedProcesses
from pyprof.collectors.perf.ring_buffer_records import Rings, Scan
from pyprof.collectors.targets.process_selection import Selection
from pyprof.model.loss_reason_texts import Note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

if TYPE_CHECKING:
    from pyprof.collectors.perf.cpu_wide_events import Silent


class ProcessSet:
    """The set of processes of a perf_events or BPF recording.

    Attributes:
        tracked: State of the processes according to the kernel's records.
        everything: True if all processes of the machine are recorded.
        joined: Function to call with the pids of processes that match the user's selection later.
        has_new_processes: True if the last call of take_new_processes() found something.
    """

    def __init__(
        self, pid: int, selection: Selection | None, options: CollectOptions, tracked: TrackedProcesses
    ) -> None:
        """Create the set of processes that perf_events record.

        Args:
            pid: The selected process.
            selection: Further processes, including those that will match later.
            options: Options of the recording.
            tracked: State of the processes.
        """
        self.tracked = tracked
        self.everything = selection is not None and selection.everything
        self.joined: Callable[[list[int]], None] = lambda pids: None
        self.has_new_processes = False
        self._pid = pid
        self._selection = selection
        self._children = options.subprocesses
        self._handover = options.handover
        self._news: ProcessEvents | None = None
        self._fresh: set[int] = set()
        self._asked = False

    @property
    def selected_pids(self) -> dict[int, None]:
        """Return the pids of the processes that the user selected, in their order, as keys of a dict."""
        return dict.fromkeys([self._pid, *(self._selection.pids if self._selection else ())])

    @property
    def excluded_pids(self) -> set[int]:
        """Pids that are never recorded: those of the profiler's own processes, and those that may not be read."""
        own = procfs.own_pids()
        return own | self._selection.ours | self._selection.refused_pids if self._selection else own

    def children(self) -> list[int]:
        """Return the existing children of the selected processes; empty if children are not recorded."""
        return list(find_descendants(self.selected_pids)) if self._children else []

    def watch_rings(self, rings: Rings) -> None:
        """Start to look for forks and execs in the records of these perf rings."""
        children = self._children or self.everything
        self._news = ProcessEvents(rings, self._is_sampled, children, self.tracked.files.read_ahead)

    def track_processes(self, pids: list[int]) -> None:
        """Start to track the mappings, threads and names of processes.

        Raises:
            ProcessLookupError: The selected process has ended.
            PermissionError: The selected process may not be read.
        """
        for pid in pids:
            self._handover.steps += 1
            try:
                self.tracked.track_process(pid)
            except (ProcessLookupError, PermissionError):
                if pid == self._pid and not self.everything:
                    raise
        self._fresh.update(pids)

    def add_matching(
        self,
        excluded: set[int],
        attach: Callable[[int], None],
        diagnostics: Diagnostics,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Add all processes that match the user's selection now, until is_over() returns True.

        Args:
            excluded: Pids of processes that need not be checked again.
            attach: Function that opens events on a process.
            diagnostics: The recording's counters of problems, here of processes that may not be read.
            is_over: Function that returns True if the recording ends.

        Yields:
            Pids of matching processes that may not be read.
        """
        if self._selection is None or self.everything or is_over():
            return
        for pid in self._selection.find_new(self.tracked.histories.keys() | excluded):
            if is_over():
                return
            self._handover.steps += 1
            try:
                attach(pid)
                self.tracked.add_process(pid)
                self._fresh.add(pid)
                self.joined([pid])
            except (ProcessLookupError, PermissionError):
                diagnostics.count("process_not_permitted")
                yield pid

    @property
    def alive(self) -> list[int]:
        """Pids of the recorded processes that have not ended."""
        return list(self.tracked.alive)

    def note_scan(self, found: Scan) -> None:
        """Look for processes with new code in the records of one reading of perf's ring buffers, before the
        records are released. Nothing is done until take_new_processes() was called for the first time.
        """
        if self._news is not None and self._asked:
            self._fresh |= self._news.note_scan(found)

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or run new code since the last call. Some may have ended."""
        self._asked = True
        if self._news is not None:
            self._fresh |= self._news.take_reported_pids()
        fresh, self._fresh = self._fresh, set()
        self.has_new_processes = bool(fresh)
        return fresh

    def follows_children(self, pid: int) -> bool:
        """Return True if a process is recorded, because it was selected or is a child of a recorded one. The
        record of its fork may still be unread.
        """
        return self._news.is_recorded(pid) if self._news is not None else self._is_sampled(pid)

    @property
    def _lasting(self) -> bool:
        return self._selection is not None and self._selection.lasting

    def _is_sampled(self, pid: int) -> bool:
        ours = self._children or self._lasting or pid in self._only
        return self.everything or (ours and pid in self.tracked.alive)

    @property
    def _only(self) -> tuple[int, ...]:
        return self._selection.pids if self._selection is not None else (self._pid,)

    @property
    def has_processes_left(self) -> bool:
        """True if a process to sample is left, or may appear later."""
        if self._lasting:
            return True
        if self._children:
            return bool(self.tracked.alive)
        return any(pid in self.tracked.alive for pid in self._only)

    @property
    def refused(self) -> tuple[Note, ...]:
        """Notes for the summary, one for each reason why processes cannot be recorded."""
        return self._selection.refused if self._selection else ()


class RecordAccounts:
    """The processor time of each recorded process, as the kernel accounts it and as samples stand for it.

    Attributes:
        slots: Function that returns the numbers of (kept, missed) sampling times of other collectors.
        lost: Function that returns the sampling times whose records were lost.
        is_on: True if the kernel's processor time is read.
    """

    def __init__(
        self,
        options: CollectOptions,
        members: ProcessSet,
        user_only: bool,
        endings: Callable[[], EndedThreadTimes | None],
    ) -> None:
        """Create the accounts of processor time for a recording that has not begun.

        Args:
            options: Options of the recording.
            members: The processes of the recording.
            user_only: True if samples show no time in the kernel.
            endings: Function that returns the estimated time of ended threads after their last records.
        """
        self.slots: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.lost: Callable[[], LostSamples] = lambda: LostSamples(0, True)
        self._options = options
        self._members = members
        self._endings = endings
        self._offline: Silent = {}
        all_but = (lambda: members.excluded_pids) if members.everything else None
        self._accounts = Accounts(options, all_but, user_only, self._count_lost, self._find_endings)
        self.is_on = self._accounts.on

    @property
    def is_alone(self) -> bool:
        """True if no other collector takes samples of the recording."""
        return self.slots() == (0, 0)

    def _count_lost(self) -> LostSamples:
        """Return the number of sampling times whose records were lost, including sampling times of processors
        that were offline.
        """
        if not self._offline:
            return self.lost()
        from pyprof.collectors.perf.cpu_wide_events import count_missed_samples

        return count_missed_samples(self._offline, self._options.rate_hz, self.lost())

    def _find_endings(self) -> EndedThreadTimes | None:
        """Return the estimated time that threads ran after their last records. Return None if another
        collector takes some of the samples by stops.
        """
        return self._endings() if self.is_alone else None

    def start(self) -> None:
        """Start to compare, for each recorded process, the processor time that the kernel counts with the time that
        samples stand for.
        """
        self._accounts.start(self._members.tracked.roots)

    def note_clocks(self) -> None:
        """Read only the processor-time clocks of the recorded processes, at the end of a window. Any thread
        may call this.
        """
        self._accounts.note_clocks()

    def note_offline(self, found: Silent) -> None:
        """Add the time for which processors were offline; `found` has it in nanoseconds by processor."""
        for cpu, ns in found.items():
            self._offline[cpu] = self._offline.get(cpu, 0) + ns

    def count_batch(self, batch: SampleBatch) -> None:
        """Add the time that the samples of a batch stand for to the accounts of their processes.

        Args:
            batch: Samples of the recorded processes, by this collector or by another one of the recording.
        """
        self._accounts.count_batch(batch, self._members.tracked.root_of)

    def read_times(self, until_ns: int) -> None:
        """Read the kernel's processor times of the recorded processes if that is due. It is always due when a
        window or the recording ends at until_ns.
        """
        force = until_ns == FOREVER_NS or self._options.handover.ends_window(until_ns)
        self._accounts.read_accounts(self._members.tracked.roots, force, self.slots())

    def totals(self) -> TotalTimes:
        """Return the sums of processor time over all recorded processes."""
        return self._accounts.totals()

    def retire(self) -> None:
        self._accounts.retire(self._members.tracked.roots)

    def result(self) -> Mapping[int, Account]:
        """Return the account of processor time of each selected process with its children, by pid."""
        return self._accounts.result()

    def describe_offline(self) -> tuple[Note, ...]:
        """Return a note for the summary if a processor was offline."""
        if not self._offline:
            return ()
        from pyprof.collectors.perf.cpu_wide_events import describe_missed_samples

        return (describe_missed_samples(self._offline),)
