"""`python -m bench.costs`: measure the cost of pyprof and of other profilers, in random order, in several rounds.

Each recording has two lengths, so that fixed and marginal cost can be separated. In each round each target also runs
without a profiler. The results are saved as JSON: `bench/compare BEFORE.json AFTER.json` shows what changed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.moments import moments
from bench.peers import RECORDERS
from bench.results import Case, Run, machine, median, of, save, split
from bench.tables import quantile, seen
from bench.targets import BY_NAME, Target
from bench.tools import Got, Recorder, found, run

NOBODY = Recorder(
    "no profiler", lambda pid, rate, seconds, folder: ["sleep", f"{seconds:g}"], None, lambda folder: Got(0, None)
)
PERF, STOPS, BPF = (f"pyprof --collector {name}" for name in ("perf", "ptrace", "bpf"))
_COMMAND, _DUMP, _FIRST = "record of sleep 0.05", "dump", "first sample"


@dataclass(frozen=True)
class Plan:
    """The measurements on one target: rates in Hz, lengths in seconds, and names of the profilers (`tools`), empty for
    all.
    """

    target: str
    rates: tuple[float, ...]
    seconds: tuple[float, ...]
    tools: tuple[str, ...] = ()


QUICK = (
    Plan("ladder", (100,), (1, 3), (PERF, STOPS, "samply")),
    Plan("ladder", (1000,), (1, 2), (STOPS,)),
    Plan("python", (100,), (1, 2), (STOPS, "py-spy")),
    Plan("busy10", (100,), (2,), (STOPS,)),
    Plan("threads", (100,), (2,), (PERF, STOPS)),
)
FULL = (
    Plan("ladder", (100, 1000), (2, 10)),
    Plan("python", (20, 100, 1000), (2, 20), (PERF, STOPS, "py-spy", "py-spy --native")),
    Plan("frames", (100, 1000), (12, 42), (BPF, "py-spy", "py-spy --native")),
    Plan("busy10", (100,), (2, 8)),
    Plan("threads", (100,), (2, 8)),
)
_MARGIN_S = 1.0
_CROWDED_S = 3.0


def margin(target: Target) -> float:
    """Return by how many seconds a target must run longer than its recording. It is longer for a target that uses all
    processors, which delays the profiler.
    """
    return _MARGIN_S if target.busy < (os.cpu_count() or 1) else _CROWDED_S


def cases(plans: tuple[Plan, ...], alone: tuple[str, ...]) -> Iterator[Case]:
    """Yield the cases to measure: each installed profiler on each target of its plans. `alone` are targets that also
    run without a profiler.
    """
    for target in alone:
        longest = max(plan.seconds[-1] for plan in plans if plan.target == target)
        yield Case(target, 0, NOBODY.name, longest)
    for name in (_COMMAND, _DUMP, _FIRST):
        yield Case("ladder", 0, name, 0)
    for plan in plans:
        for tool in RECORDERS:
            if found(tool, plan.target) and (not plan.tools or tool.name in plan.tools):
                for rate in plan.rates:
                    yield from (Case(plan.target, rate, tool.name, seconds) for seconds in plan.seconds)


def measure(case: Case, command: Callable[[float], list[str]], folder: Path) -> Run | None:
    """Run a case, and return None if the profiler failed. The function `command` returns the target's command for a
    number of seconds.
    """
    target = BY_NAME[case.target]
    tool = next((tool for tool in (NOBODY, *RECORDERS) if tool.name == case.tool), None)
    seconds = case.seconds + margin(target) if tool else 10
    with subprocess.Popen(command(seconds), stdout=subprocess.PIPE, text=True) as process:
        time.sleep(target.settle_s)
        result = _recording(case, tool, process.pid, folder) if tool else _command(case, process.pid, folder)
        if not tool:
            process.kill()
        out, _ = process.communicate(timeout=seconds + 60)
    if not tool or result is None:
        return result
    inside = seen(out)
    quantiles = {f"p{int(100 * share)}_us": quantile(inside.gaps_us, share) for share in (0.9, 0.99)}
    return Run(**vars(result) | quantiles | {"work": inside.work})


def _command(case: Case, pid: int, folder: Path) -> Run | None:
    pyprof = [sys.executable, "-m", "pyprof"]
    if case.tool == _FIRST:
        got = moments(folder, pid, 100, 0.5, "--collector", "perf")
        return Run(case, got.cpu_s, got.samples, got.written_s, 0, got.first_s) if got else None
    if case.tool == _DUMP:
        cost = run([*pyprof, "dump", "-p", str(pid)], 60)
    else:
        cost = run([*pyprof, "record", "-q", "-o", str(folder / "out.html"), "--", "sleep", "0.05"], 60)
    return Run(case, cost.cpu_s, 0, cost.elapsed_s, cost.memory_kb / 1e3) if cost.worked else None


def _recording(case: Case, tool: Recorder, pid: int, folder: Path) -> Run | None:
    cost = run(tool.record(pid, case.rate, case.seconds, folder), case.seconds + 120)
    post = run(tool.post(folder), 900) if tool.post else None
    try:
        got = tool.got(folder)
    except (OSError, ValueError, KeyError):
        return None
    beyond = max(cost.elapsed_s - case.seconds, 0) + (post.elapsed_s if post else 0)
    memory = max(cost.memory_kb, post.memory_kb if post else 0) / 1e3
    return Run(case, cost.cpu_s + (post.cpu_s if post else 0), got.samples, beyond, memory)


def show(console: Console, runs: list[Run], failed: set[Case]) -> None:
    kinds = list(dict.fromkeys((run.case.target, run.case.rate, run.case.tool) for run in runs))
    lengths = {kind: max(run.case.seconds for run in runs if _kind(run) == kind) for kind in kinds}
    shown = Table(title="medians of all rounds, of the longest recording of each tool")
    headings = (
        "Hz",
        "s",
        "samples",
        "CPU s",
        "from to",
        "fixed s",
        "us a sample",
        "slowdown",
        "p90 us",
        "p99 us",
        "MB",
        "beyond s",
    )
    for heading in ("target", "tool", *headings):
        shown.add_column(heading, justify="left" if heading in ("target", "tool") else "right")
    for target, rate, tool in sorted(kinds, key=lambda kind: (kind[0], kind[1], kind[2])):
        longest = of(runs, Case(target, rate, tool, lengths[target, rate, tool]))
        shown.add_row(target, tool, *_cells(runs, longest, target, rate, tool))
    console.print(shown)
    for case in sorted(failed, key=str):
        console.print(f"failed: {case}")
    if first := median([run for run in runs if run.case.tool == _FIRST], lambda run: run.first_s):
        console.print(f"first sample: {first:.2f} s after the start of the command")


def _kind(run: Run) -> tuple[str, float, str]:
    return run.case.target, run.case.rate, run.case.tool


def _cells(runs: list[Run], longest: list[Run], target: str, rate: float, tool: str) -> list[str]:
    cpu = sorted(run.cpu_s for run in longest)
    parts = split(runs, target, rate, tool)
    values = (
        ("{:g}", rate),
        ("{:g}", longest[0].case.seconds),
        ("{:.0f}", median(longest, lambda run: run.samples)),
        ("{:.2f}", median(longest, lambda run: run.cpu_s)),
        (f"{cpu[0]:.2f} {cpu[-1]:.2f}{{:.0s}}", ""),
        ("{:.2f}", parts and parts[0]),
        ("{:.0f}", parts and parts[1]),
        ("{:.1f} %", slowdown(runs, longest)),
        ("{:.0f}", median(longest, lambda run: run.p90_us)),
        ("{:.0f}", median(longest, lambda run: run.p99_us)),
        ("{:.0f}", median(longest, lambda run: run.memory_mb)),
        ("{:.2f}", median(longest, lambda run: run.beyond_s)),
    )
    return ["-" if value is None else text.format(value) for text, value in values]


def slowdown(runs: list[Run], longest: list[Run]) -> float | None:
    """Return the loss of the target's work in percent, compared with a run without a profiler of the same length. None
    if one of them is missing.
    """
    case = longest[0].case
    alone = median(of(runs, Case(case.target, 0, NOBODY.name, case.seconds)), lambda run: run.work)
    sampled = median(longest, lambda run: run.work)
    if alone is None or sampled is None or case.tool == NOBODY.name:
        return None
    return 100 * (1 - sampled / alone) * (case.seconds + margin(BY_NAME[case.target])) / case.seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.costs", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the few cases that a change of pyprof is judged by, under 3 minutes"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with this in the name of the target or of the tool")
    parser.add_argument("-o", dest="out", type=Path, default=Path("costs.json"), metavar="FILE")
    arguments = parser.parse_args()
    console = Console(width=170)
    if sys.flags.dont_write_bytecode:
        parser.error("bytecode is not cached (PYTHONDONTWRITEBYTECODE): each command would compile what it imports")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    chosen = (QUICK, ("ladder",)) if arguments.quick else (FULL, tuple(dict.fromkeys(plan.target for plan in FULL)))
    planned = [case for case in cases(*chosen) if arguments.only in f"{case.target} {case.tool}"]
    with tempfile.TemporaryDirectory() as folder:
        runs, failed = rounds(console, planned, arguments.rounds, Path(folder), arguments.out)
    show(console, runs, failed)


def rounds(console: Console, planned: list[Case], count: int, folder: Path, out: Path) -> tuple[list[Run], set[Case]]:
    """Measure all cases in several rounds, and save the results after each round.

    Returns:
        The results, and the cases that failed at least once.
    """
    commands = {name: BY_NAME[name].build(folder) for name in dict.fromkeys(case.target for case in planned)}
    started = machine()
    runs: list[Run] = []
    failed: set[Case] = set()
    for nth in range(count):
        for case in random.sample(planned, len(planned)):
            with tempfile.TemporaryDirectory() as own:
                result = measure(case, commands[case.target], Path(own))
            if result:
                runs.append(result)
            else:
                failed.add(case)
        save(runs, started, out)
        console.print(f"round {nth + 1} of {count} done", highlight=False)
    return runs, failed


if __name__ == "__main__":
    main()
