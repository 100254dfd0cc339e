"""Tests of the choice of the collector: the requested one, or the first one that can record the target."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from pyprof.cli.main import build_parser
from pyprof.collectors import registry
from pyprof.collectors.base import Collector, CollectorRefused, PartialVisibility
from pyprof.collectors.hybrid import bpf_opening
from pyprof.collectors.hybrid import opening as by_perf
from pyprof.collectors.hybrid.until_short_lives import UntilShortLives
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.attr import Event
from pyprof.collectors.perf.event_scope import Scope
from pyprof.collectors.ptrace import opening as by_stops
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.registry import AUTO, COLLECTORS, CollectorSpec, open_collector
from pyprof.collectors.targets.collector_request import CollectorTarget, InterpreterReaders, Request
from pyprof.collectors.targets.selection import Selection, select_processes
from pyprof.diagnostics import Diagnostics
from pyprof.errors import AccessDenied, NoSuchProcess, PyprofError, UnsupportedArchitecture, UsageError
from pyprof.model.arch import AARCH64
from pyprof.options import CollectOptions, TargetOptions
from pyprof.records import replace

OPTIONS = CollectOptions()
OURS = CollectorTarget(os.getpid())


class Room(ModuleType):
    """The module `opening` of a test collector.

    Attributes:
        refusal: The return value of can().
        error: The exception that open() raises.
    """

    def __init__(self, name: str, refusal: PyprofError | None = None, error: PyprofError | None = None) -> None:
        super().__init__(name)
        self.refusal = refusal
        self.error = error
        self.asked: list[CollectorTarget] = []
        self.requests: list[Request] = []

    def can(self, target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
        self.asked.append(target)
        return self.refusal

    def open(self, request: Request) -> Collector:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return cast("Collector", self)


def furnish(monkeypatch: pytest.MonkeyPatch, *rooms: Room) -> None:
    for room in rooms:
        monkeypatch.setitem(sys.modules, f"pyprof.collectors.{room.__name__}.opening", room)
    specs = tuple(
        CollectorSpec(room.__name__, f"{room.__name__}.opening", f"by {room.__name__}", True) for room in rooms
    )
    monkeypatch.setattr(registry, "COLLECTORS", specs)


def opened(name: str = AUTO) -> Collector:
    return open_collector(name, select_processes(TargetOptions(pids=(os.getppid(),))), OPTIONS, Diagnostics())


def test_first_that_can_is_opened_and_no_later_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Room("first"), Room("second")
    furnish(monkeypatch, first, second)
    assert opened() is cast("Collector", first)
    assert first.asked == [CollectorTarget(os.getppid())]
    assert not second.asked
    assert first.requests[0].refusals == ()
    assert not first.requests[0].by_name


def test_next_one_is_told_why_those_before_it_were_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    said, raised = PyprofError("no such feature"), CollectorRefused("not allowed", "sysctl")
    rooms = Room("first", refusal=said), Room("second", error=raised), Room("third")
    furnish(monkeypatch, *rooms)
    assert opened() is cast("Collector", rooms[2])
    assert not rooms[0].requests
    assert rooms[2].requests[0].refusals == (said, raised)


def test_an_error_that_another_collector_would_meet_too_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Room("first", error=AccessDenied("not yours")), Room("second")
    furnish(monkeypatch, first, second)
    with pytest.raises(AccessDenied, match="not yours"):
        opened()
    assert not second.asked


def test_where_none_can_the_reason_of_the_best_one_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(monkeypatch, Room("first", refusal=CollectorRefused("mend me", "so")), Room("second", PyprofError("nor I")))
    with pytest.raises(CollectorRefused, match="mend me"):
        opened()


def test_one_that_sees_a_part_is_opened_where_no_other_can(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = (
        Room("first", refusal=PyprofError("no")),
        Room("part", refusal=PartialVisibility("hidden")),
        Room("last", PyprofError("nor I")),
    )
    furnish(monkeypatch, *rooms)
    assert opened() is cast("Collector", rooms[1])
    rooms[2].refusal = None
    assert opened() is cast("Collector", rooms[2])


def test_events_may_follow_stops_that_were_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_perf, "can", lambda *_: PartialVisibility("hidden"))
    monkeypatch.setattr(bpf_opening, "can", lambda *_: None)
    selection, interpreters = (
        select_processes(TargetOptions(pids=(os.getppid(),))),
        cast("InterpreterReaders", SimpleNamespace(reader=None, needs_stops=None, follow_tasks=False)),
    )
    for name, options, expected in (
        (AUTO, OPTIONS, UntilShortLives),
        ("ptrace", OPTIONS, PtraceCollector),
        (AUTO, CollectOptions(idle=True), PtraceCollector),
    ):
        found = open_collector(name, selection, options, Diagnostics(), interpreters)
        found.close()
        assert type(found) is expected


def test_the_one_that_was_asked_for_is_opened_whatever_it_says_and_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Room("first"), Room("second", refusal=PyprofError("only in part"))
    furnish(monkeypatch, first, second)
    assert opened("second") is cast("Collector", second)
    assert second.requests[0].by_name
    assert not first.asked
    with pytest.raises(UsageError, match="no collector 'third'"):
        opened("third")


def test_new_collector_is_a_command_line_choice_and_a_line_of_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    furnish(monkeypatch, Room("bpf", refusal=CollectorRefused("CAP_BPF is missing", "sudo pyprof")), Room("old"))
    assert build_parser().parse_args(["record", "--collector", "bpf", "-p", "1"]).collector == "bpf"
    with pytest.raises(SystemExit):
        build_parser().parse_args(["record", "--help"])
    assert "bpf: by bpf; old: by old" in " ".join(capsys.readouterr().out.split())
    found = [(each.ok, each.text, each.remedy) for each in registry.list_findings(OURS, OPTIONS)]
    assert found == [
        (False, "--collector bpf: no: CAP_BPF is missing", "sudo pyprof"),
        (True, "--collector old: yes", ""),
    ]


def test_kernel_frames_are_a_matter_of_the_table() -> None:
    assert [registry.can_show_kernel(name) for name in (AUTO, "bpf", "perf", "ptrace")] == [True, True, True, False]
    assert [spec.name for spec in COLLECTORS if not spec.in_auto] == ["bpf"]
    assert [spec.name for spec in COLLECTORS] == ["bpf", "perf", "ptrace"]
    refused = by_stops.can(OURS, CollectOptions(kernel=True))
    assert refused is not None
    assert "kernel" in refused.message


def test_perf_events_are_refused_for_other_code_and_where_the_kernels_time_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Event("cpu-clock", 1, 0, user_only=False, children=False, chains=False)
    hidden = Event("cpu-clock", 1, 0, user_only=True, children=False, chains=False)
    monkeypatch.setattr(by_perf, "choose_scope", lambda *_: Scope(shown, False, False))
    assert by_perf.can(OURS, OPTIONS) is None
    monkeypatch.setattr(by_perf, "choose_scope", lambda *_: Scope(hidden, False, False))
    refused = by_perf.can(OURS, OPTIONS)
    assert isinstance(refused, CollectorRefused)
    assert "perf_event_paranoid" in refused.message
    monkeypatch.setattr(procfs, "read_arch", lambda _: AARCH64)
    assert isinstance(by_perf.can(OURS, OPTIONS), UnsupportedArchitecture)


class Ending(Room):
    """A collector whose first requested process ends before it is opened."""

    def open(self, request: Request) -> Collector:
        self.requests.append(request)
        if request.pid != os.getppid():
            raise NoSuchProcess(f"there is no process {request.pid}")
        return cast("Collector", self)


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("reaped", [True, False])
def test_of_several_processes_some_may_end_before_they_are_opened(
    monkeypatch: pytest.MonkeyPatch, lasting: bool, reaped: bool
) -> None:
    room = Ending("first")
    furnish(monkeypatch, room)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | (0 if reaped else os.WNOWAIT))
    selection = Selection((child, os.getppid()), (), lasting, False, lambda pid: False)
    try:
        for name in (AUTO, "first"):
            assert open_collector(name, selection, OPTIONS, Diagnostics()) is cast("Collector", room)
        left = room.requests[-1].selection
        assert left.pids == (os.getppid(),)
        assert [str(child) in said for said in left.refused] == ([] if lasting else [True])
        with pytest.raises(NoSuchProcess):
            open_collector("first", replace(selection, pids=(child,)), OPTIONS, Diagnostics())
    finally:
        if not reaped:
            os.waitpid(child, 0)
