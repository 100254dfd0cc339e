"""What is asked of the database. Only windows that are listed count: rows of others are of an attempt that failed.

SQL here is such that servers of 2018 and of today answer alike: no CTE, no maps, each subquery by its alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyprof.model.labels import Labels
from pyprof.model.profile import Profile, ValueType
from pyprof.model.reasons import said
from pyprof.records import dataclass
from pyprof.server import blocks
from pyprof.server.access import Refused
from pyprof.server.engine import Engine, literal
from pyprof.server.merged import ProfileHead, StackCost, profile_of
from pyprof.server.native import Block
from pyprof.server.rows import SegmentRows
from pyprof.server.selection import Question
from pyprof.server.stored import StoredRows
from pyprof.server.tables import NAMES

MOST_STACKS = 50_000
"""Of a profile: the dearest ones; what the others cost is head."""
MOST_SERIES = 10_000
_PARTS = 60
"""Of a span: a profile has the time of its samples so exactly."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What was left out of an answer. amount: of all of it together."""

    count: int
    amount: int


class Store:
    """For several threads. All methods raise StoreError. One thread inserts and drops.

    It has 22 methods: one a question, and the conditions that they share.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stored = StoredRows()

    def close(self) -> None:
        self._engine.close()

    def insert(self, segments: Sequence[SegmentRows]) -> None:
        """The windows last: whoever is killed before has inserted nothing that counts."""
        if not segments:
            return
        stacks, series = self._stored.lacking_stacks(segments), self._stored.lacking_series(segments)
        self._put("stacks", blocks.stacks(stacks))
        self._put("series", blocks.series(series))
        self._stored.add(stacks, series)
        self._put("samples", blocks.samples(segments))
        self._put("builds", blocks.builds(segments))
        self._put("windows", blocks.windows(segments))

    def _put(self, table: str, block: Block) -> None:
        if block.rows:
            self._engine.insert(self._engine.dialect.read(table), block)

    def listed(self, tenant: str) -> set[str]:
        """Paths of the segments that are in the database."""
        return {
            str(row[0])
            for row in self._rows(f"SELECT segment FROM {self._of('windows')} WHERE tenant = {literal(tenant)}")
        }

    def drop_day(self, day: str) -> None:
        self._stored.forget(day)
        for table in NAMES:
            self._engine.run(f"ALTER TABLE {table} {self._engine.dialect.on_cluster} DROP PARTITION {literal(day)}")

    def empty(self) -> None:
        """All rows of all tables go."""
        for day in {
            str(row[0]) for table in NAMES for row in self._rows(f"SELECT DISTINCT day FROM {self._of(table)}")
        }:
            self.drop_day(day)

    def services(self, chosen: Question) -> list[tuple[str, int, int, int, str]]:
        """Service, amount, hosts, windows, unit; dearest first."""
        found = self._rows(
            f"SELECT service, sum(amount) AS whole, uniqExact(host), count(), any(unit) FROM {self._of('windows')} "
            f"WHERE {self._where(chosen)} GROUP BY service ORDER BY whole DESC, service"
        )
        return [(str(row[0]), int(row[1]), int(row[2]), int(row[3]), str(row[4])) for row in found]

    def labels(self, chosen: Question) -> dict[int, Labels]:
        """Of each series of a service."""
        found = self._rows(
            f"SELECT series, any(names), any(label_values) FROM {self._of('series')} "
            f"WHERE {self._where(chosen, False)} GROUP BY series ORDER BY series LIMIT {MOST_SERIES + 1}"
        )
        if len(found) > MOST_SERIES:
            raise Refused("too_many_series", f"more than {MOST_SERIES:,} sets of labels are in this span")
        return {int(row[0]): tuple(zip(map(str, row[1]), map(str, row[2]), strict=True)) for row in found}

    def time_line(self, chosen: Question, step_ns: int) -> list[tuple[int, int]]:
        """(number of the step, amount) of all samples of a service, or of all services."""
        found = self._rows(
            f"SELECT intDiv(end_ns - 1 - {chosen.from_ns}, {step_ns}) AS step, sum(amount) FROM {self._of('windows')} "
            f"WHERE {self._where(chosen)} GROUP BY step ORDER BY step"
        )
        return [(int(row[0]), int(row[1])) for row in found]

    def series_line(self, chosen: Question, step_ns: int) -> list[tuple[int, int, int]]:
        """(number of the step, series, amount)."""
        found = self._rows(
            f"SELECT intDiv(end_ns - 1 - {chosen.from_ns}, {step_ns}) AS step, series, sum(value) "
            f"FROM {self._of('samples')} WHERE {self._counted(chosen)} GROUP BY step, series ORDER BY step, series"
        )
        return [(int(row[0]), int(row[1]), int(row[2])) for row in found]

    def builds(self, chosen: Question) -> list[tuple[str, str, int, int, int]]:
        """Path, build-id, amount, of it without names, and cut off there; worst first."""
        found = self._rows(
            "SELECT path, build_id, sum(amount) AS whole, sum(unnamed) AS bare, sum(cut) AS lost "
            f"FROM {self._of('builds')} WHERE {self._counted(chosen)} GROUP BY path, build_id "
            "ORDER BY bare + lost DESC, whole DESC, path, build_id"
        )
        return [(str(row[0]), str(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in found]

    def windows(self, chosen: Question) -> tuple[str, int]:
        """The unit of their values, and how long the longest is, in nanoseconds."""
        unit, longest = self._rows(
            f"SELECT any(unit), max(length_ns) FROM {self._of('windows')} WHERE {self._where(chosen)}"
        )[0]
        return str(unit) or "nanoseconds", int(longest)

    def profile(self, chosen: Question, by_service: bool = False) -> Profile:
        """by_service: the service is each sample's thread. Raises Refused where there is nothing."""
        labels = self.labels(chosen)
        where = self._of_series(chosen, labels)
        by_stack = (
            f"SELECT stack, stack2, sum(value) AS whole FROM {self._of('samples')} WHERE {where} GROUP BY stack, stack2"
        )
        count, whole = map(int, self._rows(f"SELECT count(), sum(whole) FROM ({by_stack}) AS sums")[0])
        if not count:
            raise Refused("nothing_there")
        dearest = (
            f"SELECT stack, stack2 FROM ({by_stack} ORDER BY whole DESC, stack, stack2 LIMIT {MOST_STACKS}) AS dear"
        )
        inside = f"(stack, stack2) {self._in()} ({dearest})" if count > MOST_STACKS else "1"
        costs = self._costs(chosen, f"{where} AND {inside}", labels, by_service)
        first, last = chosen.days
        frames = self._rows(
            f"SELECT stack, stack2, any(frames) FROM {self._of('stacks')} WHERE tenant = {literal(chosen.tenant)} "
            f"AND day >= {literal(first)} AND day <= {literal(last)} "
            f"AND (stack, stack2) {self._in()} (SELECT stack, stack2 FROM ({by_stack}) AS used) GROUP BY stack, stack2"
        )
        texts = {(int(row[0]), int(row[1])): [str(text) for text in row[2]] for row in frames}
        left = whole - sum(cost.value for cost in costs)
        return profile_of(costs, texts, self._head(chosen, where, Rest(max(count - MOST_STACKS, 0), left), whole))

    def _of_series(self, chosen: Question, labels: dict[int, Labels]) -> str:
        """A condition: samples that count and have the labels. Raises Refused where no series has."""
        if not chosen.labels:
            return self._counted(chosen)
        wanted = [series for series, found in labels.items() if set(chosen.labels) <= set(found)]
        if not wanted:
            raise Refused("nothing_there")
        return f"{self._counted(chosen)} AND series IN ({', '.join(map(str, wanted))})"

    def _costs(self, chosen: Question, where: str, labels: dict[int, Labels], by_service: bool) -> list[StackCost]:
        part_ns = max(chosen.length_ns // _PARTS, 1)
        found = self._rows(
            f"SELECT stack, stack2, {'service' if by_service else literal('')} AS thread, series, "
            f"intDiv(end_ns - 1 - {chosen.from_ns}, {part_ns}) AS part, sum(value), sum(count) "
            f"FROM {self._of('samples')} WHERE {where} GROUP BY stack, stack2, thread, series, part"
        )
        return [
            StackCost(
                (int(row[0]), int(row[1])),
                str(row[2]),
                labels.get(int(row[3]), ()),
                chosen.from_ns + int(row[4]) * part_ns,
                int(row[5]),
                int(row[6]),
            )
            for row in found
        ]

    def _head(self, chosen: Question, where: str, rest: Rest, whole: int) -> ProfileHead:
        """Windows that have such samples."""
        unit, covered, windows = self._rows(
            f"SELECT any(unit), sum(length_ns), count() FROM {self._of('windows')} WHERE {self._where(chosen)} "
            f"AND batch {self._in()} (SELECT batch FROM {self._of('samples')} WHERE {where})"
        )[0]
        more = ""
        if rest.count:
            part = f"{100 * rest.amount / max(whole, 1):.2f}"
            more = said("stacks_left_out", count=f"{rest.count:,}", part=part)
        note = said("read_from_windows", count=f"{int(windows):,}", more=more)
        value_type = ValueType(chosen.type, str(unit))
        return ProfileHead(chosen.service or "all services", value_type, chosen.from_ns, int(covered), note)

    def _rows(self, sql: str) -> list[list[Any]]:
        return self._engine.rows(sql)

    def _of(self, table: str) -> str:
        return self._engine.dialect.read(table)

    def _in(self) -> str:
        return "GLOBAL IN" if self._engine.dialect.cluster else "IN"

    def _where(self, chosen: Question, timed: bool = True) -> str:
        first, last = chosen.days
        found = [f"tenant = {literal(chosen.tenant)}", f"type = {literal(chosen.type)}"]
        found += [f"day >= {literal(first)}", f"day <= {literal(last)}"]
        if chosen.service:
            found.append(f"service = {literal(chosen.service)}")
        if timed:
            found += [f"end_ns > {chosen.from_ns}", f"end_ns <= {chosen.to_ns}"]
        return " AND ".join(found)

    def _counted(self, chosen: Question) -> str:
        """Rows of windows that are listed."""
        where = self._where(chosen)
        return f"{where} AND batch {self._in()} (SELECT batch FROM {self._of('windows')} WHERE {where})"
