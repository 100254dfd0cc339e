"""How much the agent does: as much as its budget of processor time and memory allows. A law of control, without I/O.

There is a ladder of efforts. Each does less than the one before: fewer sampling times are used first, then fewer
processes. Cost is a part that is always there and a part that grows with the work, neither of which is known.

* Too much was spent in a minute, or in a part of it more than the minute may have: down the ladder, at once.
* What the next effort up would cost is at most what this one costs, times the ratio of work. Where that is within the
  budget, up it goes, one step a minute; where a step was too much not long ago, only within half of it.
* Where it is not, it may still cost less than that. So it is tried, after a time that doubles with each try that was
  too much: a load that stays the same has ever fewer changes.
* Memory has no such law: fewer samples, then fewer processes may need less. Where a step by processes did not help, no
  further one is taken for memory's sake.
* When recordings begin, files are read for the first time: of SETTLING nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from pyprof.records import dataclass

AIM = 0.9
"""Of the budget, what a step is to lead to: loads are not the same in two minutes."""
MOST_PATIENCE = 64
"""Minutes between two tries, at most."""
_MOST_STEPS = 2
"""Down at once, of steps by sampling times."""
_HELPED = 0.95
"""A step by processes helped if memory is at most this part of what it was."""
SETTLING = 0.25
"""Of CostBudget.every_s, after the start and after a step by processes, which begins recordings anew."""


@dataclass(frozen=True, slots=True)
class CostBudget:
    """cpu: share of one processor (0.01: 1 %). memory: bytes. every_s: over which both are kept."""

    cpu: float = 0.01
    memory: int = 200 << 20
    every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Effort:
    """One of so many sampling times is used, one of so many processes is recorded."""

    times: int = 1
    processes: int = 1

    @property
    def work(self) -> float:
        return 1 / (self.times * self.processes)


EFFORTS = (
    *(Effort(times) for times in (1, 2, 3, 4, 6, 8, 12, 16)),
    *(Effort(16, processes) for processes in (2, 4, 8, 16, 32, 64)),
)


class BudgetVerdict(IntEnum):
    """What the budget says about the time since the last one. BROKEN: exceeded, and no smaller effort would help."""

    NOTHING = 0
    LESS = 1
    MORE = 2
    BROKEN = 3


class Governor:
    """effort: of now. cpu: what the last judgement was made by, as a share of one processor; memory: bytes."""

    def __init__(self, budget: CostBudget, now: float, spent_s: float) -> None:
        """now: monotonic. spent_s: processor time so far."""
        self.budget = budget
        self.cpu, self.memory = 0.0, 0
        self._level = 0
        self._patience, self._calm = 1, 0
        self._rose = False
        self._memory_before = 0
        self._settled = now + SETTLING * budget.every_s
        self._begin(now, spent_s)

    def _begin(self, now: float, spent_s: float) -> None:
        self._began, self._spent_s = now, spent_s

    @property
    def effort(self) -> Effort:
        return EFFORTS[self._level]

    def pardon(self, now: float) -> None:
        """What is spent at this moment is not judged."""
        self._settled = max(self._settled, now + SETTLING * self.budget.every_s)

    def look(self, now: float, spent_s: float, memory: Callable[[], int]) -> BudgetVerdict:
        """To be called several times in budget.every_s. memory: asked for seldom."""
        budget = self.budget
        if now < self._settled:
            self._begin(now, spent_s)
            return BudgetVerdict.NOTHING
        passed_s, used_s = max(now - self._began, 1e-3), max(spent_s - self._spent_s, 0.0)
        if used_s > budget.cpu * max(passed_s, budget.every_s):
            self.cpu, self.memory = used_s / passed_s, memory()
            return self._less(now, spent_s, self.cpu)
        if passed_s < budget.every_s:
            return BudgetVerdict.NOTHING
        self.cpu, self.memory = used_s / passed_s, memory()
        if self.memory > budget.memory:
            before, self._memory_before = self._memory_before, self.memory
            if self.effort.processes > 1 and before and self.memory > _HELPED * before:
                self._begin(now, spent_s)
                return BudgetVerdict.BROKEN
            return self._less(now, spent_s, 0.0)
        self._memory_before = 0
        self._begin(now, spent_s)
        return self._more(self.cpu, self.memory)

    def _less(self, now: float, spent_s: float, share: float) -> BudgetVerdict:
        """share: of a processor, by which the step is measured."""
        if self._rose:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._rose, self._calm = False, 0
        self._begin(now, spent_s)
        if self._level == len(EFFORTS) - 1:
            return BudgetVerdict.BROKEN
        aim = self.effort.work * min(AIM * self.budget.cpu / share, 1) if share else self.effort.work
        for _ in range(_MOST_STEPS):
            if self._level < len(EFFORTS) - 1:
                self._level += 1
            if self.effort.processes > 1:
                self._settled = now + SETTLING * self.budget.every_s
            if self.effort.work <= aim or self.effort.processes > 1:
                break
        return BudgetVerdict.LESS

    def _more(self, share: float, memory: int) -> BudgetVerdict:
        self._calm += 1
        if not self._level:
            if self._calm > self._patience:  # nothing is to be tried: it is as if nothing had been
                self._patience, self._calm = max(self._patience // 2, 1), 0
            return BudgetVerdict.NOTHING
        above = EFFORTS[self._level - 1]
        dearest = share * above.work / self.effort.work
        sure = dearest <= AIM * self.budget.cpu / (1 if self._patience == 1 else 2)
        within = share <= AIM * self.budget.cpu and memory <= AIM * self.budget.memory
        if not within or not (sure or self._calm >= self._patience):
            return BudgetVerdict.NOTHING
        self._level -= 1
        self._rose, self._calm = True, 0
        return BudgetVerdict.MORE
