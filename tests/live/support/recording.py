"""Recordings of running programs through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyprof
from pyprof.model.profile import Profile
from tests import warm
from tests.collapsed import is_block

PYPROF = [sys.executable, "-m", "pyprof"]
LIFE = "200"
"""Seconds after which a program ends if the test does not end it."""
MAX_S = 40
"""Duration in seconds of a recording after which no longer one follows. A condition on rare stacks needs it on a
machine where the program gets a tenth of a processor.
"""
MAX_WATCHED_S = 100
"""Duration in seconds after which a recording through the library ends without its condition."""


@contextmanager
def running(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program that prints "ready"."""
    program = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", f"{command} did not become ready"
        yield program
    finally:
        program.kill()
        program.wait(timeout=30)
        for stream in (program.stdin, program.stdout):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Recording:
    """A recording.

    Attributes:
        stacks: Number of samples by stack, from root to leaf.
        unseen: Number of periods by stack of markers for unsampled time.
        summary: The data that --summary writes.
    """

    stacks: dict[tuple[str, ...], int]
    unseen: dict[tuple[str, ...], int]
    summary: dict[str, Any]

    @property
    def samples(self) -> int:
        return int(self.summary["samples"])

    @property
    def whole(self) -> float:
        """Share of samples whose stack ends at the root."""
        return float(self.summary["ends"].get("root", 0) / max(1, self.samples))


def record(
    pid: int,
    folder: Path,
    *options: str,
    seconds: float = 0.6,
    rate: int = 499,
    by: Sequence[str] = (),
    until: Callable[[Recording], bool] = lambda recording: True,
) -> Recording:
    """Run pyprof record with the ptrace collector, unless options choose another one, and return the stacks.

    Args:
        pid: Process id.
        folder: Folder for the outputs.
        options: Further options.
        seconds: Duration of the first recording.
        rate: Sampling rate in Hz.
        by: Command prefix that runs pyprof.
        until: A condition on the recording. While it does not hold, which depends on the machine's load, a recording of
            twice the duration follows.
    """
    while True:
        recording = _record(pid, folder, options, seconds, rate, by)
        if (recording.samples and until(recording)) or seconds > MAX_S:
            return recording
        seconds *= 2


def _record(pid: int, folder: Path, options: Sequence[str], seconds: float, rate: int, by: Sequence[str]) -> Recording:
    options = options if "--collector" in options else ("--collector", "ptrace", *options)
    output, summary = folder / f"{pid}.collapsed", folder / f"{pid}.json"
    to = ("-f", "collapsed", "-q", "-o", str(output), "--summary", str(summary))
    arguments = ("record", "-p", str(pid), "-d", str(seconds), "-r", str(rate), *to, *options)
    timeout = 60 + 4 * seconds
    if by:
        command = [*by, *PYPROF, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    else:
        done = warm.run(*arguments, timeout=timeout)
    assert done.returncode in (0, 1), done.stderr
    found = _collapsed(output.read_text())
    unseen = {stack: count for stack, count in found.items() if any(map(is_block, stack))}
    stacks = {stack: count for stack, count in found.items() if stack not in unseen}
    recording = Recording(stacks, unseen, json.loads(summary.read_text()))
    assert done.returncode == 0 or not recording.samples, done.stderr
    return recording


def watched(pid: int, until: Callable[[Profile], bool], **options: Any) -> Profile:
    """Record with pyprof.attach() and these options until the condition holds."""
    end = time.monotonic() + MAX_WATCHED_S
    with pyprof.attach(pid, **options) as recording:
        while not until(recording.peek()) and recording.running and time.monotonic() < end:
            time.sleep(0.05)
        return recording.stop()


def names(profile: Profile) -> list[tuple[str, ...]]:
    """Return the functions of each sample from root to leaf, without markers of unsampled time."""
    paths = {leaf: tuple(frame.title for frame in profile.path(leaf)) for leaf in set(profile.stack.tolist())}
    found = [paths[leaf] for leaf in profile.stack.tolist()]
    return [path for path in found if not any(map(is_block, path))]


def _collapsed(text: str) -> dict[tuple[str, ...], int]:
    stacks: dict[tuple[str, ...], int] = {}
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = tuple(stack.split(";"))
        stacks[frames] = stacks.get(frames, 0) + int(count)
    return stacks


def dump(pid: int, *options: str, codes: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run pyprof dump --json."""
    done = warm.run("dump", "-p", str(pid), "--json", "--native", "all", *options)
    assert done.returncode in codes, (done.returncode, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
