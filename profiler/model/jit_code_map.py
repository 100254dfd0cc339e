"""Descriptions and names of code that no file contains, by address and time.

A description is valid in the open interval (since_ns, until_ns) of CLOCK_MONOTONIC: it did not exist when the code was
inspected at since_ns, and no longer existed at until_ns. Of two that are valid for one address and time, the later one
is used: it was read right after the sample, the other before it.

A CodeTable is equivalent to a CodeMap of strings, for millions of descriptions: an entry takes 30 bytes and its name,
which is decoded on demand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.integer_array_operations import distinct

Flags = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]


def uncovered(start: U64, end: U64) -> Flags:
    """Return a mask of address ranges, shape (n,): True for each range that no later range of the list overlaps. Each
    start must be below its end.
    """
    found = np.ones(len(start), np.bool_)
    if np.all(start[1:] >= end[:-1]):
        return found
    order = np.argsort(start, kind="stable")
    low = start[order]
    reach = end[order]
    np.maximum.accumulate(reach, out=reach)
    beside = low[1:] < reach[:-1]
    if not beside.any():
        return found
    alone = np.ones(len(start), np.bool_)
    alone[1:] &= ~beside
    alone[:-1] &= ~beside
    places = np.sort(order[~alone])
    found[places] = _on_top(start[places], end[places])
    return found


def _on_top(start: U64, end: U64) -> Flags:
    """Return what uncovered() returns: which address ranges no later range overlaps. This is for ranges with many
    overlaps.

    The edges of all ranges delimit cells. For each cell the last range over it is found; a range is uncovered if it is
    the last one over all of its cells. A range of 2^k to 2^(k+1) - 1 cells is covered by two runs of 2^k cells. At the
    first cell of each run the last range with it is stored, and then passed on to the two runs of half that length.
    """
    edges = distinct(np.concatenate([start, end]))
    first, behind = (np.searchsorted(edges, each).astype(np.int32) for each in (start, end))
    cells = behind - first
    level = np.frexp(cells)[1] - 1
    last = np.full(len(edges), -1, np.int32)
    for k in range(int(level.max()), -1, -1):
        here = np.flatnonzero(level == k).astype(np.int32)
        for at in (first[here], behind[here] - (1 << k)):
            np.maximum.at(last, at, here)
        if k:
            half = 1 << k - 1
            handed = last[:-half].copy()
            np.maximum(last[half:], handed, out=last[half:])
    seen = np.bincount(last[last >= 0], minlength=len(start))
    found: Flags = seen == cells
    return found


def touching(start: U64, end: U64, low: U64, high: U64) -> tuple[Flags, Flags]:
    """Find which ranges of two sets of address ranges overlap a range of the other set. Return a mask for each set.

    Args:
        start: (n,) Start of sorted ranges that do not overlap each other.
        end: (n,) End of the sorted ranges.
        low: (m,) Start of other ranges.
        high: (m,) End of the other ranges.

    Returns:
        (which of the n ranges overlap one of the others, which of the m ranges overlap one of the n).
    """
    first = np.searchsorted(end, low, side="right")
    behind = np.maximum(np.searchsorted(start, high, side="left"), first)
    steps = np.bincount(first, minlength=len(start) + 1) - np.bincount(behind, minlength=len(start) + 1)
    return np.cumsum(steps)[:-1] > 0, behind > first


ALWAYS = -(1 << 63)
NEVER = (1 << 63) - 1

MAX_PAST = 1 << 16
"""Maximum number of descriptions of JIT code that are kept after the code was removed or replaced. The oldest are
dropped first.
"""

_BLOCK = 1 << 14
"""Size in bytes of the blocks of addresses by which the index of past descriptions of JIT code is divided."""
_MAX_BLOCKS = 16
"""Maximum number of blocks of the index in which one past description of JIT code stands. Larger ones are in one list
that is searched linearly.
"""
_LARGE = -1
"""Key in the index of past descriptions, in place of a block's number, for descriptions of JIT code that cover more
than _MAX_BLOCKS blocks.
"""

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Span(Generic[T]):
    """A description of the JIT code from `start` to `end` (avma), with the time in which it is valid. It is compared by
    identity.
    """

    start: int
    end: int
    value: T
    since_ns: int = ALWAYS
    until_ns: int = NEVER

    def holds(self, pc: int, time_ns: int) -> bool:
        return self.start <= pc < self.end and self.since_ns < time_ns < self.until_ns


class CodeMap(Generic[T]):
    """Descriptions of JIT code by address and time. Descriptions that are valid now never overlap: a new one ends the
    validity of those that it overlaps.

    Attributes:
        changes: Times at which the meaning of an address changed, ascending.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[Span[T]] = []
        self._past: list[Span[T]] = []  # nearly sorted by until_ns
        self._past_in: dict[int, list[Span[T]]] = {}
        self.changes: list[int] = []
        """Times at which the JIT code at an address changed, ascending."""

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span[T]]:
        """Yield the descriptions of JIT code that are still valid, ascending by start."""
        return iter(self._spans)

    @property
    def size(self) -> int:
        """The number of bytes of code that have a description now."""
        return sum(span.end - span.start for span in self._spans)

    def add_spans(self, spans: Iterable[Span[T]], before_ns: int, now_ns: int) -> None:
        """Add descriptions of JIT code. Later descriptions override earlier ones.

        A description that replaces another one is not valid before `before_ns`.

        Args:
            spans: The descriptions.
            before_ns: Last time at which they did not exist.
            now_ns: First time at which they existed.
        """
        fresh = [span for span in spans if span.start < span.end]
        if not self._spans and not self._past:
            self._spans = _uncovered(fresh)
            self._starts = [span.start for span in self._spans]
        else:
            for span in fresh:
                self._add_one(span, before_ns, now_ns)
        for since_ns in {span.since_ns for span in fresh} - {ALWAYS}:
            note_change(self.changes, since_ns + 1)

    def _add_one(self, span: Span[T], before_ns: int, now_ns: int) -> None:
        first = bisect_right(self._starts, span.start)
        if first and self._spans[first - 1].end > span.start:
            first -= 1
        last = bisect_left(self._starts, span.end, first)
        if first < last:
            for old in self._spans[first:last]:
                self._end(old, now_ns)
            span.since_ns = max(span.since_ns, before_ns)
        self._spans[first:last] = [span]
        self._starts[first:last] = [span.start]

    def remove(self, span: Span[T], now_ns: int) -> None:
        """End the validity of a description of JIT code at a time."""
        at = bisect_left(self._starts, span.start)
        if at < len(self._spans) and self._spans[at] is span:
            del self._spans[at], self._starts[at]
            self._end(span, now_ns)

    def _end(self, span: Span[T], now_ns: int) -> None:
        span.until_ns = min(span.until_ns, now_ns)
        self._past.append(span)
        self._index_past(span)
        if len(self._past) > MAX_PAST:
            self._keep_past(self._past[MAX_PAST // 2 :])
        note_change(self.changes, now_ns)

    def _keep_past(self, spans: list[Span[T]]) -> None:
        self._past, self._past_in = spans, {}
        for span in spans:
            self._index_past(span)

    def _index_past(self, span: Span[T]) -> None:
        """Add a description that is no longer valid to the index of past descriptions, by the address blocks that it
        covers.
        """
        first, last = span.start // _BLOCK, (span.end - 1) // _BLOCK
        for block in range(first, last + 1) if last - first < _MAX_BLOCKS else (_LARGE,):
            self._past_in.setdefault(block, []).append(span)

    def forget(self, before_ns: int) -> None:
        """Drop the descriptions of JIT code whose validity ended before a time."""
        self._keep_past([span for span in self._past if span.until_ns > before_ns])
        forget_changes(self.changes, before_ns)

    @property
    def past(self) -> Sequence[Span[T]]:
        """The descriptions of JIT code that are no longer valid."""
        return self._past

    def find(self, pc: int, time_ns: int) -> Span[T] | None:
        """Return the description of the JIT code at pc at a time, or None."""
        at = bisect_right(self._starts, pc) - 1
        if at >= 0 and self._spans[at].holds(pc, time_ns):
            return self._spans[at]
        found: Span[T] | None = None
        for block in (pc // _BLOCK, _LARGE):
            for span in reversed(self._past_in.get(block, ())):
                if span.until_ns <= time_ns:
                    break
                if span.holds(pc, time_ns):
                    found = span if found is None or span.until_ns > found.until_ns else found
                    break
        return found

    def find_end(self, start: int, end: int) -> int:
        """Return the time at which the last description that overlaps an address range became invalid, or ALWAYS."""
        blocks = range(start // _BLOCK, (end - 1) // _BLOCK + 1)
        past = (span for block in (*blocks[: _MAX_BLOCKS + 1], _LARGE) for span in self._past_in.get(block, ()))
        return max((span.until_ns for span in past if span.start < end and start < span.end), default=ALWAYS)

    def first(self, pc: int) -> Span[T] | None:
        """Return the earliest description of the JIT code at pc, whatever its time. It serves code that was described
        only after it ran.
        """
        past = [span for block in (pc // _BLOCK, _LARGE) for span in self._past_in.get(block, ())]
        over = [span for span in past if span.start <= pc < span.end]
        if over:
            return min(over, key=lambda span: span.until_ns)
        at = bisect_right(self._starts, pc) - 1
        return self._spans[at] if at >= 0 and pc < self._spans[at].end else None


def _uncovered(spans: list[Span[T]]) -> list[Span[T]]:
    """Return the descriptions of JIT code whose addresses no later description overlaps, ascending by start.

    This is fast for a map of 100,000 lines.
    """
    start, end = np.array([(span.start, span.end) for span in spans], np.uint64).reshape(-1, 2).T
    kept = [span for span, on_top in zip(spans, uncovered(start, end).tolist(), strict=True) if on_top]
    return sorted(kept, key=lambda span: span.start)


def note_change(changes: list[int], at_ns: int) -> None:
    """Add a time at which the code at an address changed to an ascending list."""
    if not changes or changes[-1] < at_ns:
        changes.append(at_ns)
    elif changes[-1] > at_ns:
        insort(changes, at_ns)
    if len(changes) > MAX_PAST:
        del changes[: MAX_PAST // 2]


def forget_changes(changes: list[int], before_ns: int) -> None:
    """Drop the times of changes of JIT code up to a time, because no caller will ask for earlier times."""
    del changes[: bisect_right(changes, before_ns)]


@dataclass(frozen=True, slots=True)
class CodeName:
    """The name of code that a process described at run time.

    Attributes:
        name: Name of the code.
        start: Start address (avma).
        lines: (avma, file, line), ascending, empty if unknown.
        places: Cache by lookup address: (function, file, line) of the functions there, the innermost inlined one first.
    """

    name: str
    start: int
    lines: tuple[tuple[int, str, int], ...] = ()
    places: Mapping[int, tuple[tuple[str, str | None, int], ...]] | None = None

    def line_at(self, avma: int) -> tuple[str, int] | None:
        """Return (file, line) of the JIT code at avma, or None."""
        at = bisect_right(self.lines, (avma, "\U0010ffff", 0)) - 1
        return self.lines[at][1:] if at >= 0 else None


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """Address ranges of code and their names, in the order in which a process described them.

    Attributes:
        start: (n,) First address (avma).
        end: (n,) End address, greater than start.
        length: (n,) Bytes of each name, 1 to 65,535.
        names: All names, concatenated.
    """

    start: U64
    end: U64
    length: npt.NDArray[np.uint16]
    names: bytes


@dataclass(eq=False, slots=True)
class _Columns:
    """Columns of a table of code names. `name` is the offset of the name, `since` the time from which the entry is
    valid.
    """

    start: U64
    end: U64
    name: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint16]
    since: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def take_rows(self, rows: Flags | npt.NDArray[np.int64]) -> _Columns:
        return _Columns(self.start[rows], self.end[rows], self.name[rows], self.length[rows], self.since[rows])

    def sort(self) -> None:
        """Sort the table of code names by start, one column at a time, because each takes megabytes."""
        if np.all(self.start[1:] >= self.start[:-1]):
            return
        order = np.argsort(self.start, kind="stable")
        self.start = self.start[order]
        self.end = self.end[order]
        self.name = self.name[order]
        self.length = self.length[order]
        self.since = self.since[order]


def _joined(parts: Sequence[_Columns]) -> _Columns:
    return _Columns(
        np.concatenate([each.start for each in parts]),
        np.concatenate([each.end for each in parts]),
        np.concatenate([each.name for each in parts]),
        np.concatenate([each.length for each in parts]),
        np.concatenate([each.since for each in parts]),
    )


_NONE = _Columns(
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint32),
    np.zeros(0, np.uint16),
    np.zeros(0, np.int64),
)


class _Gathered:
    """Columns of a table of code names that grow in place, so that memory never holds two copies of a column."""

    def __init__(self) -> None:
        self._start, self._end, self._name, self._length = (bytearray() for _ in range(4))

    def add_piece(self, piece: NamedRanges, name: U64) -> None:
        self._start += piece.start.tobytes()
        self._end += piece.end.tobytes()
        self._name += name.astype(np.uint32).tobytes()
        self._length += piece.length.tobytes()

    def columns(self) -> _Columns:
        start = np.frombuffer(self._start, np.uint64)
        end, name = np.frombuffer(self._end, np.uint64), np.frombuffer(self._name, np.uint32)
        return _Columns(start, end, name, np.frombuffer(self._length, np.uint16), np.full(len(start), ALWAYS))


class CodeTable:
    """Names of JIT code by address and time. Names that are valid now never overlap.

    Attributes:
        changes: Times at which the meaning of an address changed, ascending.
    """

    def __init__(self) -> None:
        self.changes: list[int] = []
        self._live = _NONE
        self._past = _NONE
        self._until = np.zeros(0, np.int64)  # end times of the past entries, ascending
        self._names = bytearray()
        self._spans: dict[int, Span[str]] = {}  # requested entries, by the offset of their name

    def __len__(self) -> int:
        """Return the number of names of JIT code that are still valid."""
        return len(self._live)

    def __iter__(self) -> Iterator[Span[str]]:
        """Yield the names of JIT code that are still valid, ascending by start."""
        return (self._span(self._live, row, NEVER) for row in range(len(self._live)))

    @property
    def size(self) -> int:
        """The number of bytes of code that have a name now."""
        return sum((self._live.end - self._live.start).tolist())

    def add_reading(
        self, pieces: Iterable[NamedRanges], before_ns: int, now_ns: int, ends_others: bool = False
    ) -> None:
        """Add the code names of one reading of a perf map. The last of overlapping ranges is used.

        An entry that replaces another one is valid from `before_ns` on.

        Args:
            pieces: The ranges with their names.
            before_ns: Last time at which they did not exist.
            now_ns: First time at which they existed.
            ends_others: True to end all entries that are not among them.
        """
        still = np.zeros(len(self._live), np.bool_)
        placed = self._gathered(pieces, still)
        lost = _NONE
        kept = uncovered(placed.start, placed.end)
        if not kept.all():
            placed, lost = placed.take_rows(kept), placed.take_rows(~kept)
        placed.sort()
        if not len(self._live) and not len(self._past):
            self._live = placed
            return
        ended = (~still if ends_others else np.zeros(len(self._live), np.bool_)) | self._replaced(placed, before_ns)
        ended |= self._replaced(lost, before_ns)
        lost = self._replaced_at_once(placed, lost, before_ns)
        self._end([self._live.take_rows(ended), lost], now_ns)
        if len(placed) or ended.any():
            self._live = _joined([self._live.take_rows(~ended), placed])
            self._live.sort()

    def _gathered(self, pieces: Iterable[NamedRanges], still: Flags) -> _Columns:
        """Return those code names of one reading of a perf map that the table does not have yet.

        Args:
            pieces: The ranges with their names.
            still: Mask of the table's entries, which is set to True for each one that the perf map still has.
        """
        found = _Gathered()
        for piece in pieces:
            fresh = self._unknown(piece, still)
            found.add_piece(fresh, np.cumsum(fresh.length, dtype=np.uint64) - fresh.length + len(self._names))
            self._names += fresh.names
        return found.columns()

    def _unknown(self, piece: NamedRanges, still: Flags) -> NamedRanges:
        known = self._known(piece, still)
        if not known.any():
            return piece
        names = np.frombuffer(piece.names, np.uint8)[np.repeat(~known, piece.length)].tobytes()
        return NamedRanges(piece.start[~known], piece.end[~known], piece.length[~known], names)

    def _known(self, piece: NamedRanges, still: Flags) -> Flags:
        """Return a mask of the address ranges of a perf map for which the table already has an entry with the same
        name. Set `still` to True for these entries.
        """
        live = self._live
        known = np.zeros(len(piece.start), np.bool_)
        if not len(live):
            return known
        rows = np.minimum(np.searchsorted(live.start, piece.start), len(live) - 1)
        same = (live.start[rows] == piece.start) & (live.end[rows] == piece.end) & (live.length[rows] == piece.length)
        at = np.cumsum(piece.length, dtype=np.int64) - piece.length
        for place in np.flatnonzero(same).tolist():
            row = int(rows[place])
            size, begin, there = int(live.length[row]), int(live.name[row]), int(at[place])
            if piece.names[there : there + size] == self._names[begin : begin + size]:
                known[place] = still[row] = True
        return known

    def _replaced(self, fresh: _Columns, before_ns: int) -> Flags:
        """Return a mask of the table's entries that new code names overlap. The overlapping new names become valid from
        `before_ns` on.
        """
        ended, taking = touching(self._live.start, self._live.end, fresh.start, fresh.end)
        self._begin(fresh, taking, before_ns)
        return ended

    def _replaced_at_once(self, placed: _Columns, lost: _Columns, before_ns: int) -> _Columns:
        """Return code names that other names of the same reading of a perf map overlap, without duplicates. They are
        past from the start.

        Args:
            placed: The names that no later name of the reading overlaps. Those that overlap another become valid from
                `before_ns` on.
            lost: The overlapped names, of which the newest MAX_PAST are returned.
            before_ns: Last time at which the reading's names did not exist.
        """
        if not len(lost):
            return lost
        rows = np.minimum(np.searchsorted(placed.start, lost.start), len(placed) - 1)
        other = (placed.start[rows] != lost.start) | (placed.end[rows] != lost.end)
        for place in np.flatnonzero(~other).tolist():
            other[place] = self._name(lost, place) != self._name(placed, int(rows[place]))
        lost = lost.take_rows(other)
        taking, _ = touching(placed.start, placed.end, lost.start, lost.end)
        self._begin(placed, taking, before_ns)
        return lost.take_rows(np.arange(len(lost))[-MAX_PAST:])

    def _begin(self, fresh: _Columns, rows: Flags, since_ns: int) -> None:
        if rows.any():
            fresh.since[rows] = since_ns
            note_change(self.changes, since_ns + 1)

    def _end(self, parts: Sequence[_Columns], now_ns: int) -> None:
        ended = sum(map(len, parts))
        if not ended:
            return
        for part in parts:
            for name in part.name.tolist() if self._spans else ():
                if name in self._spans:
                    self._spans[name].until_ns = now_ns
        self._past = _joined([self._past, *parts])
        self._until = np.concatenate([self._until, np.full(ended, now_ns)])
        self._keep_past(np.arange(len(self._past))[-MAX_PAST:])
        note_change(self.changes, now_ns)

    def _keep_past(self, rows: npt.NDArray[np.int64]) -> None:
        self._past, self._until = self._past.take_rows(rows), self._until[rows]

    def forget(self, before_ns: int) -> None:
        """Drop the names of JIT code whose validity ended before a time."""
        self._keep_past(np.flatnonzero(self._until > before_ns))
        self._spans = {name: span for name, span in self._spans.items() if span.until_ns > before_ns}
        forget_changes(self.changes, before_ns)

    def find(self, pc: int, time_ns: int) -> Span[str] | None:
        """Return the name of the code at pc at a time, or None. One entry of the table is always returned as the same
        Span object.
        """
        span = self._now(pc)
        if span is not None and span.holds(pc, time_ns):
            return span
        for row in np.flatnonzero(self._over(pc) & (self._until > time_ns))[::-1].tolist():
            span = self._span(self._past, row, int(self._until[row]))
            if span.holds(pc, time_ns):
                return span
        return None

    def first(self, pc: int) -> Span[str] | None:
        """Return the earliest name of the code at pc, whatever its time. It serves code that was named only after it
        ran.
        """
        rows = np.flatnonzero(self._over(pc))
        return self._span(self._past, int(rows[0]), int(self._until[rows[0]])) if len(rows) else self._now(pc)

    def _over(self, pc: int) -> Flags:
        """Return the past entries of the table that cover pc, as a mask."""
        at = np.uint64(pc)
        over: Flags = (self._past.start <= at) & (at < self._past.end)
        return over

    def _now(self, pc: int) -> Span[str] | None:
        row = int(np.searchsorted(self._live.start, np.uint64(pc), side="right")) - 1
        return self._span(self._live, row, NEVER) if row >= 0 and pc < self._live.end[row] else None

    def _span(self, columns: _Columns, row: int, until_ns: int) -> Span[str]:
        name = int(columns.name[row])
        span = self._spans.get(name)
        if span is None:
            text = self._name(columns, row).decode("utf-8", "backslashreplace")
            start, end, since_ns = int(columns.start[row]), int(columns.end[row]), int(columns.since[row])
            span = self._spans[name] = Span(start, end, text, since_ns, until_ns)
        return span

    def _name(self, columns: _Columns, row: int) -> bytes:
        begin = int(columns.name[row])
        return bytes(self._names[begin : begin + int(columns.length[row])])
