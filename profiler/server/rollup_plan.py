"""Query plan: use hourly rollups for whole hours, and raw windows at the edges and for late windows.

Each window counts once. A rollup sums up some windows of an hour: those whose batch is not above its own, since batch
numbers grow. If an hour's rollups are used, only windows with later batches are read as raw windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyprof.records import dataclass
from pyprof.server.migrations import Dialect
from pyprof.server.sample_selection import SampleQuery
from pyprof.server.segment_rows import HOUR_NS

HOUR = f"intDiv(end_ns - 1, {HOUR_NS})"
"""SQL expression for the hour of a window."""
_KEY, _DAYS = f"toUInt64(day) * 1000000 + {HOUR}", 1_000_000
MIN_NS = 12 * HOUR_NS
"""Minimum length of a query's span that uses rollups; shorter spans use raw windows, which have exact times."""


@dataclass(frozen=True, slots=True)
class Rollup:
    """The rollup of one hour of windows.

    Attributes:
        day: Day of the windows' ends since 1970. At midnight it differs from the day of the hour.
        hour: Hour since 1970.
        number: Number of the rollup.
        upto: Number of the last batch of insertions in it.
    """

    day: int
    hour: int
    number: int
    upto: int


@dataclass(frozen=True, slots=True)
class RollupPlan:
    """The hourly rollups and raw windows that a query reads.

    Attributes:
        rolls: Numbers of the rollups.
        upto: Number of the last batch of insertions in them, by (day, hour).
    """

    rolls: tuple[int, ...]
    upto: Mapping[tuple[int, int], int]


def above(upto: Mapping[tuple[int, int], int]) -> str:
    """Return an SQL condition for windows that are in no hourly rollup.

    Args:
        upto: Last batch in the rollups, by (day, hour).
    """
    if not upto:
        return "1"
    keys = [day * _DAYS + hour for day, hour in upto]
    firsts = [f"toUInt64({last + 1})" for last in upto.values()]
    return f"batch >= transform({_KEY}, {keys}, [{', '.join(firsts)}], toUInt64(0))"


def choose_rollups(chosen: SampleQuery, rolls: Iterable[Rollup], sealed: Iterable[int]) -> RollupPlan:
    """Choose the hourly rollups and raw windows that a query reads.

    Args:
        sealed: Days whose rollups are also used for parts of an hour, because their raw rows are gone or will be soon.
    """
    whole_days, taken, upto = set(sealed), list[int](), dict[tuple[int, int], int]()
    for roll in rolls:
        begin, end = roll.hour * HOUR_NS, (roll.hour + 1) * HOUR_NS
        whole = chosen.from_ns <= begin and end <= chosen.to_ns and chosen.length_ns >= MIN_NS
        part = begin < chosen.to_ns and chosen.from_ns < end and roll.day in whole_days
        if whole or part:
            taken.append(roll.number)
            key = roll.day, roll.hour
            upto[key] = max(upto.get(key, 0), roll.upto)
    return RollupPlan(tuple(sorted(taken)), dict(sorted(upto.items())))


@dataclass(frozen=True, slots=True)
class CountedRows:
    """SQL conditions for the rows that a query counts; "" means that no row of that kind counts. At least one is
    given.
    """

    dialect: Dialect
    by_windows: str
    by_hours: str

    def inside(self, condition: str) -> CountedRows:
        """Return the SQL conditions narrowed by another one, or unchanged if it is ""."""
        if not condition:
            return self
        both = (where and f"{where} AND {condition}" for where in (self.by_windows, self.by_hours))
        return CountedRows(self.dialect, *both)

    def summed(self, table: str, keys: Mapping[str, str], sums: Mapping[str, str]) -> str:
        """Return an SQL statement for sums of the counted rows by keys.

        Args:
            table: "samples" or "builds".
            keys: Expressions by their names in the result.
            sums: Columns by their names in the result.
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
