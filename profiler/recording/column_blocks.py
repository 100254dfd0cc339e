"""Columns of numbers and blocks of items, packed for a recording file and unpacked from an untrusted one.

The data is the zlib-compressed sequence of the columns. Each column begins with its width in bytes (one byte) and its
base (a signed 64-bit little-endian number). Then follows each row's number minus the base, unsigned, with that width,
in planes: first the lowest bytes of all rows, then the next ones. Width 0: all numbers equal the base. Width 255: the
column is unknown for all rows. Texts may follow the columns.

A block holds numerous items: frames, their functions, names, or stacks. docs/sql.md describes its columns. The frames
of a block are sorted by module and address, so that each is stored as a small difference from the one before. A node of
the tree stores the difference of its frame number from the previous frame that the same caller called.

All counts in a file are limited: a block of a few bytes may claim many rows. A file may have a million frames,
functions, names and files together, and a million nodes, or as many as it has bytes.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.recording.checked_rows import TableRows, check_reference
from pyprof.recording.schema import insert_statement

I64 = npt.NDArray[np.int64]

_HEAD = struct.Struct("<Bq")
_NOT_KNOWN = 255
_LEVEL = 6


def pack_columns(columns: Sequence[I64 | None], texts: bytes = b"") -> bytes:
    """Encode columns of integers as compressed bytes.

    Args:
        columns: Each of shape (n,), None if it is unknown for all rows.
        texts: Data that follows the columns.
    """
    parts = []
    for column in columns:
        if column is None:
            parts.append(_HEAD.pack(_NOT_KNOWN, 0))
            continue
        base = int(column.min()) if len(column) else 0
        above = (column - base).view(np.uint64)
        width = (int(above.max()).bit_length() + 7) // 8 if len(column) else 0
        planes = above.astype("<u8").view(np.uint8).reshape(len(column), 8)[:, :width].T
        parts += [_HEAD.pack(width, base), planes.tobytes()]
    return zlib.compress(b"".join([*parts, texts]), _LEVEL)


def unpack_columns(data: bytes, rows: int, columns: int) -> list[I64 | None]:
    """Decode columns of integers that pack_columns() encoded without texts.

    Raises:
        FormatError: The data is invalid.
    """
    found, _ = unpack_texts(data, rows, columns, 0)
    return found


def unpack_known(data: bytes, rows: int, columns: int) -> list[I64]:
    """Decode columns of integers, all of which must be known.

    Raises:
        FormatError: The data is invalid, or a column is unknown.
    """
    return require_known(unpack_columns(data, rows, columns))


def require_known(columns: list[I64 | None]) -> list[I64]:
    """Return the columns of a recording file, all of which must be known.

    Raises:
        FormatError: A column is unknown.
    """
    given = [column for column in columns if column is not None]
    if len(given) != len(columns):
        raise FormatError("data", 0, "a column that each row has is missing")
    return given


def unpack_texts(data: bytes, rows: int, columns: int, most_text: int) -> tuple[list[I64 | None], bytes]:
    """Decode columns and texts that pack_columns() encoded.

    Args:
        data: The encoded data.
        rows: Number of rows.
        columns: Number of columns.
        most_text: Maximum number of bytes of texts.

    Raises:
        FormatError: The data is invalid.
    """
    raw = _inflated(data, columns * (_HEAD.size + 8 * rows) + most_text)
    found: list[I64 | None] = []
    at = 0
    for _ in range(columns):
        if len(raw) - at < _HEAD.size:
            raise FormatError("data", at, "a column is missing")
        width, base = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        if width == _NOT_KNOWN:
            found.append(None)
            continue
        if width > 8 or len(raw) - at < width * rows:
            raise FormatError("data", at, f"a column of {rows} numbers is cut short")
        above = np.zeros((rows, 8), np.uint8)
        above[:, :width] = np.frombuffer(raw, np.uint8, width * rows, at).reshape(width, rows).T
        found.append((above.view("<u8").ravel().astype(np.uint64) + np.uint64(base & (1 << 64) - 1)).view(np.int64))
        at += width * rows
    if len(raw) - at > most_text:
        raise FormatError("data", at, "bytes behind the last column")
    return found, raw[at:]


def _inflated(data: bytes, most: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, most + 1)
    except zlib.error as error:
        raise FormatError("data", 0, f"the data are broken: {error}") from None
    if len(raw) > most or not inflate.eof or inflate.unused_data:
        raise FormatError("data", 0, "longer or shorter than they may be")
    return raw


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
"""Type of one function in a recorded frame: (start address, number of the function's name, number of the source file,
line).
"""


FrameRow = tuple[int, int, int, int, int, int, int, tuple[LineRow, ...]]
"""Type of one recorded frame: (number of the module, rel, base, back, trust, kind, number of the title, functions).
`base` is pc minus rel, and `back` is pc minus the address for lookups.
"""


class BlockWriter:
    """A writer that packs frames, functions and stacks of a recording in the order of their arrival.

    The writer gives each item the number that it has in the file, from 1 on. Numbers of functions may change until the
    frames that use them are packed.
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
        """Pack frames of a recording file into a block and store it. The frames are in their final order."""
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
        is_other = np.arange(len(self._functions) + 1) > known
        is_other[used] = False
        old = np.concatenate([np.arange(known + 1), used[np.argsort(first)], np.flatnonzero(is_other)])
        self._new_functions = [self._new_functions[at - known - 1] for at in old[known + 1 :].tolist()]
        self._functions.update((row, known + at) for at, row in enumerate(self._new_functions, 1))
        place = np.empty(len(old), np.int64)
        place[old] = np.arange(len(old))
        return place

    def _names(self) -> None:
        """Pack the names of functions and files that were added since the last call into blocks, and store these."""
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
    """Encode a text as bytes for a recording file. The text may contain bytes that are not UTF-8, such as a file
    path.
    """
    return text.encode("utf-8", "surrogatepass")


_USUAL_THINGS = 1_000_000
_USUAL_NODES = 1_000_000
_USUAL_TEXT = 64 << 20
_DEFLATED = 16
"""Maximum number of bytes of text in a recording file for each byte of the file, because the text is compressed. Less
than _USUAL_TEXT is always permitted.
"""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The name of a function in a recording file.

    Attributes:
        text: The name, without the address at its end if `addressed` is true.
        system_name: The mangled name, None if it is unknown.
        source: Number of the source of the name.
        addressed: True if an address must be appended to the text: the function's start, or the address of a frame if
            this is its title.
    """

    text: str
    system_name: str | None
    source: int
    addressed: bool

    def format_name(self, address: int) -> str:
        return f"{self.text}{address:#x}" if self.addressed else self.text


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Columns of the frames in a recording file, each of shape (f,). References to other tables are the numbers of the
    file.

    `lines` is the number of functions of a frame.
    """

    module: I64
    rel: I64
    base: I64
    back: I64
    trust: I64
    kind: I64
    title: I64
    lines: I64


@dataclass(frozen=True, slots=True)
class LineColumns:
    """Columns of the functions in a recording file's frames, each of shape (l,). References to other tables are the
    numbers of the file.

    File and line are 0 if unknown.
    """

    start: I64
    function: I64
    file: I64
    line: I64


class Blocks:
    """The packed frames, functions and stacks of one recording file. Each method raises FormatError if a block is
    invalid.
    """

    def __init__(self, rows: TableRows, size: int) -> None:
        self._rows = rows
        self._things_left = max(_USUAL_THINGS, size)
        self._nodes_left = max(_USUAL_NODES, size)
        self._text_left = max(_USUAL_TEXT, size * _DEFLATED)

    def unpack_functions(self) -> list[FunctionName]:
        found = []
        known_sources = len(self._rows("name_sources"))
        for nth, count, data in self._rows("function_blocks"):
            (lengths, system_lengths, sources, addressed), texts = self._texts(count, data, FUNCTION_COLUMNS)
            at = 0
            columns = (lengths, system_lengths, sources, addressed)
            for length, system_length, source, ends in zip(*(column.tolist() for column in columns), strict=True):
                check_reference("function_blocks", nth, source, known_sources)
                name, at = _text(nth, texts, at, length)
                system_name: str | None
                if system_length in {NO_TEXT, SAME_TEXT}:
                    system_name = name if system_length == SAME_TEXT else None
                else:
                    system_name, at = _text(nth, texts, at, system_length)
                found.append(FunctionName(name, system_name, source, bool(ends)))
        return found

    def unpack_files(self) -> list[str]:
        found = []
        for nth, count, data in self._rows("file_blocks"):
            (lengths,), texts = self._texts(count, data, 1)
            at = 0
            for length in lengths.tolist():
                path, at = _text(nth, texts, at, length)
                found.append(path)
        return found

    def unpack_frames(self) -> tuple[FrameColumns, LineColumns]:
        """Unpack frames and their functions from a recording file. Each count is checked first, so that their sum
        cannot overflow.
        """
        module, rel, base, *others = self._things("frame_blocks", FRAME_COLUMNS, 3)
        start, function, file, line = self._things("line_blocks", LINE_COLUMNS, 3)
        frames = FrameColumns(module, rel, base, *others)
        least, most = int(frames.lines.min(initial=0)), int(frames.lines.max(initial=0))
        if least < 0 or most > len(start) or int(frames.lines.sum()) != len(start):
            raise FormatError("line_blocks", 0, "frames have more functions, or fewer")
        return frames, LineColumns(start, function, file, line)

    def unpack_stacks(self, frames: int) -> I64:
        """Unpack the nodes of the stack tree from a recording file's blocks.

        Args:
            frames: Number of frames.

        Returns:
            int64 array of shape (nodes, 2): number of the parent, 0 if there is none, and number of the frame. The
                first row is the root.
        """
        parents, node_frame = [0], [0]
        for nth, count, data in self._rows("stack_blocks"):
            self._nodes_left = _taken(nth, self._nodes_left, count)
            called: dict[int, int] = {}
            for up, further in zip(
                *(column.tolist() for column in unpack_known(data, count, STACK_COLUMNS)), strict=True
            ):
                number = len(parents)
                if not 0 <= up < number:
                    raise FormatError("stack_blocks", nth, "refers to a node that is not before it")
                parent = number - up if up else 0
                caller = node_frame[parent]
                frame = called[caller] = called.get(caller, 0) + further
                if not 1 <= frame <= frames:
                    raise FormatError("stack_blocks", nth, f"refers to a frame {frame} that does not exist")
                parents.append(parent)
                node_frame.append(frame)
        return np.array([parents, node_frame], np.int64).T

    def _things(self, table: str, columns: int, deltas: int) -> list[I64]:
        """Unpack all blocks of one table of a recording file into columns.

        Args:
            table: Name of the table.
            columns: Number of columns.
            deltas: Number of first columns that hold differences from the row before.
        """
        parts: list[list[I64]] = []
        for nth, count, data in self._rows(table):
            self._things_left = _taken(nth, self._things_left, count)
            found = unpack_known(data, count, columns)
            parts.append([*(np.cumsum(column) for column in found[:deltas]), *found[deltas:]])
        return [np.concatenate([np.zeros(0, np.int64), *(part[at] for part in parts)]) for at in range(columns)]

    def _texts(self, count: int, data: bytes, columns: int) -> tuple[list[I64], bytes]:
        self._things_left = _taken(0, self._things_left, count)
        found, texts = unpack_texts(data, count, columns, self._text_left)
        self._text_left -= len(texts)
        return require_known(found), texts


def _taken(nth: int, left: int, count: int) -> int:
    if not 0 <= count <= left:
        raise FormatError("blocks", nth, "more rows than the file has room for")
    return left - count


def _text(nth: int, texts: bytes, at: int, length: int) -> tuple[str, int]:
    """Return the text at an offset of the packed texts, and the offset of the next text."""
    if not 0 <= length <= len(texts) - at:
        raise FormatError("blocks", nth, "a text is longer than what there is")
    try:
        return texts[at : at + length].decode("utf-8", "surrogatepass"), at + length
    except UnicodeDecodeError as error:
        raise FormatError("blocks", nth, f"a text is none: {error}") from None
