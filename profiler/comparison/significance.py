"""Tests which changes between two recordings are significant, by the costs in slices of time.

The input is the cost of each function in equal slices of time of both recordings. A change is significant if it exceeds
a threshold in standard errors. Chance alone exceeds the threshold anywhere, in all functions and in own and total cost,
in only one of thirty comparisons. A significant change must also differ significantly from the relative change that the
caller ignores. That second test is one-sided.

* The standard error is that of sums over slices, taken alone and in groups of four, so that slow variations count. It
  is at least that of independent samples.
* The threshold is the largest number of standard errors of all functions in a bootstrap. It draws slices again, with
  all functions of a slice at once (Westfall and Young, Resampling-Based Multiple Testing, 1993). It is widened like
  Student's t, because the standard error comes from few slices.
* A function that is busy in only a few slices is not tested: it may be in only one of the recordings by chance.

A profile of the agent's windows has one time for each window, so its windows serve as slices. A few windows do not show
how much windows differ. The totals of windows are exact, so the random error of sampling alone decides then: the error
of a function's share by the weights of its samples (judge_by_samples).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.merge import recorded_until
from pyprof.model.profile import Profile

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

SLICES = 40
"""Maximum number of time slices into which a recording is divided for significance tests.

A slice must be long enough to depend little on the one before, and there must be enough slices to estimate chance.
"""
MIN_SLICES = 12
_MIN_NS = 50_000_000
MERGED = 4
"""Number of time slices in a group. The variation of costs is measured over single slices and over groups of slices."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Costs of functions in two arrays of shape (functions,). `own` is from samples with the function as the innermost
    one, `total` from samples with the function anywhere on the stack.
    """

    own: F64
    total: F64


@dataclass(frozen=True, slots=True)
class SlicedSums:
    """The costs of functions in each slice of time.

    Attributes:
        own: (slices, functions) Cost as the innermost function.
        total: (slices, functions) Cost anywhere on the stack.
        whole: (slices,) Cost of all samples.
    """

    own: F64
    total: F64
    whole: F64


_OF_WINDOWS = frozenset({"read_from_segments", "read_from_windows"})
"""Ids of the notes of profiles that were read from the agent's windows."""


def count_windows(profile: Profile) -> int:
    """Return the number of the agent's windows from which a profile was read, 0 for a profile of a recording."""
    is_of_windows = any(note.reason in _OF_WINDOWS for note in profile.summary.notes)
    return len(np.unique(profile.time_ns)) if is_of_windows else 0


def sample_counts(profile: Profile) -> I64:
    """Return the number of samples that each row of a profile represents, (n,). A row of an agent's window may
    represent several.
    """
    return profile.values[:, 0] if count_windows(profile) else np.ones(len(profile.values), np.int64)


class Stacks:
    """The stack tree of a profile, indexed so that the cost of each function can be summed over any samples.

    Nodes of the tree are numbered in depth-first order, so all nodes below a node are a range.
    """

    def __init__(self, profile: Profile, rows: list[list[int]], functions: int) -> None:
        """Index the functions on each stack of a profile.

        Args:
            profile: The profile.
            rows: For each frame of the profile the numbers of its functions, outermost first. A frame has several if
                functions are inlined, and none if it is a marker.
            functions: Number of functions.
        """
        self._profile, self._functions = profile, functions
        self._place, self._innermost, (self._function, self._first, self._last) = _number_nodes(
            profile, rows, functions
        )

    def sums(self, weights: npt.NDArray[np.generic], chosen: I64 | slice = slice(None)) -> Sums:
        """Return the own and the total cost of each function, as sums of the samples' values.

        Args:
            weights: (samples,) Values of the samples.
            chosen: Indices of the samples to use.
        """
        nodes, values = self._profile.stack[chosen], weights[chosen]
        innermost = self._innermost[nodes] + 1
        own = _summed(innermost, values, self._functions + 1)[1:]
        by_place = _summed(self._place[nodes], values, len(self._place))
        upto = np.append(0.0, np.cumsum(by_place))
        below = upto[self._last] - upto[self._first]
        return Sums(own, _summed(self._function, below, self._functions))

    def sliced(self, weights: npt.NDArray[np.int64], slices: int, wanted: I64) -> SlicedSums:
        """Return the own and total costs of functions, separately for equal slices of the recorded time.

        Args:
            weights: (samples,) Values of the samples.
            slices: Number of slices.
            wanted: (w,) Numbers of the functions whose costs are returned.
        """
        profile = self._profile
        if windows := count_windows(profile):
            at = np.unique(profile.time_ns, return_inverse=True)[1] * slices // windows
        else:
            at = np.clip(recorded_until(profile) * slices // max(profile.recorded_ns, 1), 0, slices - 1)
        order = np.argsort(at, kind="stable")
        ends = np.searchsorted(at[order], np.arange(slices + 1))
        own, total = np.zeros((slices, len(wanted))), np.zeros((slices, len(wanted)))
        for each in range(slices):
            found = self.sums(weights, order[ends[each] : ends[each + 1]])
            own[each], total[each] = found.own[wanted], found.total[wanted]
        return SlicedSums(own, total, _summed(at, weights, slices))


def _summed(at: I64, values: npt.NDArray[np.generic], length: int) -> F64:
    return np.bincount(at, values.astype(np.float64), length).astype(np.float64)


def slices_of(profile: Profile) -> int:
    """Return the number of time slices into which a profile is divided for significance tests, 0 if it is too short."""
    count = min(SLICES, count_windows(profile) or profile.recorded_ns // _MIN_NS) // MERGED * MERGED
    return count if count >= MIN_SLICES else 0


def _number_nodes(profile: Profile, rows: list[list[int]], functions: int) -> tuple[I64, I64, tuple[I64, I64, I64]]:
    """Number the stack tree's nodes in depth-first order, so that a subtree is a range of numbers.

    Args:
        profile: The profile.
        rows: For each frame of the profile the numbers of its functions, outermost first.
        functions: Number of functions.

    Returns:
        Number of each node; its innermost function or -1; and for each outermost occurrence of a function the columns
            (function, first number of its subtree, number after the last).
    """
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    children: list[list[int]] = [[] for _ in parent]
    for node in range(len(parent) - 1, 0, -1):
        children[parent[node]].append(node)
    place, innermost = [0] * len(parent), [-1] * len(parent)
    inside = bytearray(functions)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    entered: list[list[int]] = []
    todo, at = children[0], 1
    while todo:
        node = todo.pop()
        if node < 0:
            for pair in entered.pop():
                found[2][pair] = at
                inside[found[0][pair]] = 0
            continue
        place[node] = at
        row, pairs = rows[frame[node]], []
        for function in row:
            if not inside[function]:
                inside[function] = 1
                pairs.append(len(found[0]))
                for column, number in zip(found, (function, at, 0), strict=True):
                    column.append(number)
        entered.append(pairs)
        at += 1
        if row:
            innermost[node] = row[-1]
        todo.append(-1)
        todo.extend(children[node])
    columns = [np.array(column, np.int64) for column in found]
    return np.array(place, np.int64), np.array(innermost, np.int64), (columns[0], columns[1], columns[2])


Mask = npt.NDArray[np.bool_]

ODDS = 0.03
"""Probability that a comparison of two runs of an unchanged program shows any significant change."""
MIN_SAMPLES = 10
MIN_SPREAD = 8.0
"""Minimum effective number of time slices, in both recordings together, in which a function must be busy to be tested.
The effective number is the squared sum of its costs divided by the sum of their squares.
"""
POWER_QUANTILE = 0.8416212335729143
"""Quantile of the normal distribution for a statistical power of 80 %."""
_MOST = 0.5
_DRAWS = 2000
_AT_ONCE = 512
_SEED = 20
"""Seed of the random numbers for significance tests. It is fixed, so that the same files give the same result."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The costs of one of two compared recordings in slices of time, one column for each tested cost.

    Attributes:
        values: (slices, columns) Costs.
        samples: (columns,) Number of samples.
        load: (slices,) Cost of all samples.
        units: (columns,) Divisors that make the sums of the two recordings comparable.
        way: Kind of the scale: "time", "samples" or "work" (see Scale).
    """

    values: F64
    samples: F64
    load: F64
    units: F64
    way: str

    @property
    def rate(self) -> F64:
        found: F64 = self.values.sum(axis=0) / self.units
        return found

    @property
    def beside(self) -> F64:
        """Return by how much each tested cost deviates from its expected value in each slice of time, (slices,
        columns).

        Either the same cost is expected in each slice, or the same share of all samples. If both are possible, as for
        units of work that took longer or came less often, the expectation that fits better is used. The share is not
        used for a function that has most of all samples.
        """
        share = self.values.sum(axis=0) / self.load.sum()
        even = self.values - self.values.mean(axis=0)
        shared = self.values - self.load[:, None] * share
        better = (share <= _MOST) & ((shared**2).sum(axis=0) < (even**2).sum(axis=0))
        if self.way != "work":
            better = np.full(len(share), self.way == "samples")
        found: F64 = np.where(better, shared, even)
        return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """The significant changes of a comparison, and the changes that it could have detected.

    Attributes:
        significant: (columns,) True if the change of the column is significant.
        detectable: (columns,) Smallest increase, relative to the cost before, that would be detected with a probability
            of 80 %; infinite if no increase would be.
    """

    significant: Mask
    detectable: F64


def judge(before: Evidence, after: Evidence, least: float, unsure: F64) -> Judgement:
    """Test whether the change of each column between two recordings is significant.

    Args:
        before: Costs of the first recording.
        after: Costs of the second recording.
        least: The relative change that is ignored, 0..1.
        unsure: (columns,) Relative standard error of the divisors that make the recordings comparable.
    """
    error = np.hypot(_standard_error(before, after), unsure * np.maximum(before.rate, after.rate))
    judged = _judged(before, after) & (error > 0)
    return _judgement((before.rate, after.rate), error, judged, _reach(before, after, judged), least)


def _judgement(rates: tuple[F64, F64], error: F64, judged: Mask, reach: tuple[float, float], least: float) -> Judgement:
    """Return which of the tested changes exceed both thresholds of _reach(), and which increases would exceed them."""
    before, after = rates
    change, nothing = np.abs(after - before), least * np.maximum(before, after)
    found: Mask = judged & (change > np.maximum(reach[0] * error, reach[1] * error + nothing))
    is_known = judged & (before > 0)
    part = error / np.sqrt(np.where(is_known, before * (before + after) / 2, 1))
    return Judgement(found, np.where(is_known, _detectable(part, reach, least), np.inf))


@dataclass(frozen=True, slots=True)
class WeightedSamples:
    """The costs of one of two compared profiles whose total is exact, one column for each tested cost.

    Attributes:
        values: (columns,) Costs.
        squares: (columns,) Sums of the squared weights of samples (squared_weights()).
        samples: (columns,) Number of samples.
        whole: Cost of all samples.
        whole_squares: Sum of the squared weights of all samples.
        units: (columns,) Divisors of the costs.
    """

    values: F64
    squares: F64
    samples: F64
    whole: float
    whole_squares: float
    units: F64

    @property
    def rate(self) -> F64:
        found: F64 = self.values / self.units
        return found

    def variance(self, rate: F64) -> F64:
        """Return the variance of each cost rate. It is the larger one of two estimates: from the samples' weights, and
        for an expected rate.
        """
        share = self.values / self.whole
        expected = np.minimum(rate * self.units / self.whole, 1)
        own = (1 - share) ** 2 * self.squares + share**2 * (self.whole_squares - self.squares)
        found: F64 = np.maximum(own, self.whole_squares * expected * (1 - expected)) / self.units**2
        return found


def judge_by_samples(before: WeightedSamples, after: WeightedSamples, least: float, unsure: F64) -> Judgement:
    """Test for each cost whether it has changed by more than the random error of sampling. The arguments are those of
    judge().
    """
    from statistics import NormalDist

    judged = before.samples + after.samples >= MIN_SAMPLES
    expected = (before.rate + after.rate) / 2
    variance = before.variance(expected) + after.variance(expected)
    error = np.sqrt(variance + (unsure * np.maximum(before.rate, after.rate)) ** 2)
    judged &= error > 0
    tests = max(int(judged.sum()), 1)
    reach = NormalDist().inv_cdf(1 - ODDS / (2 * tests)), NormalDist().inv_cdf(1 - ODDS / tests)
    return _judgement((before.rate, after.rate), error, judged, reach, least)


def _detectable(part: F64, reach: tuple[float, float], least: float) -> F64:
    """Return the smallest relative increase d of a cost that exceeds both thresholds with a probability of 80 %.

    Let r be the cost before. The variance of a count is its mean. So the error of the difference between r (1 + d) and
    r is that of two equal costs times the root of 1 + d / 2. Then d is the larger of the positive solutions of these
    equations, where z is the quantile for a power of 80 %:

        d = (anywhere + z) part sqrt(1 + d / 2)
        d = (one_way + z) part sqrt(1 + d / 2) + least (1 + d)

    Args:
        part: Error of two equal costs, divided by the cost.
        reach: The thresholds anywhere and one_way, in standard errors.
        least: The relative change that is ignored.
    """
    solutions = []
    for errors, nothing in zip(reach, (0.0, least), strict=True):
        square = ((errors + POWER_QUANTILE) * part) ** 2
        # (1 - nothing)^2 d^2 - 2 half d + nothing^2 - square = 0
        half, factor = nothing * (1 - nothing) + square / 4, (1 - nothing) ** 2
        solutions.append((half + np.sqrt(half**2 + factor * (square - nothing**2).clip(0))) / factor)
    found: F64 = np.maximum(*solutions)
    return found


def _standard_error(before: Evidence, after: Evidence) -> F64:
    """Return the standard error of the change of each cost rate: the largest of several estimates.

    The variation between slices is estimated from both recordings together, and from each recording separately.
    """
    floor = _of_independent_samples(before, after)
    largest = floor / (before.units * after.units)
    for merged in (1, MERGED):
        spread = [_spread(side.beside, merged) for side in (before, after)]
        largest = np.maximum(largest, (spread[0] + spread[1]) / (before.units * after.units))
        largest = np.maximum(largest, spread[0] / before.units**2 + spread[1] / after.units**2)
    found: F64 = np.sqrt(largest)
    return found


def _spread(beside: F64, merged: int) -> F64:
    """Return the variance of each column's sum over all time slices, estimated from groups of `merged` slices. The
    first argument has the deviation of each slice from its expected value.
    """
    groups = beside.reshape(-1, merged, beside.shape[1]).sum(axis=1)
    found: F64 = (groups**2).sum(axis=0) * len(groups) / (len(groups) - 1)
    return found


def _of_independent_samples(before: Evidence, after: Evidence) -> F64:
    """Return the variance of each cost's sum over both recordings, under the assumption that the samples of a function
    are independent of each other.
    """
    value = before.values.sum(axis=0) + after.values.sum(axis=0)
    samples = np.maximum(before.samples + after.samples, 1)
    share = np.minimum(value / (before.load.sum() + after.load.sum()), 1)
    found: F64 = value**2 / samples * (1 - share)
    return found


def _judged(before: Evidence, after: Evidence) -> Mask:
    values = np.concatenate([before.values, after.values])
    squares = (values**2).sum(axis=0)
    spread = values.sum(axis=0) ** 2 / np.where(squares > 0, squares, 1)
    found: Mask = (before.samples + after.samples >= MIN_SAMPLES) & (spread >= MIN_SPREAD)
    return found


def _reach(before: Evidence, after: Evidence, judged: Mask) -> tuple[float, float]:
    """Return how many standard errors a change must exceed to count as significant.

    Returns:
        Two thresholds: for the largest change of all columns, and for the largest change in one direction.
    """
    random = np.random.default_rng(_SEED)
    draws = []
    for side in (before, after):
        slices = len(side.load)
        draws.append(random.multinomial(slices, np.full(slices, 1 / slices), _DRAWS))
    up, down = np.zeros(_DRAWS), np.zeros(_DRAWS)
    sides = [side.beside[:, judged] / side.units[judged] for side in (before, after)]
    errors = np.sqrt(sum((side**2).sum(axis=0) for side in sides))
    for first in range(0, int(judged.sum()), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        change = draws[1] @ sides[1][:, part] - draws[0] @ sides[0][:, part]
        known = errors[part] > 0
        if known.any():
            reached = change[:, known] / errors[part][known]
            np.maximum(up, reached.max(axis=1), out=up)
            np.maximum(down, -reached.min(axis=1), out=down)
    freedom = len(before.load) + len(after.load) - 2
    found = [np.quantile(np.maximum(up, down), 1 - ODDS), np.quantile(np.concatenate([up, down]), 1 - ODDS)]
    anywhere, one_way = (float(reach * (1 + (reach**2 + 1) / (4 * freedom))) for reach in found)
    return anywhere, one_way
