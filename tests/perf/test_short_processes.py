"""Tests of switching from ptrace to perf_events if short processes make stops miss too much.

This applies where perf_events cannot see time in the kernel, so that stops are the first choice.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from pyprof.collectors.base import Collector, CollectorStats
from pyprof.collectors.hybrid.until_short_lives import Missed, UntilShortLives
from pyprof.collectors.perf.attr import paranoid_level
from pyprof.collectors.perf.collector import NEVER_STOPPED, USER_ONLY
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.errors import AccessDenied, NoSuchProcess, PyprofError
from pyprof.model.sample import SampleBatch
from tests.live.support.recording import Recording, record, running
from tests.perf.test_births import OWNER
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

MS = 1_000_000
BATCH = cast("SampleBatch", object())


@pytest.mark.parametrize(
    ("births", "due", "seen", "much"),
    [
        (1000, 1000 * MS, 400 * MS, True),
        (1000, 1000 * MS, 900 * MS, False),  # only a tenth is missing
        (1000, 4 * MS, 1 * MS, False),  # three samples may be chance
        (1000, 300 * MS, 180 * MS, False),  # the recording has just begun
        (1000, 300 * MS, 100 * MS, True),
        (20, 1000 * MS, 400 * MS, False),  # too few births to explain it
        (1000, 0, 0, False),
    ],
)
def test_much_is_missed_where_short_lives_explain_it_and_chance_does_not(
    births: int, due: int, seen: int, much: bool
) -> None:
    assert Missed(1000, 7).much(births + 7, due, seen) is much


def test_what_was_missed_is_judged_anew_after_some_time() -> None:
    missed = Missed(100, 0)
    assert not missed.much(0, 50_000 * MS, 50_000 * MS)
    assert missed.much(1000, 51_000 * MS, 50_300 * MS)


class Stops:
    """A ptrace collector of processes 1 and 2, a child of 1, that yields one empty batch at a time."""

    births, heads, alive = 0, (1,), (1, 2)

    def __init__(self) -> None:
        self.ended = False

    def batches(self) -> Iterator[SampleBatch]:
        for _ in range(5):
            self.births += 1000
            yield BATCH
            if self.ended:
                return

    def totals(self) -> tuple[int, int, int]:
        return self.births, self.births * MS, 0

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=10, notes=("by stops",))

    def threads(self) -> list[object]:
        return []

    def stop(self) -> None:
        self.ended = True

    close = stop


class Events(Stops):
    def batches(self) -> Iterator[SampleBatch]:
        yield BATCH

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=5, notes=("Sampled by events" + NEVER_STOPPED, USER_ONLY))


def turned(needs: str | None, error: PyprofError | None = None) -> tuple[list[tuple[int, ...]], int, CollectorStats]:
    """Run the collector that switches.

    Args:
        needs: The reason why an interpreter in process 2 needs stops, "" or None.
        error: Error when events are opened.

    Returns:
        The processes for which events were opened, the number of batches, and the statistics.
    """
    asked: list[tuple[int, ...]] = []

    def follow(pids: tuple[int, ...]) -> Collector:
        asked.append(pids)
        if error is not None:
            raise error
        return cast("Collector", Events())

    stops = cast("PtraceCollector", Stops())
    collector = UntilShortLives(stops, 100, lambda pid: needs if pid == 2 else "", follow)
    batches = len(list(collector.batches()))
    return asked, batches, collector.stats()


def test_events_follow_stops_that_miss_much() -> None:
    asked, batches, stats = turned("")
    assert (asked, batches, stats.ticks) == ([(1,)], 2, 15)
    assert stats.notes[:2] == ("Sampled by events", USER_ONLY)
    assert "Until short stops" in stats.notes[2]


@pytest.mark.parametrize("needs", ["CPython runs in it", None])
def test_stops_go_on_where_an_interpreter_needs_them(needs: str | None) -> None:
    assert turned(needs)[:2] == ([], 5)


@pytest.mark.parametrize(("error", "asked"), [(AccessDenied("no"), 1), (NoSuchProcess("gone"), 5)])
def test_stops_go_on_where_events_cannot_be_opened(error: PyprofError, asked: int) -> None:
    found, batches, stats = turned("", error)
    assert (len(found), batches, stats.notes) == (asked, 5, ("by stops",))


def test_processes_of_a_millisecond_are_sampled_by_events_by_default(tmp_path: Path) -> None:
    if paranoid_level() != 2:
        missing("needs perf_events without the time in the kernel: kernel.perf_event_paranoid of 2")
    build(PROGRAMS / "c_spawns.c", tmp_path / "spawns", "-O0", "-pthread")
    with tempfile.TemporaryDirectory(prefix="pyprof-short-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "spawns").write_bytes((tmp_path / "spawns").read_bytes())
        (folder / "spawns").chmod(0o755)
        with running(*OWNER, folder / "spawns", "spawn", stdin=subprocess.PIPE) as program:

            def has_turned(found: Recording) -> bool:
                return str(found.summary["notes"][0]).startswith("Sampled by perf_events")

            def has_work(found: Recording) -> bool:
                return has_turned(found) and any("work" in stack for stack in found.stacks)

            found = record(program.pid, folder, "--collector", "auto", "-s", seconds=1.5, by=OWNER, until=has_work)
            program.communicate()
    assert has_turned(found)
    assert has_work(found)
    assert USER_ONLY in found.summary["notes"]
