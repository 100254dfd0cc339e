"""The marginal cost of a sample: a long recording is compared with a short one of the same target."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.moments import alone, moments
from bench.peers import RECORDERS
from bench.targets import Target
from bench.tools import found, run


@dataclass(frozen=True)
class Marginal:
    """Costs of samples of one profiler on one target.

    Attributes:
        whole_us: CPU time of the long recording per sample, in microseconds.
        marginal_us: CPU time of each additional sample, in microseconds.
        written_s: Time in seconds until the long recording was written.
    """

    whole_us: float
    marginal_us: float
    written_s: float


Spent = tuple[float, int, float]
"""CPU seconds, number of samples, and seconds until the file was written, of one recording."""


def _peer(name: str, process: subprocess.Popen[str], rate: float, seconds: float, folder: Path) -> Spent | None:
    tool = next(tool for tool in RECORDERS if tool.name == name)
    cost = run(tool.record(process.pid, rate, seconds, folder), seconds + 120)
    post = run(tool.post(folder), 900) if tool.post else None
    try:
        samples = tool.got(folder).samples
    except (OSError, ValueError, KeyError):
        return None
    more_cpu, more_s = (post.cpu_s, post.elapsed_s) if post else (0.0, 0.0)
    return cost.cpu_s + more_cpu, samples, max(cost.elapsed_s - seconds, 0) + more_s


def _ours(name: str, process: subprocess.Popen[str], rate: float, seconds: float, folder: Path) -> Spent | None:
    found_ = moments(folder, process.pid, rate, seconds, "--collector", name.split()[-1])
    return (found_.cpu_s, found_.samples, found_.written_s) if found_ else None


def _run(name: str, target: Target, rate: float, seconds: float) -> Spent | None:
    measure = _ours if name.startswith("pyprof") else _peer
    with tempfile.TemporaryDirectory() as folder:
        with alone(target.build(Path(folder))(seconds + 5)) as process:
            time.sleep(target.settle_s)
            spent = measure(name, process, rate, seconds, Path(folder))
            process.kill()
        return spent


def marginal(
    console: Console, target: Target, rate: float, tools: tuple[str, ...], seconds: tuple[float, float]
) -> dict[str, Marginal]:
    """Measure the costs of samples of each tool. `seconds` are the lengths of the short and of the long recording."""
    short, long = seconds
    shown = Table(title=f"{target.name} at {rate:g} Hz: {long:g} s, and what {long:g} s cost more than {short:g} s")
    for heading in ("tool", "CPU us/sample", "each more us", "written s"):
        shown.add_column(heading, justify="left" if heading == "tool" else "right")
    results = {}
    for name in tools:
        if not any(tool.name == name and found(tool, target.name) for tool in RECORDERS):
            continue
        few, many = (_run(name, target, rate, length) for length in seconds)
        if few is None or many is None or many[1] <= few[1]:
            shown.add_row(name, "failed")
            continue
        each = 1e6 * (many[0] - few[0]) / (many[1] - few[1])
        results[name] = Marginal(1e6 * many[0] / many[1], each, many[2])
        shown.add_row(name, f"{results[name].whole_us:.0f}", f"{each:.1f}", f"{many[2]:.2f}")
    console.print(shown)
    console.print()
    return results
