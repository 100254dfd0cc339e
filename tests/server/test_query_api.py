"""Tests of the answers of the server's query API, on profiles that the test makes."""

from __future__ import annotations

from typing import cast

import pytest

from pyprof.fleet.server.query import query_api
from pyprof.fleet.server.query.profile_queries import ClientQueries
from pyprof.fleet.server.query.rows_to_profile import ProfileHead, StackCost, profile_of
from pyprof.model.analysis.confidence_interval import SamplingBasis
from pyprof.model.profile import Profile, ValueType
from tests.comparison.test_unsampled_parts import sampled
from tests.exporters.profiles import golden


class OneProfile:
    """Queries whose profile and number of samples the test sets."""

    def __init__(self, basis: SamplingBasis | None) -> None:
        self._basis = basis

    def profile_with_basis(self, *_: object, **__: object) -> tuple[Profile, SamplingBasis | None]:
        return golden(), self._basis


@pytest.mark.parametrize(("basis", "share"), [(SamplingBasis(3.0, 0.02), 0.98), (None, 0.0)])
def test_functions_tell_the_time_that_has_no_sample(basis: SamplingBasis | None, share: float) -> None:
    words = {"from": "0", "to": "60"}
    found = query_api.functions(cast(ClientQueries, OneProfile(basis)), "tenant", words)
    assert found["total"] == golden().total
    assert found["unsampled"] == round(share * golden().total)


class TwoProfiles:
    """Queries whose answer is one profile, then another."""

    def __init__(self, *profiles: Profile) -> None:
        self._profiles = list(profiles)

    def profile_by_windows(self, *_: object) -> Profile:
        return self._profiles.pop(0)


def test_comparison_says_unknown_where_a_side_has_no_samples() -> None:
    whole, none = sampled(1.0), sampled(0.0)
    words = {f"{side}.{name}": word for side in "ab" for name, word in (("from", "0"), ("to", "60"))}
    data, kind, name = query_api.diff(cast(ClientQueries, TwoProfiles(whole, none)), "", {**words, "format": "csv"})
    assert (kind, name) == ("text/csv", "diff.csv")
    rows = [row.split(",") for row in data.decode().splitlines()]
    before, after = rows[0].index("own_before"), rows[0].index("own_after")
    big = next(row for row in rows if row[0] == "big")
    assert float(big[before]) > 0
    assert big[after] == "", "not 0"


def test_functions_of_stored_windows_share_the_time_without_samples() -> None:
    def side(samples: int) -> Profile:
        costs = [
            StackCost((1, 0), "", (("service", "web"),), 10**9, 10**9, 100, 1e16),
            StackCost((2, 0), "", (("service", "web"),), 10**9, 10**9, samples, 1e16 if samples else 0),
        ]
        frames = {(1, 0): ["1"], (2, 0): ["2"]}
        head = ProfileHead("web", ValueType("cpu", "nanoseconds"), 0, 10**9, 10**9, (), ())
        return profile_of(costs, frames, head)[0]

    found = side(100).diff(side(0), normalize="time")
    assert (found.whole.before, found.whole.after, found.unsampled.after) == (2e9, 2e9, 0)
    assert max(each.own.after for each in found.functions) == 2e9
