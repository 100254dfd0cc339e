"""Tests of the process table: rules applied to live processes, their children, and processes that cannot be read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from pyprof.collectors.linux import procfs
from pyprof.fleet.agent import process_table
from pyprof.fleet.agent.config import parse
from pyprof.fleet.agent.health import Conditions, OwnCpu
from pyprof.fleet.agent.overhead_budget import BudgetControl
from pyprof.fleet.agent.process_rules import NOT_RECORDED, RuleVerdict, SamplingChoice, judge
from pyprof.fleet.agent.process_table import Facts, ObservedProcess, ProcessTable, RuleSelection, choose_cgroup
from pyprof.fleet.agent.sampling_effort_controller import CostBudget
from pyprof.fleet.cli.agent_administration import _health
from pyprof.lazy_dataclasses import replace
from tests.chance import most
from tests.support import missing

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
READY = "print('ready', flush=True); input()"


def table(rule: str, own: int = -1) -> ProcessTable:
    return ProcessTable(parse(f"[[rule]]\n{rule}", "x").rules, own)


def started(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that waits for a line on its standard input."""
    child = subprocess.Popen(
        [sys.executable, "-c", READY, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def started_as(pid: int, *words: str) -> subprocess.Popen[bytes]:
    """Start a process that has this pid, which must be free."""
    if not os.access(LAST_PID, os.W_OK):
        missing(f"needs root, and a kernel with CONFIG_CHECKPOINT_RESTORE: {LAST_PID}")
    while True:
        LAST_PID.write_text(str(pid - 1))
        child = started(*words)
        if child.pid == pid:
            return child
        child.communicate(b"\n")


def began_ns(pid: int) -> int:
    """Return the start time of a process in nanoseconds of the monotonic clock."""
    ticks = procfs.read_start_ticks(pid)
    assert ticks is not None
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return ticks * 10**9 // os.sysconf("SC_CLK_TCK") - since_boot_ns


def again(found: ProcessTable) -> dict[int, process_table.ObservedProcess]:
    found._next, found._census = 0.0, b""
    return found.find_processes()


CONTAINER = "ab12" * 16


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::/kubepods.slice/cri-containerd-{CONTAINER}.scope\n", f"/kubepods.slice/cri-containerd-{CONTAINER}.scope"),
        (f"3:cpu,cpuacct:/x\n1:name=systemd:/docker/{CONTAINER}\n0::/\n", f"/docker/{CONTAINER}"),
        (
            f"4:memory:/docker/{CONTAINER}\n1:name=systemd:/\n0::/system.slice/containerd.service\n",
            f"/docker/{CONTAINER}",
        ),
        ("5:pids:/a.slice\n1:name=systemd:/system.slice/b.service\n0::/\n", "/system.slice/b.service"),
        ("0::/\n", "/"),
        ("", ""),
    ],
)
def test_control_group_is_the_path_that_names_a_container_or_a_unit(text: str, found: str) -> None:
    assert choose_cgroup(text) == found


def test_facts_are_those_of_the_process() -> None:
    with started("word", SERVICE="checkout") as child:
        facts = Facts(child.pid, "python", os.getpid())
        assert facts("cmdline").endswith(f"{READY} word")
        assert Path(facts("exe")).name.startswith("python")
        assert facts("parent") == Path("/proc/self/comm").read_text().strip()
        assert facts("env:SERVICE") == "checkout"
        assert (facts("env:NIX"), facts("pid")) == ("", str(child.pid))
        assert facts("cgroup").startswith("/")
        child.communicate(b"\n")


def test_secrets_of_an_environment_are_left_out() -> None:
    secret = {"DB_PASSWORD": "hunter2", "DATABASE_URL": "pg://u:hunter2@h/db", "FLAGS": "--x token=hunter2"}
    with started("word", **secret) as child:
        facts = Facts(child.pid, "python", os.getpid())
        found = [facts(f"env:{name}") for name in (*secret, "API_TOKEN")]
        child.communicate(b"\n")
    assert found == ["<redacted>", "pg://u:<redacted>@h/db", "--x token=<redacted>", ""]


@pytest.mark.parametrize(
    ("cgroup", "unit", "container"),
    [
        ("/system.slice/web.service", "web.service", ""),
        ("/user.slice/user-1.slice/user@1.service/app.slice/a.scope", "a.scope", ""),
        (f"/system.slice/docker-{'ab' * 32}.scope", f"docker-{'ab' * 32}.scope", "abababababab"),
        (f"/kubepods/burstable/pod1/{'0' * 64}", "", "0" * 12),
        ("/", "", ""),
    ],
)
def test_unit_and_container_are_in_the_path_of_the_control_group(cgroup: str, unit: str, container: str) -> None:
    facts = Facts(1, "x", 0)
    facts._known["cgroup"] = cgroup
    assert (facts("unit"), facts("container")) == (unit, container)


@pytest.mark.parametrize("name", ["\x1b[2J\u202e\n", "\udcff\x9b", "x" * 4000, "a.service." * 400])
def test_names_of_control_groups_are_labels_without_what_a_terminal_obeys(name: str) -> None:
    facts = Facts(1, "x", 0)
    facts._known |= {"cgroup": f"/user.slice/{name}.service/{name}", "exe": f"/{name}"}
    rule = '[[rule]]\nname = "*"\nservice = "{unit}"\nlabels = { group = "{cgroup}", program = "{exe}" }\n'
    verdict = judge(parse(rule, "x").rules, facts)
    assert {label for label, _ in verdict.labels} == {"host", "service", "group", "program"}
    for _, text in verdict.labels:
        assert text.isprintable()
        assert len(text) <= 200


def test_list_is_read_again_only_where_something_began_or_ended_or_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = 0
    listed = procfs.list_pids_with_inodes

    def counted() -> dict[int, int]:
        nonlocal lists
        lists += 1
        return listed()

    monkeypatch.setattr(procfs, "list_pids_with_inodes", counted)
    monkeypatch.setattr(process_table, "LOOK_S", 0.0)
    monkeypatch.setattr(process_table, "_MAX_LOOK_S", 0.0)
    census, now, found = b"700 1000", 1000.0, table('name = "*"')
    monkeypatch.setattr(procfs, "read_census", lambda: census)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(process_table, "YOUNG_S", 0.0)
    found.find_processes()
    found.find_processes()
    assert lists == 1
    for each in (b"699 1000", b"700 1001", b"", b""):
        census = each
        before = lists
        found.find_processes()
        assert lists == before + 1, "where it is not known, too"
    census = b"700 1001"
    found.find_processes()
    now += process_table._AGAIN_S + 1
    before = lists
    found.find_processes()
    assert lists == before + 1, "each is looked at anew"
    monkeypatch.setattr(process_table, "YOUNG_S", 1e9)
    census = b"701 1002"
    now += process_table._AGAIN_S + 1
    found.find_processes()
    before = lists
    found.find_processes()
    assert lists == before + 1, "a young one may become another program"


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.0, 1.0), (0.0014, 1.5), (1.0, 2.0)])
def test_searches_that_cost_much_are_rarer(cost_s: float, interval_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent_s, searches, found = 1000.0, 0.0, list[float](), table('name = "*"')

    def search() -> dict[int, int]:
        nonlocal spent_s
        spent_s += cost_s
        searches.append(now)
        return {}

    monkeypatch.setattr(procfs, "list_pids_with_inodes", search)
    monkeypatch.setattr(procfs, "read_census", lambda: b"")
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "thread_time", lambda: spent_s)
    for _ in range(100):
        found.find_processes()
        now += 0.25
    assert searches[1] - searches[0] == interval_s


def test_census_changes_with_each_process_and_thread() -> None:
    seen = {procfs.read_census()}
    assert b"" not in seen
    with started():
        assert procfs.read_census() not in seen
        seen.add(procfs.read_census())
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        assert procfs.read_census() not in seen


@pytest.mark.parametrize("text", [b"0.00 0.00 0.00 0/0 0\n", b"", b"x", b"0.1 0.1 0.1 1/2 3\n"])
def test_census_of_a_file_that_is_not_the_kernels_is_not_known(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert procfs.parse_census(text) == (b"2 3" if b"1/2 3" in text else b"")
    assert procfs.read_census() != b""
    monkeypatch.setattr(procfs, "_PROC", str(tmp_path))
    assert procfs.read_census() == b""


def test_new_process_is_found_by_the_next_look_and_one_that_ended_is_still_named() -> None:
    rule = 'cmdline = "agent-test-word"\nservice = "found"'
    found, of_agent = table(rule), table(rule, os.getpid())
    again(found)
    with started("agent-test-word") as child:
        assert not again(of_agent)[child.pid].verdict.samplings, "the agent has started it"
        (sampling,) = again(found)[child.pid].verdict.samplings
        selection = RuleSelection((), (), True, False, lambda _: False, chosen=lambda: found.now_recorded(sampling))
        assert list(selection.find_new(())) == [child.pid]
        assert list(selection.find_new({child.pid})) == []
        child.communicate(b"\n")
    assert child.pid not in again(found)
    assert found.verdict(child.pid, 0).service == "found"


@pytest.mark.system
def test_process_with_a_reused_pid_has_its_own_service() -> None:
    """Reuse a pid through ns_last_pid. By itself the kernel reuses a pid only after some 30,000 others."""
    found = table(
        'cmdline = "agent-test-first"\nservice = "first"\n[[rule]]\ncmdline = "agent-test-next"\nservice = "next"'
    )
    with started("agent-test-first") as first:
        again(found)
        first_ns = began_ns(first.pid)
        found.by_pid[first.pid] = replace(found.by_pid[first.pid], young=False)
        first.communicate(b"\n")
    time.sleep(0.05)  # the kernel states starts in ticks of 10 ms
    with started_as(first.pid, "agent-test-next") as second:
        again(found)
        assert found.verdict(second.pid, began_ns(second.pid)).service == "next"
        assert found.verdict(second.pid, first_ns).service == "first"
        second.communicate(b"\n")


def crowded() -> tuple[ProcessTable, SamplingChoice]:
    """Return a table of ten processes that a collector samples. Process 9 is the oldest one."""
    found = table('name = "*"')
    (sampling,) = parse('[[rule]]\nname = "*"', "x").samplings()
    verdict = RuleVerdict("web", (("service", "web"),), (sampling,))
    found.by_pid = {pid: ObservedProcess(0, 100 - pid, "x", 0, False, verdict) for pid in range(10)}
    found.by_pid[11] = ObservedProcess(0, 0, "x", 0, False, NOT_RECORDED)
    return found, sampling


def test_part_of_the_processes_is_drawn_by_processor_time_and_not_by_age() -> None:
    """Draw one of nine equally busy processes and an idle one: each is drawn in proportion to its processor time."""
    found, sampling = crowded()
    recent_ns = {(pid, 100 - pid): 10**9 for pid in range(9)}
    assert set(found.recorded(sampling)) == set(range(10))
    found.one_in, drawn, draws = 10, Counter[int](), 900
    for _ in range(draws):
        found.draw(recent_ns)
        (pid,) = found.recorded(sampling)
        assert found.chosen(sampling) == {(pid, 100 - pid)}
        drawn[pid] += 1
    assert drawn[9] <= most(1e-3, draws), "the oldest has done nothing"
    assert all(draws - drawn[pid] <= most(1 - 1 / 9.01, draws) for pid in range(9))


def test_processes_that_are_drawn_stay_until_the_next_draw() -> None:
    found, sampling = crowded()
    found.one_in = 2
    found.draw({})
    first = set(found.recorded(sampling))
    assert len(first) == 5
    assert all(set(found.recorded(sampling)) == first for _ in range(10))


def test_of_processes_that_are_gone_the_last_ones_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that ten thousand short-lived processes a second do not fill the agent's memory."""
    monkeypatch.setattr(process_table, "LOOK_S", 0.0)
    monkeypatch.setattr(process_table, "_MAX_LOOK_S", 0.0)
    monkeypatch.setattr(process_table, "MAX_GONE", 100)
    found, verdict = table('name = "*"'), RuleVerdict("web", (("service", "web"),), ())
    for turn in range(10):
        numbers = range(turn * 60, turn * 60 + 60)
        found.by_pid = {1 << 22 | number: ObservedProcess(0, turn, "x", 0.0, False, verdict) for number in numbers}
        again(found)
    named = [number for number in range(600) if found.verdict(1 << 22 | number, 0) is not NOT_RECORDED]
    assert len(named) <= 100
    assert set(range(560, 600)) <= set(named)


def test_look_that_fails_keeps_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = table('name = "*"')
    known = again(found)
    assert len(known) > 1

    def fail() -> dict[int, int]:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(procfs, "list_pids_with_inodes", fail)
    assert again(found) is known
    assert found.failed == 1


def test_look_that_is_left_ends_and_keeps_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found, read = table('name = "*"'), []
    known = again(found)

    def parsed(data: bytes) -> procfs.Stat:
        read.append(data)
        found.leave()
        return stat(data)

    stat = procfs.parse_stat
    monkeypatch.setattr(procfs, "parse_stat", parsed)
    monkeypatch.setattr(process_table, "_AGAIN_S", 0.0)
    assert again(found) is known
    assert len(read) == 1 < len(known)


def test_what_the_agent_costs_is_the_time_of_its_processes() -> None:
    spent = OwnCpu()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        while spent.percent() < 20:
            time.sleep(0.01)
        child.kill()
    assert spent.percent() >= 0


def test_rules_that_have_decided_about_no_process_are_known() -> None:
    text = '[[rule]]\nname = ["no-such-name", "another"]\nuser = "0"\n[[rule]]\nname = "*"\n[[rule]]\nuser = "*"\n'
    table = ProcessTable(parse(text, "x").rules, -1)
    assert len(table.unmatched_rules()) == 3
    table.find_processes()
    assert table.unmatched_rules() == {0: "name = ['no-such-name', 'another'], user = \"0\"", 2: 'user = "*"'}


def test_status_names_rules_that_have_decided_about_no_process() -> None:
    budget = BudgetControl(CostBudget(0.01, 1, 60.0), lambda *_, **__: None, Conditions(lambda *_, **__: None)).status()
    rules = [{"rule": 2, "criteria": 'name = "web\x1b"'}, {"rule": 3, "criteria": ""}]
    state = {"status": "ok", "failures": [], "budget": budget}
    assert list(_health({**state, "unmatched_rules": rules}))[1:] == [
        '  rule 2 (name = "web\\x1b") has decided about no process since the agent read it',
        "  rule 3 has decided about no process since the agent read it",
    ]
    assert len(list(_health(state))) == 1, "an older agent states none"


def ended(service: str, start_s: float) -> ObservedProcess:
    """Return a process of a service that a search found, with its start in seconds of the monotonic clock."""
    ahead_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) / 1e9
    ticks = round((start_s + ahead_s) * os.sysconf("SC_CLK_TCK"))
    return ObservedProcess(0, ticks, "x", 0.0, False, RuleVerdict(service, (("service", service),), ()))


def test_labels_of_an_ended_process_are_not_those_of_another_with_its_pid() -> None:
    """Let pid 7 belong to web, to a process that no search found, to node, and to one that has no service."""
    found, now = table('name = "*"'), time.monotonic()
    found._add_gone(7, now - 300, ended("web", now - 400))
    found._add_gone(7, now - 100, ended("node", now - 200))
    found.by_pid = {7: replace(ended("", now - 50), verdict=NOT_RECORDED)}

    def service(start_s: float) -> str:
        return found.verdict(7, round(start_s * 1e9)).service

    assert [service(now - ago) for ago in (400, 250, 200, 50)] == ["web", "", "node", ""]
    assert [service(now - ago) for ago in (410, 399.95, 350, 210)] == ["", "web", "web", ""], "seen late, or a tick off"
    found.by_pid = {7: ended("go", now - 50)}
    assert [service(now - ago) for ago in (200, 50, 10)] == ["node", "go", "go"]


def test_process_that_is_left_without_a_service_keeps_that_of_its_earlier_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An excluded program was executed: what the process used before belongs to the service."""
    monkeypatch.setattr(process_table, "LOOK_S", 0.0)
    monkeypatch.setattr(process_table, "_MAX_LOOK_S", 0.0)
    found = table('name = "nothing"')
    again(found)
    pid = os.getpid()
    verdict = RuleVerdict("web", (("service", "web"),), ())
    found.by_pid[pid] = replace(found.by_pid[pid], verdict=verdict, comm="before", at=-1e9)
    again(found)
    assert found.by_pid[pid].verdict is NOT_RECORDED
    assert found.verdict(pid, began_ns(pid)) is verdict


def test_labels_are_the_same_at_each_step_of_forgetting_what_ended_long_ago() -> None:
    """Ask between all lines of the function, as another thread may: a window once got labels of an earlier process."""
    found, now = table('name = "*"'), time.monotonic()
    for pid in range(3):
        found._add_gone(pid, now - 900, ended("old", now - 950))
        found._add_gone(pid, now - 300, ended("web", now - 400))
        found._add_gone(pid, now - 10, ended("node", now - 200))
    answers, since = list[tuple[str, ...]](), now - 20

    def ask(frame: object, event: str, argument: object) -> object:
        if event == "line":
            sys.settrace(None)
            answers.append(tuple(found.verdict(pid, round((now - 200) * 1e9)).service for pid in range(3)))
            sys.settrace(trace)  # type: ignore[arg-type]
        return ask

    def trace(frame: FrameType, event: str, argument: object) -> object:
        return ask if frame.f_code is ProcessTable._forget.__code__ else None

    sys.settrace(trace)  # type: ignore[arg-type]
    found._forget(now)
    sys.settrace(None)
    assert len(answers) > 10
    assert set(answers) == {("node", "node", "node")}
    assert [len(gone) for gone in found._gone.values()] == [2, 2, 2]
    assert len(found.labels(since)) == 3


def test_only_one_search_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that another one overtakes would forget the processes that began in between."""
    found, nested = table('name = "*"'), list[object]()

    def pids() -> dict[int, int]:
        found._next = 0.0
        assert len(nested) < 2
        nested.append(found.by_pid)
        assert found.find_processes() is nested[-1]
        return {os.getpid(): 1}

    monkeypatch.setattr(procfs, "list_pids_with_inodes", pids)
    assert set(again(found)) == {os.getpid()}
    assert len(nested) == 1
    again(found)
    assert len(nested) == 2


def test_labels_are_read_while_another_thread_adds_an_ended_process() -> None:
    """Let the garbage collector run in the middle of the copy, and a callback of it let another thread run."""
    found, now = table('name = "*"'), time.monotonic()
    for pid in range(2000):
        found._add_gone(pid, now, ended("web", now - 1))
    may_add, has_added = threading.Event(), threading.Event()

    def add() -> None:
        may_add.wait()
        found.add_ended(5000, replace(ended("web", now), at=now))
        has_added.set()

    def collected(phase: str, _: object) -> None:
        if inside and not may_add.is_set():
            may_add.set()
            has_added.wait(0.2)  # the thread must wait for the copy, or the copy fails

    other = threading.Thread(target=add)
    other.start()
    gc.callbacks.append(collected)
    thresholds, inside = gc.get_threshold(), False
    gc.collect()
    try:
        for read in (partial(found.labels, 0.0), partial(found._forget, now), found._count_gone):
            may_add.clear()
            inside = True
            gc.set_threshold(100)
            read()
            inside = False
            gc.set_threshold(*thresholds)
            may_add.set()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
        may_add.set()
        other.join()
    assert len(found.labels(0.0)) == 2001
