"""Tests of true shares for programs in step with the samples: a short form of `python -m tests.lockstep`."""

from __future__ import annotations

import pytest

from pyprof.collectors.base import CollectorRefused
from tests.lockstep.agent import record_shares_by_agent
from tests.lockstep.gaps import GAPS, ks_probability
from tests.lockstep.shares import COLLECTORS, record_shares
from tests.support import missing, pairs

pytestmark = [pytest.mark.live, pytest.mark.system]

CLOCKS = {"perf on threads": "cpu"}
"""Clocks of programs that do not alternate by wall time: events on threads count the time of their thread."""
RATE_HZ, SAMPLES, MAX_S = 1000.0, 400, 60.0
AGENT_SAMPLES = 120


@pytest.mark.parametrize(("collector", "period"), pairs(list(COLLECTORS), [1.0, 0.5]))
def test_program_in_step_has_its_shares_by_each_collector(collector: str, period: float) -> None:
    """Allow 5.5 standard deviations, which the binomial distribution exceeds once in 26 million runs."""
    try:
        (share,) = record_shares(
            collector,
            RATE_HZ,
            {"": period},
            lambda n, passed: n >= SAMPLES or passed > MAX_S,
            CLOCKS.get(collector, "wall"),
        )
    except CollectorRefused as error:
        missing(f"needs {collector}: {error.message}")
        raise
    assert sum(share.samples) > 50
    assert abs(share.z) < 5.5, share


def test_windows_of_the_agent_have_the_shares_of_a_program_in_step() -> None:
    """Allow 5.5 standard deviations, which the binomial distribution exceeds once in 26 million runs."""
    shares = record_shares_by_agent(
        99.0, {"1": 1.0, "1/2": 0.5}, lambda n, passed: n >= AGENT_SAMPLES or passed > MAX_S
    )
    for share in shares:
        assert sum(share.samples) > 20
        assert abs(share.z) < 5.5, share


@pytest.mark.parametrize(("collector", "rate_hz"), [("bpf", RATE_HZ), ("perf", 999), ("perf on threads", 999)])
def test_gaps_between_samples_have_the_designed_distribution(collector: str, rate_hz: float) -> None:
    """Allow a Kolmogorov-Smirnov distance that chance exceeds once in ten million runs."""
    try:
        found, designed = GAPS[collector](rate_hz, 4)
    except CollectorRefused as error:
        missing(f"needs events on processors: {error.message}")
        raise
    assert ks_probability(found, designed) > 1e-7
