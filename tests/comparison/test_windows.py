"""Tests of comparisons of the agent's windows, whose samples have the time of their window."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from pyprof.cli.comparison_table import sensitivity, table
from pyprof.comparison.result import Comparison
from pyprof.comparison.significance import ODDS
from pyprof.exporters.comparison_file import write_json
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile
from tests.comparison.simulated import SHARES, recording

PERIOD = 40
"""One of this many samples of the simulated program is kept, which leaves 25 a second."""
GROWN = SHARES | {"slowed": 0.2 * 2}


def windows(seed: int, count: int, shares: dict[str, float] = SHARES, seconds: int = 30) -> Profile:
    """Return a profile of some windows of a program: a row for each stack in each window, and exact totals."""
    whole = recording(seed, count * seconds, shares, {})
    kept = np.random.default_rng(seed).random(len(whole.stack)) < 1 / PERIOD
    window = (whole.time_ns[kept] - whole.start_ns) * count // whole.duration_ns
    key, row, number = np.unique(np.stack([window, whole.stack[kept]]), axis=1, return_index=True, return_counts=True)
    of_window = np.bincount(key[0], number)[key[0]]
    total_ns = round(1e9 * seconds * sum(shares.values()))
    note = make_note("read_from_segments", count=count, minutes=count * seconds / 60)
    return replace(
        whole,
        stack=key[1].astype(np.int32),
        thread=whole.thread[kept][row],
        time_ns=whole.start_ns + key[0] * seconds * 10**9,
        values=np.stack([number, number * total_ns // of_window], axis=1),
        state=None,
        cpu=None,
        summary=replace(whole.summary, notes=(note,)),
    )


def marked(found: Comparison) -> set[str]:
    return {each.name for each in found.functions if each.significant} - {"main"}


@pytest.mark.parametrize("count", [1, 2, 5, 11, 12, 30])
def test_large_change_is_marked_in_any_number_of_windows(count: int) -> None:
    found = windows(1, count).diff(windows(2, count, GROWN), normalize="time")
    assert marked(found) == {"slowed"}
    text = "\n".join([*table(found, "own", (40, 40), 120, False), *sensitivity(found, 120)])
    assert ("Only the chance of sampling is tested" in text) == (count < 12)
    assert "more, would be found in four of five cases" in text
    out = io.BytesIO()
    write_json(found, out)
    document = json.loads(out.getvalue())
    assert (bool(document["caution"]), document["doubt"]) == (count < 12, "")


@pytest.mark.parametrize(("count", "seconds"), [(1, 60), (3, 20), (4, 60)])
def test_windows_of_an_unchanged_program_show_a_mark_as_seldom_as_stated(count: int, seconds: int) -> None:
    runs = 100
    lucky = sum(
        bool(marked(windows(2 * seed, count, seconds=seconds).diff(windows(2 * seed + 1, count, seconds=seconds))))
        for seed in range(runs)
    )
    assert lucky <= 3 * ODDS * runs


def test_stated_change_of_windows_is_found_in_four_of_five_cases() -> None:
    found = windows(0, 3).diff(windows(1, 3))
    (stated,) = (each.own.detectable for each in found.functions if each.name == "slowed")
    grown = SHARES | {"slowed": 0.2 * (1 + stated)}
    hits = sum("slowed" in marked(windows(seed, 3).diff(windows(seed + 100, 3, grown))) for seed in range(60))
    assert 0.65 <= hits / 60 <= 0.97


def test_twelve_samples_or_fewer_are_too_few() -> None:
    found = windows(1, 1, seconds=1).diff(windows(2, 1, GROWN))
    assert "unknown" in found.doubt or not marked(found)
