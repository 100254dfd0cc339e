"""Tests of the judgement of the campaign on agents. `make test-agents` runs the campaign."""

from __future__ import annotations

import pytest

from pyprof.lazy_dataclasses import replace
from tests.survival.agents import Measured, judged, lost_s
from tests.survival.fast_agent import MAX_AGE_S, MAX_BYTES

pytestmark = [pytest.mark.live, pytest.mark.system]

SECOND = 10**9
USUAL = Measured(100 << 20, 50, 100, 1 << 20, 60.0)


def test_lost_is_what_came_after_the_last_window_or_the_start() -> None:
    assert lost_s([5 * SECOND, 20 * SECOND, 90 * SECOND], 10 * SECOND, 26 * SECOND) == 6.0
    assert lost_s([5 * SECOND, 90 * SECOND], 10 * SECOND, 26 * SECOND) == 16.0
    assert lost_s([], 10 * SECOND, 26 * SECOND) == 16.0


def test_growth_and_limits_that_are_not_kept_are_wrong() -> None:
    usual = [USUAL] * 8
    assert judged(usual) == []
    assert judged(usual[:4]) == ["too few looks"]
    for change in (
        {"memory": 120 << 20},
        {"descriptors": 90},
        {"bytes": 2 * MAX_BYTES},
        {"oldest_s": 2 * MAX_AGE_S},
    ):
        worse = replace(USUAL, **change)
        assert len(judged([*usual, worse, worse, worse])) == 1, change
