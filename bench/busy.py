"""Check pyprof on a busy machine: `python -m bench.busy [--rounds 10] [--loads 0,8,20]`.

A fixed set of commands runs next to N busy loops of normal priority in a separate session. The targets record their own
processor time and waits (targets/clocks.c and clocks.py). The sums of each recording are compared with them. py-spy and
perf run in the same rounds. For each command and each N the table counts the runs that failed and the outputs that are
empty or missing. It has the largest difference between recorded time and the program's own clock, the time to the first
sample, and the time that the command takes beyond its duration. Needs root and gcc.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.results import machine
from bench.targets import SOURCES

LOADS = (0, 8, 20)
DURATION_S = 3.0
TIMEOUT_S = 180.0
MAX_ERROR = 0.02
"""Maximum accepted difference between recorded time and the program's own clock, as a share of that clock."""
SETTLE_S = 1.0
"""Time in seconds that a new target runs before it is recorded."""
CPU_ROW, WAIT_ROW = 1, 2
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """A running target that writes rows with its processor time and waits into a file."""

    pid: int
    file: Path
    function: str

    def read_rows(self) -> Rows:
        """Return the complete rows (kind, tid, a, b) of the target's file as int64 of shape (n, 4). targets/clocks.c
        describes them.
        """
        rows = np.fromfile(self.file, np.int64).reshape(-1, 4)
        return rows[rows[:, 0] > 0]

    def cpu_ns(self, begin_ns: int, end_ns: int) -> float:
        """Return the processor time of all threads of the target between two times since the epoch, in nanoseconds."""
        rows = self.read_rows()
        rows = rows[rows[:, 0] == CPU_ROW]
        total = 0.0
        for tid in np.unique(rows[:, 1]):
            own = rows[rows[:, 1] == tid]
            first, last = np.interp([begin_ns, end_ns], own[:, 2], own[:, 3])
            total += float(last - first)
        return total

    def waited_ns(self, begin_ns: int, end_ns: int) -> float:
        """Return the total time that the target's threads waited between two times since the epoch, in nanoseconds."""
        rows = self.read_rows()
        waits = np.clip(rows[rows[:, 0] == WAIT_ROW][:, 2:], begin_ns, end_ns)
        return float((waits[:, 1] - waits[:, 0]).sum())


@dataclass
class Outcome:
    """The result of one run of a measured command.

    Attributes:
        case: The command's name.
        load: The number of busy loops that run at the same time.
        failures: One sentence for each problem.
        is_empty: True if an output is missing or has no samples.
        errors: Recorded time minus the program's own clock, each as a share of the latter.
        first_s: Time from the start of the command to the first sample, in seconds.
        beyond_s: Elapsed time beyond the recording's duration, in seconds.
        cpu_s: Processor time of the command and its children, in seconds.
    """

    case: str
    load: int
    failures: list[str] = field(default_factory=list)
    is_empty: bool = False
    errors: list[float] = field(default_factory=list)
    first_s: float | None = None
    beyond_s: float | None = None
    cpu_s: float | None = None


@dataclass(frozen=True)
class Targets:
    """The programs that the measured commands record."""

    native: Clocks
    python: Clocks


Check = Callable[[Targets, Path, Outcome], None]


def run_command(command: list[str], outcome: Outcome, seconds: float, expected: int = 0) -> tuple[int, str]:
    """Run a command to its end. Record its exit code, elapsed time and processor time in the outcome.

    Returns:
        Time of the command's start in nanoseconds since the epoch, and its output.
    """
    before = os.times()
    start_ns, start = time.time_ns(), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        outcome.failures.append(f"did not end within {TIMEOUT_S:.0f} s")
        return start_ns, ""
    outcome.beyond_s = time.monotonic() - start - seconds
    after = os.times()
    outcome.cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    if done.returncode != expected:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        outcome.failures.append(f"exit code {done.returncode}: {''.join(last)[:200]}")
    return start_ns, done.stdout + done.stderr


def pyprof(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pyprof", *arguments]


def compare_cpu(path: Path, clocks: Clocks, outcome: Outcome, start_ns: int) -> None:
    """Compare the processor time in a recording with the program's own clock, and add the error to the outcome."""
    import pyprof as library

    if not path.exists() or not path.stat().st_size:
        outcome.is_empty = True
        return
    whole = library.load(path)
    profile = whole.filter(pid=clocks.pid) if whole.has_processes else whole
    if not len(profile.time_ns):
        outcome.is_empty = True
        return
    outcome.first_s = (int(profile.time_ns.min()) - start_ns) / 1e9
    begin_ns, end_ns = profile.start_ns, profile.start_ns + profile.duration_ns
    own = clocks.cpu_ns(begin_ns, end_ns)
    sampled_ns = float(profile.values[:, -1].sum())
    if whole.has_processes:
        outcome.errors.append(sampled_ns / own - 1)
        return
    outcome.errors.append(1e9 * profile.summary.processor_s / own - 1)
    if abs(sampled_ns - own) > MAX_ERROR * own:
        outcome.failures.append(f"the rows, [not sampled] included, are {100 * sampled_ns / own:.1f} % of its clock")


def compare_waits(path: Path, clocks: Clocks, outcome: Outcome) -> None:
    """Compare the off-CPU time in a recording with the waits that the program has written down. Add the error to the
    outcome.
    """
    import pyprof as library

    if not path.exists() or not path.stat().st_size:
        outcome.is_empty = True
        return
    profile = library.load(path)
    nappers = {int(tid) for kind, tid, _, _ in clocks.read_rows() if kind == WAIT_ROW}
    mine = np.array([thread.tid in nappers for thread in profile.threads])
    begin_ns, end_ns = profile.start_ns, profile.start_ns + profile.duration_ns
    own = clocks.waited_ns(begin_ns, end_ns)
    if not len(profile.time_ns) or not own:
        outcome.is_empty = True
        return
    found = float(profile.values[mine[profile.thread], -1].sum())
    outcome.errors.append(found / own - 1)
    if found > len(nappers) * profile.duration_ns:
        outcome.failures.append("more waiting than time")


def record(clocks: Clocks, folder: Path, outcome: Outcome, *options: str) -> None:
    path = folder / "out.pyprof"
    start_ns, _ = run_command(
        pyprof("record", "-q", "-d", f"{DURATION_S:g}", "-o", str(path), *options), outcome, DURATION_S
    )
    compare_cpu(path, clocks, outcome, start_ns)


def check_native(targets: Targets, folder: Path, outcome: Outcome) -> None:
    record(targets.native, folder, outcome, "-p", str(targets.native.pid))


def check_stops(targets: Targets, folder: Path, outcome: Outcome) -> None:
    record(targets.native, folder, outcome, "-p", str(targets.native.pid), "--collector", "ptrace")


def check_python(targets: Targets, folder: Path, outcome: Outcome) -> None:
    record(targets.python, folder, outcome, "-p", str(targets.python.pid))


def check_all(targets: Targets, folder: Path, outcome: Outcome) -> None:
    record(targets.native, folder, outcome, "-a")


def check_windows(targets: Targets, folder: Path, outcome: Outcome) -> None:
    command = pyprof("record", "-q", "-d", f"{DURATION_S:g}", "--every", "1", "-p", str(targets.native.pid))
    start_ns, _ = run_command([*command, "-o", str(folder / "out-%i.pyprof")], outcome, DURATION_S)
    paths = sorted(folder.glob("out*.pyprof"))
    outcome.is_empty = not paths
    for path in paths:
        if _duration_s(path) > 0.5:
            compare_cpu(path, targets.native, outcome, start_ns)


def check_wait_windows(targets: Targets, folder: Path, outcome: Outcome, options: Sequence[str] = ()) -> None:
    command = pyprof("record", "-q", "-d", f"{DURATION_S:g}", "--every", "1", "--mode", "offcpu", *options)
    run_command([*command, "-p", str(targets.native.pid), "-o", str(folder / "out-%i.pyprof")], outcome, DURATION_S)
    paths = sorted(folder.glob("out*.pyprof"))
    outcome.is_empty = not paths
    for path in paths:
        if _duration_s(path) > 0.5:
            compare_waits(path, targets.native, outcome)


def check_waits(targets: Targets, folder: Path, outcome: Outcome) -> None:
    command = pyprof("record", "-q", "-d", f"{DURATION_S:g}", "--mode", "offcpu", "-p", str(targets.native.pid))
    run_command([*command, "-o", str(folder / "out.pyprof")], outcome, DURATION_S)
    compare_waits(folder / "out.pyprof", targets.native, outcome)


def _duration_s(path: Path) -> float:
    import pyprof as library

    return library.load(path).duration_ns / 1e9


def check_top(targets: Targets, folder: Path, outcome: Outcome) -> None:
    _, text = run_command(pyprof("top", "--once", "-p", str(targets.native.pid)), outcome, 1.0)
    outcome.is_empty = targets.native.function not in text


def check_dump(targets: Targets, folder: Path, outcome: Outcome) -> None:
    _, text = run_command(pyprof("dump", "-p", str(targets.python.pid)), outcome, 0.0)
    outcome.is_empty = targets.python.function not in text


def check_flight_recorder(targets: Targets, folder: Path, outcome: Outcome) -> None:
    """Run a flight recorder, and send it SIGUSR1 after the usual duration. Wait for the file that it writes, and end
    it.
    """
    command = pyprof("record", "--last", "30s", "-p", str(targets.native.pid), "-o", str(folder / "out-%i.pyprof"))
    start_ns = time.time_ns()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        time.sleep(DURATION_S)
        process.send_signal(signal.SIGUSR1)
        limit = time.monotonic() + 60
        while not (paths := sorted(folder.glob("out*.pyprof"))) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        outcome.beyond_s = (time.time_ns() - start_ns) / 1e9 - DURATION_S
        process.send_signal(signal.SIGINT)
        try:
            text, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            outcome.failures.append("did not end within 60 s of SIGINT")
    if process.returncode not in (0, 130):
        outcome.failures.append(f"exit code {process.returncode}: {''.join(text.strip().splitlines()[-1:])[:200]}")
    if not paths:
        outcome.is_empty = True
        return
    compare_cpu(paths[0], targets.native, outcome, start_ns)


def check_py_spy_record(targets: Targets, folder: Path, outcome: Outcome) -> None:
    out = folder / "out"
    command = [
        "py-spy",
        "record",
        "-p",
        str(targets.python.pid),
        "-d",
        f"{DURATION_S:.0f}",
        "-f",
        "raw",
        "-o",
        str(out),
    ]
    run_command(command, outcome, DURATION_S)
    outcome.is_empty = not out.exists() or not out.stat().st_size


def check_py_spy_dump(targets: Targets, folder: Path, outcome: Outcome) -> None:
    _, text = run_command(["py-spy", "dump", "--pid", str(targets.python.pid)], outcome, 0.0)
    outcome.is_empty = targets.python.function not in text


def check_perf(targets: Targets, folder: Path, outcome: Outcome) -> None:
    """Record a target by perf, and compare its processor time with the program's own clock. A sample of cpu-clock
    stands for its period.
    """
    data = folder / "perf.data"
    offset_ns = time.time_ns() - time.monotonic_ns()
    command = ["perf", "record", "-q", "-k", "CLOCK_MONOTONIC", "-e", "cpu-clock", "-F", "99", "--call-graph", "dwarf"]
    start_ns, _ = run_command(
        [*command, "-p", str(targets.native.pid), "-o", str(data), "--", "sleep", f"{DURATION_S:g}"],
        outcome,
        DURATION_S,
    )
    script = ["perf", "script", "-F", "time,period", "-G", "--ns", "-i", str(data)]
    text = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    samples = [(float(at), int(period)) for at, period in re.findall(r"^\s*([\d.]+):\s+(\d+)", text, re.M)]
    outcome.is_empty = not samples
    if samples:
        first_ns, last_ns = (round(1e9 * samples[n][0]) + offset_ns for n in (0, -1))
        outcome.first_s = (first_ns - start_ns) / 1e9
        own = targets.native.cpu_ns(first_ns, last_ns)
        outcome.errors.append(sum(period for _, period in samples) / own - 1)


CASES: dict[str, Check] = {
    "record -p (native)": check_native,
    "record -p (native, ptrace)": check_stops,
    "record -p (Python)": check_python,
    "record -a": check_all,
    "record --every 1": check_windows,
    "record --mode offcpu": check_waits,
    "record --mode offcpu --every 1": check_wait_windows,
    "record --wakers --every 1": partial(check_wait_windows, options=("--wakers",)),
    "top --once": check_top,
    "dump": check_dump,
    "flight recorder": check_flight_recorder,
    "py-spy record": check_py_spy_record,
    "py-spy dump": check_py_spy_dump,
    "perf record": check_perf,
}


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run busy loops of normal priority within the context, in a separate session, so that they share one scheduling
    autogroup.
    """
    loop = "for n in $(seq $0); do while :; do :; done & done; wait"
    process = subprocess.Popen(["sh", "-c", loop, str(count)], start_new_session=True) if count else None
    try:
        yield
    finally:
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running(command: list[str], file: Path, function: str) -> Iterator[Clocks]:
    """Run a target within the context, in a separate session."""
    process = subprocess.Popen([*command, str(file)], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield Clocks(process.pid, file, function)
    finally:
        process.kill()
        process.wait()


def run_round(load: int, names: list[str], program: Path) -> Iterator[Outcome]:
    """Run each command once, in random order, next to a number of busy loops. Each run has new targets."""
    with busy_loops(load):
        for name in random.sample(names, len(names)):
            outcome = Outcome(name, load)
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                native = running([str(program)], folder / "native.clocks", "work")
                python = running([sys.executable, str(SOURCES / "clocks.py")], folder / "python.clocks", "work")
                with native as first, python as second:
                    time.sleep(SETTLE_S * (1 + load / 4))
                    try:
                        CASES[name](Targets(first, second), folder, outcome)
                    except Exception as error:  # noqa: BLE001 - a failed case is a result
                        outcome.failures.append(f"{type(error).__name__}: {error}")
            yield outcome


def show_table(outcomes: list[Outcome]) -> None:
    """Print a Markdown table of outcomes, with a row for each command and number of busy loops."""
    print(
        "\n| command | loops | runs | failed | empty | largest difference | first sample, s | beyond -d, s | CPU, s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    keys = list(dict.fromkeys((each.case, each.load) for each in outcomes))
    for case, load in sorted(keys, key=lambda key: (list(CASES).index(key[0]), key[1])):
        runs = [each for each in outcomes if (each.case, each.load) == (case, load)]
        errors = [abs(error) for each in runs for error in each.errors]
        cells = [
            case,
            str(load),
            str(len(runs)),
            str(sum(bool(each.failures) for each in runs)),
            str(sum(each.is_empty for each in runs)),
            f"{100 * max(errors):.1f} %" if errors else "-",
            *(_median_and_max([getattr(each, name) for each in runs]) for name in ("first_s", "beyond_s", "cpu_s")),
        ]
        print(f"| {' | '.join(cells)} |")


def _median_and_max(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f} (max {max(known):.2f})" if known else "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.busy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="runs of each command at each load (%(default)s)")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="numbers of busy loops (%(default)s)")
    parser.add_argument("--only", default="*", help="a shell pattern for the commands, such as 'record*'")
    parser.add_argument("-o", "--output", type=Path, help="also write every run as JSON")
    arguments = parser.parse_args()
    names = [name for name in CASES if fnmatch.fnmatch(name, arguments.only)]
    names = [name for name in names if not name.startswith(("py-spy", "perf")) or shutil.which(name.split()[0])]
    if sys.dont_write_bytecode:
        parser.error("bytecode is not cached (PYTHONDONTWRITEBYTECODE): each command would compile what it imports")
    if os.geteuid() or not names:
        sys.exit("bench.busy needs root" if names else f"no command is called {arguments.only!r}")
    started = machine()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "clocks"
        subprocess.run(["gcc", "-O2", "-g", "-pthread", SOURCES / "clocks.c", "-o", program], check=True)
        loads = [int(text) for text in arguments.loads.split(",")]
        for _ in range(arguments.rounds):
            for load in loads:
                for outcome in run_round(load, names, program):
                    outcomes.append(outcome)
                    print(json.dumps(asdict(outcome)), flush=True)
    show_table(outcomes)
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"machine": started, "runs": [asdict(each) for each in outcomes]}, indent=1)
        )
    own = [each for each in outcomes if not each.case.startswith(("py-spy", "perf"))]
    bad = [each for each in own if each.failures or each.is_empty or any(abs(e) > MAX_ERROR for e in each.errors)]
    print(f"\n{len(bad)} of {len(own)} runs of pyprof failed, were empty, or differ by more than {100 * MAX_ERROR:g} %")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
