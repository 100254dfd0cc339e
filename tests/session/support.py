"""Recordings of processes within the test's process, as profiles."""

from __future__ import annotations

from collections.abc import Sequence

from pyprof.collectors.perf.event_attributes import PerfNotAllowed
from pyprof.collectors.registry import open_collector
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.model.analysis.sample_filter import selected, through
from pyprof.model.marker_frames import UNSAMPLED
from pyprof.model.profile import Profile
from pyprof.options import CollectOptions, TargetOptions, UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import InputFiles, Session
from tests.support import missing

SAMPLES = 80
"""Number of samples of each process."""


def recorded(collector: str, pids: Sequence[int]) -> Profile:
    """Return the profile. On a machine with shared processors it may also contain unsampled time."""
    diagnostics, unwind = Diagnostics(), UnwindOptions()
    files = InputFiles(unwind, diagnostics)
    selection = select_processes(TargetOptions(pids=tuple(pids)))
    try:
        opened = open_collector(collector, selection, CollectOptions(rate_hz=400), diagnostics, files.runtimes)
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error}")
    session = Session(opened, unwind, diagnostics, files)

    def beat() -> None:
        if session.recorder.samples >= SAMPLES * len(pids):
            opened.stop()

    window = session.run(opened, beat)
    assert session.failure is None
    return sampled_part(session.profile(window, "recorded", 400, "cpu", ViewOptions()))


def sampled_part(profile: Profile) -> Profile:
    """Return the profile without unsampled time."""
    return selected(profile, ~through(profile, lambda frame: frame.mark in UNSAMPLED))


def stacks(profile: Profile) -> list[list[str]]:
    return [[frame.title for frame in profile.path(int(leaf))] for leaf in profile.stack]
