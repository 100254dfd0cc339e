"""Tests of the plan as a table: facts and options in, the source of a process and the rule out.

No test needs rights or a target.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.sampling_source_plan import (
    NO_STOPS,
    Plan,
    PlanFacts,
    ProcessFacts,
    UncopiedStack,
    find_refusal,
    make_plan,
    missing_capabilities,
)
from pyprof.errors import AccessDenied, NotTraceable, PyprofError
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import SENTENCES
from pyprof.options import AUTO, CollectOptions

BPF_AND_PERFMON, SYS_ADMIN = 1 << 39 | 1 << 38, 1 << 21
NO_PERF = CollectorRefused("no perf_events", "sysctl")
NO_STOP = AccessDenied("may not be traced")
TRACED = NotTraceable("gdb traces it")

ROOT = PlanFacts("x86_64", (6, 12), BPF_AND_PERFMON)
"""BPF, perf_events and stops are possible."""
USER = replace(ROOT, capabilities=0)
"""perf_events with time in the kernel, and stops."""
LEVEL2 = replace(USER, perf_user_only=True)
"""perf_events without time in the kernel, and stops."""
STOPS = replace(USER, perf=NO_PERF)
"""Stops only."""
EVENTS = replace(LEVEL2, stops=NO_STOP)
"""perf_events without time in the kernel only."""
NOTHING = replace(STOPS, stops=NO_STOP)
BROKEN = replace(ROOT, refused={"bpf": CollectorRefused("verifier")})
"""BPF was tried, and the kernel refused it."""
BY_BPF = replace(ROOT, current="bpf")

NATIVE = ProcessFacts()
PYTHON = ProcessFacts(interpreter="it runs CPython")
STARTS = ProcessFacts(interpreter=None)
HELD = replace(PYTHON, stops=TRACED)
GREENLETS = ProcessFacts(unreadable="it runs greenlets")
UNREAD = ProcessFacts(unreadable=None)
DEEP = ProcessFacts(stacks={7: UncopiedStack.LONG})
HANDLER = ProcessFacts(stacks={7: UncopiedStack.SECOND})

CPU = CollectOptions()
KERNEL = CollectOptions(kernel=True)
WALL = CollectOptions(idle=True)
OFFCPU = CollectOptions(idle=True, running=False)
WAKERS = CollectOptions(idle=True, running=False, wakers=True)
SHALLOW = CollectOptions(stack_size=NO_STOPS)

HIDDEN = "ptrace kernel_time: kernel_not_sampled"


class Case(NamedTuple):
    """One row of the table.

    Attributes:
        facts: The facts.
        process: The facts about one process.
        options: Options of the recording.
        outcome: See describe().
        collector: The user's --collector.
    """

    facts: PlanFacts
    process: ProcessFacts
    options: CollectOptions
    outcome: str
    collector: str = AUTO


CASES = (
    # BPF is available
    Case(ROOT, NATIVE, CPU, "perf native"),
    Case(ROOT, PYTHON, CPU, "bpf interpreter: it runs CPython"),
    Case(ROOT, STARTS, CPU, "bpf interpreter"),
    Case(ROOT, HELD, CPU, "bpf interpreter: it runs CPython"),
    Case(ROOT, HANDLER, CPU, "bpf second_stack; thread stopped"),
    Case(ROOT, DEEP, CPU, "perf native; thread stopped"),
    Case(ROOT, NATIVE, WALL, "bpf waits"),
    Case(ROOT, NATIVE, OFFCPU, "bpf waits"),
    Case(ROOT, PYTHON, WALL, "bpf waits"),
    Case(ROOT, NATIVE, WAKERS, "bpf wakers"),
    Case(ROOT, NATIVE, KERNEL, "perf native"),
    Case(ROOT, PYTHON, KERNEL, "bpf interpreter: it runs CPython"),
    Case(replace(ROOT, launched=True), NATIVE, CPU, "bpf any_program"),
    Case(replace(ROOT, everything=True), NATIVE, CPU, "bpf any_program"),
    Case(replace(ROOT, everything=True), PYTHON, CPU, "bpf any_program"),
    Case(replace(ROOT, stops=NO_STOP), PYTHON, CPU, "bpf interpreter: it runs CPython"),
    Case(replace(ROOT, capabilities=SYS_ADMIN), PYTHON, CPU, "bpf interpreter: it runs CPython"),
    Case(replace(ROOT, kernel=(5, 19)), PYTHON, CPU, "bpf interpreter: it runs CPython"),
    Case(replace(ROOT, machine="aarch64", arch="arm"), PYTHON, CPU, "bpf interpreter: it runs CPython"),
    Case(replace(ROOT, arch="i386"), PYTHON, CPU, "bpf interpreter: it runs CPython"),
    # BPF samples already
    Case(BY_BPF, NATIVE, CPU, "bpf bpf_stays"),
    Case(BY_BPF, UNREAD, CPU, "bpf bpf_stays; asked again"),
    Case(BY_BPF, GREENLETS, CPU, "ptrace unreadable: it runs greenlets"),
    Case(BY_BPF, GREENLETS, WALL, "ptrace unreadable: it runs greenlets"),
    Case(BY_BPF, GREENLETS, KERNEL, "bpf bpf_stays"),
    Case(BY_BPF, replace(GREENLETS, stops=TRACED), CPU, "bpf bpf_stays"),
    Case(BY_BPF, DEEP, CPU, "bpf bpf_stays; thread stopped"),
    Case(BY_BPF, DEEP, WALL, "bpf bpf_stays"),
    Case(replace(ROOT, current="perf"), NATIVE, CPU, "perf native"),
    Case(replace(BROKEN, current="bpf"), NATIVE, CPU, "perf native"),
    # perf_events with time in the kernel, without BPF
    Case(USER, NATIVE, CPU, "perf native"),
    Case(USER, PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    Case(USER, STARTS, CPU, "perf native; asked again"),
    Case(USER, HELD, CPU, "perf native"),
    Case(USER, PYTHON, KERNEL, "perf native"),
    Case(replace(USER, everything=True), PYTHON, CPU, "perf native"),
    Case(replace(USER, launched=True), PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    Case(USER, HANDLER, CPU, "perf native; thread stopped"),
    Case(USER, DEEP, CPU, "perf native; thread stopped"),
    Case(USER, DEEP, KERNEL, "perf native"),
    Case(USER, DEEP, SHALLOW, "perf native"),
    Case(USER, DEEP, WALL, "perf native"),
    Case(USER, replace(DEEP, stops=TRACED), CPU, "perf native"),
    Case(USER, replace(PYTHON, stacks=DEEP.stacks), CPU, "ptrace interpreter_by_stops: it runs CPython"),
    Case(USER, NATIVE, WALL, "perf native"),
    Case(USER, PYTHON, WALL, "ptrace waits_by_stops: it runs CPython"),
    Case(USER, STARTS, WALL, "perf native; asked again"),
    Case(USER, HELD, WALL, "perf native"),
    Case(USER, PYTHON, OFFCPU, "perf native"),
    Case(replace(USER, everything=True), PYTHON, WALL, "perf native"),
    Case(USER, NATIVE, WAKERS, "refused: lacks CAP_BPF and CAP_PERFMON"),
    Case(BROKEN, PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    Case(BROKEN, NATIVE, WAKERS, "refused: verifier"),
    Case(replace(USER, short_lives=True), PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    # perf_events without time in the kernel
    Case(LEVEL2, NATIVE, CPU, HIDDEN),
    Case(LEVEL2, NATIVE, WALL, HIDDEN),
    Case(replace(LEVEL2, short_lives=True), NATIVE, CPU, "perf short_lives"),
    Case(replace(LEVEL2, short_lives=True), STARTS, CPU, "perf short_lives; asked again"),
    Case(replace(LEVEL2, short_lives=True), PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    Case(replace(LEVEL2, short_lives=True), NATIVE, WALL, HIDDEN),
    Case(EVENTS, NATIVE, CPU, "perf stops_refused: may not be traced."),
    Case(EVENTS, HELD, CPU, "perf stops_refused: may not be traced."),
    Case(EVENTS, NATIVE, WALL, "perf stops_refused: may not be traced."),
    Case(EVENTS, PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),  # a later process that can be stopped
    Case(EVENTS, PYTHON, WALL, "perf stops_refused: may not be traced."),
    # no perf_events
    Case(STOPS, NATIVE, CPU, "ptrace events_refused: no perf_events. sysctl"),
    Case(STOPS, NATIVE, WALL, "ptrace events_refused: no perf_events. sysctl"),
    Case(STOPS, NATIVE, KERNEL, "refused: no perf_events"),
    Case(STOPS, DEEP, CPU, "ptrace events_refused: no perf_events. sysctl"),
    Case(NOTHING, NATIVE, CPU, "refused: no perf_events"),
    Case(replace(ROOT, perf=NO_PERF), PYTHON, CPU, "ptrace events_refused: no perf_events. sysctl"),
    Case(replace(ROOT, refused={"perf": NO_PERF}), NATIVE, CPU, "ptrace events_refused: no perf_events. sysctl"),
    Case(replace(ROOT, arch="s390x"), NATIVE, CPU, "ptrace events_refused: it runs s390x code."),
    Case(replace(ROOT, arch="s390x"), PYTHON, WALL, "ptrace events_refused: it runs s390x code."),
    Case(
        replace(USER, machine="armv7l"),
        NATIVE,
        CPU,
        "ptrace events_refused: samples of perf_events are read on x86_64 and aarch64.",
    ),
    Case(replace(USER, machine="vax"), NATIVE, CPU, "refused: samples of perf_events are read on"),
    # BPF is not available
    Case(replace(ROOT, machine="armv7l"), NATIVE, CPU, "refused: is made for", "bpf"),
    Case(replace(ROOT, kernel=(5, 18)), NATIVE, CPU, "refused: 5.19", "bpf"),
    Case(replace(ROOT, kernel=(4, 20)), NATIVE, CPU, "refused: 5.19", "bpf"),
    Case(replace(ROOT, initial_user_namespace=False), NATIVE, CPU, "refused: user namespace", "bpf"),
    Case(replace(ROOT, initial_pid_namespace=False), NATIVE, CPU, "refused: pid namespace", "bpf"),
    Case(replace(ROOT, capabilities=1 << 39), NATIVE, CPU, "refused: lacks CAP_PERFMON", "bpf"),
    Case(replace(ROOT, capabilities=1 << 38), NATIVE, CPU, "refused: lacks CAP_BPF", "bpf"),
    Case(replace(ROOT, perf=NO_PERF), NATIVE, CPU, "refused: no perf_events", "bpf"),
    Case(replace(ROOT, initial_pid_namespace=False), PYTHON, CPU, "ptrace interpreter_by_stops: it runs CPython"),
    # a collector that the user named
    Case(ROOT, PYTHON, CPU, "perf requested", "perf"),
    Case(ROOT, STARTS, CPU, "perf requested", "perf"),
    Case(ROOT, DEEP, CPU, "perf requested; thread stopped", "perf"),
    Case(LEVEL2, NATIVE, CPU, "perf requested", "perf"),
    Case(STOPS, NATIVE, CPU, "refused: no perf_events", "perf"),
    Case(ROOT, NATIVE, WAKERS, "refused: perf_events do not show which thread", "perf"),
    Case(ROOT, NATIVE, CPU, "bpf requested", "bpf"),
    Case(ROOT, GREENLETS, CPU, "ptrace unreadable: it runs greenlets", "bpf"),
    Case(BROKEN, NATIVE, CPU, "refused: verifier", "bpf"),
    Case(ROOT, NATIVE, CPU, "ptrace requested", "ptrace"),
    Case(ROOT, DEEP, CPU, "ptrace requested", "ptrace"),
    Case(NOTHING, NATIVE, CPU, "refused: may not be traced", "ptrace"),
    Case(ROOT, NATIVE, KERNEL, "refused: no kernel frames", "ptrace"),
    Case(ROOT, NATIVE, WAKERS, "refused: samples by stops do not show which thread", "ptrace"),
    Case(replace(ROOT, machine="vax"), NATIVE, CPU, "refused: nothing is known of vax", "ptrace"),
)


def planned(case: Case) -> Plan:
    return make_plan(replace(case.facts, processes={5: case.process}), case.options, case.collector)


def describe(plan: Plan) -> str:
    """Return the source, the rule and the fact of the choice for a process, and what holds for its thread 7."""
    choice = plan.processes[5]
    text = f"{choice.source} {choice.rule.removeprefix('plan_')}" + (f": {choice.why}" if choice.why else "")
    text += "; asked again" if choice.provisional else ""
    return text + ("; thread stopped" if 7 in plan.threads else "")


def numbered(refused: bool) -> list[object]:
    """Return the rows of the table whose options are refused, or the others, with their numbers."""
    rows = [(number, case) for number, case in enumerate(CASES) if case.outcome.startswith("refused") == refused]
    return [pytest.param(case, id=f"{number}: {case.outcome}") for number, case in rows]


@pytest.mark.parametrize("case", numbered(refused=False))
def test_facts_and_options_decide_the_source(case: Case) -> None:
    assert describe(planned(case)) == case.outcome


@pytest.mark.parametrize("case", numbered(refused=True))
def test_options_that_no_source_can_do_are_refused_with_the_reason(case: Case) -> None:
    with pytest.raises(PyprofError) as refused:
        planned(case)
    assert case.outcome.removeprefix("refused: ") in refused.value.message


def sources(plan: Plan) -> list[str]:
    return [plan.default.source, *(plan.processes[pid].source for pid in sorted(plan.processes))]


def test_one_interpreter_moves_all_processes_to_bpf_and_only_its_own_to_stops() -> None:
    both = {1: NATIVE, 2: PYTHON}
    assert sources(make_plan(replace(ROOT, processes=both), CPU)) == ["bpf", "bpf", "bpf"]
    assert sources(make_plan(replace(USER, processes=both), CPU)) == ["perf", "perf", "ptrace"]
    assert sources(make_plan(replace(USER, processes=both), WALL)) == ["ptrace", "ptrace", "ptrace"]


def test_second_stack_of_one_thread_moves_all_processes_to_bpf() -> None:
    plan = make_plan(replace(ROOT, processes={1: NATIVE, 2: HANDLER}), CPU)
    assert sources(plan) == ["bpf", "bpf", "bpf"]


def test_stop_reason_is_none_while_an_interpreter_starts() -> None:
    reasons = [
        make_plan(replace(USER, processes={1: process}), CPU).processes[1].stop_reason
        for process in (NATIVE, PYTHON, STARTS)
    ]
    assert reasons == ["", "it runs CPython", None]


def test_each_rule_is_in_the_table() -> None:
    rules = {name.removeprefix("plan_") for name in SENTENCES if name.startswith("plan_")}
    used = {case.outcome.split(";")[0].split(":")[0].partition(" ")[2] for case in CASES}
    assert used - {""} | {"stack_by_stops"} == rules
    assert len(CASES) >= 60


def test_the_error_of_a_source_that_could_not_be_opened_is_its_refusal() -> None:
    error = CollectorRefused("no memory")
    for source in ("bpf", "perf", "ptrace"):
        assert find_refusal(source, ROOT, CPU) is None
        assert find_refusal(source, replace(ROOT, refused={source: error}), CPU) is error


def test_missing_capabilities_are_named() -> None:
    assert missing_capabilities(USER) == ["CAP_BPF", "CAP_PERFMON"]
    assert missing_capabilities(replace(USER, capabilities=SYS_ADMIN)) == []
