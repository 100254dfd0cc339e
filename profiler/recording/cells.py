"""The rows of a recording file, which is foreign input: each cell has the type that the schema says.

A file cannot hold more rows or texts than it has bytes. So what is read is bounded by its size, whatever its pages say.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import NoneType
from typing import Any

from pyprof.errors import FormatError
from pyprof.recording.schema import Column, Table, tables

CellRow = tuple[Any, ...]

_LEAST_ROW = 2
"""Bytes that a row takes at least."""
_TOGETHER = 4096
"""Rows that are checked at once."""

_ALLOWED: dict[str, set[type]] = {
    "TEXT": {str, bytes},
    "INTEGER": {int},
    "BLOB": {bytes},
    "": {int, float, str, bytes},
}
"""The types of a column's cells by its kind."""


def cell(value: str) -> str | bytes:
    """A text as it is stored: as bytes where it holds bytes that are no UTF-8, such as a path may."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


class TableRows:
    """Called with a table's name it gives its rows, in order. Raises FormatError (table, row)."""

    def __init__(self, database: sqlite3.Connection, size: int, described: Mapping[str, Table] | None = None) -> None:
        """size: of the file, bytes. described: the tables of another version."""
        self._database = database
        self._tables = tables() if described is None else described
        self._rows_left = size // _LEAST_ROW
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
        """The cells of one column, of rows after the first `before` ones."""
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


def referred(table: str, row: int, number: int, count: int) -> int:
    """A reference to a row of another table, as an index from 0 on. count: of that table's rows."""
    if not 1 <= number <= count:
        raise FormatError(table, row, f"refers to a row {number} that does not exist")
    return number - 1
