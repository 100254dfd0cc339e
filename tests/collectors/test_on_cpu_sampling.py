"""Tests that runnable threads are sampled while they have a processor and not while they wait for one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.collectors.ptrace.running_threads import OnCpuTurns, Turn, read_turn_counts, read_turn_ns
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import ProcessorUse, Thread
from pyprof.collectors.ptrace.sampling_loop import ThreadSampler
from pyprof.collectors.ptrace.thread_stop import Stopper
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.arch import native_arches
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.chance import share_margin
from tests.live.support.recording import record, running

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_turns_of_a_thread_are_read() -> None:
    counts = b"nr_switches :  17\nnr_voluntary_switches : 4\n"
    text = b"cat (1)\n--\nse.exec_start :  791502.162028\nse.vruntime : 1.5\n" + counts
    assert read_turn_ns(text) == 791502162028
    assert read_turn_counts(text) == (17, 4)
    for read in (read_turn_ns, read_turn_counts):
        with pytest.raises(ValueError, match="subsection not found"):
            read(text[:20])


def test_own_turn_is_in_the_kernels_file() -> None:
    text = Path("/proc/thread-self/sched").read_bytes()
    switches, waits = read_turn_counts(text)
    assert read_turn_ns(text) > 0
    assert switches >= waits >= 0


class _Told(Thread):
    """A simulated thread with given texts of schedstat and sched, one for each read."""

    def __init__(self, schedstats: list[bytes], scheds: list[tuple[int, int]]) -> None:
        self.steadiness = ProcessorUse()
        self._schedstats, self._scheds = iter(schedstats), iter(scheds)

    def read_schedstat(self) -> bytes:
        return next(self._schedstats)

    def read_sched(self) -> bytes:
        return _SCHED % next(self._scheds)


_SCHED = b"se.exec_start\n\nse.exec_start : 0.%d\nnr_switches : %d\nnr_voluntary_switches : 0\n"


@pytest.mark.parametrize(
    ("arrivals", "scheds", "turn", "asked"),
    [
        ([7], [(5, 6)], Turn.RUNNING, False),
        ([7], [(500, 7)], Turn.DISPLACED, True),
        ([7, 7], [(5, 7)], Turn.WAITING, True),
        ([7, 8], [(5, 7), (6, 7)], Turn.RUNNING, True),
        ([7, 8], [(5, 8), (500, 8)], Turn.DISPLACED, True),
        ([7, 8, 9, 10], [(5, 8), (6, 9), (7, 10)], Turn.WAITING, True),
    ],
)
def test_turn_of_a_thread_is_by_counts_that_agree(
    arrivals: list[int], scheds: list[tuple[int, int]], turn: Turn, asked: bool, tmp_path: Path
) -> None:
    """Determine whether a thread is on a processor from its scheduling counts.

    Args:
        arrivals: The thread's counts of runs, one for each read.
        scheds: The thread's switch counts, one for each read.
        turn: The expected result.
        asked: Whether the sampler reads its own counts, too, and again at the start of the next round.
    """
    own = tmp_path / "sched"
    own.write_bytes(_SCHED % (500, 3))
    turns = OnCpuTurns(PtraceCalls(), alone=True, may_visit=True)
    turns.own = os.open(own, os.O_RDONLY)
    turns.note_arrival()
    first, *more = [b"90 10 %d\n" % count for count in arrivals]
    assert turns.find_turn(_Told(more, scheds), first) is turn
    own.write_bytes(_SCHED % (600, 3))
    turns.note_arrival()
    own.write_bytes(_SCHED % (700, 3))
    assert turns.find_turn(_Told([b"90 10 7\n"], [(600, 7)]), b"90 10 7\n") is (
        Turn.DISPLACED if asked else Turn.WAITING
    )
    turns.close()
    assert turns.find_turn(_Told([], []), b"90 10 7\n") is Turn.UNKNOWN


def test_displaced_thread_is_found_before_any_is_known_and_not_among_many(
    binaries: Callable[[str], Path],
) -> None:
    """Find the thread that the sampler displaced, by its own sched file.

    The requested thread stands for the displaced one.
    """
    with running(binaries("c_relay"), "20000", "4", "1", stdin=subprocess.PIPE) as program:
        tids = sorted(map(int, os.listdir(f"/proc/{program.pid}/task")))
        target = TracedProcess(program.pid, CollectOptions(), Identities(), Diagnostics())
        assert target.find_displaced(lambda sched: True) is None, "nobody knows how many there are"
        target.update(BatchBuilder(native_arches(os.uname().machine), ArenaMemory(1 << 16), 0))
        known = dict(target.threads)
        newest = target.threads.pop(tids[-1])
        for tid in tids:
            found = target.find_displaced(lambda sched, name=b"(%d, #" % tid: name in sched)  # type: ignore[misc]
            assert found is target.threads[tid]
            assert (found is known[tid]) == (tid != tids[-1])
        assert target.find_displaced(lambda sched: False) is None
        newest.close()
        chosen = TracedProcess(program.pid, CollectOptions(thread=re.compile("x")), Identities(), Diagnostics())
        chosen.update(BatchBuilder(native_arches(os.uname().machine), ArenaMemory(1 << 16), 0))
        assert chosen.find_displaced(lambda sched: True) is None
        target.close()
        chosen.close()
        program.communicate()


def test_processes_need_no_sample_while_all_of_their_threads_sleep(binaries: Callable[[str], Path]) -> None:
    arches, options = native_arches(os.uname().machine), CollectOptions()
    builder = BatchBuilder(arches, ArenaMemory(1 << 16), 0)
    sampler = ThreadSampler(Stopper(arches, builder, Diagnostics(), options), builder, Diagnostics(), options)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdin
        assert sleeper.stdout
        target = TracedProcess(sleeper.pid, options, Identities(), Diagnostics())
        for text in (b"once\n", b"again\n"):
            sleeper.stdin.write(text)
            sleeper.stdin.flush()
            assert sleeper.stdout.readline() == text
            while sampler.may_need_sample(target):
                time.sleep(0.01)
            assert target.threads[sleeper.pid].slept == target.threads[sleeper.pid].read_schedstat()
        sleeper.stdin.close()
        sleeper.wait()
        assert sampler.may_need_sample(target), "so that its end is noticed"
        target.close()
    with running(binaries("c_spin"), "1", stdin=subprocess.PIPE) as spinner:
        target = TracedProcess(spinner.pid, options, Identities(), Diagnostics())
        assert sampler.may_need_sample(target)
        target.close()
        spinner.kill()


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
    assert busy == pytest.approx(true, abs=0.06 + share_margin(true, samples))


def test_unprivileged_sampler_visits_processors_once_processes_end_unseen() -> None:
    begun = {}
    for hurries in (False, True):
        ptrace = PtraceCalls()
        ptrace.raises_priority = hurries
        turns = OnCpuTurns(ptrace, alone=True, may_visit=True)
        turns.own = os.open("/proc/self/sched", os.O_RDONLY)
        turns._allowed = os.sched_getaffinity(0)
        begun[hurries] = [turns.start_visit([os.getpid()], brief) for brief in (0, 19, 20)]
        turns.close()
    assert begun == {False: [False, False, True], True: [False, False, False]}
