"""Tests of random rates of events: the average is the requested rate, and no program is in step with them."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from pyprof.collectors.perf.random_sampling import LIFE_PERIODS, SPREAD, RandomRates, SampleCounter
from pyprof.collectors.perf.ring_buffer_records import COMM, Rings
from tests.lockstep.gaps import event_times
from tests.lockstep.shares import PERIODS
from tests.perf.test_records import SIZE, Written, other, sample


@pytest.mark.parametrize("seed", range(3))
def test_average_rate_is_the_wanted_one(seed: int) -> None:
    times = event_times(20_000, random.Random(seed))
    assert abs(20_000 / times[-1] - 1) < 0.01


@pytest.mark.parametrize("period", PERIODS.values(), ids=str)
def test_shares_of_a_program_in_step_are_not_further_off_than_chance_allows(period: float) -> None:
    z = []
    for seed in range(60):
        first = event_times(2000, random.Random(seed)) / period % 1 < 0.5
        z.append((first.sum() - 1000) / 500**0.5)
    assert max(map(abs, z)) < 5.5
    assert np.var(z) < 1.9, "of sixty values with variance 1 that is five standard deviations"


def test_every_other_rate_mirrors_the_one_before() -> None:
    rates = RandomRates(100, random.Random(1).uniform)
    rates.begin(7, 100)
    drawn = [rates.change(7) for _ in range(4)]
    middle = sum(SPREAD) * 100 * (1 + 0.5 / LIFE_PERIODS)
    assert drawn[0] + drawn[1] == pytest.approx(middle)
    assert drawn[2] + drawn[3] == pytest.approx(middle)
    assert len({100, *drawn}) == 5


def test_rate_lasts_for_the_time_of_some_periods_whatever_it_is() -> None:
    for rate_hz in (50, 150):
        rates = RandomRates(100)
        rates.begin(7, rate_hz)
        counts = 1
        while not rates.is_over(7, 1):
            counts += 1
        assert counts / rate_hz == pytest.approx(LIFE_PERIODS / 100, rel=0.1)


def test_event_that_was_closed_gets_no_other_rate() -> None:
    rates = RandomRates(100)
    rates.begin(7, 100)
    rates.forget(7)
    assert not rates.is_over(7, 10**6)


def test_samples_are_counted_once_also_across_the_end_of_a_ring() -> None:
    ring = Written()
    ring.start_at(SIZE - 1000)
    counter = SampleCounter(cast(Rings, SimpleNamespace(rings={3: ring.ring}, words=ring.words)))
    for n in range(4):
        ring.write(sample(10 + n, 5, b""))
        ring.write(other(COMM, 20 + n, b"\0" * 16))
    found: Counter[int] = Counter()
    counter.count(found)
    counter.count(found)
    assert found == {3: 4}
    ring.write(sample(30, 9, b""))
    counter.count(found)
    assert found == {3: 5}
