"""Tests of real processes sampled by perf_events, against ptrace and against their known behaviour."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from pyprof.collectors.combined.source_switching_collector import FROM_OUTSIDE
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.options import CollectOptions
from tests.live.support.ladders import ladder, rungs
from tests.live.support.recording import LIFE, Recording, record, running
from tests.live.test_ladders import FORKS, MAIN, THREAD, climbing, strange
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions())
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")


def by_perf(pid: int, folder: Path, *options: str, rate: int = 499, **how: Any) -> Recording:
    return record(pid, folder, "--collector", "perf", *options, rate=rate, **how)


def test_stacks_of_busy_threads_are_those_that_ptrace_finds(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program:
        kernel = by_perf(
            program.pid, tmp_path, rate=999, until=lambda found: len(found.stacks) > 3 and found.samples >= 20
        )
        stopped = record(program.pid, tmp_path, rate=99, until=lambda found: len(found.stacks) > 3)
    assert kernel.whole == stopped.whole == 1.0
    assert set(kernel.stacks) == set(stopped.stacks)
    assert len(kernel.stacks) == 4
    assert kernel.samples >= 20
    assert kernel.summary["stops"]["count"] == 0
    assert any("perf_events" in note["text"] for note in kernel.summary["notes"])


@pytest.mark.parametrize("build", ["ladder", "ladder_fp"])
def test_threads_that_climb_have_stacks_that_begin_like_the_ladder(build: str, tmp_path: Path) -> None:
    with running(ladder(build), "climb", LIFE) as program:
        recording = by_perf(program.pid, tmp_path, seconds=1)
    assert recording.whole == 1.0
    ladders = [f"{p}_thread{climbing([*rungs(p), f'{p}_top'])}" for p in "abcd"]
    assert strange(recording, rf"{THREAD};(?:{'|'.join(ladders)})") == []


def test_libraries_that_come_and_go_are_those_of_the_sample_s_moment(tmp_path: Path) -> None:
    one, other = ladder("libone.so"), ladder("libother.so")

    def has_both(recording: Recording) -> bool:
        return {"one_top", "other_top"} <= {stack[-1] for stack in recording.stacks}

    with running(ladder("ladder_dlopen"), "climb", LIFE, one, other) as program:
        recording = by_perf(program.pid, tmp_path, seconds=2, until=has_both)
    steps = [f";enter(?:{climbing([*rungs(p), f'{p}_top'])}(?:@plt)?)?" for p in ("one", "other")]
    loader = r"(?!.*;(?:one|other)_\d\d).*"
    allowed_ = rf"{MAIN}(?:;visit(?:{'|'.join(steps)}|{loader})?)?"
    wrong = {stack: n for stack, n in recording.stacks.items() if not re.fullmatch(allowed_, ";".join(stack))}
    assert sum(wrong.values()) <= 0.005 * recording.samples, wrong
    assert has_both(recording)


@pytest.mark.parametrize("mode", ["fork", "tree", "exec", "storm"])
def test_children_images_and_short_threads_are_followed_without_a_stop(mode: str, tmp_path: Path) -> None:
    with running(ladder("ladder_fork"), mode, LIFE) as program:
        recording = by_perf(program.pid, tmp_path, "-s", seconds=2)
    # a sample inside execve has the old registers and the new, empty memory
    pattern = FORKS[mode].format(f=climbing([*rungs("f"), "f_top"])) + r"|.*truncated.*;execve|.*no unwind rule.*"
    allowed_ = re.compile(pattern)
    wrong = {stack: n for stack, n in recording.stacks.items() if not allowed_.fullmatch(";".join(stack))}
    assert sum(wrong.values()) <= 0.02 * recording.samples, wrong
    assert sum(n for stack, n in recording.stacks.items() if "f_top" in stack) > 0.5 * recording.samples
    assert recording.whole > 0.93


def test_children_are_left_alone_without_s(tmp_path: Path) -> None:
    with running(ladder("ladder_fork"), "fork", LIFE) as program:
        recording = by_perf(program.pid, tmp_path, seconds=1)
    assert not any("work" in stack for stack in recording.stacks)


def test_handler_on_its_own_stack_is_whole_or_marked_as_cut(tmp_path: Path) -> None:
    with running(ladder("ladder_signal"), "spin", LIFE) as program:
        recording = by_perf(program.pid, tmp_path, "--stack-size", "64K")
    leaf = r"(?:;leaf_(?:bare|moving|r11|deref|popped))?"
    whole = MAIN + climbing([*rungs("s"), f"s_top{leaf}"]) + r"(?:;[^;]+(?:;handler(?:;handler_top)?)?)?"
    # a sample inside rt_sigreturn has some registers of the handler and some of what it interrupted
    cut = r"[^;]*truncated[^;]*;(?:.*;handler(?:;handler_top)?|__restore_rt)"
    assert strange(recording, rf"{whole}|{cut}") == []


def test_sleeping_threads_are_read_from_outside_and_the_summary_says_so(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, "--collector", "perf", "-i", seconds=0.5)
    assert recording.summary["stops"]["count"] == 0
    assert recording.summary["notes"][-1]["reason"] == FROM_OUTSIDE.reason
