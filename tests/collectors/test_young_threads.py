"""Tests of short-lived threads sampled by stops: they are sampled in proportion to their run time."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import ShortThreads
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.arch import native_arches
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.chance import share_margin
from tests.collectors.conftest import Start
from tests.live.support.recording import record, running

pytestmark = [pytest.mark.live, pytest.mark.system]

MS, RATE = 1_000_000, 299


def taken(share: float, found: int, others: int = 0, rounds: int = 4000, first_s: float = 0.0) -> int:
    """Return how often new threads are sampled at one sampling time each 10 ms.

    Args:
        share: Fraction of a processor that each new thread has.
        found: Number of new threads at each sampling time.
        others: Number of old threads, each of which is sampled every time.
        rounds: Number of sampling times.
        first_s: Length of the initial time that is not counted, in seconds.
    """
    kin, count, chance = ShortThreads(), 0, random.Random(4).random
    for number in range(rounds):
        now = number * 10 * MS
        if number % 10 == 0:
            kin.update_share(now, round(now * (share + others)))
        for _ in range(found):
            sampled = chance() < kin.share
            kin.count_runnable(young=True, sampled=sampled)
            count += sampled and now >= first_s * 1e9
        for _ in range(others):
            kin.count_runnable(young=False, sampled=True)
        kin.rounds += 1
    return count


@pytest.mark.parametrize(("share", "found"), [(0.2, 3), (1.0, 4), (1.9, 4), (1.0, 1)])
@pytest.mark.parametrize("others", [0, 2])
def test_young_threads_are_sampled_as_often_as_they_had_a_processor(share: float, found: int, others: int) -> None:
    assert taken(share, found, others) == pytest.approx(4000 * share, rel=0.03)


def test_all_that_are_found_are_sampled_where_most_are_not_found() -> None:
    assert taken(2.0, 1) == 4000


@pytest.mark.parametrize("at_once", ["1", "6"])
def test_short_threads_are_sampled_where_they_run(
    at_once: str, binaries: Callable[[str], Path], tmp_path: Path
) -> None:
    with running(binaries("c_births"), "thread", "1000", at_once, stdin=subprocess.PIPE) as program:
        recording = record(program.pid, tmp_path, seconds=2.5, rate=RATE, until=lambda found: found.samples > 100)
        in_busy, spent = map(int, program.communicate()[0].split())
    samples, processor = sum(recording.stacks.values()), recording.summary["processor"]
    assert samples == recording.samples > 100
    assert samples / RATE < 1.1 * processor["spent_s"] + 0.1
    assert samples / RATE > 0.6 * (processor["spent_s"] - processor["late_s"])
    true = in_busy / spent
    busy = sum(n for stack, n in recording.stacks.items() if "busy" in stack) / samples
    assert busy == pytest.approx(true, abs=0.03 + share_margin(true, samples))


def test_thread_that_came_in_the_place_of_another_is_found_in_the_same_round(program: Start) -> None:
    pid = program("c_births", "thread", "5000", "1").pid
    builder = BatchBuilder(native_arches(os.uname().machine), ArenaMemory(1 << 16), 1)
    target = TracedProcess(pid, CollectOptions(), Identities(), Diagnostics())
    found: set[int] = set()
    deadline = time.monotonic() + 60
    while not found:
        assert time.monotonic() < deadline
        target.update(builder)
        listed = {thread.tid for thread, _ in target.choose_threads()}
        assert target.find_late_threads() == []
        for tid in listed - {pid}:
            while (there := os.listdir(f"/proc/{pid}/task")) == [str(pid)] or str(tid) in there:
                pass
            target.threads[tid].ended = True
            late = {thread.tid for thread, _ in target.find_late_threads()}
            assert not late & listed
            found |= late
    target.close()
