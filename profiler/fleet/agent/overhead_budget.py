"""Enforcement of the agent's budget of processor time and memory: it measures the agent's cost, lets the Governor
(sampling_effort_controller.py) adapt the effort, and logs changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyprof.collector_control import Stride
from pyprof.fleet.agent.health import Conditions, OwnCpu, memory, spent
from pyprof.fleet.agent.metrics import WIDEST
from pyprof.fleet.agent.sampling_effort_controller import AIM, SETTLING, BudgetVerdict, CostBudget, Effort, Governor
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.profile import Profile

MIN_HALF_WIDTH = 0.25
"""Half width of a share's 95 % confidence interval from which on the share is too inaccurate to be useful, as a
fraction. Twelve samples give this width. So does a window of which half of the time has no samples.
"""
VAGUE_WINDOWS = 3
"""Number of consecutive windows with inaccurate shares after which the condition few_samples begins."""
CHECKS = 12
"""Number of checks of the agent's cost in the period over which its budget is enforced."""
_EVENTS = {BudgetVerdict.LESS: "does less", BudgetVerdict.MORE: "does more"}


class BudgetControl:
    """The enforcement of an agent's budget of processor time and memory. It measures the agent's cost, and sets how
    many sampling times are used and how many processes are recorded.

    Attributes:
        stride: N if only every Nth sampling time is used, for all recordings.
        exceeded: Number of times that the budget was exceeded although the effort could not be reduced.
        own_cpu: Meter of the agent's processor time, for the log line of a window.
    """

    def __init__(self, budget: CostBudget, say: Callable[..., None], conditions: Conditions) -> None:
        """Start to enforce the agent's budget. The function `say` writes a line of the log."""
        self.stride = Stride()
        self.exceeded = 0
        self.own_cpu = OwnCpu()
        self._say, self._conditions = say, conditions
        self._memory_bytes, self._memory_at = 0, 0.0
        self._vague_windows = 0
        self.begin(budget)

    def begin(self, budget: CostBudget) -> None:
        """Start to enforce a budget on recordings that start now. They begin with all sampling times and processes."""
        now = time.monotonic()
        self._governor = Governor(budget, now, spent())
        self._look_at = now
        self.stride.every = 1

    def change_budget(self, budget: CostBudget) -> None:
        """Enforce a new budget on the running recordings, unless it equals the current one."""
        if budget == self._governor.budget:
            return
        now = time.monotonic()
        self._governor.change_budget(budget, now, spent())
        self._look_at = self._memory_at = now
        self.stride.every = self.effort.times

    def _memory(self) -> int:
        """Return the memory of the agent and its workers in bytes. The value is read at most once in the period over
        which the budget is enforced.

        To count it, the kernel walks all pages of these processes: with a budget of 0.2 % that was an eighth of the
        agent's cost.
        """
        is_high = self._memory_bytes > self._governor.budget.memory
        if (now := time.monotonic()) >= self._memory_at or is_high:
            self._memory_bytes, self._memory_at = memory() or 0, now + self._governor.budget.every_s
        return self._memory_bytes

    @property
    def effort(self) -> Effort:
        return self._governor.effort

    def exclude_cost(self, settling: float = SETTLING) -> None:
        """Leave the agent's cost up to now out of the check of its budget. The reason is work that a user has
        requested, or files that were read for the first time.

        Args:
            settling: Further time without a check, as a multiple of the period over which the budget is enforced.
        """
        self._governor.exclude_cost(time.monotonic(), settling)

    def check_budget(self) -> bool:
        """Check the agent's budget and adapt its effort. Return True if the number of recorded processes must change,
        so that other processes are recorded.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._governor.budget.every_s / CHECKS
        before = self.effort
        verdict = self._governor.check_cost(now, spent(), self._memory)
        self.stride.every = self.effort.times
        governor = self._governor
        if verdict is BudgetVerdict.BROKEN:
            self.exceeded += 1
            self._conditions.begin("budget_exceeded", "", "", **self.state(), **self._needed())
        elif verdict is not BudgetVerdict.NOTHING:
            self._say("info", _EVENTS[verdict], **self.state())
        if not governor.is_exceeded:
            self._conditions.end("budget_exceeded")
        if self.effort.processes > 1:
            self._conditions.begin("processes_left_out", one_process_in=self.effort.processes)
        else:
            self._conditions.end("processes_left_out")
        return self.effort.processes != before.processes

    def judge_accuracy(self, accuracy: Mapping[str, float]) -> None:
        """Begin or end the condition few_samples, by the accuracy of a window of on-CPU samples.

        Args:
            accuracy: How accurately the shares of the window are known (metrics.accuracy_of()).
        """
        is_vague = self.effort != Effort() and accuracy[WIDEST] >= MIN_HALF_WIDTH
        self._vague_windows = self._vague_windows + 1 if is_vague else 0
        if self._vague_windows >= VAGUE_WINDOWS:
            figures: dict[str, object] = {
                "shares_samples": round(accuracy["shares_samples"]),
                "sampled_percent": round(100 * accuracy["sampled_ratio"]),
                "half_width_percent": round(100 * accuracy[WIDEST]),
            }
            self._conditions.begin("few_samples", "", "", **figures, **self.state())
        elif not is_vague:
            self._conditions.end("few_samples")

    @property
    def needed_cpu(self) -> float | None:
        """The processor budget that the host needs as a share of one processor, None if the budget was enough at the
        last check.
        """
        governor = self._governor
        return governor.needed_cpu if governor.cpu > governor.budget.cpu else None

    def _needed(self) -> dict[str, object]:
        """Return the fields of a log line that state the budget of processor time and memory which would be enough for
        this host.
        """
        governor = self._governor
        found: dict[str, object] = {}
        if self.needed_cpu is not None:
            found["needed_cpu_percent"] = round(100 * self.needed_cpu, 2)
        if governor.memory > governor.budget.memory:
            found["needed_memory"] = round(governor.memory / AIM)
        return found

    def state(self) -> dict[str, object]:
        """Return what the agent cost at the last check, its budget, and its effort."""
        governor, effort = self._governor, self.effort
        return {
            "own_cpu_percent": round(100 * governor.cpu, 2),
            "budget_cpu_percent": round(100 * governor.budget.cpu, 3),
            "own_memory": governor.memory,
            "budget_memory": governor.budget.memory,
            "one_sampling_time_in": effort.times,
            "one_process_in": effort.processes,
        }

    def status(self) -> dict[str, object]:
        """Return the cost, the budget and the effort of the agent. Also return whether the cost was measured, whether
        it exceeds the budget, and whether the check is suspended for some time.
        """
        governor = self._governor
        return {
            **self.state(),
            "is_measured": governor.is_measured,
            "is_exceeded": governor.is_exceeded,
            "unchecked_seconds": round(governor.settling_s(time.monotonic())),
        }

    def noted(self, profile: Profile) -> Profile:
        """Return a window's profile with notes that say how many sampling times and processes were left out because of
        the budget.
        """
        notes = self.notes()
        return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, *notes)))

    def notes(self) -> tuple[Note, ...]:
        """Return notes about the effect of the agent's budget on windows at present."""
        if self.effort == Effort():
            return ()
        return (make_note("budget_kept", times=self.effort.times, processes=self.effort.processes),)
