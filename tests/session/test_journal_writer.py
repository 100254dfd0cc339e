"""Tests of what a killed recording leaves: samples are stored before anything is read for their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.exporters.base import JournalPart
from pyprof.options import ViewOptions
from pyprof.session.pipeline.background_symbolizer import BackgroundSymbolizer
from pyprof.session.pipeline.journal_writer import JournalWriter
from pyprof.session.worker.messages import NamingOptions
from pyprof.symbolize.symbolizer import Resolved
from tests.objfile.live import running, where
from tests.session.test_background_symbolizer import inside_interpreter, looked_up, sample, session_of

pytestmark = [pytest.mark.live, pytest.mark.system]


class Parts(list[JournalPart]):
    """A journal that stores its parts in a list."""

    def add_part(self, part: JournalPart) -> None:
        self.append(part)

    def close(self) -> None: ...


def at_once(job: Callable[[], Resolved]) -> Resolved:
    return job()


def lines_of(part: JournalPart) -> list[int]:
    return [frame.lines[0].line for frames in part.named.values() for frame in frames if frame.lines]


def test_samples_are_kept_before_their_names_are_read(tmp_path: Path) -> None:
    parts, kept_before = Parts(), list[int]()

    def within(job: Callable[[], Resolved]) -> Resolved:
        kept_before.append(sum(len(part.samples.time_ns) for part in parts))
        return job()

    with running([where(tmp_path, "where", "-g")]) as live:
        session = session_of(live, live.at["where_inner"])
        ahead = BackgroundSymbolizer(session, ViewOptions())
        keeping = JournalWriter(session, NamingOptions("", 99, "cpu", ViewOptions()), parts, within, ahead)
        keeping._send()
        looked_up(ahead)
        session.recorder.add_batch(sample(live, live.at["where_inner"]))
        keeping.close()
    assert kept_before == [1, 2]
    assert [len(part.samples.time_ns) for part in parts if not part.named] == [1, 1]
    (*_, first), named = parts[0].frames, [part.named for part in parts if part.named]
    assert "where_inner" not in first.title
    assert [frames[-1].title for each in named for frames in each.values()] == ["where_inner", "where_inner"]


def test_lines_follow_once_they_were_looked_up_for_the_view(tmp_path: Path) -> None:
    """Add lines of shown frames only: those of an interpreter take seconds to read."""
    with running([where(tmp_path, "where", "-g")]) as live:
        for native, kept in (("all", [0, 1]), ("none", [0])):
            session, parts = session_of(live, live.at["where_inner"]), Parts()
            inside_interpreter(session, live)
            ahead = BackgroundSymbolizer(session, ViewOptions(native=native))
            naming = NamingOptions("", 99, "cpu", ViewOptions(native=native))
            keeping = JournalWriter(session, naming, parts, at_once, ahead)
            keeping._send()
            looked_up(ahead)
            keeping.close()
            assert [min(max(lines_of(part)), 1) for part in parts if part.named] == kept
