"""`python -m bench.operators_afternoon`: check what an agent and a server lose and report when things fail around them.

Root runs five services that record their own processor time, an agent that pushes windows of ten seconds, and a server
with tokens in a network namespace (afternoon_host.py). One failure after another is caused. Each must be visible in the
log, in the metric `failing` and on the page /healthz. At the end each segment must be at the server or in the queue,
once, and the sums are compared with the clocks of the services. It takes half an hour and writes a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.afternoon_host import (
    AGENT_ADDRESS,
    SERVER_ADDRESS,
    WINDOW_S,
    WRITE_TOKEN,
    Host,
    Program,
    copy_files,
    empty,
    fetch,
    fill,
    run,
    until,
)
from bench.afternoon_windows import Window, lost_s, segment_counts, sums, windows
from bench.busy_agent import busy_loops
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.lazy_dataclasses import dataclass, field

IGNORED = frozenset({"budget_exceeded", "clock_differs", "few_samples", "processes_left_out", "window_gap"})
"""Conditions of agent and server that may still hold when the next part of the benchmark begins."""
_WELL_S = 400


@dataclass
class Part:
    """One part of the benchmark, in which one failure is caused.

    Attributes:
        title: Description of the failure.
        act: Function that causes the failure and ends it.
        agent, server: Names that each program must show: "REASON" or "REASON (CAUSE)" in all places, "log: NAME" or
            "metric: NAME" in one place.
        found: Places that did not show an expected name.
        began_ns, ended_ns: Beginning and end of the part since the epoch.
    """

    title: str
    act: Callable[[Host], object]
    agent: Sequence[str] = ()
    server: Sequence[str] = ()
    found: list[str] = field(default_factory=list)
    began_ns: int = 0
    ended_ns: int = 0


def hold(host: Host, seconds: float) -> None:
    """Wait some seconds, and read the logs and the pages of agent and server in this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        host.agent.look()
        host.server.look()
        time.sleep(1)


def kill_agent(host: Host) -> None:
    host.agent.stop(signal.SIGKILL)
    time.sleep(5)
    host.agent.start()
    hold(host, 15)


def kill_worker(host: Host) -> None:
    assert host.agent.process is not None
    for worker in find_descendants([host.agent.process.pid]):
        os.kill(worker, signal.SIGKILL)
    hold(host, 45)


def kill_server(host: Host) -> None:
    host.server.stop(signal.SIGKILL)
    hold(host, 25)
    host.server.start()


def drop_packets(host: Host) -> None:
    """Drop the packets from the server to the agent, so that the agent's connections get no answer."""
    route = ("ip", "-n", host.namespace, "route")
    run(*route, "add", "blackhole", f"{AGENT_ADDRESS}/32")
    hold(host, 60)
    run(*route, "del", "blackhole", f"{AGENT_ADDRESS}/32")


def fill_disks(*names: str) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        for name in names:
            fill(host.folder / name)
        hold(host, 35)
        for name in names:
            empty(host.folder / name)

    return act


def stop_store(host: Host) -> None:
    """Stop the ClickHouse server by SIGSTOP for a minute, then kill it, and start it again."""
    assert host.store is not None
    host.store.send_signal(signal.SIGSTOP)
    hold(host, 60)
    host.store.kill()
    host.store.wait()
    hold(host, 15)
    host.start_store()


def use_token(token: str, mode: int) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        host.write_push_token(token, mode)
        hold(host, 25)
        host.write_push_token(WRITE_TOKEN)

    return act


def reload_agent(seconds: float, **settings: object) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        assert host.agent.process is not None
        host.write_agent_config(**settings)  # type: ignore[arg-type]
        host.agent.process.send_signal(signal.SIGHUP)
        hold(host, seconds)
        host.write_agent_config()
        host.agent.process.send_signal(signal.SIGHUP)
        hold(host, 5)

    return act


def load(host: Host) -> None:
    with busy_loops(4):
        hold(host, 60)


def restore(host: Host, is_database_lost: bool) -> None:
    """Copy the server's segment files while it runs, and let it run on. Then restore the copy, and let the agent send
    its segments again.
    """
    data, backup = host.folder / "disk/data", host.folder / "backup"
    copy_files(data / "segments", backup)
    hold(host, 35)
    host.server.stop(signal.SIGTERM)
    if is_database_lost:
        assert host.store is not None
        host.store.kill()
        host.store.wait()
        copy_files(host.folder / "store/empty", host.folder / "store/data")
        host.start_store()
    copy_files(backup, data / "segments")
    host.server.start()
    hold(host, 15)
    command = [sys.executable, "-m", "pyprof", "agent", "resend", "--config", f"{host.folder}/agent.toml"]
    print(subprocess.check_output([*command, "--since", "2h"], text=True).strip())
    hold(host, 5)


def restart_with_settable_clock(host: Host) -> None:
    host.agent.stop(signal.SIGTERM)
    host.agent.start(**host.faked_clock())
    hold(host, 4 * WINDOW_S)


def step_clock(host: Host) -> None:
    """Set the agent's clock by +1 h, -2 h and +1 h in the middle of windows."""
    for offset in ("+1h", "-1h", "+0"):
        part = host.folder / "offset.part"
        part.write_text(f"{offset}\n")
        part.replace(host.folder / "offset")
        hold(host, 2.5 * WINDOW_S)


def afternoon() -> list[Part]:
    later = "push_failing"
    wrong = f"http://{SERVER_ADDRESS}:4"
    return [
        Part("nothing fails for 40 s", lambda host: hold(host, 40)),
        Part("four busy loops for 60 s", load),
        Part("`kill -9` of the agent, 5 s without one", kill_agent, ["log: started"]),
        Part("`kill -9` of the agent's worker", kill_worker, ["recording_failed"]),
        Part("`kill -9` of the server, 25 s without one", kill_server, [f"{later} (unreachable)"]),
        Part("packets to the agent vanish for 60 s", drop_packets, [f"{later} (timeout)"]),
        Part("the spool's disk is full for 35 s", fill_disks("spool"), ["spool_disk_full"]),
        Part("the server's disk is full for 35 s", fill_disks("disk"), [f"{later} (disk_full)"], ["disk_full"]),
        Part(
            "both disks are full for 35 s",
            fill_disks("spool", "disk"),
            ["spool_disk_full", f"{later} (disk_full)"],
            ["disk_full"],
        ),
        Part("ClickHouse stands still for 60 s, then `kill -9`", stop_store, [], ["store_failed"]),
        Part(
            "a wrong token for 25 s",
            use_token("wrong", 0o600),
            [f"{later} (wrong_token)"],
            ["log: wrong_token", f"log: {AGENT_ADDRESS}"],
        ),
        Part("a token file that others may read", use_token(WRITE_TOKEN, 0o644), [f"{later} (credentials)"]),
        Part("a wrong setting, then SIGHUP", reload_agent(15, more="[limits]\n"), ["reload_failed"]),
        Part("a wrong address of the sink, then SIGHUP", reload_agent(25, url=wrong), [f"{later} (unreachable)"]),
        Part("older files below a newer database", lambda host: restore(host, False), [], MISSING_FILES),
        Part("a backup on an empty host", lambda host: restore(host, True), [], ["log: files indexed"]),
        Part("a budget of 0.05 %", reload_agent(100, cpu=0.05), ["budget_exceeded"]),
        Part("a restart of the agent (with libfaketime)", restart_with_settable_clock, ["log: started"]),
        Part("the agent's clock +1 h, -2 h, +1 h", step_clock, ["log: clock was set", "clock_differs"]),
    ]


MISSING_FILES = "log: windows without a file", "metric: windows_without_file"


def unnamed(program: Program, expected: Sequence[str]) -> list[str]:
    """Return the expected names that a place of the program does not show, each as "place: name"."""
    found, seen = [], program.seen
    for each in expected:
        place, _, name = each.partition(": ")
        if name:
            found += [each] * (name not in {"log": seen.log, "metric": seen.metric}[place])
            continue
        reason, _, cause = each.rstrip(")").partition(" (")
        for place, names, wanted in (
            ("log", seen.log, {reason, cause}),
            ("metric", seen.metric, {reason}),
            ("/healthz", seen.health, {reason, cause}),
        ):
            found += [f"{place}: {name}" for name in sorted(wanted - {""} - names)]
    return found


def is_well(program: Program) -> bool:
    status, body = fetch(f"{program.url}/readyz")
    failures = json.loads(body)["failures"] if body.startswith("{") else []
    return status == 200 and {each["reason"] for each in failures} <= IGNORED


def do(part: Part, host: Host) -> None:
    """Run a part of the benchmark, wait until all conditions have ended, and record which places did not show expected
    names.
    """
    for program in (host.agent, host.server):
        program.forget()
    part.began_ns = time.time_ns()
    part.act(host)
    until(lambda: is_well(host.agent) and is_well(host.server), _WELL_S, f"all is well after: {part.title}")
    hold(host, WINDOW_S)
    part.found = [f"agent's {each}" for each in unnamed(host.agent, part.agent)]
    part.found += [f"server's {each}" for each in unnamed(host.server, part.server)]
    unhealthy = [each for each in host.agent.seen.statuses if each.startswith("/healthz 5")]
    part.found += ["agent's /healthz was 503"] * bool(unhealthy)
    part.ended_ns = time.time_ns()


def table(parts: Sequence[Part], found: Sequence[Window]) -> list[str]:
    lines = ["| what was done | named | seconds | lost, s | not named |", "|---|---|---|---|---|"]
    for part in parts:
        named = "; ".join([*part.agent, *(f"server: {each}" for each in part.server)]) or "nothing"
        lost = lost_s(found, part.began_ns, part.ended_ns)
        seconds = (part.ended_ns - part.began_ns) / 1e9
        cells = part.title, named, f"{seconds:.0f}", f"{lost:.1f}", "; ".join(part.found) or "-"
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.operators_afternoon", description=__doc__)
    parser.add_argument("--parts", default="", metavar="WORDS", help="only parts whose titles have one of these words")
    parser.add_argument("-o", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and configurations in this folder")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.operators_afternoon needs root: a network namespace and small disks")
    words = [word for word in arguments.parts.split(",") if word]
    parts = [part for part in afternoon() if not words or any(word in part.title for word in words)]
    began, loads = time.strftime("%Y-%m-%d %H:%M"), list[float]()
    with tempfile.TemporaryDirectory(prefix="pyprof-afternoon-") as name, Host(Path(name)).running() as host:
        for part in parts:
            do(part, host)
            loads.append(os.getloadavg()[0])
            print(f"{part.title}: {'; '.join(part.found) or 'named'}", flush=True)
        host.agent.stop(signal.SIGTERM)
        found = windows(host.folder / "spool/data")
        lines = [f"{began}, load {min(loads):.0f} to {max(loads):.0f}", "", *table(parts, found), ""]
        lines += [*segment_counts(host), *sums(found, host.folder / "clock")]
        if arguments.keep is not None:
            for file in (host.agent.log, host.server.log, host.folder / "agent.toml", host.folder / "server.toml"):
                arguments.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, arguments.keep)
    text = "\n".join(lines)
    print(text)
    if arguments.o is not None:
        arguments.o.write_text(f"{text}\n")
    return int(any(part.found for part in parts))


if __name__ == "__main__":
    sys.exit(main())
