"""The agent's windows of a program whose threads run in step with the samples, as samples by function."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pyprof.fleet.agent import spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.model.profile import Profile
from tests.lockstep.shares import Share, Truth, lockstep_program

_CONFIG = """
[windows]
every = "1s"
[sampling]
rate = {rate}
[budget]
cpu = 100
memory = "1G"
[[rule]]
cmdline = "{word}"
service = "lockstep"
"""


class _Truths:
    """The program's own measurements, read all the time, with their times since the epoch."""

    def __init__(self, read: Callable[[], list[Truth]]) -> None:
        self._read = read
        self._found: list[tuple[int, list[Truth]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        while not self._over.wait(0.02):
            self._found.append((time.time_ns(), self._read()))

    def __enter__(self) -> _Truths:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def at(self, time_ns: int) -> list[Truth]:
        return min(self._found, key=lambda each: abs(each[0] - time_ns))[1]


@contextmanager
def _agent(rate_hz: float, word: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent whose spool is folder/spool, and end it."""
    config = folder / "agent.toml"
    config.write_text(_CONFIG.format(rate=rate_hz, word=word))
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(folder / "spool")]
    with (folder / "log").open("wb") as log:
        agent = subprocess.Popen(command, stderr=log)
    try:
        yield agent
        agent.terminate()
        assert agent.wait(60) == 0, (folder / "log").read_text()
    finally:
        agent.kill()
        agent.wait()


def record_shares_by_agent(
    rate_hz: float, periods: dict[str, float], until: Callable[[int, float], bool], clock: str = "wall"
) -> list[Share]:
    """Let an agent record one thread of each period at the same time.

    Args:
        rate_hz: Sampling rate in Hz.
        periods: Period of each thread as a multiple of the sampling period.
        until: A function of (number of samples of the thread with the fewest, seconds since the first window) that
            returns True at the end.
        clock: Clock by which the program alternates: "wall" or "cpu".
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            lockstep_program(clock, [round(1e9 / rate_hz * period) for period in periods.values()]) as (pid, read),
            _Truths(read) as truths,
            _agent(rate_hz, f"^{Path(f'/proc/{pid}/exe').resolve()} ", folder) as agent,
        ):
            tids = [truth[0] for truth in read()]
            spool, began = str(folder / "spool"), 0.0
            while not began or not until(_fewest(spool, tids), time.monotonic() - began):
                assert agent.poll() is None, (folder / "log").read_text()
                time.sleep(0.5)
                began = began or (time.monotonic() if _segments(spool) else 0.0)
        profile = _profile(spool)
    before, after = truths.at(profile.start_ns), truths.at(profile.start_ns + profile.duration_ns)
    counts = _counts(profile, tids)
    return [
        Share(name, (end[5] - start[5], end[6] - start[6]), counts[start[0]])
        for name, start, end in zip(periods, before, after, strict=True)
    ]


def _segments(spool: str) -> list[SegmentName]:
    return spool_query.segments(spool, TimeSpan(0, time.time_ns() + 1))


def _profile(spool: str) -> Profile:
    return spool_query.profile_of(spool, _segments(spool), "cpu", "lockstep")


def _fewest(spool: str, tids: list[int]) -> int:
    return min(sum(_counts(_profile(spool), tids)[tid]) for tid in tids)


def _counts(profile: Profile, tids: list[int]) -> dict[int, tuple[int, int]]:
    """Return the number of samples of each function by thread. The functions are distinct on each stack."""
    functions = ("first", "second")
    found = {tid: [0, 0] for tid in tids}
    names = {
        node: {frame.title for frame in profile.path(node)} for node in np.unique(profile.stack).tolist() if node > 0
    }
    for node, thread, count in zip(
        profile.stack.tolist(), profile.thread.tolist(), profile.values[:, 0].tolist(), strict=True
    ):
        tid = profile.threads[thread].tid
        for at, function in enumerate(functions):
            if tid in found and function in names.get(node, ()):
                found[tid][at] += count
    return {tid: (first, second) for tid, (first, second) in found.items()}
