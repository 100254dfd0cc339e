"""Tests of the start of `pyprof record`: signals at any moment, the final message, and a busy machine."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyprof.recording.reader import load_recording
from tests.cli.support import BUSY, PYPROF, SLEEPY, python
from tests.support import busy_loops, name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.system]

PATIENCE_S = 120
START = [sys.executable, "-c", "from pyprof_start import main; main()"]
"""The command `pyprof` without the installed script."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WITHOUT_PRIORITY = ("setpriv", "--bounding-set", "-sys_nice")
"""A command prefix that runs pyprof without the right to raise its priority."""
SIGNALS = 3
"""Number of random moments at which each command receives a signal."""
MAX_DELAY_S = 0.4
"""Latest of these moments in seconds after the interpreter's first statement."""
FROM_FIRST_STATEMENT = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write({fd}, b".")
os.close({fd})
from pyprof_start import main
main()
"""
"""The command `pyprof`, which reports its start. Before that, the interpreter prints a traceback for Ctrl-C."""

AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
            {then}
if "record" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize module that sends a signal to the process when it is about to import a module."""


@pytest.fixture(autouse=True)
def _hangup_has_its_usual_effect() -> Iterator[None]:
    """Give children the default action of SIGHUP. Under nohup they inherit an ignored SIGHUP, which pyprof respects."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def states(pid: int) -> set[str]:
    paths = Path(f"/proc/{pid}/task").glob("*/stat")
    return {path.read_text().rpartition(")")[2].split()[0] for path in paths}


def signalled(folder: Path, module: str, number: int, then: str = "pass") -> dict[str, str]:
    """Return an environment in which pyprof receives a signal when it is about to import a module."""
    (folder / "sitecustomize.py").write_text(AT_IMPORT.format(module=module, number=int(number), then=then))
    return os.environ | {"PYTHONPATH": str(folder)}


LOADED = [
    "pyprof",
    "pyprof.cli.main",
    "numpy",
    "pyprof.session.pipeline.interpreter_readers",
    "pyprof.session.recording_factory",
]
"""Modules that a recording imports, in their order."""


@pytest.mark.parametrize(("module", "number"), pairs(LOADED, ENDINGS), ids=name_of)
def test_signal_while_pyprof_loads_ends_it_without_a_traceback(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "x.collapsed"
    with python(SLEEPY) as target:
        command = [*START, "record", "-o", str(out), "-p", str(target.pid)]
        environment = signalled(tmp_path, module, number)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert states(target.pid) <= {"R", "S"}
    assert done.returncode in (-number, 128 + number)
    assert len(done.stderr.splitlines()) <= 1
    assert "Traceback" not in done.stderr
    assert not out.exists()


STOPPED_WORKER = """
import os, signal, sys
if "record" in sys.orig_argv or "dump" in sys.orig_argv:
    def fork(before=os.fork):
        pid = before()
        os.fork = before
        if pid:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            os.kill(os.getpid(), {number})
        return pid
    os.fork = fork
"""
"""A sitecustomize module that stops the worker as soon as it is forked and sends a signal to pyprof."""


def signalled_after(seconds: float, number: int, arguments: list[str]) -> tuple[int, str]:
    """Run pyprof and send it a signal after a time. Return its exit code and standard error.

    Standard error is read to its end, which means that all processes of pyprof have ended.
    """
    begun, write = os.pipe()
    program = FROM_FIRST_STATEMENT.format(fd=write)
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[write],
    ) as process:
        os.close(write)
        os.read(begun, 1)
        os.close(begun)
        time.sleep(seconds)
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, said


@pytest.mark.parametrize("command", [("record", "-o", "OUT", "-p"), ("record", "-a", "-o", "OUT"), ("dump", "-p")])
def test_signal_at_any_moment_of_a_start_has_a_defined_result(command: tuple[str, ...], tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    with python(BUSY) as target:
        for nth in range(SIGNALS):
            number, seconds = chance.choice(ENDINGS), chance.uniform(0, MAX_DELAY_S)
            arguments = [*command, str(target.pid)] if command[-1] == "-p" else [*command]
            arguments = [word.replace("OUT", str(tmp_path / "x.collapsed")) for word in arguments]
            code, said = signalled_after(seconds, number, arguments)
            happened = f"seed {seed}, {number.name} after {seconds:.3f} s ({nth}): exit code {code}\n{said}"
            assert code in {0, 1, -number, 128 + number}, happened
            assert "Traceback" not in said, happened
            assert states(target.pid) <= {"R", "S"}, happened


@pytest.mark.parametrize(
    ("arguments", "number"),
    pairs([("record", "-o", os.devnull, "-f", "collapsed"), ("dump",)], ENDINGS),
    ids=name_of,
)
def test_signal_after_the_worker_is_forked_leaves_no_process_that_is_stopped(
    arguments: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    """Send a signal while the worker is stopped.

    A stopped worker would remain if the signal's default action ended pyprof.
    """
    (tmp_path / "sitecustomize.py").write_text(STOPPED_WORKER.format(number=int(number)))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with python(SLEEPY) as target:
        command = [*START, *arguments, "-p", str(target.pid)]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # no front process: the worker is the first child
        ) as process:
            _, said = process.communicate(timeout=PATIENCE_S)  # returns when the worker has ended, too
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said


@pytest.mark.parametrize(("collector", "number"), pairs(["auto", "ptrace"], ENDINGS), ids=name_of)
def test_signal_while_targets_are_opened_ends_the_recording_with_one_sentence(
    collector: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Send the signal during an import that never returns."""
    out = tmp_path / "x-%i.collapsed"
    module = (
        "pyprof.collectors.combined.source_switching_collector"
        if collector == "auto"
        else "pyprof.collectors.ptrace.collector"
    )
    environment = signalled(tmp_path, module, number, "signal.pause()")
    with python(SLEEPY) as target:
        command = [*START, "record", "--last", "9s", "-o", str(out), "--collector", collector, "-p", str(target.pid)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert states(target.pid) <= {"R", "S"}
    assert done.returncode == 128 + number
    assert done.stderr == "pyprof: ended before the recording began: nothing was written\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("x-", "pyprof-last"))]


NEVER_BEGINS = """
import sys
if "record" in sys.orig_argv:
    import os, signal, time
    from pyprof.collectors.ptrace.collector import PtraceCollector
    def batches(self):
        os.kill(os.getpid(), signal.SIGINT)
        while {goes_on}: time.sleep(0.01)
        return
        yield
    PtraceCollector.batches = batches
"""


@pytest.mark.parametrize("goes_on", ["not self._scheduler.stopping", "True"])
def test_signal_before_the_first_sample_leaves_nothing(goes_on: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NEVER_BEGINS.format(goes_on=goes_on))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    out = str(tmp_path / "x-%i.collapsed")
    with python(SLEEPY) as target:
        command = [*START, "record", "--last", "9s", "-o", out, "--collector", "ptrace", "-p", str(target.pid)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 130
    assert done.stderr == "pyprof: ended before the recording began: nothing was written\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"sitecustomize.py", "__pycache__"}


@pytest.mark.parametrize(
    "module", ["pyprof.cli.main", "pyprof.session.recording_factory", "pyprof.session.flight_recorder"]
)
def test_flight_recorder_writes_for_a_signal_that_came_while_it_started(module: str, tmp_path: Path) -> None:
    files = [tmp_path / f"x-{nth}.pyprof" for nth in range(2)]
    with python(BUSY) as target:
        command = [*START, "record", "--last", "9s", "-o", str(tmp_path / "x-%i.pyprof"), "-p", str(target.pid)]
        environment = signalled(tmp_path, module, signal.SIGUSR1)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as recorder:
            until(lambda: files[0].exists() or recorder.poll() is not None)
            recorder.terminate()
            _, said = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 0, said
    for file in files:  # on a busy machine the first one may have no sample yet
        assert load_recording(str(file)).summary.duration_s > 0


def test_signal_of_a_flight_recorder_ends_other_recordings_as_before(tmp_path: Path) -> None:
    environment = signalled(tmp_path, "pyprof.session.recording_factory", signal.SIGUSR1)
    with python(SLEEPY) as target:
        command = [*START, "record", "-o", str(tmp_path / "x.collapsed"), "-p", str(target.pid)]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGUSR1


LATE = """
import sys
if "record" in sys.orig_argv:
    import time
    from pyprof.collectors.ptrace.collector import PtraceCollector
    def batches(self, on_time=PtraceCollector.batches):
        time.sleep(1)
        yield from on_time(self)
    PtraceCollector.batches = batches
"""


def test_duration_counts_from_the_first_sample(tmp_path: Path) -> None:
    """Delay the collector's start by twice the duration."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    out = tmp_path / "x.pyprof"
    with python(BUSY) as target:
        command = [*PYPROF, "record", "-d", "0.5", "--collector", "ptrace", "--mode", "wall", "-o", str(out)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [*command, "-p", str(target.pid)], capture_output=True, text=True, env=environment, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert load_recording(str(out)).summary.samples


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("-d", "0.2"), r"pyprof: recording python\S* \(PID\), 0.2 s; Ctrl-C to finish"),
        (("-d", "0.2", "--last", "9s"), r"pyprof: recording python\S* \(PID\); kill -USR1 \d+ writes the last part, "),
    ],
)
def test_line_says_that_samples_are_taken(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with python(BUSY) as target:
        command = [*PYPROF, "record", *arguments, "-o", str(tmp_path / "x-%i.collapsed"), "-p", str(target.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert re.match(line.replace("PID", str(target.pid)), done.stderr)
        assert done.stdout == ""


def test_quiet_recording_says_nothing_and_standard_output_has_only_the_profile(tmp_path: Path) -> None:
    with python(SLEEPY) as target:
        command = [*PYPROF, "record", "--mode", "wall", "-d", "0.2", "-f", "collapsed", "-p", str(target.pid), "-o"]
        quiet = subprocess.run([*command, str(tmp_path / "x"), "-q"], capture_output=True, timeout=PATIENCE_S)
        printed = subprocess.run([*command, "-"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (quiet.stdout, quiet.stderr) == (b"", b"")
    assert "recording" not in printed.stdout
    assert "pyprof: recording" in printed.stderr


def test_command_has_the_usual_priority_and_pyprof_a_higher_one_until_it_samples() -> None:
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, os.getppid()))"
    command = [*START, "record", "-q", "-o", os.devnull, "-f", "collapsed", "--", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert said.split()[0] == str(os.getpriority(os.PRIO_PROCESS, 0))


@pytest.fixture
def _one_processor() -> Iterator[None]:
    """Let children run on one processor only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("_one_processor")
@pytest.mark.parametrize(("targets", "niceness"), [("-p", 7), ("-a", 3)])
def test_recording_on_a_busy_machine_is_written_whole(targets: str, niceness: int, tmp_path: Path) -> None:
    """Record next to a busy loop on the same processor without the right to raise the priority.

    A process of niceness 7 gets a fifth of the time of the loop, one of niceness 3 half of it.
    """
    out = tmp_path / "x.pyprof"
    with python(SLEEPY) as target, busy_loops(1):
        chosen = ["-a"] if targets == "-a" else ["--mode", "wall", "-p", str(target.pid)]
        prefix = ["nice", "-n", str(niceness), *WITHOUT_PRIORITY]
        record = [*prefix, *PYPROF, "record", "-d", "1", "-o", str(out), *chosen]
        done = subprocess.run(record, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert load_recording(str(out)).summary.samples
