"""`python -m bench.versions`: compare two or more versions of pyprof on one target, in turn, in the same run.

pip install --no-deps --target /tmp/old /path/to/old && pip install --no-deps --target /tmp/new .
python -m bench.versions old=/tmp/old new=/tmp/new --target ladder --rate 1000 --collector perf
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers import pyprof_by
from bench.tables import HEADINGS, Result, Row, base, measure
from bench.targets import BY_NAME
from bench.tools import Recorder


def version(name: str, folder: str, collector: str) -> Recorder:
    """Return a Recorder for the pyprof that pip has installed into a folder."""
    recorder = pyprof_by(collector)
    return replace(
        recorder,
        name=name,
        record=lambda pid, rate, seconds, own: [
            "env", f"PYTHONPATH={folder}", *recorder.record(pid, rate, seconds, own)
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--target", default="ladder", choices=sorted(BY_NAME))
    parser.add_argument("--collector", default="perf")
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    pairs = [each.partition("=") for each in arguments.versions]
    tools = [version(name, folder, arguments.collector) for name, _, folder in pairs]
    target = BY_NAME[arguments.target]
    rows: dict[str, list[Row]] = {tool.name: [] for tool in tools}
    noise: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        command = target.build(Path(name))(arguments.seconds + 1.5)
        for nth in range(arguments.rounds):
            alone = base(target, command, arguments.seconds, noise)
            for tool in tools if nth % 2 else tools[::-1]:
                row = measure(tool, target, command, arguments.seconds, arguments.rate, alone, Path(name))
                if row is not None:
                    rows[tool.name].append(row)
    show(f"{target.name}, {arguments.collector}, {arguments.rate:g} Hz, {arguments.seconds:g} s", rows, noise)


def show(title: str, rows: dict[str, list[Row]], noise: list[float]) -> None:
    console = Console(width=140)
    shown = Table(title=f"{title}, Python {sys.version.split()[0]}")
    shown.add_column("version")
    for heading in ("rounds", *HEADINGS, "CPU us/sample from to"):
        shown.add_column(heading, justify="right")
    for name, measured in rows.items():
        cpu = sorted(row.cpu_us for row in measured)
        spread = f"{cpu[0]:.0f} {cpu[-1]:.0f}" if cpu else "-"
        cells = Result.of(measured).cells() if measured else ["failed"]
        shown.add_row(name, str(len(measured)), *cells, spread)
    console.print(shown)
    console.print(f"noise of a slowdown figure here: {100 * max(noise):.1f} %" if noise else "")


if __name__ == "__main__":
    main()
