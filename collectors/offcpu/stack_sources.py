"""The source of each off-CPU interval's stack.

It is its own sample, an out-of-band sample, an earlier part of the interval, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pyprof.collectors.offcpu.interval_matching import Intervals, OpenInterval
from pyprof.collectors.switch_events import I64, Gap, Mask
from pyprof.records import dataclass, field

LaneIndices = Sequence[int] | I64


@dataclass(frozen=True, slots=True)
class DrainState:
    """Information for attributing off-CPU intervals, in addition to their samples.

    Attributes:
        gaps: Times of which records were lost.
        paused: Threads without records.
        ran_ns: Running time of threads that are paused or were paused until the last reading.
        weak: Samples whose stacks have less information than out-of-band samples.
        late: Out-of-band samples of threads that had already been woken.
        ends_window: True if no later drain belongs to the same window.
    """

    gaps: Sequence[Gap] = ()
    paused: frozenset[int] = frozenset()
    ran_ns: Mapping[int, int] = field(default_factory=dict)
    weak: LaneIndices = ()
    late: LaneIndices = ()
    ends_window: bool = False


@dataclass(frozen=True, slots=True)
class IntervalClasses:
    """Masks of n off-CPU intervals, one for each source of their stacks.

    Attributes:
        before: The interval's stack is known from an earlier part.
        by_sample: Its stack is that of its sample.
        by_out_of_band: Its stack is that of its out-of-band sample.
        pooled: It has no stack and gets that of another interval.
        blocked: Its thread waited for more than a processor.
        wanted: Its time is shown.
        unsure: Its thread may have run instead.
    """

    before: Mask
    by_sample: Mask
    by_out_of_band: Mask
    pooled: Mask
    blocked: Mask
    wanted: Mask
    unsure: Mask

    @property
    def own_stack(self) -> Mask:
        """Mask of off-CPU intervals that have their own stack."""
        return self.before | self.by_sample | self.by_out_of_band


def classify_intervals(
    found: Intervals, opened: Mapping[int, OpenInterval], drain: DrainState, preempted: bool, looked_at_ns: int
) -> IntervalClasses:
    """Decide where the stack of each off-CPU interval comes from.

    Args:
        found: The intervals.
        opened: Intervals that continued from before, by tid.
        drain: Further information for this reading of the rings.
        preempted: See OffCpuIntervals.
        looked_at_ns: See OffCpuIntervals.
    """
    whose = zip(found.tid.tolist(), found.carried.tolist(), strict=True)
    carried = [opened[tid] if is_carried else None for tid, is_carried in whose]
    before = np.array([each is not None and each.attributed for each in carried], np.bool_)
    doubted: Mask = np.array([each is not None and not each.sure for each in carried], np.bool_)
    unsure = doubted & found.open & (found.out_of_band < 0)
    # a thread that sleeps that long gets an out-of-band sample
    runnable = doubted & ~found.open & (found.out_of_band < 0) & (found.end_ns - found.start_ns > looked_at_ns)
    blocked = found.blocked & ~runnable
    wanted = blocked | preempted
    sampled = found.sample >= 0
    poor = np.zeros(len(sampled), np.bool_)
    poor[sampled] = np.isin(found.sample[sampled], drain.weak) & blocked[sampled]
    left_to_sample = (
        np.isin(found.out_of_band, drain.late) & ~found.open & np.isin(found.tid, found.tid[~before & sampled & ~poor])
    )
    by_out_of_band = ~before & (found.out_of_band >= 0) & (~sampled | poor) & ~left_to_sample
    better = np.isin(found.tid, found.tid[by_out_of_band]) | (found.open & (not drain.ends_window))
    by_sample = ~before & ~by_out_of_band & sampled & ~(poor & better)
    pooled = ~before & ~by_sample & ~by_out_of_band & wanted & ~unsure & (~found.open | drain.ends_window)
    return IntervalClasses(before, by_sample, by_out_of_band, pooled, blocked, wanted, unsure)
