"""A recording file that grows while its window is being recorded. It can be read after a kill or a power failure.

A separate thread adds each part in one short transaction, with a write-ahead log (FILE-wal) that it syncs. close()
merges both into one file. That file has no row in `end`; later the complete recording replaces it atomically.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO

from pyprof.errors import PyprofError
from pyprof.exporters import output_file
from pyprof.exporters.base import JournalBeginning, JournalPart
from pyprof.recording.schema import create_tables
from pyprof.recording.writer import TableWriter

_WAL = b"\2\2"
"""Values of bytes 18 and 19 of an SQLite database with a write-ahead log."""


class FileJournal:
    """The journal file of one unfinished window of a recording.

    If the file cannot be written, the journal stops, and the end of the recording reports it.
    """

    def __init__(self, path: str, beginning: JournalBeginning) -> None:
        self._path = path
        self._beginning = beginning
        self._parts: SimpleQueue[JournalPart | None] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="pyprof-journal", daemon=True)
        self._thread.start()

    def add_part(self, part: JournalPart) -> None:
        if not self._failed:
            self._parts.put(part)

    def close(self) -> None:
        self._parts.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(_begun(self._path, self._beginning)) as database:
                tables = TableWriter(database)
                while (part := self._parts.get()) is not None:
                    database.execute("BEGIN")
                    _add(tables, part, self._beginning)
                    database.execute("COMMIT")
        except (sqlite3.Error, OSError, PyprofError):
            self._failed = True


def _begun(path: str, beginning: JournalBeginning) -> sqlite3.Connection:
    """Create an empty recording file at the path in place of an earlier one.

    SQLite opens the file and its log by their names, and follows links.

    Raises:
        OSError: The path does not belong to this user.
        OutputError: The file cannot be written.
        sqlite3.Error: The database cannot be opened.
    """
    if not output_file.is_private(path):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        create_tables(empty)
        TableWriter(empty).begin_window(beginning)
        data = empty.serialize()
    output_file.drop_logs(path)
    output_file.replace_file(path, partial(_write, data[:18] + _WAL + data[20:]))
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    # no checkpoints, so that file and log can be copied while they grow
    database.execute("PRAGMA wal_autocheckpoint = 0")
    return database


def _write(data: bytes, out: BinaryIO) -> None:
    out.write(data)


def _add(tables: TableWriter, part: JournalPart, beginning: JournalBeginning) -> None:
    tables.add_modules(part.modules)
    tables.add_threads(part.threads)
    tables.rename_threads(part.renamed)
    for number, frames in part.named.items():
        tables.rename_frames(number, frames)
    tables.add_frames(part.frames)
    tables.add_stacks(part.parent, part.frame)
    tables.add_samples(part.samples, beginning.start_ns)
    if part.summary is not None:
        tables.replace_summary(part.summary)
