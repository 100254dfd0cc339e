"""When a loop that was told to end is left where it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from pyprof.session import overdue
from pyprof.session.overdue import ended_in_time


class Loop:
    """A recording's, in a thread of its own that does one job."""

    def __init__(self, job: Callable[[], object]) -> None:
        self.sampled = threading.Event()
        self.collecting = True
        self.hung_up = False
        self.tid = 0
        self._begun = threading.Event()
        self._job = job
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        self.tid = threading.get_native_id()
        self._begun.set()
        self._job()

    def hang_up(self) -> None:
        self.hung_up = True

    def join(self) -> None:
        self._thread.join()


@pytest.fixture
def silence() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_loop_that_waits_in_the_kernel_is_left(silence: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "ELAPSED_S", 60)
    loop = Loop(lambda: os.read(silence[0], 1))
    assert not ended_in_time(loop, loop.tid, 0.1)
    assert loop.hung_up
    os.write(silence[1], b"x")
    loop.join()


def test_loop_that_computes_for_ever_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "ELAPSED_S", 60)
    enough: list[int] = []

    def compute() -> None:
        while not enough:
            pass

    loop = Loop(compute)
    assert not ended_in_time(loop, loop.tid, 0.1)
    enough.append(1)
    loop.join()


def test_loop_that_waits_for_the_worker_is_left_to_its_time_limits(
    silence: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "ELAPSED_S", 60)
    loop = Loop(lambda: os.read(silence[0], 1))
    loop.collecting = False
    timer = threading.Timer(0.5, loop.sampled.set)
    timer.start()
    assert ended_in_time(loop, loop.tid, 0.1)
    assert not loop.hung_up
    os.write(silence[1], b"x")
    loop.join()


def test_loop_that_gets_no_processor_time_is_left_in_the_end(
    silence: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "ELAPSED_S", 0.2)
    loop = Loop(lambda: os.read(silence[0], 1))
    loop.collecting = False
    assert not ended_in_time(loop, loop.tid, 60)
    os.write(silence[1], b"x")
    loop.join()
