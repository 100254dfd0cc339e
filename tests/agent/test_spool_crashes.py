"""A state machine that crashes the spool at every system call: segments that put() accepted stay and are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyprof.fleet.agent.spool import FULL, MANY, NOT_WRITTEN, Caps, Spool, SpoolSegment
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.problem_counters import Diagnostics
from tests.agent.crashing import Crash, CrashingDisk

PLACES = ("", "queue/near", "queue/far")
MOST = 5
SIZE = 128
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory, where fsync costs nothing. CrashingDisk simulates what a power loss destroys."""


def saved(segment: SpoolSegment) -> tuple[int, bytes]:
    """Return the agent's checkpoint of an unfinished window. In this model it contains the window's end only."""
    return segment.name.end_ns, str(segment.name.end_ns).encode()


def restored(paths: Sequence[str], window: str, broken: Callable[[], None]) -> list[SpoolSegment]:
    """Rebuild the segment from the last checkpoint, as if that one contained the whole window."""
    name = SegmentName.new("window", int(Path(paths[-1]).read_bytes()), window)
    return [SpoolSegment(name, name.key.encode() * (SIZE // 32))]


class SpoolAndCrashes(RuleBasedStateMachine):
    """A state machine of a spool whose process or machine crashes.

    Attributes:
        there: The segments that must be in each place, and no others. A segment's bytes follow from its name.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="pyprof-spool-", dir=MEMORY)
        self.there: dict[str, set[SegmentName]] = {place: set() for place in PLACES}
        self.end_ns = 1_700_000_000 * 10**9
        self.start()

    def start(self) -> None:
        """Open the spool as a restarted agent does."""
        self.disk, self.counts = CrashingDisk(self.folder.name), Diagnostics()
        caps = Caps(most_files=MOST)
        sinks, now = ("near", "far"), lambda: self.end_ns
        self.spool = Spool(self.folder.name, caps, self.counts, self.disk, sinks, now, restore=restored)
        self.spool.open()

    def files(self, place: str) -> Iterator[tuple[SegmentName, bytes]]:
        look, top = Disk().list_folder, f"{self.folder.name}/{place}"
        for day in look(top):
            for service in look(f"{top}/{day.name}") if day.name.startswith("20") else ():
                for file in look(f"{top}/{day.name}/{service.name}"):
                    name = SegmentName.parse(day.name, service.name, file.name)
                    assert name is not None, f"{file.name} was left behind"
                    with open(f"{top}/{name.path}", "rb") as opened:
                        yield name, opened.read()

    def segment(self) -> SpoolSegment:
        self.end_ns += 60 * 10**9
        name = SegmentName.new(f"service {self.end_ns % 7}/..", self.end_ns)
        return SpoolSegment(name, name.key.encode() * (SIZE // 32))

    def dropped(self, count: int) -> None:
        for name in sorted(set.union(*self.there.values()), key=lambda each: each.end_ns)[:count]:
            for names in self.there.values():
                names.discard(name)

    def taken(self, segment: SpoolSegment, counted: int) -> None:
        """Record that put() accepted a segment.

        Args:
            segment: The segment.
            counted: Number of segments that the spool reports as dropped for it.
        """
        for names in self.there.values():
            names.add(segment.name)
        self.dropped(counted)

    def counted(self) -> int:
        return self.counts.counts[FULL] + self.counts.counts[MANY]

    @rule()
    def put(self) -> None:
        segment, before = self.segment(), self.counted()
        assert self.spool.store_window([segment])
        self.taken(segment, self.counted() - before)

    @rule(at=st.integers(1, 32), after=st.booleans(), power=st.booleans())
    def crash(self, at: int, after: bool, power: bool) -> None:
        """Crash while the spool writes a segment: afterwards the whole segment is present or none of it."""
        segment = self.segment()
        self.disk.crash_at, self.disk.crash_after = self.disk.calls + at, after
        finished = True
        try:
            self.spool.store_window([segment])
        except Crash:
            finished = False
        if power:
            self.disk.power_loss()
        self.disk.forget()
        self.start()
        oldest = sorted(set.union(*self.there.values()), key=lambda each: each.end_ns)
        may_go = {*oldest[: max(len(oldest) + 1 - MOST, 0)]}
        for place, names in self.there.items():
            found = {name for name, _ in self.files(place)}
            assert names - may_go <= found <= names | {segment.name}
            assert segment.name in found or not finished
            self.there[place] = found

    @rule(saves=st.integers(1, 3), at=st.integers(1, 32), after=st.booleans(), power=st.booleans())
    def crash_with_a_window_under_way(self, saves: int, at: int, after: bool, power: bool) -> None:
        """Crash between checkpoints of a window.

        Its last checkpoint becomes one segment unless the segment itself was written.
        """
        window = self.segment().name.key
        last = oldest = None
        finished = True
        try:
            for number in range(saves + 1):
                self.end_ns += 10 * 10**9
                name = SegmentName.new("window", self.end_ns, window)
                segment = SpoolSegment(name, name.key.encode() * (SIZE // 32))
                if number == saves:
                    self.disk.crash_at, self.disk.crash_after = self.disk.calls + at, after
                    self.spool.store_window([segment], window) if at % 2 else self.spool.save(window, *saved(segment))
                else:
                    assert self.spool.save(window, *saved(segment))
                last, oldest = segment.name, last
        except Crash:
            finished = False
            last, oldest = segment.name, last
        if power:
            self.disk.power_loss()
        self.disk.forget()
        self.start()
        kept = sorted(set.union(*self.there.values()), key=lambda each: each.end_ns)
        may_go = {*kept[: max(len(kept) + 1 - MOST, 0)]}
        for place, names in self.there.items():
            found = {name for name, _ in self.files(place)}
            assert names - may_go <= found
            assert (found - names) in ([{last}] if finished else [{last}, {oldest}]), "the window is there once"
            self.there[place] = found

    @rule()
    def full_disk(self) -> None:
        """Write to a full disk: the spool deletes its oldest segments."""
        segment, before = self.segment(), self.counted()
        self.disk.room = max(self.disk.used(), 2 * SIZE)
        assert self.spool.store_window([segment])
        self.disk.room = None
        self.taken(segment, self.counted() - before)

    @rule()
    def disk_full_of_others(self) -> None:
        """Write to a disk that other data fills.

        One window waits in memory, and the window before it is lost and counted.
        """
        first, second, before = self.segment(), self.segment(), self.counted()
        self.disk.room = 0
        assert not self.spool.store_window([first])
        assert self.spool.held == (first,)
        lost = self.counts.counts[NOT_WRITTEN]
        assert not self.spool.store_window([second])
        assert self.counts.counts[NOT_WRITTEN] == lost + 1
        self.disk.room = None
        self.dropped(self.counted() - before)
        before = self.counted()
        assert self.spool.store_window([])
        self.taken(second, self.counted() - before)

    @rule(sink=st.sampled_from(("near", "far")))
    def send(self, sink: str) -> None:
        for name in list(self.spool.queued(sink))[:1]:
            self.spool.sent(sink, name)
            self.there[f"queue/{sink}"].discard(name)

    @invariant()
    def files_are_what_was_promised(self) -> None:
        for place, names in getattr(self, "there", {}).items():
            found = dict(self.files(place))
            assert set(found) == names
            assert all(data == name.key.encode() * (SIZE // 32) for name, data in found.items())
        assert not hasattr(self, "there") or (len(set.union(*self.there.values())) <= MOST and not self.spool.held)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.disk.forget()
            self.folder.cleanup()


TestSpoolAndCrashes = SpoolAndCrashes.TestCase
TestSpoolAndCrashes.settings = settings(max_examples=25, stateful_step_count=15, deadline=None, database=None)
