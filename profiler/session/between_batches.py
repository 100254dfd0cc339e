"""What other threads ask of a recording's loop: it does it between two batches, when it touches nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyprof.handover import Handover
from pyprof.records import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Question:
    """at_ns: see BetweenBatches.ask."""

    at_ns: int
    answer: Future[Any]
    job: Callable[[], Any]


class BetweenBatches:
    """Of one loop. handover: with its collector."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._questions: list[_Question] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Has the loop ended?"""
        return self._over.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Until the loop has ended, at most so many seconds; has it?"""
        return self._over.wait(timeout)

    def ask(self, job: Callable[[], T], at_ns: int = 0) -> T | None:
        """Have the loop do it: once it has all samples until then (monotonic), or at once. None if it ended before."""
        from concurrent.futures import Future

        question = _Question(at_ns, Future(), job)
        with self._lock:
            if self.over:
                return None
            self._questions.append(question)
        if at_ns:
            self._handover.want(at_ns)
        try:
            found: T | None = question.answer.result()
        except BaseException:
            question.answer.cancel()
            raise
        return found

    def answer(self) -> None:
        """Only for the loop: do what was asked for and is due, or all of it where the loop has ended."""
        with self._lock:
            due = [each for each in self._questions if self.over or self._handover.is_ready(each.at_ns)]
            self._questions = [each for each in self._questions if each not in due]
        for each in due:
            if each.answer.set_running_or_notify_cancel():
                try:
                    each.answer.set_result(None if self.over else each.job())
                except BaseException as error:
                    each.answer.set_exception(error)

    def end(self) -> None:
        """Only for the loop: from now on nothing is done, and who waits for a result gets that as an error."""
        with self._lock:
            self._over.set()
        self.answer()
