"""Tests that stored profiles are read back unchanged, and so is every output made of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import pyprof
from pyprof.exporters.registry import format_names
from pyprof.lazy_dataclasses import field_names, replace
from pyprof.model.marker_frames import NOT_SAMPLED, Mark, MarkKind, cut_mark
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo
from pyprof.model.summary import Summary
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.recording.reader import load_recording
from pyprof.recording.schema import VERSION
from pyprof.recording.sql_views import open_query
from tests.exporters.profiles import Builder, code, golden, marker, profiles
from tests.exporters.support import THREADS, export
from tests.recording.support import FIXTURES, edited, stored

COLUMNS = ("parent", "frame", "time_ns", "stack", "thread", "values", "state", "cpu")


def assert_same(found: Profile, profile: Profile) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(profile, name), name)
    for name in ("frames", "threads", "modules", "value_types", "summary", "title", "period_ns", "duration_ns", "gaps"):
        assert getattr(found, name) == getattr(profile, name), name


def test_every_field_comes_back(tmp_path: Path) -> None:
    profile = golden()
    n = len(profile.stack)
    gaps = tuple((profile.start_ns + begin, profile.start_ns + begin + 7) for begin in (10, 1000))
    profile = replace(profile, state=np.arange(n, dtype=np.int32), cpu=np.arange(n, dtype=np.int32) - 1, gaps=gaps)
    assert_same(load_recording(stored(profile, tmp_path)), profile)


@pytest.mark.parametrize("name", format_names())
def test_every_output_comes_back(name: str, tmp_path: Path) -> None:
    assert export(name, load_recording(stored(golden(), tmp_path)), THREADS) == export(name, golden(), THREADS)


def test_what_markers_say_comes_back(tmp_path: Path) -> None:
    marks = [cut_mark(StackEnd.UNREADABLE, 5 << 20), NOT_SAMPLED]
    builder = Builder()
    for mark in marks:
        builder.sample(builder.node([replace(marker(mark.title), mark=mark), code("f")]))
    found = load_recording(stored(builder.build(), tmp_path))
    assert [frame.mark for frame in found.frames if frame.kind == FrameKind.MARKER] == marks


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profiles())
def test_any_profile_comes_back(profile: Profile) -> None:
    with TemporaryDirectory() as folder:
        assert_same(load_recording(stored(profile, Path(folder))), profile)


def test_samples_of_several_seconds_are_windows_and_come_back_in_time_order(tmp_path: Path) -> None:
    profile = golden()
    gaps = np.arange(len(profile.stack), dtype=np.int64)[::-1] * 400_000_000
    spread = replace(profile, time_ns=profile.start_ns - 500_000_000 + gaps)
    path = stored(spread, tmp_path)
    found = load_recording(path)
    np.testing.assert_array_equal(found.time_ns, spread.time_ns[::-1])
    np.testing.assert_array_equal(found.stack, spread.stack[::-1])


def test_library_loads_a_recording(tmp_path: Path) -> None:
    profile = pyprof.load(stored(golden(), tmp_path))
    assert profile.total == golden().total
    assert profile.top(1)[0].name == golden().top(1)[0].name


def test_whole_number_where_others_have_a_fraction_comes_back(tmp_path: Path) -> None:
    """Store an integer rate, as from pyprof.record(pid, rate=199)."""
    summary = replace(golden().summary, rate_wanted=199)
    assert load_recording(stored(replace(golden(), summary=summary), tmp_path)).summary == summary


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_file_of_each_version_is_read(version: int) -> None:
    """Read files that the first release of each version wrote."""
    found = load_recording(FIXTURES / f"version-{version}.pyprof")
    assert export("collapsed", found, THREADS) == export("collapsed", golden(), THREADS)
    assert {frame.trust for frame in found.frames} >= {Trust.CONTEXT, Trust.EH_FRAME, Trust.FP}


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_query_has_the_same_rows_whichever_version_the_file_has(version: int) -> None:
    question = "SELECT f.name, count(*) FROM stack_frames s JOIN frame_names f USING (frame) GROUP BY 1 ORDER BY 1"
    with open_query(FIXTURES / f"version-{version}.pyprof") as database:
        found = database.execute(question).fetchall()
    assert len(found) > 5
    with open_query(FIXTURES / f"version-{VERSION}.pyprof") as database:
        assert found == database.execute(question).fetchall()


def test_recording_whose_log_was_left_beside_it_is_read_with_it(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE meta SET value = 'in the log' WHERE key = 'title'")
        left = tmp_path / "left.pyprof"
        left.write_bytes(path.read_bytes())
        Path(f"{left}-wal").write_bytes(Path(f"{path}-wal").read_bytes())
    before = sorted(tmp_path.iterdir())
    assert load_recording(left).title == "in the log"
    assert sorted(tmp_path.iterdir()) == before
    Path(f"{left}-wal").unlink()
    assert load_recording(left).title == golden().title


KEPT = {
    Frame: {"kind", "pc", "lookup", "rel", "module", "lines", "trust", "title", "mark"},
    Line: {"function", "system_name", "offset", "file", "line", "later"},
    ModuleInfo: {"path", "build_id", "start", "end", "offset", "has_functions", "has_lines"},
    ThreadInfo: {"pid", "tid", "name", "process", "started", "process_started", "labels"},
    Mark: {"kind", "end", "enough", "unplaced", "without_run", "lacking", "name"},
}
"""Fields that have a place in the schema or in the frame's title (Mark.name). A new field needs one, too."""
NOT_KEPT = {"place"}
"""Fields of a frame that have a meaning only during the recording."""


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.__name__)
def test_no_field_is_forgotten(kind: type) -> None:
    fields = kind._fields if issubclass(kind, tuple) else field_names(kind)  # type: ignore[attr-defined]
    assert set(fields) - NOT_KEPT == KEPT[kind]


@pytest.mark.parametrize("name", ["", "[python3] 12", "a lock of 3 ]"])
@pytest.mark.parametrize("kind", MarkKind)
def test_name_of_a_mark_is_read_back_from_its_title(kind: MarkKind, name: str) -> None:
    named = kind in (MarkKind.WOKEN, MarkKind.LOCK)
    mark = Mark(kind, StackEnd.NO_RULE, name=name if named else "")
    assert Mark(kind, StackEnd.NO_RULE).with_name_from_title(mark.title) == mark


def test_no_field_of_a_summary_is_forgotten() -> None:
    summary = Summary()
    numbers = {name for name in field_names(Summary) if isinstance(getattr(summary, name), int | float | str)}
    parts = {"stops", "children", "names", "shown"}
    rows = {"errors", "ends", "trust", "modules", "notes", "languages", "functions_missing"}
    assert set(field_names(Summary)) == numbers | parts | rows
    for part in parts:
        value = getattr(summary, part)
        others = {name for name in field_names(type(value)) if not isinstance(getattr(value, name), int | float | str)}
        assert others <= {"ends"}
