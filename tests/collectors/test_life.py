"""Tests of threads, modules and programs that start and end while they are sampled."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.sample_batch import SampleKind
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.collectors.conftest import Start
from tests.collectors.targets import MAX_S, Recording, go_then_wait, record, samples
from tests.support import PROGRAMS, build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

HOLD = """
import sys
from pyprof.collectors.linux import libc
assert [libc.seize(int(word)) for word in sys.argv[1:]] == [0] * (len(sys.argv) - 1)
print("held", flush=True)
sys.stdin.read()
"""


def ended(process: subprocess.Popen[str]) -> Callable[[Recording], bool]:
    return lambda _: process.poll() is not None


def tids(pid: int) -> set[int]:
    return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}


def test_a_storm_of_threads_is_sampled_and_ends_with_the_right_result(program: Start) -> None:
    threads = 5000
    target = program("c_storm", "threads", str(threads))
    recording = record(target.pid, go_then_wait(target), rate_hz=4000)
    assert target.finish() == f"done {threads * 4 * sum(i & 7 for i in range(20000))}\n"
    assert len({lane.tid for lane in recording.lanes}) > 3
    assert all(lane.kind in (SampleKind.STOPPED, SampleKind.BLOCKED) for lane in recording.lanes)
    assert any(lane.kind == SampleKind.STOPPED for lane in recording.lanes)


def test_each_exec_begins_a_new_image_and_the_target_ends_as_it_should(program: Start) -> None:
    for executions in (60, 600):  # a busy machine takes few samples of many images
        target = program("c_storm", "exec", str(executions))
        recording = record(target.pid, go_then_wait(target), rate_hz=500)
        assert target.finish() == "done 1\n"
        if len({lane.space for lane in recording.lanes}) > 3:
            break
    assert len({lane.space for lane in recording.lanes}) > 3
    unexplained = sum(lane.batch.spaces[lane.space].module_at(lane.regs["rip"]) is None for lane in recording.lanes)
    assert unexplained <= recording.diagnostics.counts["modules_changed"]
    assert unexplained <= len(recording.lanes) // 10


def test_reads_of_an_image_that_is_gone_give_nothing(program: Start) -> None:
    target = program("c_storm", "exec", "40")
    with_spaces = record(target.pid, go_then_wait(target), rate_hz=300)
    for lane in with_spaces.lanes:
        space = lane.batch.spaces[lane.space]
        assert space.read(space.mappings[0].start, 4) == b""


def test_the_collector_ends_when_its_target_ends(program: Start) -> None:
    target = program("c_spin", "1")
    batches = 0
    collector = PtraceCollector(target.pid, CollectOptions(rate_hz=200, flush_s=0.02), Diagnostics())
    for batches, _ in enumerate(collector.batches(), 1):
        if batches == 5:
            target.process.kill()
        assert batches < 5000
    assert batches >= 5
    collector.close()
    collector.close()


def test_a_target_that_exits_while_attached_is_no_trouble(program: Start) -> None:
    for _ in range(20):
        target = program("c_storm", "threads", "3")
        record(target.pid, go_then_wait(target), rate_hz=5000)
        assert target.finish().startswith("done")


def test_a_zombie_leader_does_not_hide_its_threads(program: Start) -> None:
    code = (
        "import ctypes, threading\n"
        "threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while procfs.read_state(process.pid, process.pid) != "zombie":
            time.sleep(0.01)
        recording = record(process.pid, samples(10), rate_hz=200)
        assert {lane.tid for lane in recording.lanes} == tids(process.pid) - {process.pid}
    finally:
        process.kill()
        process.communicate()


def test_threads_held_by_a_debugger_are_skipped_until_it_leaves(program: Start) -> None:
    target = program("c_spin", "2")
    spinners = sorted(tids(target.pid) - {target.pid})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(spinners[0])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as debugger:
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "held\n"
        held = record(target.pid, samples(20), rate_hz=300)
        assert {lane.tid for lane in held.lanes} == {spinners[1]}
        assert held.diagnostics.counts["thread_held_by_debugger"] > 5
        debugger.communicate("")
    free = record(target.pid, samples(40), rate_hz=300)
    assert {lane.tid for lane in free.lanes} == set(spinners)
    assert target.finish() == "done\n"


def test_a_debugger_can_take_a_target_that_is_sampled(program: Start) -> None:
    target = program("c_spin", "1")
    command = [need("gdb"), "-nx", "-batch", "-ex", "thread apply all bt", "-p", str(target.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as gdb:
        record(target.pid, ended(gdb), rate_hz=100)
        out = gdb.communicate(timeout=MAX_S)[0]
        assert gdb.returncode == 0
        assert "spin" in out
    assert target.finish() == "done\n"


def test_samples_name_the_modules_that_were_loaded_when_they_were_taken(program: Start, tmp_path: Path) -> None:
    source = PROGRAMS / "c_dlopen_lib.c"
    one = build(source, tmp_path / "one.so", "-O1", "-shared", "-fPIC", "-DPAD=1")
    two = build(source, tmp_path / "two.so", "-O1", "-shared", "-fPIC", "-DPAD=300000")
    target = program("c_dlopen", str(one), str(two))
    recording = record(target.pid, samples(400), rate_hz=400)
    names = []
    for lane in recording.lanes:
        module = lane.batch.spaces[lane.space].module_at(lane.regs["rip"])
        names.append(module.name if module else "none")
    assert names.count("none") <= recording.diagnostics.counts["modules_changed"]
    assert names.count("none") <= len(names) // 10
    assert min(names.count("one.so"), names.count("two.so")) > 50
    for lane in recording.lanes:
        module = lane.batch.spaces[lane.space].module_at(lane.regs["rip"])
        if module is not None and module.name in ("one.so", "two.so"):
            # the spin loop has the same bytes in both programs and ends at the same offset of .text
            text = next(m for m in module.mappings if m.executable)
            assert 0x1000 <= lane.regs["rip"] - text.start + text.offset < 0x1200


def test_an_empty_batch_is_a_sign_of_life_of_a_sleeping_target(program: Start) -> None:
    target = program("c_sleepers", "0", "30000000", "futex")
    collector = PtraceCollector(target.pid, CollectOptions(rate_hz=1.0), Diagnostics())
    begin = time.monotonic()
    for batches, batch in enumerate(collector.batches(), 1):
        assert len(batch) == 0
        if batches == 3:
            collector.stop()
    assert time.monotonic() - begin < 10
    collector.close()


def test_threads_are_named_as_they_were_last_seen(program: Start) -> None:
    code = (
        "import threading,time,sys\n"
        "def f():\n"
        "    open(f'/proc/self/task/{threading.get_native_id()}/comm','w').write('worker one')\n"
        "    while True: pass\n"
        "threading.Thread(target=f, daemon=True).start(); time.sleep(0.2); print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert record(process.pid, samples(5), rate_hz=200).threads == ["worker one"]
    finally:
        process.kill()
        process.communicate()


def test_nothing_is_left_open_after_close(program: Start) -> None:
    target = program("c_spin", "3")
    before = len(os.listdir("/proc/self/fd"))
    record(target.pid, samples(10), rate_hz=200, subprocesses=True)
    assert len(os.listdir("/proc/self/fd")) == before
    status = Path(f"/proc/{target.pid}/status").read_text()
    assert "TracerPid:\t0" in status


def test_target_that_is_closed_is_freed_at_once(program: Start) -> None:
    """Check that there is no reference cycle, which would keep descriptors open until the next garbage collection."""
    running = program("c_spin", "1")
    gc.disable()
    try:
        target = TracedProcess(running.pid, CollectOptions(), Identities(), Diagnostics())
        ended = weakref.ref(target)
        target.close()
        del target
        assert ended() is None
    finally:
        gc.enable()
