"""Packs numerous items of a recording as columns of blocks: frames, their functions, names and stacks.

docs/sql.md describes the columns.

The frames of a block are sorted by module and address, so that each is stored as a small difference from the one
before. A node of the tree stores the difference of its frame number from the previous frame that the same caller
called.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pyprof.recording.column_codec import I64, pack_columns
from pyprof.recording.schema import insert_statement

FUNCTION_COLUMNS = 4
FRAME_COLUMNS = 8
LINE_COLUMNS = 4
STACK_COLUMNS = 2

NO_ROWS: I64 = np.zeros(0, np.int64)
NO_TEXT = -1
SAME_TEXT = -2
"""Values in a recording file that replace the length of a system name: NO_TEXT if the name is unknown, SAME_TEXT if it
equals the function's name.
"""

LineRow = tuple[int, int, int, int]
"""Row of a function in a recorded frame: start address, function, file, line."""


FrameRow = tuple[int, int, int, int, int, int, int, tuple[LineRow, ...]]
"""Row of a recorded frame: module, rel, base (pc minus rel), back, trust, kind, title, functions; all as numbers of the
file.
"""


class BlockWriter:
    """A writer that packs frames, functions and stacks of a recording in the order of their arrival.

    Numbers are those of the file and begin at 1. Numbers of functions may change until the frames that use them are
    packed.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._blocks: dict[str, int] = {}
        self._functions: dict[tuple[str, str | None, int, bool], int] = {}
        self._files: dict[str, int] = {}
        self._new_functions: list[tuple[str, str | None, int, bool]] = []
        self._new_files: list[str] = []
        self._frames = 0
        self._made_of: list[I64] = []
        self._node_frame = array("q", [0])

    def add_function(self, name: str, system_name: str | None, source: int, address: int) -> int:
        """Return the number of a function name in the recording file, and add it if it is new. A name that ends in the
        address is stored without it.

        Args:
            name: The name.
            system_name: The mangled name, None if it is unknown.
            source: Number of the source of the name.
            address: Start address of the function.
        """
        digits = f"{address:#x}"
        ends = name.endswith(digits)
        row = name.removesuffix(digits) if ends else name, system_name, source, ends
        number = self._functions.get(row)
        if number is None:
            number = self._functions[row] = len(self._functions) + 1
            self._new_functions.append(row)
        return number

    def add_file(self, path: str) -> int:
        """Return the number of a source file in the recording file, and add the source file if it is new."""
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self._files) + 1
            self._new_files.append(path)
        return number

    def add_frames(self, rows: Sequence[FrameRow]) -> I64:
        """Add a block of frames and their functions to a recording file. Return the frame numbers; equal frames get the
        same number.
        """
        if not rows:
            self._made_of.append(NO_ROWS)
            return NO_ROWS
        first: dict[FrameRow, int] = {}
        unique = np.array([first.setdefault(row, len(first)) for row in rows], np.int64)
        module, rel, base, back = np.array([row[:4] for row in first], np.int64).T
        order = np.lexsort((back, base, rel, module))
        _, made_of = np.unique(unique, return_index=True)
        self._made_of.append(made_of[order])
        self._packed_frames([rows[at] for at in made_of[order].tolist()], self._add)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(self._frames + 1, self._frames + 1 + len(order))
        self._frames += len(order)
        return place[unique]

    def replace_frames(self, call: int, rows: Sequence[FrameRow]) -> None:
        """Replace the frames that an earlier call of add_frames() stored in the recording file. The frames keep their
        numbers.

        Args:
            call: Index of that call, from 0.
            rows: The new frames, in the order of that call.
        """
        made_of = self._made_of[call]
        if not len(made_of):
            return
        block = sum(len(each) > 0 for each in self._made_of[: call + 1])

        def change(table: str, count: int, columns: Iterable[I64]) -> None:
            statement = f"UPDATE {table} SET count = ?, data = ? WHERE id = ?"
            self._database.execute(statement, (count, pack_columns([*columns]), block))

        self._packed_frames([rows[at] for at in made_of.tolist()], change)

    def _packed_frames(self, rows: Sequence[FrameRow], store: Callable[[str, int, Iterable[I64]], None]) -> None:
        """Pack frames of a recording file, which are in their final order."""
        module, rel, base, back, trust, kind, title, count = np.array(
            [(*row[:7], len(row[7])) for row in rows], np.int64
        ).T
        lines = [line for row in rows for line in row[7]]
        start, function, file, line = np.array(lines, np.int64).reshape(-1, LINE_COLUMNS).T
        place = self._numbered_in_order(function)
        function, title = place[function], place[title]
        self._names()
        deltas = [np.diff(column, prepend=0) for column in (module, rel, base)]
        store("frame_blocks", len(rows), [*deltas, back, trust, kind, title, count])
        deltas = [np.diff(column, prepend=0) for column in (start, function, file)]
        store("line_blocks", len(lines), [*deltas, line])

    def add_stacks(self, parent: I64, frame: I64) -> None:
        """Add a block of nodes of the stack tree to a recording file.

        Args:
            parent: (n,) Number of each node's parent, 0 if it has none.
            frame: (n,) Number of each node's frame.
        """
        if not len(parent):
            return
        number = np.arange(len(self._node_frame), len(self._node_frame) + len(parent))
        self._node_frame.frombytes(frame.astype(np.int64).tobytes())
        above = np.frombuffer(self._node_frame, np.int64)[parent]
        order = np.argsort(above, kind="stable")
        again = np.flatnonzero(above[order][1:] == above[order][:-1])
        before = np.zeros(len(parent), np.int64)
        before[order[again + 1]] = frame[order[again]]
        self._add("stack_blocks", len(parent), [np.where(parent > 0, number - parent, 0), frame - before])

    def _numbered_in_order(self, functions: I64) -> I64:
        """Renumber new functions of a recording file in the order of their lines, so that differences are small.

        Returns:
            New number by old number.
        """
        known = len(self._functions) - len(self._new_functions)
        used, first = np.unique(functions, return_index=True)
        used, first = used[used > known], first[used > known]
        others = np.setdiff1d(np.arange(known + 1, len(self._functions) + 1), used)
        old = np.concatenate([np.arange(known + 1), used[np.argsort(first)], others])
        self._new_functions = [self._new_functions[at - known - 1] for at in old[known + 1 :].tolist()]
        self._functions.update((row, known + at) for at, row in enumerate(self._new_functions, 1))
        place = np.empty(len(old), np.int64)
        place[old] = np.arange(len(old))
        return place

    def _names(self) -> None:
        """Add blocks of the function and file names that were added since the last call."""
        if self._new_functions:
            texts: list[bytes] = []
            rows = []
            for name, system_name, source, ends in self._new_functions:
                texts.append(encode_text(name))
                if system_name is None or system_name == name:
                    length = NO_TEXT if system_name is None else SAME_TEXT
                else:
                    texts.append(encode_text(system_name))
                    length = len(texts[-1])
                rows.append((len(encode_text(name)), length, source, ends))
            self._add("function_blocks", len(rows), np.array(rows, np.int64).T, b"".join(texts))
            self._new_functions = []
        if self._new_files:
            paths = [encode_text(path) for path in self._new_files]
            self._add("file_blocks", len(paths), [np.array([len(path) for path in paths], np.int64)], b"".join(paths))
            self._new_files = []

    def _add(self, table: str, count: int, columns: Iterable[I64], texts: bytes = b"") -> None:
        self._blocks[table] = number = self._blocks.get(table, 0) + 1
        self._database.execute(insert_statement(table), (number, count, pack_columns([*columns], texts)))


def encode_text(text: str) -> bytes:
    """Encode a text for a recording file. It may contain bytes that are not UTF-8, such as a path."""
    return text.encode("utf-8", "surrogatepass")
