"""Tests that a killed recording keeps what it had written: samples, lines, inlined functions and counters."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pyprof.recording.reader import load_recording
from tests.collectors.targets import MAX_S
from tests.support import need
from tests.survival.recordings import MAX_WAIT_S, begun, killed, lacks, program

pytestmark = [pytest.mark.live, pytest.mark.system]

KILLS = 2
"""Number of kills. `make test-kills` has a hundred, and reports how much each one lost."""


def test_killed_recordings_have_lines_inlined_functions_and_counters(tmp_path: Path) -> None:
    need("gcc")
    target, rng = program(tmp_path), random.Random(18)
    for turn in range(KILLS):
        path = tmp_path / f"{turn}.pyprof"
        recorder = begun(path, target)
        deadline = time.monotonic() + MAX_S
        while (missing := lacks(before := load_recording(path))) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, MAX_WAIT_S / 4))
        killed(recorder)
        after = load_recording(path)
        assert not missing
        assert not lacks(after)
        assert len(after.stack) >= len(before.stack) > 0
        assert after.summary.stops.count >= before.summary.stops.count
