"""Tests of the database rows of segments: independent of known stacks, and each stack once a day."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import pytest

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.protobuf_encoding import encode_data, encode_number
from pyprof.fleet.server.ingest.database_indexer import Indexer, Retention
from pyprof.fleet.server.ingest.segment_files import SegmentFiles
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, rows_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache, TenantStackCaches
from pyprof.fleet.server.store.clickhouse_engine import Dialect, StoreError
from pyprof.fleet.server.store.clickhouse_native_blocks import Block
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers.pprof import _Reader
from pyprof.importers.profile_builder import About, Builder, WorkLimit, WorkLimitExceeded, function_frame
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.unwind_result import Trust
from tests.agent.filled import marked
from tests.agent.test_known_stacks import window
from tests.exporters.support import export

DAY_NS = 86_400 * 10**9
NOW = time.time_ns() // DAY_NS * DAY_NS
EVIDENCE = ExportOptions(evidence=True)
ENOUGH = WorkLimit(samples=40, threads=40, unknown=40, calls=200, frames=40)


def rows(profile: Profile, book: StoredStackCache, days_ago: int = 0, options: ExportOptions = EVIDENCE) -> SegmentRows:
    name = SegmentName.new("checkout", NOW - days_ago * DAY_NS + 1)
    return rows_of("default", name, export("pprof", profile, options), book)


def content(found: SegmentRows) -> tuple[object, ...]:
    """Return the content of rows without numbers that are local to the cache."""
    stacks = zip(
        map(tuple, found.book.halves[found.stacks].tolist()),
        (tuple(found.book.frames(number)) for number in found.stacks.tolist()),
        found.series.tolist(),
        found.values.tolist(),
        found.counts.tolist(),
        strict=True,
    )
    return sorted(stacks), found.labels, sorted(found.builds), found.host, found.type, found.unit, found.length_ns


def test_segment_gives_the_same_rows_if_its_stacks_are_known_in_whole_or_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles = [window(seed, 40, 30) for seed in range(4)] + [marked()]
    read, asked = _Reader._read_frames, list[object]()

    def frames(reader: _Reader, ids: Container[int] | None) -> dict[int, int]:
        asked.append(ids)
        return read(reader, ids)

    monkeypatch.setattr(_Reader, "_read_frames", frames)
    book = StoredStackCache()
    for profile in (*profiles, *profiles):
        assert content(rows(profile, book)) == content(rows(profile, StoredStackCache()))
    assert len(asked) == 3 * len(profiles), "the book's second time reads no frame"
    for profile in profiles:
        assert content(rows(profile, book, options=ExportOptions())) == content(
            rows(profile, StoredStackCache(), 0, ExportOptions())
        )


def of_files(*paths: str, turn: int) -> Profile:
    """Return a profile with a stack of one function of each file, in the order of turn.

    Paths determine the files' numbers.
    """
    builder = Builder()
    for path in paths:
        builder.add_module(ModuleInfo(path, path[1:].encode().hex(), 0x1000, 0x9000, 0, True, True))
    lines = {path: Line(f"of {path}", f"of {path}", 0, None, 0) for path in paths}
    frames = [
        builder.add_frame(
            Frame(FrameKind.NATIVE, pc, pc, pc - 0x1000, number, (lines[path],), Trust.EH_FRAME, f"of {path}")
        )
        for pc, number, path in sorted((0x2000 + len(path), number, path) for number, path in enumerate(paths))
    ]
    builder.add_sample(builder.add_stack(frames[turn:] + frames[:turn]), (1, 10))
    return builder.build(About("x", (ValueType("samples", "count"), ValueType("cpu", "nanoseconds")), (), NOW, 1000))


def test_frames_that_are_known_are_those_of_their_file_whatever_number_it_has() -> None:
    book, other, little = StoredStackCache(), StoredStackCache(), replace(ENOUGH, frames=0)
    first, second, third = (
        export("pprof", of_files(*paths, turn=turn), EVIDENCE)
        for turn, paths in enumerate((("/a", "/bb", "/ccc"), ("/ccc", "/a", "/bb"), ("/bb", "/ccc", "/a")))
    )
    name = SegmentName.new("checkout", NOW)
    found = rows_of("default", name, first, StoredStackCache())
    assert content(rows_of("default", name, first, book)) == content(found)
    assert content(rows_of("default", name, second, book, little=little)) == content(
        rows_of("default", name, second, other)
    )
    for lends in (False, True):
        lent, adopting = (
            rows_of("default", name, first, StoredStackCache(found.book.known), lends=lends),
            StoredStackCache(),
        )
        adopting.adopted(pickle.loads(pickle.dumps(lent.book)), lent.stacks)
        with contextlib.nullcontext() if lends else pytest.raises(WorkLimitExceeded):
            rows_of("default", name, third, adopting, little=little)
    assert content(rows_of("default", name, third, adopting, little=little)) == content(
        rows_of("default", name, third, StoredStackCache())
    )
    assert min(adopting.memory, book.memory) > 5000, "what it remembers is counted"


@pytest.mark.parametrize("lines", [0, 1000])
def test_frame_that_needs_much_memory_is_not_remembered(lines: int) -> None:
    """Read frames with large evidence or many lines, of which a tenant may send a new one each time."""
    evidence = bytes(0 if lines else 1 << 17)
    location = (
        encode_number(1, 1)
        + encode_number(2, 1)
        + encode_data(4, encode_number(1, 1)) * lines
        + encode_data(1000, encode_data(9, evidence))
    )
    texts = [encode_data(6, text) for text in (b"", b"cpu", b"nanoseconds", b"f", b"/bin/f")]
    tables = [
        encode_data(3, encode_number(1, 1) + encode_number(3, 1 << 40) + encode_number(5, 4)),
        encode_data(5, encode_number(1, 1) + encode_number(2, 3)),
    ]
    sample = encode_data(2, encode_data(1, b"\1") + encode_data(2, b"\5"))
    found = b"".join(
        [encode_data(1, encode_number(1, 1) + encode_number(2, 2)), sample, *tables, encode_data(4, location), *texts]
    )
    book = StoredStackCache()
    for _ in range(2):
        made = rows_of("default", SegmentName.new("checkout", NOW), found, book, lends=True)
        assert len(made.stacks) == 1
        assert not book.known.read
        assert len(pickle.dumps(book)) < 1 << 16


def test_deep_stack_of_many_threads_is_one() -> None:
    builder = Builder()
    deep = builder.add_stack([builder.add_frame(function_frame(f"f{each}" + "x" * 1000)) for each in range(400)])
    for tid in range(1000):
        builder.add_sample(deep, (1, 10), ThreadInfo(1, tid, "t", "p"))
    kinds = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))
    profile = builder.build(About("x", kinds, (), NOW, 1000))
    assert rows(profile, StoredStackCache(), options=ExportOptions()).counts.tolist() == [1000]


def test_process_that_has_its_files_elsewhere_has_the_same_stacks() -> None:
    here = window(1, 40, 30)
    moved = replace(
        here,
        modules=tuple(replace(each, start=each.start + 0x7000, end=each.end + 0x7000) for each in here.modules),
        frames=tuple(replace(each, pc=each.pc + 0x7000, lookup=each.lookup + 0x7000) for each in here.frames),
    )
    book = StoredStackCache()
    first = content(rows(here, book))
    known, frames = len(book.by_digest), len(book.known.read)
    assert content(rows(moved, book)) == first
    assert len(book.by_digest) == known > 10
    unknown = StoredStackCache(book.known)
    assert content(rows(moved, unknown)) == first
    assert len(book.known.read) == frames > 10


class Kept:
    """An engine that counts the rows inserted into each table."""

    dialect = Dialect()

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.fails = ""
        self.listed: list[list[object]] = []

    def insert(self, table: str, block: Block) -> None:
        if table == self.fails:
            raise StoreError("no room")
        self.given[table] = self.given.get(table, 0) + block.rows

    def run(self, sql: str) -> None: ...

    def put(self, sql: str) -> None: ...

    def rows(self, sql: str, patience_s: float = 0) -> list[list[object]]:
        return self.listed if "SELECT tenant, segment" in sql else []

    def check(self) -> None: ...

    def close(self) -> None: ...

    def of(self, store: Store, segments: Sequence[SegmentRows]) -> dict[str, int]:
        self.given = {}
        store.insert(segments)
        return self.given


def test_stacks_and_series_are_sent_once_a_day_until_the_day_is_dropped() -> None:
    engine, books, profile = Kept(), TenantStackCaches(), window(1, 40, 30)
    store, book = Store(engine), books.get_cache("default")
    today, yesterday = rows(profile, book), rows(profile, book, 1)
    first = engine.of(store, [today, rows(profile, book)])
    assert (first["windows"], first["window_samples"]) == (2, 2 * len(today.stacks))
    assert (first["stacks"], first["series"]) == (len(set(today.stacks.tolist())), 1)
    assert engine.of(store, [rows(profile, book)]).keys() == {
        "window_samples",
        "window_builds",
        "window_series",
        "windows",
    }
    assert engine.of(store, [yesterday])["stacks"] == first["stacks"]
    store.drop_day(today.day)
    assert engine.of(store, [yesterday]).keys() == {"window_samples", "window_builds", "window_series", "windows"}
    assert engine.of(store, [today])["stacks"] == first["stacks"]


def test_stacks_that_could_not_be_sent_are_sent_again() -> None:
    engine, book = Kept(), StoredStackCache()
    store, found = Store(engine), rows(window(1, 40, 30), book)
    for table in ("stacks", "series"):
        engine.fails = table
        with pytest.raises(StoreError):
            store.insert([found])
    engine.fails = ""
    assert engine.of(store, [found])["stacks"] == len(set(found.stacks.tolist()))


def test_index_survives_an_error_that_nobody_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyprof.fleet.server.ingest.database_indexer._AFTER_FAILURE_S", 0.05)

    class Odd(Kept):
        is_odd = True

        def insert(self, table: str, block: Block) -> None:
            if self.is_odd:
                raise IndexError("odd")
            super().insert(table, block)

    engine, books, files = Odd(), TenantStackCaches(), SegmentFiles(str(tmp_path / "data"))
    said: list[object] = []
    indexer = Indexer(
        files, Store(engine), books, Retention(1e9, 1 << 40, 1e9), lambda *line, **_: said.append(line), said.append
    )
    each = rows(window(1, 40, 30), books.get_cache("default"))
    assert files.store_segment("default", each.name, export("pprof", window(1, 40, 30), EVIDENCE))
    indexer.start()
    until(lambda: ("warning", "index failed") in said)
    with pytest.raises(StoreError, match="IndexError: odd"):
        indexer.check()
    engine.is_odd = False
    until(lambda: engine.given.get("windows") == 1)
    until(lambda: not failure_of(indexer))
    indexer.close()
    files.close()


def failure_of(indexer: Indexer) -> str:
    try:
        indexer.check()
    except StoreError as error:
        return str(error)
    return ""


def test_window_that_comes_while_the_database_is_behind_counts_once(tmp_path: Path) -> None:
    engine, books, files = Kept(), TenantStackCaches(), SegmentFiles(str(tmp_path / "data"))
    indexer = Indexer(
        files, Store(engine), books, Retention(1e9, 1 << 40, 1e9), lambda *_, **_words: None, lambda _: None
    )
    coming, old = (rows(window(seed, 40, 30), books.get_cache("default")) for seed in (1, 2))
    indexer.expect(coming)
    for each in (coming, old):
        assert files.store_segment("default", each.name, export("pprof", window(1, 40, 30), EVIDENCE))
    assert indexer.catch_up() == 1
    engine.listed = [["default", each.name.path] for each in (coming, old)]
    indexer.queue_rows(coming)
    indexer.start()
    indexer.close()
    assert engine.given["windows"] == 2
    engine.listed = []
    assert indexer.catch_up() == 2, "a database that was lost gets both again"
    files.close()


def test_files_that_are_removed_while_the_server_runs_are_found_and_said_once(tmp_path: Path) -> None:
    engine, books, files = Kept(), TenantStackCaches(), SegmentFiles(str(tmp_path / "data"))
    said: list[tuple[str, dict[str, object]]] = []
    indexer = Indexer(
        files,
        Store(engine),
        books,
        Retention(1e9, 1 << 40, 1e9),
        lambda _, event, **fields: said.append((event, fields)),
        lambda _: None,
    )
    names = [rows(window(seed, 40, 30), books.get_cache("default")).name for seed in (1, 2, 3)]
    for name in names:
        assert files.store_segment("default", name, export("pprof", window(1, 40, 30), EVIDENCE))
    engine.listed = [["default", name.path] for name in names]
    indexer.check_files()
    assert (indexer.without_file, said) == (0, [])
    for name in names[1:]:
        os.unlink(f"{files.root}/default/{name.path}")
    for _ in range(2):
        indexer.check_files()
        assert indexer.without_file == 2
    assert [(event, fields["windows"]) for event, fields in said] == [("windows without a file", 2)]
    files.close()


def test_file_of_a_killed_server_is_indexed_if_it_is_sent_again(tmp_path: Path) -> None:
    """Send a segment again whose first push had no response. The server knows its file, so it must index it itself."""
    engine, books, files = Kept(), TenantStackCaches(), SegmentFiles(str(tmp_path / "data"))
    indexer = Indexer(
        files, Store(engine), books, Retention(1e9, 1 << 40, 1e9), lambda *_, **_words: None, lambda _: None
    )
    old, each = (rows(window(seed, 40, 30), books.get_cache("default")) for seed in (1, 2))
    data = export("pprof", window(1, 40, 30), EVIDENCE)
    assert files.store_segment("default", old.name, data)
    indexer.start()
    until(lambda: engine.given.get("windows") == 1)
    engine.listed = [["default", old.name.path]]
    assert files.store_segment("default", each.name, data)
    indexer.expect(each)
    assert indexer.catch_up() == 0
    assert not files.store_segment("default", each.name, data)
    indexer.forget([each])
    until(lambda: engine.given["windows"] == 2)
    indexer.close()
    files.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("much", ["samples", "threads", "unknown", "calls", "frames"])
def test_more_work_than_was_to_be_done_is_not_done(much: str) -> None:
    data = export("pprof", window(1, 40, 30), EVIDENCE)
    name, book = SegmentName.new("checkout", NOW), StoredStackCache()
    with pytest.raises(WorkLimitExceeded):
        rows_of("default", name, data, book, little=replace(ENOUGH, **{much: 0}))
    assert not book.by_digest
    assert content(rows_of("default", name, data, book, little=ENOUGH)) == content(
        rows(window(1, 40, 30), StoredStackCache())
    )
    if much not in ("samples", "threads"):
        rows_of("default", name, data, book, little=replace(ENOUGH, **{much: 0}))


def test_tables_that_are_much_work_are_not_read_where_a_stack_is_unknown() -> None:
    data, book = export("pprof", window(1, 3, 3000), EVIDENCE), StoredStackCache()
    name, little = SegmentName.new("checkout", NOW), replace(ENOUGH, samples=20)
    with pytest.raises(WorkLimitExceeded):
        rows_of("default", name, data, book, little=little)
    rows_of("default", name, data, book)
    rows_of("default", name, data, book, little=little)


def test_stacks_that_another_has_read_are_known_as_if_they_had_been_read_here() -> None:
    profile, book, other = window(1, 250, 200), StoredStackCache(), StoredStackCache()
    rows(window(1, 40, 30), book)
    before, found = len(book.by_digest), rows(profile, other)
    assert len(other.by_digest) > before > 10
    adopted = replace(found, book=book, stacks=book.adopted(other, found.stacks))
    assert content(adopted) == content(found)
    assert book.by_digest.keys() >= other.by_digest.keys()
    data, known = export("pprof", profile, EVIDENCE), WorkLimit(1000, 1000, 0, 0, 0)
    assert content(rows_of("default", SegmentName.new("checkout", NOW + 1), data, book, little=known)) == content(found)
    numbers = book.adopted(other, found.stacks)
    assert numbers.tolist() == adopted.stacks.tolist(), "they are not there twice"
    assert len(book.adopted(other, found.stacks[:0])) == 0


class Slow(Store):
    """A store during whose first insert the next window arrives."""

    def __init__(self, comes: Callable[[], None]) -> None:
        super().__init__(Kept())
        self._comes, self.blocks = comes, list[int]()

    def insert(self, segments: Sequence[SegmentRows]) -> None:
        self.blocks.append(len(segments))
        if len(self.blocks) == 1:
            self._comes()


def test_windows_during_an_insert_wait_for_the_next_one_and_all_are_stored(
    tmp_path: Path,
) -> None:
    books, files = TenantStackCaches(), SegmentFiles(str(tmp_path / "data"))
    each = rows(window(1, 4, 3), books.get_cache("default"))

    def comes() -> None:
        indexer.expect(each)
        indexer.queue_rows(each)

    store = Slow(comes)
    indexer = Indexer(files, store, books, Retention(1e9, 1 << 40, 1e9), lambda *_, **_words: None, lambda _: None)
    for _ in range(20):
        comes()
    indexer.start()
    deadline = time.monotonic() + 60
    while len(store.blocks) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    comes()
    indexer.close()
    assert store.blocks == [20, 1, 1]
    files.close()


def test_stack_that_is_very_deep_has_its_outermost_frames() -> None:
    builder = Builder()
    frames = [builder.add_frame(function_frame(f"f{depth}")) for depth in range(2005)]
    builder.add_sample(builder.add_stack(frames), (1, 5))
    about = About("x", (ValueType("samples", "count"), ValueType("cpu", "nanoseconds")), (), 1, 1)
    found = rows(builder.build(about), StoredStackCache())
    (texts,) = (found.book.frames(number) for number in found.stacks.tolist())
    assert len(texts) == 2000
    assert "f0" in texts[0]


def test_books_begin_anew_when_they_are_too_large() -> None:
    books = TenantStackCaches(most=1000)
    book = books.get_cache("a")
    assert books.get_cache("a") is book
    first = rows(window(1, 40, 30), book)
    assert books.get_cache("a") is not book
    engine = Kept()
    store = Store(engine)
    assert engine.of(store, [first, rows(window(1, 40, 30), books.get_cache("a"))])["windows"] == 2


def test_digest_of_another_tenant_is_not_known() -> None:
    books = TenantStackCaches()
    rows(window(1, 40, 30), books.get_cache("a"))
    assert books.get_cache("a").by_digest
    assert not books.get_cache("b").by_digest
