"""`python -m bench.fleet_days`: measure queries about days of a fleet, and the size of a stored sample.

Windows of 400 stacks (bench/segments.py) are written to the database as the server's indexer does. The options set the
number of services, the interval of windows and the number of days. Then one service and all services are queried over 1
hour, 1 day and all days. `--store clickhouse://…` uses ClickHouse servers; without it ClickHouse is in this process.
`--cluster` starts two servers from Debian's package. Then the hours that have ended are rolled up, and the queries over
days are repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.fleet import bodies
from bench.segments import DIFFERENT, STACKS
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, rows_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.fleet.server.query import query_api
from pyprof.fleet.server.query.profile_queries import ClientQueries, RunningQuery
from pyprof.fleet.server.store.clickhouse_engine import Engine, address, opened
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import replace
from tests.server.cluster import cluster

TOGETHER = 1000
SECOND_NS, DAY_S = 10**9, 86_400
ROUNDS = 5
TENANT = "default"


def windows(services: int, days: int, every_s: int, now_ns: int) -> Iterator[SegmentRows]:
    """Yield windows of all services, one service after another. All services have stacks of the same functions, and
    each has half of the stacks.
    """
    book, rng = StoredStackCache(), random.Random(20)
    found = [rows_of(TENANT, SegmentName.new("x", now_ns), data, book) for data in bodies(DIFFERENT)]
    for age_s in range(0, days * DAY_S, every_s):
        for service in range(services):
            name = SegmentName.new(f"service-{service}", now_ns - age_s * SECOND_NS)
            yield replace(rng.choice(found), name=name)


def fill(store: Store, made: Iterator[SegmentRows]) -> tuple[int, int, float]:
    """Insert windows into the database, and return (windows, samples, seconds that the database took)."""
    count = samples = 0
    spent = 0.0
    block: list[SegmentRows] = []
    for each in made:
        block.append(each)
        if len(block) == TOGETHER:
            began = time.perf_counter()
            store.insert(block)
            spent += time.perf_counter() - began
            count, samples, block = count + len(block), samples + sum(len(row.stacks) for row in block), []
    store.insert(block)
    return count + len(block), samples + sum(len(row.stacks) for row in block), spent


def asked(
    engine: Engine, what: str, find: Callable[[ClientQueries, str, query_api.Words], object], words: dict[str, str]
) -> None:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        find(ClientQueries(engine, RunningQuery(600, 8 << 30)), TENANT, words)
        times.append(1000 * (time.perf_counter() - began))
    print(f"{what:42} {statistics.median(times):8.0f} ms ({min(times):.0f} to {max(times):.0f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_days", description=__doc__)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--every", type=int, default=60, metavar="SECONDS")
    parser.add_argument("--store", default="")
    parser.add_argument("--cluster", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pyprof-bench-")))
        url = held.enter_context(cluster(folder / "cluster")) if arguments.cluster else arguments.store
        engine = opened(address(url or f"chdb://{folder}/store"), 100)
        store = Store(engine)
        now_ns = time.time_ns() // (60 * SECOND_NS) * 60 * SECOND_NS
        count, samples, spent = fill(store, windows(arguments.services, arguments.days, arguments.every, now_ns))
        print(f"{count:,} windows of {STACKS} stacks, {samples:,} rows of samples, {samples / spent:,.0f} a second")
        now = now_ns // SECOND_NS + 1
        spans = {"1 hour": 3600, "1 day": DAY_S, f"{arguments.days} days": arguments.days * DAY_S}
        for title, length in dict(list(spans.items())[: 2 + (arguments.days > 1)]).items():
            words = {"from": str(now - length), "to": str(now), "format": "pprof"}
            asked(engine, f"services, {title}", query_api.services, words)
            asked(engine, f"one service, merged, {title}", query_api.profile, {**words, "service": "service-1"})
            asked(engine, f"{arguments.services} services, merged, {title}", query_api.profile, words)
        began = time.perf_counter()
        due = store.hours.due(now_ns)
        for hour in due:
            store.hours.roll(hour)
        print(f"{len(due)} hours rolled up: {time.perf_counter() - began:.1f} s", flush=True)
        for title, length in dict(list(spans.items())[1 : 2 + (arguments.days > 1)]).items():
            words = {"from": str(now - length), "to": str(now), "format": "pprof"}
            asked(engine, f"one service, merged, {title}", query_api.profile, {**words, "service": "service-1"})
            asked(engine, f"{arguments.services} services, merged, {title}", query_api.profile, words)
        query = "SELECT table, sum(rows), sum(bytes) FROM system.parts WHERE active GROUP BY table ORDER BY table"
        if not arguments.cluster:
            sizes = {str(table): int(size) for table, _, size in engine.rows(query) if str(table) != "migrations"}
            parts = ", ".join(f"{table} {size / samples:.2f}" for table, size in sizes.items())
            print(f"at rest {sum(sizes.values()) / samples:.2f} bytes a sample: {parts}")
        store.close()


if __name__ == "__main__":
    main()
