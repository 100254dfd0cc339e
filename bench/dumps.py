"""Measurements of stack dumps compared with other tools, of --help, and of the time to the first sample."""

from __future__ import annotations

import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.moments import alone, moments
from bench.peers import DUMPERS
from bench.targets import BY_NAME
from bench.tools import run

BIG_BINARIES = ("/usr/lib/llvm-*/lib/libLLVM*.so*", "/usr/lib/x86_64-linux-gnu/libLLVM*.so*")


def dump_table(console: Console, title: str, pid: int, rounds: int) -> float:
    """Print how long each tool takes from its start to the printed stacks of a process. Return the time of pyprof in
    seconds.
    """
    found = Table(title=title)
    ours = 0.0
    for heading in ("tool", "seconds", "CPU seconds", "MB memory"):
        found.add_column(heading, justify="left" if heading == "tool" else "right")
    for dumper in DUMPERS:
        if dumper.possible:
            runs = [run(dumper.command(pid), 120) for _ in range(rounds)]
            if not all(cost.worked and dumper.proof in cost.output for cost in runs):
                found.add_row(dumper.name, "failed")
                continue
            elapsed, cpu, memory = (
                statistics.median(column)
                for column in zip(*((c.elapsed_s, c.cpu_s, c.memory_kb / 1e3) for c in runs), strict=True)
            )
            ours = elapsed if dumper is DUMPERS[0] else ours
            found.add_row(dumper.name, f"{elapsed:.3f}", f"{cpu:.3f}", f"{memory:.0f}")
    console.print(found)
    return ours


def dumps(console: Console, rounds: int) -> float:
    """Measure dumps of several processes. Return the time in seconds that pyprof takes for a process of 10 threads."""
    big = max((p for pattern in BIG_BINARIES for p in glob.glob(pattern)), key=os.path.getsize, default="")
    load = f"ctypes.CDLL({big!r})" if big else "None"
    threads = "[threading.Thread(target=time.sleep, args=(600,), daemon=True).start() for _ in range(9)]"
    seconds = 0.0
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
            seconds = dump_table(console, title, target.pid, max(rounds, 3))
            target.kill()
    return seconds


def first_sample(console: Console) -> float | None:
    """Return the time in seconds from the start of the command to the first unwound samples of a compiler of 100 MB.
    None if there is no compiler.
    """
    target = BY_NAME["clang"]
    if not target.possible:
        console.print("no clang here: the first sample of a big program was not measured\n")
        return None
    with tempfile.TemporaryDirectory() as folder, alone(target.build(Path(folder))(60)) as process:
        time.sleep(target.settle_s)
        found = [moments(Path(folder), process.pid, 1000, 2, "--collector", name) for name in ("perf", "ptrace") * 2]
        process.kill()
    first = [each.first_s for each in found if each]
    console.print(
        f"first sample of clang: {', '.join(f'{each:.2f}' for each in first)} s (perf_events, stops, again)\n"
    )
    return statistics.median(first) if first else None


def help_seconds(console: Console, rounds: int) -> float:
    seconds = statistics.median(
        run([sys.executable, "-m", "pyprof", "--help"], 60).elapsed_s for _ in range(2 * rounds + 1)
    )
    console.print(f"pyprof --help: {seconds:.2f} s")
    return seconds
