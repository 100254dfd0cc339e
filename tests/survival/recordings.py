"""A campaign that kills `pyprof record` with SIGKILL at random moments: all but the last second must be readable."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyprof.errors import RecordingError
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.profile import Profile
from pyprof.recording.reader import INTERRUPTED, load_recording
from tests.collectors.targets import MAX_S

SOURCE = """\
static inline __attribute__((always_inline)) unsigned mixed(unsigned x) {
    for (int i = 0; i < 100; i++)
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    return x;
}
__attribute__((noinline)) unsigned spin(unsigned x) { return mixed(x) + 1; }
volatile unsigned out;
int main(void) {
    for (;;)
        out = spin(out);
}
"""
MAX_WAIT_S = 2.5
"""Maximum time in seconds after the file has appeared."""


@dataclass(frozen=True)
class Left:
    """The remains of a killed recording.

    Attributes:
        lost_s: Time from the last sample to the kill in seconds.
        samples: Number of samples.
        wrong: What is missing, or "".
    """

    lost_s: float
    samples: int
    wrong: str


def program(folder: Path) -> Path:
    (folder / "spin.c").write_text(SOURCE)
    command = ["gcc", "-O1", "-g", str(folder / "spin.c"), "-o", str(folder / "spin")]
    subprocess.run(command, check=True)
    return folder / "spin"


def begun(path: Path, target: Path) -> subprocess.Popen[bytes]:
    """Start a recording in a separate process group, and return it once its file exists."""
    how = ["-q", "-r", "499", "--collector", "ptrace", "-o", str(path)]
    command = [sys.executable, "-m", "pyprof", "record", *how, "--", str(target)]
    recorder = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + MAX_S
    while not path.exists():
        assert time.monotonic() < deadline, "no recording begins"
        time.sleep(0.01)
    return recorder


def killed(recorder: subprocess.Popen[bytes]) -> float:
    """Kill a recorder with its worker and target at once, and return the time in seconds since the epoch."""
    at = time.time()
    os.killpg(recorder.pid, signal.SIGKILL)
    recorder.wait()
    return at


def lacks(profile: Profile) -> str:
    """Return what a recording of more than a second lacks, or ""."""
    spins = [frame for frame in profile.frames if frame.lines and frame.lines[-1].function == "spin"]
    inlined = [frame for frame in spins if len(frame.lines) == 2 and frame.lines[0].function == "mixed"]
    found = {
        "the note that it was interrupted": INTERRUPTED in profile.summary.notes,
        "the function": bool(spins),
        "the inlined function": bool(inlined),
        "its line": bool(inlined) and inlined[0].lines[0].line in (2, 3),
        "the line of the call": bool(inlined) and inlined[0].lines[1].line == 6,
        "counts of stops": profile.summary.stops.count > 0,
        "the rate that was reached": profile.summary.rate_reached > 0,
        "how samples were taken": profile.state is not None and bool((profile.state & SampleState.STOPPED).any()),
    }
    return ", ".join(what for what, there in found.items() if not there)


def kill_recordings(folder: Path, kills: int, rng: random.Random) -> list[Left]:
    target, found = program(folder), []
    for turn in range(kills):
        path = folder / f"{turn}.pyprof"
        recorder = begun(path, target)
        wait_s = rng.uniform(0, MAX_WAIT_S)
        time.sleep(wait_s)
        at = killed(recorder)
        try:
            profile = load_recording(path)
        except RecordingError as error:
            found.append(Left(0.0, 0, f"not read: {error.message}"))
            continue
        samples = len(profile.stack)
        lost_s = at - (profile.time_ns.max() / 1e9 if samples else profile.start_ns / 1e9)
        old = samples and at - profile.time_ns.min() / 1e9 > 2
        found.append(Left(lost_s, samples, lacks(profile) if old else ""))
    return found
