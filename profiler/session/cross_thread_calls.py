"""Calls from other threads that the recording's loop executes between two batches, when it uses no other state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyprof.records import dataclass
from pyprof.window_flush_protocol import FlushProtocol

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CrossThreadCall:
    """A job from another thread that waits for the recording's loop (see BetweenBatches.ask)."""

    at_ns: int
    answer: Future[Any]
    job: Callable[[], Any]


class BetweenBatches:
    """A queue of calls from other threads that a recording's loop executes between two batches.

    Args:
        handover: Flush protocol with the collector.
    """

    def __init__(self, handover: FlushProtocol) -> None:
        self._handover = handover
        self._questions: list[_CrossThreadCall] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """True if the recording's loop has ended."""
        return self._over.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until the recording's loop has ended.

        Args:
            timeout: Maximum wait in seconds, None for no limit.

        Returns:
            True if the loop has ended.
        """
        return self._over.wait(timeout)

    def ask(self, job: Callable[[], T], at_ns: int = 0) -> T | None:
        """Execute a job in the recording's loop and wait for its result.

        Args:
            job: The job.
            at_ns: Time on the monotonic clock up to which all samples must have arrived first, 0 to run as soon as
                possible.

        Returns:
            The result, or None if the loop ends before.

        Raises:
            Exception: What the job raises.
        """
        from concurrent.futures import Future

        question = _CrossThreadCall(at_ns, Future(), job)
        with self._lock:
            if self.over:
                return None
            self._questions.append(question)
        if at_ns:
            self._handover.request_flush(at_ns)
        try:
            found: T | None = question.answer.result()
        except BaseException:
            question.answer.cancel()
            raise
        return found

    def answer(self) -> None:
        """Execute the jobs of other threads that are due; after the end of the loop, cancel all. Only for the loop."""
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
        """Execute no more jobs of other threads: each pending caller gets None. Only for the loop."""
        with self._lock:
            self._over.set()
        self.answer()
