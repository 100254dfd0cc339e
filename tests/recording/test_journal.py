"""Tests of a recording in progress: what was added can be read at any time and after any kill."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pyprof.errors import RecordingError
from pyprof.exporters.base import JournalBeginning, JournalPart, SampleColumns
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, Profile, ThreadInfo
from pyprof.recording import writer as journal
from pyprof.recording.reader import INTERRUPTED, load_recording
from pyprof.recording.writer import FileJournal, TableWriter
from tests.exporters.profiles import code, golden
from tests.exporters.support import THREADS, export
from tests.warm import run as pyprof

pytestmark = pytest.mark.live

KILLS = int(os.environ.get("KILLS", "4"))
SECTOR = 512
CUTS = 10


def parts(profile: Profile, count: int) -> list[JournalPart]:
    """Split a profile into journal parts.

    The first one has everything except for samples, which are spread over several parts.
    """
    first = JournalPart(
        profile.modules,
        profile.threads,
        {},
        profile.frames,
        profile.parent[1:].tolist(),
        profile.frame[1:].tolist(),
        _rows(profile, slice(0, 0)),
    )
    bounds = np.linspace(0, len(profile.stack), count + 1).astype(int).tolist()
    nothing = replace(first, modules=(), threads=(), frames=(), parent=(), frame=())
    more = [replace(nothing, samples=_rows(profile, slice(a, b))) for a, b in itertools.pairwise(bounds)]
    return [first, *more]


def _rows(profile: Profile, rows: slice) -> SampleColumns:
    return SampleColumns(
        profile.time_ns[rows], profile.thread[rows], profile.stack[rows], profile.values[rows], None, None
    )


def kept(path: Path, profile: Profile, count: int) -> FileJournal:
    journal = FileJournal(str(path), JournalBeginning.from_profile(profile))
    for part in parts(profile, count):
        journal.add_part(part)
    return journal


def test_closed_journal_is_one_file_with_everything_and_is_called_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "a.pyprof"
    kept(path, golden(), 5).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pyprof"]
    found = load_recording(path)
    assert export("collapsed", found, THREADS) == export("collapsed", golden(), THREADS)
    assert found.summary.notes == (INTERRUPTED,)
    assert found.summary.samples == len(golden().stack)


def in_two(profile: Profile) -> list[JournalPart]:
    """Split a profile into half of the frames with their nodes, and the rest."""
    first, more = parts(profile, 1)
    half = len(profile.frames) // 2
    cut = next(at for at, frame in enumerate(first.frame) if frame >= half)
    return [
        replace(first, frames=first.frames[:half], parent=first.parent[:cut], frame=first.frame[:cut]),
        replace(more, frames=first.frames[half:], parent=first.parent[cut:], frame=first.frame[cut:]),
    ]


def test_frames_that_come_later_have_their_own_names(tmp_path: Path) -> None:
    path, profile = tmp_path / "a.pyprof", golden()
    journal = FileJournal(str(path), JournalBeginning.from_profile(profile))
    for part in in_two(profile):
        journal.add_part(part)
    journal.close()
    assert export("collapsed", load_recording(path), THREADS) == export("collapsed", profile, THREADS)
    assert [line for frame in load_recording(path).frames for line in frame.lines] == [
        line for frame in profile.frames for line in frame.lines
    ]


def test_functions_that_come_again_later_keep_their_names(tmp_path: Path) -> None:
    """Add functions of which a later block has another order, because a block numbers its functions by address."""
    path, profile = tmp_path / "a.pyprof", golden()

    def frame(name: str, start: int, offset: int) -> Frame:
        found = code(name, rel=start + offset)
        return replace(found, lines=(replace(found.lines[0], offset=offset),))

    first, more = parts(profile, 1)
    frames = frame("last", 0x900, 4), frame("first", 0x100, 4), frame("last", 0x900, 8), frame("first", 0x100, 8)
    journal = FileJournal(str(path), JournalBeginning.from_profile(profile))
    journal.add_part(replace(first, frames=frames[:2], parent=[0, 0], frame=[0, 1]))
    journal.add_part(replace(more, frames=frames[2:], parent=[0, 0], frame=[2, 3], samples=_rows(profile, slice(0, 0))))
    journal.close()
    assert [each.title for each in load_recording(path).frames] == ["last", "first", "last", "first"]


def test_lines_that_are_known_later_stand_at_their_frames(tmp_path: Path) -> None:
    """Add lines and inlined functions later, so that a frame has more entries than before."""
    path, profile = tmp_path / "a.pyprof", golden()
    first, second = in_two(profile)
    bare = [replace(part, frames=[_bare(frame) for frame in part.frames]) for part in (first, second)]
    nothing = replace(second, frames=(), parent=(), frame=(), samples=_rows(profile, slice(0, 0)))
    journal = FileJournal(str(path), JournalBeginning.from_profile(profile))
    for part in (*bare, nothing, replace(nothing, named={1: second.frames}), replace(nothing, named={0: first.frames})):
        journal.add_part(part)
    journal.close()
    assert load_recording(path).frames == tuple(replace(frame, place=None) for frame in profile.frames)
    assert any(_bare(frame) != frame for frame in profile.frames)


def _bare(frame: Frame) -> Frame:
    lines = tuple(replace(line, file=None, line=0) for line in frame.lines[-1:])
    return replace(frame, lines=lines)


def test_what_was_counted_so_far_is_there_after_a_kill(tmp_path: Path) -> None:
    path, profile = tmp_path / "a.pyprof", golden()
    first, more = parts(profile, 1)
    journal = FileJournal(str(path), JournalBeginning.from_profile(profile))
    journal.add_part(replace(first, summary=replace(profile.summary, skipped=1)))
    journal.add_part(replace(more, summary=profile.summary))
    journal.close()
    found = load_recording(path).summary
    for name in ("errors", "skipped", "stops", "unchanged", "blocked", "profiler_cpu_s"):
        assert getattr(found, name) == getattr(profile.summary, name)
    assert found.notes == (*profile.summary.notes, INTERRUPTED)
    assert {module.path: module.problems for module in found.modules if module.problems} == {
        module.path: module.problems for module in profile.summary.modules if module.problems
    }


def test_thread_that_gets_another_name_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pyprof"
    journal = kept(path, golden(), 1)
    nothing = replace(parts(golden(), 1)[1], samples=_rows(golden(), slice(0, 0)))
    journal.add_part(replace(nothing, renamed={1: ThreadInfo(100, 101, "renamed", "server")}))
    journal.close()
    assert [thread.name for thread in load_recording(path).threads][:2] == ["main", "renamed"]


def test_what_a_killed_recording_of_that_name_left_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.pyprof"
    Path(f"{path}-wal").write_bytes(b"left")
    Path(f"{path}-shm").write_bytes(b"left")
    kept(path, golden(), 2).close()
    assert len(load_recording(path).stack) == len(golden().stack)


def test_link_that_others_plant_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    """Create a symbolic link in place of the log, which SQLite would follow.

    In a folder where others may create names there is no journal. The recording is written at its end.
    """
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "a.pyprof-wal").symlink_to(tmp_path / "victim")
    (folder / "a.pyprof-shm").symlink_to(tmp_path / "victim")
    kept(folder / "a.pyprof", golden(), 2).close()
    assert not (folder / "a.pyprof").exists()
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("place", ["missing/a.pyprof", "."])
def test_journal_that_cannot_be_written_lets_the_recording_go_on(place: str, tmp_path: Path) -> None:
    kept(tmp_path / place, golden(), 2).close()
    with pytest.raises(RecordingError):
        load_recording(tmp_path / place)


WRITER = """
import sys
from pathlib import Path
from pyprof.exporters.base import JournalBeginning
from pyprof.recording.writer import FileJournal
from tests.exporters.profiles import code, golden
from tests.recording.test_journal import parts

first, *more = parts(golden(), len(golden().stack))
journal = FileJournal(sys.argv[1], JournalBeginning.from_profile(golden()))
journal.add_part(first)
while True:
    for number, part in enumerate(more):
        journal.add_part(part)
        while journal._parts.qsize():
            pass
        print(flush=True)
"""


def test_recording_opens_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    """Kill the writer: everything that it reported as written is present except for the current part."""
    rng = random.Random(3)
    for turn in range(KILLS):
        path = tmp_path / f"{turn}.pyprof"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            time.sleep(rng.random() * 0.1)
            writer.kill()
            said = 1 + writer.stdout.read().count(b"\n")
        assert len(load_recording(path).stack) >= said - 1


def test_recording_opens_whatever_a_power_cut_left_of_the_last_transaction(tmp_path: Path) -> None:
    """Drop a random set of sectors that were not synced. Everything synced before is present."""
    path, rng, profile = tmp_path / "a.pyprof", random.Random(5), golden()
    beginning = JournalBeginning.from_profile(profile)
    ends: list[int] = []
    with closing(journal._begun(str(path), beginning)) as database:
        tables = TableWriter(database)
        for part in parts(profile, 6):
            database.execute("BEGIN")
            journal._add(tables, part, beginning)
            database.execute("COMMIT")
            ends.append(os.stat(f"{path}-wal").st_size)
        file, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        counts = [len(found.stack) for found in (left(tmp_path, file, log[:end]) for end in ends)]
        assert counts == sorted(counts)
        assert counts[-1] == len(profile.stack)
        for turn in range(CUTS):
            last = rng.randrange(1, len(ends))
            torn = bytearray(log[: ends[last]])
            for at in range(ends[last - 1], ends[last], SECTOR):
                if rng.random() < 0.3:
                    torn[at : at + SECTOR] = rng.randbytes(len(torn[at : at + SECTOR])) if turn % 2 else bytes(SECTOR)
            whole = bytes(torn[: ends[last]]) == log[: ends[last]]
            assert len(left(tmp_path, file, bytes(torn)).stack) == counts[last if whole else last - 1]


def left(folder: Path, file: bytes, log: bytes) -> Profile:
    """Return what a reader finds in a file with this log."""
    path = folder / "left.pyprof"
    path.write_bytes(file)
    Path(f"{path}-wal").write_bytes(log)
    return load_recording(path)


def test_killed_recorder_leaves_what_it_had_sampled(tmp_path: Path) -> None:
    """Kill sampler and worker at the same time."""
    path = tmp_path / "a.pyprof"
    busy = "import time\ndef summed():\n while time.time() < end: sum(range(1000))\nend = time.time() + 60\nsummed()"
    outputs = ["-o", str(tmp_path / "a.html"), "--save", str(path)]
    command = [sys.executable, "-m", "pyprof", "record", "-q", "-r", "199", "--label", "env=prod", *outputs]
    command += ["--", sys.executable, "-c", busy]
    with subprocess.Popen(command, start_new_session=True) as recorder:
        deadline = time.monotonic() + 50
        while _samples(path) < 30 and time.monotonic() < deadline:
            time.sleep(0.2)
        before = _samples(path)
        os.killpg(recorder.pid, signal.SIGKILL)
    found = load_recording(path)
    assert len(found.stack) >= before >= 30
    assert INTERRUPTED in found.summary.notes
    assert found.options["rate"] == "199.0"
    assert found.labels == {"env": "prod"}
    assert any(cost.name == "summed" for cost in found.top(100, by="total"))


def test_saved_recording_gives_the_output_that_was_written_beside_it(tmp_path: Path) -> None:
    out, path = tmp_path / "a.collapsed", tmp_path / "a.pyprof"
    busy = "import time\nend = time.time() + 1.5\nwhile time.time() < end: sum(range(1000))"
    saved = ["--save", str(path), "--label", "env=prod"]
    done = pyprof("record", "-t", "-o", str(out), *saved, "--", sys.executable, "-c", busy)
    assert f"pyprof: wrote {path}" in done.stderr
    assert pyprof("report", str(path), "-t", "-f", "collapsed").stdout == out.read_text() != ""
    assert load_recording(path).labels == {"env": "prod"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.collapsed", "a.pyprof"]


def _samples(path: Path) -> int:
    return len(load_recording(path).stack) if path.exists() else 0
