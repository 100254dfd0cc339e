"""Tests that processes that live too short for a look at /proc are in the sums of the service that rules give them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pyprof.collectors.bpf.process_ends import ProcessEnd
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import TICK_NS, ProcessTimes, read_boot_ticks
from pyprof.fleet.agent import ended_process_cpu_time, spool_query
from pyprof.fleet.agent.config import parse
from pyprof.fleet.agent.ended_process_cpu_time import EndedFacts, EndedProcesses, FactGone, verdict_of
from pyprof.fleet.agent.process_group_recording import SampledGroup
from pyprof.fleet.agent.process_rules import NOT_RECORDED, RuleVerdict, TargetRule
from pyprof.fleet.agent.process_table import ObservedProcess, ProcessTable
from pyprof.fleet.agent.scale_to_cpu_time import ProcessClocks, ProcessTime, summed_times, with_exact_sums
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.lazy_dataclasses import replace
from tests.agent.test_exact_sums import sums, window
from tests.bpf.test_process_ends import ANCESTOR, load_program

END = ProcessEnd(10**12, 5000, 30_000_000, 77, os.getpid(), 0, "convert", "cron", False)
RECENT = END._replace(start=read_boot_ticks(), shares_cgroup=True)
OWN_CGROUP = Path("/proc/self/cgroup").read_text().splitlines()


@pytest.mark.parametrize(
    ("rule", "service"),
    [
        ('name = "convert"\nservice = "{parent}-{user}"', "cron-root"),
        ('parent = "cron"\nservice = "{name}"', "convert"),
        ('user = "nobody"', ""),
        ('exe = "*"\nname = "other"', ""),
    ],
)
def test_rules_decide_by_what_the_kernel_reports(rule: str, service: str) -> None:
    verdict = verdict_of(parse(f"[[rule]]\n{rule}", "x").rules, END)
    assert verdict is not None
    assert verdict.service == service


@pytest.mark.parametrize(
    "rule", ['cmdline = "x"', 'exe = "*"', 'name = "*"\nservice = "{env:NAME}"', 'unit = "*"', 'cgroup = "/"']
)
def test_rule_that_needs_data_of_an_ended_process_decides_nothing(rule: str) -> None:
    assert verdict_of(parse(f"[[rule]]\n{rule}", "x").rules, END) is None


def test_control_group_is_that_of_the_parent_where_the_kernel_says_so() -> None:
    shared = EndedFacts(RECENT)
    assert shared("cgroup") in {line.split(":", 2)[2] for line in OWN_CGROUP}
    assert f"PATH={shared('env:PATH')}" in Path("/proc/self/environ").read_text().split("\0")
    with pytest.raises(FactGone):
        EndedFacts(RECENT._replace(parent=1 << 22))("cgroup")
    with pytest.raises(FactGone):
        EndedFacts(RECENT._replace(start=(procfs.read_start_ticks(os.getpid()) or 0) - 1))("cgroup")


@pytest.mark.parametrize(
    ("elders", "environment"),
    [((1 << 22, os.getpid()), os.getpid()), ((os.getppid(), 1), os.getppid()), ((1 << 22, 1 << 22), 0)],
    ids=["eldest", "grandparent", "none"],
)
def test_control_group_is_that_of_an_ancestor_that_still_runs(elders: tuple[int, int], environment: int) -> None:
    """The parent is a shell that has ended, too. The environment is that of the nearest ancestor."""
    facts = EndedFacts(RECENT._replace(parent=1 << 22, grandparent=elders[0], eldest=elders[1]))
    if not environment:
        with pytest.raises(FactGone):
            facts("cgroup")
        return
    assert facts("cgroup") in {line.split(":", 2)[2] for line in OWN_CGROUP}
    found = Path(f"/proc/{environment}/environ").read_bytes().split(b"\0")
    assert os.fsencode(f"PATH={facts('env:PATH')}") in found


class Reported:
    """Reports of ended processes that a test makes."""

    lost = 0

    def __init__(self) -> None:
        self.ends: list[ProcessEnd] = []

    def read_ends(self) -> list[ProcessEnd]:
        ends, self.ends = self.ends, []
        return ends


def test_process_that_no_look_found_is_added_once_and_others_get_their_last_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = parse('[[rule]]\nname = "convert"\n[[rule]]\ncmdline = "x"', "x")
    table, (sampling, *_) = ProcessTable(rules.rules, os.getpid()), rules.samplings()
    added: list[tuple[int, str | None, bool]] = []
    group = SampledGroup.__new__(SampledGroup)
    group.sampling = sampling
    group.add_end = lambda *words: added.append((words[0].pid, *words[1:]))  # type: ignore[method-assign]
    ended, reports = EndedProcesses(), Reported()
    ended._ends = reports  # type: ignore[assignment]
    ended.begin(table, [group])
    table.find_processes()
    table.by_pid.pop(1)
    seen = table.by_pid[os.getppid()]
    table.by_pid[os.getppid()] = replace(seen, verdict=RuleVerdict("own", (("service", "own"),), (sampling,)))
    other = END._replace(parent=1, parent_name="init")
    ended._opened_ticks = 4000
    reports.ends = [
        other,
        other._replace(pid=78, name="date"),
        other._replace(pid=79, start=3000),
        other._replace(pid=80, parent=os.getpid()),
        other._replace(pid=os.getppid(), start=seen.start, name="date"),
    ]
    group.before_reading()
    parent = os.getppid(), "service=own", True
    convert = 77, f"host={os.uname().nodename}\0service=convert", False
    assert added == [convert, (78, None, False), (79, None, True), parent]
    assert ended.take_unattributed() == {"": 30_000_000}
    table.by_pid[1] = ObservedProcess(0, 0, "init", 0.0, False, RuleVerdict("web"))
    reports.ends = [other._replace(name="date", parent=1 << 22, eldest=1), other._replace(name="date")]
    group.before_reading()
    assert ended.take_unattributed() == {"web": 60_000_000}
    assert ended.take_unattributed() == {}
    sshd = replace(seen, verdict=NOT_RECORDED)
    table.by_pid, added[:] = {os.getppid(): sshd}, []
    reports.ends = [other._replace(pid=os.getppid(), start=seen.start)]
    monkeypatch.setattr(ended_process_cpu_time, "_is_young", lambda _: False)
    group.before_reading()
    assert added == [(os.getppid(), None, True)], "its parent must not have its time"
    assert ended.unattributed_ns == 90_000_000
    verdict = table.verdict(77, 5000 * TICK_NS - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + time.monotonic_ns())
    assert verdict.service == "convert"
    assert table.verdict(78, 0) is NOT_RECORDED


@pytest.mark.parametrize(
    ("rule", "decisions"),
    [
        ('name = "convert"', 1),
        ('name = "convert"\nlabels = { id = "{pid}" }', 3),
        ('name = "convert"\ncgroup = "/*"', 2),
    ],
)
def test_rules_decide_once_about_ended_processes_that_are_alike(
    rule: str, decisions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def counted(rules: Sequence[TargetRule], end: ProcessEnd) -> RuleVerdict | None:
        nonlocal count
        count += 1
        return verdict_of(rules, end)

    monkeypatch.setattr(ended_process_cpu_time, "verdict_of", counted)
    table, ended, reports = ProcessTable(parse(f"[[rule]]\n{rule}", "x").rules, 2**22), EndedProcesses(), Reported()
    ended._ends = reports  # type: ignore[assignment]
    ended.begin(table, [])
    for pid, parent in ((77, 1), (78, 1), (79, os.getppid())):
        reports.ends = [END._replace(pid=pid, parent=parent, shares_cgroup=True)]
        ended.attribute_ends()
    assert count == decisions


def test_short_process_has_all_of_its_time_in_the_window_in_which_it_ended() -> None:
    clocks = ProcessClocks()
    clocks.begin({})
    start_ns = time.monotonic_ns()
    assert clocks.end_window({}, start_ns - 10**9, start_ns) == []
    ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS
    end = END._replace(start=ticks - 50, at_ns=start_ns + 2_000_000)  # it began half a second before the window
    clocks.add_end(end, "kin", is_known=False)
    clocks.add_end(end._replace(pid=78), "kin", is_known=True)  # its time may be in the window before
    (found,) = clocks.end_window({}, start_ns, start_ns + 10**9)
    assert (found.pid, found.ns, found.name, found.kin) == (77, 30_000_000, "convert", "kin")
    assert clocks.end_window({}, start_ns + 10**9, start_ns + 2 * 10**9) == []


@pytest.mark.parametrize(("kin", "in_child", "in_parent"), [("kin", 30, 20), (None, 0, 20)])
def test_time_of_a_short_process_is_not_in_its_parent_too(kin: str | None, in_child: int, in_parent: int) -> None:
    """The parent has waited for a process that was reported, and for one of 20 ms that was not."""
    waited_ms = 0
    clocks = ProcessClocks(
        lambda _: 10**9, read_waited=lambda _: ProcessTimes("make", 1, 100, 0, waited_ms * 10**6, 0, 0)
    )
    processes = {5: ObservedProcess(0, 100, "make", 0.0, False, NOT_RECORDED)}
    clocks.begin(processes)
    start_ns = time.monotonic_ns()
    ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS
    clocks.end_window(processes, start_ns - 10**9, start_ns)
    clocks.add_end(END._replace(start=ticks, at_ns=start_ns + 1_000, parent=5), kin, is_known=False)
    waited_ms = 50
    found = {each.pid: each for each in clocks.end_window(processes, start_ns, time.monotonic_ns())}
    assert (found[77].ns if 77 in found else 0) == in_child * 10**6
    assert found[5].children_ns == in_parent * 10**6


@pytest.mark.parametrize(("kin", "in_parent"), [(None, 20), ("kin", 3020)])
def test_time_from_before_the_window_is_not_in_the_parent_that_waits_late(kin: str | None, in_parent: int) -> None:
    """A process of 2 s, whose children had 1 s, had ended before the recording began; then its parent waits for it."""
    waited_ms = 0
    clocks = ProcessClocks(
        lambda _: 10**9, read_waited=lambda _: ProcessTimes("make", 1, 100, 0, waited_ms * 10**6, 0, 0)
    )
    processes = {5: ObservedProcess(0, 100, "make", 0.0, False, NOT_RECORDED)}
    clocks.begin(processes)
    start_ns = time.monotonic_ns()
    clocks.end_window(processes, start_ns - 10**9, start_ns)
    ended = END._replace(at_ns=start_ns + 1_000, parent=5, run_ns=2 * 10**9, waited_ns=10**9)
    clocks.add_end(ended, kin, is_known=True)
    waited_ms = 3020
    found = {each.pid: each for each in clocks.end_window(processes, start_ns, time.monotonic_ns())}
    assert found.keys() == {5}
    assert found[5].children_ns == in_parent * 10**6


@pytest.mark.parametrize("parent", [5, 4, 6])
def test_time_of_a_process_is_not_in_the_one_that_waits_for_it_later(parent: int) -> None:
    """Let the parent (5) wait for a process for the first time. If the parent (4) is gone, the report names the present
    one, or process 1 waits.
    """
    reaper, own_ms, waited_ms = 5 if parent == 5 else 1, {5: 1000, 1: 1000, 77: 10}, 0

    def read_waited(pid: int) -> ProcessTimes:
        waited_ns = waited_ms * 10**6 if pid == reaper else 0
        return ProcessTimes("p", parent if pid == 77 else 0, 100, 0, waited_ns, 0, 0)

    clocks = ProcessClocks(lambda pid: own_ms[pid] * 10**6, read_waited=read_waited)
    processes = {pid: ObservedProcess(0, 100, "p", 0.0, False, NOT_RECORDED) for pid in (5, 1, 77)}
    clocks.begin(processes)
    ends_ns = [time.monotonic_ns()]
    times = list[ProcessTime]()
    own_ms[77] = 3000
    for waited_ms in (0, 3000, 3020):
        if not waited_ms:
            clocks.read_near_end(processes)
            del processes[77]
            if parent == 6:
                clocks.add_end(END._replace(start=100, parent=1, run_ns=3 * 10**9), "", is_known=True)
        ends_ns.append(time.monotonic_ns())
        times += clocks.end_window(processes, *ends_ns[-2:])
    found = summed_times(times)
    assert {each.pid: each.children_ns // 10**6 for each in found if each.children_ns} == {reaper: 20}


def test_short_processes_beyond_a_number_are_added_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyprof.fleet.agent.scale_to_cpu_time._MAX_CLOCKS", 10)
    clocks = ProcessClocks()
    clocks.begin({})
    start_ns = time.monotonic_ns()
    assert clocks.end_window({}, start_ns - 10**9, start_ns) == []
    ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS
    for nth in range(1000):
        name = f"n{nth % 2}"
        clocks.add_end(END._replace(pid=nth, start=ticks, name=name, at_ns=start_ns + 1000 * nth + 1), "kin", False)
    times = clocks.end_window({}, start_ns, start_ns + 10**9)
    assert len(times) == 10
    assert sum(each.ns for each in times) == 1000 * END.run_ns


def test_short_processes_without_samples_are_one_row_for_each_name_and_labels() -> None:
    times = [ProcessTime(200 + at, 5, f"n{at % 2}", 10**6, kin=f"k{at % 3 // 2}") for at in range(60)]
    after = with_exact_sums(window([3]), [ProcessTime(100, 5, "p", 30), *times])
    assert len(sums(after)) == 1 + 4
    assert after.total == 30 + 60 * 10**6


@pytest.mark.live
@pytest.mark.system
@pytest.mark.parametrize("kind", ["ignore", "waits"])
def test_short_processes_are_in_the_sums_of_their_service(kind: str, tmp_path: Path) -> None:
    """The parent belongs to no service, and ignores its children or waits for them."""
    load_program().close()
    spool, log, config = tmp_path / "spool", tmp_path / "log", tmp_path / "agent.toml"
    config.write_text('[windows]\nevery = "2s"\n[[rule]]\nname = "shortlived"\nservice = "short"\n')
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool)]
    keeper = subprocess.Popen([shutil.copy("/bin/sleep", tmp_path / "shortlived"), "600"])  # for a recording to run
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, "--log", "json"], stderr=out) as agent,
        subprocess.Popen(
            [sys.executable, "-c", ANCESTOR, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as ancestor,
    ):

        def wait(condition: Callable[[], object]) -> None:
            deadline = time.monotonic() + 120
            while not condition():
                assert agent.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)

        try:
            wait(lambda: '"window"' in log.read_text())
            own_ns = 0
            assert ancestor.stdin
            assert ancestor.stdout
            for _ in range(100):
                print(file=ancestor.stdin, flush=True)
                own_ns += int(ancestor.stdout.readline().split()[1])
                if kind == "waits":
                    ancestor.stdout.readline()
            wait(lambda: spool_total(spool) > 0.98 * own_ns)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, ancestor, keeper):
                each.kill()
                each.wait()
    assert 0.98 * own_ns < spool_total(spool) < 1.1 * own_ns
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert not [line for line in lines if line["level"] in ("warning", "error")], lines


def spool_total(spool: Path) -> int:
    names = spool_query.segments(str(spool), TimeSpan(0, time.time_ns() + 1))
    found = [name for name in names if "/short/" in name.path]
    return spool_query.profile_of(str(spool), found, "cpu", "all").total if found else 0
