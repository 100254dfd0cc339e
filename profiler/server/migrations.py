"""The tables and their migrations, from tables.sql, in the dialect of an engine."""

from __future__ import annotations

import pkgutil
import re

from pyprof.records import dataclass

NAMES = (
    "windows",
    "window_samples",
    "window_builds",
    "window_series",
    "hour_samples",
    "hour_builds",
    "rolls",
    "rolled",
    "stacks",
    "series",
)
"""Tables of the database in the order in which a day is dropped. If the server is killed meanwhile, rollups without
windows remain (Hours.find_inconsistent_days).
"""
_MIGRATION = re.compile(r"^-- (\d+) (.+)$", re.MULTILINE)
_SHARDING = re.compile(r"^-- sharding: (\w+) by (\w+)$", re.MULTILINE)
_WORD = re.compile(r"\{(\w+)\}")
VERSIONS = "CREATE TABLE IF NOT EXISTS migrations {on_cluster} (day Date, number UInt32) ENGINE = {engine} \
PARTITION BY day ORDER BY number"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL dialect of a database engine.

    Attributes:
        cluster: Name of the cluster, "" for one server.
        by_hand: Send each statement to each server, because the cluster does not pass it on: ON CLUSTER needs
            ClickHouse
            Keeper.
        old: The server (18.16) has no codecs, no LowCardinality and no TTL.
        days: Number of days that rows are kept.
    """

    cluster: str = ""
    old: bool = False
    days: int = 14
    by_hand: bool = False

    @property
    def on_cluster(self) -> str:
        return f"ON CLUSTER {self.cluster}" if self.cluster and not self.by_hand else ""

    def filled(self, sql: str) -> str:
        words = {
            "on_cluster": self.on_cluster,
            "all": self.read(""),
            "engine": "MergeTree()",
            "text": "String" if self.old else "LowCardinality(String)",
            "delta": "" if self.old else "CODEC(Delta, ZSTD(1))",
            "zstd": "" if self.old else "CODEC(ZSTD(3))",
            "if_absent": "" if self.old else "IF NOT EXISTS",
            "ttl": "" if self.old else f"TTL day + INTERVAL {self.days} DAY",
        }
        return _WORD.sub(lambda match: words[match[1]], sql)

    def read(self, table: str) -> str:
        """Return an SQL table expression with the rows of all servers."""
        return f"{table}_all" if self.cluster else table


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    title: str
    sql: str

    def statements(self, dialect: Dialect) -> list[str]:
        """Return the SQL statements of a migration in order. On a cluster each table has a distributed one, which
        receives INSERT statements.
        """
        found = []
        shards = dict(_SHARDING.findall(self.sql))
        for part in re.sub(r"^--.*$", "", self.sql, flags=re.MULTILINE).split(";"):
            if not part.strip():
                continue
            found.append(" ".join(dialect.filled(part).split()))
            table = re.search(r"CREATE TABLE IF NOT EXISTS (\w+)", part)
            if dialect.cluster and table is not None:
                name, cluster = table[1], dialect.cluster
                of = f"Distributed({cluster}, currentDatabase(), {name}, {shards[name]})"
                found.append(f"CREATE TABLE IF NOT EXISTS {name}_all {dialect.on_cluster} AS {name} ENGINE = {of}")
        return found


def migrations() -> tuple[Migration, ...]:
    """Return the migrations of the database by number, from 1 on."""
    data = pkgutil.get_data("pyprof.server", "tables.sql")
    assert data is not None  # the package's loader finds files
    text = data.decode("utf-8")
    heads = list(_MIGRATION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return tuple(
        Migration(int(head[1]), head[2], text[head.end() : end]) for head, end in zip(heads, ends, strict=True)
    )


def printed(days: int) -> str:
    """Return all SQL statements of the migrations, first for one server and then for a cluster."""
    lines = []
    for migration in migrations():
        for title, dialect in (("one server", Dialect(days=days)), ("cluster", Dialect("CLUSTER", days=days))):
            lines.append(f"-- migration {migration.number}, {title}: {migration.title}")
            lines += [f"{statement};" for statement in migration.statements(dialect)]
    return "\n".join(lines) + "\n"
