"""How much the agent does: as much as its budget of processor time and memory allows. A law of control, without I/O.

Two ladders lead to less: fewer sampling times, for processor time, and fewer processes, for memory. Cost is a part that
is always there and a part that grows with the work, neither of which is known.

* Too much was spent in a minute, or in a part of it more than the minute may have: fewer sampling times, at once.
* What the next effort up would cost is at most what this one costs, times the ratio of work. Where that is within the
  budget, up it goes, one step a minute; where a step was too much not long ago, only within half of it.
* Where it is not, it may still cost less than that. So it is tried, after a time that doubles with each try that was
  too much: a load that stays the same has ever fewer changes.
* Where a step down has not lowered the cost, what is left is not the work: no further step is taken, BROKEN says which
  budget would be needed, and the next step comes only after a number of such verdicts that doubles.
* Memory has no such law: fewer processes may need less. Where a step did not help, no further one is taken. Fewer
  processes do not lower the processor time: samples are thinned before they cost much, and a recording that begins
  anew reads files for the first time.
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
_MOST_STEPS = 4
"""Down at once, of steps by sampling times."""
_HELPED = 0.95
"""A step helped if the cost, or the memory after a step by processes, is at most this part of what it was."""
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
        """The part of all sampling times that is used."""
        return 1 / self.times


STRIDES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PARTS = (1, 2, 4, 8, 16, 32, 64)
"""One of so many processes is recorded."""


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
        self._stride = self._part = 0
        self._patience, self._calm = 1, 0
        self._rose = False
        self._memory_before = 0
        self._cpu_before = 0.0
        self._useless, self._useless_most = 0, 2
        self._settled = now + SETTLING * budget.every_s
        self._begin(now, spent_s)

    def _begin(self, now: float, spent_s: float) -> None:
        self._began, self._spent_s = now, spent_s

    @property
    def effort(self) -> Effort:
        return Effort(STRIDES[self._stride], PARTS[self._part])

    @property
    def needed_cpu(self) -> float:
        """The budget of processor time that would do for what is done now, as a share of one processor."""
        return self.cpu / AIM

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
        is_over = used_s > budget.cpu * max(passed_s, budget.every_s)
        if not is_over and passed_s < budget.every_s:
            return BudgetVerdict.NOTHING
        self.cpu, self.memory = used_s / passed_s, memory()
        self._begin(now, spent_s)
        verdicts = {self._fewer_times() if is_over else self._keep_times(), self._fewer_processes(now)}
        if verdicts != {BudgetVerdict.NOTHING}:
            if self._rose:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._rose, self._calm = False, 0
            return BudgetVerdict.LESS if BudgetVerdict.LESS in verdicts else BudgetVerdict.BROKEN
        return self._more()

    def _keep_times(self) -> BudgetVerdict:
        self._cpu_before, self._useless, self._useless_most = 0.0, 0, 2
        return BudgetVerdict.NOTHING

    def _fewer_times(self) -> BudgetVerdict:
        if self._stride == len(STRIDES) - 1 or self._is_useless():
            return BudgetVerdict.BROKEN
        self._cpu_before = self.cpu
        aim = self.effort.work * min(AIM * self.budget.cpu / self.cpu, 1)
        for _ in range(_MOST_STEPS):
            self._stride = min(self._stride + 1, len(STRIDES) - 1)
            if self.effort.work <= aim:
                break
        return BudgetVerdict.LESS

    def _is_useless(self) -> bool:
        """Return True if the last step down has not lowered the cost, and the next one is not to be tried yet."""
        if not self._cpu_before or self.cpu <= _HELPED * self._cpu_before:
            return False
        self._useless += 1
        if self._useless <= self._useless_most:
            return True
        self._useless, self._useless_most = 0, min(2 * self._useless_most, MOST_PATIENCE)
        return False

    def _fewer_processes(self, now: float) -> BudgetVerdict:
        before, self._memory_before = self._memory_before, 0
        if self.memory <= self.budget.memory:
            return BudgetVerdict.NOTHING
        self._memory_before = self.memory
        is_useless = self._part and before and self.memory > _HELPED * before
        if is_useless or self._part == len(PARTS) - 1:
            return BudgetVerdict.BROKEN
        self._part += 1
        self._settled = now + SETTLING * self.budget.every_s
        return BudgetVerdict.LESS

    def _more(self) -> BudgetVerdict:
        self._calm += 1
        if not (self._stride or self._part):
            if self._calm > self._patience:  # nothing is to be tried: it is as if nothing had been
                self._patience, self._calm = max(self._patience // 2, 1), 0
            return BudgetVerdict.NOTHING
        within = self.cpu <= AIM * self.budget.cpu and self.memory <= AIM * self.budget.memory
        if not within or not (self._is_sure() or self._calm >= self._patience):
            return BudgetVerdict.NOTHING
        if self._stride:
            self._stride -= 1
        else:
            self._part -= 1
        self._rose, self._calm = True, 0
        return BudgetVerdict.MORE

    def _is_sure(self) -> bool:
        """Return True if the next effort up cannot cost more than the budget."""
        if not self._stride:
            return False
        dearest = self.cpu * STRIDES[self._stride] / STRIDES[self._stride - 1]
        return dearest <= AIM * self.budget.cpu / (1 if self._patience == 1 else 2)
