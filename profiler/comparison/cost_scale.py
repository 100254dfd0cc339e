"""Divisors that make the costs of two profiles comparable. Each kind answers another question."""

from __future__ import annotations

from typing import Literal

from pyprof.errors import UsageError
from pyprof.model.profile import Profile
from pyprof.records import dataclass

Normalize = Literal["time", "samples", "none"]
WAYS: tuple[Normalize, ...] = ("time", "samples", "none")


@dataclass(frozen=True, slots=True)
class Scale:
    """The divisors that make the costs of two profiles comparable.

    Attributes:
        way: The kind that the user selected; "work" divides by units of the program's own work.
        before: Divisor for the first profile.
        after: Divisor for the second profile.
    """

    way: Literal["time", "samples", "none", "work"]
    before: float
    after: float

    @property
    def words(self) -> str:
        """Return a text that describes the amounts of a comparison after scaling, such as "per second of recording"."""
        return {
            "time": "per second of recording",
            "samples": "as shares of all",
            "none": "as they are, whatever the recordings' lengths",
            "work": "per unit of work",
        }[self.way]


def scale_of(
    before: Profile,
    after: Profile,
    totals: tuple[float, float],
    normalize: str | None,
    per: tuple[float, float] | None,
) -> Scale:
    """Choose the divisors that make the costs of two profiles comparable.

    Args:
        before: The first profile.
        after: The second profile.
        totals: Sum over all samples of each profile.
        normalize: The kind of scale. None selects time if the lengths of both recordings are known, else samples.
        per: Units of work that the program did during each recording.

    Raises:
        UsageError: The kind is unknown or impossible for these profiles.
    """
    if per is not None:
        if normalize is not None:
            raise UsageError("costs per unit of work are already normalized", "without normalize")
        if not all(0 < units < float("inf") for units in per):
            raise UsageError("units of work must be positive numbers")
        return Scale("work", *per)
    timed = before.recorded_ns > 0 and after.recorded_ns > 0
    way = normalize or ("time" if timed else "samples")
    if way == "none":
        return Scale("none", 1.0, 1.0)
    if way == "samples":
        return Scale("samples", *totals)
    if way != "time":
        raise UsageError(f"costs are not normalized by {way!r}", f"one of {', '.join(WAYS)}")
    if not timed:
        raise UsageError("the length of a recording is unknown", "normalize by samples")
    return Scale("time", before.recorded_ns / 1e9, after.recorded_ns / 1e9)
