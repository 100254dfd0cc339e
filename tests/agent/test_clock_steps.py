"""Tests of steps of the wall clock: the agent reports each once, and counts no time without a window for it.

tests/server/test_agent_clock_steps.py has a running agent.
"""

from __future__ import annotations

import pytest

from pyprof.fleet.agent.health import EVENT_S, MIN_INTERVAL_S
from pyprof.fleet.agent.windows import ClockSteps, UnrecordedTime, count_processes
from tests.agent.test_conditions import Clocked
from tests.exporters.profiles import golden

SECOND_NS = 10**9


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
