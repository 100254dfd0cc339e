"""The agent on programs that run: what it samples is in the spool, under the names that its rules give."""

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

from tests.warm import run

BUSY = "import sys\ndef spin():\n    while True: sum(range(2000))\nprint('ready', flush=True); spin()"
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
    assert not [line for line in lines if line["level"] == "error" and line["event"] != "reload failed"], lines
    return [line for line in lines if line["event"] == "window"]


def test_small_budget_is_kept_by_fewer_samples_and_fewer_processes_and_said(tmp_path: Path) -> None:
    """Samples stand for those that were not taken."""
    word, spool, log, config = f"agent-budget-{os.getpid()}", tmp_path / "spool", tmp_path / "log", tmp_path / "a.toml"
    port = 20_000 + (os.getpid() + 6_000) % 12_000
    text = CONFIG.replace("WORD", word).replace("PORT", str(port))
    config.write_text(f'[budget]\nover = "2s"\n{text}rate = 300\n')
    targets = [busy(word, "1"), busy(word, "2")]
    command = [sys.executable, "-m", "pyprof", "agent", "--cpu-budget", "0.01", "--config", str(config)]
    with log.open("wb") as out:
        agent = subprocess.Popen([*command, "--spool", str(spool), "--log", "json"], stderr=out)
        try:
            while not any(each["processes"] == 1 and each["samples"] for each in windows(log)):
                assert agent.poll() is None, log.read_text()
                time.sleep(0.05)
            said = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            for each in (agent, *targets):
                each.kill()
                each.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line["one_sampling_time_in"] for line in lines if line["event"] == "does less"]
    assert steps == sorted(steps)
    assert steps[-1] == 16
    assert "pyprof_agent_sampling_stride 16\n" in said
    assert "pyprof_agent_processes 2\n" in said
    assert "pyprof_agent_processes_left_out 1\n" in said
    assert "pyprof_agent_budget_cpu_ratio 0.0001\n" in said
    status = run("agent", "status", "--spool", str(spool)).stdout.splitlines()
    assert float(status[2].split()[3]) > 2
    assert any(b"one of 16 sampling times" in gzip.decompress(each.read_bytes()) for each in spool.rglob("*.pb.gz"))


def test_windows_of_what_the_rules_choose_are_in_the_spool(tmp_path: Path) -> None:
    """Started by nobody's service manager but this test: it is told READY; a process that comes later is found, a
    configuration that became wrong changes nothing, and the end comes with the last window.
    """
    word, port = f"agent-live-{os.getpid()}", 20_000 + os.getpid() % 12_000
    config, spool, log, address = (tmp_path / name for name in ("agent.toml", "spool", "log", "notify"))
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
            env={**os.environ, "NOTIFY_SOCKET": str(address)},
        )
        second = None
        try:
            assert notify.recv(100) == b"READY=1"
            while not any(line["samples"] for line in windows(log)):
                time.sleep(0.05)
            second = busy(word, "2")
            config.write_text("[[rule]]\nnme = 1")
            agent.send_signal(signal.SIGHUP)
            while not (
                "reload failed" in log.read_text()
                and any(line["processes"] == 2 and line["samples"] for line in windows(log)[-1:])
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
    assert "reload failed" in log.read_text()
    assert [path for path in spool.rglob("*") if path.is_file() and not path.name.endswith(".pb.gz")] == []
    assert all(0 <= float(str(line["own_cpu_percent"])) < 400 for line in windows(log))
    ends = sorted(int(path.name.split("-")[0]) for path in spool.glob("*/checkout/*"))
    assert len(ends) == len(windows(log))
    found = run("query", "--spool", str(spool), "--by", "version").stdout
    assert "spin" in found
    assert run("query", "--spool", str(spool), "--label", "env=test", "-f", "collapsed").stdout.count("spin")
    assert "checkout" in run("agent", "status", "--spool", str(spool)).stdout
