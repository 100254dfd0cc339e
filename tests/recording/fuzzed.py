"""Fuzz input as the contents of a recording's packed blocks and windows, so that zlib does not hide changes."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from contextlib import closing, suppress
from functools import cache

from pyprof.errors import FormatError
from pyprof.recording.checked_rows import TableRows
from pyprof.recording.column_blocks import Blocks
from pyprof.recording.reader import _Reader
from pyprof.recording.sql_views import TABLES, _fill
from tests.exporters.profiles import golden
from tests.exporters.support import export

_PACKED = {
    **dict.fromkeys(("function_blocks", "file_blocks", "frame_blocks", "line_blocks", "stack_blocks"), "count"),
    "windows": "samples",
}
"""The column with the number of rows of a blob, by table."""
_HEAD = struct.Struct("<6b6H")
"""Number of rows and number of bytes of each blob. The last blob has the remaining bytes."""


@cache
def _golden() -> bytes:
    return export("recording", golden())


def seed() -> bytes:
    """Return the input that stands for the golden recording."""
    counts, parts = [], []
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(_golden())
        for table, column in _PACKED.items():
            count, data = database.execute(f"SELECT {column}, data FROM {table}").fetchone()
            counts.append(count)
            parts.append(zlib.decompress(data))
    return _HEAD.pack(*counts, *map(len, parts)) + b"".join(parts)


def packed_blocks(data: bytes) -> None:
    """Put the input into a recording, and read that as a profile and as the rows of a query."""
    if len(data) < _HEAD.size:
        return
    numbers = _HEAD.unpack_from(data)
    at = _HEAD.size
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(_golden())
        for (table, column), count, size in zip(_PACKED.items(), numbers[:6], numbers[6:], strict=True):
            blob = zlib.compress(data[at : at + size], 1)
            database.execute(f"UPDATE {table} SET {column} = ?, data = ? WHERE id = 1", (count, blob))
            at += size
        with suppress(FormatError, OverflowError):
            _Reader(TableRows(database, len(data)), len(data)).profile()
        with suppress(FormatError):
            database.executescript(TABLES)
            _fill(database, Blocks(TableRows(database, len(data)), len(data)))
