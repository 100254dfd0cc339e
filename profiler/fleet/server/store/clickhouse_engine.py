"""The SQL engines: ClickHouse in this process (chdb), or a ClickHouse server, and the migrations of their tables.

The same SQL works with both engines. The tables are those of tables.sql, in the dialect of the engine.
"""

from __future__ import annotations

import base64
import http.client
import os
import pkgutil
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import orjson

from pyprof.errors import PyprofError, UsageError
from pyprof.fleet.server.store.clickhouse_native_blocks import Block
from pyprof.lazy_dataclasses import dataclass

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
"""Tables of the database, in the order in which the rows of a day are dropped. If the server is killed meanwhile,
rollups without windows remain (HourlyRollups.find_inconsistent_days).
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
        by_hand: Send each statement to each server, because the cluster does not distribute it: ON CLUSTER needs
            ClickHouse Keeper.
        old: True for an old server (18.16), which has no codecs, no LowCardinality and no TTL.
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
        """Return an SQL table expression that reads the rows of a table on all servers."""
        return f"{table}_all" if self.cluster else table


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    title: str
    sql: str

    def statements(self, dialect: Dialect) -> list[str]:
        """Return the SQL statements of a migration in order. On a cluster each table also gets a distributed table,
        which receives INSERT statements.
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
    """Return the migrations of the database, sorted by their numbers from 1 on."""
    data = pkgutil.get_data("pyprof.fleet.server.store", "tables.sql")
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


_MAX_ANSWER = 1 << 30
_PATIENCE_S, _LONG_S = 60.0, 3600.0
SHORT_S = 5.0
"""Time in seconds that a ClickHouse server may take to respond to a cheap statement."""
_CHECK = "SELECT 1 FROM windows LIMIT 1"
_PORT = 8123
PASSWORD_VARIABLE = "PYPROF_STORE_PASSWORD"  # noqa: S105 - the name of the variable, not its value
"""Name of the environment variable with the password of the ClickHouse user."""
_HOST = re.compile(r"([\w.-]+)(?::(\d{1,5}))?", re.ASCII)
_CODE = re.compile(r"\bCode: (\d{1,6})\b", re.ASCII)
_COLUMN_EXISTS = (44, 15)
"""ClickHouse's error numbers for adding a column that exists already: servers before 19.9 do not support IF NOT EXISTS
for columns.
"""
_OLD = 20
"""Major version below which a ClickHouse server lacks features (Dialect.old)."""


_PASSWORD_CODES = {193, 194, 516}
"""ClickHouse's error numbers for a wrong password, for a missing one, and for both cases from version 20 on."""


class StoreError(PyprofError):
    """The database has refused a statement or cannot be reached. The text contains no data of a client."""

    @property
    def code(self) -> int:
        """ClickHouse's error number of a failed statement, 0 if the error has none."""
        found = _CODE.search(str(self))
        return int(found[1]) if found is not None else 0


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a database: a folder for chdb, or hosts of ClickHouse.

    Attributes:
        kind: "chdb" or "clickhouse".
        path: Folder of chdb.
        hosts: (name, port) of servers. With several servers, statements that create or change tables go to all, inserts
            and queries only to the first.
        cluster: Name of a cluster of servers, "" for a single server.
    """

    kind: str
    path: str = ""
    hosts: tuple[tuple[str, int], ...] = ()
    database: str = "pyprof"
    user: str = ""
    password: str = ""
    cluster: str = ""


def address(url: str) -> StoreAddress:
    """Parse a database's URL: chdb:///FOLDER or clickhouse://[USER@]HOST:PORT[,…]/DATABASE[?cluster=NAME].

    Raises:
        UsageError: The URL is not of this form, or has a password. The text never has the password.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "chdb" and parts.path.startswith("/") and len(parts.path) > 1 and not parts.netloc:
        return StoreAddress("chdb", path=parts.path)
    name = parts.path.strip("/") or "pyprof"
    words = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    cluster = words.get("cluster", "")
    if unknown := sorted(words.keys() - {"cluster"}):
        raise UsageError(f"the store's URL has ?{unknown[0][:40]}=, which is not supported", "?cluster=NAME")
    login, _, places = parts.netloc.rpartition("@")
    hosts = [_HOST.fullmatch(place) for place in places.split(",")]
    named = _is_name(name) and _is_name(cluster or "x") and (cluster or len(hosts) == 1)
    found = tuple((match[1], int(match[2] or _PORT)) for match in hosts if match is not None)
    if (
        parts.scheme != "clickhouse"
        or len(found) != len(hosts)
        or not all(port < 65536 for _, port in found)
        or not named
    ):
        known = "chdb:///FOLDER, or clickhouse://HOST:PORT/DATABASE?cluster=NAME"
        if parts.scheme in ("chdb", "clickhouse"):
            raise UsageError(f"the store's URL is not a complete {parts.scheme}:// address", known)
        raise UsageError(f"{parts.scheme[:40]}://... is not a store that this server knows", known)
    if ":" in login:
        raise UsageError(
            "the store's URL has a password", f"server.store_password_file, or {PASSWORD_VARIABLE} in the environment"
        )
    return StoreAddress("clickhouse", "", found, name, urllib.parse.unquote(login), cluster=cluster)


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w{0,63}", text, re.ASCII) is not None


def literal(value: str | int) -> str:
    """Return a value as an SQL literal. Texts of clients enter SQL only through this function."""
    if isinstance(value, int):
        return str(int(value))
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


class Engine(Protocol):
    """An SQL engine. All methods raise StoreError.

    run() executes a statement on every server, put() an insertion on the first one. rows() executes a query, and waits
    at most patience_s seconds for the response of a ClickHouse server. check() tests that the tables exist and the
    servers respond.
    """

    dialect: Dialect

    def run(self, sql: str) -> None: ...
    def put(self, sql: str) -> None: ...
    def rows(self, sql: str, patience_s: float = _PATIENCE_S) -> list[list[Any]]: ...
    def insert(self, table: str, block: Block) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class ChdbEngine:
    """ClickHouse in this process (chdb). Only one process can use a folder at a time, and a process can use only one
    folder. Each running query has its own connection.
    """

    def __init__(self, where: StoreAddress, days: int) -> None:
        try:
            import clickhouse_connect
            from clickhouse_connect.driver.exceptions import Error
        except ImportError:
            raise UsageError(
                "the server's store needs chdb and clickhouse-connect", "pip install 'pyprof-live[server]'"
            ) from None
        self._error: type[Exception] = Error
        self.dialect = Dialect(days=days)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        os.makedirs(where.path, 0o750, exist_ok=True)
        try:
            first = clickhouse_connect.get_client(interface="chdb", path=where.path)
        except (Error, RuntimeError) as error:
            raise StoreError(
                f"{where.path} cannot be opened: {_first_line(error)}",
                f"pyprof server --rebuild; {where.path} needs space, and rights of the server's user",
            ) from None
        self._open = partial(clickhouse_connect.get_client, interface="chdb", path=where.path, database=where.database)
        first.command(f"CREATE DATABASE IF NOT EXISTS {where.database}")
        self.run("SELECT 1")
        first.close()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        try:
            client = self._idle.get_nowait()
        except Empty:
            try:
                client = self._open()
            except (self._error, RuntimeError) as error:
                raise StoreError(_first_line(error)) from None
        try:
            yield client
        except self._error as error:
            client.close()  # after a killed query it keeps old data and would answer the next query with it
            raise StoreError(_first_line(error)) from None
        except BaseException:
            client.close()
            raise
        self._idle.put(client)

    def run(self, sql: str) -> None:
        with self._client() as client:
            client.command(sql)

    def put(self, sql: str) -> None:
        self.run(sql)

    def rows(self, sql: str, patience_s: float = 0) -> list[list[Any]]:
        with self._client() as client:
            return _data(client.raw_query(f"{sql} FORMAT JSONCompact"))

    def insert(self, table: str, block: Block) -> None:
        with self._client() as client:
            client.raw_insert(table, block.names, block.data(), fmt="Native")

    def check(self) -> None:
        self.rows(_CHECK)

    def close(self) -> None:
        """Close the idle connections to the database. The caller must make no more queries."""
        while not self._idle.empty():
            self._idle.get().close()


class HttpEngine:
    """A ClickHouse server of any version, used by its HTTP interface, because drivers do not support old servers. Each
    query has its own connection.
    """

    def __init__(self, where: StoreAddress, days: int) -> None:
        self._where = where
        by_hand = len(where.hosts) > 1
        self.dialect = Dialect(where.cluster, by_hand=by_hand)
        answer = self._ask(where.hosts[0], "SELECT version() FORMAT JSONCompact", database="system")
        version = str(_data(answer)[0][0])
        major = int(version.partition(".")[0]) if version[:1].isdigit() else 0
        self.dialect = Dialect(where.cluster, major < _OLD, days, by_hand)
        for host in where.hosts:
            self._ask(
                host, f"CREATE DATABASE IF NOT EXISTS {where.database} {self.dialect.on_cluster}", database="system"
            )

    def run(self, sql: str) -> None:
        for host in self._where.hosts:
            try:
                self._ask(host, sql)
            except StoreError as error:
                if error.code not in _COLUMN_EXISTS or " ADD COLUMN " not in sql:
                    raise

    def put(self, sql: str) -> None:
        self._ask(self._where.hosts[0], sql, patience_s=_LONG_S)

    def rows(self, sql: str, patience_s: float = _PATIENCE_S) -> list[list[Any]]:
        return _data(self._ask(self._where.hosts[0], f"{sql} FORMAT JSONCompact", patience_s=patience_s))

    def insert(self, table: str, block: Block) -> None:
        names = ", ".join(block.names)
        self._ask(self._where.hosts[0], f"INSERT INTO {table} ({names}) FORMAT Native", block.data())

    def check(self) -> None:
        self._ask(self._where.hosts[0], _CHECK, patience_s=SHORT_S)

    def close(self) -> None:
        """Close nothing, because no connection to the database stays open between queries."""

    def _ask(
        self, host: tuple[str, int], sql: str, block: bytes = b"", database: str = "", patience_s: float = _PATIENCE_S
    ) -> bytes:
        """Send an SQL statement to a ClickHouse host, and return its response.

        Args:
            block: Rows to insert; the statement is then in the URL.
        """
        where = self._where
        words = {"database": database or where.database}
        if where.cluster:
            words["insert_distributed_sync"] = "1"
        if block:
            words["query"] = sql
        headers = {}
        if where.user:
            pair = base64.b64encode(f"{where.user}:{where.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        connection = http.client.HTTPConnection(*host, timeout=patience_s)
        try:
            connection.request("POST", f"/?{urllib.parse.urlencode(words)}", block or sql.encode(), headers)
            with connection.getresponse() as answer:
                found = answer.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{host[0]}:{host[1]} does not answer: {_first_line(error)}") from None
        finally:
            connection.close()
        if answer.status != 200:
            refused = StoreError(_first_line(found.decode("utf-8", "replace")))
            if refused.code in _PASSWORD_CODES:
                refused.hint = f"server.store_password_file, or {PASSWORD_VARIABLE} in the environment"
            raise refused
        return found


def _data(answer: bytes) -> list[list[Any]]:
    """Decode the rows of a ClickHouse response. They have no lone surrogates, because inserted text is valid UTF-8."""
    found: list[list[Any]] = orjson.loads(answer)["data"]
    return found


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]


def opened(where: StoreAddress, days: int) -> Engine:
    """Open an SQL engine and bring its tables to the current version. For a folder, the server uses LocalEngine
    instead.

    Raises:
        StoreError: The database cannot be opened.
        UsageError: Packages are missing.
    """
    engine: Engine = ChdbEngine(where, days) if where.kind == "chdb" else HttpEngine(where, days)
    migrate(engine)
    return engine


def migrate(engine: Engine) -> None:
    """Apply the missing migrations to the database. Each server has its own table of applied migrations."""
    engine.run(engine.dialect.filled(VERSIONS))
    done = {int(row[0]) for row in engine.rows("SELECT number FROM migrations")}
    for migration in migrations():
        if migration.number not in done:
            for statement in migration.statements(engine.dialect):
                (engine.put if statement.startswith("INSERT") else engine.run)(statement)
            engine.run(f"INSERT INTO migrations VALUES ('2020-01-01', {migration.number})")
    if not engine.dialect.old:
        for table in _tables_of_other_retention(engine):
            engine.run(f"ALTER TABLE {table} {engine.dialect.on_cluster} MODIFY {engine.dialect.filled('{ttl}')}")


def _tables_of_other_retention(engine: Engine) -> Iterator[str]:
    """Yield the tables whose retention (TTL) is not the configured one. Others need no statement: ClickHouse rewrites
    the metadata of each table whose TTL is set, and a full disk would leave an empty file.

    The tables of a cluster are not compared: all are yielded.
    """
    sql = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"
    kinds = {} if engine.dialect.cluster else {str(name): str(kind) for name, kind in engine.rows(sql)}
    wanted = f"TTL day + toIntervalDay({engine.dialect.days}) "
    return (table for table in NAMES if wanted not in f"{kinds.get(table, '')} ")
