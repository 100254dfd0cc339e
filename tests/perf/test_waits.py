"""Tests of off-CPU time against programs that know where and how long they waited."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyprof.collectors.context_switch_protocol import BLOCKED
from pyprof.collectors.perf.context_switches import Switches
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.collectors.perf.ring_buffer_records import MIN_RING
from pyprof.collectors.registry import open_collector
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.options import CollectOptions, TargetOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from tests import warm
from tests.collapsed import is_block
from tests.live.support.recording import PYPROF, running
from tests.support import PROGRAMS, build, busy_loops, missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

SECONDS = 3.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        choose_event(os.getpid(), 0, CollectOptions(kernel=True))
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")
    path = tmp_path_factory.mktemp("waits") / "waits"
    need("gcc")
    build(PROGRAMS / "c_waits.c", path, "-O2", "-g", "-pthread")
    return path


@dataclass
class Waits:
    """The windows of an off-CPU recording.

    Attributes:
        seconds: Seconds by thread and stack, from root to leaf.
        passed: Total duration of the windows in seconds.
        errors: Counters of the recording.
        each: Seconds of each sample by thread, with its stack.
    """

    seconds: dict[str, dict[tuple[str, ...], float]] = field(default_factory=lambda: defaultdict(dict))
    passed: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    each: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        found = json.loads(path.read_text())
        names = [frame["name"] for frame in found["shared"]["frames"]]
        for profile in found["profiles"]:
            thread = self.seconds[profile["name"].split(" (")[0]]
            for stack, ns in zip(profile["samples"], profile["weights"], strict=True):
                key = tuple(names[frame] for frame in stack)
                thread[key] = thread.get(key, 0.0) + ns / 1e9
                self.each[profile["name"].split(" (")[0]].append((key, ns / 1e9))
        summary = json.loads(path.with_suffix(".summary").read_text())
        self.passed += summary["duration_s"]
        self.errors = summary["errors"]

    def total(self, thread: str) -> float:
        return sum(self.seconds[thread].values())

    def of(self, thread: str, *names: str) -> float:
        """Return the seconds of the thread's stacks that contain all these frames."""
        return sum(s for stack, s in self.seconds[thread].items() if all(name in stack for name in names))

    def leaf(self, thread: str, name: str) -> float:
        return sum(s for stack, s in self.seconds[thread].items() if stack[-1] == name)


@dataclass
class Program:
    process: subprocess.Popen[str]
    folder: Path

    def truth(self) -> dict[str, tuple[int, int]]:
        """Return (nanoseconds, number of waits) of each place from the start until now."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = {}
        while (line := self.process.stdout.readline()) != "end\n":
            name, ns, times = line.split()
            found[name] = (int(ns), int(times))
        return found

    def record(self, *options: str, collector: str = "perf", mode: str = "wall", seconds: float = SECONDS) -> Waits:
        out, summary = self.folder / "%i.speedscope.json", self.folder / "%i.speedscope.summary"
        to = ("-t", "-o", str(out), "--summary", str(summary))
        how = ("-d", str(seconds), "--collector", collector, "--mode", mode)
        done = warm.run("record", "-p", str(self.process.pid), *how, *to, *options, timeout=120)
        assert done.returncode == 0, done.stderr
        waits = Waits()
        for path in sorted(self.folder.glob("*.json")):
            waits.read(path)
        return waits


@contextmanager
def started(program: Path, folder: Path, *threads: str) -> Iterator[Program]:
    with running(program, *threads, stdin=subprocess.PIPE) as process:
        yield Program(process, folder)
        assert process.stdin
        process.stdin.close()


def shares(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], *places: str) -> list[float]:
    spent = [after[place][0] - before[place][0] for place in places]
    return [ns / sum(spent) for ns in spent]


def test_each_place_has_the_time_that_its_thread_waited_there(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "naps", "reads", "ticks", "endless") as target:
        before = target.truth()
        waits = target.record(mode="offcpu")
        after = target.truth()
    short, long = shares(before, after, "nap_short", "nap_long")
    spent = waits.of("naps", "nap_short") + waits.of("naps", "nap_long")
    # the truth covers a longer time than the recording, with possibly other load
    assert waits.of("naps", "nap_short") / spent == pytest.approx(short, abs=0.05)
    assert waits.of("naps", "nap_long", "[sleeping: clock_nanosleep]") / spent == pytest.approx(long, abs=0.07)
    for thread, place in (("reads", "wait_tick"), ("endless", "nap_endless")):
        assert waits.of(thread, place) == pytest.approx(waits.passed, rel=0.05)
    assert waits.leaf("endless", "[sleeping: clock_nanosleep]") == pytest.approx(waits.passed, rel=0.05)
    assert waits.leaf("reads", "[sleeping: read]") == pytest.approx(waits.passed, rel=0.1)


@pytest.mark.parametrize("collector", ["perf", "ptrace"])
def test_wall_time_of_each_thread_is_the_time_that_passed(program: Path, collector: str, tmp_path: Path) -> None:
    threads = ("naps", "reads", "ticks", "endless", "spins")
    with started(program, tmp_path, *threads) as target:
        before = target.truth()
        often = ("-r", "499") if collector == "perf" else ()  # 99 Hz has a random error of 3 % on shared processors
        for _ in range(5):  # on a busy machine stops come too late for some time, which is in a block
            waits = target.record(*often, collector=collector)
            of_spins = waits.seconds["spins"].items()
            missed = sum(s for stack, s in of_spins if is_block(stack[0]) and collector == "ptrace")
            if missed < 0.5 * waits.passed:
                break
        after = target.truth()
    for thread in threads:
        # samples of running threads lack late rounds in both collectors
        total = waits.total(thread)
        assert total == pytest.approx(waits.passed, rel=0.04 if collector == "perf" else 0.25), waits.seconds[thread]
    # stops promise the function of the time that they saw, not of the block
    assert waits.of("spins", "spins") > 0.9 * (waits.total("spins") - missed) > 0.2 * waits.passed, of_spins
    napped = [waits.of("naps", place) for place in ("nap_short", "nap_long")]
    true = shares(before, after, "nap_short", "nap_long")[1]
    assert napped[1] / sum(napped) == pytest.approx(true, abs=0.07 if collector == "perf" else 0.12)
    assert waits.of("reads", "wait_tick") / waits.total("reads") > 0.9


def test_slow_threads_have_a_stack_of_each_wait_before_records_are_read(program: Path, tmp_path: Path) -> None:
    """The first records may wait for seconds on a busy machine. Waits without a stack get that of another wait."""

    def naps(target: Program) -> int:
        return target.truth()["nap_long"][1]

    with started(program, tmp_path, "naps") as target:
        while naps(target) < 5:
            time.sleep(0.01)
        switches = Switches(CollectOptions(idle=True), Diagnostics(), everything=False)
        try:
            switches.attach_events([target.process.pid])
            before = naps(target)
            while naps(target) < before + 10:
                time.sleep(0.01)
            found = switches.take_switches(2**62)
            (tid,) = {int(tid) for tid in os.listdir(f"/proc/{target.process.pid}/task")} - {target.process.pid}
            left = np.count_nonzero((found.switches.tid == tid) & (found.switches.kind == BLOCKED))
            assert np.count_nonzero(found.samples.tid == tid) >= left >= 10
        finally:
            switches.close()


def test_both_collectors_see_the_same_wall_time(program: Path, tmp_path: Path) -> None:
    """Record with both collectors at the same time, because other load changes how long a thread waits."""
    collectors = ("perf", "ptrace")
    with started(program, tmp_path, "naps", "reads", "ticks", "endless") as target, ThreadPoolExecutor(2) as pool:
        for name in collectors:
            (tmp_path / name).mkdir()
        found = list(pool.map(lambda name: Program(target.process, tmp_path / name).record(collector=name), collectors))

    def unknown(waits: Waits, thread: str) -> float:
        return waits.of(thread, "[not sampled: too short to see]")

    places = (("naps", "nap_short"), ("naps", "nap_long"), ("reads", "wait_tick"), ("ticks", "nap"))
    for thread, place in (*places, ("endless", "nap_endless")):
        perf, ptrace = (waits.of(thread, place) / waits.total(thread) for waits in found)
        # on a busy machine stops come too late for some waits, which are in a block instead of their place
        block = unknown(found[1], thread) / found[1].total(thread)
        assert ptrace - 0.12 <= perf <= ptrace + block + 0.12, (thread, place)
    for waits in found:
        assert waits.leaf("endless", "[sleeping: clock_nanosleep]") > 0.95 * waits.total("endless")
        known = waits.total("reads") - unknown(waits, "reads")
        assert waits.leaf("reads", "[sleeping: read]") > 0.85 * known > 0.5 * waits.passed


def test_spinners_on_too_few_processors_wait_for_them(program: Path, tmp_path: Path) -> None:
    few = min(os.sched_getaffinity(0))
    with started(program, tmp_path, "spins", "spins", "spins", "endless") as target:
        for tid in os.listdir(f"/proc/{target.process.pid}/task"):
            os.sched_setaffinity(int(tid), {few})
        waits = target.record()
    # the sum of three threads with one name
    assert waits.total("spins") == pytest.approx(3 * waits.passed, rel=0.06)
    assert waits.leaf("spins", "[waiting for a processor]") > 0.6 * waits.total("spins")
    assert waits.of("spins", "spins", "[waiting for a processor]") > 0.55 * waits.total("spins")
    assert waits.leaf("endless", "[waiting for a processor]") < 0.02 * waits.passed


def test_thousands_of_switches_a_second_keep_their_places_and_their_time(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "pings", "pongs") as target:
        before = target.truth()
        found: list[tuple[str, float]] = []
        while effective(seconds for _, seconds in found) < 40:  # on a busy machine few long waits are most of the time
            waits = target.record()
            for thread in ("pings", "pongs"):
                assert waits.total(thread) == pytest.approx(waits.passed, rel=0.06), (waits.seconds, waits.errors)
            places = ("wait_first", "wait_second")
            found += [(place, s) for stack, s in waits.each["pongs"] for place in places if place in stack]
        after = target.truth()
    assert after["wait_first"][1] - before["wait_first"][1] > 5000
    # with other load one sampled wait of milliseconds stands for ten, so the shares are rough
    first = sum(seconds for place, seconds in found if place == "wait_first") / sum(seconds for _, seconds in found)
    assert first == pytest.approx(shares(before, after, "wait_first", "wait_second")[0], abs=0.35)


def effective(seconds: Iterable[float]) -> float:
    """Return the number of equal waits by which a share would be as uncertain as by these ones."""
    found = list(seconds)
    return sum(found) ** 2 / sum(each * each for each in found) if found else 0.0


def test_a_thread_left_alone_is_off_its_processor_only_while_it_does_not_run(program: Path, tmp_path: Path) -> None:
    def ran_and_delayed(pid: int) -> npt.NDArray[np.float64]:
        lines = [path.read_text().split()[:2] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        times: npt.NDArray[np.float64] = np.array(lines, np.float64).sum(axis=0) / 1e9
        return times

    with started(program, tmp_path, "pings", "pongs") as target:
        began, before = time.monotonic(), ran_and_delayed(target.process.pid)
        waits = target.record(mode="offcpu")
        ran, delayed = (ran_and_delayed(target.process.pid) - before) / (time.monotonic() - began)
    off = sum(waits.total(thread) for thread in ("pings", "pongs")) / waits.passed
    # runnable time after a wait may count as a part of the wait
    assert 2 - ran - delayed - 0.2 <= off <= 2 - ran + 0.2


@pytest.mark.parametrize("collector", ["perf", "bpf"])
def test_windows_have_the_waits_of_their_own_time_on_a_busy_machine(
    program: Path, collector: str, tmp_path: Path
) -> None:
    with started(program, tmp_path, "endless", "naps") as target, busy_loops():
        target.record("--every", "1", collector=collector, mode="offcpu", seconds=3.6)
    windows = sorted(tmp_path.glob("*.json"), key=lambda path: int(path.name.split(".")[0]))
    assert len(windows) >= 2
    for path in windows:
        waits = Waits()
        waits.read(path)
        assert "waits_clipped" not in waits.errors
        for thread in ("endless", "naps"):
            assert waits.total(thread) <= waits.passed * (1 + 1e-6)
            if path != windows[0]:  # before its first check a sleeping thread may count as running
                assert waits.total(thread) == pytest.approx(waits.passed, rel=0.05), (thread, path, waits)


def test_single_recording_has_all_of_a_sleepers_time_on_a_busy_machine(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "endless", "naps") as target, busy_loops():
        waits = target.record(collector="bpf", mode="offcpu")
    for thread in ("endless", "naps"):
        assert waits.total(thread) == pytest.approx(waits.passed, rel=0.05)
        assert waits.total(thread) <= waits.passed * (1 + 1e-6)


def test_whoever_waits_on_the_machine_has_a_name_and_is_not_the_profiler(program: Path, tmp_path: Path) -> None:
    if os.geteuid():
        missing("needs root, to record the whole machine")
    out = tmp_path / "all.collapsed"
    command = [*PYPROF, "record", "-a", "-d", "2", "--mode", "wall", "-t", "-f", "collapsed", "-o", str(out)]
    with started(program, tmp_path, "naps", "endless") as target:
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        _, said = recorder.communicate(timeout=120)
        waiter = target.process.pid
    assert recorder.returncode == 0, said
    found = {tuple(line.split(";")[:2]) for line in out.read_text().splitlines()}
    processes = {process for process, _ in found}
    assert any(process.endswith(f"(pid {waiter})") for process in processes)
    assert not [process for process in processes if process.endswith(f"(pid {recorder.pid})")]
    assert not [name for row in found for name in row if re.match(r"-?\d+ \((pid|tid)", name)]


def as_nobody(work: Callable[[], str]) -> str:
    """Return the result of a function that runs in a process without privileges."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # the child must not run the clean-up of tests
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(writer, work().encode())
        except BaseException as error:  # noqa: BLE001 - sent to the parent
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def test_a_user_without_rights_gets_records_of_switches_but_no_stacks(program: Path) -> None:
    if os.geteuid():
        missing("needs root, to become somebody without rights")
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        level = int(file.read())

    def sleep_often() -> str:
        try:
            switches = Switches(CollectOptions(idle=True), Diagnostics(), everything=False)
        except PerfNotAllowed:
            return "refused"
        switches.attach_events([os.getpid()])
        for _ in range(20):
            time.sleep(0.001)
        found = switches.take_switches(2**62)
        return f"{switches.stacks} {len(found.switches.tid) >= 40}"

    assert as_nobody(sleep_often) == ("refused" if level > 2 else f"{level < 2} True")


def test_a_user_without_rights_gets_all_of_a_threads_time(program: Path) -> None:
    if os.geteuid():
        missing("needs root, to become somebody without rights")
    need("perl")
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        level = int(file.read())
    importlib.import_module("pyprof.collectors.ptrace.collector")  # the child may not read the interpreter's files

    def recorded() -> str:
        diagnostics = Diagnostics()
        target = subprocess.Popen(["perl", "-e", "for (;;) { select(undef, undef, undef, 0.004) }"], cwd="/")
        try:
            time.sleep(0.3)
            options = CollectOptions(idle=True)
            collector = open_collector(
                "perf", select_processes(TargetOptions(pids=(target.pid,))), options, diagnostics
            )
            session = Session(collector, UnwindOptions(), diagnostics)
            until = time.monotonic() + 2

            def beat() -> None:
                if time.monotonic() > until:
                    collector.stop()

            window = session.run(collector, beat)
        except PerfNotAllowed:
            return "refused"
        finally:
            target.kill()
            target.wait()
        assert session.failure is None, session.failure
        known = window.length_ns >= 0
        spent = int(window.length_ns[known].sum()) + int(np.count_nonzero(~known)) * round(1e9 / options.rate_hz)
        seen = window.length_ns[known & (window.node > 0)].max() > 0
        user_only = any("paranoid=1" in note.text for note in window.after.notes)
        return f"{0.9 < spent / window.duration_ns < 1.05} {seen} {user_only}"

    assert as_nobody(recorded) == ("refused" if level > 2 else f"True True {level == 2}")


LOST = "switch_records_lost"


@pytest.mark.parametrize(("ring", "nap_s"), [(MIN_RING, 0.0003), (8 << 20, 0.05)], ids=["lost", "all there"])
def test_note_on_exact_times_says_of_how_much_time_records_were_lost(
    program: Path, ring: int, nap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("perl")
    monkeypatch.setattr("pyprof.collectors.perf.context_switches._MAX_RING", ring)
    target = subprocess.Popen(["perl", "-e", f"for (;;) {{ select(undef, undef, undef, {nap_s}) }}"], cwd="/")
    try:
        diagnostics, options = Diagnostics(), CollectOptions(idle=True)
        collector = open_collector("perf", select_processes(TargetOptions(pids=(target.pid,))), options, diagnostics)
        session = Session(collector, UnwindOptions(), diagnostics)
        begun, done = time.monotonic(), threading.Event()
        os.sched_setaffinity(target.pid, {min(os.sched_getaffinity(0))})  # puts all records into one ring

        def slow() -> None:
            """Delay the collector so that the ring overflows.

            The kernel reports lost records with the next record that fits, so the collector must not stop before that.
            """
            if not done.is_set():
                time.sleep(1.0 if ring == MIN_RING else 0.3)
                said = ring != MIN_RING or LOST in diagnostics.counts
                if time.monotonic() - begun > (1.5 if said else 60):
                    done.set()
                    collector.stop()

        window = session.run(collector, slow)
    finally:
        target.kill()
        target.wait()
    assert session.failure is None, session.failure
    lost = [dict(note.arguments)["seconds"] for note in window.after.notes if note.reason == "switches_lost"]
    assert bool(lost) == bool(window.errors.get(LOST)) == (ring == MIN_RING)
    assert all(0 < float(seconds) < window.duration_ns / 1e9 for seconds in lost)
