"""Tests of the governor, which keeps the agent within its budget, on loads whose cost the test chooses."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.fleet.agent import overhead_budget
from pyprof.fleet.agent.health import Conditions
from pyprof.fleet.agent.metrics import WIDEST
from pyprof.fleet.agent.sampling_effort_controller import (
    AIM,
    FIRST_SETTLING,
    MAX_PATIENCE,
    PARTS,
    SETTLING,
    STRIDES,
    BudgetVerdict,
    CostBudget,
    Effort,
    Governor,
)
from pyprof.fleet.cli.agent_administration import format_cost

MB = 1 << 20
BUDGET = CostBudget(0.01, 200 * MB, 60)
Load = Callable[[int, Effort], float]
"""A function of (minute, effort) that returns the load as a fraction of one processor."""


def lived(
    load: Load, minutes: int, memory: Callable[[Effort], int] = lambda _: 0
) -> tuple[list[BudgetVerdict], list[float]]:
    """Run the governor on a load. Return its verdicts and the cost of each minute as a fraction of one processor."""
    governor, spent = Governor(BUDGET, 0, 0), 0.0
    said: list[BudgetVerdict] = []
    costs: list[float] = []
    for minute in range(minutes):
        before = spent
        for second in range(0, 60, 5):
            spent += 5 * load(minute, governor.effort)
            verdict = governor.check_cost(minute * 60 + second + 5, spent, lambda: memory(governor.effort))
            if verdict is not BudgetVerdict.NOTHING:
                said.append(verdict)
        costs.append((spent - before) / 60)
    return said, costs


@settings(max_examples=30)
@given(st.floats(0, 0.0095), st.floats(0, 0.5), st.floats(0, 0.1), st.integers(0, 1000))
def test_load_that_stays_the_same_is_kept_within_the_budget_by_ever_fewer_changes(
    fixed: float, work: float, noise: float, seed: int
) -> None:
    """Keep a constant load with random noise within the budget for hours.

    Args:
        fixed: Cost that does not depend on the effort, as a fraction of one processor.
        work: Cost of the full effort in addition to the fixed cost.
    """
    uniform, hours = random.Random(seed).uniform, 4

    def load(_: int, effort: Effort) -> float:
        return (fixed + work * effort.used_fraction) * uniform(1 - noise, 1 + noise)

    said, costs = lived(load, 60 * hours)
    least = (fixed + work / STRIDES[-1]) * (1 + noise)
    if least <= BUDGET.cpu:
        found = costs[15:]  # the governor needs some minutes to find the effort
        assert sum(found) / len(found) <= BUDGET.cpu
        assert sum(cost > 1.1 * BUDGET.cpu for cost in found) <= 0.05 * len(found)
        assert BudgetVerdict.BROKEN not in said[20:]
    assert said.count(BudgetVerdict.MORE) <= len(STRIDES) + hours * 60 / MAX_PATIENCE + 2 * 7 * 2


@given(st.floats(0, 0.004), st.floats(0, 0.004))
def test_load_within_the_budget_changes_nothing(fixed: float, work: float) -> None:
    assert lived(lambda _, effort: fixed + work * effort.used_fraction, 200)[0] == []


@given(st.floats(0.02, 0.3), st.integers(1, 100))
def test_after_a_load_all_is_done_again(work: float, minutes: int) -> None:
    found: list[float] = []

    def load(minute: int, effort: Effort) -> float:
        found.append(effort.used_fraction)
        return 0.001 + (work if minute < minutes else 0.004) * effort.used_fraction

    lived(load, minutes + 2 * MAX_PATIENCE)
    assert min(found) < 1
    assert found[-1] == 1


@pytest.mark.parametrize(("settling", "is_reduced"), [(FIRST_SETTLING, False), (SETTLING, True)])
def test_first_reading_of_files_costs_no_samples_of_later_minutes(settling: float, is_reduced: bool) -> None:
    """Run the governor on an agent that reads files for 40 s, and then costs less than its budget."""
    governor, spent, said = Governor(BUDGET, 0, 0), 0.0, list[BudgetVerdict]()
    governor.exclude_cost(5, settling)
    for now in range(5, 600, 5):
        spent += 5 * (0.03 if now < 40 else 0.008)
        said.append(governor.check_cost(now, spent, lambda: 0))
    assert (BudgetVerdict.LESS in said) == is_reduced


def test_cost_after_the_first_reading_of_files_is_checked() -> None:
    governor = Governor(BUDGET, 0, 0)
    governor.exclude_cost(5, FIRST_SETTLING)
    verdicts = [governor.check_cost(now, 0.03 * now, lambda: 0) for now in range(5, 130, 5)]
    assert BudgetVerdict.LESS in verdicts


def test_budget_of_a_minute_that_is_gone_early_is_not_waited_for() -> None:
    governor = Governor(BUDGET, 0, 0)
    assert governor.check_cost(14, 1.0, lambda: 0) is BudgetVerdict.NOTHING  # start-up reads files, which is not judged
    assert governor.check_cost(25, 1.5, lambda: 0) is BudgetVerdict.NOTHING
    assert governor.check_cost(30, 1.7, lambda: 0) is BudgetVerdict.LESS
    assert governor.effort == Effort(6)


def test_memory_is_kept_by_fewer_processes_as_long_as_that_helps() -> None:
    """Check that the governor reports a memory budget that it cannot keep, and then leaves out no processes in vain."""
    efforts = list[Effort]()

    def load(_: int, effort: Effort) -> float:
        efforts.append(effort)
        return 0.001

    never = lived(load, 60, lambda _: 201 * MB)[0]
    assert {effort.processes for effort in efforts} == {1, 2}
    assert all(effort.processes == 1 for effort in efforts[-50 * 12 :]), "a step that does not help is undone"
    assert never == [BudgetVerdict.LESS] + [BudgetVerdict.BROKEN] * (len(never) - 1)
    assert BudgetVerdict.BROKEN in never
    helped = lived(lambda _, __: 0.001, 60, lambda effort: 900 * MB // effort.processes)[0]
    assert helped[:3] == [BudgetVerdict.LESS] * 3
    assert BudgetVerdict.BROKEN not in helped
    assert lived(lambda _, __: 0.001, 60, lambda _: 199 * MB)[0] == []


def test_processes_are_left_out_for_memory_and_never_for_processor_time() -> None:
    """Leave the set of processes unchanged: a new recording costs more processor time than fewer processes save."""
    efforts: set[Effort] = set()

    def load(minute: int, effort: Effort) -> float:
        efforts.add(effort)
        return 0.001 + 2 * effort.used_fraction

    lived(load, 120)
    assert {effort.processes for effort in efforts} == {1}
    assert max(effort.times for effort in efforts) == STRIDES[-1]


def test_ladders_lead_to_less_with_each_step() -> None:
    assert [STRIDES[0], PARTS[0]] == [1, 1]
    assert list(STRIDES) == sorted(set(STRIDES))
    assert list(PARTS) == sorted(set(PARTS))


def test_step_leads_to_nine_tenths_of_the_budget_where_it_can() -> None:
    governor = Governor(BUDGET, 0, 0)
    governor.check_cost(14, 0, lambda: 0)
    assert governor.check_cost(74, 60 * 0.0185, lambda: 0) is BudgetVerdict.LESS
    assert governor.effort == Effort(3)  # half the effort is within the budget but above nine tenths of it


def test_load_that_no_effort_can_keep_within_the_budget_is_said() -> None:
    said = lived(lambda _, __: 1.0, 60)[0]
    assert said.count(BudgetVerdict.LESS) < len(STRIDES)
    assert said[-20:] == [BudgetVerdict.BROKEN] * 20


def test_processes_are_left_out_one_step_at_a_time() -> None:
    governor = Governor(BUDGET, 0, 0)
    governor.check_cost(14, 0, lambda: 0)
    assert governor.check_cost(75, 0.1, lambda: 900 * MB) is BudgetVerdict.LESS
    assert governor.effort == Effort(1, 2)
    assert governor.check_cost(75 + 10, 100, lambda: 0) is BudgetVerdict.NOTHING
    assert governor.check_cost(75 + 80, 100.1, lambda: 500 * MB) is BudgetVerdict.LESS
    assert governor.effort == Effort(1, 4)


def test_needed_budget_is_that_of_a_whole_minute_and_not_of_its_most_expensive_part() -> None:
    """State the needed budget where half a minute of start-up costs 30 % of a processor, and each minute then 1.8 %."""
    governor, found = Governor(BUDGET, 0, 0), list[tuple[BudgetVerdict, float]]()
    governor.check_cost(14, 0, lambda: 0)
    for second in range(15, 15 + 8 * 60):
        spent_s = 0.3 * min(second - 15, 30) + 0.018 * (second - 15)
        found.append((governor.check_cost(second, spent_s, lambda: 0), governor.needed_cpu))
    needed = [cpu for verdict, cpu in found if verdict is BudgetVerdict.BROKEN]
    assert len(needed) > 1
    assert max(needed) < 0.025


def test_needed_budget_is_enough_for_the_last_ten_minutes_but_one() -> None:
    """State the needed budget of an agent that cannot do less: minutes cost 1.5 or 1.8 %, and two of them more."""
    costs = {10: 0.024, 14: 0.022}
    governor, spent_s, needed = Governor(BUDGET, 0, 0), 0.0, list[float]()
    governor.check_cost(14, 0, lambda: 0)
    for minute in range(30):
        spent_s += 60 * costs.get(minute, 0.015 if minute % 2 else 0.018)
        governor.check_cost(14 + 60 * (minute + 1), spent_s, lambda: 0)
        needed.append(AIM * governor.needed_cpu)
    assert needed[2:14] == pytest.approx([0.018] * 12)
    assert needed[14:20] == pytest.approx([0.022] * 6)
    assert needed[20:] == pytest.approx([0.018] * 10)


def test_samples_are_kept_if_the_cost_without_them_exceeds_the_budget_by_far() -> None:
    """Cost 1.7 % without any sample, and 0.8 % more with all of them: one in 64 would save little."""
    efforts: list[int] = []

    def load(_: int, effort: Effort) -> float:
        efforts.append(effort.times)
        return 0.017 + 0.008 * effort.used_fraction

    said = lived(load, 10)[0]
    assert BudgetVerdict.BROKEN in said
    assert 1 < max(efforts) <= 6
    assert all(verdict is BudgetVerdict.BROKEN for verdict in said[2:])


def test_steps_that_do_not_lower_the_cost_end_and_the_needed_budget_is_known() -> None:
    governor = Governor(BUDGET, 0, 0)
    governor.check_cost(14, 0, lambda: 0)
    found = [governor.check_cost(15 + minute * 60, minute * 60 * 0.018, lambda: 0) for minute in range(1, 9)]
    less, broken = BudgetVerdict.LESS, BudgetVerdict.BROKEN
    assert found == [less, broken, broken, less, broken, broken, broken, broken]
    assert abs(governor.needed_cpu - 0.018 / AIM) < 0.001
    assert governor.effort.times < 16


def test_minute_within_the_budget_leads_to_no_further_step_that_does_not_help() -> None:
    """Cost 0.95 to 1.3 %, whatever the effort: after a first step, the next one is tried only after two verdicts."""
    costs, governor, spent_s, efforts = (0.013, 0.0095, 0.0125, 0.0095), Governor(BUDGET, 0, 0), 0.0, list[int]()
    governor.check_cost(14, 0, lambda: 0)
    for minute in range(8):
        spent_s += 60 * costs[minute % len(costs)]
        governor.check_cost(14 + 60 * (minute + 1), spent_s, lambda: 0)
        efforts.append(governor.effort.times)
    assert efforts == [2] * 6 + [3] * 2


def test_more_is_not_tried_while_memory_is_nearly_used_up() -> None:
    minutes = iter(range(10_000))
    said = lived(lambda _, __: 0.001, 60, lambda _: (195 + 6 * (not next(minutes))) * MB)[0]
    assert said == [BudgetVerdict.LESS]


@pytest.mark.parametrize("share", [0.002, 0.005])
def test_other_budget_is_kept_from_the_effort_that_was_reached(share: float) -> None:
    """Change the budget of a running governor down and up again, with a cost of 1 % at full effort."""
    governor, now, spent = Governor(BUDGET, 0, 0), 0.0, 0.0

    def live(minutes: int) -> float:
        nonlocal now, spent
        before = spent
        for _ in range(12 * minutes):
            now, spent = now + 5, spent + 5 * (0.0005 + 0.008 * governor.effort.used_fraction)
            governor.check_cost(now, spent, lambda: 0)
        return (spent - before) / (60 * minutes)

    live(3)
    assert governor.effort == Effort()
    governor.change_budget(CostBudget(share, 200 * MB, 60), now, spent)
    assert governor.effort == Effort(), "a lower budget is judged by what is spent from now on"
    live(2)
    assert live(30) <= share
    reached = governor.effort.times
    assert reached > 1
    governor.change_budget(CostBudget(share * 0.99, 200 * MB, 60), now, spent)
    assert governor.effort.times == reached, "a lower budget is no reason to do more"
    governor.change_budget(CostBudget(1.0, 200 * MB, 60), now, spent)
    assert governor.effort == Effort(), "the whole effort is sure to be within this budget"
    governor.change_budget(BUDGET, now, spent)
    assert governor.effort == Effort()


def test_shorter_period_of_the_budget_ends_a_long_pause_of_its_check() -> None:
    governor = Governor(CostBudget(0.01, 200 * MB, 3600), 0, 0)
    governor.exclude_cost(0, FIRST_SETTLING)
    governor.change_budget(BUDGET, 5, 0)
    assert governor.check_cost(60, 30, lambda: 0) is BudgetVerdict.NOTHING
    assert governor.check_cost(70, 30, lambda: 0) is BudgetVerdict.NOTHING
    assert governor.check_cost(75, 35, lambda: 0) is BudgetVerdict.LESS


def test_memory_is_read_once_in_the_budgets_time_however_often_it_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel walks all pages for a reading, which is expensive if the budget is small."""
    now, spent_s, read = 1000.0, 0.0, list[float]()

    def memory() -> int:
        read.append(now)
        return 50 << 20

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(overhead_budget, "spent", lambda: spent_s)
    monkeypatch.setattr(overhead_budget, "memory", memory)
    keeper = overhead_budget.BudgetControl(
        CostBudget(0.001, 100 << 20, 60.0), lambda *_, **__: None, Conditions(lambda *_, **__: None)
    )
    for _ in range(240):
        now, spent_s = now + 5, spent_s + 0.5
        keeper.check_budget()
    assert keeper.exceeded > 10
    assert 10 <= len(read) <= 21


@pytest.mark.parametrize("cpu", [0.003, 0.03])
def test_processes_return_when_memory_falls_whatever_the_processor_time(cpu: float) -> None:
    """Exceed the memory in two minutes, and let it fall far below the budget while the processor time does not."""
    efforts = list[Effort]()

    def memory(effort: Effort) -> int:
        efforts.append(effort)
        return (250 if len(efforts) <= 2 else 100) * MB

    lived(lambda _, __: cpu, 30, memory)
    assert max(effort.processes for effort in efforts) > 1
    assert efforts[-1].processes == 1


def test_processes_that_need_too_much_memory_return_ever_more_rarely() -> None:
    efforts = list[Effort]()

    def memory(effort: Effort) -> int:
        efforts.append(effort)
        return (250 if effort.processes == 1 else 150) * MB

    lived(lambda _, __: 0.001, 600, memory)
    returns = [at for at in range(1, len(efforts)) if efforts[at].processes < efforts[at - 1].processes]
    waits = [after - before for before, after in itertools.pairwise(returns)]
    assert 5 <= len(returns) <= 20
    assert waits == sorted(waits)


class Judged:
    """A budget control whose clock, processor time and memory the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.spent_s, self.memory = 1000.0, 0.0, 0
        self.conditions = Conditions(lambda *_, **__: None)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(overhead_budget, "spent", lambda: self.spent_s)
        monkeypatch.setattr(overhead_budget, "memory", lambda: self.memory)
        self.control = overhead_budget.BudgetControl(BUDGET, lambda *_, **__: None, self.conditions)

    def live(self, minutes: int, cpu: float) -> None:
        for _ in range(12 * minutes):
            self.now, self.spent_s = self.now + 5, self.spent_s + 5 * cpu
            self.control.check_budget()


def test_shares_that_mean_little_because_of_the_budget_are_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged(monkeypatch)
    vague = {"sampled_ratio": 0.26, "shares_samples": 1.2, "shares_half_width_ratio": 0.45, WIDEST: 0.47}
    for _ in range(10):
        judged.control.judge_accuracy(vague)
    assert not judged.conditions.reasons, "the budget is not the cause"
    judged.live(5, 0.02)
    assert judged.control.effort.times > 1
    for count in range(1, 5):
        judged.control.judge_accuracy(vague)
        assert ("few_samples" in judged.conditions.reasons) == (count >= overhead_budget.VAGUE_WINDOWS)
    (found,) = (each for each in judged.conditions.failures() if each["reason"] == "few_samples")
    assert (found["shares_samples"], found["sampled_percent"], found["half_width_percent"]) == (1, 26, 47)
    judged.control.judge_accuracy({**vague, WIDEST: 0.1})
    assert "few_samples" not in judged.conditions.reasons


def test_status_tells_a_cost_above_the_budget_from_one_not_measured_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged(monkeypatch)
    judged.memory = 150 * MB
    assert "not measured yet" in format_cost(judged.control.status())
    judged.live(2, 0.003)
    assert format_cost(judged.control.status()).endswith(
        "150 MB (200 allowed), 1 of 1 sampling times, 1 of 1 processes"
    )
    judged.control.change_budget(CostBudget(0.001, 100 * MB, 60))
    judged.control.exclude_cost(FIRST_SETTLING)
    assert format_cost(judged.control.status()).endswith("; over the budget, checked again in 60 s")


def test_processes_that_the_memory_budget_leaves_out_are_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged(monkeypatch)
    judged.live(3, 0.001)
    assert not judged.conditions.reasons
    judged.memory = 2 * BUDGET.memory
    while "processes_left_out" not in judged.conditions.reasons and judged.now < 2000:
        judged.live(1, 0.001)
    assert judged.control.effort.processes > 1
    assert "processes_left_out" in judged.conditions.reasons
    judged.memory = BUDGET.memory // 2
    judged.live(600, 0.001)
    assert judged.control.effort.processes == 1
    assert "processes_left_out" not in judged.conditions.reasons
