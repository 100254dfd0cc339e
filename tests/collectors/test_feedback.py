"""Tests that feedback of a walk reaches the collector of its batch, also after further batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import NOBODY, CollectorStats, Feedback
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
from pyprof.collectors.perf.context_switch_source import PerfSwitchSource
from pyprof.collectors.perf.context_switches import DutyCycle
from pyprof.collectors.perf.event_attributes import MOST_STACK
from pyprof.model.arch import X86_64
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

FAR = 2 * MOST_STACK
"""Distance above the stack pointer, in bytes, that no kernel copy of the stack reaches."""


def sample(source_id: int) -> SampleBatch:
    """Return a batch with one sample of the main thread of this process."""
    one = np.ones(1, np.int64)
    return build_stackless_batch(X86_64, source_id, np.zeros(1, np.uint8), one, one * os.getpid(), one * os.getpid())


def taught(batch: SampleBatch, missing: int = 0) -> Feedback:
    none = np.zeros(len(batch), np.uint64)
    return Feedback(batch, none, none + np.uint64(missing), none > 0)


class Part:
    """A collector that yields given batches and records its feedback."""

    refused: frozenset[int] = frozenset()
    everything = False
    most_copy = MOST_STACK
    has_processes_left = True
    flush_s = 0.1
    stacks = True
    lost_ns = 0
    cycle = DutyCycle(everything=False, processors=1)
    handover = FlushProtocol()
    flushed_ns = 0

    def __init__(self, source_id: int, batches: Iterable[SampleBatch] = ()) -> None:
        self.source_id = source_id
        self.source_ids = frozenset((source_id,))
        self.learned: list[SampleBatch] = []
        self.alive = [os.getpid()]
        self.records = self.samples = self.members = self
        self._batches = list(batches) or [sample(source_id)]

    def batches(self) -> Iterator[SampleBatch]:
        yield from self._batches

    def yield_until(self, until_ns: int = 0) -> Iterator[SampleBatch]:
        yield sample(self.source_id)

    def learn(self, feedback: Feedback) -> None:
        self.learned.append(feedback.batch)

    def take_new_processes(self) -> set[int]:
        return set()

    def retire(self) -> None: ...

    def threads(self) -> list[ThreadInfo]:
        return []

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=1)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method without effect for each other name, such as leave_samples and stop."""
        return lambda *_: None


def as_any(part: Part) -> Any:
    return cast("Any", part)


def wall_clock(running: Part, switches: Part, looks: Part) -> WallClockCollector:
    source = PerfSwitchSource(as_any(running), as_any(switches))
    return WallClockCollector(source, lambda _: as_any(looks), CollectOptions(idle=True))


def test_each_part_of_a_wall_clock_recording_learns_from_its_own_batches() -> None:
    parts = {1: Part(1), 2: Part(2), 3: Part(3)}
    collector = wall_clock(parts[1], parts[2], parts[3])
    found = {number: sample(number) for number in (3, 1, 2)}
    for batch in found.values():  # all batches were taken before the feedback
        collector.learn(taught(batch))
    collector.learn(taught(sample(NOBODY)))
    assert {number: part.learned for number, part in parts.items()} == {n: [batch] for n, batch in found.items()}


@pytest.mark.parametrize(("source_id", "cuts"), [(1, True), (2, True), (3, False)])
def test_only_what_the_kernel_copied_counts_as_cut_by_it(source_id: int, cuts: bool) -> None:
    collector = wall_clock(Part(1), Part(2), Part(3))
    collector.learn(taught(sample(source_id), missing=FAR))
    assert any(note.reason == "stacks_not_copied" for note in collector.stats().notes) == cuts


def test_lanes_of_a_batch_keep_its_source() -> None:
    batch = replace(sample(7), followed=False)
    assert batch.take_samples(np.zeros(1, np.int64)).source_id == 7
