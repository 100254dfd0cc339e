"""The lines of a time line: the amount and the rate of each value of a label in each time step.

The amounts of windows are distributed evenly over the time that they cover. So the length of a time step never makes a
peak or a gap that the recorded programs did not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.thread_identity import Labels

UNNAMED = "(none)"
"""Value of a line whose samples lack the label."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """The part of a time step that the windows of one host cover.

    Attributes:
        step: Number of the time step.
        host: Name of the host, "" for windows without one.
        amount: Sum of the values of all samples in this part.
        covered_ns: Time that windows cover, in nanoseconds. It exceeds the time step if windows overlap.
    """

    step: int
    host: str
    amount: int
    covered_ns: int


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """The amount of one series (label set) on one host in one time step."""

    step: int
    series: int
    host: str
    amount: int


@dataclass(slots=True)
class TimeLine:
    """The line of one value: amounts by time step and host."""

    amounts: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, step: int, host: str, amount: int) -> None:
        of_step = self.amounts.setdefault(step, {})
        of_step[host] = of_step.get(host, 0) + amount

    @property
    def total(self) -> int:
        return sum(sum(of_step.values()) for of_step in self.amounts.values())

    def amount(self, step: int) -> int | None:
        """Return the amount in a time step, None if it is unknown."""
        return sum(self.amounts[step].values()) if step in self.amounts else None

    def rate(self, step: int, coverage: Coverage) -> float | None:
        """Return the amount per second of recorded time in a time step, the hosts' rates added. It is None if it is
        unknown: without windows, and in the newest step while a host of the step before has not sent its window.
        """
        found = self.amounts.get(step)
        if found is None or (step == coverage.newest and not self.amounts.get(step - 1, {}).keys() <= found.keys()):
            return None
        return sum(amount / coverage.seconds(step, host) for host, amount in found.items())


class Coverage:
    """The part of each time step that the windows of each host cover.

    Attributes:
        newest: Number of the last time step that has a window, -1 without windows.
    """

    def __init__(self, found: Iterable[HostStep], step_ns: int) -> None:
        self._covered = {(each.step, each.host): min(each.covered_ns, step_ns) / 1e9 for each in found}
        self.newest = max((step for step, _ in self._covered), default=-1)

    def seconds(self, step: int, host: str) -> float:
        """Return the covered time in seconds. The caller has checked that the host has a window in the step."""
        return max(self._covered[step, host], 1e-9)

    def steps_of(self, host: str) -> list[int]:
        return [step for step, other in self._covered if other == host]


def total_line(found: Iterable[HostStep]) -> TimeLine:
    """Return the line of all samples."""
    line = TimeLine()
    for each in found:
        line.add(each.step, each.host, each.amount)
    return line


def lines_by_label(
    found: Iterable[SeriesStep], labels: Mapping[int, Labels], wanted: Labels, by: str
) -> dict[str, TimeLine]:
    """Return a line for each value of a label.

    Args:
        labels: Labels of each series.
        wanted: Labels that samples must have.
        by: Name of the label, "" for a single line of all samples, whose value is "".
    """
    lines: dict[str, TimeLine] = {}
    for each in found:
        own = dict(labels.get(each.series, ()))
        if set(wanted) <= set(own.items()):
            lines.setdefault(own.get(by, UNNAMED) if by else "", TimeLine()).add(each.step, each.host, each.amount)
    return lines


def add_idle_time(lines: Mapping[str, TimeLine], coverage: Coverage, hosts: Mapping[str, str]) -> None:
    """Add zeros to lines of hosts where a host was recorded and has no sample.

    Args:
        hosts: Host of each line. For lines of other labels it is not known whether a value was recorded.
    """
    for value, named in hosts.items():
        host = "" if named == UNNAMED else named
        for step in coverage.steps_of(host):
            lines[value].add(step, host, 0)
