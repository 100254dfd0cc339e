"""Tests of deadlines of the worker's computations, which end wherever they are."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from pyprof.session.worker.deadline import AT_ONCE, SIGNAL, UNWOUND_S, WANTED, WorkDeadline, exchange


@pytest.fixture
def deadline() -> Iterator[WorkDeadline]:
    before = {number: signal.getsignal(number) for number in (SIGNAL, AT_ONCE, WANTED)}
    found = WorkDeadline()
    found.obey()
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def soon(number: int = SIGNAL) -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()


def endless() -> int:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001 - catches what a deadline must not raise
            return 1


def test_job_that_does_not_end_is_ended(deadline: WorkDeadline) -> None:
    soon()
    assert deadline.unless_late(endless) is None
    assert deadline.late


@pytest.mark.parametrize("number", [SIGNAL, WANTED])
@pytest.mark.parametrize("is_weak", [False, True])
def test_deadline_during_a_finalizer_ends_the_job_after_it(deadline: WorkDeadline, number: int, is_weak: bool) -> None:
    """Python would print an exception in a finalizer on the user's terminal, and ignore it."""
    ended: list[bool] = []

    def end() -> None:
        os.kill(os.getpid(), number)
        ended.append(True)

    class Finalized:
        def __del__(self) -> None:
            end()

    class Referenced:
        pass

    def job() -> int:
        if is_weak:
            weakref.finalize(Referenced(), end)
        else:
            Finalized()
        assert ended == [True]
        os.kill(os.getpid(), number)
        return endless()

    assert deadline.meanwhile(job) is None
    assert ended == [True]


def test_job_in_time_gives_its_result(deadline: WorkDeadline) -> None:
    assert deadline.unless_late(lambda: 7) == 7
    assert not deadline.late


def test_outside_of_a_job_nothing_ends_and_no_other_job_begins(deadline: WorkDeadline) -> None:
    os.kill(os.getpid(), SIGNAL)
    assert deadline.late
    assert deadline.unless_late(lambda: 7) is None


def test_received_stacks_are_unwound_for_a_moment_unless_the_end_is_immediate(
    deadline: WorkDeadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 7.0
    monkeypatch.setattr(time, "process_time", lambda: now)
    os.kill(os.getpid(), SIGNAL)
    assert (deadline.late, deadline.too_late) == (True, False)
    now += 0.9 * UNWOUND_S
    os.kill(os.getpid(), SIGNAL)  # repeated signals must not extend the deadline
    assert not deadline.too_late
    now += 0.2 * UNWOUND_S
    assert deadline.too_late
    now -= UNWOUND_S
    assert not deadline.too_late
    os.kill(os.getpid(), AT_ONCE)
    assert deadline.too_late


def test_errors_of_a_job_are_the_callers(deadline: WorkDeadline) -> None:
    with pytest.raises(ZeroDivisionError):
        deadline.unless_late(lambda: 1 // 0)
    os.kill(os.getpid(), SIGNAL)
    assert deadline.late


def test_question_gets_its_answer_before_the_job_ends(deadline: WorkDeadline) -> None:
    done = []

    def ask() -> None:
        with exchange():
            os.kill(os.getpid(), SIGNAL)
            done.append("answer")
        os.kill(os.getpid(), SIGNAL)
        done.append("more")

    assert deadline.unless_late(ask) is None
    assert done == ["answer"]


def test_what_is_done_meanwhile_ends_when_something_else_is_wanted(deadline: WorkDeadline) -> None:
    soon(WANTED)
    assert deadline.meanwhile(endless, 60) is None
    assert deadline.wanted
    assert deadline.meanwhile(lambda: 7) is None
    assert deadline.unless_late(lambda: 7) == 7


def test_what_is_done_meanwhile_ends_by_itself(deadline: WorkDeadline) -> None:
    assert deadline.meanwhile(lambda: 7) == 7
    assert not deadline.wanted
    assert deadline.meanwhile(endless, 0.05) is None
    assert deadline.wanted
    assert not deadline.late


def test_where_no_time_is_left_nothing_is_done_meanwhile(deadline: WorkDeadline) -> None:
    soon()
    assert deadline.meanwhile(endless, 60) is None
    assert deadline.late
    assert deadline.meanwhile(lambda: 7) is None


def test_job_in_reserve_runs_after_the_deadline_until_its_time_is_used(
    deadline: WorkDeadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (WANTED, SIGNAL):
        os.kill(os.getpid(), number)

    def job() -> int:
        os.kill(os.getpid(), SIGNAL)  # the sampler repeats the signal
        return 7

    assert deadline.in_reserve(job) == 7
    monkeypatch.setattr("pyprof.session.worker.deadline.RESERVE_S", 0.05)
    assert deadline.in_reserve(endless) is None


def test_immediate_deadline_ends_a_job_in_reserve_and_no_other_begins(
    deadline: WorkDeadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyprof.session.worker.deadline.RESERVE_S", 600)
    os.kill(os.getpid(), SIGNAL)
    soon(AT_ONCE)
    assert deadline.in_reserve(endless) is None
    assert deadline.in_reserve(lambda: 7) is None
