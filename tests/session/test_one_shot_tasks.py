"""Tests of tasks that a worker runs once: their pieces come in order and on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.problem_counters import Diagnostics
from pyprof.session.worker.response_codec import WorkerFailed
from pyprof.session.worker.worker_client import Examiner
from pyprof.session.worker.worker_process import Worker, WorkerDied, forked

MANY = 2000


@dataclass(frozen=True, slots=True)
class Counted:
    number: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Counting:
    """A task that yields many pieces and then ends in a given way."""

    ends: str = ""

    def pieces(self, diagnostics: Diagnostics) -> Iterator[object]:
        for number in range(MANY):
            yield Counted(number, "x" * 100)
        if self.ends == "refused":
            raise UsageError("no more", "ask for less")
        if self.ends == "wrong":
            raise ZeroDivisionError("of its own")
        if self.ends == "another class":
            yield Counting()


def test_pieces_come_in_order_and_none_is_taken_before_the_last_one_was_used() -> None:
    with Examiner(forked, confined=False) as examiner:
        pieces = examiner.pieces(Counting(), Counted)
        (pending,) = examiner._link._asked.values()
        waiting = [len(pending._pieces) for number, piece in enumerate(pieces) if piece.number == number]
    assert waiting == [0] * MANY


def test_one_worker_runs_several_errands() -> None:
    with Examiner(forked, confined=True) as examiner:
        for _ in range(2):
            assert sum(1 for _ in examiner.pieces(Counting(), Counted)) == MANY


@pytest.mark.parametrize(
    ("ends", "kind", "says"),
    [
        ("refused", UsageError, "no more"),
        ("wrong", WorkerFailed, "of its own"),
        ("another class", WorkerDied, "Counted"),
    ],
)
def test_error_comes_after_the_pieces_before_it(ends: str, kind: type[Exception], says: str) -> None:
    found: list[Counted] = []
    with Examiner(forked, confined=False) as examiner:
        pieces = examiner.pieces(Counting(ends), Counted)
        with pytest.raises(kind, match=says):
            found.extend(pieces)
    assert [piece.number for piece in found] == list(range(MANY))


def test_worker_that_is_killed_is_said() -> None:
    workers: list[Worker] = []

    def started(confined: bool) -> Worker:
        workers.append(forked(confined))
        return workers[0]

    with Examiner(started, confined=False) as examiner:
        pieces = examiner.pieces(Counting(), Counted)
        assert next(pieces).number == 0
        workers[0].kill()
        with pytest.raises(WorkerDied, match="by signal 9"):
            assert sum(1 for _ in pieces) < MANY
