"""Tests of the flight recorder: its limits of age and size, the written profile, and triggers."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyprof.errors import RecordingError, UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from pyprof.session.flight_recorder import (
    LOOK_S,
    UNREADABLE,
    FlightRecordingEnd,
    LastWindowsSink,
    Triggers,
    WrittenOut,
    condition,
    window_s,
)
from tests.exporters.profiles import golden
from tests.exporters.support import THREADS, export


@dataclass
class Taking:
    """A sink that stores the profiles."""

    taken: list[tuple[int, Profile]] = field(default_factory=list)

    def open_journal(self, *_: object) -> None:
        return None

    def receive_profile(self, profile: Profile, number: int) -> None:
        self.taken.append((number, profile))


def window(nth: int) -> Profile:
    """Return the nth of windows that follow each other without a gap."""
    whole = golden()
    later = nth * whole.duration_ns
    return replace(whole, start_ns=whole.start_ns + later, time_ns=whole.time_ns + later)


def names(folder: Path) -> list[int]:
    return [int(path.stem) for path in sorted(folder.iterdir())]


def test_windows_are_a_tenth_of_the_time_within_bounds() -> None:
    assert [window_s(last) for last in (2, 100, 36_000)] == [1.0, 10.0, 60.0]


def test_files_that_are_too_old_go_but_never_the_newest(tmp_path: Path) -> None:
    kept = LastWindowsSink(str(tmp_path), 100)
    for nth in range(4):
        kept.receive_profile(window(nth), nth)
    assert names(tmp_path) == [0, 1, 2, 3]
    for nth, age_s in enumerate((400, 101, 90, 400)):
        os.utime(tmp_path / f"{nth:08}.pyprof", times=(0, time.time() - age_s))
    kept.receive_profile(window(3), 3)
    assert names(tmp_path) == [2, 3]


def test_oldest_files_go_where_the_folder_is_too_large(tmp_path: Path) -> None:
    size = len(export("recording", golden()))
    kept = LastWindowsSink(str(tmp_path), 1e6, size * 3)
    for nth in range(5):
        kept.receive_profile(golden(), nth)
    assert names(tmp_path) == [2, 3, 4]
    LastWindowsSink(str(tmp_path), 1e6, 1).receive_profile(golden(), 5)
    assert names(tmp_path) == [5]


def test_what_is_written_out_is_the_last_part_and_stays_kept(tmp_path: Path) -> None:
    last_s = golden().duration_ns / 1e9 * 1.5
    kept, to = LastWindowsSink(str(tmp_path), last_s), Taking()
    for nth in range(2):
        kept.receive_profile(window(nth), nth)
    WrittenOut(kept, to, 7).receive_profile(window(2), 2)
    ((number, found),) = to.taken
    assert number == 7
    assert found.duration_ns == round(last_s * 1e9)
    assert found.start_ns + found.duration_ns == window(2).start_ns + golden().duration_ns
    assert len(found.stack) == len(golden().stack)
    assert names(tmp_path) == [0, 1, 2]
    FlightRecordingEnd(kept, to, 8).receive_profile(window(3), 3)
    assert [number for number, _ in to.taken] == [7, 8]
    assert not tmp_path.exists()


def test_file_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    kept = LastWindowsSink(str(tmp_path), 1e6)
    (tmp_path / "00000000.pyprof").write_bytes(b"broken")
    with pytest.raises(RecordingError, match="not a recording"):
        kept.together()
    kept.receive_profile(golden(), 1)
    found = kept.together()
    assert export("collapsed", found, THREADS) == export("collapsed", golden(), THREADS)
    assert UNREADABLE in found.summary.notes


@dataclass
class Switch:
    on: bool

    def check(self) -> str:
        return "on" if self.on else ""


def test_trigger_fires_when_its_condition_begins_and_once_in_the_kept_time() -> None:
    now, fired = [0.0], []
    first, second = Switch(on=True), Switch(on=False)
    triggers = Triggers([first, second], lambda _: fired.append(now[0]), 10, lambda: now[0])

    def step(one: bool, other: bool, seconds: float = LOOK_S) -> None:
        first.on, second.on = one, other
        now[0] += seconds
        triggers.check_conditions()

    step(True, False)
    assert fired == []  # the condition holds from the start
    step(False, False)
    step(True, False)
    assert fired == [3.0]
    step(True, True)
    step(False, False)
    assert fired == [3.0]
    step(False, False, 8)
    step(False, True, LOOK_S / 2)
    assert fired == [3.0]  # the next check is not due yet
    step(False, True, LOOK_S / 2)
    assert fired == [3.0, 14.0]


def test_trigger_reports_each_condition_that_began_to_hold() -> None:
    now, fired, switch = [0.0], list[str](), Switch(on=False)
    triggers = Triggers([switch, Switch(on=True), switch], fired.append, 10, lambda: now[0])
    for switch.on in (False, True):
        now[0] += LOOK_S
        triggers.check_conditions()
    assert fired == ["on, on"]


def test_conditions_are_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = condition(f"file:{path}", set)
    assert not file.check()
    path.touch()
    assert file.check() == f"{path} appeared"
    idle = condition("cpu>0.5", lambda: [1 << 23])
    busy, all_of_it = (condition(text, lambda: [os.getpid()]) for text in ("cpu>0.5", "cpu > 99999 %"))
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert re.fullmatch(r"cpu>0\.5: \d+ % of a processor", busy.check())
    assert not all_of_it.check()
    assert not idle.check()
    for text in ("cpu", "cpu<3", "file:", "memory>3", "cpu>-1"):
        with pytest.raises(UsageError, match="not a trigger"):
            condition(text, set)
