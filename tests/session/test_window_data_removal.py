"""Tests that closing a window reaches every component, so that none keeps data of past windows.

Other tests check what each component then drops, and test_flat_memory.py checks a whole recording.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
from pyprof.collectors.bpf.wall_clock_samples import BpfWaitSamples
from pyprof.collectors.combined.open_sources import OpenSources, PartialStops
from pyprof.collectors.combined.source_switching_collector import CombinedCollector
from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
from pyprof.collectors.perf.context_switch_source import PerfSwitchSource
from pyprof.collectors.perf.kernel_collector import KernelCollector
from pyprof.collectors.perf.process_set import RecordAccounts
from pyprof.collectors.perf.processes_from_records import ThreadNames
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.ptrace.sampled_processes import Targets
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, ProgramImage
from pyprof.objfile.base import ObjectFile
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.session.own_cpu_and_memory import OwnHeap
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.session import MAX_CACHED_WINDOWS, Session
from pyprof.session.worker.message_codec import BY_PID, Unpacker, _SpaceFacts
from pyprof.session.worker.messages import ProcessUpdate
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.unwind.unwinder import Unwinder
from tests import syntax
from tests.session.test_session import Silent

ROOT = Path(__file__).parent.parent.parent


class Part:
    """A component that stores the arguments of each retire() call."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.roots: dict[int, int] = {}

    def retire(self, *arguments: object) -> None:
        self.told.append(arguments)


def plain(*names: str) -> Callable[[], tuple[dict[str, object], list[Part]]]:
    """Return a function that creates attributes with these names as components."""

    def made() -> tuple[dict[str, object], list[Part]]:
        parts = [Part() for _ in names]
        return dict(zip(names, parts, strict=True)), parts

    return made


def by_records() -> tuple[dict[str, object], list[Part]]:
    names, accounts, samples = Part(), Part(), Part()
    members = SimpleNamespace(tracked=SimpleNamespace(names=names, roots={}))
    records = SimpleNamespace(members=members, accounts=accounts, maker=SimpleNamespace(sampled=set()))
    return {"records": records, "samples": samples}, [names, accounts, samples]


def by_program() -> tuple[dict[str, object], list[Part]]:
    processes = Part()
    return {"source": SimpleNamespace(processes=processes)}, [processes]


def by_switches() -> tuple[dict[str, object], list[Part]]:
    running, cycle = Part(), Part()
    return {"running": running, "switches": SimpleNamespace(cycle=cycle)}, [running, cycle]


def by_accounts() -> tuple[dict[str, object], list[Part]]:
    accounts = Part()
    return {"_accounts": accounts, "_members": SimpleNamespace(tracked=SimpleNamespace(roots={}))}, [accounts]


WITH_PARTS: dict[type, Callable[[], tuple[dict[str, object], list[Part]]]] = {
    CombinedCollector: plain("_past", "_open"),
    OpenSources: plain("main", "partial"),
    PartialStops: plain("_past", "source"),
    WallClockCollector: plain("_source", "_out_of_band"),
    PerfSwitchSource: by_switches,
    RecordAccounts: by_accounts,
    KernelCollector: by_records,
    BpfSamples: by_program,
    BpfWaitSamples: plain("_plain", "sleepers"),
}


@pytest.mark.parametrize("kind", WITH_PARTS, ids=lambda kind: kind.__name__)
def test_each_part_is_told_once_that_a_window_was_closed(kind: type) -> None:
    attributes, parts = WITH_PARTS[kind]()
    collector: Any = object.__new__(kind)
    for name, value in attributes.items():
        setattr(collector, name, value)
    collector.retire()
    assert [len(part.told) for part in parts] == [1] * len(parts)


def test_stops_tell_targets_accounts_and_forget_refused_threads_that_ended() -> None:
    collector = PtraceCollector.__new__(PtraceCollector)
    targets, accounts, refused = Part(), Part(), {2**22 + 1}
    collector.__dict__.update(_targets=targets, _accounts=accounts, _sampler=SimpleNamespace(refused=refused))
    collector.retire()
    assert (targets.told, accounts.told, refused) == ([()], [({},)], set())


def calls_in_retire(path: Path) -> int:
    """Return the number of retire() calls within the retire() methods of a file."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "retire"
        for method in syntax.nodes(path)
        if isinstance(method, ast.FunctionDef) and method.name == "retire"
        for node in ast.walk(method)
    )


def test_no_collector_that_tells_parts_is_missing_here() -> None:
    found = {
        str(path.relative_to(ROOT)) for path in sorted((ROOT / "collectors").rglob("*.py")) if calls_in_retire(path)
    }
    bases = {base for kind in (*WITH_PARTS, PtraceCollector) for base in kind.__mro__}
    here = {f"{base.__module__.removeprefix('pyprof.').replace('.', '/')}.py" for base in bases}
    tell_lives = {"collectors/perf/processes_from_records.py", "collectors/ptrace/sampled_processes.py"}
    assert found - here == tell_lives


def test_tables_of_threads_tell_the_lives_of_threads() -> None:
    lives, names, targets = Part(), ThreadNames.__new__(ThreadNames), Targets.__new__(Targets)
    names.__dict__.update(_lives=lives, _names={}, _leaving=DelayedRemoval())
    names.retire(set())
    assert lives.told == [()]
    targets.__dict__.update(by_pid={}, _infos={}, _seen=set(), _root_of={}, _young={}, refused={2**22 + 1})
    targets.__dict__.update(_leaving=DelayedRemoval(), _unseen=DelayedRemoval(), _ids=SimpleNamespace(lives=lives))
    targets.retire()
    assert (len(lives.told), targets.refused) == (2, set())


@pytest.mark.parametrize("closed", [False, True])
def test_sampler_tells_its_collector_while_that_samples_and_the_interpreters(closed: bool) -> None:
    collector, runtimes, sampling = Part(), Part(), Sampling.__new__(Sampling)
    sampling.__dict__.update(_closed=closed, _collector=collector, _runtimes=runtimes, _heap=OwnHeap())
    sampling._retire()
    assert (collector.told, runtimes.told) == ([] if closed else [()], [()])


def test_worker_tells_rules_starts_names_and_what_was_said_of_modules() -> None:
    session = Session(Silent(), UnwindOptions(), Diagnostics())
    left, rules, starts, names = {object()}, Part(), Part(), Part()
    session.diagnostics.problem("/gone", Problem("is not mapped any more"))
    session.__dict__.update(
        images=SimpleNamespace(forget=lambda *spaces: left, paths=set()),
        unwinder=rules,
        files=SimpleNamespace(starts=starts, names=names),
    )
    for problems in (["/gone"], []):  # the next window may have late samples
        session.retire(session.recorder.cut())
        assert list(session.diagnostics.problems) == problems
    assert (rules.told, starts.told, names.told) == ([(left,)] * 2, [(left,)] * 2, [(set(), left)] * 2)


class ForgottenSpaces:
    """A part of a session that stores the numbers of the address spaces that it has to forget."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def forget(self, number: int) -> None:
        self.numbers.append(number)

    def retire(self, files: object) -> None: ...


def session_with_a_space() -> tuple[Session, ForgottenSpaces, Window, Window]:
    """Return a session, its stand-in for an unwinder, a window with one address space and one without."""
    session, unwinder = Session(Silent(), UnwindOptions(), Diagnostics()), ForgottenSpaces()
    session.__dict__.update(unwinder=unwinder)
    space = AddressSpace(7, 40, 0, (), lambda avma, size: b"", "/proc/40/root", image=ProgramImage())
    empty = session.recorder.cut()
    return session, unwinder, replace(empty, spaces={7: space}), empty


def test_rules_of_a_used_space_outlive_windows_without_samples_of_it() -> None:
    session, unwinder, window, empty = session_with_a_space()
    for each in (window, empty, window, empty):
        session.retire(each, lambda space: True)
    assert unwinder.numbers == []
    session.retire(empty, lambda space: False)
    assert unwinder.numbers == [7]
    session.retire(empty, lambda space: False)
    assert unwinder.numbers == [7]


def test_rules_of_a_used_space_are_read_again_after_many_windows() -> None:
    session, unwinder, window, _ = session_with_a_space()
    for _ in range(MAX_CACHED_WINDOWS):
        session.retire(window, lambda space: True)
    assert unwinder.numbers == []
    session.retire(window, lambda space: True)
    assert unwinder.numbers == [7]


def test_worker_uses_a_space_until_the_sampler_drops_it_or_its_program_ends() -> None:
    asked: Any = SimpleNamespace()
    unpacker = Unpacker(asked)
    facts = _SpaceFacts(os.getpid(), 0, (), "/", True, 5, BY_PID, False, False)
    first, second = unpacker.space(1, facts), unpacker.space(2, facts._replace(image=6))
    assert unpacker.uses_space(first)
    unpacker.update(ProcessUpdate(spaces=(1,)))
    assert [unpacker.uses_space(each) for each in (first, second)] == [False, True]
    unpacker.update(ProcessUpdate(ended=(6,)))
    assert not unpacker.uses_space(second)


def test_rules_of_each_architecture_are_told() -> None:
    parts, files = [Part(), Part()], frozenset[ObjectFile]()
    unwinder = Unwinder.__new__(Unwinder)
    unwinder.__dict__.update(_indexes=dict(enumerate(parts)))
    unwinder.retire(files)
    assert [part.told for part in parts] == [[(files,)]] * 2
