"""Tests that one random overflow of the processor's event in each slot is a sample."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.collectors.bpf import kernel_program
from pyprof.collectors.bpf.kernel_program import choose_overflow_rate
from tests.bpf.user_space import UserSpace

pytestmark = pytest.mark.system

OVERFLOW = 1 << 16
PROCESS = 5


def sampled_overflows(slot: float, count: int) -> list[int]:
    """Return the indices of the overflows that were samples, out of count overflows."""
    said = UserSpace()
    said.constant("everything", 1)
    said.constant("overflows_per_sample", round(slot * OVERFLOW))
    for _ in range(count):
        said.sample(PROCESS, PROCESS, [0] * 17)
    ran, _ = said.run()
    return [number for number, each in enumerate(ran) if each.records]


@pytest.mark.parametrize("slot", [1.0, 1.5, 4.37, 16.18])
def test_number_of_samples_is_that_of_the_slots(slot: float) -> None:
    found = sampled_overflows(slot, 3000)
    assert abs(len(found) - 3000 / slot) <= 2


def test_each_place_of_a_program_in_step_is_sampled_alike() -> None:
    """Check the phases of a program whose period is four or five overflows, or a slot.

    The bound is six standard deviations, which chance exceeds with a probability of 2e-9 for each phase.
    """
    slot, count = 4.5, 8000
    found = np.array(sampled_overflows(slot, count))
    for period in (4, 5, 9):
        phases = np.bincount(found % period, minlength=period)
        expected = count / slot / period
        assert (abs(phases - expected) < 6 * expected**0.5).all(), (period, phases)


def test_gaps_are_as_different_as_uniform_places_make_them() -> None:
    gaps = np.diff(sampled_overflows(4.5, 8000))
    assert (gaps.min(), gaps.max()) == (1, 9)
    assert abs(gaps.mean() - 4.5) < 0.01
    # the variance of the difference of two uniform places; rounding to whole overflows makes it a little larger
    assert 2 * 4.5**2 / 12 * 0.85 < gaps.var() < 2 * 4.5**2 / 12 * 1.15


def test_without_slots_each_overflow_is_a_sample() -> None:
    assert sampled_overflows(0, 10) == list(range(10))


def test_event_never_overflows_more_often_than_the_kernel_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 400 < choose_overflow_rate(99) < 500
    monkeypatch.setattr(kernel_program, "max_sample_rate", lambda: 1000.0)
    assert choose_overflow_rate(999) == 1000
    assert choose_overflow_rate(5000) == 5000
