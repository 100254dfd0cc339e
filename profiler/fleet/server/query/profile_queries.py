"""SQL queries for profiles, rates, time lines, labels and builds of services.

Only windows in the table of windows count: other rows were left by an insertion that failed. The SQL gives the same
results on servers of 2018 and of today: it has no CTE and no maps, and each subquery has an alias.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import Any

from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest.segment_to_rows import HOUR_NS, hour_of
from pyprof.fleet.server.query.rows_to_profile import (
    ProfileHead,
    Rest,
    Stack,
    StackCost,
    dearest,
    profile_of,
    spans_without_windows,
)
from pyprof.fleet.server.query.sample_selection import SampleQuery
from pyprof.fleet.server.query.time_line import HostStep, SeriesStep
from pyprof.fleet.server.store.clickhouse_engine import Engine, StoreError, literal
from pyprof.fleet.server.store.rollups import HOUR, CountedRows, Rollup, above, choose_rollups
from pyprof.fleet.server.store.symbol_files import SymbolFiles
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.analysis.confidence_interval import SamplingBasis
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile, ValueType
from pyprof.model.thread_identity import Labels

MAX_STACKS = 50_000
"""Maximum number of stacks of a queried profile. The most expensive ones are kept, and the response states the amount
of the others.
"""
MAX_SERIES = 10_000
_MAX_COSTS = 200_000
"""Maximum number of stack costs of a queried profile that are added up in Python. Above it, the database selects the
most expensive stacks.
"""
_MAX_NAMED = 2000
"""Maximum number of stacks that an SQL statement lists one by one."""
_PARTS, _PARTS_OF_ALL = 60, 200
"""Numbers of parts into which a query's span is divided: without labels, and at most for all sets of labels together.
They limit the accuracy of sample times.
"""
_MAX_SPANS = 20_000
"""Maximum number of different ends of windows up to which a profile states the gaps between its windows."""
_TOO_DEAR = {159, 241}
"""ClickHouse's error numbers of statements that exceeded their limit of time or of memory."""


@dataclass(frozen=True, slots=True)
class _Detail:
    """The detail in which a query sums the costs of stacks: separately for which label sets, and for how many parts of
    the span.

    Attributes:
        labels: Labels of each series, empty to ignore labels.
        parts: Number of parts of the span.
    """

    labels: Mapping[int, Labels]
    parts: int


_COARSE = _Detail({}, 1)


@dataclass(frozen=True, slots=True)
class Rate:
    """The amount that a service uses per second of recorded time.

    Attributes:
        per_second: Amount per second of recorded time, the hosts' rates added.
        recorded_s: Recorded time of the host that was recorded longest, in seconds.
    """

    per_second: float
    recorded_s: float


@dataclass(frozen=True, slots=True)
class ServiceAmount:
    """The amount that a service used, with the hosts and windows that it comes from.

    Attributes:
        amount: Sum of the values of its samples.
        hosts: Number of hosts. Windows that name no host count as one.
        windows_without_host: Number of windows with samples that name no host.
    """

    service: str
    amount: int
    hosts: int
    windows: int
    unit: str
    windows_without_host: int


class ClientDisconnected(Exception):
    """The client has disconnected and does not wait for the response."""


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A query of a client that runs in the database and can be cancelled.

    Attributes:
        seconds: Maximum time of each SQL statement in seconds.
        bytes: Maximum memory of each SQL statement in bytes.
        mark: Comment in the SQL statements, by which the database finds them to cancel them.
        gone: Set when the client has disconnected.
    """

    seconds: int
    bytes: int
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    gone: threading.Event = field(default_factory=threading.Event)


class ClientQueries:
    """The database queries for one client. All methods raise StoreError if the database fails, Refused if a query costs
    too much, and ClientDisconnected if the client has disconnected.
    """

    def __init__(self, engine: Engine, asked: RunningQuery, symbols: SymbolFiles | None = None) -> None:
        self._engine, self._asked, self._symbols = engine, asked, symbols

    def services(self, chosen: SampleQuery) -> list[ServiceAmount]:
        """Return the services that have windows in the selection, most expensive first."""
        found = self._rows(
            "SELECT service, sum(amount) AS whole, uniqExact(host), count(), any(unit), "
            f"sum(host = '' AND amount != 0) FROM ({self._windows(chosen)}) AS chosen "
            "GROUP BY service ORDER BY whole DESC, service"
        )
        return [
            ServiceAmount(str(row[0]), int(row[1]), int(row[2]), int(row[3]), str(row[4]), int(row[5])) for row in found
        ]

    def _windows(self, chosen: SampleQuery) -> str:
        """Return an SQL statement that selects the windows of a query, with service, host, unit, end_ns, length_ns and
        amount. If samples are selected by labels, only windows with such samples count, and only with the amount of
        these samples.
        """
        where, windows = self._where(chosen), self._of("windows")
        if not chosen.labels:
            return f"SELECT service, host, unit, end_ns, length_ns, amount FROM {windows} WHERE {where}"
        has = " AND ".join(
            f"arrayExists((n, v) -> n = {literal(name)} AND v = {literal(value)}, names, label_values)"
            for name, value in chosen.labels
        )
        wanted = f"SELECT series FROM {self._of('series')} WHERE {self._where(chosen, False)} AND {has}"
        of_series = f"{where} AND series {self._in()} ({wanted})"
        batches = f"SELECT batch FROM {self._of('window_series')} WHERE {of_series}"
        return (
            "SELECT max(name) AS service, max(machine) AS host, max(measure) AS unit, max(till) AS end_ns, "
            "max(length) AS length_ns, sum(part) AS amount FROM ("
            "SELECT batch, toString(service) AS name, toString(host) AS machine, toString(unit) AS measure, "
            f"end_ns AS till, length_ns AS length, toInt64(0) AS part FROM {windows} "
            f"WHERE {where} AND batch {self._in()} ({batches}) "
            f"UNION ALL SELECT batch, '', '', '', toInt64(0), toInt64(0), amount FROM {self._of('window_series')} "
            f"WHERE {self._listed(chosen)} AND series {self._in()} ({wanted})) AS merged GROUP BY batch"
        )

    def rates(self, chosen: SampleQuery) -> dict[str, Rate]:
        """Return each service's amount per second of recorded time.

        The time of a host counts once for each window, however many segments the window has. The rates of a service's
        hosts are added, so a host that was recorded for a part of the span counts as much as the others.
        """
        windows = (
            "SELECT service, host, end_ns, sum(amount) AS amount, max(length_ns) AS length "
            f"FROM ({self._windows(chosen)}) AS chosen GROUP BY service, host, end_ns"
        )
        hosts = (
            "SELECT service, host, sum(amount) AS amount, sum(length) AS length "
            f"FROM ({windows}) AS windows GROUP BY service, host"
        )
        found = self._rows(
            "SELECT service, sum(amount / greatest(length, 1)), max(length) "
            f"FROM ({hosts}) AS hosts GROUP BY service ORDER BY service"
        )
        return {str(row[0]): Rate(1e9 * float(row[1]), int(row[2]) / 1e9) for row in found}

    def labels(self, chosen: SampleQuery) -> dict[int, Labels]:
        """Return the labels of each series (label set) of a service.

        Raises:
            Refused: There are too many series.
        """
        found = self._rows(
            f"SELECT series, any(names), any(label_values) FROM {self._of('series')} "
            f"WHERE {self._where(chosen, False)} GROUP BY series ORDER BY series LIMIT {MAX_SERIES + 1}"
        )
        if len(found) > MAX_SERIES:
            raise Refused("too_many_series", f"more than {MAX_SERIES:,} sets of labels are in this span")
        return {int(row[0]): tuple(zip(map(str, row[1]), map(str, row[2]), strict=True)) for row in found}

    def host_steps(self, chosen: SampleQuery, step_ns: int) -> list[HostStep]:
        """Return for each host the time steps of the query that its windows cover, with their amount.

        The windows of one host that end at the same time cover their time once.
        """
        windows = (
            f"SELECT toUInt64(0) AS series, host, end_ns, max(length_ns) AS length, sum(amount) AS amount "
            f"FROM {self._of('windows')} WHERE {self._where(chosen)} GROUP BY host, end_ns"
        )
        found = self._rows(f"{_spread(windows, chosen.from_ns, step_ns)} ORDER BY step, host")
        return [HostStep(int(row[0]), str(row[2]), int(row[3]), int(row[4])) for row in found]

    def series_steps(self, chosen: SampleQuery, step_ns: int) -> list[SeriesStep]:
        """Return the amount of each series on each host in each time step of the query that windows cover."""
        windows = (
            "SELECT series, host, end_ns, length_ns AS length, amount FROM "
            f"(SELECT batch, series, amount FROM {self._of('window_series')} WHERE {self._where(chosen)}) AS costs "
            "ALL INNER JOIN "
            f"(SELECT batch, host, end_ns, length_ns FROM {self._of('windows')} WHERE {self._where(chosen)}) AS listed "
            "USING batch"
        )
        found = self._rows(f"{_spread(windows, chosen.from_ns, step_ns)} ORDER BY step, host, series")
        return [SeriesStep(int(row[0]), int(row[1]), str(row[2]), int(row[3])) for row in found]

    def builds(self, chosen: SampleQuery) -> list[tuple[str, str, int, int, int]]:
        """Return the object files that have samples as (path, build ID, amount, amount without function names, amount
        of stacks truncated there). The file with the largest problem comes first.
        """
        sums = {"whole": "amount", "bare": "unnamed", "lost": "cut"}
        summed = self._counted(chosen).summed("builds", {"path": "path", "build_id": "build_id"}, sums)
        found = self._rows(
            f"SELECT path, build_id, whole, bare, lost FROM ({summed}) AS summed "
            "ORDER BY bare + lost DESC, whole DESC, path, build_id"
        )
        return [(str(row[0]), str(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in found]

    def windows(self, chosen: SampleQuery) -> tuple[str, int]:
        """Return the unit of the values in the selected windows, and the length of a typical window, their median, in
        nanoseconds. It is 0 without windows.
        """
        unit, count, typical = self._rows(
            f"SELECT any(unit), count(), quantileExact(0.5)(length_ns) FROM {self._of('windows')} "
            f"WHERE {self._where(chosen)}"
        )[0]
        return str(unit) or "nanoseconds", int(typical) if int(count) else 0

    def profile(self, chosen: SampleQuery) -> Profile:
        """Return the profile of the selected samples. Raise Refused if there are none."""
        return self.profile_with_basis(chosen)[0]

    def profile_by_windows(self, chosen: SampleQuery) -> Profile:
        """Return the profile of the selected samples with the total time of all hosts' windows as its duration, so a
        comparison does not depend on the number of hosts. Raise Refused if there are none.
        """
        found, _, covered_ns = self._profile(chosen, False)
        return replace(found, duration_ns=covered_ns, gaps=())

    def profile_with_basis(self, chosen: SampleQuery, by_service: bool = False) -> tuple[Profile, SamplingBasis | None]:
        """Return the profile of the selected samples, and the number of samples on which its shares are based
        (SamplingBasis). The latter is None if values are measured and not sampled.

        Args:
            chosen: The selected samples.
            by_service: True to make the service the thread of each sample.

        Raises:
            Refused: There are no such samples.
        """
        found, basis, _ = self._profile(chosen, by_service)
        return found, basis

    def _profile(self, chosen: SampleQuery, by_service: bool) -> tuple[Profile, SamplingBasis | None, int]:
        """Return the profile of the selected samples, the samples on which its shares are based, and the time of all
        windows in nanoseconds.
        """
        labels = self.labels(chosen)
        wanted = self._wanted(chosen, labels)
        counted = self._counted(chosen, wanted)
        detail = _Detail(labels, max(min(_PARTS, _PARTS_OF_ALL // max(len(labels), 1)), 1))
        costs = self._costs(chosen, counted, by_service, detail)
        if len(costs) > _MAX_COSTS:
            costs = self._costs(chosen, counted, by_service, _COARSE)
        if len(costs) > _MAX_COSTS:
            costs, rest = self._dearest(chosen, counted, by_service)
        else:
            costs, rest = dearest(costs, MAX_STACKS)
        if not costs:
            raise Refused("nothing_there")
        texts = self._frames(chosen, counted, {cost.stack for cost in costs})
        whole = rest.amount + sum(cost.value for cost in costs)
        named = self._symbols.make_completer(chosen.tenant) if self._symbols is not None else None
        head = self._head(chosen, wanted, rest, whole)
        return *profile_of(costs, texts, head, named), head.covered_ns

    def has_symbols(self, tenant: str, build_id: str) -> bool:
        return self._symbols is not None and self._symbols.has(tenant, build_id)

    def _dearest(self, chosen: SampleQuery, counted: CountedRows, by_service: bool) -> tuple[list[StackCost], Rest]:
        """Return the costs of the most expensive stacks, and the number and total cost of the others. The database
        selects the stacks, because there are too many rows for Python.
        """
        by_stack = _by_stack(counted)
        count, whole = map(int, self._rows(f"SELECT count(), sum(whole) FROM ({by_stack}) AS sums")[0])
        chosen_ones = (
            f"SELECT stack, stack2 FROM ({by_stack} ORDER BY whole DESC, stack, stack2 LIMIT {MAX_STACKS}) AS dear"
        )
        inside = f"(stack, stack2) {self._in()} ({chosen_ones})"
        costs = self._costs(chosen, counted.inside(inside), by_service, _COARSE)
        return costs, Rest(max(count - MAX_STACKS, 0), whole - sum(cost.value for cost in costs))

    def _frames(self, chosen: SampleQuery, counted: CountedRows, stacks: set[Stack]) -> dict[Stack, list[str]]:
        """Return the frames of each stack from the database, outermost first. The SQL statement lists the stacks if
        they are few. Otherwise it repeats the search for them.
        """
        used = f"{self._in()} (SELECT stack, stack2 FROM ({_by_stack(counted)}) AS used)"
        if len(stacks) <= _MAX_NAMED:
            used = f"IN ({', '.join(f'({one}, {other})' for one, other in sorted(stacks))})"
        first, last = chosen.days
        found = self._rows(
            f"SELECT stack, stack2, any(frames) FROM {self._of('stacks')} WHERE tenant = {literal(chosen.tenant)} "
            f"AND day >= {literal(first)} AND day <= {literal(last)} "
            f"AND (stack, stack2) {used} GROUP BY stack, stack2"
        )
        return {(int(row[0]), int(row[1])): [str(text) for text in row[2]] for row in found}

    def _wanted(self, chosen: SampleQuery, labels: dict[int, Labels]) -> str:
        """Return an SQL condition for samples that have the selected labels, "" if all samples match.

        Raises:
            Refused: No series has the labels.
        """
        if not chosen.labels:
            return ""
        wanted = [series for series, found in labels.items() if set(chosen.labels) <= set(found)]
        if not wanted:
            raise Refused("nothing_there")
        return f"series IN ({', '.join(map(str, wanted))})"

    def _costs(self, chosen: SampleQuery, counted: CountedRows, by_service: bool, detail: _Detail) -> list[StackCost]:
        """Return the costs of stacks from the database, at most _MAX_COSTS + 1. The caller sees by the last one that
        there are too many.
        """
        first_ns, part_ns = chosen.from_ns, max(chosen.length_ns // detail.parts, 1)
        if counted.by_hours and detail.parts > 1:
            first_ns, part_ns = first_ns // HOUR_NS * HOUR_NS, -(-part_ns // HOUR_NS) * HOUR_NS
        keys = {
            "stack": "stack",
            "stack2": "stack2",
            "thread": "service" if by_service else literal(""),
            "labelled": "series" if detail.labels else "toUInt64(0)",
            "part": f"intDiv(end_ns - 1 - {first_ns}, {part_ns})",
        }
        summed = counted.summed("samples", keys, {"whole": "value", "times": "count", "squared": "squares"})
        found = self._rows(f"{summed} LIMIT {_MAX_COSTS + 1}")
        return [
            StackCost(
                (int(row[0]), int(row[1])),
                str(row[2]),
                detail.labels.get(int(row[3]), ()),
                first_ns + int(row[4]) * part_ns,
                int(row[5]),
                int(row[6]),
                float(row[7]),
            )
            for row in found
        ]

    def _head(self, chosen: SampleQuery, wanted: str, rest: Rest, whole: int) -> ProfileHead:
        """Return the properties of a queried profile besides its samples. If samples are selected by labels, only
        windows with such samples count.
        """
        where = self._where(chosen)
        having = f"SELECT batch FROM {self._of('window_series')} WHERE {where} AND {wanted}"
        counted = f"FROM {self._of('windows')} WHERE {where} {f'AND batch {self._in()} ({having})' if wanted else ''}"
        unit, covered, windows, begin, end = self._rows(
            f"SELECT any(unit), sum(length_ns), count(), min(end_ns - length_ns), max(end_ns) {counted}"
        )[0]
        notes = [make_note("read_from_windows", count=int(windows))]
        if rest.count:
            notes.append(make_note("stacks_left_out", count=rest.count, percent=100 * rest.amount / max(whole, 1)))
        spans = self._rows(
            f"SELECT end_ns - max(length_ns), end_ns {counted} GROUP BY end_ns ORDER BY end_ns LIMIT {_MAX_SPANS + 1}"
        )
        gaps = spans_without_windows((int(row[0]), int(row[1])) for row in spans) if len(spans) <= _MAX_SPANS else ()
        value_type, title = ValueType(chosen.type, str(unit)), chosen.service or "all services"
        return ProfileHead(title, value_type, int(begin), int(end), int(covered), gaps, tuple(notes))

    def _rows(self, sql: str) -> list[list[Any]]:
        asked = self._asked
        limits = f"max_execution_time = {asked.seconds}, max_memory_usage = {asked.bytes}"
        if asked.gone.is_set():
            raise ClientDisconnected
        try:
            return self._engine.rows(f"/* {asked.mark} */ {sql} SETTINGS {limits}")
        except StoreError as error:
            if asked.gone.is_set():
                raise ClientDisconnected from None
            if error.code in _TOO_DEAR:
                most = f"{asked.seconds} s and {asked.bytes >> 20:,} MiB"
                raise Refused("question_too_dear", f"a query may cost at most {most}: {error}") from None
            raise

    def _of(self, table: str) -> str:
        return self._engine.dialect.read(table)

    def _in(self) -> str:
        return "GLOBAL IN" if self._engine.dialect.cluster else "IN"

    def _where(self, chosen: SampleQuery, timed: bool = True) -> str:
        first, last = chosen.days
        found = [f"tenant = {literal(chosen.tenant)}", f"type = {literal(chosen.type)}"]
        found += [f"day >= {literal(first)}", f"day <= {literal(last)}"]
        if chosen.service:
            found.append(f"service = {literal(chosen.service)}")
        if timed:
            found += [f"end_ns > {chosen.from_ns}", f"end_ns <= {chosen.to_ns}"]
        return " AND ".join(found)

    def _listed(self, chosen: SampleQuery, more: str = "1") -> str:
        """Return the SQL condition by which a query counts only rows of windows that are completely inserted. `more` is
        a further condition on the windows.
        """
        where = self._where(chosen)
        return f"{where} AND batch {self._in()} (SELECT batch FROM {self._of('windows')} WHERE {where} AND {more})"

    def _counted(self, chosen: SampleQuery, wanted: str = "") -> CountedRows:
        """Return the SQL conditions for the rows that a query counts. `wanted` is a further condition on the rows."""
        dialect = self._engine.dialect
        first, last = chosen.days
        days = f"day >= {literal(first)} AND day <= {literal(last)}"
        rolls = self._rows(f"SELECT toUInt32(day), hour, roll, upto FROM {self._of('rolls')} WHERE {days}")
        sealed = self._rows(f"SELECT DISTINCT toUInt32(day) FROM {self._of('rolled')} WHERE {days}")
        found = choose_rollups(chosen, (Rollup(*map(int, row)) for row in rolls), (int(row[0]) for row in sealed))
        hours = f"hour >= {hour_of(chosen.from_ns + 1)} AND hour <= {hour_of(chosen.to_ns)}"
        if not found.rolls:
            return CountedRows(dialect, f"{hours} AND {self._listed(chosen)}", "").inside(wanted)
        where, alone = self._where(chosen), above(found.upto)
        lone_hours = self._rows(
            f"SELECT DISTINCT {HOUR} AS hour FROM {self._of('windows')} WHERE {where} AND {alone} ORDER BY hour"
        )
        hours = f"hour IN ({', '.join(str(int(row[0])) for row in lone_hours)})"
        by_windows = f"{hours} AND {self._listed(chosen, alone)}" if lone_hours else ""
        by_hours = f"{where} AND roll IN ({', '.join(map(str, found.rolls))})"
        return CountedRows(dialect, by_windows, by_hours).inside(wanted)


def _by_stack(counted: CountedRows) -> str:
    """Return an SQL statement for the total cost of each stack."""
    return counted.summed("samples", {"stack": "stack", "stack2": "stack2"}, {"whole": "value"})


def _spread(windows: str, from_ns: int, step_ns: int) -> str:
    """Return an SQL statement that distributes the amounts of windows evenly over the time that they cover.

    Its columns are the number of the time step, series, host, the amount in the step and the covered time of the step
    in nanoseconds. What a window has from the time before `from_ns` is left out. The parts of a window are differences
    of its rounded running amount, so their sum is exact.

    Args:
        windows: SQL statement with the columns series, host, end_ns, length and amount.
    """
    spans = (
        f"SELECT series, host, amount, greatest(length, 1) AS lasted, end_ns - {from_ns} AS till, "
        "till - lasted AS since "
        f"FROM ({windows}) AS found"
    )
    first, last = f"intDiv(greatest(since, 0), {step_ns})", f"intDiv(till - 1, {step_ns})"
    steps = (
        "SELECT series, host, amount, lasted, till, since, "
        f"{first} + arrayJoin(range(toUInt64({last} - {first} + 1))) AS step FROM ({spans}) AS spans"
    )
    parts = (
        "SELECT series, host, step, amount, lasted, "
        f"greatest(since, toInt64(step * {step_ns})) AS low, least(till, toInt64((step + 1) * {step_ns})) AS high, "
        f"greatest(low, 0) - since AS before, high - since AS after FROM ({steps}) AS steps"
    )
    amount = "toInt64(round(amount * (after / lasted))) - toInt64(round(amount * (before / lasted)))"
    return (
        f"SELECT step, series, host, sum({amount}), sum(after - before) FROM ({parts}) AS parts "
        "GROUP BY step, series, host"
    )
