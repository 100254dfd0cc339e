"""perf_events until the program in the kernel (BPF) is needed, and that program from then on."""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.base import Collector, CollectorStats
from pyprof.collectors.hybrid.by_image import ByImage, NeedsStops
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.succession import Succession
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.reasons import said
from pyprof.records import replace

Successor = Callable[[list[int], str], Collector]
"""Function (pids, why) that opens the second collector for these processes and raises its errors."""
Beginning = Callable[[ByImage, Callable[[], bool]], HybridCollector]
"""Function (by_image, instead) that opens the HybridCollector which samples until the change."""


class UntilProgram(Succession):
    """A collector that changes from perf_events to the BPF program in the kernel when that is needed.

    It changes as soon as a process runs an interpreter, or threads would be stopped because their stacks continue in
    another one. It does not change for a stack's length: stops copy more of the longest stacks, and each part once.

    Args:
        needs: Returns why a process needs stops; see NeedsStops.
        first: Opens the first collector.
        then: Opens the second one.
    """

    def __init__(self, needs: NeedsStops, first: Beginning, then: Successor) -> None:
        self._needs = needs
        self._open = then
        self._refused: PyprofError | None = None
        self._for_second = False
        self._hybrid = first(ByImage(self._asked), self._taken_for_second)
        super().__init__(self._hybrid)

    def _asked(self, pid: int) -> str | None:
        """Check a process that appears or has called exec, and change to the BPF program if it has an interpreter. None
        means that the interpreter has not started yet.
        """
        reason = self._needs(pid)
        if reason == "" or self.followed:
            return ""
        return "" if self._taken(reason or "") else reason

    def _taken_for_second(self) -> bool:
        """Change to the BPF program because threads have second stacks. Return True if no thread must be stopped for
        them.
        """
        self._for_second = not self.followed and self._taken("")
        return self.followed

    def _taken(self, why: str) -> bool:
        """Open the collector with the BPF program and return True if that succeeded."""
        alive = self._hybrid.alive
        if self._refused or not alive:
            return False
        try:
            self.follow(self._open(alive, why))
        except NoSuchProcess:
            return False
        except PyprofError as error:
            self._refused = error
            return False
        self._hybrid.end_now()
        return True

    def stats(self) -> CollectorStats:
        found = super().stats()
        if self._refused is None:
            return found
        from pyprof.collectors.hybrid.without_program import note

        return replace(found, notes=(*found.notes, note(self._refused)))

    def make_notes(self, notes: tuple[str, ...], for_s: float) -> tuple[str, ...]:
        seconds = f"{for_s:.1f}"
        if self._for_second:
            return (*notes, said("until_second_stack", seconds=seconds))
        return (*notes, said("until_interpreter", seconds=seconds))
