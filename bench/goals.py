"""The project's performance goals, and whether this run met them. A figure that was not measured has no row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from bench.marginal import Marginal
from bench.tables import Result, Results

PERF, PTRACE, DWARF, SPY = (
    "pyprof --collector perf",
    "pyprof --collector ptrace",
    "perf --call-graph dwarf + script",
    "py-spy --native",
)

NOISE = 0.015
"""Noise of a slowdown in a short run on a quiet machine, as a fraction."""
PERCENT = "{:.2f} %"


@dataclass
class Measured:
    """All results of one run of the bench.

    Attributes:
        results: Results by target, rate and tool.
        marginal: Cost of a sample by (target, tool).
        frames_s: Frames unwound per second by target.
        others: Single numbers by name.
    """

    results: Results = field(default_factory=dict)
    marginal: dict[tuple[str, str], Marginal] = field(default_factory=dict)
    frames_s: Mapping[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)

    def of(self, target: str, rate: float, tool: str, column: str) -> float | None:
        result: Result | None = self.results.get((target, rate, tool))
        value: float | None = getattr(result, column) if result else None
        return value


@dataclass(frozen=True)
class Goal:
    """A performance goal with its measured value. `limit` is the worst acceptable value. `most` is True if that is a
    maximum, False if it is a minimum.
    """

    what: str
    value: float | None
    limit: float | None
    show: str = "{:.0f}"
    most: bool = True
    scale: float = 1.0

    def cells(self) -> list[str]:
        """Return the cells of the goal's row in a table. The list is empty if value or limit is unknown."""
        if self.value is None or self.limit is None:
            return []
        met = self.value <= self.limit if self.most else self.value >= self.limit
        bound = ("at most " if self.most else "at least ") + self.show.format(self.scale * self.limit)
        return [self.what, bound, self.show.format(self.scale * self.value), "met" if met else "missed"]


def _fifth(value: float | None) -> float | None:
    return None if value is None else value / 5


def _cpu(m: Measured) -> list[Goal]:
    def whole(target: str, tool: str) -> float | None:
        each = m.marginal.get((target, tool))
        return each.whole_us if each else None

    ours = m.marginal.get(("ladder", PERF))
    fifths = _fifth(whole("ladder", DWARF)), _fifth(whole("python", SPY))
    return [
        Goal(
            "CPU us/sample, ladder, 1 kHz, perf collector: 1/5 of perf and its script", whole("ladder", PERF), fifths[0]
        ),
        Goal("the same, each more sample", ours.marginal_us if ours else None, 7, "{:.1f}"),
        Goal("CPU us/sample, python, 100 Hz, stops: 1/5 of py-spy --native", whole("python", PTRACE), fifths[1]),
        *(
            Goal(f"unwinding alone, M frames/s, {name}", m.frames_s.get(name), limit, "{:.1f}", False, 1e-6)
            for name, limit in (("ladder", 5e6), ("tower", 2e6), ("node", 1e6), ("rustc", 1e6))
        ),
    ]


def _slowdown(m: Measured) -> list[Goal]:
    perf_own = m.of("ladder", 1000, DWARF, "slowdown")
    limit = None if perf_own is None else max(perf_own, 0) + NOISE
    what = "slowdown, ladder, 1 kHz, perf_events: perf's own and noise"
    return [
        Goal(what, m.of("ladder", 1000, PERF, "slowdown"), limit, "{:.1f} %", scale=100),
        *(
            Goal(f"slowdown, {what}, stops", m.of(target, rate, PTRACE, "slowdown"), limit, "{:.1f} %", scale=100)
            for what, target, rate, limit in (
                ("ladder, 100 Hz", "ladder", 100, 0.02),
                ("500 threads of which 10 run, 100 Hz", "threads", 100, 0.03),
                ("ladder, 1 kHz", "ladder", 1000, 0.15),
                ("python, 100 Hz", "python", 100, 0.02),
                ("python, 1 kHz", "python", 1000, 0.12),
            )
        ),
    ]


def _pauses(m: Measured) -> list[Goal]:
    return [
        Goal("pauses, ladder, 100 Hz, stops, p50 us", m.of("ladder", 100, PTRACE, "p50_us"), 40),
        Goal("pauses, ladder, 100 Hz, stops, p99 us", m.of("ladder", 100, PTRACE, "p99_us"), 150),
        Goal("part of a pause for 30 Python frames, p99 us", m.others.get("python pause"), 100),
    ]


def _whole(m: Measured) -> list[Goal]:
    wanted = dict.fromkeys(("ladder", "deep4000", "handlers", "calls"), 0.999)
    wanted |= dict.fromkeys(("tower", "node", "rustc", "clang", "python"), 0.995)
    whole = [
        Goal(
            f"whole stacks, {target}, {name.split()[-1]}", m.of(target, 100, name, "whole"), least, PERCENT, False, 100
        )
        for target, least in wanted.items()
        for name in (PERF, PTRACE)
    ]
    obtained = [
        Goal(f"samples of those wanted, {what}", m.of(target, rate, name, "of_wanted"), 0.98, PERCENT, False, 100)
        for what, target, rate, name in (
            ("4,000 frames, 100 Hz, stops", "deep4000", 100, PTRACE),
            ("ladder, 1 kHz, stops", "ladder", 1000, PTRACE),
            ("ladder, 10 kHz, perf collector", "ladder", 10_000, PERF),
        )
    ]
    return whole + obtained


def _times(m: Measured) -> list[Goal]:
    written = m.marginal.get(("ladder", PERF))
    return [
        Goal("first sample of a program of 100 MB, s", m.others.get("first sample"), 0.4, "{:.2f}"),
        Goal(
            "file written after the long recording at 1 kHz, s", written.written_s if written else None, 1.0, "{:.2f}"
        ),
        Goal("pyprof --help, s", m.others.get("help"), 0.15, "{:.2f}"),
        Goal("pyprof dump of 10 threads, s", m.others.get("dump"), 0.4, "{:.2f}"),
        Goal("installed with dependencies, MB", m.others.get("installed"), 120),
        Goal("memory of a long recording, 8 threads at 1 kHz, MB", m.others.get("memory"), 120),
    ]


PARTS: tuple[Callable[[Measured], list[Goal]], ...] = (_cpu, _slowdown, _pauses, _whole, _times)


def print_goals(console: Console, measured: Measured) -> None:
    shown = Table(title="goals")
    for heading in ("what", "goal", "measured", ""):
        shown.add_column(heading, justify="right" if heading == "measured" else "left")
    for part in PARTS:
        for goal in part(measured):
            if cells := goal.cells():
                shown.add_row(*cells)
        shown.add_section()
    console.print(shown)
