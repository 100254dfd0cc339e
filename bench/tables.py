"""One target under each tool in turn, and what that cost whom."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.targets import Target
from bench.tools import RECORDERS, Cost, Got, Recorder, found, run

HEADINGS = ("slowdown", "p50 us", "p99 us", "of wanted", "whole", "CPU us/sample", "MB disk", "MB memory", "write s")
_NOTHING = Cost(0.0, 0.0, 0, "", True)


@dataclass(frozen=True)
class Inside:
    """What the target saw: its work units, and gaps over 5 us in its own time, in us; none where it does not look."""

    work: int
    gaps_us: list[float]


@dataclass(frozen=True)
class Row:
    """One run of a tool. None: not known. added: the gaps that the target has seen beyond its own."""

    slowdown: float
    added_us: list[float] | None
    samples: int
    wanted: float
    whole: float | None
    cpu_us: float
    disk_mb: float
    memory_mb: float
    write_s: float


def target_alone(command: list[str], seconds: float) -> Inside:
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + 60, check=True).stdout
    return _seen(out)


def _seen(out: str) -> Inside:
    seen = json.loads(out)
    return Inside(seen["work"], [gap / 100 for gap in seen.get("gaps_10ns", ())])


def added(quiet: Inside, sampled: Inside) -> list[float]:
    """The gaps that the tool added: the longest ones beyond as many as the machine alone showed."""
    extra = max(len(sampled.gaps_us) - len(quiet.gaps_us), 0)
    return sorted(sampled.gaps_us)[-extra:] if extra else []


def measure(
    tool: Recorder, command: list[str], seconds: float, rate: float, busy: float, base: Inside, folder: Path
) -> Row | None:
    """None if the tool failed. busy: threads that run at once."""
    own = Path(tempfile.mkdtemp(dir=folder))  # a tool that fails must not be credited with another's output
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as target:
        cost = run(tool.record(target.pid, rate, seconds - 1, own), seconds + 120)
        out, _ = target.communicate(timeout=seconds + 60)
    post = run(tool.post(own), 900) if tool.post else _NOTHING
    try:
        got: Got = tool.got(own)
    except (OSError, ValueError, KeyError):
        return None
    if not got.samples:
        return None
    inside = _seen(out)
    share = (seconds - 1) / seconds
    return Row(
        slowdown=(1 - inside.work / base.work) / share,
        added_us=added(base, inside) if base.gaps_us else None,
        samples=got.samples,
        wanted=rate * (seconds - 1) * busy,
        whole=got.whole / got.samples if got.whole is not None else None,
        cpu_us=1e6 * (cost.cpu_s + post.cpu_s) / got.samples,
        disk_mb=sum(file.stat().st_size for file in own.iterdir()) / 1e6,
        memory_mb=max(cost.memory_kb, post.memory_kb) / 1e3,
        write_s=max(cost.elapsed_s - (seconds - 1), 0) + post.elapsed_s,
    )


def table(console: Console, target: Target, seconds: float, rounds: int, rate: float) -> None:
    busy = min(target.busy, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = target.build(folder)(seconds)
        tools = [tool for tool in RECORDERS if found(tool, target.name)]
        rows: dict[str, list[Row]] = {tool.name: [] for tool in tools}
        noise: list[float] = []
        for _ in range(rounds):
            quiet, again = target_alone(command, seconds), target_alone(command, seconds)
            noise.append(abs(1 - again.work / quiet.work))
            base = Inside((quiet.work + again.work) // 2, quiet.gaps_us)
            for tool in tools:
                row = measure(tool, command, seconds, rate, busy, base, folder)
                if row is not None:
                    rows[tool.name].append(row)
    found_ = Table(title=f"{target.name}: {target.what}; {rate:g} Hz, {seconds - 1:g} s, median of {rounds}")
    found_.add_column("tool")
    for heading in HEADINGS:
        found_.add_column(heading, justify="right")
    for tool_name, measured in rows.items():
        found_.add_row(tool_name, *(cells(measured) if measured else ["failed"]))
    console.print(found_)
    console.print(f"noise of a slowdown figure here: {100 * max(noise):.1f} %\n")


def cells(rows: list[Row]) -> list[str]:
    def median(column: Callable[[Row], float | None], text: str, scale: float = 1.0) -> str:
        known = [value for row in rows if (value := column(row)) is not None]
        return text.format(scale * statistics.median(known)) if known else "-"

    return [
        median(lambda row: row.slowdown, "{:.1f} %", 100),
        median(lambda row: quantile(row.added_us, 0.50), "{:.0f}"),
        median(lambda row: quantile(row.added_us, 0.99), "{:.0f}"),
        median(lambda row: row.samples / row.wanted, "{:.0f} %", 100),
        median(lambda row: row.whole, "{:.2f} %", 100),
        median(lambda row: row.cpu_us, "{:.0f}"),
        median(lambda row: row.disk_mb, "{:.1f}"),
        median(lambda row: row.memory_mb, "{:.0f}"),
        median(lambda row: row.write_s, "{:.1f}"),
    ]


def quantile(values: Iterable[float] | None, share: float) -> float | None:
    found_ = sorted(values or ())
    return found_[int(share * (len(found_) - 1))] if found_ else None
