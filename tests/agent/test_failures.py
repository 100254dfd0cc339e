"""Tests of a running agent that cannot do its work: log, metrics and pages name the failure until it is over."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from pyprof.fleet import systemd
from pyprof.fleet.agent import spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from tests.agent import unit_filter
from tests.agent.push.receivers import Said, receiver
from tests.agent.test_agent_live import BUSY, CLOCKED, processor_ns
from tests.server.serving import free_port
from tests.small_disk import only_root
from tests.support import need
from tests.warm import run

pytestmark = [pytest.mark.live, pytest.mark.system]

CONFIG = """
[windows]
every = "3s"
durable = "1s"
[budget]
cpu = 100
[http]
port = PORT
[[rule]]
cmdline = "WORD"
service = "checkout"
[[push]]
name = "fleet"
type = "pyprof"
url = "URL"
"""


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


class Agent:
    """A running agent with one busy process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, spool: Path) -> None:
        self.process, self.log, self.spool = process, log, spool
        self._url = f"http://127.0.0.1:{port}"

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(self._url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def failures(self) -> dict[str, dict[str, object]]:
        """Return the failures in /healthz by their reasons."""
        return {each["reason"]: each for each in json.loads(self.page("/healthz")[1])["failures"]}

    def wait(self, condition: Callable[[], object]) -> None:
        give_up = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.05)

    def children(self) -> set[int]:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return {int(child) for task in tasks for child in task.read_text().split()}

    def lines(self, **fields: object) -> list[dict[str, object]]:
        return [line for line in lines(self.log) if fields.items() <= line.items()]


@contextmanager
def running(folder: Path, url: str, prefix: Sequence[str] = (), target: Sequence[str] = (BUSY,)) -> Iterator[Agent]:
    """Run an agent that records a Python program, whose code and last arguments are `target`."""
    word, port = f"agent-failures-{os.getpid()}", free_port()
    config, log, spool = folder / "agent.toml", folder / "log", folder / "spool"
    config.write_text(CONFIG.replace("WORD", word).replace("PORT", str(port)).replace("URL", url))
    words = ["--config", str(config), "--spool", str(spool), "--log", "json"]
    command = [*prefix, sys.executable, "-m", "pyprof", "agent", *words]
    program = subprocess.Popen([sys.executable, "-c", target[0], word, *target[1:]], stdout=subprocess.DEVNULL)
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out)
    agent = Agent(process, port, log, spool)
    try:
        agent.wait(lambda: agent.lines(event="started"))
        yield agent
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        for each in (process, program):
            each.kill()
            each.wait()


def test_server_that_refuses_a_token_is_named_until_it_takes_segments(tmp_path: Path) -> None:
    refusal = Said(401, body=b'{"reason": "wrong_token", "error": "No tenant has this token."}')
    answers = [refusal]
    with receiver(lambda _: answers[0]) as server, running(tmp_path, server.url) as agent:
        agent.wait(lambda: "push_failing" in agent.failures())
        found = agent.failures()["push_failing"]
        assert (found["sink"], found["cause"]) == ("fleet", "wrong_token")
        assert "token_file" in str(found["hint"])
        assert (agent.page("/healthz")[0], agent.page("/readyz")[0]) == (200, 503), "a restart would not help"
        metrics = agent.page("/metrics")[1]
        assert 'pyprof_agent_failing{reason="push_failing"} 1\n' in metrics
        assert agent.lines(event="degraded", reason="push_failing", cause="wrong_token")
        where = ("agent", "status", "--spool", str(agent.spool))
        shown = run(*where).stdout.splitlines()
        assert shown[0].startswith("agent: degraded, ")
        assert shown[1].startswith("  push_failing fleet wrong_token, for ")
        assert shown[2] == f"    hint: {found['hint']}"
        state = json.loads(run(*where, "--json").stdout)
        assert state["agent"]["failures"][0].items() >= {**found, "since_seconds": mock.ANY}.items()
        assert state["agent"]["pid"] == agent.process.pid
        assert state["spool"]["queues"][0]["sink"] == "fleet"
        answers[0] = Said()
        agent.wait(lambda: agent.lines(event="healthy again", reason="push_failing"))
        assert agent.page("/readyz")[0] == 200
        assert 'pyprof_agent_failing{reason="push_failing"} 0\n' in agent.page("/metrics")[1]
        assert not run(*where).stdout.startswith("agent: not running")
        worker = agent.children()
        config = agent.log.with_name("agent.toml")
        config.write_text(config.read_text().replace('"fleet"', '"other"'))
        agent.process.send_signal(signal.SIGHUP)
        agent.wait(lambda: agent.lines(event="reloaded", recordings="unchanged"))
        config.write_text(config.read_text().replace("cpu = 100", "cpu = 50"))
        agent.process.send_signal(signal.SIGHUP)
        agent.wait(lambda: agent.lines(event="reloaded", recordings="unchanged")[1:])
        assert "pyprof_agent_budget_cpu_ratio 0.5\n" in agent.page("/metrics")[1]
        assert json.loads(run(*where, "--json").stdout)["agent"]["budget"]["budget_cpu_percent"] == 50
        config.write_text(config.read_text().replace('"checkout"', '"bag"'))
        assert agent.children() == worker, "another sink or budget is no reason for a gap"
        agent.process.send_signal(signal.SIGHUP)
        agent.wait(lambda: agent.lines(event="reloaded", recordings="restarted"))
        agent.wait(lambda: agent.children() and agent.children() != worker)
    done = run(*where, "--json")
    assert done.returncode == 3
    state = json.loads(done.stdout)
    assert (state["agent"]["status"], state["agent"]["failures"]) == ("not_running", [])
    assert "checkout" in [service["service"] for service in state["spool"]["services"]]


def test_removed_spool_is_named_and_made_again(tmp_path: Path) -> None:
    answers = [Said(503)]
    with receiver(lambda _: answers[0]) as server, running(tmp_path, server.url) as agent:
        agent.wait(lambda: "push_failing" in agent.failures())
        shutil.rmtree(agent.spool)
        agent.wait(lambda: agent.lines(event="degraded", reason="spool_failed"))
        assert "the folder was removed" in str(agent.lines(reason="spool_failed")[0]["error"])
        agent.wait(lambda: "push_lost" in agent.failures())
        answers[0] = Said()
        agent.wait(lambda: list(agent.spool.glob("*/checkout/*.pb.gz")))
        agent.wait(lambda: agent.lines(event="healthy again", reason="spool_failed"))
        assert run("agent", "status", "--spool", str(agent.spool)).stdout.startswith("agent: degraded, ")
        assert not agent.lines(reason="spool_disk_full")


def test_emptied_spool_is_named_and_has_all_that_the_agent_needs_again(tmp_path: Path) -> None:
    """Empty the folder of the spool, as rm -rf SPOOL/* does, then remove the segments alone."""
    with receiver(lambda _: Said()) as server, running(tmp_path, server.url) as agent:
        where = "agent", "status", "--spool", str(agent.spool)
        agent.wait(lambda: list((agent.spool / "kept").iterdir()))
        for place in list(agent.spool.iterdir()):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        agent.wait(lambda: agent.lines(reason="spool_failed", event="degraded"))
        error = agent.lines(reason="spool_failed")[0]
        assert "files were removed" in str(error["error"])
        assert error["hint"] == "find out what removed it"
        agent.wait(lambda: agent.lines(event="healthy again", reason="spool_failed"))
        agent.wait(lambda: list((agent.spool / "kept").iterdir()))
        assert not run(*where).stdout.startswith("agent: not running")
        agent.wait(lambda: counted(agent) >= 3)
        before = counted(agent)
        for place in agent.spool.glob("2*"):
            shutil.rmtree(place)
        agent.wait(lambda: counted(agent) < before)
        agent.wait(lambda: counted(agent) == len(list(agent.spool.glob("2*/*/*.pb.gz"))))


def test_emptied_spool_of_an_agent_without_processes_has_its_socket_again(tmp_path: Path) -> None:
    with receiver(lambda _: Said()) as server, running(tmp_path, server.url, target=("",)) as agent:
        agent.wait((agent.spool / "agent.sock").exists)
        for place in list(agent.spool.iterdir()):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        agent.wait(lambda: agent.lines(event="healthy again", reason="spool_failed"))
        assert not run("agent", "status", "--spool", str(agent.spool)).stdout.startswith("agent: not running")


def counted(agent: Agent) -> int:
    """Return the number of segments that the agent's last window has stated."""
    return int(str(agent.lines(event="window")[-1]["spool_segments"]))


def test_killed_worker_is_named_and_loses_no_processor_time(tmp_path: Path) -> None:
    """Kill the worker after a checkpoint: the next window has all processor time since then."""
    clock = tmp_path / "clock"
    target = (CLOCKED, str(clock))
    with receiver(lambda _: Said()) as server, running(tmp_path, server.url, target=target) as agent:
        agent.wait(lambda: agent.lines(event="window"))
        agent.wait(lambda: list((agent.spool / "sofar").glob("[0-9]*")))
        children = agent.children()
        assert children
        for child in children:
            os.kill(child, signal.SIGKILL)
        agent.wait(lambda: "recording_failed" in agent.failures())
        assert (agent.page("/healthz")[0], agent.page("/readyz")[0]) == (200, 503)
        assert 'pyprof_agent_failures_total{mode="cpu"} 1\n' in agent.page("/metrics")[1]
        agent.wait(lambda: agent.lines(event="window recovered", segments=1))
        agent.wait(lambda: agent.lines(event="healthy again", reason="recording_failed"))
        assert agent.page("/readyz")[0] == 200
    spool = str(agent.spool)
    names = spool_query.segments(spool, TimeSpan(0, time.time_ns() + 1))
    found = [spool_query.profile_of(spool, [name], "cpu", "all") for name in names]
    found.sort(key=lambda profile: profile.start_ns)
    ends = [profile.start_ns + profile.duration_ns for profile in found]
    assert not agent.lines(reason="window_gap"), "it is in the recovered segment and the next window"
    assert any(
        b"began during this window" in gzip.decompress(path.read_bytes())
        for path in agent.spool.glob("*/checkout/*.pb.gz")
    )
    assert all(abs(after.start_ns - end) < 10**8 for end, after in zip(ends[:-1], found[1:], strict=True))
    ran_ns = processor_ns(clock, found[0].start_ns, ends[-1])
    assert abs(sum(profile.total for profile in found) / ran_ns - 1) < 0.02


@only_root
def test_agent_records_and_pushes_with_what_its_unit_allows(tmp_path: Path) -> None:
    need("systemd-analyze")
    unit = tmp_path / systemd.AGENT_UNIT_NAME
    unit.write_text(systemd.agent_unit(["pyprof"], (), pushes=True))
    prefix = (sys.executable, unit_filter.__file__, str(unit))
    with receiver(lambda _: Said()) as server, running(tmp_path, server.url, prefix) as agent:
        agent.wait(lambda: agent.lines(event="window"))
        agent.wait(lambda: server.asked)
        assert not agent.failures()
        (window,) = agent.lines(event="window")[:1]
        assert int(str(window["samples"])) > 0
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        assert "Seccomp:\t2\n" in status
