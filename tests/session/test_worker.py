"""Tests of the separate worker process: the same profiles as in one process, and clean failure of each process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import pyprof
from pyprof.exporters.base import JournalBeginning
from pyprof.model.profile import FrameKind, Profile
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import DumpOptions, RecordOptions, TargetOptions, UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session import recording_factory, thread_dump
from pyprof.session.pipeline.interpreter_readers import Runtimes
from pyprof.session.session import Session
from pyprof.session.worker.file_broker import KnownProcess
from pyprof.session.worker.message_channel import Part
from pyprof.session.worker.message_codec import Packer
from pyprof.session.worker.messages import Batch, Extent, Message, NamingOptions
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_process import Worker, WorkerDied, forked, spawned
from pyprof.unwind.unwinder import Unwinder
from tests.cli.support import BUSY, PYPROF, python
from tests.replay.batch_log import ReplayCollector
from tests.replay.playing import LOGS, unpacked
from tests.session.support import stacks

OPTIONS = RecordOptions(rate=200, collector="ptrace")


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with python(BUSY) as process:
        yield process


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, up to the test's timeout."""
    while not condition():
        time.sleep(0.02)


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@contextlib.contextmanager
def replayed(name: str, start: Callable[[], Worker] = forked) -> Iterator[Sampling]:
    """Yield a recording that has ended and whose profile has not been requested."""
    log = LOGS / f"{name}.zip"
    with unpacked(log) as files:
        collector, diagnostics = ReplayCollector(str(log), str(files)), Diagnostics()
        runtimes = Runtimes(lambda *_: [], diagnostics)
        naming = NamingOptions("replayed", 99, "cpu", ViewOptions())
        sampling = Sampling(collector, start(), runtimes, diagnostics, UnwindOptions(), naming)
        try:
            sampling.run(lambda: None)
            assert sampling.failure is None
            yield sampling
        finally:
            sampling.close()


@pytest.mark.parametrize("start", [forked, spawned])
@pytest.mark.parametrize("name", ["native", "offcpu", "core"])
def test_worker_gives_the_stacks_of_one_process(name: str, start: Callable[[], Worker]) -> None:
    """Replay a target whose memory and files only the sampler has, so that the worker must request them."""
    log = LOGS / f"{name}.zip"
    with unpacked(log) as files:
        collector = ReplayCollector(str(log), str(files))
        session = Session(collector, UnwindOptions(), Diagnostics())
        expected = session.profile(session.run(collector), "replayed", 99, "cpu", ViewOptions())
    with replayed(name, start) as sampling:
        found = sampling.ask(Extent.CUT).profile()
    assert stacks(found) == stacks(expected)
    assert len(found.stack) >= 3
    assert found.threads == expected.threads
    if name != "offcpu":
        assert np.array_equal(found.values, expected.values)
    # both clip the waits of a thread to the length of their window, which is the time that the replay took
    for thread in range(len(found.threads)):
        values, others = (profile.values[profile.thread == thread, 1] for profile in (found, expected))
        assert values / max(values.sum(), 1) == pytest.approx(others / max(others.sum(), 1), abs=1e-6)


def test_large_batch_is_sent_in_parts_and_gives_the_same_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    packed = Packer.pack

    def counted(packer: Packer, message: Message) -> tuple[list[Part], list[int]]:
        if isinstance(message, Batch):
            sent.append(int(message.batch.stack.data.nbytes))
        return packed(packer, message)

    monkeypatch.setattr(Packer, "pack", counted)
    with replayed("native") as sampling:
        whole, largest = stacks(sampling.ask(Extent.CUT).profile()), max(sent)
    batches = len(sent)
    monkeypatch.setattr("pyprof.session.worker.sampler_loop._MAX_STACKS", largest // 3)
    with replayed("native") as sampling:
        assert stacks(sampling.ask(Extent.CUT).profile()) == whole
    assert len(sent) - batches >= batches + 2
    assert max(sent[batches:]) <= largest // 3


def test_window_has_its_own_processor_time() -> None:
    """Check that the windows' processor times add up to that of the recording."""
    with replayed("native") as sampling:
        first, second = (sampling.ask(Extent.CUT).profile().summary.profiler_cpu_s for _ in range(2))
    assert 0 <= second < first


def test_profile_may_be_asked_for_long_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the deadline for symbolization does not run while no profile is requested."""
    with replayed("native") as sampling:
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 1000)
        found = sampling.ask(Extent.CUT).profile()
    assert found.summary.samples
    assert not [name for name in found.summary.errors if name.endswith("_lookup_timeout")]


@dataclass(frozen=True)
class _Written:
    """A sink that writes a line into a file for each profile."""

    path: Path

    def open_journal(self, beginning: JournalBeginning, number: int) -> None:
        return None

    def receive_profile(self, profile: Profile, number: int) -> None:
        with self.path.open("a") as out:
            out.write(f"{number}: {profile.summary.samples > 0}\n")


@pytest.mark.live
def test_profile_that_was_written_is_not_replaced_where_the_sampler_is_killed_then(
    target: subprocess.Popen[str], tmp_path: Path
) -> None:
    sink = _Written(tmp_path / "written")
    with recording_factory.of_processes(TargetOptions(pids=(target.pid,)), OPTIONS, forked) as recording:
        recording.deliveries.inherit(sink)
        recording.start()
        until(lambda: recording.samples > 20)
        recording.end()
        assert recording.wait(100)
        recording.deliveries.rest(sink)
        worker = recording._sampling._link.worker
        assert worker.leave(20)
        assert worker._ended(0) == 0
    assert sink.path.read_text() == "0: True\n"


def test_keeper_hears_of_any_number_of_processes_at_once() -> None:
    worker = forked()
    try:
        for number in range(1000):
            worker.notify(KnownProcess(number, "/nowhere"))
        assert not worker._unsent
    finally:
        worker.close()


@pytest.mark.live
@pytest.mark.parametrize("start", [forked, spawned])
def test_worker_that_is_killed_ends_the_recording_with_its_reason(
    target: subprocess.Popen[str], start: Callable[[bool], Worker]
) -> None:
    gc.collect()
    before = children(), len(os.listdir("/proc/self/fd"))

    def record() -> None:
        with recording_factory.of_processes(TargetOptions(pids=(target.pid,)), OPTIONS, start) as recording:
            recording.start()
            until(lambda: recording.samples > 20)
            os.kill(recording._sampling._link.worker.pid, signal.SIGKILL)
            assert recording.wait(100)
            assert isinstance(recording.failure, WorkerDied)
            assert "by signal 9" in recording.failure.message
            assert target.poll() is None
            with pytest.raises(WorkerDied):
                recording.stop()
            with pytest.raises(WorkerDied):
                recording.peek()

    record()
    gc.collect()
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.live
def test_windows_that_were_written_before_the_worker_died_stay(target: subprocess.Popen[str], tmp_path: Path) -> None:
    done = subprocess.Popen(
        [*PYPROF, "record", "-p", str(target.pid), "--every", "0.5", "-o", str(tmp_path / "%i.collapsed")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no front process
    )
    written: list[Path] = []  # if the target hardly runs, windows have no samples

    def is_written() -> bool:
        written.extend(path for path in tmp_path.glob("*.collapsed") if "_start;" in path.read_text())
        return bool(written)

    until(is_written)
    (worker,) = map(int, Path(f"/proc/{done.pid}/task/{done.pid}/children").read_text().split())
    os.kill(worker, signal.SIGKILL)
    _, text = done.communicate(timeout=100)
    assert done.returncode == 1
    assert "the process that unwinds and names has ended by signal 9" in text
    assert "_start;" in written[0].read_text()
    assert target.poll() is None


@pytest.mark.live
@pytest.mark.parametrize("output", ["a.html", "a.collapsed", "a.pb.gz", "a.pyprof"])
def test_worker_that_is_killed_leaves_what_it_recorded(
    output: str, target: subprocess.Popen[str], tmp_path: Path
) -> None:
    out = tmp_path / output
    for seconds in WAITS_S:
        with recording_to(out, target.pid) as (recorder, worker):
            time.sleep(seconds)
            os.kill(worker, signal.SIGKILL)
            _, text = recorder.communicate(timeout=100)
        assert recorder.returncode == 1
        assert "Traceback" not in text
        assert "the process that unwinds and names has ended by signal 9" in text
        if "samples of 1 thread" in text or (output == "a.pyprof" and len(pyprof.load(out).stack)):
            break
    assert "what it had recorded by then is written" in text
    if output == "a.html":
        assert "<html" in out.read_text()
    else:
        assert "_start" in {frame.title for frame in pyprof.load(out).frames}


@pytest.mark.live
def test_worker_that_is_stopped_goes_on_at_the_end_and_nothing_is_lost(
    target: subprocess.Popen[str], tmp_path: Path
) -> None:
    out = tmp_path / "a.collapsed"
    for seconds in WAITS_S:
        with recording_to(out, target.pid) as (recorder, worker):
            time.sleep(seconds)
            os.kill(worker, signal.SIGSTOP)
            recorder.send_signal(signal.SIGINT)
            recorder.communicate(timeout=100)
        if out.exists() and "_start;__libc_start_main" in out.read_text():
            break
    assert "_start;__libc_start_main" in out.read_text()


@pytest.mark.live
def test_no_record_is_lost_while_the_worker_gets_no_processor(target: subprocess.Popen[str], tmp_path: Path) -> None:
    """Stop the worker before the first samples, until the kernel has copied more stacks than perf's rings hold."""
    summary = tmp_path / "summary.json"
    options = "--collector", "perf", "-r", "99", "--summary", str(summary)
    for _ in range(5):  # again, if the sampler got no processor to read the rings
        with recording_to(tmp_path / "a.collapsed", target.pid, *options) as (recorder, worker):
            os.kill(worker, signal.SIGSTOP)
            try:
                waited_s = processor_wait_s(recorder.pid)
                until_it_ran(target.pid, 2.5)
                starved_s = processor_wait_s(recorder.pid) - waited_s
            finally:  # also after a timeout: no stopped process stays behind
                os.kill(worker, signal.SIGCONT)
            recorder.send_signal(signal.SIGINT)
            _, said = recorder.communicate(timeout=100)
        found = json.loads(summary.read_text())
        lost = {counter: count for counter, count in found["errors"].items() if "lost" in counter}
        if starved_s < 1:
            break
    # what a sampler without a processor does not read is lost, and counted
    assert found["samples"] + sum(lost.values()) > 150, (said, found["errors"], found["samples"])
    assert not lost or starved_s > 1, (said, lost)


def until_it_ran(pid: int, seconds: float) -> None:
    """Wait until the process has spent this much more processor time."""
    end_s = processor_time_s(pid) + seconds
    until(lambda: processor_time_s(pid) > end_s)


def processor_wait_s(pid: int) -> float:
    """Return for how long threads of a process have waited for a processor, in seconds."""
    return sum(int(path.read_text().split()[1]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def processor_time_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


WAITS_S = 2, 8, 30
"""Durations of recordings in seconds. A recording without samples is repeated with the next one."""


@contextlib.contextmanager
def recording_to(out: Path, target: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Record a process until the block ends. Yield the recorder and the pid of its worker.

    The recorder leads its session, so it has no front process and is the sampler.
    """
    command = [*PYPROF, "record", "-p", str(target), "-o", str(out), *options]
    recorder = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with recorder:
        try:
            yield recorder, _reader_of(target, recorder.pid)
        finally:
            recorder.kill()


def _reader_of(target: int, recorder: int) -> int:
    """Wait until a child of the recorder reads the target's memory, which the worker does, and return its pid."""
    found: list[int] = []

    def reads() -> bool:
        children = Path(f"/proc/{recorder}/task/{recorder}/children").read_text().split()
        found[:] = [pid for pid in map(int, children) if f"/proc/{target}/mem" in _open_files(pid)]
        return bool(found)

    until(reads)
    return found[0]


def _open_files(pid: int) -> set[str]:
    """Return the paths of a process's open files, none if it has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for link in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(link.path))
    return found


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.live
def test_second_interrupt_ends_a_recording_that_is_still_being_named(tmp_path: Path) -> None:
    """Make symbolization endless, as a hostile file might, through a sitecustomize module.

    The module reports the start in a file, which a confined worker could not create.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.session.session import Session\n"
        "    def profile(*_):\n"
        "        open(FOLDER + '/begun', 'w').close()\n"
        "        time.sleep(1000)\n"
        "    Session.profile = profile\n".replace("FOLDER", repr(str(tmp_path)))
    )
    with python(BUSY) as target:
        recorder = subprocess.Popen(
            [*PYPROF, "record", "-p", str(target.pid), "-d", "0.2", "-o", str(tmp_path / "a.html")],
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        with recorder:
            until((tmp_path / "begun").exists)
            recorder.send_signal(signal.SIGINT)
            time.sleep(0.2)
            assert recorder.poll() is None
            recorder.send_signal(signal.SIGINT)
            _, text = recorder.communicate(timeout=100)
    assert recorder.returncode == 1
    assert "second" in text
    assert not list(tmp_path.glob("*.html"))


def test_worker_has_a_lower_priority_than_the_sampler_once_samples_are_taken() -> None:
    worker = forked()
    try:
        worker.lower_priority()
        assert os.sched_getscheduler(worker.pid) == os.SCHED_BATCH
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        worker.close()


def test_forked_worker_holds_no_descriptor_of_its_parent(tmp_path: Path) -> None:
    with open(tmp_path / "held", "w"):
        worker = forked(confined=False)  # only root may read the descriptors of a confined worker
        try:
            assert worker.channel.receive(30) is not None  # the ready message
            held = [os.readlink(link.path) for link in os.scandir(f"/proc/{worker.pid}/fd") if int(link.name) > 2]
        finally:
            worker.close()
    assert [name.partition(":")[0] for name in held] == ["socket"] * 3


@pytest.mark.live
@pytest.mark.parametrize("collector", ["auto", "ptrace", "perf"])
def test_sampler_opens_no_object_file(
    target: subprocess.Popen[str], collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ElfFile, "open", lambda *_: pytest.fail("the sampler opens an object file"))
    monkeypatch.setattr(ImageStore, "image", lambda *_: pytest.fail("the sampler asks what a module's file has"))
    monkeypatch.setattr(Unwinder, "walk", lambda *_: pytest.fail("the sampler unwinds"))
    with recording_factory.of_processes(
        TargetOptions(pids=(target.pid,)), RecordOptions(collector=collector), spawned
    ) as recording:
        recording.start()
        until(lambda: recording.samples > 5)
        profile = recording.stop()
    assert any(len(stack) > 3 for stack in stacks(profile))
    functions = {frame.kind for frame in profile.frames}
    assert (FrameKind.INTERPRETER in functions) == (collector != "perf")


@pytest.mark.live
def test_dump_opens_no_object_file_and_has_all_names(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ElfFile, "open", lambda *_: pytest.fail("the sampler opens an object file"))
    monkeypatch.setattr(ImageStore, "image", lambda *_: pytest.fail("the sampler asks what a module's file has"))
    monkeypatch.setattr(Unwinder, "walk", lambda *_: pytest.fail("the sampler unwinds"))
    (thread,) = thread_dump.of_process(target.pid, DumpOptions())
    assert thread.whole
    assert thread.functions[-1] == "_start"
    assert {detail.language for detail in thread.details} == {"Python"}


@pytest.mark.live
def test_library_in_a_process_with_threads_records(target: subprocess.Popen[str]) -> None:
    """Record from a process whose other threads hold locks now and then, which a fork would copy in a locked state."""
    script = (
        "import sys, threading, logging, time\n"
        "def noise():\n"
        "    while True: logging.getLogger('x').info('y'); time.sleep(0.001)\n"
        "for _ in range(4): threading.Thread(target=noise, daemon=True).start()\n"
        "from pyprof.options import RecordOptions, TargetOptions\n"
        "from pyprof.session import recording_factory\n"
        f"target, options = TargetOptions(pids=({target.pid},)), RecordOptions(rate=200, duration=2.0)\n"
        "with recording_factory.of_processes(target, options) as r:\n"
        "    r.start(); r.wait(); print(r.stop().summary.samples)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 0
