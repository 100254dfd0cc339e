"""Tests that a time line has no peak, no gap and no amount that the windows did not have."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyprof
from pyprof.lazy_dataclasses import replace
from tests.agent.filled import marked, segment
from tests.server.serving import Served, served

pytestmark = pytest.mark.system

SECOND_NS = 10**9
END_NS = (time.time_ns() // SECOND_NS - 60) * SECOND_NS
RATE = 250_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "data") as client:
        yield client


def push_steady(client: Served, service: str, host: str, lengths_ns: list[int], end_ns: int) -> int:
    """Push contiguous windows of a host that uses RATE nanoseconds a second. Return the sum of their amounts."""
    total = 0
    for length_ns in lengths_ns:
        amount = round(length_ns * RATE / SECOND_NS)
        profile = marked()
        values = profile.values.copy()
        values[:, -1] = 0
        values[0, -1] = amount
        threads = tuple(replace(each, labels=(("host", host), ("version", host))) for each in profile.threads)
        pushed = segment(replace(profile, values=values, threads=threads), service, end_ns, length_ns)
        assert client.push(pushed).status == 200
        end_ns, total = end_ns - length_ns, total + amount
    return total


def lines(client: Served, service: str, **words: object) -> tuple[Any, dict[str, dict[str, list[Any]]]]:
    found = client.question("timeline", service=service, **words).json()
    return found, {line["value"]: line for line in found["series"]}


@pytest.mark.parametrize("seed", range(6))
def test_steady_load_has_a_steady_line_for_any_windows_and_any_step(server: Served, seed: int) -> None:
    """Push windows of one to three hosts. Each step that they cover has the steady rate, and no amount is lost."""
    rng, service = random.Random(seed), f"steady-{seed}"
    sent, last_ns, first_ns, count = {}, END_NS, 0, 0
    for at in range(rng.randint(1, 3)):
        lengths = [rng.randint(1, 100 * SECOND_NS) for _ in range(rng.randint(3, 8))]
        lengths[-1] = rng.choice([72, 60, 500]) * SECOND_NS
        end_ns = END_NS - rng.randint(0, 40 * SECOND_NS)
        sent[f"h{at}"] = push_steady(server, service, f"h{at}", lengths, end_ns)
        last_ns, first_ns = min(last_ns, end_ns), max(first_ns, end_ns - sum(lengths))
        count += len(lengths)
    server.until_indexed(count, service=service)
    for points in (3, 40, rng.randint(5, 2000)):
        span = {"from": END_NS // SECOND_NS - 1000, "to": END_NS // SECOND_NS + 1, "points": points}
        for by in ("", "host", "version"):
            found, of_value = lines(server, service, by=by, **span)
            expected = sent if by else {"": sum(sent.values())}
            for value, total in expected.items():
                line, hosts = of_value[value], 1 if by else len(sent)
                assert sum(amount or 0 for amount in line["amounts"]) == total
                for moment, rate, amount in zip(found["times"], line["rates"], line["amounts"], strict=True):
                    begin, end = moment - found["step"] / 2, moment + found["step"] / 2
                    assert rate is None or rate <= hosts * RATE * 1.000001, "a peak that was not there"
                    if begin >= first_ns / SECOND_NS and end <= last_ns / SECOND_NS:
                        assert rate == pytest.approx(hosts * RATE, rel=1e-6)
                        assert amount == pytest.approx(hosts * RATE * found["step"], rel=1e-6)


def test_what_begins_before_the_span_has_its_rate_and_no_peak(server: Served) -> None:
    push_steady(server, "early", "h", [60 * SECOND_NS] * 3, END_NS)
    server.until_indexed(3, service="early")
    found, of_value = lines(server, "early", **{"from": END_NS // SECOND_NS - 130, "to": END_NS // SECOND_NS})
    line = of_value[""]
    assert [rate for rate in line["rates"] if rate is not None] == pytest.approx([RATE] * 5)
    assert sum(amount or 0 for amount in line["amounts"]) == pytest.approx(130 * RATE, abs=9), found


def test_missing_window_and_host_that_has_not_sent_its_last_one_are_unknown(server: Served) -> None:
    """Push two hosts of which one lacks a window in the middle, and the last one."""
    minute = 60 * SECOND_NS
    push_steady(server, "gap", "a", [minute] * 6, END_NS)
    push_steady(server, "gap", "b", [minute] * 2, END_NS - minute)
    push_steady(server, "gap", "b", [minute] * 2, END_NS - 4 * minute)
    server.until_indexed(10, service="gap")
    span = {"from": END_NS // SECOND_NS - 360, "to": END_NS // SECOND_NS}
    found, of_value = lines(server, "gap", by="host", **span)
    assert found["step"] == 30
    assert of_value["b"]["rates"] == [RATE] * 4 + [None] * 2 + [RATE] * 4 + [None] * 2
    assert of_value["a"]["rates"] == [RATE] * 12
    _, of_all = lines(server, "gap", **{**span, "to": END_NS // SECOND_NS - 30, "points": 7})
    assert of_all[""]["rates"], "a span may end within a window"


def test_newest_step_is_unknown_until_each_host_has_sent_its_window(server: Served) -> None:
    push_steady(server, "late", "a", [30 * SECOND_NS] * 4, END_NS)
    push_steady(server, "late", "b", [30 * SECOND_NS] * 3, END_NS - 30 * SECOND_NS)
    server.until_indexed(7, service="late")
    span = {"from": END_NS // SECOND_NS - 120, "to": END_NS // SECOND_NS, "points": 4}
    _, of_value = lines(server, "late", **span)
    assert of_value[""]["rates"] == [2 * RATE] * 3 + [None], "half of the rate would be a fall that was not there"
    assert of_value[""]["amounts"][3] == 30 * RATE


def test_profile_of_several_hosts_lasts_as_long_as_the_clock_on_the_wall(server: Served, tmp_path: Path) -> None:
    """Query three hosts that overlap, and none of which was recorded for a minute. A comparison adds up their time."""
    minute = 60 * SECOND_NS
    for host in ("a", "b", "c"):
        push_steady(server, "wall", host, [minute] * 3, END_NS)
        push_steady(server, "wall", host, [minute] * 2, END_NS - 4 * minute)
    server.until_indexed(15, service="wall")
    path = tmp_path / "x.pb.gz"
    path.write_bytes(server.question("profile", service="wall", format="pprof").body)
    found = pyprof.load(path)
    assert (found.duration_ns, found.total) == (6 * minute, 15 * 60 * RATE)
    path = tmp_path / "x.pyprof"
    path.write_bytes(server.question("profile", service="wall", format="recording").body)
    found = pyprof.load(path)
    assert (found.duration_ns, found.recorded_ns) == (6 * minute, 5 * minute)
    assert (found.start_ns, found.gaps) == (END_NS - 6 * minute, ((END_NS - 4 * minute, END_NS - 3 * minute),))
    span = {"from": END_NS // SECOND_NS - 600, "to": END_NS // SECOND_NS}
    sides = {f"{side}.{name}": word for side in "ab" for name, word in (span | {"service": "wall"}).items()}
    answer = server.question("diff", format="json", **{**sides, "b.label.host": "a"}).json()
    assert answer["whole"]["before"] == pytest.approx(answer["whole"]["after"])
