"""Makes a Comparison of two profiles, and computes the drift: the factor by which all functions changed together.

A drift has many causes. The processor may be slower today or shared with another program, or more requests came. Or one
function grew, and all others have a smaller share. Most functions then changed by the same factor, and the functions
that changed otherwise stand out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.comparison.function_matching import Matching, matching
from pyprof.comparison.result import Amount, Change, Comparison, SampledSide, Scale, sampled_side, scale_of
from pyprof.comparison.significance import (
    F64,
    MIN_SAMPLES,
    MIN_SLICES,
    Evidence,
    Judgement,
    Stacks,
    Sums,
    WeightedSamples,
    count_windows,
    judge,
    judge_by_samples,
    sample_counts,
    slices_of,
)
from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.confidence_interval import squared_weights
from pyprof.model.analysis.sample_filter import timed
from pyprof.model.profile import Profile, ValueType

LARGEST = 0.2
"""Maximum relative drift (change of all functions together) that is attributed to the machine: 0.2 is a fifth. A larger
one counts as a change of the program.
"""
_MIN_SAMPLES = 50
_MIN_FUNCTIONS = 5
_MAX_WEIGHT = 0.2
"""Maximum weight of one function in the drift, as a share of the sum of all weights. A function that is most of a
program must not decide alone.
"""
_ALIKE = 3.0
"""Maximum distance, in standard errors, between a function's change and the median change, for the function to agree
with the drift.
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """The factor by which most functions of a program changed together between two profiles, such as by another
    machine.

    Attributes:
        factor: Costs after, divided by costs before; 1 if functions do not agree.
        error: Relative standard error of the factor.
        ratios: (functions,) Logarithm of the factor by which each function changed.
        exact: (functions,) Inverse variance of each ratio, 0 for functions that are left out.
    """

    factor: float
    error: float
    ratios: F64
    exact: F64

    def beside(self) -> tuple[F64, F64]:
        """Return for each function the drift as computed from all other functions: (factor, relative standard error).

        A function's own change must not be a part of the drift with which it is compared.
        """
        rest = self.exact.sum() - self.exact
        known = (self.exact > 0) & (rest > 0)
        rest = np.where(known, rest, 1.0)
        said = self.exact * self.ratios
        others = np.where(known, said.sum() - said, 0.0) / rest
        return np.where(known, np.exp(others), self.factor), np.where(known, 1 / np.sqrt(rest), self.error)


def no_drift(functions: int) -> Drift:
    return Drift(1.0, 0.0, np.zeros(functions), np.zeros(functions))


def load_factor(rates: tuple[F64, F64], samples: tuple[F64, F64]) -> float:
    """Return the drift, that is the factor by which all functions changed together, without a maximum; 1 if they do not
    agree.

    With fewer than five functions all must agree, because one of two functions is no majority.

    Args:
        rates: Own cost of each function, before and after.
        samples: Number of samples of each function, before and after.
    """
    found = drift_of(rates, samples, np.inf, 1)
    judged = (samples[0] + samples[1] >= _MIN_SAMPLES) & ((rates[0] > 0) | (rates[1] > 0))
    if judged.sum() < _MIN_FUNCTIONS and (found.exact > 0).sum() < judged.sum():
        return 1.0
    return found.factor


def drift_of(
    rates: tuple[F64, F64], samples: tuple[F64, F64], largest: float, functions: int = _MIN_FUNCTIONS
) -> Drift:
    """Return the factor by which most functions changed together between two profiles (the drift).

    Args:
        rates: Own cost of each function, before and after.
        samples: Number of samples of each function, before and after.
        largest: Maximum relative drift that is attributed to the machine (see LARGEST). If it is 0 or exceeded, the
            result is a drift of 1.
        functions: Minimum number of functions with enough samples for a result.
    """
    none = no_drift(len(rates[0]))
    often = (samples[0] + samples[1] >= _MIN_SAMPLES) & (rates[0] > 0) & (rates[1] > 0)
    if often.sum() < functions or not largest:
        return none
    ratio = np.log(rates[1][often] / rates[0][often])
    variance = 1 / samples[0][often] + 1 / samples[1][often]
    exact = 1 / variance
    weight = np.minimum(exact, _MAX_WEIGHT * exact.sum())
    order = np.argsort(ratio, kind="stable")
    middle = ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)]
    alike = np.abs(ratio - middle) <= _ALIKE * np.sqrt(variance)
    if weight[alike].sum() < weight.sum() / 2:
        return none
    kept = np.where(alike, exact, 0)
    factor = float(np.exp((kept * ratio).sum() / kept.sum()))
    if not 1 / (1 + largest) <= factor <= 1 + largest:
        return none
    ratios, weights = none.ratios.copy(), none.exact.copy()
    ratios[often], weights[often] = ratio, kept
    return Drift(factor, float(1 / np.sqrt(kept.sum())), ratios, weights)


MIN_CHANGE = 0.01
"""Minimum relative change of a function that counts. Functions change by this much if the same program is built or
loaded a second time.
"""
_MAX_JUDGED = 4000
"""Maximum number of functions of a comparison whose change is tested. The most expensive ones are chosen."""
_COUNT = ValueType("samples", "count")


def compare(
    before: Profile,
    after: Profile,
    normalize: str | None = None,
    per: tuple[float, float] | None = None,
    least: float = MIN_CHANGE,
    drift: float = LARGEST,
) -> Comparison:
    """Compare two profiles function by function (see Profile.diff)."""
    if not 0 <= least < 1:
        raise UsageError("the smallest change is a fraction, at least 0 and below 1")
    if not 0 <= drift < 1:
        raise UsageError("the drift is a fraction, at least 0 and below 1")
    columns = _columns(before, after)
    for profile, column in zip((before, after), columns, strict=True):
        _check_values(profile, column)
    sides = sampled_side(before, columns[0]), sampled_side(after, columns[1])
    before, after = profiles = sides[0].profile, sides[1].profile
    weights = [profile.values[:, column] for profile, column in zip(profiles, columns, strict=True)]
    whole = float(sides[0].total), float(sides[1].total)
    scale = scale_of(before, after, whole, normalize, per)
    matched = matching(before, after)
    count = len(matched.functions)
    rows = (matched.before, matched.after)
    stacks = [Stacks(profile, each, count) for profile, each in zip(profiles, rows, strict=True)]
    sums = [each.sums(weight) for each, weight in zip(stacks, weights, strict=True)]
    counts = [each.sums(sample_counts(profile)) for each, profile in zip(stacks, profiles, strict=True)]
    load = 1.0
    if normalize is None and scale.way == "time" and drift:
        rates = sums[0].own / scale.before, sums[1].own / scale.after
        load = load_factor(rates, (counts[0].own, counts[1].own))
        load = load if not 1 / (1 + drift) <= load <= 1 + drift else 1.0
        scale = scale if load == 1 else scale_of(before, after, whole, "samples", None)
    caution = _caution(before, after) if all(side.basis for side in sides) else ""
    doubt = _too_few(*sides) or ("" if caution else _doubt(before, after))
    judged = Judgement(np.zeros(2 * count + 1, np.bool_), np.full(2 * count + 1, np.inf))
    found = no_drift(count)
    if not doubt:
        judged, found = _judged(profiles, stacks, weights, (sums, counts), scale, (least, drift), bool(caution))
    value_type = after.value_types[columns[1]]
    return Comparison(
        before,
        after,
        columns,
        value_type,
        scale,
        _with_ranges(_changes(matched, sums, scale, judged), sides, scale),
        Amount(whole[0] / scale.before, whole[1] / scale.after, bool(judged.significant[-1])),
        found.factor - 1,
        load - 1,
        doubt,
        "" if doubt else caution,
        sides,
        Amount(sides[0].unsampled / scale.before, sides[1].unsampled / scale.after, False),
        matched,
    )


def _check_values(profile: Profile, column: int) -> None:
    """Check that the profile has samples and that the value to compare is never negative.

    Raises:
        UsageError: The profile has no samples, or negative values.
    """
    if not len(profile.stack) or not profile.values[:, column].any():
        raise UsageError(f"{profile.title} has no samples: there is nothing to compare")
    if profile.values.min() < 0:
        raise UsageError(f"{profile.title} has negative values: it is already a difference")


def _columns(before: Profile, after: Profile) -> tuple[int, int]:
    """Return for each of two profiles the index of the value type that is compared.

    It is the primary value of both. If one profile only counts samples, it is the number of samples in both.

    Raises:
        UsageError: The profiles have no common value.
    """
    kinds = before.value_types[-1], after.value_types[-1]
    if kinds[0] == kinds[1]:
        return len(before.value_types) - 1, len(after.value_types) - 1
    if _COUNT in kinds and _COUNT in before.value_types and _COUNT in after.value_types:
        return before.value_types.index(_COUNT), after.value_types.index(_COUNT)
    words = [f"{kind.type} ({kind.unit})" for kind in kinds]
    raise UsageError(
        f"one has {words[0]}, the other {words[1]}: they cannot be compared", "record both with the same --mode"
    )


def _too_few(before: SampledSide, after: SampledSide) -> str:
    """Return a text that names the profiles with too few samples to know the cost of any function, "" if both have
    enough.
    """
    few = [
        f"{name} has {round(side.basis.samples) if side.basis else 0} samples for {side.total / 1e9:,.3g} s"
        for name, side in (("before", before), ("after", after))
        if side.has_few_samples
    ]
    return f"{' and '.join(few)} of processor time, so the costs of its functions are unknown" if few else ""


def _doubt(before: Profile, after: Profile) -> str:
    """Return a text that says why the significance of changes between two profiles cannot be tested, "" if it can."""
    if not (timed(before) and timed(after)):
        return "it is not known when samples were taken, so it is not known which changes are chance"
    if not (slices_of(before) and slices_of(after)):
        return "the recordings are too short to tell which changes are chance"
    return ""


def _caution(before: Profile, after: Profile) -> str:
    """Return a text that says what the significance test leaves out, "" for the usual test by slices of time."""
    windows = count_windows(before), count_windows(after)
    if all(not count or count >= MIN_SLICES for count in windows):
        return ""
    return (
        f"only the chance of sampling is tested: with fewer than {MIN_SLICES} windows a side it is not known how much "
        "windows differ by themselves"
    )


def _judged(
    profiles: tuple[Profile, Profile],
    stacks: list[Stacks],
    weights: list[npt.NDArray[np.int64]],
    totals: tuple[list[Sums], list[Sums]],
    scale: Scale,
    limits: tuple[float, float],
    by_samples: bool,
) -> tuple[Judgement, Drift]:
    """Test which changes between two profiles are significant: the own and the total cost of each function, and the sum
    of all samples.

    Args:
        profiles: The two compared profiles.
        stacks: Stacks of each profile, indexed by function.
        weights: Values of the samples of each profile.
        totals: Costs and numbers of samples of each profile, by function.
        scale: Divisors of costs.
        limits: Minimum relative change and maximum drift.
        by_samples: True if only the random error of sampling is tested, without slices of time.
    """
    sums, counts = totals
    size = len(sums[0].own)
    often = np.flatnonzero(counts[0].total + counts[1].total >= MIN_SAMPLES)
    dearest = np.argsort(-(sums[0].total / scale.before + sums[1].total / scale.after)[often], kind="stable")
    wanted = often[dearest[:_MAX_JUDGED]]
    own = [each.own[wanted] for each in sums]
    samples_own = counts[0].own[wanted], counts[1].own[wanted]
    drift = drift_of((own[0] / scale.before, own[1] / scale.after), samples_own, limits[1])
    factor, error = (
        np.concatenate([each, np.full(len(wanted) + 1, whole)])
        for each, whole in zip(drift.beside(), (drift.factor, drift.error), strict=True)
    )
    evidence, weighted = [], []
    for at, units in enumerate((scale.before * np.ones_like(factor), scale.after * factor)):
        samples = np.concatenate(
            [counts[at].own[wanted], counts[at].total[wanted], [sample_counts(profiles[at]).sum()]]
        )
        if by_samples:
            weighted.append(_weighted(profiles[at], stacks[at], weights[at], sums[at], wanted, samples, units))
            continue
        found = stacks[at].sliced(weights[at], slices_of(profiles[at]), wanted)
        values = np.concatenate([found.own, found.total, found.whole[:, None]], axis=1)
        evidence.append(Evidence(values, samples, found.whole, units, scale.way))
    if by_samples:
        judged = judge_by_samples(weighted[0], weighted[1], limits[0], error)
    else:
        judged = judge(evidence[0], evidence[1], limits[0], error)
    place = np.concatenate([wanted, size + wanted, [2 * size]])
    sure, detectable = np.zeros(2 * size + 1, np.bool_), np.full(2 * size + 1, np.inf)
    sure[place], detectable[place] = judged.significant, judged.detectable
    return Judgement(sure, detectable), drift


def _weighted(
    profile: Profile,
    stacks: Stacks,
    weights: npt.NDArray[np.int64],
    sums: Sums,
    wanted: npt.NDArray[np.int64],
    samples: F64,
    units: F64,
) -> WeightedSamples:
    """Return the costs of the selected functions of a profile, with the sums of squared sample weights that give their
    random errors.
    """
    each = squared_weights(profile.values[:, 0], weights)
    squares, whole = stacks.sums(each), float(weights.sum())
    values = np.concatenate([sums.own[wanted], sums.total[wanted], [whole]])
    squared = np.concatenate([squares.own[wanted], squares.total[wanted], [each.sum()]])
    return WeightedSamples(values, squared, samples, whole, float(each.sum()), units)


def _changes(matched: Matching, sums: list[Sums], scale: Scale, judged: Judgement) -> tuple[Change, ...]:
    size, sure, detectable = len(matched.functions), judged.significant, judged.detectable
    columns = [
        (sums[0].own / scale.before, sums[1].own / scale.after, sure[:size], detectable[:size]),
        (sums[0].total / scale.before, sums[1].total / scale.after, sure[size:-1], detectable[size:-1]),
    ]
    rows = [[Amount(*row) for row in zip(*(each.tolist() for each in column), strict=True)] for column in columns]
    found = [Change(function, own, total) for function, own, total in zip(matched.functions, *rows, strict=True)]
    found = [change for change in found if change.total.before or change.total.after]
    found.sort(
        key=lambda each: (
            not each.significant, -abs(each.own.change), -abs(each.total.change), each.function,
        )
    )  # fmt: skip
    return tuple(found)


def _with_ranges(
    changes: tuple[Change, ...], sides: tuple[SampledSide, SampledSide], scale: Scale
) -> tuple[Change, ...]:
    """Return the changes with costs and significances that respect time without samples. A cost is marked as unknown if
    the samples do not determine it.

    A function without samples may have a cost. If a part of the time has no samples, a change is significant only if it
    would be significant whichever function had that time.
    """
    is_partial, are_few = any(side.is_partial for side in sides), any(side.has_few_samples for side in sides)

    def known(amount: Amount) -> Amount:
        is_one_sided = bool(amount.before) != bool(amount.after)
        if not is_one_sided and not (is_partial and amount.significant):
            return amount
        low, high = zip(
            sides[0].bounds(amount.before * scale.before), sides[1].bounds(amount.after * scale.after), strict=True
        )
        is_possible = low[0] / scale.before <= high[1] / scale.after and low[1] / scale.after <= high[0] / scale.before
        is_significant = amount.significant and not (is_partial and is_possible)
        is_unknown = is_one_sided and (is_possible or are_few) and not is_significant
        return replace(amount, significant=is_significant, is_unknown=is_unknown)

    return tuple(replace(change, own=known(change.own), total=known(change.total)) for change in changes)
