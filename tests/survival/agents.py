"""`make test-agents`: kill an agent again and again, and run one through simulated days.

The first part kills an agent with SIGKILL every 20 to 90 seconds, half of the time with its workers, and restarts it.
Everything sampled until 10 seconds before must be in the spool in complete segments, and its targets must continue. The
second part simulates days at 100 times the speed: windows, age limits and budgets are a hundredth of their values, and
processes come and go. Memory must stay flat, and no descriptor, file or process may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.errors import PyprofError
from pyprof.fleet.agent import health, spool_query
from pyprof.fleet.agent.control_socket import NAME
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass

DURABLE_S = 10.0
FASTER = 100
ROOT = Path(__file__).resolve().parents[2]
_CONFIG = """\
[windows]
every = "60s"
[budget]
cpu = 20
[[rule]]
cmdline = "{word}"
service = "{{env:SERVICE}}"
"""
_SERVICES = 4
_PARTLY = """\
import time
def spin():
    while True:
        sum(range(100_000))
        time.sleep(0.015)
spin()
"""
_MORE_DESCRIPTORS = 8
"""Additional descriptors of recordings that were requested or restarted in the last seconds."""
_POLL_S = 0.25
_ENDS_S = 10.0
"""Time in seconds within which a worker ends once its sampler has ended."""
_OFTEN = 10
"""Number of measurements between reloads of the configuration and requests for a recording."""
_MAX_FLAT = 1.05
"""Maximum memory of the last quarter relative to the second quarter."""


@dataclass(frozen=True)
class Killed:
    """The result of killing an agent.

    Attributes:
        lost_s: Time from the last durable window to the kill in seconds.
        sampled_s: Time for which the agent had sampled in seconds.
    """

    lost_s: float
    sampled_s: float


def lost_s(ends_ns: Sequence[int], started_ns: int, killed_ns: int) -> float:
    """Return the seconds that a kill lost, at most those since the agent's first sample at started_ns."""
    last_ns = max((end for end in ends_ns if end <= killed_ns), default=started_ns)
    return (killed_ns - max(last_ns, started_ns)) / 1e9


def started(folder: Path, config: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(folder / "spool")]
    with (folder / "log").open("ab") as out:
        return subprocess.Popen([*command, "--log", "json"], stderr=out, cwd=ROOT)


def kill(agent: subprocess.Popen[bytes], all_of_it: bool) -> int:
    """Kill an agent, with all of its workers or alone, and return the time in nanoseconds."""
    pids = [agent.pid, *(find_descendants([agent.pid]) if all_of_it else ())]
    at = time.time_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    agent.wait()
    return at


def samples_from(agent: int, seconds: float) -> int:
    """Wait this many seconds, and return the time since which the agent has kernel events, or the current time if it
    has none.
    """
    until, began = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = began or (time.time_ns() if _has_events(agent) else 0)
        time.sleep(_POLL_S)
    return began or time.time_ns()


def _has_events(agent: int) -> bool:
    for name in os.listdir(f"/proc/{agent}/fd"):
        try:
            if "perf_event" in os.readlink(f"/proc/{agent}/fd/{name}"):
                return True
        except FileNotFoundError:
            continue
    return False


def targets(word: str, churning: bool) -> list[subprocess.Popen[bytes]]:
    """Start targets, each of which is busy for a part of the time."""
    found = [
        subprocess.Popen([sys.executable, "-c", _PARTLY, word], env={**os.environ, "SERVICE": f"service-{number}"})
        for number in range(_SERVICES)
    ]
    if churning:
        churn = str(ROOT / "bench" / "targets" / "churn.py")
        found.append(subprocess.Popen([sys.executable, churn, "1e9", word], stdout=subprocess.DEVNULL))
    return found


def segments(spool: Path) -> list[SegmentName]:
    return spool_query.segments(str(spool), TimeSpan(0, time.time_ns() + 10**18))


def kill_agents(
    folder: Path, minutes: float, rng: random.Random, wait: tuple[float, float]
) -> tuple[list[Killed], str]:
    """Kill agents repeatedly. Return the results and what is wrong, or "".

    Args:
        folder: Folder of the spool and configuration.
        minutes: Duration in minutes.
        rng: Random number generator.
        wait: Minimum and maximum time between two kills in seconds.
    """
    word, config = f"killed-agents-{os.getpid()}", folder / "agent.toml"
    config.write_text(_CONFIG.format(word=word))
    programs, moments, spool = targets(word, False), [], folder / "spool"
    until = time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < until:
            agent = started(folder, config)
            began = samples_from(agent.pid, rng.uniform(*wait))
            moments.append((began, kill(agent, rng.random() < 0.5)))
        agent = started(folder, config)
        time.sleep(wait[0])
        agent.terminate()
        wrong = [] if agent.wait(60) == 0 else ["the last agent did not end"]
        wrong += [f"target {each.pid} has ended" for each in programs if each.poll() is not None]
    finally:
        for each in programs:
            each.kill()
            each.wait()
    names = segments(spool)
    ends = [name.end_ns for name in names]
    for name in names:
        try:
            spool_query.profile_of(str(spool), [name], "cpu", "x")
        except PyprofError as error:
            wrong.append(f"{name.path}: {error}")
    if len(names) < _SERVICES * len(moments):
        wrong.append("each kill leaves what was sampled before as a segment of each service")
    print(f"{len(names)} segments read", flush=True)
    return [Killed(lost_s(ends, began, at), (at - began) / 1e9) for began, at in moments], "; ".join(wrong)


@dataclass(frozen=True)
class Measured:
    memory: int
    descriptors: int
    segments: int
    bytes: int
    oldest_s: float


def measured(agent: int, spool: Path) -> Measured:
    descriptors = 0
    for pid in (agent, *find_descendants([agent])):
        try:
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
    names = segments(spool)
    size = 0
    for name in names:
        try:
            size += (spool / name.path).stat().st_size
        except FileNotFoundError:
            continue
    oldest = min((name.end_ns for name in names), default=time.time_ns())
    return Measured(health.memory(agent) or 0, descriptors, len(names), size, (time.time_ns() - oldest) / 1e9)


def live_through_days(folder: Path, hours: float, look_s: float) -> tuple[list[Measured], str]:
    """Run an agent through simulated days. Return the measurements and what is wrong."""
    word, spool = f"agents-days-{os.getpid()}", folder / "spool"
    programs = targets(word, True)
    command = [sys.executable, "-m", "tests.survival.fast_agent", str(spool), word, str(FASTER)]
    found: list[Measured] = []
    refusals: list[str] = []
    with (folder / "log").open("ab") as out:
        agent = subprocess.Popen(command, stderr=out, cwd=ROOT)
    ask = [sys.executable, "-m", "pyprof", "agent", "record", "--spool", str(spool), "--service", "python"]
    try:
        until = time.monotonic() + 3600 * hours / FASTER
        while time.monotonic() < until and agent.poll() is None:
            time.sleep(look_s)
            found.append(measured(agent.pid, spool))
            if len(found) % _OFTEN == 0:
                agent.send_signal(signal.SIGHUP)
            if len(found) % _OFTEN == _OFTEN // 2:
                asking = subprocess.run([*ask, "-d", "0.3", "-o", str(folder / "asked.pyprof")], stderr=subprocess.PIPE)
                refusals += [asking.stderr.decode()] if asking.returncode else []
        workers = find_descendants([agent.pid])
        agent.terminate()
        code = agent.wait(60)
    finally:
        for each in (agent, *programs):
            each.kill()
            each.wait()
    wrong = [] if code == 0 else [f"it ended with {code}"]
    wrong += [f"an asker was told: {refusal}" for refusal in refusals]
    until = time.monotonic() + _ENDS_S
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < until:
        time.sleep(_POLL_S)
    wrong += [f"process {pid} is left" for pid in workers if os.path.exists(f"/proc/{pid}")]
    left = [path for path in spool.rglob("*") if re.search(r"\.part$|\.sofar$", path.name) or path.name == NAME]
    wrong += [f"{path} is left" for path in left]
    return found, "; ".join(wrong + judged(found))


def judged(found: Sequence[Measured]) -> list[str]:
    """Return what is wrong. The first quarter is ignored, because the agent reads many files for the first time."""
    from tests.survival.fast_agent import MAX_AGE_S, MAX_BYTES

    quarter = max(len(found) // 4, 1)
    second, last = found[quarter : 2 * quarter], found[-quarter:]
    if len(found) < 8:
        return ["too few looks"]
    wrong = []
    before, after = (statistics.median(each.memory for each in part) for part in (second, last))
    if after > _MAX_FLAT * before:
        wrong.append(f"memory grows: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
    before, after = (statistics.median(each.descriptors for each in part) for part in (second, last))
    if after > before + _MORE_DESCRIPTORS:
        wrong.append(f"descriptors: {before:.0f}, then {after:.0f}")
    if (most := max(each.bytes for each in found)) > 1.1 * MAX_BYTES:
        wrong.append(f"{most} bytes of segments")
    if (oldest := max(each.oldest_s for each in found)) > 1.1 * MAX_AGE_S:
        wrong.append(f"a segment of {oldest:.0f} s")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.survival.agents", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of kills (%(default)s)")
    parser.add_argument("--between", type=float, nargs=2, default=(20, 90), metavar="S", help="two kills (%(default)s)")
    parser.add_argument("--hours", type=float, default=24, help="that are lived through (%(default)s)")
    parser.add_argument("--look", type=float, default=5.0, metavar="S", help="between two looks (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the moments")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="pyprof-kills-") as made:
        if arguments.minutes:
            kills, wrong = kill_agents(Path(made), arguments.minutes, random.Random(arguments.seed), arguments.between)
            lost = sorted(each.lost_s for each in kills)
            late = sum(each > DURABLE_S for each in lost)
            print(
                f"{len(kills)} kills: {wrong or 'held'}; lost {statistics.median(lost):.1f} s in the middle, ", end=""
            )
            print(f"{lost[-1]:.1f} s at most; over {DURABLE_S:.0f} s: {late}", flush=True)
            failed |= bool(wrong or late)
    with tempfile.TemporaryDirectory(prefix="pyprof-days-") as made:
        if arguments.hours:
            found, wrong = live_through_days(Path(made), arguments.hours, arguments.look)
            print(f"{arguments.hours:g} hours: {wrong or 'held'}", flush=True)
            for each in found[:: max(len(found) // 12, 1)]:
                print(
                    f"    {each.memory / 1e6:.1f} MB, {each.descriptors} descriptors, {each.segments} segments, ",
                    end="",
                )
                print(f"{each.bytes / 1e6:.2f} MB of them, the oldest {each.oldest_s:.0f} s", flush=True)
            failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
