"""Threads that could run are sampled while they have a processor, not while they wait for one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.ptrace.process import TracedProcess
from pyprof.collectors.ptrace.turns import parse_sched
from pyprof.collectors.thread_lives import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import native_arches
from pyprof.options import CollectOptions
from tests.live.support.recording import record, running


def test_turns_of_a_thread_are_read() -> None:
    counts = b"nr_switches :  17\nnr_voluntary_switches : 4\n"
    text = b"cat (1)\n--\nse.exec_start :  791502.162028\nse.vruntime : 1.5\n" + counts
    assert parse_sched(text) == (791502162028, 17, 4)
    with pytest.raises(ValueError, match="subsection not found"):
        parse_sched(text[:50])


def test_own_turn_is_in_the_kernels_file() -> None:
    began_ns, switches, waits = parse_sched(Path("/proc/thread-self/sched").read_bytes())
    assert began_ns > 0
    assert switches >= waits >= 0


def test_displaced_thread_is_found_before_any_is_known_and_not_among_many(
    binaries: Callable[[str], Path],
) -> None:
    """By its own file: here that of the thread which is asked for stands for one that was displaced."""
    with running(binaries("c_relay"), "20000", "4", "1", stdin=subprocess.PIPE) as program:
        tids = sorted(map(int, os.listdir(f"/proc/{program.pid}/task")))
        target = TracedProcess(program.pid, CollectOptions(), Identities(), Diagnostics())
        assert target.find_displaced(lambda sched: True) is None, "nobody knows how many there are"
        target.look(BatchBuilder(native_arches(os.uname().machine), ArenaMemory(1 << 16), 0))
        known = dict(target.threads)
        newest = target.threads.pop(tids[-1])
        for tid in tids:
            found = target.find_displaced(lambda sched, name=b"(%d, #" % tid: name in sched)  # type: ignore[misc]
            assert found is target.threads[tid]
            assert (found is known[tid]) == (tid != tids[-1])
        assert target.find_displaced(lambda sched: False) is None
        newest.close()
        chosen = TracedProcess(program.pid, CollectOptions(thread=re.compile("x")), Identities(), Diagnostics())
        chosen.look(BatchBuilder(native_arches(os.uname().machine), ArenaMemory(1 << 16), 0))
        assert chosen.find_displaced(lambda sched: True) is None
        target.close()
        chosen.close()
        program.communicate()


@pytest.mark.parametrize("run_us", ["50", "20000"])
def test_threads_that_take_turns_are_sampled_where_they_run(
    run_us: str, binaries: Callable[[str], Path], tmp_path: Path
) -> None:
    turns = 2 * (os.cpu_count() or 1)
    with running(binaries("c_relay"), run_us, str(2 * turns), str(turns), stdin=subprocess.PIPE) as program:
        recording = record(program.pid, tmp_path, seconds=2.5, rate=299, until=lambda r: sum(r.stacks.values()) > 100)
        in_busy, spent = map(int, program.communicate()[0].split())
    samples = sum(recording.stacks.values())
    assert samples > 100
    true = in_busy / spent
    busy = sum(n for stack, n in recording.stacks.items() if "busy" in stack) / samples
    assert busy == pytest.approx(true, abs=0.06 + 2 * (true * (1 - true) / samples) ** 0.5)
