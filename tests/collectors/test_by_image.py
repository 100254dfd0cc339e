"""Tests of the checks which program a process runs: their times and their cost."""

from __future__ import annotations

from pyprof.collectors.combined.threads_to_stop import ByImage

MS = 1_000_000


class Clocks:
    """Simulated clocks for checks that cost each_ns of processor time.

    Attributes:
        asked: Number of times that the processor time was read.
    """

    def __init__(self, each_ns: int = 0) -> None:
        self.now_ns = self.spent_ns = self.asked = 0
        self._each_ns = each_ns
        self.looked: list[int] = []

    def clock(self) -> int:
        return self.now_ns

    def cost(self) -> int:
        self.asked += 1
        return self.spent_ns

    def needs_stops(self, pid: int) -> str | None:
        self.looked.append(pid)
        self.spent_ns += self._each_ns
        return None if pid == 7 else ""


def by_image(clocks: Clocks) -> ByImage:
    return ByImage(clocks.needs_stops, clocks.clock, clocks.cost)


def test_where_nobody_is_due_no_clock_of_processor_time_is_read() -> None:
    clocks = Clocks()
    known = by_image(clocks)
    for _ in range(1000):
        clocks.now_ns += 10 * MS
        assert known.check_due() == []
    assert (clocks.asked, clocks.looked) == (0, [])


def test_process_that_cannot_be_told_yet_is_looked_at_later_and_later() -> None:
    clocks = Clocks()
    known = by_image(clocks)
    known.changed([7])
    for _ in range(1000):
        assert known.check_due() == []
        clocks.now_ns += 10 * MS
    assert 10 < len(clocks.looked) < 25
    assert clocks.asked < 3 * len(clocks.looked) + 1


def test_dear_looks_are_few() -> None:
    clocks = Clocks(each_ns=2 * MS)
    known = by_image(clocks)
    known.changed(range(100, 120))
    assert known.check_due() == [100, 101, 102]
    assert known.check_due() == []
    clocks.now_ns += 60 * MS
    assert known.check_due() == [103, 104, 105]
    assert known.check_due(all_of_them=True) == [*range(106, 120)]


def test_end_of_a_recording_ends_the_checks_of_all_its_processes() -> None:
    clocks = Clocks(each_ns=2 * MS)
    known = by_image(clocks)
    known.changed(range(100, 120))
    assert known.check_due(all_of_them=True, is_over=lambda: len(clocks.looked) == 2) == [100, 101]
    assert known.check_due(all_of_them=True, is_over=lambda: True) == []
