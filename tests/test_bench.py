"""Tests of comparing two benchmark runs beyond their noise, and of separating fixed cost from cost for each sample."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.afternoon_host import Program
from bench.afternoon_windows import Window, lost_s
from bench.agent import interval, longest_gap_s
from bench.comparing import changes, machine_factor
from bench.operators_afternoon import unnamed
from bench.results import Case, Run, load, machine, save, split

CASE = Case("ladder", 100, "pyprof --collector ptrace", 10)


def runs(*cpu_s: float, case: Case = CASE, samples: int = 1000) -> list[Run]:
    return [Run(case, seconds, samples, 0.4, 50) for seconds in cpu_s]


def test_figure_whose_rounds_overlap_has_not_changed() -> None:
    (cpu,) = (change for change in changes(runs(1.0, 1.1, 1.4), runs(1.3, 1.5, 1.6)) if change.figure == "cpu_s")
    assert cpu.chance


def test_figure_whose_rounds_lie_apart_has_changed() -> None:
    (cpu,) = (change for change in changes(runs(1.0, 1.1, 1.2), runs(1.3, 1.5, 1.6)) if change.figure == "cpu_s")
    assert (cpu.before, cpu.after, cpu.chance) == (1.1, 1.5, False)


def test_difference_that_is_too_small_to_matter_is_chance() -> None:
    (cpu,) = (change for change in changes(runs(1.0, 1.0, 1.0), runs(1.01, 1.01, 1.01)) if change.figure == "cpu_s")
    assert cpu.chance


def test_two_rounds_prove_nothing() -> None:
    assert list(changes(runs(1.0, 1.1), runs(2.0, 2.1))) == []


def test_what_peers_take_tells_how_the_machine_has_changed() -> None:
    peer = Case("ladder", 100, "samply", 10)
    before, after = runs(1.0, 2.0, 3.0) + runs(0.1, 0.2, 0.3, case=peer), runs(9.0) + runs(0.3, case=peer)
    assert machine_factor(before, after) == pytest.approx(1.5)
    assert machine_factor(runs(1.0), runs(2.0)) is None


def test_cost_of_two_lengths_is_split() -> None:
    short = Case("ladder", 100, "samply", 2)
    longer = Case("ladder", 100, "samply", 10)
    both = runs(0.4, 0.4, 0.5, case=short, samples=200) + runs(0.6, 0.6, 0.7, case=longer, samples=1000)
    fixed, each = split(both, "ladder", 100, "samply") or (0.0, 0.0)
    assert fixed == pytest.approx(0.35)
    assert each == pytest.approx(250)


def test_runs_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    saved = runs(1.0, 2.0)
    save(saved, machine(), tmp_path / "costs.json")
    assert load(tmp_path / "costs.json") == saved


def test_interval_holds_the_mean_and_grows_with_what_differs() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, round(low, 2), round(high, 2)) == (2.0, -0.48, 4.48)
    assert interval([2.0])[0] == 2.0
    assert interval([1.0] * 40)[1:] == (1.0, 1.0)


def test_window_that_is_missing_is_a_gap() -> None:
    assert longest_gap_s([3 * 10**9, 10**9, 2 * 10**9]) == 1.0
    assert longest_gap_s([10**9, 2 * 10**9, 4 * 10**9]) == 2.0
    assert longest_gap_s([]) == 0.0


def test_time_without_a_window_is_lost_in_the_part_in_which_it_ends() -> None:
    ahead_ns = time.time_ns() - time.monotonic_ns()
    spans = [(0, 10), (10, 20), (25, 30), (30, 40)]
    found = [Window(name, int(a * 1e9), int(b * 1e9), 1) for name in ("web", "batch") for a, b in spans]
    parts = [(ahead_ns + int(a * 1e9), ahead_ns + int(b * 1e9)) for a, b in ((-1, 22), (22, 41))]
    assert [round(lost_s(found, *part)) for part in parts] == [0, 5]


def test_failure_of_an_afternoon_must_be_named_in_each_place(tmp_path: Path) -> None:
    program = Program([], tmp_path / "log", "http://127.0.0.1:1", "")
    program.seen.log |= {"push_failing", "timeout", "clock was set"}
    program.seen.metric |= {"push_failing"}
    assert unnamed(program, ["push_failing (timeout)", "log: clock was set", "metric: other"]) == [
        "/healthz: push_failing",
        "/healthz: timeout",
        "metric: other",
    ]
    program.seen.health |= {"push_failing", "timeout"}
    assert unnamed(program, ["push_failing (timeout)"]) == []
