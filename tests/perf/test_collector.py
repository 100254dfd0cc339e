"""Tests of the perf collector: refusals, counters and released resources."""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from pyprof.collectors.perf import ring_buffer_polling as waiter_module
from pyprof.collectors.perf.cpu_wide_events import MappingAlarm
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, refusal
from pyprof.collectors.perf.kernel_collector import KernelCollector
from pyprof.collectors.perf.per_thread_events import FOREVER_NS
from pyprof.collectors.perf.ring_buffer_records import EXIT, LOST, Ring, Scan, list_online_cpus, parse_lost, scan_ring
from pyprof.collectors.registry import open_collector
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.errors import NoSuchProcess
from pyprof.options import CollectOptions, TargetOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from tests.chance import poisson_bounds
from tests.live.support.ladders import ladder
from tests.live.support.recording import LIFE, running
from tests.perf.opening import open_perf
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

SPINNING = CollectOptions(rate_hz=1000)


@pytest.fixture
def spinner() -> Iterator[int]:
    with running(ladder("ladder"), "spin", LIFE) as program:
        yield program.pid


def collector(pid: int, options: CollectOptions = SPINNING, ring_size: int = 0) -> KernelCollector:
    try:
        return open_perf(pid, options, Diagnostics(), ring_size)
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")
        raise


def on_processors_s(pid: int) -> float:
    """Return the time that the threads of a process had on processors."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def test_batches_are_in_order_of_time_and_hold_the_stack_from_sp_on(spinner: int) -> None:
    taken = collector(spinner)
    last: dict[int, int] = {}
    seen = 0
    for batch in taken.batches():
        seen += len(batch)
        assert np.all(np.diff(batch.time_ns) >= 0)
        for tid, at in zip(batch.tid.tolist(), batch.time_ns.tolist(), strict=True):
            assert at >= last.get(tid, 0)
            last[tid] = at
        assert np.array_equal(batch.stack.base, batch.regs[:, batch.arch.sp])
        assert np.all(batch.stack.size > 0)
        assert set(batch.space.tolist()) == set(batch.spaces)
        for lane, space in enumerate(batch.space.tolist()):
            code = batch.spaces[space].mapping_at(int(batch.regs[lane, batch.arch.pc]))
            assert code is not None
            assert code.executable
        if seen > 200:
            taken.stop()
    taken.close()
    assert seen > 200
    assert {info.pid for info in taken.threads()} == {spinner}


def test_number_of_samples_is_the_time_that_the_threads_had(spinner: int) -> None:
    os.kill(spinner, signal.SIGSTOP)  # it must run only while it is sampled
    began_s = on_processors_s(spinner)
    taken = collector(spinner)
    os.kill(spinner, signal.SIGCONT)
    samples = 0
    for batch in taken.batches():
        samples += len(batch)
        if samples > 2000:
            os.kill(spinner, signal.SIGSTOP)
            taken.stop()
    taken.close()
    spent_s = on_processors_s(spinner) - began_s
    assert samples / 1000 == pytest.approx(spent_s, rel=0.1, abs=0.02)


def test_samples_are_taken_while_the_first_ones_are_unwound(spinner: int) -> None:
    taken = collector(spinner, CollectOptions(rate_hz=99, stack_size=1024))  # the rings have room for a minute
    batches = taken.batches()
    next(batch for batch in batches if len(batch))
    began_ns, began_s = time.monotonic_ns(), on_processors_s(spinner)
    while on_processors_s(spinner) < began_s + 0.5:  # the consumer reads unwind tables
        time.sleep(0.01)
    ended_ns, times = time.monotonic_ns(), np.zeros(0, np.int64)
    spent_s = on_processors_s(spinner) - began_s
    for batch in batches:
        times = np.append(times, batch.time_ns)
        if times.max(initial=0) > ended_ns:
            taken.stop()
    taken.close()
    meanwhile = np.count_nonzero((times > began_ns) & (times < ended_ns))
    low, high = poisson_bounds(99 * spent_s)
    assert low <= meanwhile <= high
    assert not taken.stats().skipped


def test_samples_that_found_no_room_are_counted(spinner: int) -> None:
    taken = collector(spinner, CollectOptions(rate_hz=5000), ring_size=1 << 16)
    for number, _ in enumerate(taken.batches()):
        time.sleep(0.1)
        if number == 8:
            taken.stop()
    taken.close()
    assert taken.stats().skipped > 10
    assert taken.records.reader.diagnostics.counts["samples_lost"] == taken.stats().skipped


def test_samples_of_the_opening_leave_their_room_to_those_of_the_recording(spinner: int) -> None:
    options = CollectOptions(rate_hz=5000)
    taken = collector(spinner, options, ring_size=1 << 16)
    rings = taken.records.reader.rings.rings.values()
    cpus = os.sched_getaffinity(spinner)
    try:
        os.sched_setaffinity(spinner, {min(cpus)})
        end = time.monotonic() + 20
        before = -1
        while (filled := sum(ring.head - ring.tail for ring in rings)) > before or not filled:  # until one is full
            assert time.monotonic() < end
            before = filled
            time.sleep(0.2)
        assert filled > 1 << 15
        assert options.handover.steps > 0
        options.handover.begin()
        assert sum(ring.head - ring.tail for ring in rings) < filled // 2
        while not any(ring.head - ring.tail for ring in rings):
            assert time.monotonic() < end
            time.sleep(0.001)
        batch = next(batch for batch in taken.batches() if len(batch))
        assert int(batch.time_ns.min()) >= options.handover.begun_ns
        times, opened_s = taken.stats(), 2 / options.rate_hz
        assert times.ticking_ns <= time.monotonic_ns() - options.handover.begun_ns + opened_s * 1e9
    finally:
        taken.close()


def test_record_of_losses_behind_discarded_records_is_not_counted() -> None:
    size = mmap.PAGESIZE
    words = np.zeros((2 * mmap.PAGESIZE + size) // 8, np.uint64)
    ring = Ring(words, 0, size)

    def write(kind: int, lost: int) -> None:
        at = ring.first + ring.head % size // 8
        words[at : at + 6] = kind | 48 << 48, 1, lost, 0, 100, 0
        words[1024 // 8] += np.uint64(48)

    def found() -> list[int]:
        scan = Scan()
        scan_ring(ring, words, FOREVER_NS, scan)
        scan.release_records()
        return [parse_lost(record.kind, record.body) for record in scan.others]

    write(EXIT, 0)
    opening = Scan()
    scan_ring(ring, words, FOREVER_NS, opening)
    opening.discard_records()
    write(LOST, 5)
    write(LOST, 7)
    assert found() == [7]
    write(LOST, 9)
    assert found() == [9]


def test_copies_shrink_to_what_walks_need_and_grow_again(spinner: int) -> None:
    taken = collector(spinner)
    session = Session(taken, UnwindOptions(), taken.records.reader.diagnostics)
    sizes = []

    def beat() -> None:
        sizes.append(taken.records.events.stack_size)
        if len(sizes) > 200 or sizes[-1] < 16384:
            taken.stop()

    window = session.run(taken, beat)
    assert sizes[-1] < 16384 < sizes[0]
    assert len(window.time_ns) > 200


def test_end_of_the_target_ends_the_recording() -> None:
    for seconds in ("1", "4", "16"):  # until the target had a processor, on a busy machine
        with running(ladder("ladder"), "spin", seconds) as program:
            taken = collector(program.pid)
            samples = sum(len(batch) for batch in taken.batches())
            taken.close()
            assert program.wait(timeout=30) is not None
        if samples:
            break
    assert samples > 0


def test_what_was_opened_is_closed_and_batches_outlive_the_rings(spinner: int) -> None:
    before = set(os.listdir("/proc/self/fd"))  # descriptors of earlier tests may be closed meanwhile
    taken = collector(spinner)
    batches = taken.batches()
    batch = next(batches)
    assert isinstance(batches, Generator)
    batches.close()
    taken.close()
    taken.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert batch.stack.data.sum() >= 0


def test_process_that_is_not_there_is_named() -> None:
    with pytest.raises(NoSuchProcess):
        open_perf(2**22 + 5, SPINNING, Diagnostics())


def test_process_of_another_user_is_refused_with_the_command_that_helps(spinner: int) -> None:
    if os.geteuid() != 0:
        missing("needs root: another user's process is refused")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            open_perf(spinner, SPINNING, Diagnostics())
        except PerfNotAllowed as error:
            said = f"{error.message} {error.hint}"
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert "not allowed" in said
    assert "sudo" in said


@pytest.mark.parametrize(
    ("error", "level", "says", "hint"),
    [
        (errno.EACCES, 4, "perf_event_paranoid is 4", "sudo sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, 2, "another user", "sudo pyprof"),
        (errno.ENOSYS, None, "no perf_events", "ptrace"),
        (errno.EMFILE, 2, "not enough", "ulimit -n"),
        (errno.EINVAL, 2, "Invalid argument", "ptrace"),
    ],
)
def test_refusal_says_why_and_what_to_type(error: int, level: int | None, says: str, hint: str) -> None:
    refused = refusal(error, 7, lambda: level)
    assert says in refused.message
    assert hint in refused.hint


def test_a_recording_ends_with_its_process_though_a_child_lives_on() -> None:
    code = (
        "import os, sys, time\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        "if os.fork() == 0:\n    time.sleep(30)\n    os._exit(0)\n"
        "while True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        selection = select_processes(TargetOptions(pids=(process.pid,)))
        taken = open_collector("perf", selection, CollectOptions(rate_hz=500), Diagnostics())
        seen = 0
        process.stdin.write(b"go\n")
        process.stdin.flush()
        time.sleep(0.3)
        for batch in taken.batches():
            seen += len(batch)
            if seen:
                process.kill()
        taken.close()
        os.killpg(process.pid, signal.SIGKILL)
    assert seen


def test_samples_wait_longer_where_no_process_is_young(spinner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = collector(spinner, CollectOptions(rate_hz=10))
    tracked = taken.records.members.tracked
    began = time.monotonic_ns()
    try:
        assert taken.longest_wait_ns() == taken.samples.young_wait_ns < taken.samples.longest_wait_ns()
        monkeypatch.setattr(time, "monotonic_ns", lambda: began + 11 * 10**9)
        assert taken.longest_wait_ns() == taken.samples.longest_wait_ns()
        tracked.add_process(os.getpid())
        assert taken.longest_wait_ns() == taken.samples.young_wait_ns
    finally:
        taken.close()


def alarm_of(cpus: Iterable[int]) -> MappingAlarm:
    try:
        return MappingAlarm(cpus)
    except PerfNotAllowed as error:
        missing(f"needs events on processors: {error.message} {error.hint}")
        raise


def test_the_alarm_of_new_mappings_rings_at_each_exec_and_is_never_full() -> None:
    alarm = alarm_of(list_online_cpus())
    poll = select.epoll()
    for fd in alarm.fds:
        poll.register(fd, select.EPOLLIN | select.EPOLLET)
    program = [sys.executable, "-S", "-c", ""]
    for _ in range(3):  # each maps more than a page of records
        poll.poll(0)  # reports of other programs
        subprocess.run(program, check=True)
        assert poll.poll(10)
    poll.close()
    alarm.close()


def test_a_collector_with_an_alarm_looks_for_new_programs_only_when_it_rings(
    spinner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the looks of a collector whose alarm is a pipe, because other processes would ring the real one."""
    alarm_of(list_online_cpus()).close()
    alarm, ringer = os.pipe()

    class Pipe:
        def __init__(self, cpus: Iterable[int]) -> None:
            self.fds = [alarm]

        def close(self) -> None:
            os.close(alarm)

    monkeypatch.setattr(waiter_module, "MappingAlarm", Pipe)
    taken = collector(spinner, CollectOptions(rate_hz=99))
    looks: list[int] = []

    def look() -> int:
        looks.append(time.monotonic_ns())
        return FOREVER_NS

    taken.records.waiting.watch = look
    begun_ns, rung_ns = time.monotonic_ns(), 0
    for _ in taken.batches():
        now = time.monotonic_ns()
        if not rung_ns and now > begun_ns + 1_000_000_000:
            rung_ns = now
            unasked = len(looks)
            os.write(ringer, b"!")
        elif rung_ns and looks[-1] > rung_ns:
            break
    assert unasked <= 9  # at growing distances; a hundred a second without the alarm
    taken.close()
    os.close(ringer)
