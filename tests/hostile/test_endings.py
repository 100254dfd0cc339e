"""Tests that a recording stops on request, whatever its target does, and that the target continues."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.cli.record_run import Invocation, times_as_slow
from pyprof.cli.recording_options import Timing
from pyprof.cli.signal_thread import EndBySignals
from pyprof.options import RecordOptions
from pyprof.session.worker.deadline import EndUrgency
from tests.cli.support import BUSY, PYPROF, python
from tests.collapsed import sampled
from tests.live.support.recording import running
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

HANGS_S = 100
"""Timeout in seconds, which only a hang exceeds."""


@pytest.fixture
def never_read(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with running(build(PROGRAMS / "c_never_read.c", tmp_path / "c_never_read", "-pthread")) as process:
        yield process


def record(pid: int, out: Path, *arguments: str, path: str = "") -> subprocess.Popen[str]:
    confined = () if not path else ("--no-sandbox",)  # a sitecustomize module of a test writes files in the worker
    command = [*PYPROF, "record", *confined, "-p", str(pid), "-o", str(out), *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def until(so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + HANGS_S
    while not so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def until_it_is_held(reader: int) -> None:
    """Wait until a thread of the reader blocks in a read of memory that does not return."""
    tasks = Path(f"/proc/{reader}/task")
    until(lambda: any("handle_userfault" in stack.read_text() for stack in tasks.glob("*/stack")))


def test_memory_that_never_comes_does_not_hold_a_recording_up(
    never_read: subprocess.Popen[str], tmp_path: Path
) -> None:
    out = tmp_path / "a.collapsed"
    with record(never_read.pid, out, "--collector", "ptrace") as recorder:
        until_it_is_held(recorder.pid)
        recorder.send_signal(signal.SIGTERM)
        _, said = recorder.communicate(timeout=HANGS_S)
    assert recorder.returncode == 1
    assert "memory or files did not return" in said
    assert out.exists()
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{never_read.pid}/task").glob("*/stat")
    ]
    assert set(states) == {"R", "S"}


def test_dump_that_is_held_by_memory_that_never_comes_ends_by_a_signal(never_read: subprocess.Popen[str]) -> None:
    command = [*PYPROF, "dump", "-p", str(never_read.pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as dump:
        until_it_is_held(dump.pid)
        dump.terminate()
        assert dump.wait(HANGS_S) == 128 + signal.SIGTERM


@contextlib.contextmanager
def held_agent(target: subprocess.Popen[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    config = folder / "agent.toml"
    config.write_text('[sampling]\ncollector = "ptrace"\n[[rule]]\nname = "c_never_read"\n')
    config.chmod(0o600)
    command = [*PYPROF, "agent", "--config", str(config), "--spool", str(folder / "spool")]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as agent:
        until_it_is_held(agent.pid)
        yield agent


def test_agent_that_is_held_ends_at_the_second_signal(never_read: subprocess.Popen[str], tmp_path: Path) -> None:
    with held_agent(never_read, tmp_path) as agent:
        agent.terminate()
        time.sleep(0.3)
        assert agent.poll() is None
        agent.terminate()
        _, said = agent.communicate(timeout=HANGS_S)
    assert agent.returncode == 1
    assert "ended before the open windows were written" in said


def test_agent_that_is_held_ends_without_the_window_of_what_holds_it(
    never_read: subprocess.Popen[str], tmp_path: Path
) -> None:
    """End an agent that may not rely on its shutdown timeout, which a sitecustomize module raises."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'pyprof' in sys.orig_argv:\n    from pyprof.fleet.cli import agent\n    agent._MAX_S = 600\n"
    )
    with held_agent(never_read, tmp_path) as agent:
        agent.terminate()
        _, said = agent.communicate(timeout=HANGS_S)
    assert agent.returncode == 1
    assert "ended before the open windows were written" in said


def test_command_that_does_not_end_holds_top_until_the_second_signal() -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\nwhile True: pass"
    command = [*PYPROF, "top", "--interval", "0.2", "--", sys.executable, "-c", stubborn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as top:
        assert top.stdout is not None
        assert any("samples" in line for line in iter(top.stdout.readline, ""))
        try:
            for _ in range(2):
                top.terminate()
                time.sleep(0.3)
            assert top.wait(HANGS_S) == 1
        finally:
            os.killpg(top.pid, signal.SIGKILL)


def test_first_signal_asks_a_later_one_leaves_and_so_does_time() -> None:
    said: list[str] = []
    left = threading.Event()
    ending = EndBySignals(lambda: said.append("ask"), lambda: said.append("leave"))
    for _ in range(3):
        ending(signal.SIGTERM)
    assert said == ["ask"]
    ending.asked_at -= 1
    ending(signal.SIGTERM)
    assert said == ["ask", "leave"]
    EndBySignals(lambda: said.append("ask"), left.set, 0.01)(signal.SIGINT)
    assert left.wait(HANGS_S)


def test_second_signal_ends_at_once(never_read: subprocess.Popen[str], tmp_path: Path) -> None:
    with record(never_read.pid, tmp_path / "a.collapsed", "--collector", "ptrace") as recorder:
        until_it_is_held(recorder.pid)
        recorder.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert recorder.poll() is None
        recorder.send_signal(signal.SIGTERM)
        _, said = recorder.communicate(timeout=HANGS_S)
    assert recorder.returncode == 1
    assert "second request" in said


def test_second_signal_writes_what_is_named_by_then(tmp_path: Path) -> None:
    """Send two signals during endless symbolization: the file is written with the names found by then."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.cli import record_run\n"
        "    from pyprof.session.worker import worker_client\n"
        "    from pyprof.symbolize import name_cache\n"
        "    def endless(*_):\n"
        f"        pathlib.Path({str(tmp_path / 'naming')!r}).touch()\n"
        "        while True: pass\n"
        "    name_cache.read_symbol_sources = endless\n"
        f"    record_run.SECOND_S = worker_client.ELAPSED_S = worker_client.NAMES_S = {HANGS_S}\n"
    )
    out = tmp_path / "a.collapsed"
    with python(BUSY) as target:
        for seconds in ("0.5", "4", "32"):  # until the target had a processor, on a busy machine
            with record(target.pid, out, "-d", seconds, "-v", path=str(tmp_path)) as recorder:
                until(lambda: (tmp_path / "naming").exists() or recorder.poll() is not None)
                for _ in range(2):
                    recorder.send_signal(signal.SIGINT)
                    time.sleep(0.2)
                _, said = recorder.communicate(timeout=HANGS_S)
            if (tmp_path / "naming").exists():
                break
    assert recorder.returncode == 0, said
    assert "the time to look them up ended" in said
    first = sampled(out.read_text())[0][0]
    assert "python" in first[0]
    assert first[-1].startswith("<module>")


class Asked:
    """A recording that logs the requests to it."""

    def __init__(self) -> None:
        self.done: list[EndUrgency] = []

    def end(self, urgency: EndUrgency) -> None:
        self.done.append(urgency)

    def waits(self) -> dict[int, float]:
        return {}


def test_signal_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send two signals at once, as timeout(1) does: to its child, and to the process group that contains the child."""
    how: Any = None
    run: Any = Invocation(Timing(None, None, None, (), None), RecordOptions(), how)
    run._recording = recording = Asked()
    run._over.set()
    monkeypatch.setattr("pyprof.cli.signal_thread.SAME_S", 60)
    run._end(signal.SIGTERM)
    run._end(signal.SIGTERM)
    assert recording.done == [EndUrgency.PROMPT]
    run._same_until = 0
    run._end(signal.SIGTERM)
    assert recording.done == [EndUrgency.PROMPT, EndUrgency.IMMEDIATE]


def test_names_that_are_not_found_in_time_are_left_out(tmp_path: Path) -> None:
    """Make symbolization endless, as a hostile file might, and its deadline short, through a sitecustomize module."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.session.worker import worker_client\n"
        "    from pyprof.symbolize import name_cache\n"
        "    def endless(*_):\n"
        "        while True: pass\n"
        "    name_cache.read_symbol_sources = endless\n"
        "    worker_client.NAMES_S = 0.3\n"
    )
    out, kept = tmp_path / "a.collapsed", tmp_path / "a.pyprof"
    with python(BUSY) as target:
        for seconds in ("0.5", "4", "32"):  # until the target had a processor, on a busy machine
            arguments = ("--sandbox", "--save", str(kept), "-d", seconds, "-v")
            with record(target.pid, out, *arguments, path=str(tmp_path)) as recorder:
                _, said = recorder.communicate(timeout=HANGS_S)
            if recorder.returncode == 0:
                break
    assert recorder.returncode == 0, said
    assert "the time to look them up ended" in said
    assert "--symbols /" in said
    first = sampled(out.read_text())[0][0]
    assert "python" in first[0]
    assert first[-1].startswith("<module>")
    report = [*PYPROF, "report", str(kept), "--symbols", "/", "-o", str(out)]
    subprocess.run(report, capture_output=True, timeout=HANGS_S, check=True)
    assert sampled(out.read_text())[0][0][0] == "_start"


def endless(folder: Path, place: str, more: str = "") -> Path:
    """Make a function of pyprof run forever, as a hostile file might, through a sitecustomize module in the folder.

    Return the path of a file that exists once the function has been called.
    """
    mark, (module, _, names) = folder / "begun", place.partition(":")
    owner, _, name = f"module.{names}".rpartition(".")
    (folder / "sitecustomize.py").write_text(
        "import pathlib, sys\n"
        "if 'pyprof' in sys.orig_argv:\n"
        f"    import {module} as module\n"
        "    def endless(*_, **__):\n"
        f"        pathlib.Path({str(mark)!r}).touch()\n"
        "        while True: pass\n"
        f"    {owner}.{name} = endless\n"
        f"    {more}\n"
    )
    return mark


def running_in(folder: Path) -> list[str]:
    """Return the pids of the processes whose working directory is this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if path.readlink() == folder else []
    return found


ELF_FILES = "pyprof.objfile.elf_file:ElfFile.__init__"
NAMES = "pyprof.symbolize.name_cache:read_symbol_sources"


@pytest.mark.parametrize(
    ("place", "command"),
    [
        (ELF_FILES, ["inspect", sys.executable]),
        (ELF_FILES, ["doctor", "PID"]),
        (NAMES, ["dump", "-p", "PID"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_of_a_command_that_is_ended_nothing_goes_on(place: str, command: list[str], tmp_path: Path) -> None:
    begun = endless(tmp_path, place)
    with python(BUSY) as target:
        words = [word.replace("PID", str(target.pid)) for word in command]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        started = subprocess.Popen(
            [*PYPROF, words[0], "--no-sandbox", *words[1:]],
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            cwd=tmp_path,
        )
        until(lambda: begun.exists() or started.poll() is not None)
        assert started.poll() is None
        started.send_signal(signal.SIGTERM)
        assert started.wait(HANGS_S) in (-signal.SIGTERM, 128 + signal.SIGTERM, 0, 1)
        until(lambda: not running_in(tmp_path))


def test_what_a_killed_recording_had_is_written_without_names_that_are_never_found(tmp_path: Path) -> None:
    begun = endless(tmp_path, NAMES, "from pyprof.session.worker import deadline; deadline.ORPHAN_S = 0.2")
    out = tmp_path / "a.collapsed"
    with python(BUSY) as target, record(target.pid, out, path=str(tmp_path)) as recorder:
        until(begun.exists)
        time.sleep(0.3)
        recorder.kill()
        until(out.exists)
    assert "python" in out.read_text()


def test_names_of_a_command_that_ended_by_itself_are_looked_up_for_longer(tmp_path: Path) -> None:
    """Symbolize for longer than four seconds if the command has ended by itself.

    A build has many names, and no user waits.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.session.worker import worker_client\n"
        "    from pyprof.symbolize import symbolizer\n"
        "    def slow(names, most_s=None, demangle=symbolizer.demangle):\n"
        "        until = time.process_time() + 0.6 * (most_s is None)\n"
        "        while time.process_time() < until: pass\n"
        "        return demangle(names, most_s)\n"
        "    symbolizer.demangle = slow\n"
        "    worker_client.NAMES_S = 0.3\n"
    )
    out = tmp_path / "a.collapsed"
    busy = [sys.executable, "-c", "sum(i * i for i in range(3_000_000))"]
    command = [*PYPROF, "record", "-o", str(out), "-v", "--", *busy]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, timeout=HANGS_S)
    assert "the time to look them up ended" not in done.stderr
    assert "<genexpr>" in out.read_text()


def test_slow_machine_gets_more_time_at_the_end(tmp_path: Path) -> None:
    """Simulate a slow machine through a sitecustomize module.

    The end of sampling and symbolization are slow, and the reference time of loading is a hundredth.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.cli import record_run\n"
        "    from pyprof.collectors.ptrace.collector import PtraceCollector\n"
        "    from pyprof.session.shutdown_watchdog import LEAVE_S\n"
        "    from pyprof.session.worker.worker_loop import _Observed\n"
        "    def batches(self, quick=PtraceCollector.batches):\n"
        "        yield from quick(self)\n"
        "        time.sleep(2 * LEAVE_S)\n"
        "    def profile(self, *given, known_only=False, quick=_Observed.profile):\n"
        "        time.sleep(0.8)\n"
        f"        pathlib.Path({str(tmp_path)!r}, 'hurried' if known_only else 'named').touch()\n"
        "        return quick(self, *given, known_only)\n"
        "    PtraceCollector.batches, _Observed.profile = batches, profile\n"
        "    record_run._START_S /= 100\n"
    )
    out = tmp_path / "a.collapsed"
    with python(BUSY) as target:
        for seconds in ("0.5", "4", "32"):  # until the target had a processor, on a busy machine
            arguments = ("-d", seconds, "--collector", "ptrace")
            with record(target.pid, out, *arguments, path=str(tmp_path)) as recorder:
                _, said = recorder.communicate(timeout=2 * HANGS_S)
            if recorder.returncode == 0:
                break
    assert recorder.returncode == 0, said
    assert (tmp_path / "named").exists()
    assert not (tmp_path / "hurried").exists()
    assert sampled(out.read_text())


@pytest.mark.parametrize(("start_s", "times"), [(0.08, 1), (0.15, 1), (1.5, 10)])
def test_slow_machine_is_known_by_what_loading_took(
    start_s: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: start_s)
    assert times_as_slow() == pytest.approx(times)
