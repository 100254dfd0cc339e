"""What costs are divided by, so that two profiles can be compared. Each way answers a question of its own."""

from __future__ import annotations

from typing import Literal

from pyprof.errors import UsageError
from pyprof.model.profile import Profile
from pyprof.records import dataclass

Normalize = Literal["time", "samples", "none"]
WAYS: tuple[Normalize, ...] = ("time", "samples", "none")


@dataclass(frozen=True, slots=True)
class Scale:
    """before, after: what the costs of either side are divided by. way: as the user gave it; "work": units of the
    program's own work.
    """

    way: Literal["time", "samples", "none", "work"]
    before: float
    after: float

    @property
    def words(self) -> str:
        """What amounts are."""
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
    """totals: of all samples of each. normalize: None: by time where the length of both is known, else by samples. per:
    the units of work that the program did while either was recorded. Raises UsageError.
    """
    if per is not None:
        if normalize is not None:
            raise UsageError("what is per unit of work is normalized already", "without normalize")
        if not all(0 < units < float("inf") for units in per):
            raise UsageError("units of work are numbers above 0")
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
        raise UsageError("it is not known how long both recordings lasted", "normalize by samples")
    return Scale("time", before.recorded_ns / 1e9, after.recorded_ns / 1e9)
