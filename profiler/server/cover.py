"""Which rows a question counts: those by hours of whole hours, those by windows at the edges and of late windows.

Each window counts once. A roll is the rows by hours of some windows of an hour, and says which: those whose batch is
not above its own, for batches grow. Of an hour whose rolls are taken, only windows above them are taken by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyprof.records import dataclass
from pyprof.server.rows import HOUR_NS
from pyprof.server.selection import Question
from pyprof.server.tables import Dialect

HOUR = f"intDiv(end_ns - 1, {HOUR_NS})"
"""Of a window, in SQL."""
_KEY, _DAYS = f"toUInt64(day) * 1000000 + {HOUR}", 1_000_000
LEAST_NS = 12 * HOUR_NS
"""Shorter spans are asked by windows, for their times."""


@dataclass(frozen=True, slots=True)
class Roll:
    """day: since 1970, that its windows have; at midnight it is not that of the hour. upto: the last batch in it."""

    day: int
    hour: int
    number: int
    upto: int


@dataclass(frozen=True, slots=True)
class Cover:
    """rolls: whose rows count. upto: by day and hour, the last batch in them."""

    rolls: tuple[int, ...]
    upto: Mapping[tuple[int, int], int]


def above(upto: Mapping[tuple[int, int], int]) -> str:
    """A condition: windows that are in no roll. upto: by day and hour, the last batch in them."""
    if not upto:
        return "1"
    keys = [day * _DAYS + hour for day, hour in upto]
    firsts = [f"toUInt64({last + 1})" for last in upto.values()]
    return f"batch >= transform({_KEY}, {keys}, [{', '.join(firsts)}], toUInt64(0))"


def cover(chosen: Question, rolls: Iterable[Roll], sealed: Iterable[int]) -> Cover:
    """sealed: days whose rolls count for parts of an hour, too: their rows by windows are gone, or go soon."""
    whole_days, taken, upto = set(sealed), list[int](), dict[tuple[int, int], int]()
    for roll in rolls:
        begin, end = roll.hour * HOUR_NS, (roll.hour + 1) * HOUR_NS
        whole = chosen.from_ns <= begin and end <= chosen.to_ns and chosen.length_ns >= LEAST_NS
        part = begin < chosen.to_ns and chosen.from_ns < end and roll.day in whole_days
        if whole or part:
            taken.append(roll.number)
            key = roll.day, roll.hour
            upto[key] = max(upto.get(key, 0), roll.upto)
    return Cover(tuple(sorted(taken)), dict(sorted(upto.items())))


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Conditions on the two kinds of rows; none: nothing of that kind counts. One at least is there."""

    dialect: Dialect
    by_windows: str
    by_hours: str

    def inside(self, condition: str) -> CountedRows:
        """Of these rows those that fulfil it, too; none: all of them."""
        if not condition:
            return self
        both = (where and f"{where} AND {condition}" for where in (self.by_windows, self.by_hours))
        return CountedRows(self.dialect, *both)

    def summed(self, table: str, keys: Mapping[str, str], sums: Mapping[str, str]) -> str:
        """A statement: sums of these rows, by keys. table: samples or builds. keys, sums: columns by their names in the
        answer.
        """
        selected = ", ".join(f"{sql} AS {name}" if sql != name else sql for name, sql in keys.items())
        by = f"GROUP BY {', '.join(keys)}"
        kinds = ("window", self.by_windows), ("hour", self.by_hours)
        parts = [(self.dialect.read(f"{kind}_{table}"), where) for kind, where in kinds if where]
        if len(parts) == 1:
            ((rows, where),) = parts
            summed = ", ".join(f"sum({column}) AS {name}" for name, column in sums.items())
            return f"SELECT {selected}, {summed} FROM {rows} WHERE {where} {by}"
        summed = ", ".join(f"sum({column}) AS {name}_part" for name, column in sums.items())
        each = [f"SELECT {selected}, {summed} FROM {rows} WHERE {where} {by}" for rows, where in parts]
        whole = ", ".join(f"sum({name}_part) AS {name}" for name in sums)
        return f"SELECT {', '.join(keys)}, {whole} FROM ({' UNION ALL '.join(each)}) AS parts {by}"
