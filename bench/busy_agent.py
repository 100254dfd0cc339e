"""`python -m bench.busy_agent`: check how accurate an agent's windows are on a busy host, under a budget.

Forty processes in ten services run on the host. Each service has one that sleeps, which is the oldest, and three that
work and record their own processor time (targets/busy_service.py). Busy loops run at the same time. For each number of
busy loops and each budget an agent records the services in windows. Each window with more than a second of processor
time is compared with the programs' own clocks: the sum of the service, the shares of three functions against the stated
intervals, and whether a service that ran is missing. The agent's own cost is compared with its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.agent import SOURCES
from pyprof.fleet.agent import health, spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass, field, field_names
from pyprof.model.analysis.confidence_interval import sampling_basis
from pyprof.model.analysis.function_costs import costs

SERVICES, WORKERS = 10, 3
SHARES = 0.01, 0.02, 0.03, 0.04, 0.1
"""Shares of one processor that each worker of a service uses, by service in turn. All workers together want a little
more than one processor.
"""
FUNCTIONS = ("alpha", "beta", "gamma")
MIN_S, CLOSE, COVERED = 1.0, 0.02, 0.95
"""Minimum processor time in seconds of a window to judge, accepted relative error of its sum, and required fraction of
shares that lie within their confidence intervals.
"""
_BEGINS_S = 300
_RAN_S = 0.05
"""Running time in seconds above which a service must not be missing in a window."""
_CONFIG = """\
[windows]
every = "{window}s"
[budget]
cpu = {budget}
over = "{over}s"
[[rule]]
cmdline = "{word}"
service = "{{env:SERVICE}}"
"""


class OwnClocks:
    """The processor times that the programs of one service have measured themselves and written into files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._records = [np.fromfile(path, np.int64).reshape(-1, 5) for path in paths]

    def between(self, start_ns: int, end_ns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the processor time of the service between two monotonic times, followed by that in each of its
        functions, in nanoseconds.
        """
        found = np.zeros(4)
        for records in self._records:
            for column in range(4):
                at = np.interp([start_ns, end_ns], records[:, 0], records[:, column + 1])
                found[column] += at[1] - at[0]
        return found


@dataclass
class Tally:
    """Results of the agent for one number of busy loops and one budget.

    Attributes:
        errors: Relative error of the sum in each judged window.
        shares, covered: Number of judged shares of functions, and number of shares within their confidence interval.
        widths, samples: Widths of the intervals, and effective numbers of samples.
        missing: Number of windows in which a service ran and was missing or shown as zero.
        cpu: Processor time of the agent in each window, as a share of one processor.
        steps: The last line of the log about the budget.
        needed: Budget in percent that the agent last stated as needed, 0 if its own budget was enough.
    """

    errors: list[float] = field(default_factory=list)
    shares: int = 0
    covered: int = 0
    widths: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    missing: int = 0
    cpu: list[float] = field(default_factory=list)
    steps: str = ""
    needed: float = 0.0


class BusyHost:
    """The programs of all services, in a folder with the files of their clocks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._started = folder, list[subprocess.Popen[bytes]]()
        script = str(SOURCES / "busy_service.py")
        for service in range(SERVICES):
            environment = {**os.environ, "SERVICE": f"service-{service}"}
            idle = [sys.executable, "-c", "import time; time.sleep(1e6)", str(folder)]
            share = SHARES[service % len(SHARES)]
            work = [[sys.executable, script, str(folder / f"{service}-{nth}"), str(share)] for nth in range(WORKERS)]
            self._started += [subprocess.Popen(command, env=environment) for command in (idle, *work)]

    def clocks(self, service: int) -> OwnClocks:
        return OwnClocks([self.folder / f"{service}-{nth}" for nth in range(WORKERS)])

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def judge(host: BusyHost, spool: Path, since_ns: int, tally: Tally) -> None:
    """Compare each window that began after a given time with the programs' own clocks, and add the errors to the
    tally.
    """
    ahead_ns = time.time_ns() - time.monotonic_ns()
    names = spool_query.segments(str(spool), TimeSpan(since_ns, time.time_ns() + 1))
    by_service: dict[str, list[SegmentName]] = {f"service-{service}": [] for service in range(SERVICES)}
    for name in names:
        by_service[name.service].append(name)
    ends = sorted({name.end_ns for name in names})
    for service, found in enumerate(by_service.values()):
        clocks, of_end = host.clocks(service), {name.end_ns: name for name in found}
        for start_ns, end_ns in pairwise(ends):
            if end_ns in of_end:
                judge_window(spool, of_end[end_ns], clocks, ahead_ns, tally)
            else:
                ran_ns = clocks.between(start_ns - ahead_ns, end_ns - ahead_ns)
                tally.missing += ran_ns[0] > _RAN_S * 1e9


def judge_window(spool: Path, name: SegmentName, clocks: OwnClocks, ahead_ns: int, tally: Tally) -> None:
    profile = spool_query.profile_of(str(spool), [name], "cpu", "all")
    start_ns = profile.start_ns - ahead_ns
    ran_ns = clocks.between(start_ns, start_ns + profile.duration_ns)
    total = profile.total
    tally.missing += not total and ran_ns[0] > _RAN_S * 1e9
    if ran_ns[0] < MIN_S * 1e9:
        return
    tally.errors.append(total / ran_ns[0] - 1)
    basis = sampling_basis(profile.values[:, 0], profile.values[:, -1])
    tally.samples.append(basis.samples)
    found = {cost.name: cost.total for cost in costs(profile).functions}
    for function, ns in zip(FUNCTIONS, ran_ns[1:], strict=True):
        low, high = basis.interval(found.get(function, 0) / total)
        tally.shares += 1
        tally.covered += low <= ns / ran_ns[0] <= high
        tally.widths.append(high - low)


class AgentRun:
    """A running agent with one budget. It has a folder of its spool apart from the host's folder, whose name its rules
    select.
    """

    def __init__(self, host: BusyHost, folder: Path, budget: float, arguments: argparse.Namespace) -> None:
        self.tally = Tally()
        self._spool = folder / f"spool-{budget:g}-{time.monotonic_ns()}"
        self._log, config = folder / f"{self._spool.name}-log", folder / f"{self._spool.name}-toml"
        config.write_text(_CONFIG.format(window=arguments.window, budget=budget, over=arguments.over, word=host.folder))
        command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--log", "json"]
        with self._log.open("wb") as out:
            self._agent = subprocess.Popen([*command, "--spool", str(self._spool)], stderr=out)
        self._since_ns = 0
        self._spent = 0.0, 0.0

    @property
    def has_window(self) -> bool:
        return '"event":"window"' in self._log.read_text()

    def begin_to_judge(self) -> None:
        self._since_ns = time.time_ns()
        self._spent = health.spent(self._agent.pid), time.monotonic()

    def add_cost(self) -> None:
        """Measure the agent's processor time since the last call, and add it to the tally."""
        spent_s, at = health.spent(self._agent.pid), time.monotonic()
        self.tally.cpu.append((spent_s - self._spent[0]) / (at - self._spent[1]))
        self._spent = spent_s, at

    def kill(self) -> None:
        self._agent.kill()
        self._agent.wait()

    def end(self, host: BusyHost) -> Tally:
        self._agent.terminate()
        self._agent.wait(60)
        lines = self._log.read_text().splitlines()
        for line in lines:
            if '"level":"error"' in line:
                print(line)
        steps = [line for line in lines if '"one_sampling_time_in"' in line]
        self.tally.steps = steps[-1] if steps else ""
        needed = [json.loads(line)["needed_cpu_percent"] for line in steps if "needed_cpu_percent" in line]
        self.tally.needed = needed[-1] if needed else 0.0
        judge(host, self._spool, self._since_ns, self.tally)
        return self.tally


def measure(
    host: BusyHost, folder: Path, budgets: Sequence[float], arguments: argparse.Namespace
) -> dict[float, Tally]:
    """Run an agent for each budget and record some windows with each, after a time in which it adapts its effort."""
    runs = {budget: AgentRun(host, folder, budget, arguments) for budget in budgets}
    try:
        deadline = time.monotonic() + _BEGINS_S
        while not all(run.has_window for run in runs.values()) and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(arguments.settle)
        for run in runs.values():
            run.begin_to_judge()
        for _ in range(arguments.windows + 1):
            time.sleep(arguments.window)
            for run in runs.values():
                run.add_cost()
        return {budget: run.end(host) for budget, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()


def verdict(budget: float, tally: Tally) -> str:
    """Return the goals that the agent misses with a budget, "met" if it meets all."""
    cost = 100 * float(np.mean(tally.cpu))
    missed = {
        "no window": not tally.errors,
        f"sums within {100 * CLOSE:.0f} %": any(abs(error) > CLOSE for error in tally.errors),
        f"shares in {100 * COVERED:.0f} %": tally.covered < COVERED * tally.shares,
        "false zeros": tally.missing > 0,
        "cost": cost > max(budget, tally.needed),
    }
    names = [name for name, is_missed in missed.items() if is_missed]
    needed = f" (stated minimum {tally.needed:.2f} %)" if cost > budget and tally.needed else ""
    return f"{'misses ' + ', '.join(names) if names else 'met'}{needed}"


def write_report(path: Path, head: str, rows: Sequence[str], found: Sequence[dict[str, object]]) -> None:
    """Write the results as a table in Markdown and the figures as JSON."""
    path.with_suffix(".md").write_text("\n".join([head, "", HEAD, *rows, ""]))
    text = json.dumps({"head": head, "rows": list(found)}, indent=1, default=float)
    path.with_suffix(".json").write_text(f"{text}\n")


def row(loops: int, budget: float, tally: Tally) -> str:
    errors = np.abs(tally.errors) if tally.errors else np.zeros(1)
    within = 100 * float((errors <= CLOSE).mean())
    covered = 100 * tally.covered / max(tally.shares, 1)
    cells = (
        f"{loops}",
        f"{budget:g} %",
        f"{len(tally.errors)}",
        f"{100 * float(np.median(errors)):.2f} %",
        f"{100 * float(errors.max()):.2f} %",
        f"{within:.0f} %",
        f"{float(np.median(tally.samples or [0])):.0f}",
        f"{100 * float(np.median(tally.widths or [0])):.0f} %",
        f"{tally.covered} of {tally.shares}, {covered:.1f} %",
        f"{tally.missing}",
        f"{100 * float(np.mean(tally.cpu)):.2f} %",
        verdict(budget, tally),
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| busy loops | budget | windows | sum: median error | largest | within 2 % | samples | width of intervals "
    "| shares in their interval | false zeros | own cost | goals |\n|" + "---|" * 12
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.busy_agent", description=__doc__)
    parser.add_argument("--loops", default="0,4,8", help="numbers of busy loops (%(default)s)")
    parser.add_argument("--budgets", default="0.2,1,5", help="percent of a processor (%(default)s)")
    parser.add_argument("--windows", type=int, default=10, help="that are judged, at each (%(default)s)")
    parser.add_argument("--window", type=int, default=60, metavar="S", help="(%(default)s)")
    parser.add_argument("--over", type=int, default=60, metavar="S", help="budget.over (%(default)s)")
    parser.add_argument("--settle", type=float, default=180, metavar="S", help="left out at the beginning")
    parser.add_argument("--steps", action="store_true", help="print the last step of each agent's budget, too")
    parser.add_argument("--together", action="store_true", help="run the agents of all budgets at the same time")
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="the matrix in 30 minutes; writes FILE.md, FILE.json"
    )
    arguments = parser.parse_args()
    if arguments.matrix is not None:
        arguments.together = True
        # each judgement of the budget contains one window, as with the agent's defaults
        arguments.window, arguments.windows, arguments.settle, arguments.over = 40, 5, 240.0, 40
    budgets = [float(each) for each in arguments.budgets.split(",")]
    groups = [budgets] if arguments.together else [[budget] for budget in budgets]
    rows, found = list[str](), list[dict[str, object]]()
    head = f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, "
    head += f"windows of {arguments.window} s{', the agents of all budgets at once' if arguments.together else ''}"
    print(f"{head}\n\n{HEAD}", flush=True)
    folder = partial(tempfile.TemporaryDirectory, prefix="pyprof-bench-")
    with folder() as of_host, folder() as of_agents:
        host = BusyHost(Path(of_host))
        try:
            for loops in map(int, arguments.loops.split(",")):
                for group in groups:
                    with busy_loops(loops):
                        tallies = measure(host, Path(of_agents), group, arguments)
                    for budget, tally in tallies.items():
                        rows.append(row(loops, budget, tally))
                        figures = {name: getattr(tally, name) for name in field_names(Tally)}
                        found.append({"loops": loops, "budget": budget, "goals": verdict(budget, tally), **figures})
                        print(rows[-1], flush=True)
                        if arguments.steps:
                            print(tally.steps)
                if arguments.matrix is not None:
                    write_report(arguments.matrix, head, rows, found)
        finally:
            host.end()


if __name__ == "__main__":
    main()
