"""Recordings as files, and corrupt databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyprof.model.profile import Profile
from pyprof.recording.column_blocks import pack_columns, unpack_texts
from pyprof.recording.schema import APPLICATION_ID, VERSION
from tests.exporters.support import export

FIXTURES = Path(__file__).parent.parent / "fixtures" / "recording"


def stored(profile: Profile, folder: Path, name: str = "a.pyprof") -> Path:
    path = folder / name
    path.write_bytes(export("recording", profile))
    return path


@contextmanager
def edited(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for changes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        yield database


COLUMNS = {"function_blocks": 4, "file_blocks": 1, "frame_blocks": 8, "line_blocks": 4, "stack_blocks": 2}


def repacked(database: sqlite3.Connection, table: str, column: int, row: int, value: int) -> None:
    """Change one number in the table's first block."""
    count, data = database.execute(f"SELECT count, data FROM {table} WHERE id = 1").fetchone()
    columns, texts = unpack_texts(data, count, COLUMNS[table], 1 << 20)
    changed = columns[column]
    assert changed is not None
    assert changed[row] != value
    changed[row] = value
    database.execute(f"UPDATE {table} SET data = ? WHERE id = 1", [pack_columns(columns, texts)])


def bare(path: Path, sql: str, version: int = VERSION) -> Path:
    """Create a database with the header of a recording and with the tables that the SQL creates."""
    with edited(path) as database:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {version}")
        database.executescript(sql)
    return path
