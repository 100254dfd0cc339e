"""Converts files of older versions to the current schema, one version after the other, before anything else is read.

The input is an untrusted database in memory, which is known to have the tables of its version. The result is a database
of the next version. The contents of cells are checked afterwards, as in any file.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.recording.checked_rows import TableRows, check_reference
from pyprof.recording.column_blocks import I64, BlockWriter, LineRow
from pyprof.recording.older_names import counter_key, note_reason, problem_reason
from pyprof.recording.schema import SCHEMA, Table, insert_statement, parse_tables
from pyprof.recording.summary_rows import note_row

_ROWS_OF_1 = """\
-- The names of functions. Names that are looked up later only change this table and lines.
CREATE TABLE functions (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL, -- demangled, or module!0xstart of a function without a name
  system_name TEXT, -- as the symbol table has it; NULL: no symbol, only its start is known
  source INTEGER NOT NULL -- name_sources.id
);

-- Source files.
CREATE TABLE files (
  id INTEGER PRIMARY KEY, -- from 1 on
  path TEXT NOT NULL -- as the debug information, or the interpreter, says
);

-- The frames of stacks: one address and what is known of it.
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, -- from 1 on
  kind INTEGER NOT NULL, -- codes: frame_kind
  trust INTEGER NOT NULL, -- codes: trust, the source that found the frame
  module INTEGER, -- modules.id; NULL: in no module
  rel INTEGER, -- pc, counted from the module's first byte; NULL: not known
  pc INTEGER, -- address as found on the stack, as a signed 64-bit number; NULL: none, as of a marker
  back INTEGER NOT NULL, -- bytes from the address that names were looked up for to pc: 1 of a return address
  title TEXT -- what to show for the frame; NULL: the name of its outermost function
);

-- The functions of a frame, innermost first: those inlined, then the one that holds them. None: no name is known.
CREATE TABLE lines (
  frame INTEGER NOT NULL, -- frames.id
  depth INTEGER NOT NULL, -- from 0, the innermost
  function INTEGER NOT NULL, -- functions.id
  "offset" INTEGER NOT NULL, -- bytes from the function's start
  file INTEGER, -- files.id; NULL: not known
  line INTEGER, -- NULL: not known
  PRIMARY KEY (frame, depth)
) WITHOUT ROWID;

-- The tree of stacks. A sample has the node of its innermost frame.
CREATE TABLE stacks (
  id INTEGER PRIMARY KEY, -- from 1 on, each parent before its children
  parent INTEGER, -- stacks.id of the caller; NULL: the outermost frame
  frame INTEGER NOT NULL -- frames.id
);
"""

_BLOCKS_OF_2 = ("function_blocks", "file_blocks", "frame_blocks", "line_blocks", "stack_blocks")

_NEW_IN_3 = ("labels",)

_UNTIL_3 = """\
-- The options with which it was recorded.
CREATE TABLE options (
  name TEXT PRIMARY KEY, -- a field of pyprof.RecordOptions
  value TEXT NOT NULL -- as text
) WITHOUT ROWID;

-- Where names come from.
CREATE TABLE name_sources (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL -- recorded: looked up by the recording itself
);
"""


_UNTIL_4 = """\
-- What was counted on the way: what was lost, skipped or refused.
CREATE TABLE counters (
  name TEXT PRIMARY KEY, -- a sentence of docs/formats.md
  count INTEGER NOT NULL -- how often
) WITHOUT ROWID;

-- What object files lack, and what helps.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, -- from 1 on
  module INTEGER NOT NULL, -- module_sums.id
  "text" TEXT NOT NULL, -- what it lacks
  remedy TEXT NOT NULL -- a command; '': nothing is known to help
);
"""

_UNTIL_5 = """\
-- Sentences for the reader of the recording.
CREATE TABLE notes (
  id INTEGER PRIMARY KEY, -- from 1 on
  "text" TEXT NOT NULL -- a sentence
);

-- What object files lack, and what helps.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, -- from 1 on
  module INTEGER NOT NULL, -- module_sums.id
  reason TEXT NOT NULL, -- identifier of docs/formats.md; '': not known
  "text" TEXT NOT NULL, -- what it lacks
  remedy TEXT NOT NULL -- a command; '': nothing is known to help
);

-- Languages whose functions were looked for.
CREATE TABLE languages (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL, -- such as Python
  remedy TEXT NOT NULL -- the option that has their functions; '': none
);

-- Processes that ran functions of a language which nobody read.
CREATE TABLE functions_missing (
  id INTEGER PRIMARY KEY, -- from 1 on
  language TEXT NOT NULL, -- such as Python
  value INTEGER NOT NULL, -- the primary value of those stacks
  remedy TEXT NOT NULL, -- the option that has them; '': none
  kernel INTEGER NOT NULL -- 1: the kernel's frames were asked for, which stops cannot see
);
"""


def tables_of(version: int) -> dict[str, Table]:
    """Return the tables of a recording file, by its format version."""
    since: dict[int, tuple[str, ...]] = {2: _BLOCKS_OF_2, 3: _NEW_IN_3}
    new = {name for later, names in since.items() if later > version for name in names}
    found = {name: table for name, table in parse_tables().items() if name not in new}
    if version <= 3:
        found |= parse_tables(_UNTIL_3)
    if version <= 5:
        found |= parse_tables(_UNTIL_5)
    if version <= 4:
        found |= parse_tables(_UNTIL_4)
    return found | parse_tables(_ROWS_OF_1) if version == 1 else found


def upgrade(database: sqlite3.Connection, version: int, size: int) -> None:
    """Convert the database of an older recording file to the current version.

    Args:
        database: The database.
        version: Format version of the file.
        size: Size of the file in bytes.

    Raises:
        FormatError: A row is invalid.
        sqlite3.Error: The database is broken.
    """
    while step := _UPGRADES.get(version):
        step(database, size)
        version += 1


def _to_2(database: sqlite3.Connection, size: int) -> None:
    """Convert a recording file's rows of frames, functions, files and stacks to blocks (format version 2)."""
    rows = TableRows(database, size, tables_of(1))
    for name in _BLOCKS_OF_2:
        database.execute(parse_tables(SCHEMA)[name].sql)
    blocks = BlockWriter(database)
    try:
        numbers = _frames(rows, blocks)
        _stacks(rows, blocks, numbers)
    except OverflowError:
        raise FormatError("frames", 0, "a number is none that an address can be") from None
    marks = [
        (int(numbers[check_reference("marks", 0, frame, len(numbers) - 1) + 1]), *rest)
        for frame, *rest in rows("marks")
    ]
    database.execute("DELETE FROM marks")
    database.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)", marks)
    for name in parse_tables(_ROWS_OF_1):
        database.execute(f"DROP TABLE {name}")


def _frames(rows: TableRows, blocks: BlockWriter) -> I64:
    """Convert the frames of an old recording file. Return the new frame numbers by old ones; number 0 stands for no
    frame.
    """
    stored, functions = rows("frames"), rows("functions")
    files = [blocks.add_file(path) for _, path in rows("files")]
    lines: dict[int, list[LineRow]] = {}
    for nth, (frame, depth, function, offset, file, line) in enumerate(rows("lines"), 1):
        rel = stored[check_reference("lines", nth, frame, len(stored))][4] or 0
        _, name, system_name, source = functions[check_reference("lines", nth, function, len(functions))]
        of_frame = lines.setdefault(frame, [])
        if depth != len(of_frame):
            raise FormatError("lines", nth, "functions of a frame are not in order from 0 on")
        start = _signed(rel - offset)
        path = 0 if file is None else files[check_reference("lines", nth, file, len(files))]
        of_frame.append((start, blocks.add_function(name, system_name, source, start % (1 << 64)), path, line or 0))
    frames = []
    for at, kind, trust, module, rel, pc, back, title in stored:
        place = rel or 0
        named = 0 if title is None else blocks.add_function(title, None, 1, place % (1 << 64))
        base = _signed((pc or 0) - place)
        frames.append((module or 0, place, base, back, trust, kind, named, tuple(lines.get(at, ()))))
    return np.concatenate([[0], blocks.add_frames(frames)])


def _stacks(rows: TableRows, blocks: BlockWriter, numbers: I64) -> None:
    stored = rows("stacks")
    for at, parent, frame in stored:
        if not 0 <= (parent or 0) < at or not 1 <= frame < len(numbers):
            raise FormatError("stacks", at, "refers to a row that is not before it")
    nodes = np.array([(parent or 0, frame) for _, parent, frame in stored], np.int64).reshape(-1, 2)
    blocks.add_stacks(nodes[:, 0], numbers[nodes[:, 1]])


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _to_3(database: sqlite3.Connection, size: int) -> None:
    """Add the table of labels, which is empty, to an old recording file (format version 3)."""
    for name in _NEW_IN_3:
        database.execute(parse_tables()[name].sql)


def _to_4(database: sqlite3.Connection, size: int) -> None:
    """Replace two tables of an old recording file whose description changed (format version 4). Their rows stay the
    same.
    """
    for name in parse_tables(_UNTIL_3):
        kept = database.execute(f"SELECT * FROM {name}").fetchall()
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
        database.executemany(f"INSERT INTO {name} VALUES (?, ?)", kept)


def _to_5(database: sqlite3.Connection, size: int) -> None:
    """Replace the sentences of counters by identifiers, and add those of problems (format version 5)."""
    rows = TableRows(database, size, tables_of(4))
    counters: Counter[str] = Counter()
    for name, count in rows("counters"):
        counters[counter_key(name)] += count
    problems = rows("problems")
    for name in parse_tables(_UNTIL_4):
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
    try:
        database.executemany("INSERT INTO counters VALUES (?, ?)", counters.items())
    except OverflowError:
        raise FormatError("counters", 0, "a number that no recording has") from None
    database.executemany(
        "INSERT INTO problems VALUES (?, ?, ?, ?, ?)",
        [(at, module, problem_reason(text), text, remedy) for at, module, text, remedy in problems],
    )


def _to_6(database: sqlite3.Connection, size: int) -> None:
    """Replace the sentences of notes by identifiers and arguments, and rename the columns of hints (format version
    6).
    """
    rows = TableRows(database, size, tables_of(5))
    for name in parse_tables(_UNTIL_5):
        kept = rows(name)
        if name == "notes":
            kept = [note_row(at, _find_note(text)) for at, text in kept]
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
        database.executemany(insert_statement(name), kept)


def _find_note(text: str) -> Note:
    reason = note_reason(text)
    return make_note(reason) if reason else make_note("older_sentence", text=text)


_UPGRADES: dict[int, Callable[[sqlite3.Connection, int], None]] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5, 5: _to_6}
"""Functions that convert a recording file to the next format version, by the version that they start from."""
