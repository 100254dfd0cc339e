"""A recording for SQL: views with the samples and the names, made by the reader. docs/recording.md has queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import PathLike, fspath

import numpy as np

from pyprof.errors import FormatError, RecordingError
from pyprof.exporters.utf8 import dumps
from pyprof.recording.columns import unpack
from pyprof.recording.opening import opened
from pyprof.recording.reader import KEYS, MOST_VALUES

_MOST_OF_WINDOW = 1 << 22
"""Samples of a second that a query unpacks: what a file claims must not fill the memory."""

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
LEFT JOIN functions ON functions.id = lines.function;

CREATE TEMP VIEW stack_frames AS WITH RECURSIVE up(stack, depth, frame, parent) AS (
  SELECT id, 0, frame, parent FROM stacks
  UNION ALL
  SELECT up.stack, up.depth + 1, stacks.frame, stacks.parent FROM up JOIN stacks ON stacks.id = up.parent
) SELECT stack, depth, frame FROM up;
"""


@contextmanager
def queried(path: str | PathLike[str]) -> Iterator[sqlite3.Connection]:
    """A copy of the recording in memory, with the views. Raises RecordingError."""
    name = fspath(path)
    database, _ = opened(name)
    with closing(database):
        try:
            (types,) = database.execute("SELECT count(*) FROM value_types").fetchone()

            def unpacked(data: bytes, samples: int) -> str:
                if types > MOST_VALUES or samples > _MOST_OF_WINDOW:
                    raise RecordingError(f"{name} is broken: more samples or values than it has room for")
                try:
                    columns = unpack(data, samples, KEYS + types)
                except FormatError as error:
                    raise RecordingError(f"{name} is broken: {error}") from None
                if columns[0] is not None:
                    columns[0] = np.cumsum(columns[0])
                lists = [[None] * samples if column is None else column.tolist() for column in columns]
                return dumps(list(zip(*lists, strict=True))).decode()

            database.create_function("unpacked", 2, unpacked, deterministic=True)
            database.executescript(VIEWS)
        except sqlite3.Error as error:
            raise RecordingError(f"{name} is broken: {error}") from None
        yield database
