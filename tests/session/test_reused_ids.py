"""Tests of reused tids and pids: two threads or processes in one window and in its outputs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.model.profile import Profile
from pyprof.options import RecordOptions
from tests.session.test_recording import opened
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

ENOUGH = 25


@contextmanager
def program(folder: Path, what: str, *names: str) -> Iterator[subprocess.Popen[str]]:
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        missing("needs root, and a kernel with CONFIG_CHECKPOINT_RESTORE: /proc/sys/kernel/ns_last_pid")
    path = build(PROGRAMS / "c_reuse.c", folder / "c_reuse", "-O1", "-pthread")
    with subprocess.Popen([path, what, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running


def recorded(running: subprocess.Popen[str], options: RecordOptions) -> tuple[int, Profile]:
    """Return the reused id and the profile of the window in which it was reused."""
    assert running.stdin
    assert running.stdout
    number = int(running.stdout.readline())
    with opened(running.pid, options) as recording:
        recording.start()
        for more in "\n", "":
            wanted = recording.samples + ENOUGH
            while recording.running and recording.samples < wanted:
                time.sleep(0.01)
            running.stdin.write(more)
            running.stdin.flush()
            assert not more or int(running.stdout.readline()) == number
        profile = recording.stop()
    return number, profile


def functions(profile: Profile, thread: int) -> set[str]:
    """Return the functions in all stacks of a thread."""
    leaves = {leaf for at, leaf in zip(profile.thread.tolist(), profile.stack.tolist(), strict=True) if at == thread}
    return {line.function for leaf in leaves for frame in profile.path(leaf) for line in frame.lines}


@pytest.mark.parametrize(
    ("what", "collector", "mode"),
    [("thread", "ptrace", "cpu"), ("thread", "perf", "wall"), ("process", "ptrace", "cpu"), ("process", "perf", "cpu")],
)
def test_a_number_that_is_given_again_is_another_thread(what: str, collector: str, mode: str, tmp_path: Path) -> None:
    options = RecordOptions(rate=300, collector=collector, mode=mode, subprocesses=what == "process")
    with program(tmp_path, what, "early", "later") as running:
        number, profile = recorded(running, options)
    twins = [index for index, thread in enumerate(profile.threads) if thread.tid == number]
    assert [profile.threads[index].name for index in twins] == ["early", "later"]
    for index, own, other in zip(twins, ("one", "two"), ("two", "one"), strict=True):
        assert own in functions(profile, index)
        assert other not in functions(profile, index)
    assert len({profile.threads[index].process_key for index in twins}) == 1 + (what == "process")
    formats = {"collapsed": ".txt", "speedscope": ".json", "chrome": ".trace"}
    for name, suffix in formats.items():
        profile.save(tmp_path / f"out{suffix}", name, threads=True)
    roots = {line.split("one;")[0].split("two;")[0] for line in (tmp_path / "out.txt").read_text().splitlines()}
    assert all(any(f"{name} (tid {number})" in root for root in roots) for name in ("early", "later"))
    events = json.loads((tmp_path / "out.trace").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: (event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert tracks["early"] != tracks["later"]


def test_twins_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with program(tmp_path, "thread", "twin", "twin") as running:
        number, profile = recorded(running, RecordOptions(rate=300, collector="ptrace"))
    assert [thread.name for thread in profile.threads if thread.tid == number] == ["twin", "twin #2"]
