"""Tests of the conditions of an agent: their log lines, and what /healthz, /readyz and the metrics say of them."""

from __future__ import annotations

import json

import pytest

from pyprof.fleet.agent.health import EVENT_S, MIN_INTERVAL_S, NOT_READY, REMINDER_S, UNHEALTHY, Conditions, Health
from pyprof.fleet.cli import agent_administration
from pyprof.model.fleet_loss_reasons import CONDITIONS
from pyprof.problem_counters import Diagnostics
from tests.agent.test_health import numbers

NAMES = {reason.name for reason in CONDITIONS}


class Clocked:
    """Conditions with a clock that the test sets, and the lines that they wrote."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lines: list[dict[str, object]] = []
        self.conditions = Conditions(self._say, lambda: self.now)

    def _say(self, level: str, event: str, **fields: object) -> None:
        self.lines.append({"level": level, "event": event, **fields})

    def taken(self) -> list[dict[str, object]]:
        lines, self.lines = self.lines, []
        return lines

    def wait(self, seconds: float) -> list[dict[str, object]]:
        self.now += seconds
        self.conditions.write_lines()
        return self.taken()


def test_condition_is_one_line_with_cause_and_remedy_until_it_ends() -> None:
    of = Clocked()
    for _ in range(5):
        of.conditions.begin("push_failing", "Connection refused", "start it", sink="a", cause="unreachable")
        of.now += 1
    line = {"level": "warning", "event": "degraded", "reason": "push_failing", "sink": "a", "cause": "unreachable"}
    assert of.taken() == [{**line, "error": "Connection refused", "hint": "start it"}]
    of.conditions.end("push_failing", sink="other")
    assert of.taken() == []
    of.conditions.end("push_failing", sink="a")
    assert of.taken() == [
        {"level": "info", "event": "healthy again", "reason": "push_failing", "sink": "a", "seconds": 5}
    ]
    assert of.conditions.failures() == []


def test_condition_without_words_has_those_of_the_table() -> None:
    of = Clocked()
    for reason in CONDITIONS:
        assert reason.hint, reason.name
        of.conditions.begin(reason.name)
    assert [(line["error"], line["hint"]) for line in of.taken()] == [(each.sentence, each.hint) for each in CONDITIONS]
    assert of.conditions.reasons == NAMES
    assert UNHEALTHY < NOT_READY < NAMES


def test_other_cause_is_a_new_line_and_each_cause_has_one_a_minute() -> None:
    of = Clocked()
    for cause in ("unreachable", "unauthorized", "unreachable", "unauthorized"):
        of.conditions.begin("push_failing", sink="a", cause=cause)
        of.conditions.end("push_failing", sink="a")
    assert [line.get("cause", "end") for line in of.taken()] == ["unreachable", "end", "unauthorized", "end"]
    of.conditions.begin("push_failing", sink="a", cause="unauthorized")
    assert of.taken() == [], "within a minute"
    found = of.wait(MIN_INTERVAL_S)
    assert [line["cause"] for line in found] == ["unauthorized"]
    assert of.wait(MIN_INTERVAL_S) == []
    assert [line["since_seconds"] for line in of.wait(REMINDER_S)] == [REMINDER_S + 2 * MIN_INTERVAL_S]


def test_condition_that_comes_and_goes_has_two_lines_a_minute() -> None:
    of = Clocked()
    for _ in range(120):
        of.conditions.begin("push_failing", sink="a", cause="limited")
        of.now += 0.5
        of.conditions.end("push_failing", sink="a")
        of.now += 0.5
    lines = of.taken()
    assert [line["event"] for line in lines] == ["degraded", "healthy again"] * 2
    assert lines[2]["unlogged_before"] == 59


def test_event_counts_for_ten_minutes_and_says_how_many_were_not_logged() -> None:
    of = Clocked()
    for _ in range(10):
        of.conditions.note("push_lost", "3 segments", sink="a")
    assert len(of.taken()) == 1
    assert of.wait(MIN_INTERVAL_S)[0]["unlogged_before"] == 8
    assert of.wait(EVENT_S / 2) == []
    of.conditions.note("push_lost", "1 segment", sink="a")
    assert len(of.taken()) == 1
    assert of.wait(EVENT_S - 1) == []
    assert of.conditions.reasons == {"push_lost"}
    assert [line["event"] for line in of.wait(2)] == ["healthy again"]
    assert not of.conditions.reasons


def test_needed_budget_is_logged_again_once_a_minute_where_it_has_changed_much() -> None:
    of = Clocked()

    def needed(*percents: float) -> list[object]:
        for percent in percents:
            of.conditions.begin("budget_exceeded", needed_cpu_percent=percent)
        return [line["needed_cpu_percent"] for line in of.taken()]

    assert needed(2.0, 4.0) == [2.0]
    of.now += MIN_INTERVAL_S
    assert needed(2.08, 1.7) == []
    assert needed(2.12, 4.0, 1.0) == [2.12]
    assert of.conditions.failures()[0]["needed_cpu_percent"] == 1.0
    assert [line["needed_cpu_percent"] for line in of.wait(MIN_INTERVAL_S)] == [1.0]
    of.conditions.begin("budget_exceeded", needed_memory=300 << 20)
    assert [line["needed_memory"] for line in of.wait(MIN_INTERVAL_S)] == [300 << 20]


def test_command_prints_each_condition_with_its_pages_meaning_and_hint() -> None:
    lines = list(agent_administration.conditions())
    assert lines[:2] == ["loop_stuck (/healthz 503, /readyz 503)", f"  {CONDITIONS[0].sentence}"]
    assert [line.split(" ")[0] for line in lines[::3]] == [reason.name for reason in CONDITIONS]
    assert all(line.startswith("  hint: ") and len(line) > 10 for line in lines[2::3])


@pytest.mark.parametrize("name", sorted(NAMES))
def test_only_conditions_that_a_restart_ends_fail_a_liveness_probe(name: str) -> None:
    conditions = Conditions(lambda *_, **__: None)
    health = Health(60.0, {"processes": lambda: 0}, Diagnostics(), conditions)
    assert (health.page()[0], health.ready_page()[0]) == (200, 200)
    assert numbers(health.metrics_page()[2])["failing", name] == 0
    if name in UNHEALTHY:  # these two follow from the time that has passed (test_health.py)
        health._set = lambda reason, holds: None  # type: ignore[method-assign]
    conditions.begin(name, "broken", "mend it")
    status, kind, text = health.page()
    found = json.loads(text)
    assert kind == "application/json"
    assert found["status"] == ("unhealthy" if name in UNHEALTHY else "degraded")
    shown = [(each["reason"], each["error"], each["hint"]) for each in found["failures"]]
    assert shown == [(name, "broken", "mend it")]
    assert status == (503 if name in UNHEALTHY else 200)
    assert health.ready_page()[0] == (503 if name in NOT_READY else 200)
    assert numbers(health.metrics_page()[2])["failing", name] == 1
