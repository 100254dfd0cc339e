"""Things of which a recording has many as columns of blocks: frames, their functions, names and stacks.

docs/sql.md says what the columns are.

Frames of a block are in order of their places in modules, so that a number says how far it is from the one before. A
node of the tree says how far its frame is from the one that its caller's frame called before.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pyprof.recording.columns import I64, pack
from pyprof.recording.schema import insertion

FUNCTION_COLUMNS = 4
FRAME_COLUMNS = 8
LINE_COLUMNS = 4
STACK_COLUMNS = 2

NO_ROWS: I64 = np.zeros(0, np.int64)
NO_TEXT = -1
SAME_TEXT = -2
"""In the place of a length: a system name that is not known, and one that is the name itself."""

LineRow = tuple[int, int, int, int]
"""Start, function, file, line."""


FrameRow = tuple[int, int, int, int, int, int, int, tuple[LineRow, ...]]
"""Module, rel, base (pc minus rel), back, trust, kind, title, functions: what a file has of a frame, in its numbers."""


class BlockWriter:
    """Packs things as they come. Numbers are those of the file, from 1 on, but for functions: until frames that have
    them are packed, they may get others.
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

    def function(self, name: str, system_name: str | None, source: int, address: int) -> int:
        """The number of a name. Where it ends in the address, that is not kept with it."""
        digits = f"{address:#x}"
        ends = name.endswith(digits)
        row = name.removesuffix(digits) if ends else name, system_name, source, ends
        number = self._functions.get(row)
        if number is None:
            number = self._functions[row] = len(self._functions) + 1
            self._new_functions.append(row)
        return number

    def file(self, path: str) -> int:
        """The number of a source file."""
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self._files) + 1
            self._new_files.append(path)
        return number

    def frames(self, rows: Sequence[FrameRow]) -> I64:
        """A block of frames and their functions; returns their numbers. Equal frames are one."""
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

    def again(self, call: int, rows: Sequence[FrameRow]) -> None:
        """What the call of frames() of that number made, from 0 on, is made of these now. Frames keep their numbers."""
        made_of = self._made_of[call]
        if not len(made_of):
            return
        block = sum(len(each) > 0 for each in self._made_of[: call + 1])

        def change(table: str, count: int, columns: Iterable[I64]) -> None:
            statement = f"UPDATE {table} SET count = ?, data = ? WHERE id = ?"
            self._database.execute(statement, (count, pack([*columns]), block))

        self._packed_frames([rows[at] for at in made_of.tolist()], change)

    def _packed_frames(self, rows: Sequence[FrameRow], store: Callable[[str, int, Iterable[I64]], None]) -> None:
        """In the order that they are to have."""
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

    def stacks(self, parent: I64, frame: I64) -> None:
        """A block of nodes. parent: as numbers of nodes, 0: none; frame: numbers of frames."""
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
        """New functions get their numbers in the order of their lines, which differ less then. Returns new by old."""
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
        """Blocks of the names that came since the last time."""
        if self._new_functions:
            texts: list[bytes] = []
            rows = []
            for name, system_name, source, ends in self._new_functions:
                texts.append(encoded(name))
                if system_name is None or system_name == name:
                    length = NO_TEXT if system_name is None else SAME_TEXT
                else:
                    texts.append(encoded(system_name))
                    length = len(texts[-1])
                rows.append((len(encoded(name)), length, source, ends))
            self._add("function_blocks", len(rows), np.array(rows, np.int64).T, b"".join(texts))
            self._new_functions = []
        if self._new_files:
            paths = [encoded(path) for path in self._new_files]
            self._add("file_blocks", len(paths), [np.array([len(path) for path in paths], np.int64)], b"".join(paths))
            self._new_files = []

    def _add(self, table: str, count: int, columns: Iterable[I64], texts: bytes = b"") -> None:
        self._blocks[table] = number = self._blocks.get(table, 0) + 1
        self._database.execute(insertion(table), (number, count, pack([*columns], texts)))


def encoded(text: str) -> bytes:
    """Texts may hold bytes that are no UTF-8, such as a path may."""
    return text.encode("utf-8", "surrogatepass")
