"""Tests of the agent's metrics and health endpoint: labels come from fixed sets, and a stalled agent is unhealthy."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time

import pytest

from pyprof.errors import PyprofError, UsageError
from pyprof.fleet.agent import health, http_endpoints, spool
from pyprof.fleet.agent.agent import FAULT_HINT, Agent
from pyprof.fleet.agent.health import Conditions, Health
from pyprof.fleet.agent.http_endpoints import ADDRESS, HttpPages
from pyprof.fleet.agent.metrics import COUNTERS, GAUGES, PREFIX
from pyprof.fleet.agent.process_rules import SamplingChoice
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_table import SPOOL
from pyprof.problem_counters import Diagnostics
from tests.exporters.profiles import golden

LINE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="([a-z_]+)"\})? (-?[0-9.e+]+)')


def made(processes: int = 1) -> tuple[Health, Diagnostics]:
    diagnostics = Diagnostics()
    conditions = Conditions(lambda *_, **__: None)
    return Health(60.0, {"processes": lambda: processes}, diagnostics, conditions), diagnostics


def numbers(text: str) -> dict[tuple[str, str], float]:
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    found = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found)
    return {(match[1].removeprefix(PREFIX), match[3] or ""): float(match[4]) for match in found if match}


def test_numbers_are_those_of_windows_and_drops_and_labels_are_from_fixed_sets() -> None:
    well, diagnostics = made()
    well.metrics.took("cpu", golden(), True)
    well.metrics.took("cpu", golden(), False)
    diagnostics.count(spool.FULL, 3)
    found = numbers(well.metrics.text())
    samples = golden().summary.samples
    assert samples
    assert found["samples_total", "cpu"] == 2 * samples
    assert (found["windows_total", "cpu"], found["windows_not_written_total", "cpu"]) == (1, 1)
    assert (found["dropped_total", spool.FULL], found["dropped_total", spool.OLD]) == (3, 0)
    assert found["memory_bytes", ""] > 1 << 20
    assert found["cpu_seconds_total", ""] > 0
    values = {value for metric in (*COUNTERS, *GAUGES) for value in metric.labels[1]}
    assert {label for _, label in found} <= values


def test_numbers_say_how_far_shares_of_the_last_window_are_known() -> None:
    well, _ = made()
    assert ("shares_samples", "") not in numbers(well.metrics.text()), "not known is not zero"
    profile = golden()
    threads = [replace(thread, labels=(("service", f"s{at}"),), pid=at) for at, thread in enumerate(profile.threads)]
    values = profile.values.copy()
    values[:, -1] = 2_000_000_000
    values[profile.thread == 0, 0] = 0
    well.metrics.took("cpu", replace(profile, threads=tuple(threads), values=values), True)
    found = numbers(well.metrics.text())
    part = float((profile.thread != 0).mean())
    assert found["sampled_ratio", ""] == pytest.approx(part)
    assert found["shares_samples", ""] > 0
    widest = found["shares_half_width_widest_ratio", ""]
    assert 0 < found["shares_half_width_ratio", ""] <= widest
    assert widest == 0.5, "nothing is known of a service without samples"


def test_each_reason_of_the_spool_has_its_label() -> None:
    assert set(spool.REASONS) == {reason.name for reason in SPOOL}


def test_agent_is_unwell_when_its_loop_stands_still_or_windows_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    well, _ = made()
    well.beat()
    assert well.page()[::2] == (200, '{"status":"ok","failures":[]}\n')
    wall, later = time.time(), time.monotonic() + health.WINDOWS * 60 + health.START_S + 1
    monkeypatch.setattr(time, "time", lambda: wall + 7200)
    assert well.page()[0] == 200, "the wall clock was set"
    monkeypatch.setattr(time, "monotonic", lambda: later)
    well.beat()
    assert "no_windows" in well.page()[2]
    assert made(processes=0)[0].page()[0] == 200, "nothing to record is no fault"
    well.metrics.took("cpu", golden(), True)
    assert well.page()[0] == 200
    monkeypatch.setattr(time, "monotonic", lambda: later + health.SILENT_S + 1)
    assert "loop_stuck" in well.page()[2]


def test_pages_are_answered_on_this_host_also_while_others_ask_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoints, "_PATIENCE_S", 600.0)
    monkeypatch.setattr(http_endpoints, "_LOOK_S", 600.0)  # shutdown must not wait for the next check
    well, _ = made()
    pages = HttpPages(0, {"/metrics": well.metrics_page, "/healthz": well.page})
    try:
        with pytest.raises(UsageError, match="cannot be opened"):
            HttpPages(pages.port, {})
        for path, status in (("/metrics", 200), ("/healthz?verbose", 200), ("/", 404)):
            asked = http.client.HTTPConnection(ADDRESS, pages.port, timeout=30)
            asked.request("GET", path)
            answer = asked.getresponse()
            assert answer.status == status
            assert answer.read()
            asked.close()
        silent = [socket.create_connection((ADDRESS, pages.port), timeout=30) for _ in range(9)]
        assert silent[0].recv(1) == b""
        asked = http.client.HTTPConnection(ADDRESS, pages.port, timeout=30)
        asked.request("GET", "/healthz")
        assert asked.getresponse().read()
        asked.close()
        for each in silent:
            each.close()
    finally:
        pages.close()


def test_counters_may_be_added_while_they_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another thread count at each name that the report looks at."""
    found, diagnostics = made()
    diagnostics.count("segment_not_written")

    class Counting(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            diagnostics.count(f"other_{len(diagnostics.counts)}")
            return False

    monkeypatch.setattr(health, "_WAITING", Counting())
    assert found.new_counts() == {"segment_not_written": 1}
    assert found.new_counts() == {"other_1": 1}


class Recovered:
    """A spool without anything to recover."""

    def recover(self, window: str) -> int:
        return 0


def test_error_that_nobody_expects_is_logged_with_its_traceback_once() -> None:
    lines = list[dict[str, object]]()

    def say(level: str, event: str, **fields: object) -> None:
        lines.append({"level": level, "event": event, **fields})

    agent = Agent.__new__(Agent)
    agent._health, _ = made()
    agent._conditions = agent._health._conditions = Conditions(say)
    agent._say, agent._writing, agent._logged_faults = say, threading.Lock(), set()
    agent.spool = Recovered()  # type: ignore[assignment]
    for error in (KeyError("lost"), KeyError("again"), OSError("no room"), PyprofError("worker died", "free memory")):
        try:
            raise error
        except (KeyError, OSError, PyprofError) as raised:
            agent._failed(SamplingChoice(19.0, "cpu", "extensions"), raised, "")
    faults = [line for line in lines if line["event"] == "unexpected error"]
    assert [(line["level"], line["error"]) for line in faults] == [("error", "KeyError")]
    assert "raise error\nKeyError: 'lost'\n" in str(faults[0]["traceback"])
    degraded = [line for line in lines if line["event"] == "degraded"]
    assert (degraded[0]["error"], degraded[0]["hint"]) == ("KeyError: 'lost'", FAULT_HINT)
    (holds,) = agent._conditions.failures()
    assert (holds["error"], holds["hint"]) == ("worker died", "free memory")


def test_service_that_lacks_most_is_a_condition_until_none_does() -> None:
    agent = Agent.__new__(Agent)
    agent._conditions = Conditions(lambda *_, **__: None)
    agent._judge_unattributed({"web": 0.04, "short": 0.61})
    (holds,) = agent._conditions.failures()
    assert (holds["reason"], holds["service"], holds["missing_percent"]) == ("unattributed_time", "short", 61)
    agent._judge_unattributed({})
    assert agent._conditions.failures() == []
