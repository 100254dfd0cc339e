"""Reads the rows of a recording file, which is untrusted input: the type of each cell, and numbers that stand for
names.

A file cannot contain more rows or text than its size allows. So the size of the file limits what is read, whatever the
file's pages claim.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from enum import IntEnum, IntFlag
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import FrameKind
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.recording.schema import Column, Table, parse_tables

CellRow = tuple[Any, ...]

_MIN_ROW = 2
"""Minimum number of bytes that a row of a table takes in a recording file."""
_TOGETHER = 4096
"""Number of rows of a recording's table that are fetched and checked at once."""

_ALLOWED: dict[str, set[type]] = {
    "TEXT": {str, bytes},
    "INTEGER": {int},
    "BLOB": {bytes},
    "": {int, float, str, bytes},
}
"""Permitted types of a cell in a recording file, by the kind of its column."""


def encode_cell(value: str) -> str | bytes:
    """Return a text as a recording file stores it. A text with bytes that are not UTF-8, such as a file path may have,
    is stored as bytes.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


class TableRows:
    """A reader of one recording file. Called with the name of a table, it returns the rows in order.

    Raises:
        FormatError: A cell is invalid. The error names the table and the row.
    """

    def __init__(self, database: sqlite3.Connection, size: int, described: Mapping[str, Table] | None = None) -> None:
        """Create a reader of the rows of an untrusted recording file.

        Args:
            database: The database.
            size: Size of the file in bytes.
            described: The tables of another version, None for the current one.
        """
        self._database = database
        self._tables = parse_tables() if described is None else described
        self._rows_left = size // _MIN_ROW
        self._bytes_left = size

    def __call__(self, table: str) -> list[CellRow]:
        columns = self._tables[table].columns
        found: list[CellRow] = []
        try:
            cursor = self._database.execute(f'SELECT * FROM "{table}"')
            while rows := cursor.fetchmany(_TOGETHER):
                self._rows_left -= len(rows)
                checked = [
                    self._checked(table, len(found), column, cells)
                    for column, cells in zip(columns, zip(*rows, strict=True), strict=True)
                ]
                if columns[0].name == "id" and list(checked[0]) != [*range(len(found) + 1, len(found) + len(rows) + 1)]:
                    raise FormatError(table, len(found) + 1, "numbers are not in order from 1 on")
                found += zip(*checked, strict=True)
        except (sqlite3.Error, UnicodeError) as error:
            raise FormatError(table, len(found), str(error)) from None
        return found

    def _checked(self, table: str, before: int, column: Column, cells: CellRow) -> CellRow:
        """Return some cells of one column of a recording's table, with their types checked and texts decoded.

        Args:
            table: Name of the table.
            before: Number of rows of the table before these.
            column: The column.
            cells: The cells of this column in the next rows.
        """
        kinds = set(map(type, cells))
        allowed = _ALLOWED[column.kind]
        if not kinds <= (allowed if column.required else allowed | {NoneType}):
            raise FormatError(table, before + 1, f"{column.name} has cells of another type")
        if not kinds <= {int, float, NoneType}:
            self._bytes_left -= sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
        if self._rows_left < 0 or self._bytes_left < 0:
            raise FormatError(table, before, "more rows than the file has room for")
        if bytes in kinds and column.kind != "BLOB":
            return tuple(_decoded(table, before, cell) if isinstance(cell, bytes) else cell for cell in cells)
        return cells


def _decoded(table: str, before: int, cell: bytes) -> str:
    try:
        return cell.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FormatError(table, before, f"a text is none: {error}") from None


def check_reference(table: str, row: int, number: int, count: int) -> int:
    """Check a reference to a row of another table of a recording file, and return it as an index from 0.

    Args:
        table: Table with the reference.
        row: Row with the reference.
        number: The reference.
        count: Number of rows of the other table.
    """
    if not 1 <= number <= count:
        raise FormatError(table, row, f"refers to a row {number} that does not exist")
    return number - 1


RECORDED, LATER = 1, 2
"""Values of name_sources.id: RECORDED for names that the recording itself resolved, LATER for others."""
NAME_SOURCES = {RECORDED: "recorded", LATER: "report"}
_CODES: dict[str, type[IntEnum] | type[IntFlag]] = {
    "frame_kind": FrameKind,
    "trust": Trust,
    "mark_kind": MarkKind,
    "stack_end": StackEnd,
    "state": SampleState,
}


def list_codes() -> Iterator[CellRow]:
    for code, members in _CODES.items():
        for member in members:
            yield code, int(member), str(member.name).lower()


class Codes:
    """The meaning of the numbers that stand for names, such as kinds of frames, in one recording file (table `codes`).

    Names that a newer pyprof added are unknown, and rows that use them are refused.
    """

    def __init__(self, rows: TableRows) -> None:
        """Read the names and numbers in the table `codes` of a recording file.

        Raises:
            FormatError: A row is invalid.
        """
        self._known: dict[str, dict[int, int]] = {code: {} for code in _CODES}
        for code, number, name in rows("codes"):
            members = {str(member.name).lower(): int(member) for member in _CODES.get(code, ())}
            if name in members:
                self._known[code][number] = members[name]

    def code_map(self, code: str) -> Mapping[int, int]:
        """Return a dict that translates one kind of numbers, such as kinds of frames, from those of the recording file
        to those of this version.

        Args:
            code: Name of the kind in the table `codes`.
        """
        return self._known[code]

    def convert_states(self, state: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Convert sample states in a recording file to the bits of this version's SampleState."""
        found = np.zeros(len(state), np.int32)
        for theirs, ours in self._known["state"].items():
            found |= np.where(state & theirs, ours, 0).astype(np.int32)
        return found
