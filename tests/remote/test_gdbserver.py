"""Tests of Debian's gdbserver on x86-64 processes: stacks, libraries, signals, other debuggers and the final state."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector
from pyprof.collectors.linux import procfs
from pyprof.errors import ConnectionLost
from pyprof.options import CollectOptions, RemoteOptions
from pyprof.problem_counters import Diagnostics
from tests import warm
from tests.cli.support import catches
from tests.collectors.targets import start
from tests.live.support.ladders import ladder, rungs
from tests.live.support.recording import LIFE, running
from tests.remote.programs import folder
from tests.remote.runs import PYPROF, Recorded, dump, names, record
from tests.remote.stubs import gdbserver, relay
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

STANDING = {(*rungs(prefix), f"{prefix}_top") for prefix in "abcd"}


def standing(recorded: Recorded) -> set[tuple[str, ...]]:
    """Return the ladders of the threads. The main thread may be sampled once, because the attach wakes it."""
    threads = [stack for stack in recorded.stacks if "main" not in stack]
    assert {stack[1] for stack in threads} == {"start_thread"}
    return {stack[3:] for stack in threads}


def runs_free(pid: int) -> bool:
    """Return True if every thread runs or sleeps untraced, waiting up to 3 s until detached threads had a processor."""
    deadline = time.monotonic() + 3
    while not (free := _all_run(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return free


def _all_run(pid: int) -> bool:
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        if lines["State"][:1] not in "RSD" or lines["TracerPid"] != "0":
            return False
    return True


def test_recorded_stacks_equal_the_ladder_and_the_target_runs_on(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program, gdbserver(program.pid) as address:
        recorded = record(address, tmp_path)
        assert standing(recorded) == STANDING
        assert recorded.summary["ends"] == {"root": recorded.summary["samples"]}
        assert recorded.summary["stops"]["count"] > 0
        assert runs_free(program.pid)


def test_threads_that_sleep_are_sampled_only_if_asked_for(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program:
        while procfs.read_state(program.pid, program.pid) == "running":
            time.sleep(0.01)  # until the main thread waits for its threads
        for seconds in (0.7, 3, 12):  # on a busy machine a thread may not have run before
            with gdbserver(program.pid) as address:
                threads = record(address, tmp_path, seconds=seconds, codes=(0, 1)).summary["threads"]
            if threads >= 4:
                break
        assert threads == 4
        with gdbserver(program.pid) as address:
            recorded = record(address, tmp_path, "-i", seconds=0.7)
        assert recorded.summary["threads"] == 5
        assert any("main" in stack for stack in recorded.stacks)


@pytest.mark.parametrize(
    "hidden",
    [(), ("vFile",), ("vFile", "qXfer:libraries-svr4"), ("vFile", "qXfer:libraries-svr4", "qXfer:threads")],
    ids=["maps", "libraries-svr4", "r_debug", "r_debug, qfThreadInfo"],
)
def test_dump_finds_the_modules_in_each_way(hidden: tuple[str, ...]) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program, gdbserver(program.pid) as address:
        with relay(address, *hidden) as stub:
            found = dump(stub.address)
            lists = any(asked.startswith(b"qXfer:libraries-svr4") for asked in stub.asked)
            assert lists == (hidden == ("vFile",))
        assert found["pid"] == program.pid
        assert found["exe"] == str(ladder("ladder"))
        assert found["arch"] == "x86_64"
        assert {thread["end"] for thread in found["threads"]} == {"root"}
        assert {tuple(names(thread)[-31:]) for thread in found["threads"]} >= STANDING
        modules = {frame["module"].rpartition("/")[2] for thread in found["threads"] for frame in thread["frames"]}
        assert modules == {"ladder", "libc.so.6"}


def test_library_that_is_loaded_while_recording_is_known(tmp_path: Path) -> None:
    flags = ("-O2", "-fomit-frame-pointer")
    program = build(PROGRAMS / "remote_dlopen.c", folder() / "remote_dlopen", *flags)
    with running(program, LIFE, ladder("libone.so")) as process, gdbserver(process.pid) as address:
        timer = threading.Timer(2.5, process.send_signal, [signal.SIGUSR1])
        timer.start()
        recorded = record(address, tmp_path, seconds=4.5)
        timer.join()
    wrong = {}
    for stack, count in recorded.stacks.items():
        above = stack[stack.index("main") + 1 :] if "main" in stack else ("?",)
        above = (*above[:-1], above[-1].removesuffix("@plt")) if above else ()  # sampled in a PLT entry
        climbing = (*rungs("one"), "one_top")
        if above != ("before",) and "dlopen" not in "".join(above) and above != climbing[: len(above)]:
            wrong[stack] = count
    assert sum(wrong.values()) <= 0.02 * recorded.summary["samples"], wrong
    assert any(stack[-1] == "before" for stack in recorded.stacks)
    assert any("one_30" in stack for stack in recorded.stacks)


def test_second_debugger_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program, gdbserver(program.pid) as address:
        first = GdbRemoteCollector(RemoteOptions(address), CollectOptions(), Diagnostics())
        batches = first.batches()
        sampled: set[int] = set()
        while len(sampled) < 4:
            sampled |= set(next(batches).tid.tolist())
        with pytest.raises(ConnectionLost, match="does not answer") as refused:
            GdbRemoteCollector(RemoteOptions(address, answer_s=0.5), CollectOptions(), Diagnostics())
        assert "another one" in refused.value.hint
        assert next(filter(len, batches))
        first.close()
        assert runs_free(program.pid)


def test_work_of_the_target_is_right_though_signals_fire() -> None:
    program = build(PROGRAMS / "c_survivor.c", folder() / "c_survivor", "-O2", "-pthread")
    target = start([str(program)])
    try:
        with gdbserver(target.pid) as address:
            done = warm.run("record", "--gdb", address, "-d", "2", "-r", "500", "-q", "-f", "collapsed", "-o", "-")
            assert done.returncode == 0, done.stderr
            assert "work" in done.stdout
            assert runs_free(target.pid)
        wrong, _, lost, timer = target.finish().split()
    finally:
        target.process.kill()
        target.process.wait()
    assert (wrong, lost, timer) == ("0", "0", "1")  # EINTR may occur, see docs/remote.md


def test_target_that_ends_while_it_is_recorded_ends_the_recording(tmp_path: Path) -> None:
    for life in ("5", "20", "40"):  # on a busy machine the first samples come late
        with running(ladder("ladder"), "spin", life) as program, gdbserver(program.pid) as address:
            recorded = record(address, tmp_path, seconds=60, codes=(0, 1))
        if len(recorded.stacks) >= len(STANDING):
            break
    assert recorded.summary["duration_s"] < 50
    assert standing(recorded) == STANDING


def test_profiler_that_is_killed_leaves_a_target_that_the_next_one_sets_free() -> None:
    with running(ladder("ladder"), "spin", LIFE) as program, gdbserver(program.pid) as address:
        for wait in (3.0, 3.3):
            command = [*PYPROF, "record", "--gdb", address, "-q", "-o", "/dev/null", "-f", "collapsed"]
            killed = subprocess.Popen(command, start_new_session=True)  # without a front process, which would end it
            time.sleep(wait)
            killed.kill()
            killed.wait()
            time.sleep(0.2)
        states = {line.split()[2] for line in _stats(program.pid)}
        assert "R" in states  # at most the thread that is read is stopped
        found = dump(address)
        assert {thread["end"] for thread in found["threads"]} == {"root"}
        assert runs_free(program.pid)


def test_profiler_that_is_ended_by_a_signal_detaches(tmp_path: Path) -> None:
    with running(ladder("ladder"), "spin", LIFE) as program, gdbserver(program.pid) as address:
        output = tmp_path / "out.collapsed"
        profiler = subprocess.Popen(
            [*PYPROF, "record", "--gdb", address, "-q", "-o", str(output)],
            start_new_session=True,  # no front process: the sampler catches the signal
        )
        while not catches(profiler.pid, signal.SIGTERM):
            time.sleep(0.05)
        time.sleep(1.5)
        profiler.send_signal(signal.SIGTERM)
        assert profiler.wait(timeout=30) == 0
        assert output.stat().st_size > 0
        assert runs_free(program.pid)


def _stats(pid: int) -> list[str]:
    return [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
