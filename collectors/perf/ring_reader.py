"""A reader of the rings: their records up to a time, in order of time."""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.collectors.perf.event_set import Fork, forks_of
from pyprof.collectors.perf.records import Scan, scan_ring
from pyprof.collectors.perf.ring import Rings
from pyprof.diagnostics import Diagnostics
from pyprof.records import dataclass

FOREVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class RingReader:
    """A reader of all perf rings. A ring's room is free only when the Scan releases it.

    Attributes:
        rings: The rings.
        diagnostics: Counts broken rings.
        recorded_pids: Pids of the recording, or None if records of other processes are wanted too.
    """

    rings: Rings
    diagnostics: Diagnostics
    recorded_pids: Mapping[int, object] | None = None

    def scan_rings(self, until_ns: int) -> Scan:
        return self._scan(
            Scan(recorded_pids=None if self.recorded_pids is None else self.recorded_pids.keys()), until_ns
        )

    def _scan(self, found: Scan, until_ns: int) -> Scan:
        for ring in self.rings.rings.values():
            scan_ring(ring, self.rings.words, until_ns, found)
        found.add_descendants(self.rings.words)
        found.others.sort(key=lambda record: record.time_ns)
        if found.broken:
            self.diagnostics.count("ring held something else than records", found.broken)
        return found

    def read_forks(self) -> list[Fork]:
        """Return all forks in perf's rings, including those of other processes. Nothing is consumed."""
        return forks_of(self._scan(Scan(), FOREVER_NS).others)
