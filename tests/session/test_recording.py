"""Tests of the methods of a running recording, from any thread, and of what it leaves behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import pyprof
from pyprof.collectors.targets.command_launch import launch
from pyprof.errors import NoSuchProcess, OutputError, UsageError
from pyprof.exporters.base import JournalBeginning
from pyprof.model.profile import Profile
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import RecordOptions, TargetOptions
from pyprof.session import recording_factory
from pyprof.session.pipeline.sample_windows import Recorder
from pyprof.session.recording import Recording
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.response_codec import WorkerFailed
from pyprof.session.worker.worker_process import forked
from tests.cli.support import BUSY, catches, python
from tests.live.support.recording import PYPROF
from tests.session.support import sampled_part

pytestmark = pytest.mark.live

OPTIONS = RecordOptions(rate=200, collector="ptrace")


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with python(BUSY) as process:
        yield process


def opened(pid: int, options: RecordOptions = OPTIONS) -> Recording:
    return recording_factory.of_processes(TargetOptions(pids=(pid,)), options, forked)


def seen(profile: Profile) -> int:
    return profile.summary.samples


def sampled(recording: Recording, wanted: int = 20) -> None:
    """Wait until the current window has this many samples. On a busy machine that takes longer."""
    while recording.running and recording.samples < wanted:
        time.sleep(0.02)


def after(profile: Profile) -> int:
    return profile.start_ns + profile.duration_ns


def test_peeks_grow_and_cut_nothing(target: subprocess.Popen[str]) -> None:
    with opened(target.pid) as recording:
        recording.start()
        sampled(recording)
        first = recording.peek()
        sampled(recording, 2 * seen(first))
        again = recording.peek()
        whole = recording.stop()
    assert 20 <= seen(first) < seen(again) <= seen(whole)
    assert first.start_ns == again.start_ns == whole.start_ns
    early, late = sampled_part(first).time_ns, sampled_part(whole).time_ns
    assert len(early) == seen(first)
    assert np.array_equal(late[: len(early)], early)
    assert {line.function for frame in first.frames for line in frame.lines} >= {"_start", "<module>"}


def test_recording_that_was_told_to_end_before_it_began_samples_nothing(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """End a recording before it starts, as a caller does that already waits for its end."""
    with opened(target.pid) as recording:
        monkeypatch.setattr(recording._sampling._collector, "batches", None)
        recording.end()
        recording.run()
        profile = recording.stop()
    assert recording.failure is None
    assert seen(profile) == 0
    assert 0 <= profile.duration_ns < 1e9


def test_peek_from_many_threads_at_once(target: subprocess.Popen[str]) -> None:
    found: list[Profile] = []
    with opened(target.pid) as recording:
        recording.start()
        threads = [threading.Thread(target=lambda: found.append(recording.peek())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4


def test_windows_follow_each_other_without_a_gap_and_the_last_is_what_is_left(target: subprocess.Popen[str]) -> None:
    found: list[Profile] = []
    with opened(target.pid) as recording:
        recording.start()
        for profile in recording.windows(0.3):
            found.append(profile)
            if len(found) >= 3 and sum(map(seen, found)) > 10:  # a busy machine may have more windows than three
                recording.end()
        assert found[-1] is recording.stop()
        assert found[-1] is recording.peek()
    assert len(found) >= 4
    for earlier, later in itertools.pairwise(found):
        assert after(earlier) == later.start_ns
    times = np.concatenate([sampled_part(profile).time_ns for profile in found])
    assert len(times) == len(set(times.tolist())) == sum(map(seen, found)) > 10
    assert np.all(np.diff(times) > 0)


def test_window_that_is_closed_ends_at_the_end_of_the_span(target: subprocess.Popen[str]) -> None:
    ends: list[int] = []
    with opened(target.pid) as recording:
        recording.on_cut = lambda: ends.append(recording.span_ns[1])
        recording.start()
        found = list(itertools.islice(recording.windows(0.2), 3))
        rest = recording.stop()
        begun_ns, ended_ns = recording.span_ns
    lengths = [later - earlier for earlier, later in itertools.pairwise([begun_ns, *ends, ended_ns])]
    assert [profile.duration_ns for profile in (*found, rest)] == lengths


@dataclass(frozen=True)
class Numbers:
    """A sink that creates a file for each window and raises an error at the second one."""

    folder: Path

    def open_journal(self, beginning: JournalBeginning, number: int) -> None:
        """Return no journal."""

    def receive_profile(self, profile: Profile, number: int) -> None:
        (self.folder / f"{number} {seen(profile)}").touch()
        if number == 1:
            raise OutputError("enough")


def test_sink_takes_windows_and_its_errors_are_told(target: subprocess.Popen[str], tmp_path: Path) -> None:
    def end_after_three() -> None:
        while len(names := [path.name for path in tmp_path.iterdir()]) < 3 or all(
            name.endswith(" 0") for name in names
        ):
            time.sleep(0.02)
        recording.end()

    with opened(target.pid, RecordOptions(rate=200, collector="ptrace", duration=60)) as recording:
        recording.deliveries.every(0.2, Numbers(tmp_path))
        threading.Thread(target=end_after_three, daemon=True).start()
        recording.run()
        assert [repr(error) for error in recording.deliveries.failures()] == ["OutputError('enough')"]
        assert recording.deliveries.count >= 3
        assert recording.asked_to_end
    names = sorted((path.name.split() for path in tmp_path.iterdir()), key=lambda name: int(name[0]))
    assert [int(number) for number, _ in names] == list(range(recording.deliveries.count))
    assert any(int(samples) for _, samples in names)


@dataclass(frozen=True)
class Lengths:
    """A sink that writes the length of each window, and the sum of its samples' time, into a file."""

    folder: Path

    def open_journal(self, beginning: JournalBeginning, number: int) -> None:
        """Return no journal."""

    def receive_profile(self, profile: Profile, number: int) -> None:
        (self.folder / f"{number:03}").write_text(f"{profile.duration_ns} {profile.values[:, 1].sum()}")


@pytest.mark.parametrize("collector", ["auto", "perf", "ptrace"])
def test_window_has_what_was_sampled_in_it(target: subprocess.Popen[str], collector: str) -> None:
    with opened(target.pid, RecordOptions(rate=200, collector=collector)) as recording:
        recording.start()
        windows = recording.windows(0.5)
        next(windows)
        found = [next(windows)]
        while len(found) < 3 or sum(map(seen, found)) < 20:  # on a busy machine the target hardly runs
            found.append(next(windows))
    of_before = [int((profile.time_ns < profile.start_ns).sum()) for profile in found]
    assert sum(of_before) < 0.2 * sum(map(seen, found)), of_before


def delay_once(recording: Recording, seconds: float) -> Callable[[], None]:
    """Return a `beat` that blocks the recording's loop once, after the first samples, as a busy machine does."""
    left = [seconds]

    def beat() -> None:
        if recording.samples and left:
            time.sleep(left.pop())

    return beat


@pytest.mark.parametrize(("collector", "mode"), [("auto", "cpu"), ("auto", "wall"), ("perf", "cpu"), ("ptrace", "cpu")])
def test_windows_that_are_late_at_the_end_keep_their_own_length(
    target: subprocess.Popen[str], tmp_path: Path, collector: str, mode: str
) -> None:
    with opened(target.pid, RecordOptions(rate=200, collector=collector, mode=mode, duration=2)) as recording:
        recording.deliveries.every(0.3, Lengths(tmp_path))
        recording.run(delay_once(recording, 2.5))
        recording.deliveries.rest(Lengths(tmp_path))
        assert not recording.deliveries.failures()
    windows = [[int(ns) / 1e9 for ns in path.read_text().split()] for path in sorted(tmp_path.iterdir())]
    lengths = [length for length, _ in windows]
    assert len(lengths) >= 6
    assert all(spent <= 1.02 * length for length, spent in windows), windows
    assert lengths[:-1] == pytest.approx([0.3] * (len(lengths) - 1))
    assert 0 < lengths[-1] < 0.4


@pytest.mark.parametrize("collector", ["auto", "perf", "ptrace"])
def test_duration_ends_on_the_clock_of_the_samples_if_the_profiler_is_late(
    target: subprocess.Popen[str], tmp_path: Path, collector: str
) -> None:
    out = tmp_path / "out.pyprof"
    options = ("-p", str(target.pid), "-d", "1", "--collector", collector, "-o", str(out))
    command = [*PYPROF, "record", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr
        assert any("pyprof: recording" in line for line in process.stderr)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        process.stderr.read()
    profile = pyprof.load(out)
    assert 1e9 <= profile.duration_ns < 1.4e9  # by stops, samples begin a little after the recording
    assert (profile.time_ns <= after(profile)).all()
    assert profile.values[:, 1].sum() <= 1.02 * profile.duration_ns


@pytest.mark.parametrize("mode", ["wall", "offcpu"])
def test_sleepers_by_stops_sleep_for_the_whole_window_whatever_rounds_were_made(mode: str) -> None:
    script = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.02)\n"
    )
    with python(script) as sleepers, opened(sleepers.pid, RecordOptions(collector="ptrace", mode=mode)) as recording:

        def miss_rounds() -> None:
            time.sleep(0.15 if recording.samples else 0)

        thread = threading.Thread(target=recording.run, args=(miss_rounds,), daemon=True)
        thread.start()
        sampled(recording, 2)
        # a busy machine may make no round in a window
        found = [*itertools.islice((window for window in recording.windows(0.5) if window.threads), 4)][1:]
        recording.end()
        thread.join()
    for profile in found:
        slept_ns = [int(profile.values[profile.thread == thread, 1].sum()) for thread in range(len(profile.threads))]
        assert max(slept_ns) <= profile.duration_ns
        assert max(slept_ns) == pytest.approx(profile.duration_ns, rel=0.02)
        if mode == "wall":  # the other thread waits for a processor, too
            assert slept_ns == pytest.approx([profile.duration_ns] * 2, rel=1e-6)


def test_end_of_the_target_ends_the_recording(target: subprocess.Popen[str]) -> None:
    with opened(target.pid) as recording:
        recording.start()
        sampled(recording)
        assert recording.running
        target.kill()
        assert recording.wait(60)
        assert not recording.asked_to_end
        assert seen(recording.peek()) >= 20
        assert len(list(recording.windows(1))) == 1


def test_samples_of_a_recording_that_is_hastened_are_kept_and_marked(target: subprocess.Popen[str]) -> None:
    with opened(target.pid) as recording:
        recording.start()
        sampled(recording)
        whole = recording.peek()
        recording._sampling._link.end(EndUrgency.IMMEDIATE)  # the recording continues
        sampled(recording, seen(whole) + 50)
        profile = recording.stop()
    late = profile.summary.ends["late"]
    assert late >= 40
    assert seen(profile) >= seen(whole) + 50
    stacks = [[frame.title for frame in profile.path(int(leaf))] for leaf in profile.stack]
    cut = [stack for stack in stacks if stack[0] == "[truncated: no time left to unwind]"]
    assert {len(stack) for stack in cut} == {2}  # a marker and the running function
    assert len(stacks) - len(cut) >= 1


def test_error_of_the_worker_is_kept_beside_what_was_recorded(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Recorder.add_batch

    def breaks(recorder: Recorder, batch: SampleBatch) -> None:
        if recorder.samples > 20:
            raise ZeroDivisionError("a bug")
        add(recorder, batch)

    monkeypatch.setattr(Recorder, "add_batch", breaks)
    with opened(target.pid) as recording:
        recording.start()
        assert recording.wait(100)
        assert isinstance(recording.failure, WorkerFailed)
        assert "ZeroDivisionError: a bug" in str(recording.failure)
        assert seen(recording.stop()) > 20


def test_command_ends_with_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyprof.session.recording._PATIENCE_S", 0.2)
    code = "import time, signal; signal.signal(15, lambda *_: None); time.sleep(60)"
    waiting = launch([sys.executable, "-c", code])
    with recording_factory.of_command(waiting, OPTIONS, forked) as recording:
        recording.start()
        while not catches(waiting.pid, signal.SIGTERM):
            time.sleep(0.01)
        assert recording.returncode is None
        os.kill(waiting.pid, signal.SIGTERM)  # the process handles SIGTERM
    assert recording.returncode == 137


def test_command_that_ends_is_recorded_to_its_end() -> None:
    with recording_factory.of_command(
        launch([sys.executable, "-c", "sum(range(30_000_000)); exit(3)"]), OPTIONS, forked
    ) as recording:
        recording.start()
        assert recording.wait(100)
        assert recording.returncode == 3
        assert seen(recording.stop()) > 0


def test_nothing_is_left_behind(target: subprocess.Popen[str]) -> None:
    def left() -> set[object]:
        """Return file descriptors, threads and children. Those of earlier tests may end meanwhile."""
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()
        return {*os.listdir("/proc/self/fd"), *threading.enumerate(), *children}

    with opened(target.pid) as recording:  # loads everything that stays loaded
        recording.start()
        recording.peek()
    before = left()
    for _ in range(3):
        with opened(target.pid) as recording:
            recording.start()
            recording.peek()
            next(recording.windows(0.1))
        with opened(target.pid):
            pass
        with pytest.raises(NoSuchProcess):
            opened(2**22 + 1)
        command = launch(["/bin/true"])
        with pytest.raises(UsageError):
            recording_factory.of_command(command, RecordOptions(mode="gpu"))
    assert not left() - before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RecordOptions(mode="gpu"), "mode: 'gpu' is not one of cpu, wall, offcpu"),
        (RecordOptions(rate=0), "rate: 0 is not above 0"),
        (RecordOptions(rate=float("nan")), "rate: nan"),
        (RecordOptions(duration=-1), "duration"),
        (RecordOptions(max_overhead=2), "max_overhead: 2 is not above 0 and at most 1"),
        (RecordOptions(thread="("), "thread: '\\(' is not a regular expression"),
        (RecordOptions(unwind=("magic",)), "unwind: 'magic'"),
        (RecordOptions(unwind=("breakpad",)), "the source breakpad needs symbol files"),
        (RecordOptions(kernel=True, collector="ptrace"), "no kernel frames"),
    ],
)
def test_option_that_cannot_be_met_is_refused(options: RecordOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recording_factory.check(options)
