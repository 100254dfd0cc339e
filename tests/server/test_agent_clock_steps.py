"""A test of an agent that pushes while its wall clock is set: the server has each second in exactly one window.

The agent reports each step, and that its clock differs from the server's.

libfaketime also shifts the processor clocks of the target; the sums must be exact.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.fleet.agent import spool_query
from pyprof.fleet.agent.spool import SpoolSegment
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName
from tests.agent.test_agent_live import CLOCKED, processor_ns
from tests.agent.test_failures import lines
from tests.server.serving import served
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

HOUR_NS = 3600 * 10**9
CONFIG = """
[windows]
every = "1s"
[budget]
cpu = 100
[[rule]]
cmdline = "WORD"
service = "stepped"
[[push]]
name = "server"
type = "pyprof"
url = "URL"
"""
STEPS = ("+1h", "+0", "-1h")
"""Offsets of the agent's clock one after another: steps of +1 h, -1 h and -1 h."""


def library() -> str:
    """Return the path of libfaketime, which sets the wall clock of one process from a file."""
    found = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if found is None:
        missing("libfaketime: apt-get install libfaketime")
    return str(found)


def wait_for_windows(log: Path, agent: subprocess.Popen[bytes], more: int) -> None:
    count = sum(line["event"] == "window" for line in lines(log)) + more
    while sum(line["event"] == "window" for line in lines(log)) < count:
        assert agent.poll() is None, log.read_text()
        time.sleep(0.1)


def test_server_has_each_second_once_when_the_agents_clock_is_set_by_an_hour(tmp_path: Path) -> None:
    word, log, spool, offset = f"agent-steps-{os.getpid()}", tmp_path / "log", tmp_path / "spool", tmp_path / "offset"
    clock, data = tmp_path / "clock", tmp_path / "data"
    faked = {"LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_CACHE_DURATION": "1"}
    environment = {**os.environ, **faked, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    offset.write_text("+0\n")
    target = subprocess.Popen([sys.executable, "-c", CLOCKED, word, str(clock)])
    with served(data) as server, log.open("wb") as out:
        config = tmp_path / "agent.toml"
        config.write_text(CONFIG.replace("WORD", word).replace("URL", f"http://127.0.0.1:{server.port}"))
        command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool)]
        agent = subprocess.Popen([*command, "--log", "json"], stderr=out, env=environment)
        try:
            for step in STEPS:
                wait_for_windows(log, agent, 2)
                part = offset.with_suffix(".part")
                part.write_text(f"{step}\n")
                part.replace(offset)
            wait_for_windows(log, agent, 3)
            while "clock_differs" not in log.read_text():
                time.sleep(0.1)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
            written = [each for each in spool.rglob("*.pb.gz") if each.relative_to(spool).parts[0][0] == "2"]
            for left in (spool / "queue").rglob("*.pb.gz"):  # the window that ended with the agent
                name = SegmentName.parse(*left.parts[-3:])
                assert name is not None
                assert server.push(SpoolSegment(name, left.read_bytes())).status in (200, 409)
            server.until_indexed(len(written), to=int(time.time()) + 2 * 3600)
            question = server.question("services", to=int(time.time()) + 2 * 3600).json()
        finally:
            for process in (agent, target):
                process.kill()
                process.wait()
    steps = [line["seconds"] for line in lines(log) if line["event"] == "clock was set"]
    assert [round(float(str(step)) / 3600) for step in steps] == [1, -1, -1], "each step is one line"
    differing = [line for line in lines(log) if line.get("reason") == "clock_differs" and line["event"] == "degraded"]
    ahead = [int(str(line["ahead_seconds"])) for line in differing]
    assert all(abs(abs(seconds) - 3600) < 600 for seconds in ahead), ahead
    assert not list((spool / "refused").rglob("*.pb.gz"))
    root = str(data / "segments" / "default")
    names = spool_query.segments(root, TimeSpan(0, 1 << 62))
    assert {name.path for name in names} == {str(each.relative_to(spool)) for each in written}
    windows = [spool_query.profile_of(root, [name], "cpu", "all") for name in names]
    real = sorted(real_span(profile.start_ns, profile.duration_ns) for profile in windows)
    gaps = [later - end for (_, end), (later, _) in pairwise(real)]
    assert all(abs(gap) < 20_000_000 for gap in gaps), gaps
    assert sum(gap != 0 for gap in gaps) <= len(STEPS), "only a step leaves a gap"
    ran_ns = processor_ns(clock, real[0][0], real[-1][1])
    total = sum(profile.total for profile in windows)
    assert abs(total / ran_ns - 1) < 0.02
    assert [(row["amount"], row["windows"]) for row in question["services"]] == [(total, len(windows))]


def real_span(start_ns: int, length_ns: int) -> tuple[int, int]:
    """Return the true start and end of a window whose start is wrong by whole hours."""
    real_ns = start_ns - round((start_ns - time.time_ns()) / HOUR_NS) * HOUR_NS
    return real_ns, real_ns + length_ns
