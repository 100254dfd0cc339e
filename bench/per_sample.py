"""`python -m bench.per_sample`: measure the processor time of pyprof's processes for each sample of a recording.

The processor time that the processes have used is read twice during a recording, from /proc/PID/task/TID/schedstat. The
difference divided by the number of samples in between is the cost of a further sample. The first reading waits for a
steady state, because tables and names are read in the first seconds. The fixed cost is the time used until then, minus
the cost of the samples until then. The file broker, which writes the file, counts with the worker. Nothing else should
run on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.moments import alone
from bench.targets import BY_NAME, Target

FIRST_S, TAIL_S = 30.0, 0.5
SERVICES, SLOW_HZ = 10, 19
RATES = (100.0, 1000.0)


@dataclass(frozen=True)
class Spent:
    """Cost of a recording between two moments.

    Attributes:
        sampler: CPU seconds of the sampler.
        worker: CPU seconds of the worker with its file broker.
        samples: Number of samples.
        seconds: Elapsed time between the two moments in seconds.
        before: CPU seconds of all processes until the first moment.
        first: Elapsed time in seconds until the first moment.
    """

    sampler: float
    worker: float
    samples: int
    seconds: float
    before: float
    first: float

    @property
    def each_us(self) -> float:
        return 1e6 * (self.sampler + self.worker) / max(self.samples, 1)

    @property
    def share(self) -> float:
        """Processor time as a share of one processor."""
        return (self.sampler + self.worker) / self.seconds

    @property
    def fixed_s(self) -> float:
        """Fixed cost in CPU seconds: the start of the recording, and everything that is read only once."""
        return self.before - self.share * self.first


def used_s(pid: int) -> float:
    """Return the CPU seconds that all present threads of a process have used so far."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        total += int(path.read_text().split()[0])
    return total / 1e9


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(further for child in children for further in descendants(child))]


@dataclass(frozen=True)
class How:
    """The parameters of a measurement of pyprof's cost.

    Attributes:
        collector: Name of the collector.
        rate: Sampling rate in Hz.
        seconds: Duration of the measurement in seconds, which begins after first_s.
        first_s: Time in seconds from the start of the recording to the measurement.
        page: True to write an HTML page at the end, False to write a .pyprof file, which has the time of each sample.
    """

    collector: str
    rate: float
    seconds: float
    first_s: float
    page: bool


def measure(pids: list[int], how: How) -> Spent:
    """Measure the cost of a recording of these processes.

    Raises:
        OSError: The recording failed.
    """
    import pyprof

    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / ("out.html" if how.page else "out.pyprof")
        words = [word for pid in pids for word in ("-p", str(pid))]
        command = [sys.executable, "-m", "pyprof", "record", "-q", "--collector", how.collector, "-r", f"{how.rate:g}"]
        command += ["-d", f"{how.first_s + how.seconds + TAIL_S:g}", "-o", str(recording), *words]
        with alone(command) as process:
            time.sleep(how.first_s)
            ours = [process.pid, *descendants(process.pid)]
            first, begin = [used_s(pid) for pid in ours], time.time_ns()
            ran_s = sum(map(used_s, pids))
            time.sleep(how.seconds)
            last, end = [used_s(pid) for pid in ours], time.time_ns()
            ran_s = sum(map(used_s, pids)) - ran_s
            if process.wait(60) != 0:
                raise OSError("the recording failed")
        if how.page:  # a page has no times of samples
            samples = round(ran_s * how.rate)
        else:
            times = pyprof.load(recording).time_ns
            samples = int(((times >= begin) & (times < end)).sum())
    spent = [after - before for before, after in zip(first, last, strict=True)]
    return Spent(spent[0], sum(spent[1:]), samples, (end - begin) / 1e9, sum(first), how.first_s)


def recorded(target: Target, how: How, count: int = 1) -> Spent:
    """Start a number of processes of a target, and measure the cost of recording them."""
    with tempfile.TemporaryDirectory() as folder:
        command = target.build(Path(folder))(how.first_s + how.seconds + 20)
        running = [alone(command) for _ in range(count)]
        try:
            time.sleep(target.settle_s)
            return measure([process.pid for process in running], how)
        finally:
            for process in running:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.per_sample", description=__doc__)
    parser.add_argument("--collector", default="bpf")
    parser.add_argument("--targets", default="frames,python", help="names, comma-separated; services: ten that wait")
    parser.add_argument("--rates", default="100,1000")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--first", type=float, default=FIRST_S, help="seconds before these, until the cost is flat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="to a page, written at the end, in place of a .pyprof file")
    arguments = parser.parse_args()
    if sys.flags.dont_write_bytecode:
        parser.error("bytecode is not cached (PYTHONDONTWRITEBYTECODE): each recording would compile what it imports")
    table = Table(title=f"--collector {arguments.collector}: medians of {arguments.rounds}")
    headings = (
        "target",
        "Hz",
        "samples",
        "sampler us",
        "worker us",
        "us a sample",
        "from to",
        "% of a core",
        "fixed s",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for name in arguments.targets.split(","):
        services = name == "services"
        rates = (SLOW_HZ,) if services else [float(rate) for rate in arguments.rates.split(",")]
        for rate in rates:
            target, count = BY_NAME[name], SERVICES if services else 1
            how = How(arguments.collector, rate, arguments.seconds, arguments.first, arguments.page)
            runs = [recorded(target, how, count) for _ in range(arguments.rounds)]
            table.add_row(name, f"{rate:g}", *_cells(runs))
    Console(width=132).print(table)


def _cells(runs: list[Spent]) -> list[str]:
    def middle(values: list[float]) -> float:
        return statistics.median(values)

    each = sorted(run.each_us for run in runs)
    return [
        f"{middle([run.samples for run in runs]):.0f}",
        f"{middle([1e6 * run.sampler / max(run.samples, 1) for run in runs]):.1f}",
        f"{middle([1e6 * run.worker / max(run.samples, 1) for run in runs]):.1f}",
        f"{middle(each):.1f}",
        f"{each[0]:.1f} {each[-1]:.1f}",
        f"{100 * middle([run.share for run in runs]):.2f}",
        f"{middle([run.fixed_s for run in runs]):.2f}",
    ]


if __name__ == "__main__":
    main()
