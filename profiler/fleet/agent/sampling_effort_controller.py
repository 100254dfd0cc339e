"""Controller of the agent's effort, which keeps its budget of processor time and memory. It does no I/O.

Two series of steps reduce the effort: fewer sampling times for less processor time, and fewer processes for less
memory. The cost has a constant part and a part that grows with the work. Neither part is known.

- If a minute, or even a part of it, cost more than a minute may, the number of sampling times is reduced at once. This
  is not done if the last reduction has not helped.
- The next higher effort costs at most the current cost times the ratio of work. If that is within the budget, the
  effort rises by one step a minute. If a recent step up was too much, it rises only if that is within half of the
  budget.
- If that is not within the budget, the higher effort may still cost less. So it is tried after a time that doubles with
  each try that cost too much: under constant load, changes become ever rarer.
- No further step down is taken if the last one has not lowered the cost. The same holds if the costs before and after
  it show that the constant part is most of the cost and alone exceeds the budget by far. The verdict BROKEN states the
  budget that would be needed. The next step follows only after a number of such verdicts that doubles.
- For memory there is no such estimate: fewer processes may need less. A step that did not help is undone, and tried
  again after MAX_PATIENCE minutes. Fewer processes do not lower the processor time: samples are dropped before they
  cost much, and a recording that starts again reads files for the first time. So processes return whatever the
  processor time is, as soon as memory allows it.
- When recordings begin, files are read for the first time, so the cost is not checked during SETTLING. For the first
  recording of an agent, this time is FIRST_SETTLING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum

from pyprof.lazy_dataclasses import dataclass

AIM = 0.9
"""Fraction of the budget that a change of the agent's effort aims at. It is below 1 because the load differs from
minute to minute.
"""
_REMEMBERED = 10
"""Number of the last minutes whose cost decides which budget is stated as needed."""
MAX_PATIENCE = 64
"""Maximum number of minutes between two tries to lower or raise the agent's effort."""
_MAX_STEPS = 4
"""Maximum number of steps by which the agent reduces its sampling times at once."""
_FIXED = 1.25
"""Constant part of the agent's cost, as a multiple of the budget, from which on fewer samples do not help. The value is
an estimate.
"""
_CHEAP = 0.25
"""Cost of samples as a fraction of the agent's constant cost. Below it, a reduction of the effort is not worth its
samples if the constant cost alone exceeds the budget.
"""
_FORGOTTEN = 10
"""Number of consecutive minutes within the budget after which the governor forgets that a reduction of the effort did
not help. A single minute is too few: by chance, its cost varies by a quarter.
"""
_HELPED = 0.95
"""Maximum ratio of the agent's cost after a reduction of its effort to the cost before. Above it, the reduction did not
help.
"""
SETTLING = 0.25
"""Time without a check of the budget after the start, and after a change of the recorded processes, which restarts
recordings. It is a multiple of the budget's period (CostBudget.every_s).
"""
FIRST_SETTLING = 1.0
"""Time without a check of the budget after the first recording of an agent has begun, as a multiple of the budget's
period (CostBudget.every_s).

The processes of this recording run files that no recording has read before. Reading costs more than a minute may, and
only once. Samples that are dropped because of it would come back only one step a minute.
"""


@dataclass(frozen=True, slots=True)
class CostBudget:
    """The agent's budget of processor time and memory.

    Attributes:
        cpu: Share of one processor (0.01 is 1 %).
        memory: Maximum memory in bytes.
        every_s: Time in seconds over which both are enforced.
    """

    cpu: float = 0.01
    memory: int = 300 << 20
    every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Effort:
    """The agent's effort: it takes samples at one of every `times` sampling times, and records one of every `processes`
    processes.
    """

    times: int = 1
    processes: int = 1

    @property
    def used_fraction(self) -> float:
        """Fraction of all sampling times that the agent uses."""
        return 1 / self.times


STRIDES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Possible values of Effort.processes, each the N of "one of N processes is recorded"."""


class BudgetVerdict(IntEnum):
    """Result of a check of the agent's budget. BROKEN means that the budget is exceeded and no smaller effort would
    help.
    """

    NOTHING = 0
    LESS = 1
    MORE = 2
    BROKEN = 3


class _RetryDelay:
    """The number of minutes before a higher effort is tried. It doubles with each try that exceeded the budget.

    Attributes:
        minutes: The present delay in minutes.
    """

    def __init__(self) -> None:
        self.minutes, self._calm, self._rose = 1, 0, False

    @property
    def is_over(self) -> bool:
        return self._calm >= self.minutes

    def count_minute(self, is_full: bool) -> None:
        """Count a minute within the budget. At full effort there is nothing to retry, and the delay becomes shorter."""
        self._calm += 1
        if is_full and self._calm > self.minutes:
            self.minutes, self._calm = max(self.minutes // 2, 1), 0

    def note_rise(self) -> None:
        self._rose, self._calm = True, 0

    def note_excess(self) -> None:
        if self._rose:
            self.minutes = min(2 * self.minutes, MAX_PATIENCE)
        self._rose, self._calm = False, 0


class Governor:
    """The controller of the agent's effort, which keeps the budget.

    Attributes:
        cpu: Processor time at the last check, as a share of one processor.
        memory: Memory at the last check in bytes.
        is_measured: True if the cost was checked at least once.
    """

    def __init__(self, budget: CostBudget, now: float, spent_s: float) -> None:
        """Start the controller with the agent's full effort.

        Args:
            now: Monotonic time in seconds.
            spent_s: Processor time of the agent so far in seconds.
        """
        self.budget = budget
        self.cpu, self.memory = 0.0, 0
        self.is_measured = False
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._stride = self._part = 0
        self._times_retry, self._processes_retry = _RetryDelay(), _RetryDelay()
        self._memory_before = self._memory_waits = 0
        self._cpu_before = self._work_before = 0.0
        self._was_fixed = False
        self._useless, self._useless_most, self._calm = 0, 2, 0
        self._settled = now + SETTLING * budget.every_s
        self._begin(now, spent_s)

    def _begin(self, now: float, spent_s: float) -> None:
        self._began, self._spent_s = now, spent_s

    @property
    def effort(self) -> Effort:
        return Effort(STRIDES[self._stride], PARTS[self._part])

    @property
    def needed_cpu(self) -> float:
        """The processor budget, as a share of one processor, that would have been enough in the recent minutes. The
        minutes after a start, in which files are read for the first time, do not count.
        """
        return min(sorted(self._costs)[-2:], default=self.cpu) / AIM

    def settling_s(self, now: float) -> float:
        """Return the seconds until the budget is checked again, 0 if it is checked at present."""
        return max(self._settled - now, 0.0)

    @property
    def is_exceeded(self) -> bool:
        """True if the last check found a cost above the budget."""
        return self.cpu > self.budget.cpu or self.memory > self.budget.memory

    def exclude_cost(self, now: float, settling: float = SETTLING) -> None:
        """Exclude the agent's cost up to now, and that of some time to come, from the check of its budget.

        Args:
            now: Monotonic time in seconds.
            settling: The time to come, as a multiple of the budget's period (CostBudget.every_s).
        """
        self._settled = max(self._settled, now + settling * self.budget.every_s)

    def change_budget(self, budget: CostBudget, now: float, spent_s: float) -> None:
        """Enforce another budget from now on. The effort rises at once as far as its cost is sure to stay within the
        budget.

        Args:
            budget: The new budget.
            now: Monotonic time.
            spent_s: Processor time so far.
        """
        self.budget = budget
        self._times_retry, self._processes_retry = _RetryDelay(), _RetryDelay()
        self._memory_before = self._memory_waits = 0
        self._forget_reduction()
        self._settled = min(self._settled, now + FIRST_SETTLING * budget.every_s)
        self._begin(now, spent_s)
        cpu = self.cpu
        while self._stride and (cpu := self._max_cpu_of_next(cpu)) <= AIM * budget.cpu:
            self._stride -= 1

    def check_cost(self, now: float, spent_s: float, memory: Callable[[], int]) -> BudgetVerdict:
        """Check the agent's cost against its budget, and adapt the effort. The agent calls this several times in
        budget.every_s.

        Args:
            now: Monotonic time in seconds.
            spent_s: Processor time so far in seconds.
            memory: Function that returns the memory in bytes. It is called rarely.
        """
        budget = self.budget
        if now < self._settled:
            self._begin(now, spent_s)
            return BudgetVerdict.NOTHING
        passed_s, used_s = max(now - self._began, 1e-3), max(spent_s - self._spent_s, 0.0)
        is_over = used_s > budget.cpu * max(passed_s, budget.every_s)
        if passed_s < budget.every_s and not (is_over and self._may_reduce(used_s / passed_s)):
            return BudgetVerdict.NOTHING
        self.cpu, self.memory, self.is_measured = used_s / passed_s, memory(), True
        if passed_s >= budget.every_s:
            self._costs.append(self.cpu)
        self._begin(now, spent_s)
        times = self._fewer_times() if is_over else self._keep_times()
        processes = self._fewer_processes(now)
        if processes is BudgetVerdict.NOTHING and times is not BudgetVerdict.LESS:
            processes = self._more_processes(now)
        if is_over and times is not BudgetVerdict.NOTHING:
            self._times_retry.note_excess()
        elif processes is BudgetVerdict.NOTHING:
            times = self._more_times()
        by_importance = (BudgetVerdict.LESS, BudgetVerdict.MORE, BudgetVerdict.BROKEN)
        return next((each for each in by_importance if each in (times, processes)), BudgetVerdict.NOTHING)

    def _keep_times(self) -> BudgetVerdict:
        """Forget what the last reduction of the effort saved, after _FORGOTTEN consecutive minutes within the
        budget.
        """
        self._calm += 1
        if self._calm >= _FORGOTTEN:
            self._forget_reduction()
        return BudgetVerdict.NOTHING

    def _forget_reduction(self) -> None:
        self._cpu_before, self._useless, self._useless_most = 0.0, 0, 2
        self._was_fixed = False

    def _may_reduce(self, cpu: float) -> bool:
        """Return True if the agent's cost in a part of a minute is enough evidence to take fewer samples.

        Only whole minutes decide that no reduction helps, and state the needed budget. A part of a minute may contain
        the end of a window or the reading of files, whose cost does not depend on the effort.
        """
        may_help = not self._cpu_before or self._has_helped(cpu)
        return self._stride < len(STRIDES) - 1 and may_help and not self._is_mostly_fixed(cpu)

    def _has_helped(self, cpu: float) -> bool:
        """Return True if the agent's cost is clearly lower now than before the last reduction of its effort."""
        return cpu <= _HELPED * self._cpu_before

    def _fewer_times(self) -> BudgetVerdict:
        self._calm = 0
        was_fixed, self._was_fixed = self._was_fixed, self._is_mostly_fixed(self.cpu)
        if self._was_fixed and not was_fixed:  # files may have been read for the first time in this minute
            return BudgetVerdict.NOTHING
        if self._stride == len(STRIDES) - 1 or self._is_useless():
            return BudgetVerdict.BROKEN
        self._cpu_before, self._work_before = self.cpu, self.effort.used_fraction
        aim = self.effort.used_fraction * min(AIM * self.budget.cpu / self.cpu, 1)
        for _ in range(_MAX_STEPS):
            self._stride = min(self._stride + 1, len(STRIDES) - 1)
            if self.effort.used_fraction <= aim:
                break
        return BudgetVerdict.LESS

    def _is_useless(self) -> bool:
        """Return True if another reduction of the agent's effort would not lower its cost, and must not be tried
        yet.
        """
        if not self._cpu_before or self._has_helped(self.cpu):
            return self._was_fixed
        self._useless += 1
        if self._useless <= self._useless_most:
            return True
        self._useless, self._useless_most = 0, min(2 * self._useless_most, MAX_PATIENCE)
        return False

    def _is_mostly_fixed(self, cpu: float) -> bool:
        """Return True if the cost before and after the last reduction shows that a further reduction is not worth the
        lost samples.

        The cost is taken as the sum of a constant part and a part in proportion to the samples.
        """
        if not self._has_helped(cpu):
            return False
        work = self.effort.used_fraction
        sampling = work * (self._cpu_before - cpu) / (self._work_before - work)
        fixed = cpu - sampling
        return fixed > _FIXED * self.budget.cpu and sampling < _CHEAP * fixed

    def _fewer_processes(self, now: float) -> BudgetVerdict:
        before, self._memory_before = self._memory_before, 0
        if self.memory <= self.budget.memory:
            self._memory_waits = 0
            return BudgetVerdict.NOTHING
        self._processes_retry.note_excess()
        if self._memory_waits:
            self._memory_waits -= 1
            return BudgetVerdict.BROKEN
        if self._part and before and self.memory > _HELPED * before:
            self._part -= 1
            self._memory_waits = MAX_PATIENCE
            return BudgetVerdict.BROKEN
        self._memory_before = self.memory
        if self._part == len(PARTS) - 1:
            return BudgetVerdict.BROKEN
        self._part += 1
        self._settled = now + SETTLING * self.budget.every_s
        return BudgetVerdict.LESS

    def _more_processes(self, now: float) -> BudgetVerdict:
        self._processes_retry.count_minute(not self._part)
        within = self.memory <= AIM * self.budget.memory
        if not (self._part and within and self._processes_retry.is_over):
            return BudgetVerdict.NOTHING
        self._part -= 1
        self._processes_retry.note_rise()
        self._settled = now + SETTLING * self.budget.every_s  # the files of the returned processes are read
        return BudgetVerdict.MORE

    def _more_times(self) -> BudgetVerdict:
        self._times_retry.count_minute(not self._stride)
        within = self.cpu <= AIM * self.budget.cpu
        if not (self._stride and within and (self._is_sure() or self._times_retry.is_over)):
            return BudgetVerdict.NOTHING
        self._stride -= 1
        self._forget_reduction()
        self._times_retry.note_rise()
        return BudgetVerdict.MORE

    def _is_sure(self) -> bool:
        """Return True if the next higher effort of the agent certainly costs less than the budget."""
        return self._max_cpu_of_next(self.cpu) <= AIM * self.budget.cpu / (1 if self._times_retry.minutes == 1 else 2)

    def _max_cpu_of_next(self, cpu: float) -> float:
        """Return the maximum processor time, as a share of one processor, that the next higher effort can cost."""
        return cpu * STRIDES[self._stride] / STRIDES[self._stride - 1]
