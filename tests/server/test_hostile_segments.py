"""Tests of segments of a few kilobytes that would become gigabytes in the database, because rows repeat their texts."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyprof.errors import FormatError
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.server.ingest import segment_to_rows
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, frame_of, rows_of, text_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.fleet.server.store import clickhouse_native_blocks
from pyprof.fleet.server.store.database import StoredRowCache
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers.profile_builder import About, Builder, function_frame
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.thread_identity import Labels
from pyprof.model.unwind_result import Trust
from tests.exporters.support import export

pytestmark = pytest.mark.system

KINDS = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))
FILE = ModuleInfo("/bin/checkout", "beef", 0, 1 << 30, 0, True, True)


def profile(stacks: list[list[Frame]], labels: Labels = (), kinds: tuple[ValueType, ...] = KINDS) -> Profile:
    builder = Builder()
    builder.add_module(FILE)
    thread = ThreadInfo(1, 1, "t", "p", labels=labels)
    for frames in stacks:
        builder.add_sample(builder.add_stack([builder.add_frame(each) for each in frames]), (1,) * len(kinds), thread)
    return builder.build(About("checkout", kinds, ()))


def read(found: Profile, book: StoredStackCache | None = None) -> SegmentRows:
    data = export("pprof", found, ExportOptions(evidence=True))
    return rows_of("default", SegmentName.new("checkout", time.time_ns()), data, book or StoredStackCache())


def test_window_whose_values_or_time_would_be_too_much_with_others_is_refused() -> None:
    found, most = profile([calls("main")]), 1 << 50
    read(replace(found, values=found.values * most))
    read(replace(found, duration_ns=most))
    with pytest.raises(FormatError, match="too large"):
        read(replace(found, values=found.values * (most + 1024)))
    with pytest.raises(FormatError, match="too long"):
        read(replace(found, duration_ns=most + 1024))


def calls(*names: str) -> list[Frame]:
    return [function_frame(name) for name in names]


def test_stacks_of_more_calls_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile([calls("main", *"f" * depth) for depth in range(1, 20)])
    read(found)
    monkeypatch.setattr(segment_to_rows, "_MAX_CALLS", 100)
    with pytest.raises(FormatError, match="more than 100 calls"):
        read(found)


def test_names_that_each_stack_repeats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile([calls("x" * 1000, f"f{at}") for at in range(20)])
    read(found)
    monkeypatch.setattr(segment_to_rows, "_MAX_LETTERS", 40_000)
    with pytest.raises(FormatError, match="40,000 letters"):
        read(found)


def test_files_that_each_stack_names_count_as_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_to_rows, "_MAX_LETTERS", 20_000)
    builder = Builder()
    for at in range(10):
        module = builder.add_module(ModuleInfo(f"/{at}{'x' * 1000}", "", at << 20, (at + 1) << 20, 0, False, False))
        frame = Frame(FrameKind.NATIVE, at << 20, at << 20, 0, module, (), Trust.CONTEXT, "f")
        builder.add_sample(builder.add_stack([builder.add_frame(frame)]), (1, 1))
    with pytest.raises(FormatError, match="20,000 letters"):
        read(builder.build(About("checkout", KINDS, ())))


def test_text_of_a_frame_is_short_however_long_its_names_and_many_its_lines_are() -> None:
    lines = tuple(Line("x" * 100_000, "y" * 100_000, 0, "z" * 100_000, at) for at in range(1100))
    frame = Frame(FrameKind.NATIVE, 0, 0, 0, 0, lines, Trust.CONTEXT, "x" * 100_000)
    text = text_of(frame, (ModuleInfo("/" + "m" * 100_000, "b" * 100_000, 0, 1, 0, True, True),))
    shown = frame_of(text, 0)
    assert len(shown.title) == len(shown.lines[0].function) == 1 << 14
    assert [each.line for each in shown.lines] == list(range(1000))
    assert len(text) < 1005 * 3.1 * (1 << 14)


def test_type_of_values_that_each_row_repeats_is_short() -> None:
    with pytest.raises(FormatError, match="a type or a unit"):
        read(profile([calls("main")], kinds=(KINDS[0], ValueType("cpu", "n" * 1001))))


def test_long_labels_and_label_sets_beyond_the_limit_are_left_out() -> None:
    assert list(read(profile([calls("main")], (("a", "b" * 1000),))).labels.values()) == [(("a", "b" * 1000),)]
    assert list(read(profile([calls("main")], (("a", "b" * 1001),))).labels.values()) == [()]
    builder = Builder()
    stack = builder.add_stack([builder.add_frame(function_frame("main"))])
    for at in range(50):
        labels = tuple((f"{key:02}", f"{at}{'v' * 900}") for key in range(60))
        builder.add_sample(stack, (1, 1), ThreadInfo(1, 1, "t", "p", labels=labels))
    with pytest.raises(FormatError, match="letters together"):
        read(builder.build(About("checkout", KINDS, ())))


def test_stacks_go_to_the_database_in_pieces_that_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    book = StoredStackCache()
    segments = [read(profile([calls(f"{part}{at}") for at in range(40)]), book) for part in "ab"]
    lacking = StoredRowCache().lacking_stacks(segments)
    (whole,) = clickhouse_native_blocks.pieces(lacking)
    assert whole[0][3].tolist() == lacking[0][3].tolist()
    monkeypatch.setattr(clickhouse_native_blocks, "_LETTERS", 1000)
    pieces = list(clickhouse_native_blocks.pieces(lacking))
    sent = [row for piece in pieces for *_, row in piece]
    assert sorted(np.concatenate(sent).tolist()) == lacking[0][3].tolist()
    assert len(pieces) > 2
    assert max(int(book.letters[row].sum()) for row in sent) < 1100
    assert sum(clickhouse_native_blocks.stacks(piece).rows for piece in pieces) == 80


def test_files_of_a_book_count_as_what_it_holds() -> None:
    book = StoredStackCache()
    read(profile([[Frame(FrameKind.NATIVE, 16, 16, 16, 0, (), Trust.CONTEXT, "f")]]), book)
    text, file = book.frames(0)[0], len(FILE.path + FILE.build_id)
    (made,) = book.known.read.values()
    assert file < made.memory < file + 50, "of what else it says"
    frames = 700 + made.memory + 700 + 4 + len(text)  # as read from the file, and as part of stacks
    assert book.memory == 400 + 4 + 150 + len(text) + 150 + file + frames
