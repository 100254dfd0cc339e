"""Measurement of one target with each profiler in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers import RECORDERS
from bench.targets import Target
from bench.tools import Cost, Got, Recorder, found, run

HEADINGS = ("slowdown", "p50 us", "p99 us", "of wanted", "whole", "CPU us/sample", "MB disk", "MB memory", "beyond s")
_NOTHING = Cost(0.0, 0.0, 0, "", True)
_MARGIN_S = 1.5
"""Time in seconds by which the target runs longer than the recording."""


@dataclass(frozen=True)
class Inside:
    """Observations by the target: units of work, and gaps of more than 5 us in its own time. The list is empty if the
    target measures no gaps.
    """

    work: int
    gaps_us: list[float]


@dataclass(frozen=True)
class Row:
    """The figures of one run of a profiler. A value that is not known is None.

    Attributes:
        slowdown: Loss of work as a fraction.
        added_us: Gaps in the target's running time that the profiler added, in microseconds.
        samples: Number of samples.
        wanted: Number of samples that were requested.
        whole: Share of samples with complete stacks.
        cpu_s: CPU time of all processes of the profiler in seconds.
        disk_mb: Size of the written files in MB.
        memory_mb: Maximum resident memory in MB.
        beyond_s: Elapsed time in seconds beyond the length of the recording.
    """

    slowdown: float | None
    added_us: list[float] | None
    samples: int
    wanted: float
    whole: float | None
    cpu_s: float
    disk_mb: float
    memory_mb: float
    beyond_s: float

    @property
    def cpu_us(self) -> float:
        """CPU time of the profiler per sample, in microseconds."""
        return 1e6 * self.cpu_s / self.samples


@dataclass(frozen=True)
class Result:
    """Medians of the rounds of one profiler on one target. p50_us and p99_us are percentiles of the gaps in the
    target's time that the profiler added.
    """

    slowdown: float | None
    p50_us: float | None
    p99_us: float | None
    of_wanted: float | None
    whole: float | None
    cpu_us: float | None
    disk_mb: float | None
    memory_mb: float | None
    beyond_s: float | None

    @classmethod
    def of(cls, rows: list[Row]) -> Result:
        def median(column: Callable[[Row], float | None]) -> float | None:
            known = [value for row in rows if (value := column(row)) is not None]
            return statistics.median(known) if known else None

        return cls(
            median(lambda row: row.slowdown),
            median(lambda row: quantile(row.added_us, 0.50)),
            median(lambda row: quantile(row.added_us, 0.99)),
            median(lambda row: row.samples / row.wanted),
            median(lambda row: row.whole),
            median(lambda row: row.cpu_us),
            median(lambda row: row.disk_mb),
            median(lambda row: row.memory_mb),
            median(lambda row: row.beyond_s),
        )

    def cells(self) -> list[str]:
        shown = (
            (self.slowdown, 100, "{:.1f} %"),
            (self.p50_us, 1, "{:.0f}"),
            (self.p99_us, 1, "{:.0f}"),
            (self.of_wanted, 100, "{:.0f} %"),
            (self.whole, 100, "{:.2f} %"),
            (self.cpu_us, 1, "{:.0f}"),
            (self.disk_mb, 1, "{:.1f}"),
            (self.memory_mb, 1, "{:.0f}"),
            (self.beyond_s, 1, "{:.1f}"),
        )
        return ["-" if value is None else text.format(scale * value) for value, scale, text in shown]


Results = dict[tuple[str, float, str], Result]
"""Results by (target, rate, profiler)."""


def target_alone(command: list[str], seconds: float) -> Inside:
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + 60, check=True).stdout
    return seen(out)


def seen(out: str) -> Inside:
    inside = json.loads(out)
    return Inside(inside["work"], [gap / 100 for gap in inside.get("gaps_10ns", ())])


def added(quiet: Inside, sampled: Inside) -> list[float]:
    """Return the gaps in the target's time that a profiler added: as many of the longest gaps as there are more gaps
    with the profiler than without.
    """
    extra = max(len(sampled.gaps_us) - len(quiet.gaps_us), 0)
    return sorted(sampled.gaps_us)[-extra:] if extra else []


def measure(
    tool: Recorder, target: Target, command: list[str], seconds: float, rate: float, alone: Inside | None, folder: Path
) -> Row | None:
    """Run a profiler on a new process of the target for some seconds of recording. Return None if it failed."""
    own = Path(tempfile.mkdtemp(dir=folder))  # a tool that fails must not be credited with another's output
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        time.sleep(target.settle_s)
        cost = run(tool.record(process.pid, rate, seconds, own), seconds + 120)
        if not target.counts:
            process.kill()
        out, _ = process.communicate(timeout=seconds + 60)
    post = run(tool.post(own), 900) if tool.post else _NOTHING
    try:
        got: Got = tool.got(own)
    except (OSError, ValueError, KeyError):
        return None
    if not got.samples:
        return None
    inside = seen(out) if target.counts else None
    slowdown = (1 - inside.work / alone.work) * (seconds + _MARGIN_S) / seconds if inside and alone else None
    return Row(
        slowdown=slowdown,
        added_us=added(alone, inside) if inside and alone and alone.gaps_us else None,
        samples=got.samples,
        wanted=rate * seconds * min(target.busy, os.cpu_count() or 1),
        whole=got.whole / got.samples if got.whole is not None else None,
        cpu_s=cost.cpu_s + post.cpu_s,
        disk_mb=sum(file.stat().st_size for file in own.iterdir()) / 1e6,
        memory_mb=max(cost.memory_kb, post.memory_kb) / 1e3,
        beyond_s=max(cost.elapsed_s - seconds, 0) + post.elapsed_s,
    )


def table(
    console: Console, target: Target, seconds: float, rounds: int, rate: float, results: Results, only: str = ""
) -> None:
    """Measure all profilers, or those with `only` in their name, on one target. Print and store the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = target.build(folder)(seconds + _MARGIN_S)
        tools = [tool for tool in RECORDERS if found(tool, target.name) and only in tool.name]
        rows: dict[str, list[Row]] = {tool.name: [] for tool in tools}
        noise: list[float] = []
        for _ in range(rounds):
            alone = base(target, command, seconds, noise)
            for tool in tools:
                row = measure(tool, target, command, seconds, rate, alone, folder)
                if row is not None:
                    rows[tool.name].append(row)
    shown = Table(title=f"{target.name}: {target.what}; {rate:g} Hz, {seconds:g} s, median of {rounds}")
    shown.add_column("tool")
    for heading in HEADINGS:
        shown.add_column(heading, justify="right")
    for tool_name, measured in rows.items():
        if measured:
            results[target.name, rate, tool_name] = Result.of(measured)
        shown.add_row(tool_name, *(results[target.name, rate, tool_name].cells() if measured else ["failed"]))
    console.print(shown)
    console.print(f"noise of a slowdown figure here: {100 * max(noise):.1f} %\n" if noise else "")


def base(target: Target, command: list[str], seconds: float, noise: list[float]) -> Inside | None:
    """Run the target twice without a profiler, and append the relative difference of its work to `noise`."""
    if not target.counts:
        return None
    quiet, again = target_alone(command, seconds), target_alone(command, seconds)
    noise.append(abs(1 - again.work / quiet.work))
    return Inside((quiet.work + again.work) // 2, quiet.gaps_us)


def quantile(values: Iterable[float] | None, share: float) -> float | None:
    known = sorted(values or ())
    return known[int(share * (len(known) - 1))] if known else None
