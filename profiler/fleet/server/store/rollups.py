"""Hourly rollups in the server's database: one row for each stack, label set and hour. A query plan says where they are
used.

Each window counts once. A rollup sums up the windows of an hour that no earlier rollup has, up to a batch of
insertions. Batch numbers grow, so a query that uses an hour's rollups reads only windows with later batches as raw
windows.

An hour that ended a while ago is rolled up: the rows of its windows are summed, then a row in `rolls` makes the rollup
valid. A server that is killed before that has changed nothing. Late windows remain raw until they are a tenth of the
hour's windows; then another rollup is made of them. For an old day all windows are rolled up, and the raw rows are
dropped.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping

from pyprof.fleet.server.ingest.segment_to_rows import HOUR_NS
from pyprof.fleet.server.query.sample_selection import SampleQuery
from pyprof.fleet.server.store.clickhouse_engine import Dialect, Engine, StoreError, literal
from pyprof.lazy_dataclasses import dataclass

HOUR = f"intDiv(end_ns - 1, {HOUR_NS})"
"""SQL expression for the hour to which a window belongs."""
_KEY, _DAYS = f"toUInt64(day) * 1000000 + {HOUR}", 1_000_000
MIN_NS = 12 * HOUR_NS
"""Minimum length in nanoseconds of a query's span for which rollups are used. Shorter spans use raw windows, which have
exact times.
"""


@dataclass(frozen=True, slots=True)
class Rollup:
    """The rollup of one hour of windows.

    Attributes:
        day: Day of the windows' ends since 1970. For a window that ends at midnight, it differs from the day of the
            hour.
        hour: Hour since 1970.
        number: Number that identifies the rollup.
        upto: Number of the last batch of insertions that it includes.
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
        upto: Number of the last batch of insertions that the rollups of an hour include, by (day, hour).
    """

    rolls: tuple[int, ...]
    upto: Mapping[tuple[int, int], int]


def above(upto: Mapping[tuple[int, int], int]) -> str:
    """Return an SQL condition for windows that are in no hourly rollup yet.

    Args:
        upto: Number of the last batch that the rollups of an hour include, by (day, hour).
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
    """Two SQL conditions for the rows that a query counts: rows of windows, and rows of hourly rollups. "" means that
    no row of that kind counts. At most one of them is "".
    """

    dialect: Dialect
    by_windows: str
    by_hours: str

    def inside(self, condition: str) -> CountedRows:
        """Return both SQL conditions, each combined with a further condition by AND. If the latter is "", they are
        unchanged.
        """
        if not condition:
            return self
        both = (where and f"{where} AND {condition}" for where in (self.by_windows, self.by_hours))
        return CountedRows(self.dialect, *both)

    def summed(self, table: str, keys: Mapping[str, str], sums: Mapping[str, str]) -> str:
        """Return an SQL statement that sums columns of the counted rows, grouped by keys.

        Args:
            table: "samples" or "builds".
            keys: SQL expressions to group by, by their names in the result.
            sums: Columns to sum, by their names in the result.
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


_LATE = 1.1
_LATENESS_NS = 600 * 10**9
"""Time after the end of an hour in which late windows still enter its first rollup, in nanoseconds."""
_MEMORY = "SETTINGS max_bytes_before_external_group_by = 1073741824"
_HEAD = "day, tenant, type, service"
_KEYS = {"samples": "series, stack, stack2", "builds": "path, build_id"}
_SUMS = {"samples": ("value", "count"), "builds": ("amount", "unnamed", "cut")}
_FLOAT_SUMS: Mapping[str, tuple[str, ...]] = {"samples": ("squares",), "builds": ()}
"""Columns of rollups, by table, that are sums of floating-point numbers. Their rounding errors depend on the order of
addition, so they are not compared.
"""


@dataclass(frozen=True, slots=True)
class WindowsOfHour:
    """An hour and the windows in it, for the creation of rollups.

    Attributes:
        day: Day of the windows' ends.
        windows: Number of windows that are completely inserted.
        rolled: Number of windows that rollups include.
        upto: Number of the last batch of insertions that the rollups include.
    """

    day: str
    hour: int
    windows: int
    rolled: int
    upto: int


class HourlyRollups:
    """The creation of hourly rollups, in the thread that inserts and drops rows. Methods raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[WindowsOfHour] = deque()

    def find_due_hours(self, now_ns: int) -> None:
        """Find the hours for which a rollup is due. Each call of roll_next() then rolls up one of them."""
        self._waiting = deque(self.due(now_ns))

    def roll_next(self) -> None:
        """Create the rollup of one of the hours that find_due_hours() has found. New windows wait meanwhile, so a call
        makes only one rollup.
        """
        if self._waiting:
            self.roll(self._waiting.popleft())

    def due(self, now_ns: int) -> list[WindowsOfHour]:
        """Return the hours that need a rollup, oldest first."""
        ended = f"end_ns <= {(now_ns - _LATENESS_NS) // HOUR_NS * HOUR_NS}"
        return [each for each in self._hours(ended) if each.windows > _LATE * each.rolled]

    def roll(self, hour: WindowsOfHour) -> None:
        """Create a rollup of the windows of an hour that are in no rollup yet."""
        where = f"day = {literal(hour.day)} AND {HOUR} = {hour.hour}"
        listed = f"{self._of('windows')} WHERE {where}{f' AND batch > {hour.upto}' if hour.rolled else ''}"
        count, upto = map(int, self._engine.rows(f"SELECT count(), max(batch) FROM {listed}")[0])
        if not count:
            return
        among = "GLOBAL IN" if self._engine.dialect.cluster else "IN"
        counted = f"day = {literal(hour.day)} AND hour = {hour.hour} AND batch {among} (SELECT batch FROM {listed})"
        number = secrets.randbits(63)
        for table in _SUMS:
            self._insert(table, number, counted)
        self._engine.put(
            f"INSERT INTO {self._of('rolls')} (day, hour, roll, upto, windows) "
            f"VALUES ({literal(hour.day)}, {hour.hour}, {number}, {upto}, {count})"
        )

    def _insert(self, table: str, number: int, counted: str) -> None:
        keys, compared = _KEYS[table], _SUMS[table]
        columns = (*compared, *_FLOAT_SUMS[table])
        sums, added = (", ".join(f"sum({column})" for column in each) for each in (compared, columns))
        by_windows, by_hours = self._of(f"window_{table}"), self._of(f"hour_{table}")
        self._engine.put(
            f"INSERT INTO {by_hours} ({_HEAD}, end_ns, roll, {keys}, {', '.join(columns)}) "
            f"SELECT {_HEAD}, max(end_ns), toUInt64({number}), {keys}, {added} FROM {by_windows} WHERE {counted} "
            f"GROUP BY {_HEAD}, {keys} {_MEMORY}"
        )
        before = self._engine.rows(f"SELECT {sums} FROM {by_windows} WHERE {counted}")
        if self._engine.rows(f"SELECT {sums} FROM {by_hours} WHERE roll = {number}") != before:
            raise StoreError(f"the sums of {table} by hours are others than those by windows")

    def due_days(self, before: str) -> list[str]:
        """Return the days before the given day whose raw rows still exist, oldest first."""
        found = self._engine.rows(
            f"SELECT day, count() FROM {self._of('windows')} WHERE day < {literal(before)} GROUP BY day ORDER BY day"
        )
        sealed = self._sealed()
        return [str(day) for day, windows in found if int(windows) > _LATE * sealed.get(str(day), 0)]

    def seal(self, day: str) -> bool:
        """Take the next of two steps by which rollups replace a day's raw rows. Return True if it was the second step.

        In the first step, all windows are rolled up, and from then on queries use the rollups also for parts of hours.
        In the second step, the raw rows are dropped. A later call takes it, when queries from before the first step
        have ended.
        """
        hours = self._hours(f"day = {literal(day)}")
        lacking = [each for each in hours if each.windows > each.rolled]
        for each in lacking:
            self.roll(each)
        second = not lacking and day in self._sealed()
        if second:
            for table in _SUMS:
                dropped = f"ALTER TABLE window_{table} {self._engine.dialect.on_cluster} DROP PARTITION {literal(day)}"
                self._engine.run(dropped)
        windows = sum(each.windows for each in hours) if second else 0
        self._engine.put(f"INSERT INTO {self._of('rolled')} (day, windows) VALUES ({literal(day)}, {windows})")
        return second

    def find_inconsistent_days(self) -> list[str]:
        """Return the days whose rollups count more or fewer windows than the database has.

        A server that is killed while it deletes windows leaves such days. Their rollups must be made again.
        """
        rolls = self._engine.rows(
            f"SELECT day, toUInt32(day), hour, max(upto), sum(windows) FROM {self._of('rolls')} GROUP BY day, hour"
        )
        upto = {(int(row[1]), int(row[2])): int(row[3]) for row in rolls}
        found = self._engine.rows(
            f"SELECT day, {HOUR} AS hour, count() FROM {self._of('windows')} WHERE NOT {above(upto)} GROUP BY day, hour"
        )
        listed = {(str(day), int(hour)): int(windows) for day, hour, windows in found}
        return sorted({str(row[0]) for row in rolls if listed.get((str(row[0]), int(row[2]))) != int(row[4])})

    def _hours(self, where: str) -> list[WindowsOfHour]:
        """Return the hours of windows that meet an SQL condition, oldest first."""
        rolls = self._engine.rows(
            f"SELECT day, hour, sum(windows), max(upto) FROM {self._of('rolls')} GROUP BY day, hour"
        )
        rolled = {(str(day), int(hour)): (int(windows), int(upto)) for day, hour, windows, upto in rolls}
        found = self._engine.rows(
            f"SELECT day, {HOUR} AS hour, count() FROM {self._of('windows')} WHERE {where} "
            "GROUP BY day, hour ORDER BY day, hour"
        )
        return [
            WindowsOfHour(str(day), int(hour), int(windows), *rolled.get((str(day), int(hour)), (0, 0)))
            for day, hour, windows in found
        ]

    def _sealed(self) -> Mapping[str, int]:
        found = self._engine.rows(f"SELECT day, max(windows) FROM {self._of('rolled')} GROUP BY day")
        return {str(day): int(windows) for day, windows in found}

    def _of(self, table: str) -> str:
        return self._engine.dialect.read(table)
