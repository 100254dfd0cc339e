"""Tests of symbolizing during the recording: the end of the recording repeats none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import interpreter_key, native_key
from pyprof.model.summary import NameCounts
from pyprof.model.unwind_result import Trust
from pyprof.options import UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.background_symbolizer import AFTER_BATCHES, BackgroundSymbolizer
from pyprof.session.session import Session
from tests.objfile.live import Live, running, where
from tests.session.test_sample_windows import STOPPED, Script, batch

pytestmark = [pytest.mark.live, pytest.mark.system]


def session_of(live: Live, pc: int) -> Session:
    """Return a session with one sample of a process."""
    session = Session(Script(), UnwindOptions(), Diagnostics())
    session.recorder.add_batch(sample(live, pc))
    return session


def sample(live: Live, pc: int) -> SampleBatch:
    return replace(batch((STOPPED, live.pid, pc)), space=np.ones(1, np.int32), spaces={1: live.space()})


def named(session: Session, view: ViewOptions) -> NameCounts:
    """Return the symbol lookups that the end of the recording made."""
    before = session.files.names.counts
    session.profile(session.recorder.cut(), "", 99, "cpu", view)
    return session.files.names.counts - before


def look_ahead(session: Session, view: ViewOptions) -> BackgroundSymbolizer:
    return looked_up(BackgroundSymbolizer(session, view))


def looked_up(ahead: BackgroundSymbolizer) -> BackgroundSymbolizer:
    while ahead.turn() and ahead.due:
        pass
    return ahead


def inside_interpreter(session: Session, live: Live) -> None:
    """Add an interpreter frame to each sample, which the sample's native frame calls."""
    table = session.recorder.stacks
    outer = native_key(1, live.at["where_inner"], True, Trust.EH_FRAME)
    inside = table.child(table.child(0, outer), interpreter_key(FunctionPlace(1)))
    for number in range(session.recorder.samples):
        session.recorder._rows.amend(number, inside)


@pytest.mark.parametrize("flags", ["-g", "-s"])
def test_at_the_end_nothing_is_read(tmp_path: Path, flags: str) -> None:
    view = ViewOptions()
    with running([where(tmp_path, "where", flags)]) as live:
        at = live.at["where_inner"]
        counts = named(session_of(live, at), view)
        assert (counts.read, counts.files) == (1, 1)
        session = session_of(live, at)
        ahead = look_ahead(session, view)
        session.recorder.add_batch(sample(live, at))
        assert ahead.turn()
        assert not ahead.due
        counts = named(session, view)
        assert (counts.known, counts.read, counts.files) == (1, 0, 0)


def test_frames_that_the_view_does_not_show_are_not_looked_up(tmp_path: Path) -> None:
    with running([where(tmp_path, "where", "-g")]) as live:
        for native, files in (("none", 0), ("all", 1)):
            session = session_of(live, live.at["where_inner"])
            inside_interpreter(session, live)
            look_ahead(session, ViewOptions(native=native))
            assert session.files.names.counts.files == files


def test_frames_are_done_when_their_lines_are_and_another_window_has_its_own(tmp_path: Path) -> None:
    with running([where(tmp_path, "where", "-g")]) as live:
        session = session_of(live, live.at["where_inner"])
        ahead, done = BackgroundSymbolizer(session, ViewOptions()), []
        for _ in range(2):
            done.append(ahead.done)
            ahead.turn()
        assert done == [0, 0]
        assert ahead.done == len(session.recorder.stacks.frames) > 0
        session.recorder.cut()
        assert ahead.done == 0


def test_names_are_known_after_the_deadline_if_symbol_tables_are_read_then(tmp_path: Path) -> None:
    view = ViewOptions()
    with running([where(tmp_path, "where", "-g")]) as live:
        session = session_of(live, live.at["where_inner"])
        window = session.recorder.cut()
        before = session.profile(window, "", 99, "cpu", view, known_only=True)
        BackgroundSymbolizer(session, view).read_symbols(window)
        after = session.profile(window, "", 99, "cpu", view, known_only=True)
    assert "where_inner" not in {frame.title for frame in before.frames}
    assert "where_inner" in {frame.title for frame in after.frames}


def test_first_batches_of_stops_are_not_held_up() -> None:
    session = Session(Script(), UnwindOptions(), Diagnostics())
    stops, other = batch((STOPPED, 1, 0x10)), BackgroundSymbolizer(session, ViewOptions())
    other.taken(replace(stops, stopped=False))
    assert other.due
    ahead, due = BackgroundSymbolizer(session, ViewOptions()), []
    for _ in range(AFTER_BATCHES + 1):
        ahead.taken(stops)
        due.append(ahead.due)
    assert due == [False] * AFTER_BATCHES + [True]
