"""`python -m bench`: measure pyprof and the other installed profilers on the same targets in the same run."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.dumps import dumps, first_sample, help_seconds
from bench.goals import DWARF, PERF, PTRACE, SPY, Measured, print_goals
from bench.marginal import marginal
from bench.memory import churn, memory
from bench.pauses import python_pause
from bench.tables import table
from bench.targets import BY_NAME, TARGETS
from bench.tools import run
from bench.unwinding import unwinding

FAST = {"ladder": {1000.0: 10.0, 10_000.0: 5.0}, "python": {1000.0: 6.0}}
"""Targets that are also measured at higher rates, with {rate in Hz: length of the recording in seconds}."""


def install(console: Console, folder: str) -> float:
    """Install pyprof with pip into a folder. The benchmark measures an installed pyprof, whose modules pip has
    compiled.

    Returns:
        Size of the folder in MB with all dependencies, 0 if pip failed.
    """
    if not run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "."], 600).worked:
        console.print("pip could not install pyprof: what is measured is the one that python finds here")
        return 0.0
    os.environ["PYTHONPATH"] = folder
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6


def measure(console: Console, arguments: argparse.Namespace, measured: Measured) -> None:
    rates = [float(rate) for rate in arguments.rates.split(",")] if arguments.rates else None
    for target in TARGETS:
        if target.name not in arguments.targets.split(","):
            continue
        if not target.possible:
            console.print(f"{target.name}: not measured, it needs {target.needs} (bench/README.md)\n")
            continue
        fast = FAST.get(target.name, {})
        for rate in rates or (100.0, *fast):
            seconds = arguments.seconds if rates else fast.get(rate, arguments.seconds)
            only = "perf" if rate > 1000 else ""
            table(console, target, seconds, arguments.rounds, rate, measured.results, only)


def the_rest(console: Console, arguments: argparse.Namespace, measured: Measured) -> None:
    lengths = 10.0, arguments.long_seconds
    for target, rate, tools in (("ladder", 1000.0, (PERF, PTRACE, DWARF)), ("python", 100.0, (PTRACE, SPY))):
        for tool, found in marginal(console, BY_NAME[target], rate, tools, lengths).items():
            measured.marginal[target, tool] = found
    names = ("ladder", "tower", "node", "rustc")
    measured.frames_s = unwinding(console, [BY_NAME[name] for name in names if BY_NAME[name].possible])
    measured.others["help"] = help_seconds(console, arguments.rounds)
    measured.others["dump"] = dumps(console, arguments.rounds)
    for name, value in (("python pause", python_pause(console)), ("first sample", first_sample(console))):
        if value is not None:
            measured.others[name] = value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="of each recording at 100 Hz (4)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rates", help="instead of 100 Hz, and 1,000 and 10,000 where that is of interest")
    parser.add_argument("--targets", default=",".join(target.name for target in TARGETS))
    parser.add_argument("--long-seconds", type=float, default=60, help="of the long recordings (60)")
    parser.add_argument("--tables", action="store_true", help="only the tables of --targets")
    parser.add_argument("--long", type=float, metavar="MINUTES", help="only the memory of recordings of that length")
    arguments = parser.parse_args()
    console = Console(width=140)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    console.print(
        f"{time.strftime('%Y-%m-%d')} {platform.platform()} {os.cpu_count()} CPUs, {platform.python_version()}\n"
    )
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        size = install(console, folder)
        if size:
            measured.others["installed"] = size
        if arguments.long:
            measured.others["memory"] = memory(console, arguments.long)
            churn(console, arguments.long)
        else:
            measure(console, arguments, measured)
            if not arguments.tables:
                the_rest(console, arguments, measured)
    print_goals(console, measured)


if __name__ == "__main__":
    main()
