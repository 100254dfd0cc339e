"""Tests of the ptrace collector's knowledge about processes that have ended."""

from __future__ import annotations

import subprocess
import time

import numpy as np

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder, build_stackless_batch
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.collectors.ptrace.sampled_processes import Targets
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.sample_batch import SampleKind
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

ENDED = 4_194_304
"""A pid above the kernel's maximum, which no process has."""


def test_process_whose_only_sample_was_read_late_was_seen_though_it_has_ended() -> None:
    targets = Targets(CollectOptions(), Diagnostics(), Identities(), None, None)
    assert not targets.has_been_sampled(ENDED)
    one = np.array([ENDED], np.int32)
    targets.describe_late(
        build_stackless_batch(WIDE, 1, np.array([SampleKind.STOPPED], np.uint8), np.zeros(1, np.int64), one, one)
    )
    assert targets.has_been_sampled(ENDED)


def test_what_no_batch_had_before_is_fresh() -> None:
    targets = Targets(CollectOptions(), Diagnostics(), Identities(), None, None)
    builder = BatchBuilder((WIDE,), ArenaMemory(4096), 1)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            targets.add_process(process.pid)
            assert targets.fresh
            target = targets.by_pid[process.pid]
            until = time.monotonic() + 60
            while targets.fresh:  # lasts while the process loads its libraries
                assert time.monotonic() < until
                targets.fresh = False
                target.update(builder)
            targets.describe_thread(target, target.threads[process.pid])
            assert targets.fresh
        finally:
            targets.close()
            process.kill()
