"""Tests that a stop does not disturb its target: no lost signal, changed state or failed system call."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pyprof.collectors.linux import interrupted_syscalls, libc
from pyprof.collectors.linux.interrupted_syscalls import INTERRUPTED, RESTARTED
from pyprof.collectors.ptrace.sampled_thread import MAX_STOP_WAIT_NS, Outcome
from pyprof.collectors.targets.command_launch import launch
from pyprof.model.sample_batch import SampleKind
from pyprof.problem_counters import Diagnostics
from tests.collectors.conftest import Start
from tests.collectors.stopping import Stopping, stopping
from tests.collectors.targets import collecting, feedback, go_then_wait, record, rounds, samples, stops, wait_asleep

pytestmark = [pytest.mark.live, pytest.mark.system]

KINDS = ("epoll_wait", "recv", "semtimedop", "inotify", "sigtimedwait", "futex", "nanosleep", "poll", "pipe")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_state(pid: int, letters: str) -> None:
    deadline = time.monotonic() + 10
    while state(pid) not in letters:
        assert time.monotonic() < deadline, (state(pid), letters)
        time.sleep(0.001)


def test_queued_signals_arrive_with_their_values_in_order_while_sampled(program: Start) -> None:
    count = 100_000
    target = program("c_signals", str(count))
    recording = record(target.pid, go_then_wait(target), rate_hz=3000, keep=False)
    assert recording.stats is not None
    assert len(recording.stats.pauses) > 100
    assert target.finish().split() == [str(count), str(count * (count - 1) // 2), "1", "1"]


def test_a_signal_that_arrives_at_the_stop_goes_on_with_the_detach(program: Start) -> None:
    target = program("c_registers")
    with stopping(target.pid) as here:
        libc.seize(target.pid)
        here.stopper.stopped_threads[target.pid] = here.held(target.pid)
        os.kill(target.pid, signal.SIGTERM)
        here.wait_stop(target.pid)
        here.stopper.poll_pending()
        assert target.pid not in here.stopper.stopped_threads
    assert target.process.wait(100) == -signal.SIGTERM


def test_a_stopped_target_stays_stopped_and_a_continued_one_continues(program: Start) -> None:
    target = program("c_spin", "1")
    (spinner,) = {int(p.name) for p in Path(f"/proc/{target.pid}/task").iterdir()} - {target.pid}
    for _ in range(5):
        os.kill(target.pid, signal.SIGSTOP)
        wait_state(spinner, "T")
        recording = record(target.pid, samples(6), rate_hz=500, idle=True)
        assert recording.lanes
        assert state(spinner) == "T"
        with stopping(target.pid) as here:  # a ptrace stop of the stopped thread changes nothing
            assert here.stop(spinner) is Outcome.TAKEN
        wait_state(spinner, "T")
        os.kill(target.pid, signal.SIGCONT)
        wait_state(spinner, "R")
        assert record(target.pid, stops(3), rate_hz=500).of(SampleKind.STOPPED)
        assert state(spinner) == "R"
    assert target.finish() == "done\n"


def test_stop_and_continue_while_sampled_leave_the_target_as_it_was_told(program: Start) -> None:
    target = program("c_spin", "2")
    with collecting(target.pid, Diagnostics(), rate_hz=2000, flush_s=0.005) as collector:
        for turn, _ in enumerate(collector.batches()):
            if turn == 100:
                collector.stop()
                break
            os.kill(target.pid, (signal.SIGSTOP, signal.SIGCONT)[turn % 2])
    wait_state(target.pid, "SR")
    assert target.finish() == "done\n"


@pytest.mark.parametrize("kind", KINDS)
def test_stopping_a_thread_that_has_just_fallen_asleep_fails_no_system_call(program: Start, kind: str) -> None:
    target = program("c_sleepers", "0", "30000", kind)
    tid = int(target.ready[0])
    with stopping(target.pid) as here:
        taken = sum(here.stop(tid) is Outcome.TAKEN for _ in range(300))
    assert taken > 250
    assert here.diagnostics.counts[INTERRUPTED] == 0
    name, calls, interrupted = target.finish().split()
    assert (name, interrupted) == (kind, "0")
    assert int(calls) > 0


def stop_asleep(here: Stopping, tid: int, times: int) -> None:
    """Stop the thread several times, each time once it is asleep."""
    for _ in range(times):
        wait_state(tid, "S")
        here.stop(tid)


def test_without_the_restart_the_same_stops_make_system_calls_fail(
    program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupted_syscalls, "can_restart", lambda arch, number, args: False)
    target = program("c_sleepers", "0", "30000", "epoll_wait")
    with stopping(target.pid) as here:
        stop_asleep(here, int(target.ready[0]), 100)
    assert here.diagnostics.counts[INTERRUPTED] > 50
    assert int(target.finish().split()[2]) > 50


def test_a_wait_with_a_signal_mask_is_never_restarted_but_counted(program: Start) -> None:
    target = program("c_sleepers", "0", "30000", "epoll_pwait")
    with stopping(target.pid) as here:
        stop_asleep(here, int(target.ready[0]), 100)
    assert here.diagnostics.counts[RESTARTED] == 0
    assert here.diagnostics.counts[INTERRUPTED] >= int(target.finish().split()[2]) > 50


def test_threads_that_flip_between_running_and_sleeping_see_no_eintr(program: Start) -> None:
    target = program("c_sleepers", "40", "200", *KINDS)
    recording = record(target.pid, stops(2000), rate_hz=2000, keep=False)
    assert recording.stats is not None
    assert len(recording.stats.pauses) >= 2000
    assert recording.diagnostics.counts[INTERRUPTED] == 0
    lines = [line.split() for line in target.finish().splitlines()]
    assert [(name, interrupted) for name, _, interrupted in lines] == [(kind, "0") for kind in KINDS]


def test_sampling_idle_threads_makes_no_system_call_fail(program: Start) -> None:
    target = program("c_sleepers", "0", "20000", *KINDS)
    recording = record(
        target.pid, samples(4000), learn=lambda batch: feedback(batch, stop=True), rate_hz=500, idle=True, keep=True
    )
    assert recording.of(SampleKind.BLOCKED)
    lines = [line.split() for line in target.finish().splitlines()]
    assert {interrupted for _, _, interrupted in lines} == {"0"}


@pytest.mark.parametrize("bound_ns", [MAX_STOP_WAIT_NS, 0], ids=["at once", "later"])
def test_sleeper_with_an_unknown_register_is_stopped_once_if_its_call_allows(
    bound_ns: int, program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sample sleepers, also if the stop comes after the sampler has moved on, as on a busy machine."""
    monkeypatch.setattr("pyprof.collectors.ptrace.thread_stop.MAX_STOP_WAIT_NS", bound_ns)
    target = program("c_sleepers", "0", "30000000", "futex", "epoll_wait", "semtimedop")
    wait_asleep(target.pid)
    tids = dict(zip(("futex", "epoll_wait", "semtimedop"), map(int, target.ready), strict=True))
    # at 5 Hz it is asleep again at the next round; a running thread may be stopped like any other
    recording = record(
        target.pid, rounds(7), learn=lambda batch: feedback(batch, stop=True), rate_hz=5, idle=True, flush_s=0.1
    )
    stopped = [lane.tid for lane in recording.of(SampleKind.STOPPED)]
    assert stopped.count(tids["futex"]) in (1, 2)  # twice if it was still running at the next round
    assert tids["epoll_wait"] not in stopped
    assert tids["semtimedop"] not in stopped
    kinds = [lane.kind for lane in recording.lanes if lane.tid == tids["futex"] and lane.kind != SampleKind.UNSEEN]
    assert kinds[0] == SampleKind.BLOCKED
    assert kinds[-1] == SampleKind.UNCHANGED
    assert recording.diagnostics.counts["sleeping_thread_not_stopped"] >= 2


def test_every_stop_is_timed(program: Start) -> None:
    target = program("c_spin", "1")
    recording = record(target.pid, stops(50), rate_hz=1000)
    assert recording.stats is not None
    assert len(recording.stats.pauses) == len(recording.of(SampleKind.STOPPED))
    assert recording.stats.pauses.total_ns > 0


def test_the_rate_falls_when_the_target_would_be_stopped_for_too_long(program: Start) -> None:
    target = program("c_spin", "1")
    recording = record(
        target.pid, lambda r: any(lane.batch.weight.max() > 1 for lane in r.lanes), rate_hz=4000, max_overhead=0.005
    )
    assert recording.stats is not None
    assert "0.5 %" in recording.stats.notes[0].text


def seize_and_stop(here: Stopping, tid: int) -> None:
    assert libc.seize(tid) == 0
    here.stopper.stopped_threads[tid] = here.held(tid)
    assert libc.interrupt(tid) == 0
    here.wait_stop(tid)


def test_a_stop_that_somebody_else_has_collected_is_released_all_the_same(program: Start) -> None:
    target = program("c_spin", "1")
    with stopping(target.pid) as here:
        seize_and_stop(here, target.pid)
        assert os.waitpid(target.pid, os.WNOHANG)[0] == target.pid  # simulates another waitpid in the process
        here.stopper.poll_pending()
        assert not here.stopper.stopped_threads
        assert len(here.builder) == 1
    wait_state(target.pid, "SR")
    assert target.finish() == "done\n"


def test_waiting_for_a_launched_command_leaves_its_stops_to_the_sampler() -> None:
    launched = launch(["sleep", "0.2"])
    launched.release()
    with stopping(launched.pid) as here:
        seize_and_stop(here, launched.pid)
        assert launched.poll() is None
        here.stopper.poll_pending()
        assert not here.stopper.stopped_threads
    assert launched.wait() == 0


def test_a_target_that_is_killed_in_a_stop_ends_for_its_parent(program: Start) -> None:
    target = program("c_spin", "2")
    (spinner, *_) = {int(p.name) for p in Path(f"/proc/{target.pid}/task").iterdir()} - {target.pid}
    with stopping(target.pid) as here:
        for tid in (spinner, target.pid):
            seize_and_stop(here, tid)
        os.kill(target.pid, signal.SIGKILL)
        here.stopper.poll_pending()
        here.stopper.release_all()
        assert not here.stopper.stopped_threads
        assert target.process.wait(100) == -signal.SIGKILL


def test_a_thread_that_cannot_stop_now_is_released_as_soon_as_it_does(program: Start) -> None:
    target = program("c_vfork")
    wait_state(target.pid, "D")
    with stopping(target.pid) as here:
        here.stopper.ptrace.block_signals()
        try:
            outcome = here.stopper.stop_thread(here.target.threads[target.pid], here.target.spaces, 1)
        finally:
            here.stopper.ptrace.restore_signals()
        assert outcome is Outcome.PENDING
        assert target.pid in here.stopper.stopped_threads
        here.stopper.poll_pending()
        assert target.pid in here.stopper.stopped_threads
        assert target.process.stdin is not None
        target.process.stdin.close()
        target.process.stdin = None
        deadline = time.monotonic() + 10
        while here.stopper.stopped_threads:
            assert time.monotonic() < deadline
            here.stopper.poll_pending()
    assert target.finish() == "done\n"


def test_a_thread_in_uninterruptible_sleep_is_read_from_outside(program: Start) -> None:
    target = program("c_vfork")
    wait_state(target.pid, "D")
    recording = record(target.pid, samples(5), rate_hz=300, idle=True)
    assert [lane.kind for lane in recording.lanes][:2] == [SampleKind.BLOCKED, SampleKind.UNCHANGED]
    assert target.finish() == "done\n"
