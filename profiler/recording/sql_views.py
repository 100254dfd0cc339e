"""SQL access to a recording: views of the samples and the names. docs/sql.md has queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from os import PathLike, fspath

import numpy as np

from pyprof.errors import FormatError, RecordingError
from pyprof.model.untrusted_text import dump_json
from pyprof.recording.checked_rows import TableRows, check_reference
from pyprof.recording.column_blocks import I64, Blocks, FrameColumns, FunctionName, LineColumns, unpack_columns
from pyprof.recording.reader import KEYS, MAX_VALUES, to_unsigned
from pyprof.recording.untrusted_recording import open_recording

_MAX_OF_WINDOW = 1 << 22
"""Maximum number of samples of one second of a recording that a query unpacks, so that an untrusted count cannot
exhaust memory.
"""

TABLES = """\
CREATE TEMP TABLE functions (id INTEGER PRIMARY KEY, name TEXT NOT NULL, system_name TEXT, source INTEGER NOT NULL);
CREATE TEMP TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TEMP TABLE frames (
  id INTEGER PRIMARY KEY, kind INTEGER, trust INTEGER, module INTEGER, rel INTEGER, pc INTEGER, back INTEGER, title TEXT
);
CREATE TEMP TABLE lines (
  frame INTEGER, depth INTEGER, function INTEGER, "offset" INTEGER, file INTEGER, line INTEGER,
  PRIMARY KEY (frame, depth)
) WITHOUT ROWID;
CREATE TEMP TABLE stacks (id INTEGER PRIMARY KEY, parent INTEGER, frame INTEGER);
"""
"""SQL statements for temporary tables, which have one row for each item of a recording file's packed blocks."""

VIEWS = """\
CREATE TEMP VIEW samples AS SELECT
  window.id AS window,
  json_extract(sample.value, '$[0]') + window.start_ns AS time_ns,
  json_extract(sample.value, '$[1]') AS thread,
  nullif(json_extract(sample.value, '$[2]'), 0) AS stack,
  json_extract(sample.value, '$[3]') AS state,
  nullif(json_extract(sample.value, '$[4]'), -1) AS cpu,
  json_extract(sample.value, '$[5]') AS "count",
  json_extract(sample.value, '$[#-1]') AS value
FROM windows AS window, json_each(unpacked(window.data, window.samples)) AS sample;

CREATE TEMP VIEW frame_names AS SELECT
  frames.id AS frame,
  coalesce(frames.title, functions.name) AS name,
  coalesce(innermost_functions.name, frames.title) AS innermost,
  modules.path AS module,
  kinds.name AS kind,
  trusts.name AS trust
FROM frames
LEFT JOIN modules ON modules.id = frames.module
LEFT JOIN codes AS kinds ON kinds.code = 'frame_kind' AND kinds.number = frames.kind
LEFT JOIN codes AS trusts ON trusts.code = 'trust' AND trusts.number = frames.trust
LEFT JOIN lines ON lines.frame = frames.id AND lines.depth = (
  SELECT max(depth) FROM lines AS inner_lines WHERE inner_lines.frame = frames.id
)
LEFT JOIN functions ON functions.id = lines.function
LEFT JOIN lines AS innermost_lines ON innermost_lines.frame = frames.id AND innermost_lines.depth = 0
LEFT JOIN functions AS innermost_functions ON innermost_functions.id = innermost_lines.function;

CREATE TEMP VIEW stack_frames AS WITH RECURSIVE up(stack, depth, frame, parent) AS (
  SELECT id, 0, frame, parent FROM stacks
  UNION ALL
  SELECT up.stack, up.depth + 1, stacks.frame, stacks.parent FROM up JOIN stacks ON stacks.id = up.parent
) SELECT stack, depth, frame FROM up;

CREATE TEMP VIEW stack_functions AS SELECT
  stack,
  stack_frames.depth AS depth,
  coalesce(lines.depth, 0) AS inlined,
  stack_frames.frame AS frame,
  coalesce(functions.name, frames.title) AS name
FROM stack_frames JOIN frames ON frames.id = stack_frames.frame
LEFT JOIN lines ON lines.frame = frames.id
LEFT JOIN functions ON functions.id = lines.function;
"""


@contextmanager
def open_query(path: str | PathLike[str]) -> Iterator[sqlite3.Connection]:
    """Open a copy of a recording in memory for queries, with the views.

    Raises:
        RecordingError: The file is no recording, broken or too new.
    """
    name = fspath(path)
    database, size = open_recording(name)
    with closing(database):
        try:
            (types,) = database.execute("SELECT count(*) FROM value_types").fetchone()

            def unpacked(data: bytes, samples: int) -> str:
                if types > MAX_VALUES or samples > _MAX_OF_WINDOW:
                    raise RecordingError(f"{name} is broken: more samples or values than it has room for")
                try:
                    columns = unpack_columns(data, samples, KEYS + types)
                except FormatError as error:
                    raise RecordingError(f"{name} is broken: {error}") from None
                if columns[0] is not None:
                    columns[0] = np.cumsum(columns[0])
                lists = [[None] * samples if column is None else column.tolist() for column in columns]
                return dump_json(list(zip(*lists, strict=True))).decode()

            database.create_function("unpacked", 2, unpacked, deterministic=True)
            database.executescript(TABLES)
            _fill(database, Blocks(TableRows(database, size), size))
            database.executescript(VIEWS)
        except FormatError as error:
            raise RecordingError(f"{name} is broken: {error}") from None
        except sqlite3.Error as error:
            raise RecordingError(f"{name} is broken: {error}") from None
        database.set_authorizer(_harmless)
        yield database


def _harmless(action: int, *_: object) -> int:
    """Authorize SQL statements except those that open another file: ATTACH, and VACUUM, which attaches one."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _fill(database: sqlite3.Connection, blocks: Blocks) -> None:
    """Store the frames, functions and stacks of a recording file's blocks in temporary tables, which the views for SQL
    queries read.

    Raises:
        FormatError: A block is invalid.
    """

    def add(table: str, rows: Iterable[Sequence[object]], columns: int) -> None:
        database.executemany(f"INSERT INTO temp.{table} VALUES ({', '.join('?' * columns)})", rows)

    names, files = blocks.unpack_functions(), blocks.unpack_files()
    frames, columns = blocks.unpack_frames()
    _refer("frames", frames.module, database.execute("SELECT count(*) FROM modules").fetchone()[0])
    _refer("lines", columns.file, len(files))
    lines, functions = _functions(frames, columns, names)
    add("lines", lines, 6)
    add("functions", functions, 4)
    add("files", enumerate(files, 1), 2)
    add("frames", _frames(frames, names), 8)
    nodes = blocks.unpack_stacks(len(frames.module))[1:]
    add("stacks", ((at, parent or None, frame) for at, (parent, frame) in enumerate(nodes.tolist(), 1)), 3)


def _refer(table: str, numbers: I64, count: int) -> None:
    """Check that references to rows of a recording's table are valid; 0 refers to no row.

    Raises:
        FormatError: A referenced row does not exist.
    """
    if int(numbers.min(initial=0)) < 0 or int(numbers.max(initial=0)) > count:
        raise FormatError(table, 0, "refers to a row that does not exist")


def _functions(
    frames: FrameColumns, lines: LineColumns, names: Sequence[FunctionName]
) -> tuple[list[Sequence[object]], list[Sequence[object]]]:
    """Return the rows of the query views `lines` and `functions`.

    A name with an appended address is a separate function for each address.
    """
    of_frame = np.repeat(np.arange(len(frames.lines)), frames.lines)
    depth = np.arange(len(of_frame)) - (np.cumsum(frames.lines) - frames.lines)[of_frame]
    columns = of_frame + 1, depth, lines.start, lines.function, frames.rel[of_frame] - lines.start
    numbers: dict[tuple[int, int], int] = {}
    found: list[Sequence[object]] = []
    for row in zip(*(column.tolist() for column in (*columns, lines.file, lines.line)), strict=True):
        frame, at, start, number, offset, file, line = row
        name = names[check_reference("lines", frame, number, len(names))]
        function = numbers.setdefault((number, start if name.addressed else 0), len(numbers) + 1)
        found.append((frame, at, function, offset, file or None, line or None))
    functions: list[Sequence[object]] = []
    for (number, start), function in numbers.items():
        name = names[number - 1]
        functions.append((function, name.format_name(to_unsigned(start)), name.system_name, name.source))
    return found, functions


def _frames(frames: FrameColumns, names: Sequence[FunctionName]) -> Iterator[Sequence[object]]:
    columns = frames.kind, frames.trust, frames.module, frames.rel, frames.base + frames.rel, frames.back, frames.title
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for at, (kind, trust, module, rel, pc, back, title) in enumerate(rows, 1):
        name = names[check_reference("frames", at, title, len(names))].format_name(to_unsigned(rel)) if title else None
        yield at, kind, trust, module or None, rel if module or rel else None, pc or None, back, name
