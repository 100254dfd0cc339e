"""Line of an instruction, from the three formats of a code object's line table.

Source: Objects/lnotab_notes.txt (3.9), PEP 626 (3.10), Objects/locations.md (3.11 and later). A malformed table is used
up to its first error.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.layout import LineTableFormat

_NO_LINE = -128
_NOWHERE = 15
_END = 1 << 62


def find_line(kind: LineTableFormat, table: bytes, first: int, instruction: int) -> int:
    """Return the source line of a Python instruction, 0 if it has none.

    Args:
        kind: Format of the table.
        table: The line table.
        first: co_firstlineno.
        instruction: f_lasti in bytes before 3.10, else an index in code units; -1 before the first instruction.
    """
    if instruction < 0:
        return first
    return next(line for end, line in _SPANS[kind](table, first) if instruction < end)


def find_first_instruction(kind: LineTableFormat, table: bytes, first: int, instruction: int) -> int:
    """Return the first Python instruction of the same source line. Instructions are counted as in find_line()."""
    starts: dict[int, int] = {}
    start = 0
    for end, line in _SPANS[kind](table, first):
        found = starts.setdefault(line, start) if end > start else start
        if instruction < end:
            return found
        start = end
    return instruction


def _lnotab(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    """Yield (end instruction, line) of each part of a Python line table in the format co_lnotab. The readers of the
    other formats do the same.
    """
    line, at = first, 0
    for pair in range(0, len(table) - 1, 2):
        at += table[pair]
        yield at, line
        line += _signed_byte(table[pair + 1])
    yield _END, line


def _linetable(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    line, end = first, 0
    for pair in range(0, len(table) - 1, 2):
        delta = _signed_byte(table[pair + 1])
        end += table[pair]
        if delta != _NO_LINE:
            line += delta
        yield (end + 1) // 2, 0 if delta == _NO_LINE else line
    yield _END, line


def _signed_byte(value: int) -> int:
    return value - 256 if value > 127 else value


def _locations(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    line, at, end = first, 0, 0
    while at < len(table):
        head = table[at]
        code, end = head >> 3 & 15, end + (head & 7) + 1
        delta, at = _delta(table, at + 1, code)
        line += delta
        yield end, 0 if code == _NOWHERE else line
        while at < len(table) and not table[at] & 0x80:
            at += 1
    yield _END, line if table else 0


def _delta(table: bytes, at: int, code: int) -> tuple[int, int]:
    """Return (line increment, offset behind it) of an entry of a Python line table. The next entry begins at the next
    byte with its highest bit set.
    """
    if code in (13, 14):
        value, at = _varint(table, at)
        return (-(value >> 1) if value & 1 else value >> 1), at
    return (code - 10 if code in (10, 11, 12) else 0), at


def _varint(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(table) and shift < 36:
        byte = table[at]
        value |= (byte & 63) << shift
        at += 1
        shift += 6
        if not byte & 64:
            break
    return value, at


_SPANS = {
    LineTableFormat.LNOTAB: _lnotab,
    LineTableFormat.LINETABLE: _linetable,
    LineTableFormat.LOCATIONS: _locations,
}
