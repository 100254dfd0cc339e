"""Tests of the processor time of children that are not followed, from the kernel's counters."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pyprof.collectors.linux.process_cpu_times import UnfollowedChildren

pytestmark = pytest.mark.live

BURN = "import time\nwhile time.process_time() < {}: pass\nprint(flush=True)\ninput()"


def burner(seconds: float) -> subprocess.Popen[bytes]:
    """Start a child that has used this many seconds of processor time."""
    process = subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"\n")


def test_children_that_live_and_children_that_ended_count_alike() -> None:
    before = burner(0.5)  # its processor time until now does not count
    try:
        seen = UnfollowedChildren([os.getpid()])
        ended, alive = burner(0.3), burner(0.3)
        end(ended)
        spent = seen.take_times()
        end(alive)
        end(before)
        assert 0.55e9 < spent.children_ns < 0.9e9
        assert seen.take_times().children_ns < 0.25e9  # no time counts twice
    finally:
        before.kill()


def test_a_process_that_has_ended_keeps_what_it_was_seen_to_spend() -> None:
    parent = subprocess.Popen(["sh", "-c", "read x; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    seen = UnfollowedChildren([parent.pid], clock=time.monotonic_ns)
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    parent.stdout.readline()
    seen.read_times(force=True)
    parent.communicate(b"\n")
    spent = seen.take_times()
    assert spent.own_ns > 20_000_000
    assert spent.children_ns == 0
