"""Opens a recording file as a private database in memory. The file is untrusted input.

SQLite gets the bytes of the file only in memory. Anything in addition to the tables of the schema (views, triggers,
generated columns) is refused before anything is read. A file of an older version is converted to this version. A
recording that was killed may have left a log (FILE-wal), which is first merged with the file in a private folder.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from pyprof.errors import FormatError, RecordingError
from pyprof.objfile.byte_source import open_regular
from pyprof.recording.schema import APPLICATION_ID, VERSION
from pyprof.recording.upgrades import tables_of, upgrade

MAGIC = b"SQLite format 3\0"
MAX_BYTES = 1 << 32
_HEADER = 100
_MAX_FINDING = 200
_LONGEST = 1 << 28
"""Maximum number of bytes of one text or blob in a recording file."""
_FEWEST_STEPS, _STEPS_PER_BYTE = 1_000_000, 64
"""Limit on the steps of SQLite's virtual machine until a recording file is checked: a fixed number, and more for each
byte of the file.

Without a limit, a file whose pages refer to each other in a cycle would be read forever.
"""
_LOOK_STEPS = 100_000
_MAKER = "pyprof record -o NAME.pyprof makes one"


def read_bytes(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file that the user named, or its first bytes only.

    Args:
        path: Path of the file.
        max_bytes: Maximum number of bytes.

    Raises:
        RecordingError: The file is too large, or cannot be read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES and max_bytes >= MAX_BYTES:
                raise RecordingError(f"{path} is larger than the limit of {MAX_BYTES >> 30} GiB")
            return file.read(min(size, max_bytes))  # read() allocates memory for the whole size first
    except FormatError as error:
        raise RecordingError(f"{path} is {error.problem}") from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None


def is_recording(data: bytes) -> bool:
    return data.startswith(MAGIC) and data[68:72] == struct.pack(">I", APPLICATION_ID)


def open_recording(path: str) -> tuple[sqlite3.Connection, int]:
    """Open a recording file as a private database in memory.

    Returns:
        (database in memory, size of the file in bytes).

    Raises:
        RecordingError: The file is no recording, broken or too new.
    """
    data = read_bytes(path)
    if not is_recording(data):
        raise RecordingError(f"{path} is not a recording by pyprof", _MAKER)
    (version,) = struct.unpack_from(">I", data, 60)
    if version > VERSION:
        raise RecordingError(
            f"{path} is of version {version}; this pyprof reads versions up to {VERSION}", "install a newer pyprof"
        )
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
    _bound(database, len(data))
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    tables = tables_of(version)
    expected = {("table", table.name, table.name, table.sql) for table in tables.values()}
    stored = set(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT 1000"))
    for entry in sorted(stored ^ expected, key=str):
        what = "is not the one of the format" if entry[1] in tables else "does not belong there"
        raise FormatError("schema", 0, f"{entry[0]} {entry[1]} {what}")
    # after this check no page is referred to twice, so each page is read only once
    for (found,) in database.execute("PRAGMA quick_check(1)"):
        if found != "ok":
            raise FormatError("pages", 0, str(found)[:_MAX_FINDING])
    upgrade(database, version, len(data))
    database.set_progress_handler(None, 0)


def _bound(database: sqlite3.Connection, size: int) -> None:
    """Limit the steps of SQLite's virtual machine for a recording file. The limit ends when another progress handler is
    set.

    Args:
        database: The database.
        size: Size of the file in bytes.
    """
    left = [(_FEWEST_STEPS + size * _STEPS_PER_BYTE) // _LOOK_STEPS]

    def is_over() -> bool:
        left[0] -= 1
        return left[0] < 0

    database.set_progress_handler(is_over, _LOOK_STEPS)


def _is_of_the_same_user(log: str, path: str) -> bool:
    """Return True if the write-ahead log of a recording is a regular file of the recording's owner. In a shared folder
    another user may have made the log.
    """
    try:
        found = os.lstat(log)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.stat(path).st_uid


def _with_log(path: str, data: bytes) -> bytes:
    """Return the bytes of a recording file after its write-ahead log was merged with it."""
    log = f"{path}-wal"
    with TemporaryDirectory(prefix="pyprof-") as folder:
        copy = Path(folder) / "recording"
        copy.write_bytes(data)
        if _is_of_the_same_user(log, path):
            Path(f"{copy}-wal").write_bytes(read_bytes(log))
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            _bound(database, len(data))
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA journal_mode = DELETE")
            return database.serialize()
