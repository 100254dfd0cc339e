"""What answers SQL: ClickHouse in this process (chdb), or a server. Both by JSON: one text of SQL serves both."""

from __future__ import annotations

import base64
import http.client
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import orjson

from pyprof.errors import PyprofError, UsageError
from pyprof.records import dataclass
from pyprof.server.tables import NAMES, VERSIONS, Dialect, migrations

_MOST_ANSWER = 1 << 30
_PATIENCE_S = 60.0
_OLD = 20
"""Servers before this version lack what a Dialect calls old."""


class StoreError(PyprofError):
    """The database refused, or is not there. Its text has no data of a client."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """kind: "chdb" or "clickhouse". path: a folder. cluster: of servers; "" for one."""

    kind: str
    path: str = ""
    host: str = ""
    port: int = 8123
    database: str = "pyprof"
    user: str = ""
    password: str = ""
    cluster: str = ""


def address(url: str) -> StoreAddress:
    """chdb:///folder or clickhouse://[user:password@]host[:port]/database[?cluster=NAME]. Raises UsageError."""
    parts = urllib.parse.urlsplit(url)
    try:
        port = parts.port or 8123
    except ValueError:
        port = 0
    if parts.scheme == "chdb" and parts.path.startswith("/") and len(parts.path) > 1 and not parts.netloc:
        return StoreAddress("chdb", path=parts.path)
    name = parts.path.strip("/") or "pyprof"
    cluster = dict(urllib.parse.parse_qsl(parts.query)).get("cluster", "")
    if (
        parts.scheme != "clickhouse"
        or not parts.hostname
        or not port
        or not _is_name(name)
        or not _is_name(cluster or "x")
    ):
        raise UsageError(
            f"{parts.scheme}://… is no store", "chdb:///FOLDER, or clickhouse://HOST:PORT/DATABASE?cluster=NAME"
        )
    user, password = (urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
    return StoreAddress("clickhouse", "", parts.hostname, port, name, user, password, cluster)


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w{0,63}", text, re.ASCII) is not None


def literal(value: str | int) -> str:
    """As SQL has it. Texts of clients reach the database by this alone."""
    if isinstance(value, int):
        return str(int(value))
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


class Engine(Protocol):
    """dialect: what it understands. All methods raise StoreError."""

    dialect: Dialect

    def run(self, sql: str) -> None: ...
    def rows(self, sql: str) -> list[list[Any]]: ...
    def insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> None: ...
    def close(self) -> None: ...


class ChdbEngine:
    """One process has a folder at a time, and a process one folder."""

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
        os.makedirs(where.path, 0o750, exist_ok=True)
        try:
            self._client = clickhouse_connect.get_client(interface="chdb", path=where.path)
        except (Error, RuntimeError) as error:
            raise StoreError(f"{where.path} cannot be opened: {_first_line(error)}", "another server has it?") from None
        self.run("CREATE DATABASE IF NOT EXISTS pyprof")

    def run(self, sql: str) -> None:
        try:
            self._client.command(sql, settings={"database": "pyprof"}, use_database=False)
        except self._error as error:
            raise StoreError(_first_line(error)) from None

    def rows(self, sql: str) -> list[list[Any]]:
        try:
            return _data(self._client.raw_query(f"{sql} FORMAT JSONCompact", use_database=False))
        except self._error as error:
            raise StoreError(_first_line(error)) from None

    def insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> None:
        block = b"\n".join(map(orjson.dumps, rows))
        if not block:
            return
        try:
            self._client.raw_insert(table, insert_block=block, fmt="JSONEachRow")
        except self._error as error:
            raise StoreError(_first_line(error)) from None

    def close(self) -> None:
        self._client.close()


class HttpEngine:
    """A server's HTTP interface, of any version: no driver speaks with the old ones. A connection a question."""

    def __init__(self, where: StoreAddress, days: int) -> None:
        self._where = where
        self.dialect = Dialect(where.cluster)
        version = str(self.rows("SELECT version()")[0][0])
        major = int(version.partition(".")[0]) if version[:1].isdigit() else 0
        self.dialect = Dialect(where.cluster, major < _OLD, days)
        on_cluster = f" ON CLUSTER {where.cluster}" if where.cluster else ""
        self._ask(f"CREATE DATABASE IF NOT EXISTS {where.database}{on_cluster}", b"", database="")

    def run(self, sql: str) -> None:
        self._ask(sql, b"")

    def rows(self, sql: str) -> list[list[Any]]:
        return _data(self._ask(f"{sql} FORMAT JSONCompact", b"", database="system" if "version()" in sql else None))

    def insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> None:
        block = b"\n".join(map(orjson.dumps, rows))
        if block:
            self._ask(f"INSERT INTO {table} FORMAT JSONEachRow", block)

    def close(self) -> None:
        """Nothing is open."""

    def _ask(self, sql: str, block: bytes, database: str | None = None) -> bytes:
        where = self._where
        words = {"insert_distributed_sync": "1"} if block and where.cluster else {}
        named = where.database if database is None else database
        if named:
            words["database"] = named
        if block:
            words["query"] = sql
        headers = {}
        if where.user:
            pair = base64.b64encode(f"{where.user}:{where.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        connection = http.client.HTTPConnection(where.host, where.port, timeout=_PATIENCE_S)
        try:
            connection.request("POST", f"/?{urllib.parse.urlencode(words)}", block or sql.encode(), headers)
            answer = connection.getresponse()
            found = answer.read(_MOST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{where.host}:{where.port} does not answer: {_first_line(error)}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise StoreError(_first_line(found.decode("utf-8", "replace")))
        return found


def _data(answer: bytes) -> list[list[Any]]:
    """Lone surrogates cannot be: what is inserted is valid UTF-8."""
    found: list[list[Any]] = orjson.loads(answer)["data"]
    return found


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]


def opened(where: StoreAddress, days: int) -> Engine:
    """With all migrations applied. Raises StoreError, UsageError."""
    engine: Engine = ChdbEngine(where, days) if where.kind == "chdb" else HttpEngine(where, days)
    migrate(engine)
    return engine


def migrate(engine: Engine) -> None:
    """What has been applied is a row of the table migrations, which each server has for itself."""
    engine.run(engine.dialect.filled(VERSIONS))
    done = {int(row[0]) for row in engine.rows("SELECT number FROM migrations")}
    for migration in migrations():
        if migration.number not in done:
            for statement in migration.statements(engine.dialect):
                engine.run(statement)
            engine.insert("migrations", [{"day": "2020-01-01", "number": migration.number}])
    if not engine.dialect.old:
        for table in NAMES:  # the retention of the configuration, not that of the day on which the table was made
            on_cluster = f" ON CLUSTER {engine.dialect.cluster}" if engine.dialect.cluster else ""
            engine.run(f"ALTER TABLE {table}{on_cluster} MODIFY {engine.dialect.filled('{ttl}')}")
