"""The start and the end of a server: its parts are opened in order from its configuration, and closed."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pyprof.errors import PyprofError, UsageError
from pyprof.fleet.server.authorization import INTERVAL_S, Access, RefusalLog
from pyprof.fleet.server.config import ServerConfig
from pyprof.fleet.server.health_and_metrics import (
    DISK_FULL,
    SENTENCES,
    STORE_FAILED,
    STORE_REBUILDING,
    CheckFailed,
    ServerHealth,
    ServerMetrics,
)
from pyprof.fleet.server.ingest.database_indexer import Indexer, Retention
from pyprof.fleet.server.ingest.segment_files import FULL, SegmentFiles
from pyprof.fleet.server.ingest.stack_caches import TenantStackCaches
from pyprof.fleet.server.store import local_database
from pyprof.fleet.server.store.clickhouse_engine import Engine, StoreAddress, StoreError, opened
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.server.store.symbol_files import SymbolFiles
from pyprof.fleet.systemd import Notifier
from pyprof.lazy_dataclasses import dataclass

Say = Callable[..., None]
_GRACE_S = 1
"""Time in seconds that an ending server gives to running requests."""
_MAX_AT_ONCE = 1024
_MAX_MESSAGE = 1000
"""Maximum number of characters of a library's log message that the server's log keeps."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    files: SegmentFiles
    store: Store
    books: TenantStackCaches
    indexer: Indexer
    numbers: ServerMetrics
    symbols: SymbolFiles
    health: ServerHealth
    refusals: RefusalLog


def _open_engine(where: StoreAddress, days: int, say: Say, is_new: bool) -> Engine:
    """Open the SQL engine of a server. With `is_new`, delete the folder of the database first."""
    if where.kind != "chdb":
        return opened(where, days)
    if is_new:
        local_database.delete(where.path)
    return local_database.LocalEngine(where, days, say)


@contextmanager
def parts(config: ServerConfig, say: Say, is_new: bool = False) -> Iterator[ServerParts]:
    """Open the parts of a server (database, files, indexer), without starting the indexer.

    Args:
        is_new: Delete the folder of the database first. The database of a ClickHouse server is not deleted.

    Raises:
        OutputError: The folder cannot be used.
        StoreError: The database cannot be opened.
        UsageError: Packages are missing.
    """
    files = SegmentFiles(os.path.join(config.data, "segments"))
    try:
        engine = _open_engine(config.store_address(), config.days, say, is_new)
        store = Store(engine)
        try:
            waiting: list[Indexer] = []

            def check_store() -> None:
                store.check()
                waiting[0].check()

            def check_disk() -> None:
                check_folder(files)
                if isinstance(engine, local_database.LocalEngine):
                    engine.check_room()

            def check_rebuilt() -> None:
                if (
                    isinstance(engine, local_database.LocalEngine)
                    and engine.was_damaged
                    and not waiting[0].has_caught_up
                ):
                    raise StoreError(SENTENCES[STORE_REBUILDING])

            checks = {DISK_FULL: check_disk, STORE_FAILED: check_store, STORE_REBUILDING: check_rebuilt}
            health = ServerHealth(checks, say)
            numbers = ServerMetrics(
                {
                    "index_waiting": lambda _: waiting[0].waiting if waiting else 0,
                    "windows_without_file": lambda _: waiting[0].without_file if waiting else 0,
                    "reload_success": lambda _: not health.reload_error,
                    "failing": lambda reason: reason in health.failures,
                }
            )
            books = TenantStackCaches()
            retention = Retention(config.max_age, config.max_bytes, config.hours_after)
            indexer = Indexer(files, store, books, retention, say, numbers.count)
            waiting.append(indexer)
            symbols = SymbolFiles(os.path.join(config.data, "symbols"), config.symbols)
            yield ServerParts(files, store, books, indexer, numbers, symbols, health, RefusalLog(say))
        finally:
            store.close()
    finally:
        files.close()


def check_folder(files: SegmentFiles) -> None:
    """Check that the folder of the segments takes files.

    Raises:
        CheckFailed: It does not. The text names the folder, the hint what helps.
    """
    try:
        files.check()
    except OSError as error:
        about = f"{files.root}: {error.strerror or type(error).__name__}"
        hint = "" if error.errno in FULL else f"check the disk and the rights of {files.root}"
        raise CheckFailed(about, hint) from None


def serve(
    config: ServerConfig,
    say: Say,
    listens: Callable[[Callable[[], None], Callable[[], None]], None],
    load: Callable[[], ServerConfig],
) -> None:
    """Run a server until it is ended by a function that is passed to `listens`.

    Args:
        listens: Function that receives two functions. The first ends the server: running requests are then answered,
            and received segments are inserted into the database. The second makes the server use the tenants and tokens
            of the present configuration.
        load: Function that reads the configuration again.

    Raises:
        OutputError: The folder cannot be used.
        StoreError: The database cannot be opened.
        UsageError: Packages are missing, or the address is in use.
    """
    try:
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401

        from pyprof.fleet.server.http_app import FleetServer
    except ImportError:
        raise UsageError(
            "the server lacks starlette, uvicorn or httptools", "pip install 'pyprof-live[server]'"
        ) from None
    systemd = Notifier(os.environ)

    def ready() -> None:
        systemd.send("READY=1")
        say("info", "started", address=f"http://{config.host}:{config.port}", data=config.data)

    with bound_sockets(config) as sockets, parts(config, say) as found:
        fleet = FleetServer(config, found)
        server = _server(config, fleet.app, ready, say)
        listens(
            lambda: setattr(server, "should_exit", True), lambda: reload_tenants(fleet.access, found.health, load, say)
        )
        found.indexer.start()
        found.health.start()
        try:
            run_http(server, sockets, config)
        finally:
            systemd.send("STOPPING=1")
            fleet.close()
            found.health.close()
            found.indexer.close()
            say("info", "ended")


def reload_tenants(access: Access, health: ServerHealth, load: Callable[[], ServerConfig], say: Say) -> None:
    """Use the tenants and tokens of the present configuration from now on. If the configuration is wrong, only the
    server's health changes.
    """
    try:
        tenants = load().tenants
        access.change_tenants(tenants)
    except (PyprofError, OSError) as error:
        health.reload_error = str(error)
        hint = {"hint": error.hint} if isinstance(error, PyprofError) and error.hint else {}
        say("error", "reload failed", error=str(error), **hint)
    else:
        health.reload_error = ""
        say("info", "reloaded", tenants=len(tenants), other_settings="unchanged until a restart")


@contextmanager
def bound_sockets(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """Bind sockets to the server's address before anything else is created. The sockets do not listen yet.

    Raises:
        UsageError: The address cannot be used.
    """
    with ExitStack() as opened_ones:
        found = []
        try:
            known = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in dict.fromkeys(known):
                try:
                    made = opened_ones.enter_context(socket.socket(family, kind, protocol))
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    made.bind(where)
                    found.append(made)
                except OSError as error:
                    if error.errno not in _FAMILY_IS_ABSENT or len(known) == 1:
                        raise
        except OSError as error:
            raise _no_address(config, error) from None
        yield found


_FAMILY_IS_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Error numbers of bind(2) on a machine without the address family, for example for the IPv6 address of a host name."""


def _no_address(config: ServerConfig, error: OSError) -> UsageError:
    reason = error.strerror or str(error)
    return UsageError(f"{config.host}:{config.port} cannot be opened: {reason}", "choose another --port")


def run_http(server: Any, sockets: list[socket.socket], config: ServerConfig) -> None:
    """Serve HTTP until the server is ended.

    Raises:
        UsageError: Another process has begun to listen at the address since it was bound.
    """
    try:
        server.run(sockets)
    except OSError as error:
        if server.started:
            raise
        raise _no_address(config, error) from None


class _LogHandler(logging.Handler):
    """A log handler that passes messages of uvicorn and other libraries to the server's log in its format. Each place
    in the libraries' code may log once a minute, because clients can cause some of these messages.
    """

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._say, self._clock = say, clock
        self._logged: dict[tuple[str, str, int], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now, place = self._clock(), (record.name, record.pathname, record.lineno)
        last, unlogged = self._logged.get(place, (now - INTERVAL_S, 0))
        if now - last < INTERVAL_S:
            self._logged[place] = last, unlogged + 1
            return
        self._logged[place] = now, 0
        more = {"unlogged_before": unlogged} if unlogged else {}
        level = "error" if record.levelno >= logging.ERROR else "warning"
        try:
            text = record.getMessage().strip()
            if record.exc_info and record.exc_info[1] is not None:
                text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            self._say(level, "library message", logger=record.name, message=text[:_MAX_MESSAGE], **more)
        except Exception:  # noqa: BLE001 - logging must not end a request
            self.handleError(record)


def _server(config: ServerConfig, app: Any, ready: Callable[[], None], say: Say) -> Any:
    """Return a uvicorn HTTP server that calls the function `ready` when it listens."""
    import uvicorn

    logging.getLogger().handlers = [_LogHandler(say)]

    from pyprof.fleet.server.request_limits import BoundedProtocol

    class QuietServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """Install no signal handlers: uvicorn's handlers would end the process before the database is closed."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    return QuietServer(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            log_config=None,
            log_level="warning",
            access_log=False,
            interface="asgi3",
            http=BoundedProtocol,
            loop="asyncio",  # uvloop would replace the file descriptor into which signals are written
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            limit_concurrency=_MAX_AT_ONCE,
        )
    )


def rebuild(config: ServerConfig, say: Say) -> int:
    """Rebuild the server's database from the segment files, and return the number of segments. The old database of a
    folder is deleted without being opened, because it may be damaged.
    """
    with parts(config, say, is_new=True) as found:
        found.store.empty()
        return found.indexer.catch_up()
