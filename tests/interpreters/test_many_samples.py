"""Tests of tests.interpreters.many_samples: its judgement of stacks, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreters.known_calls import impossible
from tests.interpreters.many_samples import LATE, MIN_OF_BRIEF, Judge, many, of_brief
from tests.interpreters.pythons import HERE

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

CALLERS = {"main": {"<module>", "run"}, "work": {"main"}, "leaf": {"work"}}
OF_THREAD = ("clone3", "Thread._bootstrap (threading.py)", "Thread._bootstrap_inner (threading.py)")
RUN = "Thread.run (threading.py)"


def own(*names: str) -> list[str]:
    return [f"{name} (calls.py)" for name in names]


@pytest.mark.parametrize(
    ("frames", "wrong"),
    [
        (own("<module>", "main", "work", "leaf"), ""),
        ([*OF_THREAD, RUN, *own("main", "work", "leaf")], ""),
        (["_start", "main"], ""),
        (["[merge: partial, 1 run unplaced]", *own("work", "leaf")], ""),
        (own("<module>", "main", "leaf"), "main does not call leaf"),
        (own("<module>", "main", "other"), "main does not call other"),
        (own("main", "work"), "it begins with main, work"),
        ([*OF_THREAD, *own("main", "work")], "it begins with _bootstrap, _bootstrap_inner, main, work"),
        ([*OF_THREAD, RUN, *own("work", "leaf")], "it begins with _bootstrap, _bootstrap_inner, run, work"),
        (["[merge: partial, 1 run unplaced]", *own("leaf", "work")], "leaf does not call work"),
    ],
)
def test_stack_against_what_a_program_says_of_its_calls(frames: list[str], wrong: str) -> None:
    assert impossible(frames, "calls.py", CALLERS) == wrong


def test_samples_are_counted_by_what_they_lack() -> None:
    judge = Judge("calls.py", CALLERS, "leaf")
    whole = own("<module>", "main", "work", "leaf")
    bare = ["_start", "_PyEval_EvalFrameDefault"]
    partial = ["[merge: partial, 1 run unplaced]", *own("work", "leaf")]
    judge.look([(whole, 95), (bare, 3), (partial, 2), (own("<module>", "leaf"), 4), ([LATE, *bare], 7)])
    assert (judge.samples, judge.bare, judge.partial, judge.late, judge.inside) == (104, 3, 2, 7, 101)
    assert judge.wrong == {"<module> does not call leaf": 4}
    assert judge.merged == 99 / 104


def test_short_campaign_finds_nothing_impossible(tmp_path: Path) -> None:
    options = ("-r", "999", "--collector", "bpf")
    found = many(HERE, 200, tmp_path, *options)
    brief, true = of_brief(HERE, 200, tmp_path, *options)
    assert not found.wrong + brief.wrong
    assert found.samples >= 200
    assert found.inside > 0
    assert 0 < brief.inside <= brief.samples
    assert 0.3 < true < 1
    assert brief.merged >= MIN_OF_BRIEF
