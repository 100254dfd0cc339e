"""Tests of `pyprof record` as users run it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import pyprof as api
from pyprof.cli.window_writer import WindowOptions, WindowWriter
from pyprof.exporters import registry
from pyprof.exporters.base import ExportOptions
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.summary import Summary
from pyprof.options import RecordOptions
from pyprof.session.recording import Recorded
from tests.cli.support import BUSY, PYPROF, SLEEPY, has_samples, newest, pyprof, python, record_until
from tests.collapsed import sampled
from tests.exporters.firefox_profile import read as read_firefox
from tests.exporters.profiles import Builder

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_each_suffix_writes_its_format(tmp_path: Path) -> None:
    with python(BUSY) as target:
        for name in ("a.html", "a.speedscope.json", "a.pb.gz", "a.collapsed", "a.firefox.json.gz"):
            done = record_until(has_samples, "-p", str(target.pid), "-o", str(tmp_path / name))
            assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.html").read_bytes().lower().startswith(b"<!doctype html")
    assert json.loads((tmp_path / "a.speedscope.json").read_text())["profiles"]
    assert b"<module>" in gzip.decompress((tmp_path / "a.pb.gz").read_bytes())
    assert "<module> (<string>)" in (tmp_path / "a.collapsed").read_text()
    firefox = read_firefox((tmp_path / "a.firefox.json.gz").read_bytes())
    frames = [frame for track in firefox.tracks for row in track.rows for frame in firefox.frames(row)]
    assert {"Native", "Interpreted"} <= {frame["category"] for frame in frames}
    assert any(frame["name"] == "<module>" and frame["file"] == "<string>" for frame in frames)
    assert any(frame["lib"] and frame["lib"]["breakpadId"] and frame["nativeSymbol"] is not None for frame in frames)


def assert_whole(out: Path) -> None:
    """Assert that a collapsed file has samples and that its first stack in alphabetical order begins at _start."""
    assert sampled(out.read_text())[0][0][0] == "_start"


def test_collapsed_on_standard_output_has_whole_stacks_and_nothing_else() -> None:
    with python(BUSY) as target:
        done = record_until(has_samples, "-p", str(target.pid), "-o", "-", "-q")
    assert done.stderr == ""
    found = sampled(done.stdout)
    assert found
    for frames, count in found:
        assert count > 0
        assert len(frames) > 1
        assert frames[0] == "_start"


@pytest.mark.parametrize(
    ("name", "is_written", "options"), [("a.html", False, []), ("a.collapsed", True, []), ("a.html", False, ["-q"])]
)
def test_recording_without_samples_fails_and_writes_no_page(
    name: str, is_written: bool, options: list[str], tmp_path: Path
) -> None:
    with python(SLEEPY) as target:
        done = pyprof("record", "-p", str(target.pid), "-d", "0.4", "-o", str(tmp_path / name), *options)
    assert done.returncode == 1
    assert not options or done.stderr.count("\n") == 1
    assert "nothing was sampled: no thread was running; -i samples sleeping" in " ".join(done.stderr.split())
    assert (tmp_path / name).exists() == is_written


def test_default_name_says_what_was_recorded(tmp_path: Path) -> None:
    with python(BUSY) as target:
        done = record_until(has_samples, "-p", str(target.pid), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert newest(tmp_path).name.startswith("pyprof-python")
    assert f"-{target.pid}-" in newest(tmp_path).name
    assert newest(tmp_path).suffix == ".html"


def test_summary_has_the_stable_keys_and_true_numbers(tmp_path: Path) -> None:
    with python(BUSY) as target:
        record_until(
            has_samples,
            *("-p", str(target.pid), "-r", "50", "--collector", "ptrace"),
            *("-o", str(tmp_path / "a.collapsed"), "--summary", str(tmp_path / "s.json")),
        )
    summary = json.loads((tmp_path / "s.json").read_text())
    assert set(summary) >= {
        *("samples", "threads", "duration_s", "rate_wanted", "rate_reached", "skipped", "errors", "ends", "trust"),
        *("stops", "not_stopped", "modules", "profiler"),
    }
    assert set(summary["stops"]) == {"count", "p50_us", "p99_us", "max_us", "share"}
    counted = sum(count for _, count in sampled((tmp_path / "a.collapsed").read_text()))
    assert counted == summary["samples"] == sum(summary["ends"].values()) > 0
    assert summary["rate_wanted"] == 50
    assert any(module["frames"] for module in summary["modules"])


def wait_until_it_looks_at(profiler: int, target: int | None = None) -> None:
    """Wait until the profiler has opened files of the target's threads or events, which it does at its first sample.

    Args:
        profiler: Pid of the profiler.
        target: Pid of the target, or None for any target.
    """
    begins = f"/proc/{target}/task/" if target else "/proc/"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for fd in Path(f"/proc/{profiler}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(fd)
                if (name.startswith(begins) and "/task/" in name) or name == "anon_inode:[perf_event]":
                    return
        time.sleep(0.01)
    raise AssertionError("the profiler did not begin")


def processor_s(profiler: int, code: str) -> float:
    """Return the processor time in seconds of a Python command that the profiler runs, by the command's code."""
    spent = 0.0
    for child in psutil.Process(profiler).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.cmdline()[1:] == ["-c", code]:
                spent = max(spent, child.cpu_times().user)
    return spent


def test_end_of_the_target_ends_the_recording(tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    code = "import time\nwhile time.process_time() < 1: sum(range(1000))\nraise SystemExit(7)"
    done = pyprof("record", "-o", str(out), "--", sys.executable, "-c", code)
    assert done.returncode == 7
    assert "\n_start;" in "\n" + out.read_text()  # samples during exit have no stack


def test_command_keeps_its_streams(tmp_path: Path) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('e', file=sys.stderr)"
    command = [*PYPROF, "record", "-q", "-o", str(tmp_path / "a.html"), "--", sys.executable, "-c", code]
    done = subprocess.run(command, input="hello", capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("HELLO\n", "e\n", 0)


def test_command_killed_by_a_signal_is_reported_as_by_a_shell(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert pyprof("record", "-o", str(tmp_path / "a.html"), "--", sys.executable, "-c", code).returncode == 137


def test_sleeping_target_is_sampled_only_with_idle(tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    with python(SLEEPY) as target:
        common = ("record", "-p", str(target.pid), "-d", "1.5", "-o", str(out))
        done = pyprof(*common)
        assert out.read_text() == ""
        assert "-i samples sleeping threads too" in done.stderr
        for collector in ("auto", "perf"):
            pyprof(*common, "-i", "--collector", collector, "--summary", str(tmp_path / f"{collector}.json"))
            assert "nanosleep" in out.read_text()
    first, by_perf = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("auto", "perf"))
    assert first["stops"]["count"] == by_perf["stops"]["count"] == 0
    assert by_perf["not_stopped"]["unchanged"] > 0


def test_windows_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    for seconds in (3.2, 12.8, 51.2):  # a busy machine may delay windows, or let the target wait
        folder = tmp_path / str(seconds)
        folder.mkdir()
        with python(BUSY) as target:
            done = pyprof(
                *("record", "-p", str(target.pid), "-d", str(seconds), "--every", "1", "--collector", "ptrace"),
                *("-o", str(folder / "w%i.collapsed"), "--summary", str(folder / "s%i.json")),
                timeout=200,
            )
        summaries = [json.loads(path.read_text()) for path in sorted(folder.glob("s*.json"))]
        sampled_windows = [bool(summary["ends"].get("root")) for summary in summaries]
        if sum(sampled_windows) >= 3:
            break
    assert done.returncode == 0, done.stderr
    assert sum(sampled_windows) >= 3
    assert sum(summary["duration_s"] for summary in summaries) == pytest.approx(seconds, abs=1.0)
    wanted = 99 * sum(summary["duration_s"] for summary in summaries)
    looks = sum(summary["rate_reached"] * summary["duration_s"] for summary in summaries)
    assert looks + sum(s["skipped"] for s in summaries) > 0.8 * wanted
    windows = [path.read_text().splitlines() for path in sorted(folder.glob("w*.collapsed"))]
    assert [any(line.startswith("_start;") for line in window) for window in windows] == sampled_windows


def test_children_are_recorded_with_subprocesses(tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    child = "time = __import__('time')\nwhile time.process_time() < 1: 1.5 ** 2.5"
    code = f"{child}\nimport subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    pyprof("record", "-s", "-t", "-o", str(out), "--", sys.executable, "-c", code, timeout=200)
    roots = {frames[0] for frames, _ in sampled(out.read_text())}
    assert len(roots) == 2, roots


def test_sampling_leaves_the_target_untraced_and_running() -> None:
    with python(BUSY) as target:
        pyprof("record", "-p", str(target.pid), "-d", "0.3", "-o", os.devnull, "-f", "collapsed")
        status = Path(f"/proc/{target.pid}/status").read_text()
        assert "TracerPid:\t0" in status
        assert target.poll() is None


def test_sigterm_ends_the_command_too_and_writes_the_profile(tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    recording = subprocess.Popen([*PYPROF, "record", "-q", "-o", str(out), "--", sys.executable, "-c", BUSY])
    try:
        wait_until_it_looks_at(recording.pid)
        while processor_s(recording.pid, BUSY) < 1:
            assert recording.poll() is None
            time.sleep(0.02)
        recording.terminate()
        assert recording.wait(60) == 128 + signal.SIGTERM
    finally:
        recording.kill()
        recording.wait()
    assert_whole(out)


def test_command_gets_the_environment_that_pyprof_was_given(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    code = "import os; print(sorted(os.environ))"
    done = pyprof(*("record", "-q", "-o", str(tmp_path / "a.html"), "--", sys.executable, "-c", code), env=environment)
    assert done.stdout == f"{sorted(environment)}\n"


def test_suffix_is_a_format_and_the_ways_to_choose_a_target_are_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: sum(range(1000))"]
    done = pyprof("record", "-q", "-f", "html", "-o", str(tmp_path / "page"), "--", *command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page").read_bytes().lower().startswith(b"<!doctype html")
    refused = pyprof("record").stderr
    assert all(way in refused for way in ("-p PID", "-a", "--name", "--gdb", "a command")), refused


def test_living_target_without_waits_is_not_said_to_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = Builder().build(summary=Summary(samples=0))
    page, export = str(tmp_path / "a.html"), ExportOptions()
    for idle in (False, True):
        how = WindowOptions(registry.DEFAULT, page, None, None, export, "pid", verbose=False, quiet=False, idle=idle)
        WindowWriter(how, Recorded(os.getpid(), "python"), RecordOptions(mode="offcpu")).receive_profile(empty, 1)
        said = " ".join(capsys.readouterr().err.split())
        assert "nothing was sampled: no thread waited" in said
        assert ("--idle" in said) == (not idle)
        assert "ended" not in said


def test_profiler_that_was_late_for_all_processes_does_not_blame_their_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = make_note("too_short_or_late", seconds=6.4, spent_s=6.5, percent=98)
    empty = Builder().build(summary=Summary(samples=0, processor_s=6.5, not_sampled_s=6.4, notes=(note,)))
    how = WindowOptions(
        registry.DEFAULT, str(tmp_path / "a.html"), None, None, ExportOptions(), "", verbose=False, quiet=False
    )
    WindowWriter(how, Recorded(os.getpid(), "all", True), RecordOptions()).receive_profile(empty, 1)
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was sampled: pyprof got no processor in time: record for longer" in said


def test_profiler_that_got_no_processor_is_named_as_the_reason_for_no_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Change the times of a recording of a sleeping program to those of one whose sampler was late each time."""
    with python(SLEEPY) as target, api.attach(target.pid) as recording:
        profile = recording.stop()
    late = replace(profile.summary, processor_s=3.7, not_sampled_s=0.1, late_s=3.6)
    page, export = str(tmp_path / "a.html"), ExportOptions()
    how = WindowOptions(registry.DEFAULT, page, None, None, export, "pid", verbose=False, quiet=False)
    writer = WindowWriter(how, Recorded(target.pid, "python"), RecordOptions())
    writer.receive_profile(replace(profile, summary=late), 1)
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was sampled: pyprof got no processor in time: record for longer" in said
    assert "too briefly" not in said
