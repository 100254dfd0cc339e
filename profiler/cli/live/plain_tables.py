"""Tables for scripts, and for terminals that cannot be drawn on."""

from __future__ import annotations

import sys

from pyprof.cli.live.screen_lines import plain
from pyprof.cli.live.snapshot_merge import SnapshotBuilder, saved
from pyprof.cli.live.top_recordings import WatchedTargets
from pyprof.cli.live.view_state import View
from pyprof.cli.terminal_output import complain, failure, line
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class Printed:
    """The options of the tables that `pyprof top` prints for scripts.

    Attributes:
        every_s: Seconds that each table covers.
        once: Print only one table.
        width: Maximum length of a line.
        rows: Maximum number of rows.
        output: File for all that was recorded, None for none.
        shows_idle: See Snapshot.
    """

    every_s: float
    once: bool
    width: int
    rows: int
    output: str | None
    shows_idle: bool


def print_tables(watched: WatchedTargets, view: View, how: Printed) -> int:
    """Print tables until the target has ended or stop() is called, and return the exit code."""
    recording = watched.begin(watched.options.mode)
    gathering = SnapshotBuilder(recording.subject.title, recording.options.mode, how.shows_idle)
    sampled = False
    for profile in recording.windows(how.every_s):
        snapshot = gathering.add_window(profile)
        if len(profile.stack) or recording.running:
            for text in plain(snapshot, view, how.width, how.rows):
                line(text)
            if not how.once:
                line("")
            sys.stdout.flush()
        sampled |= len(profile.stack) > 0
        if how.once:
            break
    if how.output and sampled:
        line(f"pyprof: {saved(gathering.snapshot, how.output, recording.subject)}", sys.stderr)
    if recording.failure is not None:
        failure(recording.failure)
        return 1
    if how.once and not sampled:
        complain("nothing was sampled", "" if recording.options.mode == "wall" else "--mode wall also shows waits")
        return 1
    return 0
