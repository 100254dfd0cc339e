"""`python -m tests.interpreters.many_samples`: judge a hundred thousand BPF samples of each CPython version.

The program's own call graph decides which stacks are possible. Further samples are of threads that live for a
millisecond. The check takes one to three minutes for each interpreter. Exit status 1 means that a stack is impossible
or that too many stacks lack functions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import warm
from tests.collapsed import Stacks
from tests.interpreters.known_calls import impossible, read_callers
from tests.interpreters.pythons import Python, pythons, running
from tests.interpreters.runs import stacks

MIN_MERGED, MIN_OF_BRIEF = 0.999, 0.99
LATE = "[truncated: no time left to unwind]"
PIECE_S, MAX_PIECES = 4, 200
OVERDUE = "what came after its last batch is lost"
COLUMNS = "{:18}{:>9} {:>10} {:>8} {:>7} {:>5} {:>6} {:>6}  {:>7} {:>10} {:>8} {:>7} {:>6}  {:>4}"
HEADINGS = (
    "interpreter", "samples", "impossible", "merged", "partial", "bare", "lost", "late",
    "brief", "impossible", "merged", "brief()", "true", "load",
)  # fmt: skip


@dataclass
class Judge:
    """Counts of the judged samples of a program.

    Attributes:
        wrong: Number of samples by what is impossible in them.
        partial: Number of samples that are marked as partially merged.
        bare: Number of samples with an evaluator and no Python function.
        inside: Number of samples in the function of interest.
        lost_s: Seconds whose samples found no room in the ring buffer.
        late: Number of samples left over at the end of the recording, which have a marker and no other count.
    """

    file: str
    callers: dict[str, set[str]]
    function: str
    samples: int = 0
    partial: int = 0
    bare: int = 0
    inside: int = 0
    lost_s: float = 0.0
    late: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def look(self, found: Stacks) -> None:
        for frames, n in found:
            if frames[0] == LATE:
                self.late += n
                continue
            self.samples += n
            reason = impossible(frames, self.file, self.callers)
            if reason:
                self.wrong[reason] += n
            named = any(frame.endswith(".py)") for frame in frames)
            self.partial += n * frames[0].startswith("[merge: partial")
            self.bare += n * (not named and any(frame.startswith("_PyEval_EvalFrame") for frame in frames))
            self.inside += n * (f"{self.function} ({self.file})" in frames)

    @property
    def merged(self) -> float:
        """Share of samples that have all Python functions in their places."""
        return 1 - (self.partial + self.bare) / max(self.samples, 1)

    def shown(self) -> tuple[str, str, str]:
        return f"{self.samples:,}", str(self.wrong.total()), f"{self.merged:.2%}"


def record_into(judge: Judge, pid: int, samples: int, folder: Path, *options: str) -> None:
    """Record until this many samples have been judged."""
    output, summary = folder / "out.collapsed", folder / "out.summary"
    command = ("-q", "-d", str(PIECE_S), "-o", str(output), "--summary", str(summary), "--native", "all", *options)
    for _ in range(MAX_PIECES):
        done = warm.run("record", "-p", str(pid), *command, timeout=300)
        if OVERDUE in done.stderr:  # on a busy machine the samples until then count
            assert output.exists(), done.stderr
        else:
            assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr)
        judge.look(stacks(output))
        judge.lost_s += json.loads(summary.read_text())["processor"]["lost_s"]
        if judge.samples >= samples:
            return


def many(python: Python, samples: int, folder: Path, *options: str) -> Judge:
    """Judge samples of two threads that share a lock."""
    with running(python, "calls.py", "1") as process:
        judge = Judge("calls.py", read_callers(process.stdout), "leaf")
        record_into(judge, process.pid, samples, folder, *options)
    return judge


def of_brief(python: Python, samples: int, folder: Path, *options: str) -> tuple[Judge, float]:
    """Judge samples of threads that live for a millisecond.

    Return the result, and the share of time in their function that the program measured.
    """
    with running(python, "brief.py", stdin=subprocess.PIPE) as process:
        judge = Judge("brief.py", read_callers(process.stdout), "brief")
        record_into(judge, process.pid, samples, folder, *options)
        said = json.loads(process.communicate("", timeout=60)[0])
    return judge, said["function_s"] / said["all_s"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interpreters.many_samples", description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000, help="of each interpreter, at least (%(default)s)")
    parser.add_argument("--brief", type=int, default=5000, help="of threads of a millisecond (%(default)s)")
    parser.add_argument("--rate", type=int, default=4000, help="samples a second (%(default)s)")
    parser.add_argument("--collector", default="bpf", choices=["bpf", "ptrace"])
    parser.add_argument("only", nargs="*", default=[""], help="interpreters with one of these in their name (all)")
    arguments = parser.parse_args()
    options = ("-r", str(arguments.rate), "--collector", arguments.collector)
    failed = False
    print(COLUMNS.format(*HEADINGS), flush=True)
    for python in pythons():
        if not any(part in python.name for part in arguments.only):
            continue
        with TemporaryDirectory() as folder:
            found = many(python, arguments.samples, Path(folder), *options)
            brief, true = of_brief(python, arguments.brief, Path(folder), *options)
        rest = (str(found.partial), str(found.bare), f"{found.lost_s:.1f} s", str(found.late))
        share = (f"{brief.inside / max(brief.samples, 1):.1%}", f"{true:.1%}", f"{os.getloadavg()[0]:.0f}")
        print(COLUMNS.format(python.name, *found.shown(), *rest, *brief.shown(), *share), flush=True)
        for reason, n in (found.wrong + brief.wrong).most_common(5):
            print(f"    {n} impossible: {reason}", flush=True)
        failed |= bool(found.wrong or brief.wrong) or found.samples < arguments.samples
        failed |= found.merged < MIN_MERGED or brief.merged < MIN_OF_BRIEF
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
