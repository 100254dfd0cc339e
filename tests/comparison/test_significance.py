"""Tests of significance in simulated recordings with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.comparison.compare import drift_of
from pyprof.comparison.result import Amount, Comparison
from pyprof.model.profile import Profile
from tests.chance import most
from tests.comparison.simulated import SHARES, recording

PAIRS = 20


def sure(found: Comparison) -> set[str]:
    return {change.name for change in found.functions if change.significant}


def own(found: Comparison) -> set[str]:
    return {change.name for change in found.functions if change.own.significant}


def slowed(seed: int, seconds: float = 60) -> Profile:
    return recording(seed, seconds, SHARES | {"slowed": 1.1 * SHARES["slowed"]})


def test_equal_recordings_show_a_change_in_at_most_one_pair_of_twenty() -> None:
    shown = sum(bool(sure(recording(seed, 20).diff(recording(1000 + seed, 20)))) for seed in range(3 * PAIRS))
    assert shown <= most(0.05, 3 * PAIRS)


@pytest.mark.parametrize("name", ["slowed", "small3"])
def test_detectable_change_is_found_in_four_of_five_pairs(name: str) -> None:
    """Check that the power of 80 % lies within 72 to 88 %, which chance leaves once in 100,000 runs with this many
    pairs.
    """

    def change(found: Comparison) -> Amount:
        return next(each.own for each in found.functions if each.name == name)

    equal = [recording(seed, 20).diff(recording(100 + seed, 20), per=(1, 1)) for seed in range(PAIRS)]
    detectable = float(np.median([change(found).detectable for found in equal]))
    slower = SHARES | {name: (1 + detectable) * SHARES[name]}
    pairs = [recording(seed, 20).diff(recording(2000 + seed, 20, slower), per=(1, 1)) for seed in range(3 * PAIRS)]
    found = sum(change(each).significant for each in pairs)
    assert len(pairs) - found <= most(0.28, len(pairs))
    assert found <= most(0.88, len(pairs))


def test_recordings_four_times_as_long_detect_half_the_change() -> None:
    short, long = (
        [row.own.detectable for row in recording(0, s).diff(recording(1, s), per=(1, 1)).functions if row.name == "big"]
        for s in (15, 60)
    )
    assert long[0] / short[0] == pytest.approx(0.5, abs=0.15)


def test_nothing_is_detectable_of_a_function_with_few_samples() -> None:
    rare = recording(0, 20, SHARES | {"rare": 0.0002}).diff(recording(1, 20, SHARES | {"rare": 0.0002}))
    assert {row.own.detectable for row in rare.functions if row.name == "rare"} == {float("inf")}


def test_time_of_all_functions_alike_is_load_and_shares_are_compared() -> None:
    half = {name: share / 2 for name, share in SHARES.items()}
    found = recording(0, shares=half).diff(slowed(1))
    assert found.load == pytest.approx(1, abs=0.1)
    assert (found.scale.way, own(found)) == ("samples", {"slowed"})
    assert recording(0, shares=half).diff(recording(1), drift=0).load == 0


def test_one_of_two_functions_that_changed_is_no_load() -> None:
    found = recording(0, shares={"a": 0.5, "b": 0.3}).diff(recording(1, shares={"a": 0.25, "b": 0.3}))
    assert (found.load, found.scale.way) == (0, "time")
    assert own(found) == {"a"}


@pytest.mark.parametrize("normalize", ["time", "samples", "none"])
def test_two_recordings_of_one_program_show_nothing(normalize: str) -> None:
    shown = [recording(seed).diff(recording(100 + seed), normalize=normalize) for seed in range(PAIRS // 2)]  # type: ignore[arg-type]
    assert sum(bool(sure(found)) for found in shown) <= 1


def test_a_fifth_that_is_a_tenth_slower_is_found_each_time_and_nothing_else() -> None:
    found = [own(recording(seed).diff(slowed(200 + seed), per=(1000, 1000))) for seed in range(PAIRS)]
    assert sum("slowed" in names for names in found) == PAIRS
    assert sum(bool(names - {"slowed"}) for names in found) <= 1


def test_half_the_samples_show_it_mostly() -> None:
    found = [own(recording(seed, 30).diff(slowed(200 + seed, 30), per=(1000, 1000))) for seed in range(PAIRS // 2)]
    assert sum("slowed" in names for names in found) >= 8
    assert not any(names - {"slowed"} for names in found)


def test_what_changed_is_no_part_of_what_it_changed_beside() -> None:
    rates = np.array([1.0, 1.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.1])
    drift = drift_of(rates, (np.full(5, 400.0), np.full(5, 400.0)), 0.2)
    factor, error = drift.beside()
    assert drift.factor == pytest.approx(1.1 ** (1 / 5))
    assert factor == pytest.approx([1.1 ** (1 / 4)] * 4 + [1.0])
    assert error == pytest.approx([(1 / (4 * 200)) ** 0.5] * 5)
    alone = drift_of((rates[0], np.array([1, 1, 1, 1, 1.5])), (np.full(5, 400.0), np.full(5, 400.0)), 0.2)
    assert alone.beside()[0] == pytest.approx([1.0] * 5), "it is not alike"


def test_slower_function_makes_its_caller_slower() -> None:
    twice = recording(1, shares=SHARES | {"slowed": 0.4})
    (main,) = [change for change in recording(0).diff(twice).functions if change.name == "main"]
    assert main.total.significant
    assert not main.own.significant


def test_removed_and_new_functions_are_found() -> None:
    renamed = {("fast" if name == "middle" else name): share for name, share in SHARES.items()}
    found = recording(0).diff(recording(1, shares=renamed))
    assert sure(found) == {"middle", "fast"}
    by_name = {change.name: change.own for change in found.functions}
    assert by_name["fast"].relative == float("inf")
    assert by_name["middle"].after == 0


def test_what_happened_once_is_no_evidence_however_much_it_is() -> None:
    once = recording(1, bursts={"collect": 0.05})
    assert sum(share for name, share in SHARES.items() if name.startswith("small") and share < 0.05) < 0.2
    assert "collect" not in sure(recording(0, bursts={}).diff(once, normalize="none"))


def test_slow_waves_are_no_change() -> None:
    """Compare recordings of a program with two phases of a quarter of a minute, each of which has different phases."""
    from pyprof.lazy_dataclasses import replace

    def waves(seed: int, shift: float) -> Profile:
        whole = recording(seed, bursts={})
        second = (whole.time_ns - whole.start_ns) / 1e9 + shift
        resting = (whole.stack == 3) & (np.sin(2 * np.pi * second / 25) > 0)
        return replace(
            whole, **{name: getattr(whole, name)[~resting] for name in ("time_ns", "stack", "thread", "values")}
        )

    found = waves(0, 0).diff(waves(1, 9))
    (big,) = [change for change in found.functions if change.name == "big"]
    assert abs(big.own.relative) > 0.05
    assert not big.own.significant


def test_a_slower_machine_is_no_change_of_functions_and_hides_none() -> None:
    found = recording(0).diff(slowed(1), per=(107, 100))
    assert own(found) == {"slowed"}
    assert found.drift == pytest.approx(0.07, abs=0.02)
    assert {change.name for change in found.grown(0.05)} == {"slowed"}
    assert len(own(recording(0).diff(slowed(1), per=(107, 100), drift=0))) > 3


def test_program_that_is_twice_as_slow_is_no_drift() -> None:
    found = recording(0).diff(recording(1), per=(2, 1))
    assert found.drift == 0
    assert {"main", "big", "middle", "slowed"} <= sure(found)


def test_if_one_grows_the_smaller_shares_of_all_others_are_no_change() -> None:
    more = recording(1, shares=SHARES | {"big": 0.45})
    assert own(recording(0).diff(more, normalize="samples")) == {"big"}


def test_most_of_a_program_does_not_speak_for_all_of_it() -> None:
    shares = {"hot": 0.6} | {f"part{n}": 0.05 for n in range(8)}
    found = recording(0, shares=shares).diff(recording(1, shares=shares | {"hot": 0.72}), per=(1, 1))
    assert own(found) == {"hot"}
    assert abs(found.drift) < 0.02


def test_little_is_nothing_however_sure() -> None:
    more = recording(1, 300, {"big": 1.05, "rest": 1.0})
    less = recording(0, 300, {"big": 1.0, "rest": 1.0})
    assert "big" in own(less.diff(more, drift=0))
    assert "big" not in own(less.diff(more, drift=0, least=0.06))


def test_lengths_may_differ() -> None:
    found = recording(0, 30).diff(slowed(1, 120))
    assert own(found) <= {"slowed"}
    assert "slowed" in own(recording(0, 120).diff(recording(1, 30, SHARES | {"slowed": 0.3})))


def test_short_recordings_are_compared_and_nothing_is_marked() -> None:
    found = recording(0, 0.2).diff(recording(1, 0.2, {"other": 1.0}))
    assert "too short" in found.doubt
    assert sure(found) == set()
    assert {change.name for change in found.functions} >= {"slowed", "other"}
