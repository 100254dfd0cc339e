"""A reader of perf maps, the text files `/tmp/perf-PID.map` in which a process names its generated code.

PerfMapReader takes the bytes of the file in pieces and returns ranges with their names, in the order of the file.
Source: tools/perf/Documentation/jit-interface.txt of Linux: `START SIZE symbolname`, the numbers hexadecimal.

Lines in the usual form (few blanks between two fields, none at the end) are read many at once. The regular expression
reads all other valid lines.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from pyprof.model.jit_code_map import NamedRanges
from pyprof.problem_counters import Diagnostics

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_LINE = re.compile(rb"(?:0x)?+([0-9a-fA-F]{1,16}+)[ \t]++(?:0x)?+([0-9a-fA-F]{1,16}+)[ \t]++")

MAX_NAME = 4096
MAX_LINE = 2 * MAX_NAME
"""Maximum number of bytes of a perf map's line that are read."""
MAX_LINES = 1 << 22

_DIGITS = 16
_MAX_BLANKS = 8
_PADDING = b"\n" * 64
"""Padding after a perf map's text, so that a parser of two numbers and blanks cannot read past the end."""
_NO_DIGIT, _BLANK = 255, 254
_KINDS = np.full(256, _NO_DIGIT, np.uint8)
for _text, _first in ((b"0123456789", 0), (b"abcdef", 10), (b"ABCDEF", 10)):
    _KINDS[list(_text)] = np.arange(_first, _first + len(_text))
_KINDS[list(b" \t\r")] = _BLANK
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[list(b" \t")] = True


class PerfMapReader:
    """A reader of a perf map in pieces. An incomplete line is kept until the rest arrives."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._rest = b""
        self._lines = 0

    def restart(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> NamedRanges:
        """Return the named ranges of the perf map's complete lines. Invalid lines are counted. A name has 1 to MAX_NAME
        bytes.
        """
        text, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[:MAX_LINE]
        found = _read_lines(text + newline if newline else b"")
        broken = int(np.count_nonzero(found.name_size == 0))
        kept = np.flatnonzero(found.name_size)
        if self._lines + len(kept) > MAX_LINES:
            self._diagnostics.count("perf_map_too_many_lines")
            kept = kept[: MAX_LINES - self._lines]
        self._lines += len(kept)
        if broken:
            self._diagnostics.count("perf_map_line_invalid", broken)
        return found.ranges(kept)


class _Lines:
    """The lines of one piece of a perf map's text.

    Attributes:
        low: (n,) start addresses.
        end: (n,) end addresses.
        name: (n,) offset of each name in the text.
        name_size: (n,) size of each name in bytes, 0 if the line is invalid.
    """

    def __init__(self, text: Bytes, count: int) -> None:
        self._text = text
        self.low: U64 = np.zeros(count, np.uint64)
        self.end: U64 = np.zeros(count, np.uint64)
        self.name: I64 = np.zeros(count, np.int64)
        self.name_size: I64 = np.zeros(count, np.int64)

    def ranges(self, lines: I64) -> NamedRanges:
        steps = np.zeros(len(self._text), np.int8)
        steps[self.name[lines]] = 1
        steps[self.name[lines] + self.name_size[lines]] = -1
        inside = np.cumsum(steps, dtype=np.int8).view(np.bool_)
        size = self.name_size[lines].astype(np.uint16)
        return NamedRanges(self.low[lines], self.end[lines], size, self._text[inside].tobytes())


def _read_lines(text: bytes) -> _Lines:
    """Parse the lines of a perf map, each of which ends with a newline."""
    data = np.frombuffer(text + _PADDING, np.uint8)
    ends = np.flatnonzero(data[: len(text)] == ord("\n"))
    starts = np.concatenate([ends[:0], [0], ends[:-1] + 1])[: len(ends)]
    starts, ends = starts[ends > starts], ends[ends > starts]
    found = _Lines(data, len(starts))
    if not len(starts):
        return found
    low, at, plain = _number(data, starts)
    size, name, also_plain = _number(data, at)
    plain &= also_plain & (name < ends) & (ends - starts <= MAX_LINE) & (_KINDS[data[ends - 1]] != _BLANK)
    found.low, found.end, found.name = low, low + size, name
    found.name_size = np.where(plain & (found.end > low), np.minimum(ends - name, MAX_NAME), 0)
    _read_odd_lines(text, starts, ends, np.flatnonzero(~plain), found)
    return found


def _read_odd_lines(text: bytes, starts: I64, ends: I64, rows: I64, found: _Lines) -> None:
    """Parse lines of a perf map in an unusual form one by one.

    Args:
        text: Text of all lines.
        starts: (n,) Offset of each line.
        ends: (n,) End of each line.
        rows: Indices of the unusual lines.
        found: Receives the results.
    """
    cut = np.minimum(ends[rows], starts[rows] + MAX_LINE).tolist()
    known = [_read_line(text, start, end) for start, end in zip(starts[rows].tolist(), cut, strict=True)]
    if known:
        found.low[rows], found.end[rows], found.name[rows], found.name_size[rows] = zip(*known, strict=True)


def _number(data: Bytes, at: I64) -> tuple[U64, I64, Flags]:
    """Parse the hexadecimal number at each offset of a perf map's text.

    Returns:
        (numbers, offsets after the blanks that follow them, mask of numbers in the usual form).
    """
    at = at + 2 * ((data[at] == ord("0")) & (data[at + 1] == ord("x")))
    window = _KINDS[data[at[:, None] + np.arange(_DIGITS + 1)]]
    digits = (window >= _BLANK).argmax(axis=1)
    value = np.zeros(len(at), np.uint64)
    for place in range(_DIGITS):
        value = np.where(place < digits, value << np.uint64(4) | window[:, place], value)
    behind = at + digits
    plain = (digits > 0) & _BLANKS[data[behind]]
    for _ in range(_MAX_BLANKS):
        more = _BLANKS[data[behind]]
        if not more.any():
            break
        behind += more
    return value, behind, plain & (_KINDS[data[behind]] != _BLANK)


def _read_line(text: bytes, start: int, end: int) -> tuple[int, int, int, int]:
    """Return (start, end, offset of the name, size of the name in bytes) of a perf map's line.

    The size is 0 if the line is invalid.
    """
    match = _LINE.match(text, start, end)
    if match is not None:
        low, length = int(match[1], 16), int(match[2], 16)
        size = len(text[match.end() : end].rstrip(b" \t\r"))
        if size and length and low + length < 1 << 64:
            return low, low + length, match.end(), min(size, MAX_NAME)
    return 0, 0, start, 0
