"""Tests of steps of the wall clock during recording: each second is in one window, and the agent reports the step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.fleet.agent import spool_query
from pyprof.fleet.agent.health import EVENT_S, MIN_INTERVAL_S
from pyprof.fleet.agent.windows import ClockSteps, UnrecordedTime, count_processes
from pyprof.fleet.configuration import TimeSpan
from tests.agent.push.receivers import Said, receiver
from tests.agent.test_agent_live import BUSY
from tests.agent.test_conditions import Clocked
from tests.exporters.profiles import golden
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

HOUR_NS = 3600 * 10**9
CONFIG = """
[windows]
every = "1s"
[budget]
cpu = 100
[[rule]]
cmdline = "WORD"
service = "stepped"
[[push]]
name = "server"
type = "pyprof"
url = "URL"
"""

SECOND_NS = 10**9


def library() -> str:
    """Return the path of libfaketime, which sets the wall clock of one process from a file."""
    found = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if found is None:
        missing("libfaketime: apt-get install libfaketime")
    return str(found)


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def wait_for_windows(log: Path, agent: subprocess.Popen[bytes], more: int) -> None:
    count = sum(line["event"] == "window" for line in lines(log)) + more
    while sum(line["event"] == "window" for line in lines(log)) < count:
        assert agent.poll() is None, log.read_text()
        time.sleep(0.1)


def recorded(spool: Path) -> list[tuple[int, int]]:
    """Return start and length of each window in nanoseconds, in the order in which they were written."""
    names = spool_query.segments(str(spool), TimeSpan(0, 1 << 62))
    ordered = sorted(names, key=lambda name: (spool / name.path).stat().st_mtime_ns)
    profiles = [spool_query.profile_of(str(spool), [name], "cpu", "all") for name in ordered]
    return [(profile.start_ns, profile.duration_ns) for profile in profiles]


def test_clock_that_is_set_by_an_hour_loses_and_doubles_no_second(tmp_path: Path) -> None:
    """Step the clock forward and back within windows.

    The receiver's clock does not change, and the agent reports the offset.
    """
    word, log, spool, offset = f"agent-steps-{os.getpid()}", tmp_path / "log", tmp_path / "spool", tmp_path / "offset"
    faked = {"LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_CACHE_DURATION": "1"}
    target = subprocess.Popen([sys.executable, "-c", BUSY, word], stdout=subprocess.DEVNULL)
    environment = {**os.environ, **faked, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    offset.write_text("+0\n")
    with receiver(lambda _: Said()) as server, log.open("wb") as out:
        config = tmp_path / "agent.toml"
        config.write_text(CONFIG.replace("WORD", word).replace("URL", server.url))
        command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool)]
        agent = subprocess.Popen([*command, "--log", "json"], stderr=out, env=environment)
        try:
            for step in ("+1h\n", "-1h\n"):
                wait_for_windows(log, agent, 2)
                part = offset.with_suffix(".part")
                part.write_text(step)
                part.replace(offset)
            wait_for_windows(log, agent, 3)
            while len(server.asked) < 6 or "clock_differs" not in log.read_text():
                time.sleep(0.1)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for process in (agent, target):
                process.kill()
                process.wait()
    steps = [line["seconds"] for line in lines(log) if line["event"] == "clock was set"]
    assert [round(float(str(step)) / 3600) for step in steps] == [1, -2]
    windows = recorded(spool)
    assert all(length > 0 for _, length in windows)
    gaps = [later - (start + length) for (start, length), (later, _) in pairwise(windows)]
    hours = [round(gap / HOUR_NS) for gap in gaps]
    assert [hour for hour in hours if hour] == [1, -2]
    assert all(abs(gap - hour * HOUR_NS) < HOUR_NS // 1000 for gap, hour in zip(gaps, hours, strict=True)), gaps
    assert all(gap == 0 for gap, hour in zip(gaps, hours, strict=True) if not hour)
    sent = [asked.path for asked in server.asked]
    assert len(set(sent)) == len(sent)
    assert not list((spool / "refused").rglob("*.pb.gz"))
    differing = [line for line in lines(log) if line.get("reason") == "clock_differs" and line["event"] == "degraded"]
    ahead = [int(str(line["ahead_seconds"])) for line in differing]
    assert all(abs(abs(seconds) - 3600) < 600 for seconds in ahead), ahead


@pytest.mark.parametrize("step_s", [1800.0, -5400.0, 0.2])
def test_step_of_the_clock_is_said_once(step_s: float) -> None:
    said: list[tuple[object, ...]] = []
    wall, monotonic = 10**18, 5
    steps = ClockSteps(
        lambda *words, **fields: said.append((*words, *fields.values())), lambda: wall, lambda: monotonic
    )
    assert steps.total_ns() == 0
    wall, monotonic = wall + 10**9 + round(step_s * 1e9), monotonic + 10**9
    assert [steps.total_ns() for _ in range(3)] == [round(step_s * 1e9)] * 3
    assert said == [("warning", "clock was set", step_s)]
    assert steps.count == 1


def test_clock_that_is_adjusted_slowly_is_not_said_before_it_is_off() -> None:
    said: list[object] = []
    wall, monotonic = 10**18, 5
    steps = ClockSteps(lambda *_, **fields: said.append(fields["seconds"]), lambda: wall, lambda: monotonic)
    for _ in range(100):
        wall, monotonic = wall + 10**9 + 3 * 10**6, monotonic + 10**9
        steps.total_ns()
    assert len(said) == 2
    assert steps.total_ns() <= 300 * 10**6


def test_time_between_windows_is_counted_once_and_said() -> None:
    of = Clocked()
    gaps = UnrecordedTime(of.conditions)
    gaps.begin(10 * SECOND_NS)
    gaps.add_window("cpu", 38 * SECOND_NS, 98 * SECOND_NS, 0)
    gaps.add_window("offcpu", 39 * SECOND_NS, 98 * SECOND_NS, 0)
    assert gaps.total_ns == 28 * SECOND_NS
    assert [(line["reason"], line["gap_seconds"]) for line in of.taken()] == [("window_gap", 28.0)]
    gaps.add_window("cpu", 98 * SECOND_NS + SECOND_NS // 2, 158 * SECOND_NS, 0)
    assert (gaps.total_ns, of.taken()) == (28 * SECOND_NS + SECOND_NS // 2, []), "too short for a condition"
    gaps.total_ns = 28 * SECOND_NS
    gaps.add_window("offcpu", 101 * SECOND_NS, 158 * SECOND_NS, 0)
    assert gaps.total_ns == 31 * SECOND_NS
    gaps.add_recovered("cpu", 170 * SECOND_NS)
    gaps.add_window("cpu", 170 * SECOND_NS, 218 * SECOND_NS, 0)
    assert gaps.total_ns == 31 * SECOND_NS, "a recovered window ended there"
    gaps.add_window("cpu", 3758 * SECOND_NS, 3818 * SECOND_NS, 1)
    assert gaps.total_ns == 31 * SECOND_NS, "the wall clock was set"
    gaps.reset("cpu")
    gaps.add_window("cpu", 9000 * SECOND_NS, 9060 * SECOND_NS, 1)
    assert gaps.total_ns == 31 * SECOND_NS, "there was nothing to record"
    assert of.wait(MIN_INTERVAL_S)[0]["gap_seconds"] == 3.0
    assert of.conditions.reasons == {"window_gap"}
    assert [line["event"] for line in of.wait(EVENT_S)] == ["healthy again"]


@pytest.mark.parametrize("steps", [(0, 1, 1, 1, 1), (0, 0, 1, 1, 1)], ids=["in_the_window", "noticed_in_the_next"])
def test_forward_step_of_the_clock_is_no_time_without_a_window(steps: tuple[int, ...]) -> None:
    gaps = UnrecordedTime(Clocked().conditions)
    gaps.begin(0)
    for at, count in enumerate(steps):
        start_ns = (60 * at + 3600 * (at >= 2)) * SECOND_NS
        gaps.add_window("cpu", start_ns, start_ns + 60 * SECOND_NS, count)
    assert gaps.total_ns == 0
    gaps.add_window("cpu", 3910 * SECOND_NS, 3970 * SECOND_NS, 1)
    assert gaps.total_ns == 10 * SECOND_NS, "gaps after the step count"


def test_forward_step_in_the_first_window_is_no_time_without_a_window() -> None:
    gaps = UnrecordedTime(Clocked().conditions)
    gaps.begin(0)
    gaps.add_window("cpu", 0, 60 * SECOND_NS, 1)
    gaps.add_window("cpu", 3660 * SECOND_NS, 3720 * SECOND_NS, 1)
    assert gaps.total_ns == 0


def test_first_agent_on_a_host_has_no_time_without_a_window() -> None:
    gaps = UnrecordedTime(Clocked().conditions)
    gaps.begin(0)
    gaps.add_window("cpu", 38 * SECOND_NS, 98 * SECOND_NS, 0)
    assert gaps.total_ns == 0


def test_log_counts_processes_as_metrics_do_and_those_that_ended_apart() -> None:
    profile = golden()
    pids = {thread.pid for thread in profile.threads}
    names = "processes", "processes_left_out", "processes_ended"
    ended = len(pids)
    assert count_processes(profile, {999_998, 999_999}, {999_998}) == dict(zip(names, (2, 1, ended), strict=True))
    assert count_processes(profile, pids, pids) == dict(zip(names, (ended, 0, 0), strict=True))
