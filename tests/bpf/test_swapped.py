"""Tests of targets whose memory is swapped out while they are sampled: missing data is marked, no frame is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pyprof
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf import stack_copy_size
from pyprof.collectors.perf.stack_copy_size import AbsentPages
from tests.bpf.swapping import Pages, swap_file
from tests.collapsed import Stacks
from tests.interpreters.known_calls import judge_parts, read_callers
from tests.interpreters.pythons import OLDEST_AND_NEWEST, Python, running
from tests.interpreters.runs import functions, record, stacks
from tests.live.support import recording as native
from tests.live.support.ladders import ladder

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

DEPTH = 1500


@pytest.fixture(scope="module", autouse=True)
def swap() -> Iterator[None]:
    with swap_file():
        yield


@contextmanager
def leaving(pid: int) -> Iterator[list[int]]:
    """Page out the process's memory repeatedly, and yield the list of bytes of each time."""
    pages, rounds, over = Pages(pid), [0], threading.Event()

    def drive() -> None:
        while not over.wait(0.02 if len(rounds) % 5 else 0.2):
            rounds.append(pages.leave())

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield rounds
    finally:
        over.set()
        thread.join()
        pages.close()


@OLDEST_AND_NEWEST
def test_python_whose_memory_leaves_all_the_time_has_right_functions_or_a_mark(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"

    def enough(found: Stacks) -> bool:
        return len([frames for frames, _ in found if is_marked(frames)]) > 5 and whole(found) > 20

    with running(python, "calls.py", "1") as process:
        callers = read_callers(process.stdout)
        with leaving(process.pid) as rounds:
            summary = record(process.pid, output, "--collector", "bpf", "-r", "999", until=enough)
    found = stacks(output)
    assert enough(found)
    assert sum(rounds) > 10 << 20
    for frames, _ in found:
        judge_parts(frames, "calls.py", callers)
        names = functions(frames, "calls.py")
        assert is_marked(frames) or not names or names[0] in ("<module>", "main"), frames
    assert summary["stops"]["count"] == 0
    assert summary["errors"], "what was not there is counted"


def is_marked(frames: list[str]) -> bool:
    return any(frame.startswith("[") for frame in frames)


def whole(found: Stacks) -> int:
    return sum(n for frames, n in found if not is_marked(frames) and "work (calls.py)" in frames)


def taken(recording: pyprof.Recording) -> tuple[int, int]:
    """Return the number of complete and of truncated samples, and assert that each has the frames of the program."""
    whole = cut = 0
    for path in native.names(recording.peek()):
        inner = path[-1:] == ("deep_top",)
        if path[0].startswith("["):
            assert set(path[1:]) <= {"down", "deep_top"}, path
            assert len(path) <= DEPTH + 3
            cut += inner
        elif inner:
            assert path.count("down") == DEPTH
            assert "main" in path
            whole += 1
    return whole, cut


def test_stack_that_was_swapped_out_is_cut_and_whole_again_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_copy_size, "_MIN_REREAD_NS", 100_000_000)
    with native.running(ladder("ladder_deeper"), "spin", native.LIFE, str(DEPTH)) as program:
        pages = Pages(program.pid)
        with pyprof.attach(program.pid, collector="bpf", rate=499) as recording:
            for _ in range(2):
                # a later look may find fewer cut samples: they were completed by later ones
                before = cut = taken(recording)[1]
                end = time.monotonic() + 60
                while cut < before + 5 and time.monotonic() < end:
                    assert pages.leave() > 100 << 10
                    time.sleep(0.05)
                    cut = taken(recording)[1]
                assert cut >= before + 5
                before = whole = taken(recording)[0]
                while whole < before + 20 and time.monotonic() < end:
                    time.sleep(0.1)
                    whole = taken(recording)[0]
                assert whole >= before + 20
            summary = recording.stop().summary
        pages.close()
    assert summary.stops.count == 0


def test_pages_come_back_now_and_then_not_at_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    now = [0]

    def take(at: int, size: int) -> bytes:
        read.append(at)
        return bytes(size)

    monkeypatch.setattr(procfs, "make_memory_reader", lambda pid: take)
    pages = AbsentPages(1 << 16, lambda: now[0])
    for now[0] in range(0, 21_000_000_000, 1_000_000_000):
        pages.read_pages(1, 4096, 8192)
    assert read == 3 * [4096, 8192]
    pages.read_pages(2, 4096, 4096)
    assert len(read) == 7
