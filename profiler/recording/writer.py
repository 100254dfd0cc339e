"""Writes a profile as a recording file: at once as an exporter, or as a journal that grows while it is recorded.

For an exporter, the database is made in memory and written as one piece, so equal profiles give equal bytes.

A journal can be read after a kill or a power failure. A separate thread adds each part in one short transaction, with a
write-ahead log (FILE-wal) that is synced. close() merges the log into the file. A journal has no row in the table
`end`; later the complete recording replaces it atomically.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pyprof.errors import PyprofError
from pyprof.exporters import output_file
from pyprof.exporters.base import ExportOptions, JournalBeginning, JournalPart, SampleColumns
from pyprof.model.profile import Frame, Line, ModuleInfo, Profile, ThreadInfo
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import ProcessKey
from pyprof.recording.checked_rows import LATER, NAME_SOURCES, RECORDED, CellRow, encode_cell, list_codes
from pyprof.recording.column_blocks import BlockWriter, FrameRow, LineRow, pack_columns
from pyprof.recording.schema import create_tables, insert_statement
from pyprof.recording.summary_rows import SUMMARY_TABLES, summary_rows

I64 = npt.NDArray[np.int64]

SECOND_NS = 1_000_000_000


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as a recording file. The file contains everything, so ExportOptions have no effect."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        store_profile(database, profile)
        out.write(database.serialize())


def store_profile(database: sqlite3.Connection, profile: Profile) -> None:
    """Store a profile in the empty database of a recording file."""
    create_tables(database)
    database.execute("BEGIN")
    tables = TableWriter(database)
    tables.begin_window(JournalBeginning.from_profile(profile))
    tables.add_modules(profile.modules)
    tables.add_threads(profile.threads)
    tables.add_frames(profile.frames)
    tables.add_stacks(profile.parent[1:].tolist(), profile.frame[1:].tolist())
    tables.add_samples(SampleColumns.from_profile(profile), profile.start_ns)
    tables.finish_window(profile)
    database.execute("COMMIT")


class TableWriter:
    """A writer that adds rows to the tables of one recording."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._count: dict[str, int] = {}
        self._names: dict[tuple[str, object], int] = {}
        self._blocks = BlockWriter(database)
        self._frame_number = array("q")
        self._functions: dict[tuple[str, str | None, int, int], int] = {}

    def _add(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        self._database.executemany(insert_statement(table), rows)

    def _number(self, table: str) -> int:
        """Return the number of the next row of a recording's table."""
        self._count[table] = number = self._count.get(table, 0) + 1
        return number

    def _named(self, table: str, *values: object) -> int:
        """Return the number of a row that a table stores only once. The row is added if it is new."""
        known = self._names.get((table, values))
        if known is None:
            known = self._names[table, values] = self._number(table)
            self._add(table, [(known, *values)])
        return known

    def begin_window(self, beginning: JournalBeginning) -> None:
        self._add("codes", list_codes())
        self._add("name_sources", NAME_SOURCES.items())
        self._add("meta", [("title", encode_cell(beginning.title)), ("start_ns", beginning.start_ns)])
        self._add("meta", [("period_ns", beginning.period_ns)])
        self._add("options", [(name, encode_cell(value)) for name, value in sorted(beginning.options.items())])
        self._add("value_types", [(at, each.type, each.unit) for at, each in enumerate(beginning.value_types, 1)])

    def add_modules(self, modules: Iterable[ModuleInfo]) -> None:
        self._add("modules", [(self._number("modules"), *_module(module)) for module in modules])

    def add_threads(self, threads: Iterable[ThreadInfo]) -> None:
        rows = [(self._number("threads"), thread) for thread in threads]
        self._add("threads", [(number, *self._thread(thread)) for number, thread in rows])
        labels = [(number, *map(encode_cell, label)) for number, thread in rows for label in thread.labels]
        self._add("labels", labels)

    def rename_threads(self, threads: Mapping[int, ThreadInfo]) -> None:
        """Change the names and processes of a recording's threads, by the index of the thread. Their labels stay."""
        change = "UPDATE threads SET process = ?, tid = ?, started_ns = ?, name = ? WHERE id = ?"
        self._database.executemany(change, [(*self._thread(thread), at + 1) for at, thread in threads.items()])

    def _thread(self, thread: ThreadInfo) -> CellRow:
        key: ProcessKey = thread.process_key
        process = self._named("processes", key.pid, key.started or None, encode_cell(thread.process))
        return process, thread.tid, thread.started or None, encode_cell(thread.name)

    def rename_frames(self, number: int, frames: Sequence[Frame]) -> None:
        """Replace the names and lines of all frames that an earlier call of add_frames() stored.

        Args:
            number: Index of that call, from 0.
            frames: The new frames, in the order of that call.
        """
        self._blocks.replace_frames(number, self._rows(frames))
        self._functions.clear()

    def add_frames(self, frames: Sequence[Frame]) -> None:
        """Add frames to a recording file. Their module numbers are indices into the modules that were added."""
        numbers = self._blocks.add_frames(self._rows(frames))
        self._functions.clear()  # packing has renumbered the functions
        self._frame_number.frombytes(numbers.tobytes())
        marked = {int(number): frame for number, frame in zip(numbers, frames, strict=True) if frame.mark}
        self._add("marks", (_mark(number, frame) for number, frame in marked.items()))

    def _rows(self, frames: Sequence[Frame]) -> list[FrameRow]:
        places = np.array([(frame.rel, frame.pc, frame.lookup) for frame in frames], np.uint64).reshape(-1, 3)
        rel, pc, lookup = places.view(np.int64).T
        return [
            (
                frame.module + 1,
                at,
                base,
                back,
                int(frame.trust),
                int(frame.kind),
                0 if frame.lines and frame.lines[-1].function == frame.title else self._function(frame.title, None, at),
                tuple([self._line(at - line.offset, line) for line in frame.lines]),
            )
            for frame, at, base, back in zip(
                frames, rel.tolist(), (pc - rel).tolist(), (pc - lookup).tolist(), strict=True
            )
        ]

    def _line(self, start: int, line: Line) -> LineRow:
        file = 0 if line.file is None else self._blocks.add_file(line.file)
        start = to_signed(start % (1 << 64))
        source = LATER if line.later else RECORDED
        return start, self._function(line.function, line.system_name or None, start, source), file, line.line

    def _function(self, name: str, system_name: str | None, address: int, source: int = RECORDED) -> int:
        key = name, system_name, address, source
        number = self._functions.get(key)
        if number is None:
            number = self._functions[key] = self._blocks.add_function(name, system_name, source, address % (1 << 64))
        return number

    def add_stacks(self, parent: Iterable[int], frame: Iterable[int]) -> None:
        """Add nodes of the stack tree to a recording file, parents first.

        Args:
            parent: For each node 0 for the root, or n for the nth node that was added.
            frame: For each node the index of its frame.
        """
        numbers = np.frombuffer(self._frame_number, np.int64)
        self._blocks.add_stacks(np.array([*parent], np.int64), numbers[np.array([*frame], np.int64)])

    def add_samples(self, samples: SampleColumns, start_ns: int) -> None:
        """Add samples to a recording file, grouped by second.

        Args:
            samples: The samples.
            start_ns: Start of the first window. A window begins there and at each second after it.
        """
        order = np.argsort(samples.time_ns, kind="stable")
        second = (samples.time_ns[order] - start_ns) // SECOND_NS
        begins = np.flatnonzero(np.diff(second, prepend=second[:1] - 1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=False):  # no samples: no window
            self._window(samples, order[begin:end], start_ns + int(second[begin]) * SECOND_NS)

    def _window(self, samples: SampleColumns, rows: I64, start_ns: int) -> None:
        values = samples.values[rows]
        columns = [
            np.diff(samples.time_ns[rows], prepend=start_ns),
            samples.thread[rows].astype(np.int64) + 1,
            samples.stack[rows].astype(np.int64),
            None if samples.state is None else samples.state[rows].astype(np.int64),
            None if samples.cpu is None else samples.cpu[rows].astype(np.int64),
            *values.T,
        ]
        row = (self._number("windows"), start_ns, len(rows), int(values[:, -1].sum()), pack_columns(columns))
        self._add("windows", [row])

    def replace_summary(self, summary: Summary) -> None:
        """Replace the stored summary of the recording by the current one."""
        for table in SUMMARY_TABLES:
            self._database.execute(f'DELETE FROM "{table}"')
        for table, row in summary_rows(summary):
            self._add(table, [row])

    def finish_window(self, profile: Profile) -> None:
        """Write the final facts about a window, which mark the recording as complete."""
        self._add("meta", [("duration_ns", profile.duration_ns)])
        if profile.gaps:
            self._add("meta", [("gaps", ",".join(f"{begin}-{end}" for begin, end in profile.gaps))])
        for table, row in summary_rows(profile.summary):
            self._add(table, [row])
        self._add("end", [(profile.start_ns + profile.duration_ns,)])


def to_signed(address: int) -> int:
    """Convert an address to a signed number for SQLite."""
    return address - (1 << 64) if address >> 63 else address


def _module(info: ModuleInfo) -> CellRow:
    places = (to_signed(info.start), to_signed(info.end), to_signed(info.offset))
    return encode_cell(info.path), info.build_id or None, *places, int(info.has_functions), int(info.has_lines)


def _mark(number: int, frame: Frame) -> CellRow:
    mark = frame.mark
    assert mark is not None
    return number, int(mark.kind), int(mark.end), mark.enough or None, mark.unplaced, mark.without_run, mark.lacking


_WAL = b"\2\2"
"""Bytes 18 and 19 of the header of an SQLite database that has a write-ahead log."""


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
    """Create an empty recording file at a path and open it as a database. It replaces an earlier file.

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
