"""The tables of a recording file: one SQL text, from which the file, its check and docs/sql.md are made.

History of versions. 1: first version. 2: frames, functions, files and stacks are packed as blocks instead of one row
each; upgrades.py has the tables of version 1. 3: labels. 4: options of the command, in addition to those of the
library. 5: counters and problems have identifiers; upgrades.py has the sentences of earlier versions. 6: notes have
identifiers and arguments.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache

from pyprof.lazy_dataclasses import dataclass

APPLICATION_ID = 0x70797072
"""SQLite application id of recording files: the letters "pypr"."""
VERSION = 6

SCHEMA = """\
-- What the recording is. Keys: title; start_ns: since the epoch; duration_ns; period_ns: of sampling; gaps: FROM-TO,…
CREATE TABLE meta (
  key TEXT PRIMARY KEY, -- name of the fact
  value NOT NULL -- text or integer
) WITHOUT ROWID;

-- The options with which it was recorded. What a command was given is not there: it may hold secrets.
CREATE TABLE options (
  name TEXT PRIMARY KEY, -- of RecordOptions, TargetOptions, or command, stub, delay, every, last, trigger, max_size
  value TEXT NOT NULL -- as text
) WITHOUT ROWID;

-- What the numbers of a code mean. A reader goes by the names, not by the numbers.
CREATE TABLE codes (
  code TEXT NOT NULL, -- which column: frame_kind, trust, mark_kind, stack_end, and the bits of state
  number INTEGER NOT NULL, -- as it stands in that column
  name TEXT NOT NULL, -- its meaning
  PRIMARY KEY (code, number)
) WITHOUT ROWID;

-- What the values of a sample are. The last one is the primary value, which pictures show.
CREATE TABLE value_types (
  id INTEGER PRIMARY KEY, -- from 1 on
  type TEXT NOT NULL, -- samples, cpu, wall or offcpu
  unit TEXT NOT NULL -- count or nanoseconds
);

-- The processes. Two that had the same pid are two rows.
CREATE TABLE processes (
  id INTEGER PRIMARY KEY, -- from 1 on
  pid INTEGER NOT NULL, -- process id
  started_ns INTEGER, -- when its first thread began, by CLOCK_MONOTONIC; NULL: not known
  name TEXT NOT NULL -- of the process
);

-- The threads, in order of pid, tid and start.
CREATE TABLE threads (
  id INTEGER PRIMARY KEY, -- from 1 on
  process INTEGER NOT NULL, -- processes.id
  tid INTEGER NOT NULL, -- thread id
  started_ns INTEGER, -- when it began, by CLOCK_MONOTONIC; NULL: not known
  name TEXT NOT NULL -- as the thread, or its interpreter, says
);

-- What the user who recorded a thread said of it.
CREATE TABLE labels (
  thread INTEGER NOT NULL, -- threads.id
  name TEXT NOT NULL, -- as in --label NAME=VALUE
  value TEXT NOT NULL, -- text
  PRIMARY KEY (thread, name)
) WITHOUT ROWID;

-- Object files where they were mapped.
CREATE TABLE modules (
  id INTEGER PRIMARY KEY, -- from 1 on
  path TEXT NOT NULL, -- as in /proc/PID/maps
  build_id TEXT, -- in hex; NULL: it has none, or none is known
  start INTEGER NOT NULL, -- first address of the executable mapping, as a signed 64-bit number
  "end" INTEGER NOT NULL, -- first address behind it
  "offset" INTEGER NOT NULL, -- of the mapping in the file, bytes
  has_functions INTEGER NOT NULL, -- 1: some frame got a name from it
  has_lines INTEGER NOT NULL -- 1: some frame got a line from it
);

-- Where names come from.
CREATE TABLE name_sources (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL -- recorded: looked up by the recording itself; report: later, by pprof report
);

-- The names of functions, packed. A block continues the numbers of the one before: the first name is 1.
CREATE TABLE function_blocks (
  id INTEGER PRIMARY KEY, -- from 1 on
  count INTEGER NOT NULL, -- how many names
  data BLOB NOT NULL -- their columns and texts, packed as described above
);

-- The paths of source files, packed.
CREATE TABLE file_blocks (
  id INTEGER PRIMARY KEY, -- from 1 on
  count INTEGER NOT NULL, -- how many files
  data BLOB NOT NULL -- their columns and texts, packed as described above
);

-- The frames of stacks, packed: one address and what is known of it.
CREATE TABLE frame_blocks (
  id INTEGER PRIMARY KEY, -- from 1 on
  count INTEGER NOT NULL, -- how many frames
  data BLOB NOT NULL -- their columns, packed as described above
);

-- The functions of frames, packed: of all frames in order, innermost first.
CREATE TABLE line_blocks (
  id INTEGER PRIMARY KEY, -- as of the block of their frames
  count INTEGER NOT NULL, -- how many functions
  data BLOB NOT NULL -- their columns, packed as described above
);

-- What markers say: frames without code where a stack lacks something.
CREATE TABLE marks (
  frame INTEGER PRIMARY KEY, -- frames.id
  kind INTEGER NOT NULL, -- codes: mark_kind
  stack_end INTEGER NOT NULL, -- codes: stack_end, why the stack ends there
  enough INTEGER, -- bytes of stack, or frames, that would have been enough; NULL: not known
  unplaced INTEGER NOT NULL, -- runs of an interpreter's frames that stand by their order only
  without_run INTEGER NOT NULL, -- activations of the evaluator without a run
  lacking INTEGER NOT NULL -- an interpreter's functions that are missing, about
);

-- The tree of stacks, packed. A sample has the node of its innermost frame.
CREATE TABLE stack_blocks (
  id INTEGER PRIMARY KEY, -- from 1 on
  count INTEGER NOT NULL, -- how many nodes
  data BLOB NOT NULL -- their columns, packed as described above
);

-- Samples, those of one second in a row.
CREATE TABLE windows (
  id INTEGER PRIMARY KEY, -- from 1 on
  start_ns INTEGER NOT NULL, -- since the epoch; the end is a second later
  samples INTEGER NOT NULL, -- how many rows data has
  value INTEGER NOT NULL, -- the sum of their primary values
  data BLOB NOT NULL -- their columns, packed as described below
);

-- What the recording did, in numbers: fields of `--summary`. In one that was interrupted: what it had done by then.
CREATE TABLE summary (
  name TEXT PRIMARY KEY, -- of the number
  value -- integer, real or text
) WITHOUT ROWID;

-- What was counted on the way: what was lost, skipped or refused.
CREATE TABLE counters (
  name TEXT PRIMARY KEY, -- identifier of docs/formats.md; a detail may follow it: name:detail
  count INTEGER NOT NULL -- how often
) WITHOUT ROWID;

-- How stacks ended.
CREATE TABLE ends (
  label TEXT PRIMARY KEY, -- as in docs/formats.md
  samples INTEGER, -- how many samples; NULL: it is no end of samples
  value INTEGER -- how much of the primary value; NULL: it is no end of what is shown
) WITHOUT ROWID;

-- By what frames were found.
CREATE TABLE frame_sources (
  label TEXT PRIMARY KEY, -- as in docs/formats.md
  frames INTEGER NOT NULL -- of all samples
) WITHOUT ROWID;

-- What each object file had of the samples, wherever it was mapped.
CREATE TABLE module_sums (
  id INTEGER PRIMARY KEY, -- from 1 on, most frames first
  path TEXT NOT NULL, -- as in modules
  build_id TEXT, -- as in modules
  frames INTEGER NOT NULL, -- of samples that lay in it
  own INTEGER NOT NULL -- the primary value of samples that were taken in it
);

-- What object files lack, and what helps.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, -- from 1 on
  module INTEGER NOT NULL, -- module_sums.id
  reason TEXT NOT NULL, -- identifier of docs/formats.md; '': not known
  "text" TEXT NOT NULL, -- what it lacks
  hint TEXT NOT NULL -- a command; '': nothing is known to help
);

-- How the recording was made, and what it lacks as a whole.
CREATE TABLE notes (
  id INTEGER PRIMARY KEY, -- from 1 on
  reason TEXT NOT NULL, -- identifier of docs/formats.md; older_sentence: of an older version, with its text
  arguments TEXT NOT NULL -- what stands in the sentence of the reason, as a JSON object of numbers and texts
);

-- Languages whose functions were looked for.
CREATE TABLE languages (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL, -- such as Python
  hint TEXT NOT NULL -- the option that has their functions; '': none
);

-- The native functions that run a language's functions.
CREATE TABLE evaluators (
  id INTEGER PRIMARY KEY, -- from 1 on
  language INTEGER NOT NULL, -- languages.id
  prefix TEXT NOT NULL -- how their names begin
);

-- Processes that ran functions of a language which nobody read.
CREATE TABLE functions_missing (
  id INTEGER PRIMARY KEY, -- from 1 on
  language TEXT NOT NULL, -- such as Python
  value INTEGER NOT NULL, -- the primary value of those stacks
  hint TEXT NOT NULL, -- the option that has them; '': none
  kernel INTEGER NOT NULL -- 1: the kernel's frames were asked for, which stops cannot see
);

-- The pids of those processes.
CREATE TABLE functions_missing_pids (
  missing INTEGER NOT NULL, -- functions_missing.id
  pid INTEGER NOT NULL, -- process id
  PRIMARY KEY (missing, pid)
) WITHOUT ROWID;

-- One row in a recording that is whole. None: it was interrupted, and ends with the last window that was written.
CREATE TABLE "end" (
  ended_ns INTEGER PRIMARY KEY -- since the epoch
);
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a recording file's table. `meaning` is its comment in the schema."""

    name: str
    type: str
    meaning: str

    @property
    def kind(self) -> str:
        """The type of a recording column's cells: TEXT, INTEGER, BLOB, or "" for any."""
        word = self.type.partition(" ")[0]
        return "" if word == "NOT" else word

    @property
    def required(self) -> bool:
        """True if the cells of the column may not be NULL."""
        return "NOT NULL" in self.type or "PRIMARY KEY" in self.type


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a recording file. `sql` is the statement as SQLite stores it."""

    name: str
    sql: str
    meaning: str
    columns: tuple[Column, ...]


_TABLE = re.compile(
    r'-- (?P<meaning>[^\n]*)\n(?P<sql>CREATE TABLE "?(?P<name>\w+)"? \(\n(?P<body>.*?)\n\)[^;]*);', re.DOTALL
)
_COLUMN = re.compile(r'  "?(\w+)"? ?([A-Z ]*?),? -- (.*)')


@cache
def parse_tables(schema: str = SCHEMA) -> dict[str, Table]:
    """Return the tables of an SQL schema by name, in the order of the schema."""
    return {
        found["name"]: Table(
            found["name"],
            found["sql"],
            found["meaning"],
            tuple(Column(*match.groups()) for match in _COLUMN.finditer(found["body"])),
        )
        for found in _TABLE.finditer(schema)
    }


def insert_statement(table: str) -> str:
    """Return the SQL statement that adds a row to a table."""
    return f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(parse_tables()[table].columns))})'


PAGE = 512
"""SQLite page size of recording files, in bytes. It is small, because a recording has thirty tables, each of which
takes at least one page.
"""


def create_tables(database: sqlite3.Connection) -> None:
    """Create the tables of a recording in an empty database."""
    database.execute(f"PRAGMA page_size = {PAGE}")
    database.executescript(SCHEMA)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {VERSION}")
