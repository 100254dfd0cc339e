"""`python -m tests.server.by_hours STORE VERSION`: an old day's answers in a store of a version, after all later
migrations, and after the day has its rows by hours, as JSON.

A process of its own: ClickHouse within a process has one folder.
"""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from pyprof.agent.segments import SegmentName
from pyprof.records import replace
from pyprof.server import answers, blocks, tables
from pyprof.server import engine as engine_of
from pyprof.server.access import Refused
from pyprof.server.engine import Engine, address, migrate, opened
from pyprof.server.hours import HOUR_NS
from pyprof.server.questions import Asked
from pyprof.server.rows import SegmentRows, rows_of
from pyprof.server.stacks import StackBook
from pyprof.server.store import Store
from pyprof.server.tables import Dialect
from tests.agent.filled import MINUTE_NS
from tests.server.serving import windows

TENANT = "default"
TABLES = "samples", "builds", "windows", "rolled"
OLD_NS = (time.time_ns() // (24 * HOUR_NS) - 5) * 24 * HOUR_NS
HOURS, EVERY = 3, 10
WORDS = {"from": str(OLD_NS // 10**9), "to": str(OLD_NS // 10**9 + HOURS * 3600)}
SERVICE = WORDS | {"service": "checkout"}


def rows(first: int, last: int) -> list[SegmentRows]:
    """Of two versions and hosts, a window every ten minutes; the second version has half of the first hour's."""
    book, found = StackBook(), []
    for version in ("1", "2"):
        (made,) = windows("checkout", 1, version=version, host=f"h{version}")
        row = rows_of(TENANT, made.name, made.data, book)
        for at in range(first, last):
            if version == "1" or at >= EVERY // 2:
                name = SegmentName.new("checkout", OLD_NS + at * HOUR_NS // EVERY + MINUTE_NS)
                found.append(replace(row, name=name, batch=1 + at * 10 + int(version)))
    return found


def asked(store: Store) -> list[Any]:
    questions = store.asked(Asked(60, 1 << 30))
    line = SERVICE | {"by": "version", "points": str(HOURS)}
    of_version = SERVICE | {"label.version": "2", "format": "pprof"}
    return [
        answers.services(questions, TENANT, WORDS),
        answers.timeline(questions, TENANT, line),
        answers.functions(questions, TENANT, WORDS),
        answers.builds(questions, TENANT, WORDS),
        answers.labels(questions, TENANT, SERVICE),
        sha256(answers.profile(questions, TENANT, of_version)[0]).hexdigest(),
        answers.profile(questions, TENANT, SERVICE | {"format": "collapsed"})[0].decode(),
    ]


def refusal(store: Store) -> str:
    """Of a question about the first minutes of an hour: what it had stands at the hour's end."""
    try:
        answers.profile(store.asked(Asked(60, 1 << 30)), TENANT, WORDS | {"to": str(OLD_NS // 10**9 + 900)})
    except Refused as refused:
        return refused.reason
    return ""


def opened_as(version: int, url: str) -> Engine:
    """As the server that had so many migrations opened it."""
    made = tables.migrations()[:version]
    sql = " ".join(text for each in made for text in each.statements(Dialect()))
    names = tuple(name for name in tables.NAMES if f"EXISTS {name} " in sql)
    with patch.object(engine_of, "migrations", lambda: made), patch.object(engine_of, "NAMES", names):
        return opened(address(url), 100)


def main(url: str, version: int) -> None:
    engine = opened_as(version, url)
    store = Store(engine)
    today = time.strftime("%Y-%m-%d")

    def counts() -> list[int]:
        return [int(engine.rows(f"SELECT count() FROM {engine.dialect.read(table)}")[0][0]) for table in TABLES]

    found: dict[str, Any] = {}
    most = HOURS * EVERY
    store.insert(rows(0, most))
    failed = [replace(each, batch=each.batch + 5) for each in rows(0, 2)]
    engine.insert(engine.dialect.read("samples"), blocks.samples(failed))  # an attempt that was killed
    found["of version"] = asked(store)
    for _ in range(2):
        migrate(engine)
    applied = engine.rows("SELECT number, count() FROM migrations GROUP BY number ORDER BY number")
    found["applied"] = [[int(number), int(times)] for number, times in applied]
    found["before"], found["rows"] = asked(store), [counts()]
    (day,) = store.hours.due(today)
    found["due before"] = store.hours.due(day)
    store.hours.roll(day)
    found["rolled"], found["due"] = asked(store), store.hours.due(today)
    found["rows"].append(counts())
    found["part"] = refusal(store)
    store.insert([replace(each, batch=each.batch + 1000) for each in rows(0, most // 5)])
    found["late"], found["late due"] = asked(store), store.hours.due(today) == [day]
    store.hours.roll(day)
    found["late rolled"] = asked(store)
    found["rows"].append(counts())
    store.drop_day(day)
    found["rows"].append(counts())
    store.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
