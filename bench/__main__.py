"""`python -m bench`: measure pyprof and whichever peers are installed on the same targets in the same run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.tools import DUMPERS, PERF, PY_SPY, PYPROF, Recorder, cpu_seconds, found

TARGETS = Path(__file__).parent / "targets"
BIG_BINARIES = ("/usr/lib/llvm-*/lib/libLLVM*.so*", "/usr/lib/x86_64-linux-gnu/libLLVM*.so*")


@dataclass(frozen=True)
class Inside:
    """What the target saw: its work units, and gaps over 5 us in its own time, in us."""

    work: int
    gaps_us: list[float]


@dataclass(frozen=True)
class Row:
    tool: str
    slowdown: float
    extra_gaps: int
    gap_p50: float
    gap_p99: float
    samples: int | None
    cpu_us: float | None


def run_ladder(program: Path, seconds: float, threads: int, tool: list[str] | None) -> tuple[Inside, float]:
    """The target under a tool; (what it saw, the tool's CPU seconds)."""
    target = subprocess.Popen([str(program), f"{seconds:g}", str(threads)], stdout=subprocess.PIPE, text=True)
    cpu = 0.0
    if tool:
        cpu, _ = cpu_seconds([part.replace("@PID@", str(target.pid)) for part in tool], seconds + 60)
    out, _ = target.communicate(timeout=seconds + 60)
    seen = json.loads(out)
    return Inside(seen["work"], [g / 100 for g in seen["gaps_10ns"]]), cpu


def new_gaps(quiet: Inside, sampled: Inside) -> list[float]:
    """The gaps that the tool added: the longest ones beyond as many as the machine alone showed."""
    extra = max(len(sampled.gaps_us) - len(quiet.gaps_us), 0)
    return sorted(sampled.gaps_us)[-extra:] if extra else []


def record_table(console: Console, seconds: float, rounds: int, threads: int, rate: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "ladder"
        source = TARGETS / "ladder.c"
        flags = ["-O2", "-fomit-frame-pointer", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", str(program), str(source)], check=True)
        tools = [tool for tool in (*PYPROF, PERF, PY_SPY) if found(tool)]
        measured: dict[str, list[Row]] = {tool.name: [] for tool in tools}
        noise: list[float] = []
        for _ in range(rounds):
            quiet, _ = run_ladder(program, seconds, threads, None)
            again, _ = run_ladder(program, seconds, threads, None)
            noise.append(abs(1 - again.work / quiet.work))
            base = Inside((quiet.work + again.work) // 2, quiet.gaps_us)
            for tool in tools:
                measured[tool.name].append(measure(tool, program, seconds, threads, rate, base, Path(name)))
        table = Table(title=f"{threads} busy thread(s), {rate:g} Hz, {seconds:g} s, median of {rounds}")
        for heading in ("tool", "slowdown", "pauses added", "p50 us", "p99 us", "samples", "CPU us/sample"):
            table.add_column(heading, justify="left" if heading == "tool" else "right")
        for name_, rows in measured.items():
            table.add_row(name_, *summary(rows))
        console.print(table)
        console.print(f"noise of a slowdown figure in this run: {100 * max(noise):.1f} %\n")


def measure(
    tool: Recorder, program: Path, seconds: float, threads: int, rate: float, base: Inside, folder: Path
) -> Row:
    folder = Path(tempfile.mkdtemp(dir=folder))  # a tool that fails must not be credited with another's output
    command = [part.replace("424242", "@PID@") for part in tool.record(424242, rate, seconds - 1, folder)]
    inside, cpu = run_ladder(program, seconds, threads, command)
    post = tool.post(folder)
    if post:
        cpu += cpu_seconds(post, 600)[0]
    try:
        samples = tool.count(folder)
    except (OSError, ValueError, KeyError):
        samples = None
    gaps = new_gaps(base, inside)
    share = (seconds - 1) / seconds
    return Row(
        tool.name,
        (1 - inside.work / base.work) / share,
        len(gaps),
        statistics.median(gaps) if gaps else 0.0,
        gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
        samples,
        1e6 * cpu / samples if samples else None,
    )


def summary(rows: list[Row]) -> list[str]:
    def median(values: list[float | int | None]) -> str:
        known = [v for v in values if v is not None]
        return f"{statistics.median(known):.0f}" if known else "-"

    return [
        f"{100 * statistics.median(r.slowdown for r in rows):.1f} %",
        median([r.extra_gaps for r in rows]),
        median([r.gap_p50 for r in rows]),
        median([r.gap_p99 for r in rows]),
        median([r.samples for r in rows]),
        median([r.cpu_us for r in rows]),
    ]


def first_sample_table(console: Console, rounds: int) -> None:
    """Seconds from the start of a command to the printed stacks of a process that maps a 100 MB library."""
    import glob

    big = sorted(
        (p for pattern in BIG_BINARIES for p in glob.glob(pattern)), key=lambda p: os.stat(p).st_size, reverse=True
    )
    if not big:
        console.print("no 100 MB binary here (apt-get install llvm): first sample not measured\n")
        return
    code = f"import ctypes, time; ctypes.CDLL({big[0]!r}); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as target:
        assert target.stdout
        target.stdout.readline()
        table = Table(title=f"one dump of a process that maps {os.stat(big[0]).st_size >> 20} MB {big[0]}")
        for heading in ("tool", "seconds", "CPU seconds"):
            table.add_column(heading, justify="left" if heading == "tool" else "right")
        for name, command in DUMPERS.items():
            argv = command(target.pid)
            import shutil

            if argv[0] != sys.executable and not shutil.which(argv[0]):
                continue
            runs = [cpu_seconds(argv, 120) for _ in range(rounds)]
            cpu, elapsed = (statistics.median(column) for column in zip(*runs, strict=True))
            table.add_row(name, f"{elapsed:.2f}", f"{cpu:.2f}")
        target.kill()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="100,1000")
    parser.add_argument("--threads", default="1,2")
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(
        f"{time.strftime('%Y-%m-%d')} {platform.platform()} {os.cpu_count()} CPUs, {platform.python_version()}\n"
    )
    for threads in arguments.threads.split(","):
        for rate in arguments.rates.split(","):
            record_table(console, arguments.seconds, arguments.rounds, int(threads), float(rate))
    first_sample_table(console, arguments.rounds)


if __name__ == "__main__":
    main()
