"""`python -m bench`: measure pyprof and whichever peers are installed on the same targets in the same run."""

from __future__ import annotations

import argparse
import glob
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.tables import table
from bench.targets import TARGETS
from bench.tools import DUMPERS, run

BIG_BINARIES = ("/usr/lib/llvm-*/lib/libLLVM*.so*", "/usr/lib/x86_64-linux-gnu/libLLVM*.so*")


def dump_table(console: Console, title: str, pid: int, rounds: int) -> None:
    """Seconds from the start of a command to the printed stacks."""
    found = Table(title=title)
    for heading in ("tool", "seconds", "CPU seconds", "MB memory"):
        found.add_column(heading, justify="left" if heading == "tool" else "right")
    for dumper in DUMPERS:
        if dumper.possible:
            runs = [run(dumper.command(pid), 120) for _ in range(rounds)]
            if not all(dumper.proof in cost.output for cost in runs):
                found.add_row(dumper.name, "failed")
                continue
            elapsed, cpu, memory = (
                statistics.median(column)
                for column in zip(*((c.elapsed_s, c.cpu_s, c.memory_kb / 1e3) for c in runs), strict=True)
            )
            found.add_row(dumper.name, f"{elapsed:.2f}", f"{cpu:.2f}", f"{memory:.0f}")
    console.print(found)


def dumps(console: Console, rounds: int) -> None:
    big = max((p for pattern in BIG_BINARIES for p in glob.glob(pattern)), key=os.path.getsize, default="")
    load = f"ctypes.CDLL({big!r})" if big else "None"
    threads = "[threading.Thread(target=time.sleep, args=(600,), daemon=True).start() for _ in range(9)]"
    for title, code in (
        (f"one look at a process that maps {os.path.getsize(big) >> 20} MB {Path(big).name}" if big else "", load),
        ("one look at a process of 10 threads", threads),
    ):
        if not title:
            console.print("no 100 MB binary here (apt-get install llvm): not measured\n")
            continue
        program = f"import ctypes, threading, time; {code}; print(flush=True); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as target:
            assert target.stdout
            target.stdout.readline()
            dump_table(console, title, target.pid, rounds)
            target.kill()


def start_up(console: Console, rounds: int) -> None:
    """--help, and how large an installation is."""
    help_s = statistics.median(run([sys.executable, "-m", "pyprof", "--help"], 60).elapsed_s for _ in range(2 * rounds))
    console.print(f"pyprof --help: {help_s:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "."]
        if run(command, 600).worked:
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            console.print(f"pip install with dependencies: {size / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=11, help="of each run of a target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="100,1000")
    parser.add_argument("--targets", default=",".join(target.name for target in TARGETS))
    arguments = parser.parse_args()
    console = Console(width=140)
    console.print(
        f"{time.strftime('%Y-%m-%d')} {platform.platform()} {os.cpu_count()} CPUs, {platform.python_version()}\n"
    )
    wanted = arguments.targets.split(",")
    for target in TARGETS:
        if target.name not in wanted:
            continue
        if not target.possible:
            console.print(f"{target.name}: not measured, {target.needs} is not installed\n")
            continue
        for rate in arguments.rates.split(","):
            table(console, target, arguments.seconds, arguments.rounds, float(rate))
    dumps(console, arguments.rounds)
    start_up(console, arguments.rounds)


if __name__ == "__main__":
    main()
