"""Tests of the library as another program uses it: from threads, repeatedly, and without leaks."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyprof
from pyprof.collectors.targets.command_launch import CommandNotFound
from pyprof.errors import NoSuchProcess, NotTraceable, UsageError
from pyprof.session.worker.messages import Begin
from pyprof.session.worker.sampler_loop import Sampling
from tests.cli.support import BUSY, python

pytestmark = [pytest.mark.live, pytest.mark.system]


@pytest.fixture
def busy() -> Iterator[int]:
    with python(BUSY) as process:
        yield process.pid


def left() -> tuple[int, int, str]:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def test_record_gives_a_profile(busy: int, tmp_path: Path) -> None:
    for seconds in (1.5, 6.0, 24.0):  # until the target had a processor, on a busy machine
        profile = pyprof.record(busy, duration=seconds, rate=200)
        if profile.summary.samples:
            break
    assert profile.summary.samples > 0
    assert profile.duration_ns == pytest.approx(seconds * 1e9, rel=0.5)
    assert {cost.name for cost in profile.top(by="total")} & {"<module>", "main"}
    profile.save(tmp_path / "a.html")


def test_options_are_one_place() -> None:
    recorded, dumped = pyprof.RecordOptions, pyprof.DumpOptions
    for function, options in ((pyprof.record, recorded), (pyprof.attach, recorded), (pyprof.dump, dumped)):
        fields = {field.name: field.default for field in dataclasses.fields(options)}
        target, *keywords = inspect.signature(function).parameters.values()
        assert target.kind == inspect.Parameter.POSITIONAL_ONLY
        assert {parameter.name: parameter.default for parameter in keywords} == fields
        assert all(parameter.kind == inspect.Parameter.KEYWORD_ONLY for parameter in keywords)
        said = (options.__doc__ or "") + (options.__base__.__doc__ or "")
        assert all(f"    {name}: " in said for name in fields)
    with pytest.raises(TypeError, match="hertz"):
        pyprof.record(1, hertz=5)  # type: ignore[call-arg]


def test_import_loads_nothing_that_is_heavy() -> None:
    code = (
        "import sys, pyprof\n"
        "heavy = {'numpy', 'rich', 'psutil', 'orjson', 'ptrace', 'ctypes', 'argparse'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert set(pyprof.__all__) <= set(dir(pyprof))\n"
        "for name in pyprof.__all__: getattr(pyprof, name).__doc__\n"
        "assert 'argparse' not in sys.modules and 'pyprof.cli' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_have_docstrings_that_name_errors() -> None:
    for name in pyprof.__all__:
        assert inspect.getdoc(getattr(pyprof, name)), name
    for function in (pyprof.record, pyprof.attach, pyprof.dump):
        assert "Raises" in (inspect.getdoc(function) or "") or "errors" in (inspect.getdoc(function) or "")
    with pytest.raises(AttributeError, match="no attribute 'recrod'"):
        pyprof.recrod  # type: ignore[attr-defined]  # noqa: B018


def test_recording_is_returned_when_it_samples_so_that_peeks_have_a_duration(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Sampling._begin

    def begin_late(sampling: Sampling) -> Begin:
        time.sleep(0.5)  # the loop's thread gets no processor
        return begin(sampling)

    monkeypatch.setattr(Sampling, "_begin", begin_late)
    with pyprof.attach(busy) as recording:
        assert recording.has_begun
        assert recording.peek().duration_ns > 0


def test_recording_that_ends_before_it_samples_is_returned(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sampling) -> Begin:
        raise OSError("no way")

    monkeypatch.setattr(Sampling, "_begin", fail)
    with pyprof.attach(busy) as recording:
        assert not recording.has_begun
        assert isinstance(recording.failure, OSError)


def test_works_in_a_thread_beside_others_twice_and_after_an_error(busy: int) -> None:
    found: list[pyprof.Profile | BaseException] = []
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    def use() -> None:
        for target in (busy, 2**22 + 1, busy):
            try:
                found.append(pyprof.record(target, duration=0.7, rate=100))
            except pyprof.PyprofError as error:
                found.append(error)

    others = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
    user = threading.Thread(target=use)
    for thread in (*others, user):
        thread.start()
    user.join()
    stop.set()
    for other in others:
        other.join()
    first, error, again = found
    assert isinstance(error, NoSuchProcess)
    for profile in (first, again):
        assert isinstance(profile, pyprof.Profile)
        assert profile.summary.samples > 0
    assert "TracerPid:\t0" in Path(f"/proc/{busy}/status").read_text()


def test_two_recordings_at_once_do_not_meet(busy: int) -> None:
    with python(BUSY) as other, pyprof.attach(busy) as one, pyprof.attach(other.pid) as two:
        while min(one.samples, two.samples) < 5:
            time.sleep(0.01)
        pids = [{thread.pid for thread in recording.stop().threads} for recording in (one, two)]
    assert pids == [{busy}, {other.pid}]


def test_nothing_is_left_behind(busy: int) -> None:
    def use() -> None:
        with pyprof.attach(busy) as recording:
            recording.peek()
            profile = recording.stop()
        assert recording.stop() is profile
        assert repr(recording).endswith("closed, 0 samples>")
        with pyprof.attach(busy) as recording:
            pass
        with pytest.raises(pyprof.PyprofError, match="the recording is closed"):
            recording.stop()
        pyprof.record(["/bin/true"])
        with pytest.raises(CommandNotFound):
            pyprof.record(["no-such-command-here"])
        with pytest.raises(UsageError):
            pyprof.record(["/bin/sleep", "60"], rate=-1)

    use()
    before = left()
    use()
    assert left() == before


def test_streams_of_a_command_are_those_of_the_program(tmp_path: Path) -> None:
    code = (
        "import pyprof\n"
        "with pyprof.attach(['sh', '-c', 'read line; echo got $line; echo oops >&2; exit 4']) as recording:\n"
        "    recording.wait()\n"
        "    print('code', recording.returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="word\n", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n") == ["got word", "code 4", ""]
    assert done.stderr == "oops\n"


def test_command_that_runs_on_is_ended_with_the_recording() -> None:
    with pyprof.attach(["/bin/sleep", "60"], mode="wall") as recording:
        assert recording.peek().duration_ns > 0
        assert recording.returncode is None
    assert recording.returncode == 128 + 15


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("sleep 5", UsageError, "list of words"),
        (2**22 + 1, NoSuchProcess, "no process"),
        (os.getpid(), NotTraceable, "itself|ourselves|pyprof"),
        ([], CommandNotFound, "no command"),
        (None, UsageError, "None is not a target"),
        (True, UsageError, "True is not a target"),
        (["sleep", 5], UsageError, "is not a target"),
    ],
    ids=["words", "nobody", "ourselves", "nothing", "none", "truth", "a number among words"],
)
def test_target_that_cannot_be_recorded_is_refused(target: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pyprof.record(target, duration=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": "99"}, "rate: '99' is no number"),
        ({"rate": 0}, "rate: 0 is not above 0 and at most"),
        ({"duration": -1}, "duration: -1 is not above 0$"),
        ({"mode": "x"}, "mode: 'x' is not one of cpu"),
        ({"thread": "("}, "not a regular expression"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_anything_begins(
    busy: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        pyprof.record(busy, **{"duration": 1, **options})


def test_questions_that_have_no_answer_are_refused(busy: int) -> None:
    with pyprof.attach(busy, duration=0.3) as recording:
        with pytest.raises(UsageError, match="windows of 0 seconds"):
            recording.windows(0)
        profile = recording.stop()
    for ask in (
        lambda: profile.top(-1),
        lambda: profile.top(3, by="size"),  # type: ignore[arg-type]
        lambda: profile.filter(function="("),
        lambda: profile.filter(thread="*"),
        lambda: profile.cut(2, 1),
        lambda: pyprof.dump("1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            ask()


def test_processes_are_found_by_what_they_have_in_common(busy: int) -> None:
    profile = pyprof.record(pyprof.TargetOptions(pids=(busy,)), duration=0.5, mode="wall")
    assert profile.processes == (busy,)


LOCALS = (
    "import threading, time\n"
    "def waits(number, password):\n    time.sleep(600)\n"
    "threading.Thread(target=waits, args=(42, 'x9'), name='waiter', daemon=True).start()\n"
    "print(flush=True)\ntime.sleep(600)"
)


def test_dump_has_every_thread_with_its_functions_and_local_variables() -> None:
    with python(LOCALS) as process:
        stacks = pyprof.dump(process.pid, locals=True)
        waiter = next(thread for thread in stacks if "waits" in thread.functions)
    assert len(stacks) == len({thread.tid for thread in stacks}) == 2
    assert stacks.whole
    assert stacks.pid == process.pid
    assert stacks.arch == "x86_64"
    assert waiter.state in ("sleeping", "running")
    detail = waiter.details[[frame.title for frame in waiter.interpreted].index("waits")]
    assert detail.language == "Python"
    assert detail.locals is not None
    assert detail.locals["number"] == "42"
    assert "x9" not in detail.locals["password"]


def test_dump_leaves_nothing_behind(busy: int) -> None:
    pyprof.dump(busy)
    before = left()
    pyprof.dump(busy)
    assert left() == before


def test_dump_of_a_missing_process_is_refused() -> None:
    with pytest.raises(NoSuchProcess):
        pyprof.dump(2**22 + 1)
    with pytest.raises(UsageError, match="native"):
        pyprof.dump(os.getpid(), native="some")
