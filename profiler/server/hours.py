"""Days that are old have their samples by hours: a row a stack, a label set and an hour, in place of one a window.

Such a row has the batch and the end of the last window that had the stack in this hour. So it counts as others do, and
no question has to know. Rows of builds are alike. Beside them each window keeps a row without cost for each of its
label sets: how long windows with these labels are is told from it. A day's new rows take the place of the old ones in
one step, when their sums agree. Windows that come later stand beside them, until they are a tenth of the day's.
"""

from __future__ import annotations

from pyprof.server.engine import Engine, StoreError, literal

HOUR_NS = 3600 * 10**9
_LATE = 1.1
_MEMORY = "SETTINGS max_bytes_before_external_group_by = 1073741824"
_HEAD = "day, tenant, type, service"
_HOUR = f"intDiv(end_ns - 1, {HOUR_NS})"
_COLUMNS = {
    "samples": f"{_HEAD}, end_ns, batch, series, stack, stack2, value, count",
    "builds": f"{_HEAD}, end_ns, batch, path, build_id, amount, unnamed, cut",
}
_ROWS = {
    "samples": (
        f"SELECT {_HEAD}, max(end_ns), argMax(batch, end_ns), series, stack, stack2, sum(value), sum(count) "
        f"FROM {{}} GROUP BY {_HEAD}, {_HOUR}, series, stack, stack2 {_MEMORY}",
        f"SELECT {_HEAD}, any(end_ns), batch, series, min(stack), argMin(stack2, stack), toInt64(0), toInt64(0) "
        f"FROM {{}} GROUP BY {_HEAD}, batch, series {_MEMORY}",
    ),
    "builds": (
        f"SELECT {_HEAD}, max(end_ns), argMax(batch, end_ns), path, build_id, sum(amount), sum(unnamed), sum(cut) "
        f"FROM {{}} GROUP BY {_HEAD}, {_HOUR}, path, build_id {_MEMORY}",
    ),
}
_SUMS = {"samples": "sum(value), sum(count)", "builds": "sum(amount), sum(cut)"}


class Hours:
    """For the one thread that inserts and drops. Its methods raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def due(self, before: str) -> list[str]:
        """Days before that one whose windows have rows of their own, oldest first."""
        found = self._engine.rows(
            f"SELECT day, count() FROM {self._of('windows')} WHERE day < {literal(before)} GROUP BY day ORDER BY day"
        )
        done = self._engine.rows(f"SELECT day, max(windows) FROM {self._of('rolled')} GROUP BY day")
        rolled = {str(day): int(windows) for day, windows in done}
        return [str(day) for day, windows in found if int(windows) > _LATE * rolled.get(str(day), 0)]

    def roll(self, day: str) -> None:
        """Whoever is killed before the end has changed nothing, or what can be done again."""
        count = self._engine.rows(f"SELECT count() FROM {self._of('windows')} WHERE day = {literal(day)}")[0][0]
        for table, selects in _ROWS.items():
            self._replace(table, selects, day)
        self._engine.put(f"INSERT INTO {self._of('rolled')} (day, windows) VALUES ({literal(day)}, {int(count)})")

    def _replace(self, table: str, selects: tuple[str, ...], day: str) -> None:
        by_hours, changed = f"{table}_hours", f"ALTER TABLE {{}} {self._engine.dialect.on_cluster}"
        empty = f"{changed.format(by_hours)} DROP PARTITION {literal(day)}"
        among = "GLOBAL IN" if self._engine.dialect.cluster else "IN"
        listed = f"SELECT batch FROM {self._of('windows')} WHERE day = {literal(day)}"
        counted = f"{self._of(table)} WHERE day = {literal(day)} AND batch {among} ({listed})"
        self._engine.run(empty)
        for select in selects:
            self._engine.put(f"INSERT INTO {self._of(by_hours)} ({_COLUMNS[table]}) {select.format(counted)}")
        sums = f"SELECT {_SUMS[table]} FROM"
        before = self._engine.rows(f"{sums} {counted}")
        if self._engine.rows(f"{sums} {self._of(by_hours)} WHERE day = {literal(day)}") != before:
            raise StoreError(f"the sums of {table} by hours are not those of {day}")
        self._engine.run(f"{changed.format(table)} REPLACE PARTITION {literal(day)} FROM {by_hours}")
        self._engine.run(empty)

    def _of(self, table: str) -> str:
        return self._engine.dialect.read(table)
