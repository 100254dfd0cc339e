"""A recording file as a database in memory, which nothing else can change. The file is foreign input.

It is read as bytes and given to SQLite only in memory. What it holds besides the tables of the schema (views, triggers,
generated columns) is refused before anything is read. A file of an older version becomes one of this version. What a
recording that was killed left beside it (FILE-wal) is put together with it in a private folder first.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from pyprof.errors import FormatError, RecordingError
from pyprof.objfile.source import open_regular
from pyprof.recording.schema import APPLICATION_ID, VERSION
from pyprof.recording.upgrades import tables_of, upgrade

MAGIC = b"SQLite format 3\0"
MOST_BYTES = 1 << 32
_HEADER = 100
_LONGEST = 1 << 28
"""Bytes of one text or blob."""
_MAKER = "pyprof record -o NAME.pyprof makes one"


def read_bytes(path: str) -> bytes:
    """A file that the user named. Raises RecordingError."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise RecordingError(f"{path} is larger than {MOST_BYTES >> 30} GiB, more than is read at once")
            return file.read(size)  # which takes memory for so much before it reads
    except FormatError as error:
        raise RecordingError(f"{path} is {error.problem}") from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None


def is_recording(data: bytes) -> bool:
    return data.startswith(MAGIC) and data[68:72] == struct.pack(">I", APPLICATION_ID)


def opened(path: str) -> tuple[sqlite3.Connection, int]:
    """The database, and how many bytes the file has. Raises RecordingError."""
    data = read_bytes(path)
    if not is_recording(data):
        raise RecordingError(f"{path} is no recording of pyprof", _MAKER)
    (version,) = struct.unpack_from(">I", data, 60)
    if version > VERSION:
        raise RecordingError(f"{path} is of version {version}, this pyprof reads up to {VERSION}", "a newer pyprof")
    try:
        if data[18:20] != b"\1\1":
            data = _with_log(path, data)
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            _load(database, data, version)
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, UnicodeError) as error:
        raise RecordingError(f"{path} is broken: {error}") from None
    except FormatError as error:
        raise RecordingError(f"{path} is broken: {error}") from None
    return database, len(data)


def _load(database: sqlite3.Connection, data: bytes, version: int) -> None:
    database.deserialize(data)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    tables = tables_of(version)
    expected = {("table", table.name, table.name, table.sql) for table in tables.values()}
    stored = set(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT 1000"))
    for entry in sorted(stored ^ expected, key=str):
        what = "is not the one of the format" if entry[1] in tables else "does not belong there"
        raise FormatError("schema", 0, f"{entry[0]} {entry[1]} {what}")
    upgrade(database, version, len(data))


def _with_log(path: str, data: bytes) -> bytes:
    """The file with what stands in its write-ahead log, as one file."""
    log = f"{path}-wal"
    with TemporaryDirectory(prefix="pyprof-") as folder:
        copy = Path(folder) / "recording"
        copy.write_bytes(data)
        if os.path.exists(log):
            Path(f"{copy}-wal").write_bytes(read_bytes(log))
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA journal_mode = DELETE")
            return database.serialize()
