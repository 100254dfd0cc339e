"""What a comparison says: amounts before and after, of each function and of all together."""

from __future__ import annotations

from os import PathLike
from typing import Literal

from pyprof.comparison.matching import MatchedFunction, Matching
from pyprof.comparison.scale import Scale
from pyprof.model.profile import DataFrame, Profile, ValueType
from pyprof.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Amount:
    """before, after: scaled as Comparison.scale says. significant: the change is more than chance. detectable: the
    smallest relative increase that such recordings show in four of five cases; infinite where they show none.
    """

    before: float
    after: float
    significant: bool
    detectable: float = float("inf")

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def relative(self) -> float:
        """The change as a part of what was before: 0.1 is a tenth more; inf of what is new."""
        if self.before:
            return self.change / self.before
        return float("inf") if self.change else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """One function. own: in itself; total: with what it calls. module: what people call its file."""

    function: MatchedFunction
    own: Amount
    total: Amount

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def module(self) -> str:
        return self.function.module

    @property
    def significant(self) -> bool:
        return self.own.significant or self.total.significant


@dataclass(frozen=True, slots=True)
class Comparison:
    """columns: the value of either profile that is compared; value_type: what it is. functions: of both, the largest
    changes first, those that are significant before all others. whole: all samples. drift: by which part all functions
    changed together, as by another machine or load; what is significant changed beside that. load: the same of a larger
    change of the time per second, for which shares are compared instead; else 0. doubt: why nothing is
    marked as significant, "" where it was judged.
    """

    before: Profile = field(repr=False)
    after: Profile = field(repr=False)
    columns: tuple[int, int] = field(repr=False)
    value_type: ValueType
    scale: Scale
    functions: tuple[Change, ...] = field(repr=False)
    whole: Amount
    drift: float
    load: float
    doubt: str
    matching: Matching = field(repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, as that of a Profile."""
        from pyprof.exporters.difference import write_html
        from pyprof.exporters.notebook import framed

        return framed(lambda out: write_html(self, out), repr(self))

    def top(self, count: int = 10, by: Literal["own", "total"] = "own") -> list[Change]:
        """The functions that changed most: those whose change is significant first."""
        return self.sorted_by(by)[:count]

    def sorted_by(self, by: Literal["own", "total"]) -> list[Change]:
        """All that changed, as top() has them."""
        amounts = [(change, change.own if by == "own" else change.total) for change in self.functions]
        found = [(change, amount) for change, amount in amounts if amount.change]
        found.sort(
            key=lambda each: (
                not each[1].significant, not each[0].significant, -abs(each[1].change), each[0].function,
            )
        )  # fmt: skip
        return [change for change, _ in found]

    def grown(self, least: float) -> list[Change]:
        """Functions of which more than this part (0.05: a twentieth) came on top, significantly, in themselves or with
        what they call. What all functions grew by together is left out.
        """
        return [
            change
            for change in self.functions
            if any(
                amount.significant and (1 + amount.relative) / (1 + self.drift) - 1 > least
                for amount in (change.own, change.total)
            )
        ]

    def to_dataframe(self, library: Literal["pandas", "polars"] | None = None) -> DataFrame:
        """One row a function: name, module, and before, after and significant of both own and total.

        library: None: pandas if it is installed, else polars. Raises MissingLibrary.
        """
        from pyprof.model.table import frame_of

        return frame_of(self.to_columns(), library)

    def to_columns(self) -> dict[str, list[str] | list[float] | list[bool]]:
        """The table as columns by name."""
        found: dict[str, list[str] | list[float] | list[bool]] = {
            "function": [change.name for change in self.functions],
            "module": [change.module for change in self.functions],
        }
        for column in ("own", "total"):
            amounts = [change.own if column == "own" else change.total for change in self.functions]
            found[f"{column}_before"] = [amount.before for amount in amounts]
            found[f"{column}_after"] = [amount.after for amount in amounts]
            found[f"{column}_significant"] = [amount.significant for amount in amounts]
        return found

    def save(self, path: str | PathLike[str], format: str | None = None) -> None:
        """Write the comparison to a file, in one step.

        format: html (a page with a flame graph), json, csv; None: by the file's suffix. Raises UsageError for a format
        that there is not, OutputError.
        """
        from pyprof.exporters.difference import save

        save(self, path, format)
