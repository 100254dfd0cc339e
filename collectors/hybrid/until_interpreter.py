"""One collector until a process runs an interpreter, another one from then on."""

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
"""(pids, why) -> the collector of these processes. Raises what collectors raise."""


class UntilInterpreter(Succession):
    """needs: as ByImage has it, of a process. first: opens the first collector, which is to stop the processes that
    ByImage names; then: the second one.
    """

    def __init__(self, needs: NeedsStops, first: Callable[[ByImage], HybridCollector], then: Successor) -> None:
        self._needs = needs
        self._open = then
        self._refused: PyprofError | None = None
        self._hybrid = first(ByImage(self._asked))
        super().__init__(self._hybrid)

    def _asked(self, pid: int) -> str | None:
        """Of each process that comes, and after each exec. None: it has an interpreter that has not begun."""
        reason = self._needs(pid)
        if reason == "" or self.followed:
            return ""
        alive = self._hybrid.alive
        if self._refused or not alive:
            return reason
        try:
            self.follow(self._open(alive, reason or ""))
        except NoSuchProcess:
            return reason
        except PyprofError as error:
            self._refused = error
            return reason
        self._hybrid.end_now()
        return ""

    def stats(self) -> CollectorStats:
        found = super().stats()
        if self._refused is None:
            return found
        from pyprof.collectors.hybrid.without_program import note

        return replace(found, notes=(*found.notes, note(self._refused)))

    def said(self, notes: tuple[str, ...], for_s: float) -> tuple[str, ...]:
        return (*notes, said("until_interpreter", seconds=f"{for_s:.1f}"))
