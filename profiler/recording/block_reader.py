"""Unpacks blocks (block_writer.py) to the columns that they were made of. The file is untrusted, so all counts are
limited.

A block of a few bytes may claim many rows. A file may have a million frames, functions, names and files together, and a
million nodes, or as many as it has bytes.
"""

from __future__ import annotations

import numpy as np

from pyprof.errors import FormatError
from pyprof.recording.block_writer import (
    FRAME_COLUMNS,
    FUNCTION_COLUMNS,
    LINE_COLUMNS,
    NO_TEXT,
    SAME_TEXT,
    STACK_COLUMNS,
)
from pyprof.recording.checked_rows import TableRows, check_reference
from pyprof.recording.column_codec import I64, require_known, unpack_known, unpack_texts
from pyprof.records import dataclass

_USUAL_THINGS = 1_000_000
_USUAL_NODES = 1_000_000
_USUAL_TEXT = 64 << 20
_DEFLATED = 16
"""Maximum number of bytes of text in a recording file for each byte of the file, if it is more than _USUAL_TEXT."""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The name of a function in a recording file.

    Attributes:
        text: The name, perhaps without its address.
        system_name: The mangled name, None if it is unknown.
        source: Number of the source of the name.
        addressed: True if an address must be appended: the function's start, or the place of a frame's title.
    """

    text: str
    system_name: str | None
    source: int
    addressed: bool

    def format_name(self, address: int) -> str:
        return f"{self.text}{address:#x}" if self.addressed else self.text


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Columns of a recording file's frames, each of shape (f,), with the numbers of the file.

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
    """Columns of the functions in a recording file's frames, each of shape (l,), with the numbers of the file.

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
        """Unpack a table of blocks. Its first `deltas` columns hold differences from the row before."""
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
