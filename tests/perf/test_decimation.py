"""Tests of keeping one sample in place of several, with their total weight."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collector_control import Stride
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.collectors.perf.random_sampling import Decimation, RandomSelection
from pyprof.collectors.perf.ring_buffer_records import SampleRecords
from pyprof.model.sample_batch import SampleBatch, SampleKind
from tests.lockstep.gaps import ks_probability

pytestmark = [pytest.mark.live, pytest.mark.system]


def batch(first: int, n: int) -> SampleBatch:
    ids = np.arange(first, first + n)
    kind = np.full(n, SampleKind.STOPPED, np.uint8)
    return build_stackless_batch(WIDE, 1, kind, ids.astype(np.int64), ids.astype(np.int32), ids.astype(np.int32))


@given(st.integers(1, 16), st.lists(st.integers(0, 40), max_size=30))
def test_weights_sum_to_all_samples_and_no_run_is_without_one(every: int, sizes: list[int]) -> None:
    stride = Stride()
    decimation, first, kept = Decimation(stride), 0, []
    stride.every = every
    for size in sizes:
        found = decimation.thin_batch(batch(first, size))
        assert set(found.weight.tolist()) <= {every}
        kept += found.time_ns.tolist()
        first += size
    runs = [time // every for time in kept]
    assert runs == sorted(set(runs))
    assert first // every <= len(kept) <= -(-first // every)


def test_stride_that_changes_is_obeyed_at_once() -> None:
    stride = Stride()
    decimation = Decimation(stride)
    assert (decimation.thin_batch(batch(0, 10)).weight == 1).all()
    stride.every = 5
    assert decimation.thin_batch(batch(0, 10)).weight.tolist() == [5, 5]
    stride.every = 1
    assert decimation.thin_batch(batch(0, 10)).weight.tolist() == [1] * 10


def test_each_of_a_run_is_drawn_as_often_as_the_others() -> None:
    draw = RandomSelection()
    draw.start_groups(4)
    found = np.bincount(
        np.concatenate([(base + draw.choose_items(7)) % 4 for base in range(0, 70_000, 7)]), minlength=4
    )
    assert found.sum() == 17_500
    assert (abs(found - 4375) < 6 * 4375**0.5).all()


@pytest.mark.parametrize("mean", [2.618, 3.5, 4.0])
def test_items_are_drawn_equally_often_and_at_the_designed_distances(mean: float) -> None:
    draw, chance = RandomSelection(), random.Random(1)
    draw.start_groups(mean)
    found, base = [], 0
    while base < 100_000:
        n = chance.randrange(50)
        found.append(base + draw.choose_items(n))
        base += n
    places = np.concatenate(found)
    assert abs(len(places) - base / mean) < 6 * (base / mean) ** 0.5 / mean
    phases = np.bincount(places % 8, minlength=8)
    assert (abs(phases - len(places) / 8) < 6 * (len(places) / 8) ** 0.5).all()
    designed, start = [], 0
    for _ in range(20_000):
        size = int(mean) + (chance.random() < mean % 1)
        designed.append(start + chance.randrange(size))
        start += size
    assert ks_probability(np.diff(places).astype(np.float64), np.diff(designed).astype(np.float64)) > 1e-7


def test_samples_are_chosen_before_anything_is_done_for_them() -> None:
    stride = Stride()
    decimation, kept = Decimation(stride), 0
    stride.every = 4
    for size in (0, 1, 2, 7, 40, 350):
        chosen, every = decimation.choose(size)
        assert every == (4 if size else 1)
        assert sorted(set(chosen.tolist())) == chosen.tolist()
        assert all(0 <= at < size for at in chosen.tolist())
        kept += len(chosen)
    assert kept == 100
    stride.every = 1
    assert decimation.choose(3)[0].tolist() == [0, 1, 2]


class RingOfSamples:
    """A source of BPF samples whose times are 0 to n - 1. It stores for which samples frames were wanted."""

    words = np.zeros(0, np.uint64)

    def __init__(self, n: int) -> None:
        self.lanes: list[int] = []
        self._n = n

    def take_samples(self, until_ns: int) -> SampleRecords:
        n = self._n
        ids, empty = np.arange(n), np.zeros(n, np.int64)
        registers, words = np.zeros((n, 1), np.uint64), np.zeros(n, np.uint64)
        names = ids.astype(np.int32)
        return SampleRecords(ids, names, names, names, registers, words, empty, empty, None, ((),), names < 0)

    def with_frames(self, batch: SampleBatch, lanes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> SampleBatch:
        assert batch.time_ns.tolist() == lanes.tolist(), "each sample gets the frames of its own record"
        self.lanes += lanes.tolist()
        return batch


def test_bpf_samples_that_a_stride_drops_are_dropped_before_they_are_placed() -> None:
    source, stride, placed = RingOfSamples(40), Stride(), list[int]()
    stride.every = 8

    def take_samples(until_ns: int, samples: SampleRecords, words: object) -> SimpleNamespace:
        placed.extend(samples.time_ns.tolist())
        found = build_stackless_batch(
            WIDE, 1, np.full(len(samples), SampleKind.STOPPED, np.uint8), samples.time_ns, samples.pid, samples.tid
        )
        return SimpleNamespace(switched=found, wanted=samples.time_ns >= 8)

    nothing = dict.fromkeys(("read_times", "count_batch"), lambda *arguments: None)
    samples: Any = BpfSamples.__new__(BpfSamples)
    samples.__dict__.update(dict.fromkeys(("reopen_events", "release_samples"), lambda *arguments: None))
    samples._records = SimpleNamespace(accounts=SimpleNamespace(**nothing), take_samples=take_samples)
    samples.__dict__.update(source=source, _decimation=Decimation(stride), _taken=0, _used=0)
    (part,) = samples.read_batches(1 << 40)
    assert [time // 8 for time in placed] == [0, 1, 2, 3, 4]
    assert part.time_ns.tolist() == source.lanes == placed[1:]
    assert part.weight.tolist() == [8] * 4
    assert (samples._used, samples._taken) == (4, 32)
