"""Names of code by address and time, stored in columns. An entry takes 30 bytes and its name, for millions of entries.

It is equivalent to a CodeMap of strings, for descriptions that arrive in large numbers. Names are decoded on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.model.jit_code_map import (
    ALWAYS,
    MAX_PAST,
    NEVER,
    Flags,
    Span,
    forget_changes,
    note_change,
    touching,
    uncovered,
)
from pyprof.records import dataclass

U64 = npt.NDArray[np.uint64]


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
    """Columns of a table of code names that grow in place, so that no column exists twice in memory."""

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
    """Names of JIT code by address and time. Valid entries never overlap.

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
        """Return the code names of a reading that are new. Set `still` for entries that exist already."""
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
        """Return which ranges of a reading already have an entry with the same code name."""
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
        """Return which valid entries the new code names overlap. Those new ones are valid from `before_ns` on."""
        ended, taking = touching(self._live.start, self._live.end, fresh.start, fresh.end)
        self._begin(fresh, taking, before_ns)
        return ended

    def _replaced_at_once(self, placed: _Columns, lost: _Columns, before_ns: int) -> _Columns:
        """Return the newest code names that others of the same reading overlap, without duplicates.

        The overlapping ones are valid from `before_ns` on.
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
        """Drop the names of JIT code that ended before a time."""
        self._keep_past(np.flatnonzero(self._until > before_ns))
        self._spans = {name: span for name, span in self._spans.items() if span.until_ns > before_ns}
        forget_changes(self.changes, before_ns)

    def find(self, pc: int, time_ns: int) -> Span[str] | None:
        """Return the name of the code at pc at a time, or None. The same entry is always the same object."""
        span = self._now(pc)
        if span is not None and span.holds(pc, time_ns):
            return span
        for row in np.flatnonzero(self._over(pc) & (self._until > time_ns))[::-1].tolist():
            span = self._span(self._past, row, int(self._until[row]))
            if span.holds(pc, time_ns):
                return span
        return None

    def first(self, pc: int) -> Span[str] | None:
        """Return the first name of the code at pc at any time, for code whose name came too late."""
        rows = np.flatnonzero(self._over(pc))
        return self._span(self._past, int(rows[0]), int(self._until[rows[0]])) if len(rows) else self._now(pc)

    def _over(self, pc: int) -> Flags:
        """Return which past entries of the table of code names contain pc."""
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
