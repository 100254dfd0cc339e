"""Keeping the agent's budget: measures what it costs, asks the Governor, and says what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyprof.agent.governor import BudgetVerdict, CostBudget, Effort, Governor
from pyprof.agent.own_cpu import OwnCpu, memory, spent
from pyprof.handover import Stride
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.records import replace

CHECKS = 12
"""In the time over which the budget is kept."""
_EVENTS = {BudgetVerdict.LESS: "does less", BudgetVerdict.MORE: "does more", BudgetVerdict.BROKEN: "budget not kept"}


class BudgetKeeper:
    """stride: of all recordings. exceeded: how often the budget was not kept, though nothing less could be done.
    own_cpu: what the log says of a window.
    """

    def __init__(self, budget: CostBudget, say: Callable[..., None]) -> None:
        """say: takes lines of the log."""
        self.stride = Stride()
        self.exceeded = 0
        self.own_cpu = OwnCpu()
        self._say = say
        self._said_at = -budget.every_s
        self.begin(budget)

    def begin(self, budget: CostBudget) -> None:
        """Another budget, from now on. What is done by now goes on."""
        now = time.monotonic()
        self._governor = Governor(budget, now, spent())
        self._look_at = now
        self.stride.every = 1

    @property
    def effort(self) -> Effort:
        return self._governor.effort

    def pardon(self) -> None:
        """Somebody has asked for what is spent at this moment."""
        self._governor.pardon(time.monotonic())

    def keep(self) -> bool:
        """To be called all the time. Is another part of the processes to be recorded from now on?"""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._governor.budget.every_s / CHECKS
        before = self.effort
        verdict = self._governor.look(now, spent(), lambda: memory() or 0)
        self.stride.every = self.effort.times
        if verdict is BudgetVerdict.BROKEN:
            self.exceeded += 1
            if now < self._said_at + self._governor.budget.every_s:
                return False
            self._said_at = now
        if verdict is not BudgetVerdict.NOTHING:
            is_broken = verdict is BudgetVerdict.BROKEN
            needed = {"needed_cpu_percent": round(100 * self._governor.needed_cpu, 2)} if is_broken else {}
            self._say("warning" if is_broken else "info", _EVENTS[verdict], **self._state(), **needed)
        return self.effort.processes != before.processes

    def _state(self) -> Mapping[str, object]:
        governor, effort = self._governor, self.effort
        return {
            "own_cpu_percent": round(100 * governor.cpu, 2),
            "budget_cpu_percent": round(100 * governor.budget.cpu, 3),
            "own_memory": governor.memory,
            "budget_memory": governor.budget.memory,
            "one_sampling_time_in": effort.times,
            "one_process_in": effort.processes,
        }

    def noted(self, profile: Profile) -> Profile:
        """A window, with what the budget did to it."""
        notes = self.notes()
        return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, *notes)))

    def notes(self) -> tuple[str, ...]:
        """What the budget does to a window now."""
        if self.effort == Effort():
            return ()
        return (said("budget_kept", times=self.effort.times, processes=self.effort.processes),)
