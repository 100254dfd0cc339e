"""Tests of the list of collectors, of the facts for the choice among them, and of the collector that is opened."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import pytest

from pyprof.cli.main import build_parser
from pyprof.collectors.base import Collector, CollectorRefused
from pyprof.collectors.combined import planner, source_switching_collector
from pyprof.collectors.combined.planner import check_stops, collect_facts, describe_facts, describe_plans
from pyprof.collectors.combined.source_switching_collector import CombinedCollector
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.cpu_wide_events import Scope
from pyprof.collectors.perf.event_attributes import Event, PerfNotAllowed
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.registry import COLLECTORS, can_report_wakers, can_show_kernel, list_names, open_collector
from pyprof.collectors.sampling_source_plan import PlanFacts, ProcessFacts
from pyprof.collectors.targets.process_selection import InterpreterReaders, Request, Selection, select_processes
from pyprof.errors import AccessDenied, NoSuchProcess, PyprofError, UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import AARCH64
from pyprof.model.loss_reason_texts import make_note
from pyprof.options import AUTO, CollectOptions, TargetOptions
from pyprof.problem_counters import Diagnostics

OPTIONS = CollectOptions()
LEVEL2 = PlanFacts("x86_64", (6, 12), perf_user_only=True)
"""The facts for a user that may stop threads and has perf_events without time in the kernel."""
SCOPES = {
    user_only: Scope(Event("cpu-clock", 1, 0, user_only, children=False, chains=False), False, False)
    for user_only in (False, True)
}


def opened(name: str = AUTO, options: CollectOptions = OPTIONS) -> Collector:
    selection = select_processes(TargetOptions(pids=(os.getppid(),)))
    readers = SimpleNamespace(reader=None, needs_stops=lambda pid: "", follow_tasks=False)
    return open_collector(name, selection, options, Diagnostics(), cast("InterpreterReaders", readers))


def set_facts(monkeypatch: pytest.MonkeyPatch, facts: PlanFacts) -> None:
    monkeypatch.setattr(source_switching_collector, "collect_facts", lambda *_: facts)


def refuse_events(monkeypatch: pytest.MonkeyPatch, error: PyprofError) -> None:
    """Let the collector that uses perf_events raise an error when it is opened."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(source_switching_collector._Openings, "_perf", refuse)


def test_auto_is_the_default_and_each_collector_has_a_phrase_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_names() == (AUTO, "bpf", "perf", "ptrace")
    assert build_parser().parse_args(["record", "-p", "1"]).collector == AUTO
    with pytest.raises(SystemExit):
        build_parser().parse_args(["record", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{spec.name}: {spec.summary}" in text for spec in COLLECTORS)


def test_kernel_frames_and_wakers_are_a_matter_of_the_table() -> None:
    assert [can_show_kernel(name) for name in list_names()] == [True, True, True, False]
    assert [can_report_wakers(name) for name in list_names()] == [True, True, False, False]


def test_unknown_collector_is_refused() -> None:
    with pytest.raises(UsageError, match="no collector 'third'"):
        opened("third")


@pytest.mark.parametrize(
    ("name", "options", "follows"),
    [(AUTO, OPTIONS, True), ("ptrace", OPTIONS, False), (AUTO, CollectOptions(idle=True), False)],
)
def test_events_may_follow_stops_that_were_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, options: CollectOptions, follows: bool
) -> None:
    set_facts(monkeypatch, LEVEL2)
    found = opened(name, options)
    found.close()
    assert isinstance(found, CombinedCollector)
    assert isinstance(found._open.main, PtraceCollector)
    assert (found._open.missed is not None) == follows
    assert any("Time in the kernel has no samples" in note.text for note in found.stats().notes) == (name == AUTO)


def test_plan_is_made_again_without_a_source_that_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, PlanFacts("x86_64", (6, 12)))
    refuse_events(monkeypatch, PerfNotAllowed("not enough files", "ulimit -n"))
    found = opened()
    found.close()
    assert found.stats().notes == (make_note("by_stops", why="not enough files. ulimit -n"),)
    with pytest.raises(PerfNotAllowed, match="not enough files"):
        opened("perf")


@pytest.mark.parametrize("refused", [False, True])
def test_missing_bpf_is_noted_at_once_if_the_kernel_refused_the_program(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    error = CollectorRefused("the verifier says no.", "--collector perf")
    facts = PlanFacts("x86_64", (6, 12), perf_user_only=True, refused={"bpf": error} if refused else {})
    set_facts(monkeypatch, facts)
    found = opened()
    found.close()
    notes = [note for note in found.stats().notes if "BPF" in note.text]
    assert notes == ([make_note("without_program", why="the verifier says no")] if refused else [])


def test_error_of_the_first_source_is_raised_if_stops_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, PlanFacts("x86_64", (6, 12)))
    refuse_events(monkeypatch, PerfNotAllowed("not enough files"))
    monkeypatch.setattr(planner, "_find_error_of_stops", lambda pid: AccessDenied("traced"))
    with pytest.raises(PerfNotAllowed, match="not enough files"):
        opened()


def test_error_that_another_source_would_meet_too_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, PlanFacts("x86_64", (6, 12)))
    refuse_events(monkeypatch, AccessDenied("not yours"))
    with pytest.raises(AccessDenied, match="not yours"):
        opened()


def test_facts_have_the_event_the_architecture_and_the_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getppid()
    for user_only, scope in SCOPES.items():
        monkeypatch.setattr(planner, "choose_scope", lambda *_, scope=scope: scope)
        facts = collect_facts((pid,), OPTIONS)
        assert (facts.perf, facts.perf_user_only) == (None, user_only)
    system = os.uname()
    assert (facts.machine, facts.kernel) == (system.machine, tuple(map(int, system.release.split(".")[:2])))
    assert facts.arch == procfs.read_arch(pid).name
    monkeypatch.setattr(procfs, "read_arch", lambda _: AARCH64)
    monkeypatch.setattr(procfs, "read_thread_status", lambda tid: {"CapEff": "a0"})
    facts = collect_facts((pid,), OPTIONS)
    assert (facts.arch, facts.capabilities) == ("aarch64", 0xA0)
    error = PerfNotAllowed("level 4")

    def refuse(*_: object) -> Scope:
        raise error

    monkeypatch.setattr(planner, "choose_scope", refuse)
    assert collect_facts((pid,), OPTIONS).perf is error


def test_facts_of_an_ended_process_are_an_error() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(NoSuchProcess):
        collect_facts((child,), OPTIONS)


def test_stops_are_possible_if_one_process_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {1: AccessDenied("first"), 2: AccessDenied("second"), 3: None}
    monkeypatch.setattr(planner, "_find_error_of_stops", errors.get)
    assert check_stops(LEVEL2, (1, 3)).stops is None
    assert check_stops(LEVEL2, (2, 1)).stops is errors[2]
    assert check_stops(LEVEL2, (0,)).stops is None


def test_doctor_has_a_line_for_each_fact_source_and_plan() -> None:
    error = CollectorRefused("no perf_events", "sysctl")
    facts = PlanFacts("x86_64", (5, 10), initial_pid_namespace=False, perf=error)
    found = [(each.ok, each.text, each.hint) for each in describe_facts(facts, OPTIONS)]
    assert found == [
        (False, "kernel 5.10; BPF needs 5.19", ""),
        (False, "CAP_BPF and CAP_PERFMON: pyprof lacks CAP_BPF, CAP_PERFMON", ""),
        (False, "user and pid namespaces: not the first ones", ""),
        (False, "perf_events: no perf_events", "sysctl"),
        (False, "--collector bpf: no: programs in the kernel need Linux 5.19 or later", ""),
        (False, "--wakers, --mode lock: no: they need --collector bpf", ""),
        (False, "--collector perf: no: no perf_events", "sysctl"),
        (True, "--collector ptrace: yes", ""),
    ]
    plans = [each.text for each in describe_plans(LEVEL2, {"a program": ProcessFacts()})]
    why = "short stops: perf_events do not see time in the kernel"
    assert plans == [f"auto, --mode {mode}, a program: {why}" for mode in ("cpu", "wall")]
    (plan, _) = describe_plans(replace(facts, stops=AccessDenied("may not")), {"a program": ProcessFacts()})
    assert (plan.ok, plan.text) == (False, "auto, --mode cpu, a program: no source: no perf_events")


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("reaped", [True, False])
def test_of_several_processes_some_may_end_before_they_are_opened(
    monkeypatch: pytest.MonkeyPatch, lasting: bool, reaped: bool
) -> None:
    requests: list[Request] = []
    collector = cast("Collector", object())

    def open_planned(request: Request, name: str) -> Collector:
        requests.append(request)
        if request.selection.pids[0] != os.getppid():
            raise NoSuchProcess(f"there is no process {request.selection.pids[0]}")
        return collector

    monkeypatch.setattr(source_switching_collector, "open_planned", open_planned)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | (0 if reaped else os.WNOWAIT))
    selection = Selection((child, os.getppid()), (), lasting, False, lambda pid: False)
    try:
        for name in (AUTO, "perf"):
            assert open_collector(name, selection, OPTIONS, Diagnostics()) is collector
        left = requests[-1].selection
        assert left.pids == (os.getppid(),)
        assert [str(child) in note.text for note in left.refused] == ([] if lasting else [True])
        with pytest.raises(NoSuchProcess):
            open_collector("perf", replace(selection, pids=(child,)), OPTIONS, Diagnostics())
    finally:
        if not reaped:
            os.waitpid(child, 0)
