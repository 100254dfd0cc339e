"""`python -m tests.server.by_hours STORE VERSION`: print an old day's query results at each stage of its life as JSON.

The store's tables have the given version. The command is a separate process because ClickHouse allows one folder in a
process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest.segment_to_rows import HOUR_NS, SegmentRows, rows_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.fleet.server.query import query_api
from pyprof.fleet.server.query.profile_queries import RunningQuery
from pyprof.fleet.server.query.sample_selection import selection
from pyprof.fleet.server.store import clickhouse_engine, clickhouse_native_blocks
from pyprof.fleet.server.store import clickhouse_engine as engine_of
from pyprof.fleet.server.store.clickhouse_engine import Dialect, Engine, StoreError, address, literal, migrate, opened
from pyprof.fleet.server.store.clickhouse_native_blocks import Block
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import replace
from tests.agent.filled import MINUTE_NS
from tests.server.serving import windows

TENANT = "default"
TABLES = "window_samples", "hour_samples", "window_builds", "hour_builds", "windows", "rolls"
OLD_NS = (time.time_ns() // (24 * HOUR_NS) - 5) * 24 * HOUR_NS
DAY = time.strftime("%Y-%m-%d", time.gmtime(OLD_NS // 10**9))
HOURS, EVERY = 3, 10
MOST = HOURS * EVERY


def span(first_minute: int, last_minute: int) -> dict[str, str]:
    begin = OLD_NS // 10**9
    return {"from": str(begin + first_minute * 60), "to": str(begin + last_minute * 60)}


SPANS = span(0, HOURS * 60), span(-600, HOURS * 60 + 60), span(31, 15 * 60), span(-900, 95)
"""Query ranges: a short one; 14 whole hours; whole hours without the first one; whole hours without the last one."""


def rows(first: int, last: int) -> list[SegmentRows]:
    """Return a window every six minutes for two versions and hosts.

    The second version has only half of the first hour. The first window ends at midnight, so its hour is of the day
    before.
    """
    book, found = StoredStackCache(), []
    for version in ("1", "2"):
        (made,) = windows("checkout", 1, version=version, host=f"h{version}")
        row = rows_of(TENANT, made.name, made.data, book)
        for at in range(first, last):
            if version == "1" or at >= EVERY // 2:
                name = SegmentName.new("checkout", OLD_NS + at * HOUR_NS // EVERY + (at > 0) * MINUTE_NS)
                found.append(replace(row, name=name))
    return found


def asked(store: Store, whole_hours: bool = False) -> list[Any]:
    """Return the results of all kinds of queries for the first two spans, and of three kinds for the others.

    Args:
        store: The store.
        whole_hours: Whether to return only results that need no part of an hour.
    """
    questions = store.make_queries(RunningQuery(60, 1 << 30))
    found: list[Any] = []
    for words in SPANS[1:2] if whole_hours else SPANS:
        service = words | {"service": "checkout"}
        found += [
            query_api.services(questions, TENANT, words),
            query_api.functions(questions, TENANT, words),
            query_api.profile(questions, TENANT, service | {"format": "collapsed"})[0].decode(),
        ]
        if words in SPANS[:2]:
            of_version = service | {"label.version": "2", "format": "pprof"}
            found += [
                query_api.timeline(questions, TENANT, service | {"by": "version", "points": "14"}),
                query_api.builds(questions, TENANT, words),
                query_api.labels(questions, TENANT, service),
                sha256(query_api.profile(questions, TENANT, of_version)[0]).hexdigest(),
            ]
    return found


def moments(store: Store, words: dict[str, str]) -> list[int]:
    """Return the times of a profile's samples in minutes since the start of the day."""
    found = store.make_queries(RunningQuery(60, 1 << 30)).profile(selection(TENANT, words))
    return sorted({(int(ns) - OLD_NS) // MINUTE_NS for ns in found.time_ns})


def refusal(store: Store) -> str:
    """Return the reason why a query for the first minutes of an hour is refused.

    A rolled-up hour is stored at its end.
    """
    try:
        query_api.profile(store.make_queries(RunningQuery(60, 1 << 30)), TENANT, span(60, 75))
    except Refused as refused:
        return refused.reason
    return ""


def opened_as(version: int, url: str) -> Engine:
    """Open the store as a server with this number of migrations does."""
    made = clickhouse_engine.migrations()[:version]
    sql = " ".join(text for each in made for text in each.statements(Dialect()))
    names = tuple(name for name in clickhouse_engine.NAMES if f"EXISTS {name} " in sql)
    with patch.object(engine_of, "migrations", lambda: made), patch.object(engine_of, "NAMES", names):
        return opened(address(url), 100)


def insert_as_before(engine: Engine, segments: list[SegmentRows]) -> None:
    """Insert rows as servers before the third migration did: without hours, with batches in random order."""
    batches = [(at * 7919 + 5) % 1009 + 1 for at in range(len(segments))]
    failed = [each + 2000 for each in batches]
    stacks: dict[int, Any] = {
        id(each.book): (each.day, TENANT, each.book, each.stacks) for each in segments[:: len(segments) - 1]
    }
    series = {
        (each.day, TENANT, each.type, each.name.service, number): labels
        for each in segments
        for number, labels in each.labels.items()
    }
    parts = {
        "stacks": [clickhouse_native_blocks.stacks(stacks.values())],
        "series": [clickhouse_native_blocks.series(series)],
        "samples": [
            clickhouse_native_blocks.samples(segments, batches),
            clickhouse_native_blocks.samples(segments[:3], failed[:3]),
        ],
        "builds": [clickhouse_native_blocks.builds(segments, batches)],
        "windows": [clickhouse_native_blocks.windows(segments, batches)],
    }
    for table, made in parts.items():
        for block in made:
            old = tuple(column for column in block.columns if column.name not in ("hour", "squares"))
            engine.insert(engine.dialect.read(table), Block(block.rows, old))


def roll_as_before(engine: Engine) -> None:
    """Roll up the day as servers of the second migration did, which replaced the rows of the windows."""
    head, hour = "day, tenant, type, service", f"intDiv(end_ns - 1, {HOUR_NS})"
    among = "GLOBAL IN" if engine.dialect.cluster else "IN"
    of = engine.dialect.read
    counted = f"day = {literal(DAY)} AND batch {among} (SELECT batch FROM {of('windows')} WHERE day = {literal(DAY)})"
    for table, keys, sums in (
        ("samples", "series, stack, stack2", "sum(value), sum(count)"),
        ("builds", "path, build_id", "sum(amount), sum(unnamed), sum(cut)"),
    ):
        columns = f"{head}, end_ns, batch, {keys}, {sums.replace('sum(', '').replace(')', '')}"
        selects = [
            f"SELECT {head}, max(end_ns), argMax(batch, end_ns), {keys}, {sums} FROM {of(table)} WHERE {counted} "
            f"GROUP BY {head}, {hour}, {keys}"
        ]
        if table == "samples":
            selects.append(
                f"SELECT {head}, any(end_ns), batch, series, min(stack), argMin(stack2, stack), toInt64(0), toInt64(0) "
                f"FROM {of(table)} WHERE {counted} GROUP BY {head}, batch, series"
            )
        for select in selects:
            engine.put(f"INSERT INTO {of(f'{table}_hours')} ({columns}) {select}")
        engine.run(
            f"ALTER TABLE {table} {engine.dialect.on_cluster} REPLACE PARTITION {literal(DAY)} FROM {table}_hours"
        )
    engine.put(f"INSERT INTO {of('rolled')} (day, windows) VALUES ({literal(DAY)}, {MOST})")


def bases(store: Store) -> list[dict[str, Any]]:
    """Return the bases of shares before and after the hours are rolled up.

    In every third window a sample has 20 times the weight of those in the others.
    """
    heavy = [
        replace(each, values=each.values * 20, squares=each.squares * 400) if at % 3 == 0 else each
        for at, each in enumerate(rows(0, MOST))
    ]
    store.insert(heavy)
    found = []
    for rolls in (False, True):
        for hour in store.hours.due(time.time_ns()) if rolls else ():
            store.hours.roll(hour)
        answer = query_api.functions(store.make_queries(RunningQuery(60, 1 << 30)), TENANT, SPANS[1])
        assert answer["total"] == sum(int(each.values.sum()) for each in heavy)
        found.append({"samples": answer["samples"], "ranges": answer["ranges"], "first": answer["functions"][0]})
    return found


def main(url: str, version: int) -> None:
    engine = opened_as(version, url)
    segments, old = rows(0, MOST), version < 3
    if old:
        insert_as_before(engine, segments)
        if version > 1:
            roll_as_before(engine)
    for _ in range(2):
        migrate(engine)
    store = Store(engine)
    hours, now_ns = store.hours, time.time_ns()
    if not old:
        store.insert(segments)
    failed = engine.dialect.read("window_samples")
    engine.insert(
        failed, clickhouse_native_blocks.samples(segments[:2], [5000, 6000])
    )  # rows of an insert that was killed

    def count() -> None:
        counts.append([int(engine.rows(f"SELECT count() FROM {engine.dialect.read(table)}")[0][0]) for table in TABLES])

    found: dict[str, Any] = {}
    counts: list[list[int]] = []
    applied = engine.rows("SELECT number, count() FROM migrations GROUP BY number ORDER BY number")
    found["applied"] = [[int(number), int(times)] for number, times in applied]
    found["whole hours"], found["before"] = asked(store, True), asked(store)
    count()
    found["not ended"] = len(hours.due(OLD_NS + HOUR_NS + 599 * 10**9))  # only the hour up to midnight is due
    due = hours.due(now_ns)
    found["due"] = [each.hour - OLD_NS // HOUR_NS for each in due]
    with patch.object(engine, "put", _killed_before("rolls", engine.put)):
        try:
            hours.roll(due[1])
        except StoreError:
            found["killed"] = asked(store)
    for each in due:
        hours.roll(each)
        hours.roll(replace(each, rolled=each.windows, upto=(1 << 64) - 1))  # all windows are rolled up already
    found["rolled"], found["due then"] = asked(store), hours.due(now_ns)
    found["moments"] = [moments(store, words) for words in SPANS[:3]]
    if not old:  # rows of older versions are those of the newest one by now
        found |= _seal_and_drop(engine, store, count)
        found["rows"] = counts
        found["bases"], found["samples"] = bases(store), sum(int(each.counts.sum()) for each in rows(0, MOST))
    store.close()
    print(json.dumps(found))


def _seal_and_drop(engine: Engine, store: Store, count: Callable[[], None]) -> dict[str, Any]:
    """Return the results of queries while late windows come, the day is sealed and dropped.

    Args:
        engine: Its engine.
        store: The store with a rolled-up day.
        count: Function that counts the rows of each table.
    """
    found: dict[str, Any] = {}
    hours, today, now_ns = store.hours, time.strftime("%Y-%m-%d"), time.time_ns()
    count()
    late = rows(EVERY, EVERY + 4)
    store.insert(late[:1])
    found["one late"], found["due one late"] = asked(store), hours.due(now_ns)
    store.insert(late[1:])
    found["late"], found["due late"] = asked(store), len(hours.due(now_ns))
    for each in hours.due(now_ns):
        hours.roll(each)
    found["late rolled"], found["due days"] = asked(store), hours.due_days(today)
    found["sealed"] = [hours.seal(DAY)]
    found["after first step"], found["torn"] = asked(store, True), hours.find_inconsistent_days()
    found["sealed"].append(hours.seal(DAY))
    found["after second step"], found["due days then"], found["part"] = (
        asked(store, True), hours.due_days(today), refusal(store)
    )  # fmt: skip
    count()
    store.insert(rows(0, EVERY))
    found["late of sealed"], found["due days late"] = asked(store, True), hours.due_days(today)
    found["sealed"] += [hours.seal(DAY), hours.seal(DAY)]
    found["late of sealed again"] = asked(store, True)
    engine.run(f"ALTER TABLE windows {engine.dialect.on_cluster} DROP PARTITION {literal(DAY)}")
    found["torn then"] = hours.find_inconsistent_days()
    store.drop_day(DAY)
    count()
    return found


def _killed_before(table: str, put: Any) -> Any:
    """Return a function that fails before it writes to this table.

    Args:
        table: Name of the table.
        put: The engine's function that is replaced.
    """

    def killed(sql: str) -> None:
        if sql.startswith(f"INSERT INTO {table}"):
            raise StoreError("killed")
        put(sql)

    return killed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
