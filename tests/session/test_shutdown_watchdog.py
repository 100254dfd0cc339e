"""Tests of the watchdog that abandons a sampling loop if it does not end on request."""

from __future__ import annotations

import math
import time

import pytest

from pyprof.session import shutdown_watchdog
from pyprof.session.shutdown_watchdog import LEAVE_S, MAX_ELAPSED_S, EndFailure, await_end


class Loop:
    """A sampling loop in simulated time, in which each check takes a tenth of LEAVE_S.

    The loop ends after ends_s, or at a closed channel if needs_answers is true. It waits for a processor for the
    fraction `starved` of the time and runs for the fraction `runs`. If works is true, it finishes a unit of work at
    each check. `crowd` tasks share a processor.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ends_s: float = math.inf,
        needs_answers: bool = False,
        starved: float = 0.0,
        works: bool = False,
        runs: float = 0.0,
        crowd: float = 0.5,
    ) -> None:
        self.now = 0.0
        self.progress = 0
        self.hung_up = False
        self.sampled = self
        self._runs, self._crowd = runs, crowd
        self._ends_s, self._needs_answers, self._starved, self._works = ends_s, needs_answers, starved, works
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, _: float) -> bool:
        self.now += LEAVE_S / 10
        self.progress += self._works
        return self.now >= self._ends_s or (self._needs_answers and self.hung_up)

    def waits(self) -> dict[int, float]:
        return {7: self._starved * self.now, 8: 0.0}

    def activity(self) -> dict[int, float]:
        return {7: (self._starved + self._runs) * self.now}

    def contention(self) -> float:
        return self._crowd

    def hang_up(self) -> None:
        self.hung_up = True


def test_loop_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    assert await_end(loop) is EndFailure.BLOCKED
    assert loop.now < 1.3 * LEAVE_S
    assert loop.hung_up


def test_blocked_loop_is_left_later_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await_end(Loop(monkeypatch, ends_s=1.8 * LEAVE_S, crowd=2.0))
    loop = Loop(monkeypatch, crowd=20.0)
    assert await_end(loop) is EndFailure.BLOCKED
    assert 3 * LEAVE_S < loop.now < 3.3 * LEAVE_S


def test_loop_that_waits_for_an_answer_gets_none_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await_end(Loop(monkeypatch, needs_answers=True))


def test_loop_that_ends_is_answered_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, ends_s=LEAVE_S / 4)
    assert not await_end(loop)
    assert not loop.hung_up


def test_loop_that_waits_for_a_processor_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await_end(Loop(monkeypatch, ends_s=8 * LEAVE_S, starved=0.9))


def test_loop_that_runs_is_left_later_than_one_that_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await_end(Loop(monkeypatch, ends_s=3 * LEAVE_S, runs=1.0))
    loop = Loop(monkeypatch, runs=1.0)
    assert await_end(loop) is EndFailure.SLOW
    assert loop.now < (shutdown_watchdog._MAX_RUN_PERIODS + 1) * LEAVE_S


def test_loop_that_never_gets_a_processor_is_left_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, starved=1.0)
    assert await_end(loop) is EndFailure.SLOW
    assert MAX_ELAPSED_S <= loop.now < MAX_ELAPSED_S + LEAVE_S


def test_loop_that_makes_progress_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await_end(Loop(monkeypatch, ends_s=8 * LEAVE_S, works=True))


def test_loop_that_makes_progress_for_ever_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, works=True)
    assert await_end(loop) is EndFailure.SLOW
    assert loop.now < (shutdown_watchdog._MAX_PERIODS + 1) * LEAVE_S
