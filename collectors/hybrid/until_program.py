"""perf_events until the program in the kernel (BPF) is needed, and that program from then on."""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.base import Collector, CollectorStats
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.planner import ANY_PID, Planner, describe_refusal_of_bpf
from pyprof.collectors.hybrid.succession import Succession
from pyprof.collectors.plan import BPF, ProcessFacts, UncopiedStack
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.reasons import said
from pyprof.records import replace

Successor = Callable[[list[int], str], Collector]
"""Function (pids, why) that opens the second collector for these processes and raises its errors."""
Beginning = Callable[[ByImage, Callable[[], bool]], HybridCollector]
"""Function (by_image, instead) that opens the HybridCollector which samples until the change."""


class UntilProgram(Succession):
    """A collector that changes from perf_events to the BPF program in the kernel when the plan does.

    It asks for the plan when a process appears or has called exec, and when threads would be stopped because their
    stacks continue in another one.

    Args:
        planner: The plan of the recording.
        first: Opens the first collector.
        then: Opens the second one.
    """

    def __init__(self, planner: Planner, first: Beginning, then: Successor) -> None:
        self._planner = planner
        self._open = then
        self._for_second = False
        self._hybrid = first(ByImage(self._find_stop_reason), self._taken_for_second)
        super().__init__(self._hybrid)

    def _find_stop_reason(self, pid: int) -> str | None:
        """Return Choice.stop_reason of a process, and change to BPF if the plan says so."""
        if self.followed:
            return ""
        choice = self._planner.choose(pid)
        if choice.source != BPF:
            return choice.stop_reason
        if self._taken(choice.why):
            return ""
        return self._planner.choose(pid).stop_reason if BPF in self._planner.facts.refused else None

    def _taken_for_second(self) -> bool:
        """Change to BPF if the plan does that for threads with second stacks. Return True if no thread must be stopped
        for them.
        """
        if not self.followed:
            plan = self._planner.suppose(ProcessFacts(stacks={ANY_PID: UncopiedStack.SECOND}))
            self._for_second = plan.default.source == BPF and self._taken("")
        return self.followed

    def _taken(self, why: str) -> bool:
        """Open the collector with the BPF program and return True if that succeeded."""
        alive = self._hybrid.alive
        if not alive:
            return False
        try:
            self.follow(self._open(alive, why))
        except NoSuchProcess:
            return False
        except PyprofError as error:
            self._planner.refuse(BPF, error, alive)
            return False
        self._hybrid.end_now()
        return True

    def stats(self) -> CollectorStats:
        found, refused = super().stats(), self._planner.facts.refused.get(BPF)
        if refused is None:
            return found
        return replace(found, notes=(*found.notes, describe_refusal_of_bpf(refused)))

    def make_notes(self, notes: tuple[str, ...], for_s: float) -> tuple[str, ...]:
        seconds = f"{for_s:.1f}"
        if self._for_second:
            return (*notes, said("until_second_stack", seconds=seconds))
        return (*notes, said("until_interpreter", seconds=seconds))
