"""Writes what was seen into a file of any format."""

from __future__ import annotations

import os
from functools import partial

from pyprof.cli.argument_types import chosen_format
from pyprof.cli.live.snapshot_merge import Snapshot
from pyprof.cli.number_format import duration
from pyprof.cli.output_files import Names, check_writable, write
from pyprof.errors import PyprofError, UsageError
from pyprof.exporters import output_file, registry
from pyprof.exporters.base import ExportOptions
from pyprof.model.idle_waits import without_idle
from pyprof.session.recording import Recorded

USUAL = f"pyprof-%n-%p-%t{registry.DEFAULT.suffixes[0]}"


def saved(snapshot: Snapshot, path: str, subject: Recorded) -> str:
    """Save all samples that `pyprof top` keeps, in the format of the file's suffix, and return a message.

    Args:
        path: Path of the file, "" for the default name.

    Raises:
        UsageError: The suffix is not known.
        OutputError: The file cannot be written.
    """
    profile = snapshot.seen.profile() if snapshot.seen is not None else None
    if profile is None:
        raise PyprofError("nothing was seen yet")
    if path == "-":
        raise UsageError("standard output is this screen", "a file name")
    place = Names(subject.pid, subject.name, profile.start_ns / 1e9, 0).expand(os.path.expanduser(path or USUAL))
    exporter = chosen_format(None, place)
    check_writable(place)
    options = ExportOptions(processes=profile.has_processes)
    shown = profile if snapshot.shows_idle or exporter.name == registry.RECORDING else without_idle(profile)
    place = write(place, partial(exporter.write, shown, options=options))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    return f"saved {duration(profile.duration_ns)} in {place}"
