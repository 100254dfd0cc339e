"""Tests of power cuts between any two system calls of a recording: everything acknowledged before is on the disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyprof.recording.reader import INTERRUPTED, load_recording
from tests.exporters.profiles import golden
from tests.recording.disk import Disk, calls, whole

pytestmark = pytest.mark.system

CUTS = 3
"""Number of simulated power cuts after each system call."""
WRITER = """
import os, sys
from functools import partial
from queue import SimpleQueue
from pyprof.exporters import output_file
from pyprof.exporters.base import ExportOptions, JournalBeginning
from pyprof.recording import writer
from tests.exporters.profiles import golden
from tests.recording.test_journal import parts

class Asked(SimpleQueue):
    def get(self):  # all that came before is kept by now
        os.write(1, b"kept")
        return super().get()

writer.SimpleQueue = Asked
path, profile = sys.argv[1], golden()
kept = writer.FileJournal(path, JournalBeginning.from_profile(profile))
for part in parts(profile, 4):
    kept.add_part(part)
kept.close()
output_file.replace_file(path, lambda out: writer.write(profile, out, ExportOptions()))
os.write(1, b"written")
"""


def test_call_during_which_another_thread_made_one_counts_where_it_ended() -> None:
    lines = [
        "7  fsync(3 <unfinished ...>",
        '8  write(1, "\\x6b", 1) = 1',
        "7  <... fsync resumed>)  = 0",
        "8  close(4) = 0",
    ]
    assert [*whole(lines)] == [lines[1], "7  fsync(3)  = 0", lines[3]]


def test_power_cut_at_any_moment_leaves_all_that_was_kept(tmp_path: Path) -> None:
    folder, left, rng, profile = tmp_path / "disk", tmp_path / "left", random.Random(7), golden()
    folder.mkdir()
    left.mkdir()
    disk, path = Disk(folder), left / "a.pyprof"
    kept, written, looks = 0, False, 0
    for call in calls(WRITER, str(folder / "a.pyprof"), log=tmp_path / "log"):
        disk.play(call)
        if call.texts in {(b"kept",), (b"written",)}:
            kept, written = kept + (call.texts == (b"kept",)), call.texts == (b"written",)
        for _ in range(CUTS if kept else 0):
            disk.left(rng, left)
            found, looks = load_recording(path), looks + 1
            parts = kept - 2  # no part precedes the first acknowledgement, and the first part has no samples
            assert len(found.stack) >= len(profile.stack) * min(parts, 4) // 4, call
            assert not written or INTERRUPTED not in found.summary.notes
    assert written
    assert kept == 6
    assert disk.syncs >= 8
    assert looks > 100
