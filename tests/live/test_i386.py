"""Tests of live 32-bit processes on an x86-64 kernel: the same ladders, sleepers and children as for 64 bits."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from pyprof.collectors.linux import interrupted_syscalls
from pyprof.collectors.linux.interrupted_syscalls import INTERRUPTED, RESTARTED
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.collectors.ptrace import sampling_loop
from pyprof.model.sample_batch import SampleKind
from pyprof.options import CollectOptions
from tests import warm
from tests.collectors.stopping import stopping
from tests.collectors.targets import Program, record, samples, start, stops, wait_asleep
from tests.collectors.transfers import counted, shorts
from tests.live.support.ladders import NO_FRAME_POINTER, NO_TABLES, rungs
from tests.live.support.other_unwinders import eu_stacks, gdb_stacks
from tests.live.support.recording import LIFE, Recording, dump, running
from tests.live.support.recording import record as record_names
from tests.live.test_ladders import MAIN, climbing, strange
from tests.support import PROGRAMS, build, missing, need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

GCC = "i686-linux-gnu-gcc"
THREAD = r"[^;]+;[^;]+"
BUILDS = {
    "eh_frame": NO_FRAME_POINTER,
    "debug_frame": (*NO_FRAME_POINTER, "-g", *NO_TABLES),
    "fp": ("-O2", "-fno-omit-frame-pointer", "-DFRAME_POINTERS", *NO_TABLES),
}
KINDS = ("epoll_wait", "recv", "semtimedop", "inotify", "sigtimedwait", "futex", "nanosleep", "poll", "pipe")


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pyprof-i386-")


@cache
def program(source: str, *flags: str) -> Path:
    """Build a test program as 32-bit code, with one copy for each set of flags."""
    output = Path(folder().name) / f"{Path(source).stem}-{abs(hash(flags))}"
    build(PROGRAMS / source, output, *flags, "-pthread", compiler=need(GCC) and GCC)
    done = subprocess.run([output], capture_output=True, check=False, timeout=20, stdin=subprocess.DEVNULL)
    if done.returncode == 126 or b"xec format" in done.stderr:
        missing("needs a kernel that runs 32-bit code (CONFIG_IA32_EMULATION)")
    return output


@contextmanager
def sleepers(*words: str) -> Iterator[Program]:
    target = start([str(program("c_sleepers.c", "-O1")), *words])
    try:
        yield target
    finally:
        target.process.kill()
        target.process.communicate(timeout=100)


def test_threads_that_stand_on_their_ladders_have_one_stack_each(tmp_path: Path) -> None:
    with running(program("ladder.c", *BUILDS["eh_frame"]), "spin", LIFE) as target:
        recording = record_names(target.pid, tmp_path, seconds=1, until=lambda found: len(found.stacks) >= 4)
    assert recording.whole == 1.0
    ladders = [";".join([f"{p}_thread", *rungs(p), f"{p}_top"]) for p in "abcd"]
    assert strange(recording, rf"{THREAD};({'|'.join(ladders)})") == []
    assert len(recording.stacks) == 4
    assert recording.summary["trust"]["eh_frame"] >= 31 * recording.samples


@pytest.mark.parametrize("source", BUILDS)
def test_threads_that_climb_have_stacks_that_begin_like_the_ladder(source: str, tmp_path: Path) -> None:
    with running(program("ladder.c", *BUILDS[source]), "climb", LIFE) as target:
        recording = record_names(target.pid, tmp_path, seconds=1, until=lambda found: len(found.stacks) > 20)
    ladders = [f"{p}_thread{climbing([*rungs(p), f'{p}_top'])}" for p in "abcd"]
    thunk = r";__x86\.get_pc_thunk\.\w+"
    allowed = rf"{THREAD};(?:{'|'.join(ladders)})(?:{thunk})?"
    if source == "fp":  # a rung may be sampled in its call for its own address, before it sets up the frame pointer
        allowed += rf"|{THREAD}(?:;\w+)+{thunk}"
    assert strange(recording, allowed) == []
    assert recording.whole == 1.0
    assert len(recording.stacks) > 20
    assert recording.summary["trust"][source] > recording.samples


def test_every_thread_of_a_standing_process_has_the_frames_of_gdb_and_eu_stack(tmp_path: Path) -> None:
    need("gdb"), need("eu-stack")
    with running(program("ladder.c", *BUILDS["eh_frame"]), "spin", LIFE) as target:
        found = dump(target.pid)
        by_gdb, by_eu = gdb_stacks(target.pid, tmp_path), eu_stacks(target.pid)
    assert found["arch"] == "i386"
    assert len(found["threads"]) == 5
    for thread in found["threads"]:
        assert thread["end"] == "root"
        ours = [int(frame["pc"], 16) for frame in thread["frames"] if not frame.get("inline")]
        # leaf frames move, return addresses do not; eu-stack ends at main
        theirs, eu = by_gdb[thread["tid"]][1:], by_eu[thread["tid"]][1:]
        assert ours[1:] == theirs
        assert ours[1 : len(eu) + 1] == eu
        assert len(eu) >= 4


def test_deep_recursion_is_whole(tmp_path: Path) -> None:
    with running(program("ladder_deep.c", *NO_FRAME_POINTER), "spin", LIFE) as target:
        recording = record_names(target.pid, tmp_path, seconds=1, rate=99)
    (stack,) = recording.stacks
    assert stack[-20002:] == ("main", *["down"] * 20000, "deep_top")


def test_handler_on_its_own_stack_stands_on_what_it_interrupted(tmp_path: Path) -> None:
    def in_the_handler(found: Recording) -> list[tuple[str, ...]]:
        whole = [stack for stack in found.stacks if "truncated" not in stack[0]]
        return [stack for stack in whole if stack[-1] == "handler_top" and "s_top" in stack]

    with running(program("ladder_altstack.c", *NO_FRAME_POINTER), "spin", LIFE) as target:
        recording = record_names(target.pid, tmp_path, seconds=1, until=lambda found: bool(in_the_handler(found)))
    interrupted = rf"{MAIN}{climbing([*rungs('s', 12), 's_top'])}"
    learning = r"[^;]*truncated: stack not readable[^;]*;.*;handler_top"
    assert strange(recording, rf"{interrupted}(?:;[^;]+(?:;handler(?:;handler_top)?)?)?|{learning}") == []
    assert {len(stack) for stack in in_the_handler(recording)} == {3 + 1 + 12 + 1 + 3}


def test_sleeping_threads_are_read_without_a_stop() -> None:
    with sleepers("0", "30000000", "futex", "epoll_wait", "nanosleep") as target:
        wait_asleep(target.pid)
        found = dump(target.pid)
        recording = record(target.pid, samples(200), rate_hz=200, idle=True)
    threads = {thread["tid"]: thread for thread in found["threads"]}
    for kind, tid in zip(("futex", "epoll", "nanosleep"), map(int, target.ready), strict=True):
        names = [frame["function"] for frame in threads[tid]["frames"]]
        assert threads[tid]["end"] == "root", threads[tid]
        assert f"do_{kind}" in names
    assert recording.of(SampleKind.BLOCKED)
    assert recording.stats is not None
    assert len(recording.stats.pauses) == 0
    assert {lane.batch.arch.name for lane in recording.of(SampleKind.BLOCKED)} == {"i386"}


def test_stops_make_no_system_call_fail() -> None:
    with sleepers("40", "200", *KINDS) as target:
        recording = record(target.pid, stops(2000), rate_hz=2000, keep=False)
        lines = [line.split() for line in target.finish().splitlines()]
    assert recording.diagnostics.counts[INTERRUPTED] == 0
    assert [(name, interrupted) for name, _, interrupted in lines] == [(kind, "0") for kind in KINDS]


def test_calls_that_stops_cut_short_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_loop, "TRANSFERRING", 1)
    target = start([str(program("c_transfers.c", "-O1")), "0", "writev", "sendmsg", "recv", "sendfile"])
    recording = record(target.pid, stops(200), rate_hz=1000, keep=False)
    found = counted(recording.diagnostics.counts)
    assert found == shorts(target.finish())
    assert found.total() > 20


def interruptions(kind: str) -> tuple[int, Counter[str]]:
    """Stop a sleeping thread a hundred times. Return the number of system calls that failed, and the counters."""
    with sleepers("0", "30000", kind) as target:
        with stopping(target.pid) as here:
            for _ in range(100):
                here.stop(int(target.ready[0]))
        return int(target.finish().split()[2]), here.diagnostics.counts


@pytest.mark.parametrize("kind", ["epoll_wait", "recv", "semtimedop", "sigtimedwait"])
def test_calls_that_a_stop_broke_off_are_made_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, counts = interruptions(kind)
    assert failed == counts[INTERRUPTED] == 0
    assert counts[RESTARTED] > 0
    monkeypatch.setattr(interrupted_syscalls, "can_restart", lambda arch, number, args: False)
    failed, _ = interruptions(kind)
    assert failed > 0


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_a_family_of_both_kinds_of_code_is_recorded_together(collector: str, tmp_path: Path) -> None:
    """Record a 64-bit shell with a 64-bit child, a 32-bit child, and a child that calls exec from 64-bit to 32-bit
    code.
    """
    if collector == "perf":
        try:
            choose_event(os.getpid(), 0, CollectOptions())
        except PerfNotAllowed as error:
            missing(f"needs perf_events: {error.message} {error.hint}")

    def frames(recording: Recording) -> dict[str, int]:
        return {module["path"]: module["frames"] for module in recording.summary["modules"]}

    def enough(recording: Recording) -> bool:
        return min(frames(recording).get(str(path), 0) for path in (own, other)) > 1000

    own = build(PROGRAMS / "ladder.c", tmp_path / "wide", *NO_FRAME_POINTER, "-pthread")
    other = program("ladder.c", *BUILDS["eh_frame"])
    script = f"{own} spin {LIFE} & {other} spin {LIFE} & (sleep 0.7; exec {other} spin {LIFE}) & echo ready; wait"
    with subprocess.Popen(["setsid", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        try:
            recording = record_names(shell.pid, tmp_path, "-s", "--collector", collector, seconds=3, until=enough)
        finally:
            os.killpg(shell.pid, 9)
    ladders = "|".join(";".join([f"{p}_thread", *rungs(p), f"{p}_top"]) for p in "abcd")
    good = {stack: n for stack, n in recording.stacks.items() if re.fullmatch(rf".*;(?:{ladders})", ";".join(stack))}
    assert enough(recording), frames(recording)
    assert sum(good.values()) > 0.95 * recording.samples, recording.stacks


def test_a_32_bit_program_is_recorded_from_its_first_instruction(tmp_path: Path) -> None:
    output, summary = tmp_path / "out", tmp_path / "summary"
    options = ["-f", "collapsed", "-o", str(output), "--summary", str(summary), "-q"]
    ladder = program("ladder.c", *BUILDS["eh_frame"])
    for seconds in (1, 4, 16):  # until each of the program's threads had a processor, on a busy machine
        done = warm.run("record", "-d", str(seconds), *options, "--", str(ladder), "climb", str(2 * seconds))
        if "a_thread" in output.read_text():
            break
    assert done.stdout == "ready\n"
    assert done.returncode == 0, done.stderr
    assert "a_thread" in output.read_text()
