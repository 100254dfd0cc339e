"""Tests of malicious databases: pyprof refuses them with one message and runs none of their SQL."""

from __future__ import annotations

import random
import resource
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

from pyprof.errors import PyprofError, RecordingError
from pyprof.lazy_dataclasses import replace
from pyprof.recording.column_blocks import pack_columns, unpack_texts
from pyprof.recording.reader import KEYS, MAX_VALUES, load_recording
from pyprof.recording.schema import PAGE, SCHEMA, VERSION
from pyprof.recording.sql_views import open_query
from tests.exporters.profiles import golden
from tests.recording.fuzzed import packed_blocks, seed
from tests.recording.support import COLUMNS, bare, edited, repacked, stored
from tests.warm import run

pytestmark = pytest.mark.fuzz

HANGS_S = 20
"""Timeout in seconds, which only a hang exceeds."""

LIES = {
    "a thread that does not exist": "DELETE FROM threads",
    "a process that does not exist": "UPDATE threads SET process = 0",
    "nothing where something stands": "DELETE FROM meta WHERE key = 'start_ns'",
    "a number where a text stands": "UPDATE meta SET value = 7 WHERE key = 'title'",
    "a code that nobody knows": "UPDATE codes SET name = 'quantum' WHERE code = 'trust' AND number = 2",
    "a text where a number stands": "UPDATE frame_blocks SET count = 'x'",
    "blocks that are not numbered in order": "UPDATE file_blocks SET id = id + 500",
    "more frames than the data": "UPDATE frame_blocks SET count = count + 1",
    "billions of frames": "UPDATE frame_blocks SET count = 1 << 40",
    "billions of nodes": "UPDATE stack_blocks SET count = 1 << 40",
    "less than no functions": "UPDATE line_blocks SET count = -1",
    "names that are text": "UPDATE function_blocks SET data = 'x'",
    "no values": "DELETE FROM value_types",
    "a beginning after the end of time": "UPDATE meta SET value = 9223372036854775807 WHERE key = 'start_ns'",
    "gaps that are no times": "INSERT INTO meta VALUES ('gaps', '5-x')",
    "a gap that ends before it begins": "INSERT INTO meta VALUES ('gaps', '9-5')",
    "a gap within another": "INSERT INTO meta VALUES ('gaps', '5-9,7-8')",
    "half a gap": "INSERT INTO meta VALUES ('gaps', '5')",
    "less than no time": "UPDATE meta SET value = -1 WHERE key = 'duration_ns'",
    "more samples than the data": "UPDATE windows SET samples = samples + 1",
    "billions of samples": "UPDATE windows SET samples = 1 << 40",
    "less than no samples": "UPDATE windows SET samples = -1",
    "data that are none": "UPDATE windows SET data = x'00'",
    "data that are text": "UPDATE windows SET data = 'x'",
    "a summary of texts": "UPDATE summary SET value = 'many' WHERE name = 'samples'",
    "a text that is none": "UPDATE threads SET name = x'ff'",
    "times that no clock has": "UPDATE windows SET start_ns = 1 << 62",
    "times before all clocks": "UPDATE windows SET start_ns = -(1 << 62) - (1 << 61)",
    "more errors than anything has": "INSERT INTO counters VALUES ('x', 9223372036854775807)",
    "a note whose arguments are no JSON": "UPDATE notes SET arguments = '{'",
    "a note whose arguments have no names": "UPDATE notes SET arguments = '[1]'",
    "a note whose arguments are nested": 'UPDATE notes SET arguments = \'{"wanted": {"a": 1}}\'',
    "a note whose arguments are nested deeply": "UPDATE notes SET arguments = replace(hex(zeroblob(50000)), '0', '[')",
    "a note with a number that nothing has": "UPDATE notes SET arguments = '{\"wanted\": 1e999}'",
    "a note with too much text": "UPDATE notes SET arguments = '{\"a\": \"' || hex(zeroblob(300000)) || '\"}'",
    "a note without a reason": "UPDATE notes SET reason = ''",
    "an endless time": "UPDATE summary SET value = 9e999 WHERE name = 'duration_s'",
    "more time than there is": "UPDATE summary SET value = 1e300 WHERE name = 'rate_reached'",
    "more samples than anything has": "UPDATE summary SET value = 1 << 62 WHERE name = 'samples'",
}


LIES_IN_BLOCKS = {
    "a module that does not exist": ("frame_blocks", 0, 0, 99),
    "a kind that has no name": ("frame_blocks", 5, 0, 77),
    "a title that is no name": ("frame_blocks", 6, 0, 999),
    "more functions of a frame than there are": ("frame_blocks", 7, 0, 999),
    "less than no functions of a frame": ("frame_blocks", 7, 0, -1),
    "a function that does not exist": ("line_blocks", 1, 0, 999),
    "a file that does not exist": ("line_blocks", 2, 0, 999),
    "a file before the first": ("line_blocks", 2, 0, -1),
    "a stack below a later one": ("stack_blocks", 0, 1, -1),
    "a stack below none that there is": ("stack_blocks", 0, 1, 99),
    "a frame that does not exist": ("stack_blocks", 1, 0, 999),
    "a frame before the first": ("stack_blocks", 1, 0, -999),
    "a name longer than the texts": ("function_blocks", 0, 0, 9999),
    "a name of less than no bytes": ("function_blocks", 0, 0, -3),
    "a symbol's name longer than the texts": ("function_blocks", 1, 0, 9999),
    "a source of names that does not exist": ("function_blocks", 2, 0, 7),
    "a path longer than the texts": ("file_blocks", 0, 0, 9999),
}
"""(table, column, row, value) of each corruption."""
CODES = {"a kind that has no name"}
"""Corruptions of which a query shows the value, because a newer version may define it."""


@pytest.mark.parametrize("lie", LIES_IN_BLOCKS)
def test_recording_with_a_block_that_lies_is_refused(lie: str, tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    load_recording(path)
    with edited(path) as database:
        repacked(database, *LIES_IN_BLOCKS[lie])
    with pytest.raises(RecordingError, match="is broken"):
        load_recording(path)
    if lie not in CODES:
        with pytest.raises(RecordingError, match="is broken"), open_query(path):
            pass


def test_counts_of_functions_that_wrap_are_refused(tmp_path: Path) -> None:
    """Write counts whose sum overflows to the correct value, while a single one exceeds all memory."""
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        count, data = database.execute("SELECT count, data FROM frame_blocks").fetchone()
        columns, _ = unpack_texts(data, count, COLUMNS["frame_blocks"], 0)
        functions = columns[7]
        assert functions is not None
        total = int(functions.sum())
        functions[4] += functions[:4].sum()
        functions[:4] = 1 << 62
        assert int(functions.sum()) == total
        database.execute("UPDATE frame_blocks SET data = ?", [pack_columns(columns)])
    with pytest.raises(RecordingError, match="is broken"):
        load_recording(path)
    with pytest.raises(RecordingError, match="is broken"), open_query(path):
        pass


def test_values_that_are_too_large_for_a_sum_are_refused(tmp_path: Path) -> None:
    whole = golden()
    values = whole.values.copy()
    values[:2, -1] = 1 << 61
    path = stored(replace(whole, values=values), tmp_path)
    with pytest.raises(RecordingError, match="too large together"):
        load_recording(path)


@pytest.mark.parametrize("lie", LIES)
def test_recording_that_lies_is_refused(lie: str, tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        database.execute(LIES[lie])
    with pytest.raises(RecordingError, match="is broken"):
        load_recording(path)


SMUGGLED = {
    "a view": "CREATE VIEW other AS SELECT 1",
    "a trigger": "CREATE TRIGGER on_note AFTER INSERT ON notes BEGIN SELECT 1; END",
    "a table": "CREATE TABLE more (x)",
    "an index": "CREATE INDEX by_name ON threads (name)",
    "a virtual table": "CREATE VIRTUAL TABLE words USING fts5(x)",
    "a column": "ALTER TABLE notes ADD COLUMN more",
    "a lost table": "DROP TABLE notes",
}


@pytest.mark.parametrize("what", SMUGGLED)
def test_recording_with_sql_of_its_own_is_refused(what: str, tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        database.execute(SMUGGLED[what])
    with pytest.raises(RecordingError, match="schema"):
        load_recording(path)


def test_view_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    sql = SCHEMA.replace("CREATE TABLE notes (", "CREATE TABLE notes_ (")
    path = bare(tmp_path / "a.pyprof", sql + "CREATE VIEW notes AS SELECT 1 AS id, randomblob(1e9) AS text;")
    with pytest.raises(RecordingError, match="schema"):
        load_recording(path)


def test_code_that_a_newer_version_added_harms_only_rows_that_use_it(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        database.execute("INSERT INTO codes VALUES ('trust', 99, 'quantum'), ('flavour', 1, 'strange')")
    assert load_recording(path).frames == golden().frames
    with edited(path) as database:
        repacked(database, "frame_blocks", 4, 0, 99)
    with pytest.raises(RecordingError, match="newer pyprof"):
        load_recording(path)


def test_newer_version_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=f"version {VERSION + 1}"):
        load_recording(bare(tmp_path / "a.pyprof", SCHEMA, VERSION + 1))


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0", b"<html>", b"SQLite format 3\0" + bytes(5000)])
def test_file_that_is_no_recording_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pyprof"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="not a recording"):
        load_recording(path)


@pytest.mark.parametrize("place", ["", "missing.pyprof", "/dev/zero"])
def test_what_is_no_file_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        load_recording(place if place.startswith("/") else tmp_path / place)


def test_mutated_recordings_give_a_profile_or_one_sentence(tmp_path: Path) -> None:
    whole = stored(golden(), tmp_path).read_bytes()
    path, rng = tmp_path / "b.pyprof", random.Random(7)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 12)):
            data[rng.randrange(100, len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            load_recording(path)
        except PyprofError:
            refused += 1
    assert 20 < refused < 150


def test_small_file_needs_no_room_for_a_large_one(tmp_path: Path) -> None:
    """Load a recording with only 1 GiB of free address space."""
    path = stored(golden(), tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_addresses() + (1 << 30), limits[1]))
    try:
        load_recording(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _addresses() -> int:
    """Return the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_values_that_take_no_bytes_are_few(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    one, more = np.ones(1, np.int64), MAX_VALUES - 1
    with edited(path) as database:
        rows = [(number, "x", "count") for number in range(3, 3 + more)]
        database.executemany("INSERT INTO value_types VALUES (?, ?, ?)", rows)
        data = pack_columns([*[one] * KEYS, *[one] * (2 + more)])
        database.execute("UPDATE windows SET samples = 1, data = ?", [data])
    with pytest.raises(RecordingError, match="value_types"):
        load_recording(path)


@pytest.mark.parametrize("table", ["windows", "stack_blocks"])
def test_rows_that_take_no_bytes_are_a_million_at_most(table: str, tmp_path: Path) -> None:
    """Refuse a block of too many empty rows. Ten million took a gigabyte of memory, and three more to write them."""
    path = stored(golden(), tmp_path)
    one, count = np.ones(1, np.int64), 1_500_000
    with edited(path) as database:
        column, columns = ("samples", KEYS + 2) if table == "windows" else ("count", 2)
        database.execute(
            f"UPDATE {table} SET {column} = ?, data = ? WHERE id = 1", [count, pack_columns([one] * columns)]
        )
    with pytest.raises(RecordingError, match="has room for"):
        load_recording(path)


def test_query_unpacks_no_window_of_more_samples_than_a_second_has(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        data = pack_columns([np.ones(1, np.int64)] * (KEYS + 2))
        database.execute("UPDATE windows SET samples = (1 << 22) + 1, data = ?", [data])
    with open_query(path) as database, pytest.raises(sqlite3.OperationalError, match="user-defined function"):
        database.execute("SELECT count(*) FROM samples").fetchall()


def _without_end(data: bytes, root: int, levels: int = 12) -> bytes:
    """Insert levels into a table's b-tree, in each of which a page refers 40 times to the next level."""
    pages = [bytearray(data[at : at + PAGE]) for at in range(0, len(data), PAGE)]
    first = len(pages)
    pages += [bytearray(PAGE) for _ in range(levels)]
    old, head = bytes(pages[root - 1]), 100 if root == 1 else 0
    pages[-1][:] = _without_file_header(old) if head else old
    for nth, number in enumerate([root - 1, *range(first, first + levels - 1)]):
        page, at, child = pages[number], 0 if nth else head, first + nth + 1
        page[at:] = bytes(PAGE - at)
        cells = PAGE - 5 * 40
        struct.pack_into(">BHHHBI", page, at, 5, 0, 40, cells, 0, child)
        for cell in range(40):
            struct.pack_into(">H", page, at + 12 + 2 * cell, cells + 5 * cell)
            struct.pack_into(">IB", page, cells + 5 * cell, child, 1)
    struct.pack_into(">I", pages[0], 28, len(pages))
    return b"".join(pages)


def _without_file_header(page: bytes) -> bytes:
    """Move the header of the first page to its start. The cells keep their offsets."""
    (cells,) = struct.unpack_from(">H", page, 103)
    size = (12 if page[100] == 5 else 8) + 2 * cells
    return page[100 : 100 + size] + page[size:]


@pytest.mark.parametrize("table", ["sqlite_schema", "value_types"])
def test_pages_that_are_named_again_and_again_are_refused(table: str, tmp_path: Path) -> None:
    """Refuse a database whose pages would be visited an exponential number of times."""
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        (root,) = database.execute("SELECT max(rootpage) FROM sqlite_schema WHERE name = ?", [table]).fetchone()
    path.write_bytes(_without_end(path.read_bytes(), root or 1))
    for arguments in ([], ["--sql", "SELECT count(*) FROM value_types"]):
        done = run("report", str(path), *arguments, timeout=HANGS_S)
        assert done.returncode == 1
        assert "is broken" in done.stderr


@pytest.mark.parametrize("statement", ["ATTACH DATABASE '{}' AS other", "VACUUM INTO '{}'"])
def test_query_opens_and_writes_nothing_else(statement: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with open_query(stored(golden(), tmp_path)) as database, pytest.raises(sqlite3.DatabaseError, match="auth"):
        database.execute(statement.format(other))
    assert not other.exists()


def test_query_of_broken_data_says_so(tmp_path: Path) -> None:
    path = stored(golden(), tmp_path)
    with edited(path) as database:
        database.execute("UPDATE windows SET data = x'00'")
    with open_query(path) as database, pytest.raises(Exception, match="user-defined function raised exception"):
        database.execute("SELECT count(*) FROM samples").fetchall()


def test_blocks_of_any_bytes_are_read_or_refused() -> None:
    """Run the fuzz target of `make fuzz` on inputs with few changes, most of which pass the checks of column widths."""
    whole, rng = seed(), random.Random(18)
    packed_blocks(whole)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        packed_blocks(bytes(data))
