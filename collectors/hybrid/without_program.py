"""A collector that replaces the program in the kernel (BPF) if that is not available, and reports why.

It reports that only if the program would have been used: for processes with an interpreter, or for the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.errors import PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import said
from pyprof.model.sample import SampleBatch
from pyprof.records import replace


class WithoutProgram:
    """A collector that adds the reason why the BPF program is not used to the notes of another collector, which takes
    the samples.
    """

    def __init__(self, collector: Collector, why: PyprofError, certain: bool) -> None:
        """Create a collector that reports why the BPF program is not used.

        Args:
            collector: The collector that takes the samples.
            why: Reason for which the program is not available.
            certain: True if the program would have been used. Otherwise that is known when functions of an interpreter
                are seen.
        """
        self._collector = collector
        self._note = note(why)
        self._missed = certain

    def batches(self) -> Iterator[SampleBatch]:
        for batch in self._collector.batches():
            self._missed = self._missed or bool(batch.chains)
            yield batch

    def stats(self) -> CollectorStats:
        found = self._collector.stats()
        if not self._missed or self._note in found.notes:  # the other collector may have the same note
            return found
        return replace(found, notes=(*found.notes, self._note))

    def learn(self, feedback: Feedback) -> None:
        self._collector.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._collector.threads()

    def retire(self) -> None:
        self._collector.retire()

    def stop(self) -> None:
        self._collector.stop()

    def close(self) -> None:
        self._collector.close()


def note(why: PyprofError) -> str:
    """Return the note for the summary. A hint that names another collector is dropped, because it was followed."""
    hint = f" ({why.hint})" if why.hint and not why.hint.startswith("--collector") else ""
    return said("without_program", why=f"{why.message.rstrip('.')}{hint}")
