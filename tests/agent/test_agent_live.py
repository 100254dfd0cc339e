"""Tests of the agent on live processes: the spool contains the samples under the service names of the rules."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from pyprof.fleet.agent import spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.recording.reader import load_recording
from pyprof.session.process_priority import can_leave_idle_policy
from tests.chance import poisson_bounds
from tests.warm import run

pytestmark = pytest.mark.live

BUSY = """
import time
def spin():
    while True:
        sum(range(100_000))
        time.sleep(0.004)
print("ready", flush=True)
spin()
"""
"""A program that uses a third of a processor, which leaves the rest to other tests."""
CONFIG = """
[http]
port = PORT
[windows]
every = "1s"
[labels]
env = "test"
[[rule]]
cmdline = "WORD"
service = "{env:SERVICE|name}"
labels = { version = "{env:VERSION}" }
"""


def busy(word: str, version: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", BUSY, word],
        stdout=subprocess.PIPE,
        env={**os.environ, "SERVICE": "checkout", "VERSION": version},
    )
    assert child.stdout is not None
    with child.stdout as out:
        assert out.readline() == b"ready\n"
    return child


def windows(log: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert not [line for line in lines if line["level"] == "error"], lines
    return [line for line in lines if line["event"] == "window"]


def test_small_budget_is_kept_by_fewer_samples_and_fewer_processes_and_said(tmp_path: Path) -> None:
    """Check that a process the agent leaves out keeps its processor time: no running process is shown with zero.

    Fewer processes do not save enough memory, so the agent undoes that and waits long. A change of the budget lets it
    try again at once.
    """
    word, spool, log, config = f"agent-budget-{os.getpid()}", tmp_path / "spool", tmp_path / "log", tmp_path / "a.toml"
    port = 20_000 + (os.getpid() + 6_000) % 12_000
    text = CONFIG.replace("WORD", word).replace("PORT", str(port))

    def set_memory(mebibytes: int) -> None:
        config.write_text(f'[budget]\nover = "2s"\nmemory = "{mebibytes}M"\n{text}rate = 300\n')

    set_memory(1)
    targets = [busy(word, "1"), busy(word, "2")]
    command = [sys.executable, "-m", "pyprof", "agent", "--cpu-budget", "0.01", "--config", str(config)]
    with log.open("wb") as out:
        agent = subprocess.Popen([*command, "--spool", str(spool), "--log", "json"], stderr=out)
        try:
            tries, tried_s = 1, time.monotonic()
            while (
                not any(line["processes_left_out"] == 1 for line in windows(log))
                or '"one_sampling_time_in":64' not in log.read_text()
                or '"needed_memory"' not in log.read_text()
            ):
                assert agent.poll() is None, log.read_text()
                time.sleep(0.05)
                if time.monotonic() > tried_s + 10:
                    tries, tried_s = tries + 1, time.monotonic()
                    set_memory(tries)
                    agent.send_signal(signal.SIGHUP)
            said = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
            state = run("agent", "status", "--spool", str(spool)).stdout
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, *targets):
                each.kill()
                each.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line["one_sampling_time_in"] for line in lines if line["event"] == "does less"]
    assert steps == sorted(steps)
    assert steps[-1] == 64
    assert windows(log)[-1]["processes"] == 2, "as in the metric, also the one that is left out"
    assert "pyprof_agent_sampling_stride 64\n" in said
    assert "pyprof_agent_processes 2\n" in said
    assert [line for line in lines if line.get("reason") == "processes_left_out"]
    assert "pyprof_agent_budget_cpu_ratio 0.0001\n" in said
    needed = float(re.findall(r"^pyprof_agent_budget_needed_cpu_ratio (\S+)$", said, re.MULTILINE)[0])
    assert 0.0001 < needed < 2
    assert 'pyprof_agent_failing{reason="budget_exceeded"} 1\n' in said
    assert re.search(r"^    needed_cpu_percent \S+, needed_memory \d+$", state, re.MULTILINE), state
    note = re.compile(b"and one of (2|4|8|16|32|64) processes")
    left_out = [each for each in spool.rglob("*.pb.gz") if note.search(gzip.decompress(each.read_bytes()))]
    span = TimeSpan(0, time.time_ns())
    names = [name for name in spool_query.segments(str(spool), span) if spool / name.path in left_out]
    profile = spool_query.profile_of(str(spool), names, "cpu", "all")
    ran = {thread.pid for thread in profile.threads if profile.filter(pid=thread.pid).total}
    assert ran == {each.pid for each in targets}


CLOCKED = """
import struct, sys, time
with open(sys.argv[2], "ab", buffering=0) as file:
    while True:
        begun = time.process_time_ns()
        while time.process_time_ns() < begun + 2_000_000: pass
        file.write(struct.pack("<2q", time.monotonic_ns(), time.process_time_ns()))
        time.sleep(0.004)
"""
"""A program that writes its processor time by the monotonic clock, in nanoseconds, to the file that it is given."""


def processor_ns(clock: Path, start_ns: int, end_ns: int) -> float:
    """Return how long the program with this file ran between two times of the wall clock."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    times = np.frombuffer(clock.read_bytes(), np.int64).reshape(-1, 2)
    start, end = np.interp([start_ns - ahead_ns, end_ns - ahead_ns], times[:, 0], times[:, 1])
    return float(end - start)


def test_window_of_a_killed_agent_has_exact_sums_until_its_last_checkpoint(tmp_path: Path) -> None:
    """Killed in the midst of a window with so few samples that their sum alone would be wrong by far."""
    word, spool, log, config = f"agent-killed-{os.getpid()}", tmp_path / "spool", tmp_path / "log", tmp_path / "a.toml"
    clock = tmp_path / "clock"
    windows_of = '[windows]\nevery = "1h"\ndurable = "2s"\n[sampling]\nrate = 1\n'
    config.write_text(f'{windows_of}[[rule]]\ncmdline = "{word}"\nservice = "clocked"\n')
    target = subprocess.Popen([sys.executable, "-c", CLOCKED, word, str(clock)])
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool)]
    with log.open("wb") as out:
        agent = subprocess.Popen([*command, "--log", "json"], stderr=out)
        try:
            while len(list(spool.glob("sofar/*"))) < 4:
                assert agent.poll() is None, log.read_text()
                time.sleep(0.05)
            agent.kill()
            agent.wait()
            agent = subprocess.Popen([*command, "--log", "json"], stderr=out)
            while not (found := list(spool.glob("*/clocked/*.pb.gz"))):
                assert agent.poll() is None, log.read_text()
                time.sleep(0.05)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, target):
                each.kill()
                each.wait()
    names = spool_query.segments(str(spool), TimeSpan(0, time.time_ns() + 1))
    profile = spool_query.profile_of(str(spool), [name for name in names if spool / name.path in found], "cpu", "all")
    ran_ns = processor_ns(clock, profile.start_ns, profile.start_ns + profile.duration_ns)
    assert profile.duration_ns > 3e9
    assert abs(profile.total / ran_ns - 1) < 0.02


NOTED_POLICIES = """
import os
def noted(pid, policy, param, before=os.sched_setscheduler):
    with open({file!r}, "a") as file:
        print(policy, file=file)
    before(pid, policy, param)
os.sched_setscheduler = noted
"""
"""A sitecustomize module that notes each scheduling policy that the agent and its workers choose."""


def samples_of(spool: Path, pid: int) -> int:
    """Return the number of samples of a process in all windows of the spool."""
    names = spool_query.segments(str(spool), TimeSpan(0, time.time_ns()))
    profile = spool_query.profile_of(str(spool), names, "cpu", "all")
    return int(profile.filter(pid=pid).values[:, 0].sum())


def policies(agent: int) -> set[int]:
    """Return the scheduling policies of the main threads of the agent's workers."""
    started = [int(pid) for path in Path(f"/proc/{agent}/task").glob("*/children") for pid in path.read_text().split()]
    return {os.sched_getscheduler(pid) for pid in started}


def test_windows_of_what_the_rules_choose_are_in_the_spool(tmp_path: Path) -> None:
    """Run an agent with this test as its service manager, and follow it from READY to shutdown.

    The agent samples a process that starts later, ignores a configuration that became invalid, and writes its last
    window when it ends.
    """
    word, port = f"agent-live-{os.getpid()}", 20_000 + os.getpid() % 12_000
    config, spool, log, address, noted = (tmp_path / name for name in ("agent.toml", "spool", "log", "notify", "noted"))
    (tmp_path / "sitecustomize.py").write_text(NOTED_POLICIES.format(file=str(noted)))
    config.write_text(CONFIG.replace("WORD", word).replace("PORT", str(port)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, log.open("wb") as out:
        notify.bind(str(address))
        notify.settimeout(60)
        first = busy(word, "1")
        agent = subprocess.Popen(
            [
                "nohup",
                sys.executable,
                "-m",
                "pyprof",
                "agent",
                "--config",
                str(config),
                "--spool",
                str(spool),
                "--log",
                "json",
            ],
            stderr=out,
            env={**os.environ, "NOTIFY_SOCKET": str(address), "PYTHONPATH": str(tmp_path)},
        )
        second = None
        try:
            assert notify.recv(100) == b"READY=1"
            while not any(line["samples"] for line in windows(log)):
                time.sleep(0.05)
            if can_leave_idle_policy():  # the worker looks names up under SCHED_IDLE
                while not noted.exists() or str(os.SCHED_IDLE) not in noted.read_text().split():
                    time.sleep(0.05)
            while policies(agent.pid) != {os.SCHED_BATCH}:
                time.sleep(0.001)
            second = busy(word, "2")
            config.write_text("[[rule]]\nnme = 1")
            agent.send_signal(signal.SIGHUP)
            while not (
                "reload_failed" in log.read_text()
                and any(line["processes"] == 2 and line["samples"] for line in windows(log)[-1:])
                and samples_of(spool, second.pid)
            ):
                time.sleep(0.05)
            said = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
            assert "pyprof_agent_processes 2\n" in said
            assert "pyprof_agent_reload_success 0\n" in said
            assert re.search(r'windows_total\{mode="cpu"\} [1-9]', said)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, first, second):
                if each is not None:
                    each.kill()
                    each.wait()
    assert "reload_failed" in log.read_text()
    files = [path for path in spool.rglob("*") if path.is_file() and not path.name.endswith(".pb.gz")]
    assert {(path.parent.name, path.suffix) for path in files} == {("kept", ".pyprof")}
    assert all(0 <= float(str(line["own_cpu_percent"])) < 400 for line in windows(log))
    ends = sorted(int(path.name.split("-")[0]) for path in spool.glob("*/checkout/*"))
    assert len(ends) == len(windows(log))
    found = run("query", "--spool", str(spool), "--by", "version").stdout
    assert "spin" in found
    assert run("query", "--spool", str(spool), "--label", "env=test", "-f", "collapsed").stdout.count("spin")
    assert "checkout" in run("agent", "status", "--spool", str(spool)).stdout


def asking(spool: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pyprof", "agent", "record", "--spool", str(spool), "--service", "checkout"]
    return subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)


def processor_times(pid: int, until: subprocess.Popen[str]) -> tuple[list[int], list[float]]:
    """Follow a process until another one ends: nanoseconds since the epoch, and seconds of processor time by then."""
    times: list[int] = []
    spent_s: list[float] = []
    while until.poll() is None:
        spent_s.append(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9)
        times.append(time.time_ns())
        time.sleep(0.02)
    return times, spent_s


def test_asker_gets_the_last_minutes_and_a_recording_at_its_own_rate(tmp_path: Path) -> None:
    """Request the last minutes and two recordings, one of which Ctrl-C ends. The agent's windows continue unchanged."""
    word, spool, log, config = f"agent-asked-{os.getpid()}", tmp_path / "spool", tmp_path / "log", tmp_path / "a.toml"
    config.write_text(CONFIG.replace("[http]\nport = PORT", "[sampling]\nmax_stopped = 100").replace("WORD", word))
    target, asked_s = busy(word, "1"), 3
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool)]
    with log.open("wb") as out:
        agent = subprocess.Popen([*command, "--log", "json"], stderr=out)
        try:
            while sum(int(str(line["samples"])) for line in windows(log)) < 20:
                assert agent.poll() is None, log.read_text()
                time.sleep(0.05)
            with asking(spool, "-d", str(asked_s), "-r", "300", "-o", str(tmp_path / "a.pyprof")) as first:
                spent = processor_times(target.pid, first)
                assert first.wait(60) == 0, first.stderr and first.stderr.read()
            with asking(spool, "-d", "300", "-r", "300", "-o", str(tmp_path / "b.pyprof")) as second:
                assert second.stderr is not None
                assert "checkout, 1 process, for 300 s at 300 Hz" in second.stderr.readline()
                second.send_signal(signal.SIGINT)
                assert second.wait(60) == 0, second.stderr.read()
            refused = run("agent", "record", "--spool", str(spool), "--service", "other", cwd=tmp_path)
            seen = len(windows(log))
            while len(windows(log)) == seen:
                time.sleep(0.05)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, target):
                each.kill()
                each.wait()
    assert refused.returncode == 1
    assert "no process of other is recorded; services are: checkout" in refused.stderr
    whole, rest = load_recording(tmp_path / "a.pyprof"), load_recording(tmp_path / "b.pyprof")
    assert whole.title == rest.title == "checkout"
    assert whole.labels == {"env": "test", "host": os.uname().nodename, "service": "checkout", "version": "1"}
    end_ns = whole.start_ns + whole.duration_ns
    age_s = (whole.time_ns - end_ns) / 1e9
    slow, fast = int((age_s < -asked_s - 0.2).sum()), int((age_s > 0.2 - asked_s).sum())
    before_s, after_s = np.interp([end_ns - (asked_s - 0.2) * 1e9, end_ns], *spent)
    at_19, at_300 = (poisson_bounds(rate * float(after_s - before_s)) for rate in (19, 300))
    assert at_19[1] < at_300[0] <= fast, "the target ran too little to tell the rates apart, or is sampled too seldom"
    assert 5 < slow < 40 * (whole.duration_ns / 1e9 - asked_s)
    assert rest.duration_ns / 1e9 < 200
    assert rest.duration_ns > whole.duration_ns
    assert len({(thread.pid, thread.tid) for thread in whole.threads}) == len(whole.threads)
    assert any("spin" in cost.name for cost in whole.top())
    outcomes = [
        line["outcome"]
        for line in map(json.loads, log.read_text().splitlines())
        if line["event"] == "recording requested"
    ]
    assert outcomes == ["answered", "answered", "ask_no_service"]
    assert run("agent", "record", "--spool", str(spool), "--service", "x").stderr.startswith("pyprof: no agent answers")
