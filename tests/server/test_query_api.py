"""Tests of the answers of the server's query API, on profiles that the test makes."""

from __future__ import annotations

from typing import cast

import pytest

from pyprof.fleet.server.query import query_api
from pyprof.fleet.server.query.profile_queries import ClientQueries
from pyprof.model.analysis.confidence_interval import SamplingBasis
from pyprof.model.profile import Profile
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
