"""Tests that the reported rate is that of the kernel's samples and not the requested one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.collector_control import Stride
from pyprof.collectors.perf.event_attributes import PerfNotAllowed
from pyprof.model.summary import Summary
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.session import Session
from tests.cli.support import pyprof
from tests.collectors.targets import wait_asleep
from tests.live.support.ladders import ladder
from tests.live.support.recording import LIFE, Recording, record, running
from tests.perf.opening import open_perf
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]


@pytest.fixture
def spinner() -> Iterator[int]:
    with running(ladder("ladder"), "spin", LIFE) as program:
        yield program.pid


def recorded(
    pid: int,
    rate: float,
    seconds: float,
    every: float | None = None,
    ring: int = 0,
    slow_s: float = 0.0,
    one_in: int = 1,
) -> list[Summary]:
    """Return the profiles of a recording's windows.

    Args:
        pid: Process id.
        rate: Sampling rate in Hz.
        seconds: Duration in seconds.
        every: Length of a window in seconds.
        ring: Size of the ring in bytes, or 0 for the default.
        slow_s: Time in seconds for which each batch keeps the recording busy.
        one_in: One of this many samples is used.
    """
    stride = Stride()
    stride.every = one_in
    diagnostics = Diagnostics()
    try:
        collector = open_perf(pid, CollectOptions(rate_hz=rate, flush_s=0.1, stride=stride), diagnostics, ring)
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")
        raise
    session = Session(collector, UnwindOptions(), diagnostics)
    until = time.monotonic() + seconds
    cut_at = time.monotonic() + (every or 2 * seconds)
    windows: list[Window] = []

    def beat() -> None:
        nonlocal cut_at
        time.sleep(slow_s)
        if time.monotonic() > until:
            collector.stop()
        if every and time.monotonic() > cut_at:
            windows.append(session.recorder.cut())
            cut_at += every

    windows.append(session.run(collector, beat))
    assert session.failure is None, session.failure
    return [session.profile(window, "t", rate, "cpu").summary for window in windows]


BY_PERF = ("--collector", "perf")


def has_samples(recording: Recording) -> bool:
    return recording.samples > 20


def assert_rate(summary: dict[str, Any], rate: float) -> None:
    """Assert that the reported rate is the requested one, less the samples that were lost.

    A profiler that gets too little processor time reads the rings too late. The lost samples of a recording are those
    of all processes, so its own samples are too few to give more than a lower bound.
    """
    samples, lost = summary["samples"], summary["skipped"]
    assert samples > 20
    assert 0.9 * rate * samples / (samples + lost) < summary["rate_reached"] <= 1.05 * rate
    assert summary["rate_reached"] > 0.9 * rate or lost > 0


@pytest.mark.parametrize("rate", [99, 997])
def test_rate_of_a_busy_program_is_the_one_that_was_asked_for(spinner: int, rate: int, tmp_path: Path) -> None:
    recording = record(spinner, tmp_path, *BY_PERF, seconds=1.5, rate=rate, until=has_samples)
    assert_rate(recording.summary, rate)


def test_rate_of_a_program_that_mostly_sleeps_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    with running(
        "sh", "-c", "echo ready; while :; do i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.1; done"
    ) as program:
        recording = record(program.pid, tmp_path, *BY_PERF, seconds=1.5, rate=499, until=has_samples)
    assert_rate(recording.summary, 499)


def test_rate_falls_with_the_samples_that_found_no_room(spinner: int) -> None:
    [summary] = recorded(spinner, 2000, 1.5, ring=1 << 16, slow_s=0.3)
    assert summary.skipped > 50
    assert 0 < summary.rate_reached < 0.9 * 2000


def test_rate_is_that_of_the_samples_that_were_used(spinner: int) -> None:
    for seconds in (1, 4, 16):  # until there are enough samples, on a busy machine
        [summary] = recorded(spinner, 499, seconds, one_in=4)
        if summary.samples > 10:
            break
    assert summary.samples > 10
    assert summary.rate_reached < 1.2 * 499 / 4
    assert summary.rate_reached > 0.9 * 499 / 4 or summary.skipped > 0


def test_nothing_that_runs_means_no_rate() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        wait_asleep(sleeper.pid)
        summaries = recorded(sleeper.pid, 99, 0.6)
        sleeper.kill()
    assert [summary.samples for summary in summaries] == [0]
    assert summaries[0].rate_reached == 0 or summaries[0].rate_reached > 50, (
        "of the whole machine, where that is allowed"
    )


def test_no_window_has_a_rate_below_nothing_or_above_the_one_wanted(spinner: int) -> None:
    summaries = recorded(spinner, 499, 1.5, every=0.25)
    assert len(summaries) > 3
    assert sum(summary.samples for summary in summaries) > 20
    assert all(0 <= summary.rate_reached < 1.1 * 499 for summary in summaries), summaries


def test_rate_of_stops_is_at_most_the_one_wanted(spinner: int, tmp_path: Path) -> None:
    for seconds in (0.2, 1):
        summary = record(spinner, tmp_path, seconds=seconds, rate=99).summary
        assert summary["samples"] > 0
        assert 0 < summary["rate_reached"] <= 99


def test_rate_of_a_command_that_was_started_is_known(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    for seconds in (1, 4, 16):  # until the command had a processor, on a busy machine
        options = ("-q", "-d", str(seconds), "-o", str(tmp_path / "a.collapsed"), "--summary", str(summary))
        done = pyprof("record", *options, "--", str(ladder("ladder")), "spin", str(2 * seconds))
        assert done.returncode in (0, 1), done.stderr
        found = json.loads(summary.read_text())
        if found["samples"]:
            break
    assert found["samples"] > 0
    assert 0 < found["rate_reached"] <= 1.05 * found["rate_wanted"]
