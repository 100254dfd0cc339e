"""Tests of the check whether short processes make stops miss too much, and of the change to perf_events after it.

This applies where perf_events cannot see time in the kernel, so that stops are the first choice.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from pyprof.collectors.combined.open_sources import MissedTime
from pyprof.collectors.cpu_time_accounting import TotalTimes
from pyprof.collectors.perf.event_attributes import paranoid_level
from pyprof.collectors.perf.kernel_collector import USER_ONLY
from tests.live.support.recording import Recording, record, running
from tests.perf.test_births import OWNER
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

MS = 1_000_000


@pytest.mark.parametrize(
    ("births", "due", "seen", "much"),
    [
        (1000, 1000, 400, True),
        (1000, 1000, 900, False),  # only a tenth is missing
        (1000, 4, 1, False),  # three samples may be chance
        (1000, 300, 180, False),  # the recording has just begun
        (1000, 300, 100, True),
        (20, 1000, 400, False),  # too few births to explain it
        (1000, 0, 0, False),
    ],
)
def test_much_is_missed_where_short_lives_explain_it_and_chance_does_not(
    births: int, due: int, seen: int, much: bool
) -> None:
    assert MissedTime(1000, 7).is_much(births + 7, TotalTimes(due * MS, seen * MS, due * MS, 0)) is much


@pytest.mark.parametrize(
    ("seen", "spent", "unread", "much"),
    [
        (150, 4860, 4800, True),  # a sampler without a processor found 20 of thousands of processes
        (0, 500, 450, True),  # it kept no sampling time
        (150, 4860, 300, False),  # it missed a long process, as it would by events
        (4000, 4860, 4800, False),  # nearly all is sampled
        (0, 100, 100, False),  # the recording has just begun
    ],
)
def test_accounts_of_ended_processes_decide_where_sampling_times_were_missed(
    seen: int, spent: int, unread: int, much: bool
) -> None:
    due = max(seen, spent // 20)
    assert MissedTime(499, 7).is_much(20 + 7, TotalTimes(due * MS, seen * MS, spent * MS, unread * MS)) is much


def test_what_was_missed_is_judged_anew_after_some_time() -> None:
    def totals(due: int, seen: int, unread: int = 0) -> TotalTimes:
        return TotalTimes(due * MS, seen * MS, due * MS, unread * MS)

    missed = MissedTime(100, 0)
    assert not missed.is_much(0, totals(50_000, 50_000, 40_000))
    assert missed.is_much(1000, totals(51_000, 50_300, 40_000))
    assert not missed.is_much(1000, totals(101_000, 100_300, 40_000))
    assert missed.is_much(1000, totals(102_000, 100_300, 41_000))


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
                return bool(found.summary["notes"][0]["reason"] == "by_events")

            def has_work(found: Recording) -> bool:
                return has_turned(found) and any("work" in stack for stack in found.stacks)

            found = record(program.pid, folder, "--collector", "auto", "-s", seconds=5, by=OWNER, until=has_work)
            program.communicate()
    assert has_turned(found), found.summary
    assert has_work(found)
    assert USER_ONLY.reason in [note["reason"] for note in found.summary["notes"]]
