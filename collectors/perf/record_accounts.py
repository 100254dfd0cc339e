"""The processor time of a recording whose processes are known from kernel records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyprof.collectors.cpu_accounts import Account, Accounts, EndedThreadTimes, LostSamples
from pyprof.collectors.perf.event_set import FOREVER_NS
from pyprof.collectors.perf.process_set import ProcessSet
from pyprof.model.reasons import Note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyprof.collectors.perf.cpu_events import Silent


class RecordAccounts:
    """The processor time of each recorded process, as the kernel accounts it and as samples stand for it.

    Attributes:
        slots: Returns (kept, missed) sampling times of other collectors.
        is_on: True if the kernel's processor time is read.
    """

    def __init__(
        self,
        options: CollectOptions,
        members: ProcessSet,
        user_only: bool,
        lost: Callable[[], LostSamples],
        endings: Callable[[], EndedThreadTimes | None],
    ) -> None:
        """Create the accounts of a recording that has not begun.

        Args:
            options: Options of the recording.
            members: The processes of the recording.
            user_only: True if samples show no time in the kernel.
            lost: Returns the sampling times whose records were lost.
            endings: Returns the estimated time of threads after their last records.
        """
        self.slots: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._options = options
        self._members = members
        self._lost = lost
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
        """Return the number of sampling times whose records were lost, including those of processors that were
        offline.
        """
        if not self._offline:
            return self._lost()
        from pyprof.collectors.perf.cpu_events import count_missed_samples

        return count_missed_samples(self._offline, self._options.rate_hz, self._lost())

    def _find_endings(self) -> EndedThreadTimes | None:
        """Return the estimated time of threads after their last records, or None if some samples are taken by stops."""
        return self._endings() if self.is_alone else None

    def start(self) -> None:
        """Begin to account for time now."""
        self._accounts.start(self._members.tracked.roots)

    def note_clocks(self) -> None:
        """Note the kernel's processor times at the end of a window. Any thread may call this."""
        self._accounts.note_clocks()

    def note_offline(self, found: Silent) -> None:
        """Add the time in which processors were offline, in nanoseconds by processor."""
        for cpu, ns in found.items():
            self._offline[cpu] = self._offline.get(cpu, 0) + ns

    def count_batch(self, batch: SampleBatch) -> None:
        """Count the samples of a batch in the time that samples account for, by process.

        Args:
            batch: Samples of the recorded processes, by this collector or by another one of the recording.
        """
        self._accounts.count_batch(batch, self._members.tracked.root_of)

    def read_times(self, until_ns: int) -> None:
        """Read the kernel's processor times of the recording if they are due, or if the window or the recording
        ends.
        """
        force = until_ns == FOREVER_NS or self._options.handover.ends_window(until_ns)
        self._accounts.read_accounts(self._members.tracked.roots, force, self.slots())

    def totals(self) -> tuple[int, int]:
        """Return the nanoseconds that samples should stand for, and those that they stand for."""
        return self._accounts.totals()

    def retire(self) -> None:
        self._accounts.retire(self._members.tracked.roots)

    def result(self) -> Mapping[int, Account]:
        """Return the account of each process that was selected."""
        return self._accounts.result()

    def describe_offline(self) -> tuple[Note, ...]:
        """Return a note for the summary if a processor was offline."""
        if not self._offline:
            return ()
        from pyprof.collectors.perf.cpu_events import describe_missed_samples

        return (describe_missed_samples(self._offline),)
