"""Tests of each way in which a recording ends, as the manual states them.

What is written and the exit code do not depend on the load: `make test-busy` runs these tests next to four busy loops.
docs/benchmarks.md has the times.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.cli.support import BUSY, PYPROF
from tests.session.test_ended_helpers import children, has_ended
from tests.session.test_worker import WAITS_S, until

pytestmark = pytest.mark.live

MANUAL = Path(__file__).parent.parent.parent / "docs" / "getting-started.md"
WHOLE = re.compile(r"^_start;__libc_start_main", re.MULTILINE)


@dataclass
class Run:
    """A recording of one process that is under way.

    Attributes:
        recorder: The recorder, which is the sampler.
        worker: Pid of its worker.
        target: The recorded process.
    """

    recorder: subprocess.Popen[str]
    worker: int
    target: subprocess.Popen[bytes]

    def signal_twice(self, number: int) -> None:
        self.recorder.send_signal(number)
        time.sleep(0.1)
        self.recorder.send_signal(number)


def pass_over(run: Run) -> None:
    """Let the recording end by itself."""


@dataclass(frozen=True)
class Way:
    """A way in which a recording ends.

    Attributes:
        end: Ends the recording.
        codes: The exit codes that are right. Samples are written in the case of the first one.
        options: Options of `pyprof record`.
    """

    end: Callable[[Run], None]
    codes: tuple[int, ...] = (0,)
    options: tuple[str, ...] = ()


WAYS = {
    "`-d` is over": Way(pass_over, options=("-d", "3")),
    "Ctrl-C": Way(lambda run: run.recorder.send_signal(signal.SIGINT)),
    "SIGTERM, SIGHUP": Way(lambda run: run.recorder.send_signal(signal.SIGTERM)),
    "Ctrl-C twice": Way(lambda run: run.signal_twice(signal.SIGINT), (0, 1)),
    "the target ends": Way(lambda run: run.target.kill()),
    "the process that looks up names is killed": Way(lambda run: os.kill(run.worker, signal.SIGKILL), (1,)),
    "pyprof is killed": Way(lambda run: run.recorder.kill(), (-signal.SIGKILL,)),
}
"""The ways to end a recording by the first cells of the manual's table."""
ELSEWHERE = {"the target's memory does not answer": "tests/hostile/test_endings.py"}
"""Rows of the manual's table that another file tests."""


def record(way: Way, out: Path, seconds: float) -> tuple[int, str]:
    """Record a busy process, end the recording after some seconds, and return the exit code and the messages."""
    target = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.DEVNULL)
    command = [*PYPROF, "record", "-p", str(target.pid), "-o", str(out), *way.options]
    recorder = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)  # the sampler
    try:
        assert recorder.stderr is not None
        assert "recording" in recorder.stderr.readline()
        (worker,) = children(recorder.pid)
        time.sleep(0 if way.options else seconds)
        way.end(Run(recorder, worker, target))
        _, said = recorder.communicate(timeout=100)
        until(partial(has_ended, worker))
        return recorder.returncode, said
    finally:
        for process in (recorder, target):
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", WAYS)
def test_recording_that_ends_writes_what_the_manual_says(name: str, tmp_path: Path) -> None:
    way, out = WAYS[name], tmp_path / "a.collapsed"
    for seconds in WAITS_S:
        out.unlink(missing_ok=True)
        code, said = record(way, out, seconds)
        assert code in way.codes, said
        assert "Traceback" not in said
        if code != way.codes[0] or (out.exists() and WHOLE.search(out.read_text())):
            return  # with fewer samples a longer recording follows
    raise AssertionError(f"no whole stack was written: {said}")


def test_table_of_the_manual_has_each_way_to_end() -> None:
    table = MANUAL.read_text().partition("| what ends the recording |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (.*?) \|", table.partition("---|\n")[2], re.MULTILINE) == [*WAYS, *ELSEWHERE]
