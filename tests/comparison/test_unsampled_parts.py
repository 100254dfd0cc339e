"""Tests of comparisons of profiles in which a part of the time has no samples."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from pyprof.cli.comparison_table import table
from pyprof.comparison.result import Comparison
from pyprof.exporters.comparison_file import write_csv, write_json
from pyprof.fleet.agent.scale_to_cpu_time import ProcessTime, with_exact_sums
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from tests.comparison.simulated import recording

SECONDS = 20
NANOSECONDS = SECONDS * 10**9


def of_service(profile: Profile, service: str = "web") -> Profile:
    return replace(profile, threads=tuple(replace(each, labels=(("service", service),)) for each in profile.threads))


def sampled(part: float, seed: int = 1, service: str = "web") -> Profile:
    """Return a recording of a program of which only a part of the samples was taken; the total is exact."""
    whole = recording(seed, SECONDS, bursts={})
    taken = np.random.default_rng(seed).random(len(whole.stack)) < part
    values = whole.values.copy()
    values[~taken] = 0
    first = whole.threads[0]
    time = ProcessTime(first.pid, first.process_started, "web", int(values[:, -1].sum()), 0, 0)
    kept = replace(whole, values=values)
    rest = ProcessTime(first.pid + 1, 5, "web", NANOSECONDS - time.ns, 0, 0)
    return of_service(with_exact_sums(kept, [rest] if not taken.any() else [time, rest]), service)


def of(found: Comparison, name: str) -> dict[str, float]:
    columns = found.to_columns()
    at = columns["function"].index(name)  # type: ignore[arg-type]
    return {key: float(columns[f"own_{key}"][at]) for key in ("before", "after")}


def lines(found: Comparison) -> str:
    return "\n".join(table(found, "own", (40, 40), 120, False))


def test_functions_have_their_share_of_the_time_without_samples() -> None:
    whole = of_service(recording(0, SECONDS, bursts={}))
    found = whole.diff(sampled(0.3), normalize="time")
    assert found.whole.after == pytest.approx(10**9), "the total is exact"
    assert found.unsampled.after == 0
    big = of(found, "big")
    assert big["after"] == pytest.approx(big["before"], rel=0.1), "not 30 % of it"
    assert not [each.name for each in found.functions if each.significant]
    assert "70 % of after (shares" in lines(found)


@pytest.mark.parametrize("part", [0.0, 0.0002])
def test_functions_of_a_side_with_too_few_samples_are_unknown(part: float) -> None:
    whole = of_service(recording(0, SECONDS, bursts={}))
    for sides in ((whole, sampled(part)), (sampled(part), whole)):
        found = sides[0].diff(sides[1], normalize="time")
        assert found.whole.after == pytest.approx(10**9, rel=0.02)
        text = lines(found)
        assert "costs of its functions are unknown" in text
        assert "gone" not in text
        assert "new" not in text.replace("news", "")
        assert not [each.name for each in found.functions if each.significant]


def test_unknown_costs_are_empty_in_tables_and_null_in_json() -> None:
    found = of_service(recording(0, SECONDS, bursts={})).diff(sampled(0.0), normalize="time")
    assert math.isnan(of(found, "big")["after"])
    out = io.BytesIO()
    write_csv(found, out)
    row = next(line for line in out.getvalue().decode().splitlines() if line.startswith("big,"))
    assert row.split(",")[3] == ""
    out = io.BytesIO()
    write_json(found, out)
    assert b'"after":null' in out.getvalue().replace(b" ", b"")


def test_function_that_few_samples_would_show_is_not_called_gone() -> None:
    whole, few = of_service(recording(0, SECONDS, bursts={})), sampled(0.005)
    found = whole.diff(few, normalize="time")
    absent = [each for each in found.functions if each.own.before and not each.own.after]
    assert absent
    rare = [each for each in absent if each.own.before < 0.02 * found.whole.before]
    assert all(each.own.is_unknown for each in rare)


def test_time_of_a_service_without_samples_goes_to_no_other_service() -> None:
    first, other = sampled(1.0), sampled(0.0, service="api")
    row = len(first.parent)
    marker = other.frames[-1]
    both = replace(
        first,
        frames=(*first.frames, marker),
        parent=np.append(first.parent, np.int32(0)),
        frame=np.append(first.frame, np.int32(len(first.frames))),
        threads=(*first.threads, other.threads[-1]),
        time_ns=np.append(first.time_ns, first.start_ns),
        stack=np.append(first.stack, np.int32(row)),
        thread=np.append(first.thread, np.int32(len(first.threads))),
        values=np.concatenate([first.values, np.array([[0, NANOSECONDS]])]),
        state=None,
        cpu=None,
    )
    found = first.diff(both, normalize="time")
    assert found.unsampled.after == pytest.approx(10**9, rel=0.01)
    assert found.whole.after == pytest.approx(2 * 10**9, rel=0.01)
    big = of(found, "big")
    assert big["after"] == pytest.approx(big["before"], rel=0.01)
