"""The result of a comparison: amounts before and after, of each function and of all together, and both profiles as one.

The common profile consists of functions, not addresses. Each stack of either profile is a stack of matched functions
and has two values, before and after, one of which is 0.

A part of a profile's time may have no sample: the agent's windows have the exact processor time of each process, but
few samples if the budget is small. The unsampled time of a service is divided among its functions in proportion to
their samples. Which functions had it is unknown, so their costs are ranges.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyprof.comparison.function_matching import MatchedFunction, Matching
from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.analysis.confidence_interval import SamplingBasis, profile_basis
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.marker_frames import Mark
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import DataFrame, Frame, FrameKind, Line, ModuleInfo, Profile, ValueType, find_function
from pyprof.model.unwind_result import Trust

MIN_EFFECTIVE_SAMPLES = 12
"""Minimum effective number of samples of a profile. With fewer samples, the share of a function is uncertain by 25
percentage points or more.
"""
_WHOLE = 0.99
"""Share of the time with samples from which on the time without samples cannot matter."""


@dataclass(frozen=True, slots=True)
class SampledSide:
    """One of the two profiles of a comparison. Processor time without samples is divided among the functions of the
    same service, in proportion to their samples.

    Attributes:
        original: The profile before this division.
        profile: The profile after this division. Its total is unchanged.
        total: Sum of the compared value over all samples.
        unsampled: The part of the total that no function has, because its service has no sample at all.
        basis: The samples behind the shares, None if values are measured and not sampled.
    """

    original: Profile = field(repr=False)
    profile: Profile = field(repr=False)
    total: int
    unsampled: int = 0
    basis: SamplingBasis | None = None

    @property
    def has_few_samples(self) -> bool:
        """True if the profile has too few samples for its shares to be accurate."""
        return self.basis is not None and self.basis.samples < MIN_EFFECTIVE_SAMPLES

    @property
    def is_partial(self) -> bool:
        """True if so much of the time has no samples that it matters."""
        return self.basis is not None and self.basis.sampled < _WHOLE

    def bounds(self, amount: float) -> tuple[float, float]:
        """Return the lowest and the highest possible cost of a function, given the cost that its samples show."""
        if self.basis is None or not self.total:
            return amount, amount
        low, high = self.basis.interval(min(amount / self.total, 1.0) * self.basis.sampled)
        return low * self.total, high * self.total


def sampled_side(profile: Profile, column: int) -> SampledSide:
    """Prepare a profile for a comparison of one of its values: divide its unsampled time among functions."""
    amounts = profile.values[:, column]
    total = int(amounts.sum())
    is_primary = 0 < column == len(profile.value_types) - 1
    basis = profile_basis(profile) if is_primary else None
    has_samples = profile.values[:, 0] > 0
    if basis is None or has_samples[amounts > 0].all():
        return SampledSide(profile, profile, total, 0, basis)
    values, unsampled = profile.values.copy(), 0
    names = np.array([dict(thread.labels).get("service", "") for thread in profile.threads])[profile.thread]
    for name in np.unique(names):
        mine = names == name
        known, missing = mine & has_samples, mine & ~has_samples
        rest = int(amounts[missing].sum())
        upto = np.cumsum(amounts[known])
        if not len(upto) or not upto[-1]:
            unsampled += rest
            continue
        shares = np.rint(upto * ((upto[-1] + rest) / upto[-1])).astype(np.int64)
        values[known, column], values[missing, column] = np.diff(shares, prepend=0), 0
    spread = selected(replace(profile, values=values), values[:, column] != 0)
    return SampledSide(profile, spread, total, unsampled, basis)


Normalize = Literal["time", "samples", "none"]
WAYS: tuple[Normalize, ...] = ("time", "samples", "none")


@dataclass(frozen=True, slots=True)
class Scale:
    """The divisors that make the costs of two profiles comparable.

    Attributes:
        way: The kind of scale: "time", "samples", or "work", which divides by units of the program's own work.
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
        totals: Sum of the compared value over all samples of each profile.
        normalize: The kind of scale. None selects time if the lengths of both recordings are known, otherwise samples.
        per: Units of work that the program did during each recording.

    Raises:
        UsageError: The kind is unknown or impossible for these profiles.
    """
    if per is not None:
        if normalize is not None:
            raise UsageError("costs per unit of work are already normalized", "leave out normalize")
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


@dataclass(frozen=True, slots=True)
class Amount:
    """A cost in both compared profiles, divided by the scale of the comparison.

    Attributes:
        before: Cost in the first profile.
        after: Cost in the second profile.
        significant: True if the change is statistically significant.
        detectable: Smallest relative increase that the test would find with a probability of 80 %, infinite if none.
        is_unknown: True if one of the two costs is zero perhaps only because no sample was taken of it.
    """

    before: float
    after: float
    significant: bool
    detectable: float = float("inf")
    is_unknown: bool = False

    @property
    def known(self) -> tuple[float | None, float | None]:
        """The costs in both profiles. A cost that is unknown is None."""
        before, after = (None if self.is_unknown and not side else side for side in (self.before, self.after))
        return before, after

    @property
    def change(self) -> float:
        """The value of the second profile minus that of the first one."""
        return self.after - self.before

    @property
    def relative(self) -> float:
        """Return the change of a cost relative to the cost before: 0.1 is an increase by a tenth. It is inf if there
        was no cost before.
        """
        if self.before:
            return self.change / self.before
        return float("inf") if self.change else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one function between two profiles: its own cost, and its total cost including its callees."""

    function: MatchedFunction
    own: Amount
    total: Amount

    @property
    def name(self) -> str:
        """Name of the function whose cost is compared."""
        return self.function.name

    @property
    def module(self) -> str:
        """Module of the function whose cost is compared."""
        return self.function.module

    @property
    def significant(self) -> bool:
        """True if the change of the function's own or total cost is significant."""
        return self.own.significant or self.total.significant


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two profiles, function by function.

    Attributes:
        before: The first profile.
        after: The second profile.
        columns: Index of the compared value in each profile.
        value_type: Type of the compared value.
        scale: Divisors of the costs.
        functions: Changes of all functions. Significant changes come first, then larger ones.
        whole: Cost of all samples together.
        drift: Relative change that all functions have in common, as by another machine or load. Significant changes
            differ from it.
        load: The same for a change of the time per second that is too large for a drift, so that shares are compared;
            otherwise 0.
        doubt: Why nothing is marked as significant, "" if significance was tested.
        caution: What the test of significance leaves out, "" if nothing.
        sides: Both profiles with what is known of their sampling. In `before` and `after`, unsampled time is divided
            among functions.
        unsampled: Costs that no function has, because there is no sample of their service.
        matching: The matched functions of each frame of both profiles.
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
    caution: str
    sides: tuple[SampledSide, SampledSide] = field(repr=False)
    unsampled: Amount
    matching: Matching = field(repr=False)

    def _repr_html_(self) -> str:
        """Return the HTML that Jupyter shows for this comparison: an <iframe> with the flame graph of both profiles."""
        page: str = find_function("render_comparison")(self)
        return page

    def top(self, count: int = 10, by: Literal["own", "total"] = "own") -> list[Change]:
        """Return the functions whose cost changed most between the profiles. Significant changes come first."""
        return self.sorted_by(by)[:count]

    def sorted_by(self, by: Literal["own", "total"]) -> list[Change]:
        """Return all functions whose cost changed: significant changes first, then those of the largest amount."""
        amounts = [(change, change.own if by == "own" else change.total) for change in self.functions]
        found = [(change, amount) for change, amount in amounts if amount.change]
        found.sort(
            key=lambda each: (
                not each[1].significant, not each[0].significant, -abs(each[1].change), each[0].function,
            )
        )  # fmt: skip
        return [change for change, _ in found]

    def grown(self, least: float) -> list[Change]:
        """Return the functions whose own or total cost grew significantly by more than a relative amount.

        Growth that all functions have in common (the drift) does not count.

        Args:
            least: Minimum relative growth; 0.05 is a twentieth.
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
        """Return a table with one row for each function: its name, its module, and for its own and total cost the
        columns before, after and significant.

        Args:
            library: Name of the library. None selects pandas if it is installed, otherwise polars.

        Raises:
            MissingLibrary: The library is not installed.
        """
        from pyprof.model.analysis.data_frame import frame_of

        return frame_of(self.to_columns(), library)

    def to_columns(self) -> dict[str, list[str] | list[float] | list[bool]]:
        """Return the table of functions that to_dataframe() has, as columns by name. Unknown costs are NaN."""
        found: dict[str, list[str] | list[float] | list[bool]] = {
            "function": [change.name for change in self.functions],
            "module": [change.module for change in self.functions],
        }
        for column in ("own", "total"):
            amounts = [change.own if column == "own" else change.total for change in self.functions]
            for at, name in enumerate(("before", "after")):
                sides = [amount.known[at] for amount in amounts]
                found[f"{column}_{name}"] = [float("nan") if side is None else side for side in sides]
            found[f"{column}_significant"] = [amount.significant for amount in amounts]
        return found

    def save(self, path: str | PathLike[str], format: str | None = None) -> None:
        """Write the comparison to a file atomically.

        Args:
            path: Path of the file.
            format: "html" (a page with a flame graph), "json" or "csv". None selects the format by the file's suffix.

        Raises:
            UsageError: There is no such format.
            OutputError: The file cannot be written.
        """
        find_function("save_comparison")(self, path, format)


_UNITS = {"nanoseconds": "nanoseconds", "count": "samples"}


def both(comparison: Comparison) -> Profile:
    """Return one profile with the samples of both compared profiles. Samples have two values, before and after, and no
    times.
    """
    frames, modules = _frames(comparison)
    markers: dict[tuple[str, Mark | None], int] = {}
    tree = Tree()
    stacks = []
    sides = (comparison.before, comparison.matching.before), (comparison.after, comparison.matching.after)
    for profile, rows in sides:
        found = [
            row or [markers.setdefault((frame.title, frame.mark), len(frames) + len(markers))]
            for row, frame in zip(rows, profile.frames, strict=True)
        ]
        stacks.append(_placed(profile, found, tree))
    before, after = comparison.before, comparison.after
    numbers = [len(before.stack), len(after.stack)]
    values = np.zeros((sum(numbers), 2), np.int64)
    values[: numbers[0], 0] = before.values[:, comparison.columns[0]]
    values[numbers[0] :, 1] = after.values[:, comparison.columns[1]]
    unit = "share" if comparison.scale.way == "samples" else _UNITS.get(comparison.value_type.unit, "samples")
    cut = [Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, title, mark) for title, mark in markers]
    return replace(
        after,
        value_types=(ValueType("before", unit), ValueType("after", unit)),
        title=f"{before.title} → {after.title}" if before.title != after.title else after.title,
        frames=(*frames, *cut),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        modules=modules,
        threads=before.threads + after.threads,
        time_ns=np.full(sum(numbers), after.start_ns, np.int64),
        stack=np.concatenate(stacks),
        thread=np.concatenate([before.thread, after.thread + np.int32(len(before.threads))]),
        values=values,
        state=None,
        cpu=None,
    )


def _placed(profile: Profile, rows: list[list[int]], tree: Tree) -> npt.NDArray[np.int32]:
    """Add the stacks of one of two compared profiles to their common tree. Return for each sample of the profile its
    node in the tree.

    Args:
        profile: The profile.
        rows: For each frame of the profile the numbers of its functions, outermost first.
        tree: The common tree, whose frames are these numbers.
    """
    frame_of = profile.frame.tolist()
    leaves, inverse = np.unique(profile.stack, return_inverse=True)
    place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], tree, leaves.tolist())
    return np.array([place[leaf] for leaf in leaves.tolist()], np.int32)[inverse]


def _frames(comparison: Comparison) -> tuple[list[Frame], tuple[ModuleInfo, ...]]:
    """Return a frame for each function of a comparison, and the modules of these frames."""
    sources: dict[int, str | None] = {}
    matching = comparison.matching
    for profile, rows in ((comparison.before, matching.before), (comparison.after, matching.after)):
        for row, frame in zip(rows, profile.frames, strict=True):
            sources.update(zip(row, (line.file for line in reversed(frame.lines)), strict=False))
    modules: dict[str, int] = {}
    frames = []
    for at, function in enumerate(matching.functions):
        native = function.kind == FrameKind.NATIVE and function.place
        module = modules.setdefault(function.place, len(modules)) if native else -1
        file = function.place if function.kind == FrameKind.INTERPRETER and function.place else sources.get(at)
        line = Line(function.name, function.name, 0, file)
        frames.append(Frame(function.kind, 0, 0, 0, module, (line,), Trust.CONTEXT, function.name))
    return frames, tuple(ModuleInfo(path, "", 0, 0, 0, True, False) for path in modules)
