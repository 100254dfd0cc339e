"""The results of `bench.costs`: one Run for each command, in a JSON file with the machine and its load."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A case to measure: one profiler on one target.

    Attributes:
        target: Name of the target.
        rate: Sampling rate in Hz, 0 if the tool does not sample.
        tool: Name of the profiler.
        seconds: Duration of the recording, 0 if the command ends by itself.
    """

    target: str
    rate: float
    tool: str
    seconds: float


@dataclass(frozen=True)
class Run:
    """The figures of one run of a profiler or of another measured command.

    Attributes:
        case: The case.
        cpu_s: User and system time in seconds of all processes of the command, post-processing included.
        samples: Number of samples.
        beyond_s: Elapsed time in seconds beyond the length of the recording.
        memory_mb: Maximum resident memory in MB.
        first_s: Time in seconds from the start of the command to the first sample.
        work: Work units that the target did in its run.
        p90_us: 90th percentile of gaps of more than 5 us in the target's own time.
        p99_us: 99th percentile of these gaps.
        load: The machine's load average of one minute when the command began.
    """

    case: Case
    cpu_s: float
    samples: int
    beyond_s: float
    memory_mb: float
    first_s: float | None = None
    work: int | None = None
    p90_us: float | None = None
    p99_us: float | None = None
    load: float = field(default_factory=lambda: os.getloadavg()[0])


def machine() -> dict[str, object]:
    """Describe the machine and the time of a measurement. Figures of two machines cannot be compared."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
    }


def save(runs: Iterable[Run], started: dict[str, object], path: Path) -> None:
    """Save runs as JSON. `started` is the result of machine() before the first run."""
    path.write_text(
        json.dumps({"before": started, "after": machine(), "runs": [asdict(run) for run in runs]}, indent=1)
    )


def load(path: Path) -> list[Run]:
    """Load the runs that save() has written.

    Raises:
        OSError: The file cannot be read.
        KeyError: The file was not written by save().
    """
    return [Run(Case(**run.pop("case")), **run) for run in json.loads(path.read_text())["runs"]]


def of(runs: Iterable[Run], case: Case) -> list[Run]:
    return [run for run in runs if run.case == case]


def median(runs: Iterable[Run], column: Callable[[Run], float | None]) -> float | None:
    known = [value for run in runs if (value := column(run)) is not None]
    return statistics.median(known) if known else None


def split(runs: list[Run], target: str, rate: float, tool: str) -> tuple[float, float] | None:
    """Compute the fixed and the marginal cost of a profiler from recordings of two lengths: (CPU seconds without
    samples, microseconds of CPU time for each sample).
    """
    lengths = sorted(
        {run.case.seconds for run in runs if (run.case.target, run.case.rate, run.case.tool) == (target, rate, tool)}
    )
    if len(lengths) < 2:
        return None
    points = []
    for seconds in (lengths[0], lengths[-1]):
        there = of(runs, Case(target, rate, tool, seconds))
        points.append(
            tuple(
                statistics.median(column) for column in zip(*((run.cpu_s, run.samples) for run in there), strict=True)
            )
        )
    (few_cpu, few), (many_cpu, many) = points
    if many <= few:
        return None
    each = (many_cpu - few_cpu) / (many - few)
    return few_cpu - each * few, 1e6 * each
