"""When a loop that was told to end is left where it is."""

from __future__ import annotations

import threading

from pyprof.session.overdue import ended_in_time

HANGS_S = 20


class Loop:
    """One that ends once nobody answers it, or never."""

    def __init__(self, needs_answers: bool = False) -> None:
        self.sampled = threading.Event()
        self.hung_up = 0
        self._needs_answers = needs_answers

    def hang_up(self) -> None:
        self.hung_up += 1
        if self._needs_answers:
            self.sampled.set()


def test_loop_that_does_not_end_is_left() -> None:
    loop = Loop()
    assert not ended_in_time(loop, 0.05)
    assert loop.hung_up == 1


def test_loop_that_waits_for_an_answer_gets_none_and_ends() -> None:
    loop = Loop(needs_answers=True)
    assert ended_in_time(loop, 0.05)


def test_loop_that_ends_is_answered_until_then() -> None:
    loop = Loop()
    timer = threading.Timer(0.05, loop.sampled.set)
    timer.start()
    assert ended_in_time(loop, HANGS_S)
    assert not loop.hung_up
