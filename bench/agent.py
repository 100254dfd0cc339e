"""`python -m bench.agent`: measure what an agent costs a host of 40 processes, and what it records of them.

Ten services are Python processes with a busy thread each, ten native processes have a busy thread each, and twenty have
500 threads that sleep. First the agent runs continuously. Its processor time and memory are printed minute by minute,
and the contents of its spool afterwards.

Then turns follow one another in random order, round after round: no profiler and the agent, and in some rounds also
`perf record -a --call-graph dwarf` and py-spy on the Python processes. The effect of these two is so large that few
rounds are enough. Each process counts the work that it has done. The effect of a turn is the ratio to the turn without
a profiler in the same round. The agent is switched by its rules; the beginning of each turn is left out.

Work per second is noisy, because the machine changes from turn to turn. So the processor time of the busy processes is
compared too, which the kernel counts to the nanosecond. It shows what they lost to processes of the profiler. It does
not show what the profiler does within their own time: its programs in the kernel (their run time is printed next to
it), and its effect on the caches.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from bench.per_sample import descendants, used_s
from pyprof.errors import PyprofError
from pyprof.fleet.agent import health, spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.unwind_result import StackEnd

_STARTS_S, _BEGINS_S = 5, 300
COUNTS = "counts"
SOURCES = Path(__file__).parent / "targets"
SERVICES, NATIVE, ASLEEP, SLEEPERS = 10, 10, 20, 25
"""Numbers of processes with Python, of native ones and of sleeping ones, and number of threads of each sleeping
process.
"""
RATE = 19
_CONFIG = """\
[windows]
every = "{window}s"
[[rule]]
cmdline = "{word}"
service = "{{env:SERVICE}}"
"""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Quantiles of Student's t for a 95 % interval, for 1, 2, … degrees of freedom. Beyond the last one, 2 is used."""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of some values and the bounds of its 95 % confidence interval (Student's t). The bounds are NaN
    for a single value.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    free = len(values) - 1
    half = (_T[free - 1] if free <= len(_T) else 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def longest_gap_s(ends_ns: Sequence[int]) -> float:
    """Return the longest time in seconds between two windows of a service."""
    return max((after - before for before, after in pairwise(sorted(ends_ns))), default=0) / 1e9


class Host:
    """The processes of the measured host, and the work that each of them has done."""

    def __init__(self, folder: Path) -> None:
        self.word = str(folder / COUNTS)
        Path(self.word).write_bytes(bytes(4096))
        program = folder / "counted"
        flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", str(program), str(SOURCES / "counted.c")], check=True)
        script = [sys.executable, str(SOURCES / "counted.py")]
        commands = [([*script, self.word, str(at)], f"service-{at}") for at in range(SERVICES)]
        commands += [([str(program), self.word, str(SERVICES + at), "1", "0"], "native") for at in range(NATIVE)]
        commands += [([str(program), self.word, "500", "0", str(SLEEPERS)], "asleep") for _ in range(ASLEEP)]
        self._started = [
            subprocess.Popen(command, env={**os.environ, "SERVICE": service}) for command, service in commands
        ]
        self.python = [process.pid for process in self._started[:SERVICES]]
        self._busy = [process.pid for process in self._started[: SERVICES + NATIVE]]
        with open(self.word, "rb") as file:
            self._counts = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)

    def work(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{SERVICES + NATIVE}Q", self._counts)

    def rates(self, seconds: float) -> Rates:
        """Measure the work and the processor time per second, over the next seconds."""
        began, had, before = time.monotonic(), sum(map(used_s, self._busy)), self.work()
        time.sleep(seconds)
        passed, has, after = time.monotonic() - began, sum(map(used_s, self._busy)), self.work()
        return Rates([(last - first) / passed for first, last in zip(before, after, strict=True)], (has - had) / passed)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@dataclass
class Minute:
    cpu: float
    memory: int


@dataclass
class Turns:
    """The results of one profiler's turns, one in each round.

    Attributes:
        ratios: Ratios of the work done to that without a profiler.
        times: Ratios of the processor time used to that without a profiler.
        cpu: Processor time of the profiler as a share of one processor.
        inside: Run time of the profiler's BPF programs as a share of one processor.
    """

    ratios: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rates:
    """Work and processor time of a host's busy processes per second.

    Attributes:
        work: Work of each busy process.
        processor_s: Processor time of all busy processes in seconds.
    """

    work: list[float]
    processor_s: float


class RunningAgent:
    def __init__(self, folder: Path, word: str, window: int, extra: str) -> None:
        self.spool, self._config, self.log = folder / "spool", folder / "agent.toml", folder / "log"
        self._text = extra + _CONFIG.format(window=window, word=word)
        self._config.write_text(self._text)
        command = [sys.executable, "-m", "pyprof", "agent", "--config", str(self._config), "--log", "json"]
        with self.log.open("wb") as out:
            self._process = subprocess.Popen([*command, "--spool", str(self.spool)], stderr=out)
        self.pid = self._process.pid

    def switch(self, on: bool) -> None:
        part = self._config.with_suffix(".part")
        part.write_text(self._text if on else '[[rule]]\nname = "no such process"\n')
        part.replace(self._config)  # the agent may still be reading the previous text
        self._process.send_signal(signal.SIGHUP)

    def begun(self) -> None:
        """Wait until the agent has finished its first window. On a busy host its start takes some seconds."""
        deadline = time.monotonic() + _BEGINS_S
        while '"event":"window"' not in self.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.5)

    def minutes(self, count: int) -> Iterator[Minute]:
        for _ in range(count):
            began, before = time.monotonic(), health.spent(self.pid)
            time.sleep(60)
            yield Minute(
                (health.spent(self.pid) - before) / (time.monotonic() - began),
                health.memory(self.pid) or 0,
            )

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def programs_timed() -> Iterator[None]:
    """Let the kernel measure how long BPF programs run, if it permits that."""
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    if not os.access(switch, os.W_OK):
        yield
        return
    before = switch.read_text()
    switch.write_text("1")
    try:
        yield
    finally:
        switch.write_text(before)


def programs_s(pid: int) -> float:
    """Return the run time in seconds of the BPF programs of a process and its descendants. Each program counts once."""
    ran: dict[str, int] = {}
    for each in (pid, *descendants(pid)):
        for path in Path(f"/proc/{each}/fdinfo").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
                if "run_time_ns" in fields:
                    ran[fields["prog_id"]] = int(fields["run_time_ns"])
    return sum(ran.values()) / 1e9


@contextmanager
def tool(commands: Sequence[Sequence[str]], turns: Turns, seconds: float) -> Iterator[None]:
    """Run the commands of a profiler within the context. Add their processor time, including that of their start, to
    its turns.
    """
    with open(os.devnull, "wb") as nowhere:
        started = [subprocess.Popen(list(command), stdout=nowhere, stderr=nowhere) for command in commands]
    yield
    spent = 0.0
    for process in started:
        process.send_signal(signal.SIGINT)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        spent += usage.ru_utime + usage.ru_stime
    turns.cpu.append(spent / seconds)


def peers_of(host: Host, folder: Path) -> dict[str, list[list[str]]]:
    """Return the commands that profile the host by the other installed profilers, perf and py-spy."""
    peers: dict[str, list[list[str]]] = {}
    if perf := shutil.which("perf"):
        data = str(folder / "perf.data")
        peers["perf"] = [[perf, "record", "-a", "-F", str(RATE), "--call-graph", "dwarf", "-o", data]]
    if spy := shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
        how = ["record", "-r", str(RATE), "-d", "3600", "-f", "raw"]
        peers["py-spy"] = [[spy, *how, "-o", str(folder / f"spy-{pid}"), "-p", str(pid)] for pid in host.python]
    return peers


def take_turns(
    host: Host,
    agent: RunningAgent,
    peers: dict[str, list[list[str]]],
    rounds: int,
    with_peers: int,
    period: float,
    settle: float,
) -> dict[str, Turns]:
    """Measure the turns of all profilers in random order, round after round. Only `with_peers` rounds include the
    peers, which are the other profilers.
    """
    found = {name: Turns() for name in ("agent", *peers)}
    agent.switch(False)
    among = [*[True] * min(with_peers, rounds), *[False] * (rounds - with_peers)]
    random.shuffle(among)
    for peers_too in among:
        order = ["nothing", "agent", *(peers if peers_too else ())]
        random.shuffle(order)
        rates: dict[str, Rates] = {}
        for name in order:
            if name in peers:
                with tool(peers[name], found[name], period):
                    time.sleep(settle)
                    rates[name] = host.rates(period - settle)
                continue
            if name == "agent":
                agent.switch(True)
            time.sleep(settle)
            before, inside = health.spent(agent.pid), programs_s(agent.pid)
            rates[name] = host.rates(period - settle)
            if name == "agent":
                found[name].cpu.append((health.spent(agent.pid) - before) / (period - settle))
                found[name].inside.append((programs_s(agent.pid) - inside) / (period - settle))
                agent.switch(False)
        alone = rates.pop("nothing")
        for name, each in rates.items():
            shares = [with_it / of for with_it, of in zip(each.work, alone.work, strict=True)]
            found[name].ratios.append(statistics.fmean(shares))
            found[name].times.append(each.processor_s / alone.processor_s)
    return found


def print_spool(spool: Path, since_ns: int, window: int) -> None:
    names = spool_query.segments(str(spool), TimeSpan(since_ns, time.time_ns() + 1))
    ends: dict[str, list[int]] = {}
    for name in names:
        ends.setdefault(name.service, []).append(name.end_ns)
    counts = sorted(map(len, ends.values())) or [0]
    gap = max(map(longest_gap_s, ends.values()), default=0.0)
    size = sum((spool / name.path).stat().st_size for name in names)
    print(f"spool: {len(ends)} services, {counts[0]} to {counts[-1]} windows each, {size / 1e6:.2f} MB")
    print(f"    longest time between two ends of windows of a service: {gap:.1f} s (windows are {window} s)")
    try:
        profile = spool_query.profile_of(str(spool), names, "cpu", "all")
    except PyprofError as error:
        print(f"    {error}")
        return
    whole = profile.summary.shown.ends.get(StackEnd.ROOT.label, 0) / max(profile.total, 1)
    samples = int(profile.values[:, 0].sum())
    print(f"    {samples:,} samples, {100 * whole:.2f} % whole by time; {profile.summary.skipped:,} times missed")
    others = {label: count for label, count in profile.summary.shown.ends.items() if label != StackEnd.ROOT.label}
    for label, count in sorted(others.items(), key=lambda each: -each[1]):
        print(f"    {100 * count / profile.total:.2f} % {label}")


def print_minutes(minutes: Sequence[Minute]) -> None:
    for at, minute in enumerate(minutes, 1):
        print(f"minute {at}: {100 * minute.cpu:.2f} % of a processor, {minute.memory / 1e6:.0f} MB", flush=True)
    steady = minutes[1:] or minutes
    print(f"after the first: {100 * statistics.fmean(each.cpu for each in steady):.2f} %, ", end="")
    print(f"at most {max(each.memory for each in minutes) / 1e6:.0f} MB")


def print_turns(found: dict[str, Turns]) -> None:
    for name, turns in found.items():
        cpu = f"{100 * statistics.fmean(turns.cpu):.2f} % of a processor" if turns.cpu else "-"
        if not turns.ratios:
            continue
        work, times = (spread(values) for values in (turns.ratios, turns.times))
        print(f"{name}: {cpu}; slowdown {work}, {len(turns.ratios)} rounds")
        print(f"    processor time that the busy processes lack: {times}", end="")
        print(f", programs in the kernel {100 * statistics.fmean(turns.inside):.3f} %" if any(turns.inside) else "")


def spread(ratios: Sequence[float]) -> str:
    """Format the loss of work in percent, with its confidence interval, from ratios of work."""
    mean, low, high = (100 * (1 - value) for value in interval(ratios))
    return f"{mean:.2f} % (95 %: {high:.2f} to {low:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agent", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="without a break (%(default)s)")
    parser.add_argument("--rounds", type=int, default=24, help="of turns (%(default)s)")
    parser.add_argument("--peer-rounds", type=int, default=5, help="with the peers, too (%(default)s)")
    parser.add_argument("--period", type=float, default=60.0, metavar="S", help="of a turn (%(default)s)")
    parser.add_argument("--settle", type=float, default=15.0, metavar="S", help="left out of it (%(default)s)")
    parser.add_argument("--window", type=int, default=60, metavar="S", help="(%(default)s)")
    parser.add_argument("--no-peers", action="store_true", help="turns of the agent and of nothing alone")
    parser.add_argument("--no-budget", action="store_true", help="what it costs where the governor does nothing")
    arguments = parser.parse_args()
    extra = '[budget]\ncpu = 100\nmemory = "1G"\n' if arguments.no_budget else ""
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-") as made:
        folder = Path(made)
        agent = RunningAgent(folder, str(folder / COUNTS), arguments.window, extra)
        time.sleep(_STARTS_S)
        host = Host(folder)
        try:
            try:
                began = time.monotonic()
                agent.begun()
                print(f"first window after {time.monotonic() - began:.0f} s, ", end="")
                print(f"{health.spent(agent.pid):.1f} s of processor time", flush=True)
                began_ns = time.time_ns()
                minutes = list(agent.minutes(arguments.minutes))
                if minutes:
                    print_minutes(minutes)
                print_spool(agent.spool, began_ns, arguments.window)
                peers = {} if arguments.no_peers else peers_of(host, folder)
                with programs_timed():
                    rounds, with_peers = arguments.rounds, arguments.peer_rounds
                    turns = take_turns(host, agent, peers, rounds, with_peers, arguments.period, arguments.settle)
                print_turns(turns)
            finally:
                agent.end()
            for line in agent.log.read_text().splitlines():
                if '"does ' in line or '"level":"error"' in line or '"level":"warning"' in line:
                    print(line)
        finally:
            host.end()


if __name__ == "__main__":
    main()
