"""A collector that ends when the stack of each thread is complete."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Set

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind

_MAX_BATCHES = 12
"""Maximum number of batches of a dump that are taken while some stacks are still truncated."""


class CompleteStacksCollector:
    """A collector that wraps another one and stops it when each thread has a sample whose stack was not truncated.

    The memory of the stack was then copied, and the needed registers were known. It also stops after 12 batches, or
    after a time limit.
    """

    def __init__(self, collector: Collector, threads_now: Callable[[], Set[int]], most_s: float) -> None:
        """Wrap a collector so that it ends when each thread has a complete stack.

        Args:
            collector: The collector.
            threads_now: Returns the tids of the current threads.
            most_s: Time limit in seconds, for threads without a sample, such as one that waits for a processor.
        """
        self._collector = collector
        self._threads_now = threads_now
        self._most_s = most_s
        self._sampled: set[int] = set()
        self._cut: set[int] = set()
        self._unwalked: Counter[int] = Counter()

    @property
    def whole(self) -> bool:
        """True if all threads that have a sample have a complete stack."""
        return not self._cut and not any(self._unwalked.values())

    def batches(self) -> Iterator[SampleBatch]:
        deadline = time.monotonic() + self._most_s
        taken = 0
        for batch in self._collector.batches():
            self._sampled.update(batch.tid.tolist())
            self._unwalked.update(batch.tid[batch.kind < SampleKind.UNCHANGED].tolist())
            yield batch
            taken += len(batch) > 0
            enough = self._threads_now() <= self._sampled and (self.whole or taken >= _MAX_BATCHES)
            if enough or time.monotonic() > deadline:
                self._collector.stop()

    def learn(self, feedback: Feedback) -> None:
        self._collector.learn(feedback)
        tids = feedback.batch.tid.tolist()
        self._unwalked.subtract(tids)
        for tid, cut in zip(tids, ((feedback.missing != 0) | feedback.stop).tolist(), strict=True):
            (self._cut.add if cut else self._cut.discard)(tid)

    def threads(self) -> list[ThreadInfo]:
        return self._collector.threads()

    def retire(self) -> None:
        self._collector.retire()

    def stats(self) -> CollectorStats:
        return self._collector.stats()

    def stop(self) -> None:
        self._collector.stop()

    def close(self) -> None:
        self._collector.close()
