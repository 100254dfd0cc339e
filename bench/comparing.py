"""`bench/compare BEFORE.json AFTER.json`: show what changed between two runs of `bench.costs`, beyond their noise.

A figure has changed if the ranges of its values in the rounds do not overlap and the medians differ by more than 3 %.
Fewer than three rounds in one of the runs allow no conclusion.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.results import Run, load

FIGURES = ("cpu_s", "samples", "beyond_s", "memory_mb", "first_s", "work", "p90_us", "p99_us")
PEERS = ("samply", "perf", "newer perf", "py-spy", "austinp")
MIN_ROUNDS = 3
MIN_CHANGE = 0.03


@dataclass(frozen=True)
class Change:
    """One figure of a measured case before and after. `chance` is True if the ranges of the rounds overlap, or if the
    figures differ by less than MIN_CHANGE.
    """

    case: str
    figure: str
    before: float
    after: float
    chance: bool


def changes(before: list[Run], after: list[Run]) -> Iterator[Change]:
    """Yield the changes of all figures that both runs have measured in at least MIN_ROUNDS rounds."""
    for case in dict.fromkeys(run.case for run in before):
        for figure in FIGURES:
            sides = [[_value(run, figure) for run in side if run.case == case] for side in (before, after)]
            one, two = ([value for value in side if value is not None] for side in sides)
            if min(len(one), len(two)) >= MIN_ROUNDS:
                middle = statistics.median(one), statistics.median(two)
                overlap = max(min(one), min(two)) <= min(max(one), max(two))
                small = abs(middle[1] - middle[0]) <= MIN_CHANGE * abs(middle[0])
                name = f"{case.target} {case.tool} {case.rate:g} Hz {case.seconds:g} s"
                yield Change(name, figure, *middle, overlap or small)


def machine_factor(before: list[Run], after: list[Run]) -> float | None:
    """Return the factor by which the CPU time of other profilers has changed, which are the same programs in both runs.
    It shows a change of the machine. None without other profilers.
    """
    ratios = []
    for case in {run.case for run in before if run.case.tool.startswith(PEERS)}:
        sides = [[run.cpu_s for run in side if run.case == case] for side in (before, after)]
        if all(sides):
            ratios.append(statistics.median(sides[1]) / statistics.median(sides[0]))
    return statistics.median(ratios) if ratios else None


def _value(run: Run, figure: str) -> float | None:
    value: float | None = getattr(run, figure)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    before, after = load(arguments.before), load(arguments.after)
    found = list(changes(before, after))
    shown = Table(title="beyond noise")
    for heading in ("case", "figure", "before", "after", "change"):
        shown.add_column(heading, justify="left" if heading in ("case", "figure") else "right")
    for change in found:
        if not change.chance:
            share = f"{100 * (change.after / change.before - 1):+.0f} %" if change.before else "-"
            shown.add_row(change.case, change.figure, f"{change.before:.4g}", f"{change.after:.4g}", share)
    console = Console(width=140)
    console.print(shown)
    console.print(f"{sum(change.chance for change in found)} of {len(found)} figures did not change beyond noise")
    if (factor := machine_factor(before, after)) is not None:
        console.print(f"peers took {factor:.2f} times the CPU time that they took before: so much is the machine's")


if __name__ == "__main__":
    main()
