"""`pyprof server`: receive and store windows of agents, answer queries, and serve a page."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyprof.cli.terminal_output import HelpFormatter, line, refuse
from pyprof.errors import PyprofError, UsageError

if TYPE_CHECKING:
    from pyprof.cli.terminal_output import Log
    from pyprof.fleet.server.config import ServerConfig

_MAX_S = 10.0
"""Maximum time in seconds from the first signal that ends the server until its process exits.

Received windows that are not in the database by then are stored as files. The next start inserts them.
"""

DESCRIPTION = """\
Store the profiles that many agents send as files, and answer queries by a web page and HTTP.
A tenant is a group of users and agents with its own tokens and data.
Needs pip install 'pyprof-live[server]'. SIGTERM ends it after the requests that it is
answering. SIGHUP makes it read the tenants and their tokens again.
"""

EPILOG = """\
examples:
  pyprof server --data ~/fleet                       at http://127.0.0.1:4242, open to all users of this machine
  pyprof server --print-config > server.toml         every setting, with what it means
  pyprof server --config server.toml --check
  pyprof server --config server.toml --rebuild       the database anew, from the files
  pyprof server --print-unit                         a systemd unit
  pyprof server --print-refusals                     why requests are refused, and what helps
  pyprof server --print-sql                          the ClickHouse tables, for one server and then for a cluster
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "server",
        help="store the profiles that many agents send, and answer queries",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="file with settings and tenants (TOML)")
    parser.add_argument("--data", metavar="DIR", help="folder of the stored windows; overrides the setting server.data")
    parser.add_argument("--port", type=int, metavar="PORT", help="HTTP port; overrides the setting server.port")
    parser.add_argument(
        "--log", choices=("text", "json"), default="text", help="format of log lines (default: %(default)s)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only check the configuration")
    what.add_argument("--print-config", action="store_true", help="print the default configuration, commented")
    what.add_argument(
        "--print-sql",
        action="store_true",
        help="print the SQL statements that create the tables of the server's ClickHouse database",
    )
    what.add_argument(
        "--print-refusals",
        action="store_true",
        help="print the reasons for which the server refuses requests or is unhealthy, with meanings and hints",
    )
    what.add_argument("--print-unit", action="store_true", help="print a systemd unit that runs the server")
    what.add_argument(
        "--rebuild", action="store_true", help="empty the database, and fill it again from the files of all windows"
    )
    parser.set_defaults(run=run)


def _unit(config: str | None, data: str) -> str:
    """Return the text of the server's systemd unit.

    Raises:
        UsageError: A path cannot be written in a unit.
    """
    import os

    from pyprof.fleet import systemd
    from pyprof.fleet.server.config import ServerConfig

    command = [sys.executable, "-m", "pyprof", "server", "--log", "json", "--data", data]
    command += ["--config", os.path.abspath(config)] if config else []
    try:
        return systemd.server_unit(command, [data] if data != ServerConfig().data else [])
    except ValueError as error:
        raise UsageError(str(error)) from None


def refusals() -> Iterator[str]:
    """Yield lines about each reason for which the server refuses requests or is unhealthy: its HTTP status, its
    meaning, and a hint.
    """
    from pyprof.fleet.server.authorization import STATUS
    from pyprof.model.fleet_loss_reasons import FILES_MISSING, REQUESTS

    for each in (*REQUESTS, FILES_MISSING):
        yield f"{each.name} ({STATUS.get(each.name, '/healthz 200')})"
        yield f"  {each.sentence}"
        if each.hint:
            yield f"  hint: {each.hint}"


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli.terminal_output import Log, log_thread_failures
    from pyprof.fleet.server import config, start_and_shutdown
    from pyprof.fleet.server.store import clickhouse_engine
    from pyprof.fleet.toml_config_files import BadConfig
    from pyprof.lazy_dataclasses import replace

    if arguments.print_config:
        print(config.printed(), end="")
        return 0
    if arguments.print_refusals:
        for text in refusals():
            line(text)
        return 0
    try:
        found = config.load(arguments.config)
    except BadConfig as error:
        if not arguments.check:
            raise
        for each in error.errors:
            line(f"{arguments.config}: {each}")
        return error.exit_code
    if arguments.check:
        for tenant in found.tenants:
            if not tenant.tokens:
                text = f"tenant {tenant.name!r} has no token file: no client can write or read"
                line(f"{arguments.config}: warning: {text}")
        line(f"{arguments.config or 'the defaults'}: no error")
        return 0
    if arguments.print_sql:
        print(clickhouse_engine.printed(found.days), end="")
        return 0
    data = os.path.abspath(arguments.data) if arguments.data else found.data
    if arguments.print_unit:
        print(_unit(arguments.config, data), end="")
        return 0
    found = replace(found, data=data, port=found.port if arguments.port is None else arguments.port)
    if not 1 <= found.port <= 65535:
        raise UsageError(f"--port {found.port} is not a port number", "--port 4242")
    prefix = "" if arguments.log == "json" else "pyprof server: "
    log = Log(lambda text: line(f"{prefix}{text}", sys.stderr), arguments.log == "json")
    log_thread_failures(log)
    if arguments.rebuild:
        count = start_and_shutdown.rebuild(found, log)
        line(f"{count:,} segments of {found.data} are in the database")
    else:
        _serve(found, log, arguments.log == "json", lambda: config.load(arguments.config))
    return 0


def _serve(found: ServerConfig, log: Log, is_json: bool, load: Callable[[], ServerConfig]) -> NoReturn:
    """Run the server, and exit this process at once when the server has ended. SIGHUP makes the server read its tenants
    again.

    An orderly exit of the interpreter would unwind threads that are in a query of chdb, such as that of a health check.
    That crashes, and chdb's crash handler then keeps a lock for which exit(3) waits.
    """
    from pyprof.cli.signal_thread import EndBySignals, listen
    from pyprof.fleet.server import start_and_shutdown

    def listens(end: Callable[[], None], reload: Callable[[], None]) -> None:
        ending = EndBySignals(_with_alarm(end), lambda: os._exit(1))
        listen(lambda number: reload() if number == signal.SIGHUP else ending(number))

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it reloads under nohup, too
    code = 0
    try:
        start_and_shutdown.serve(found, log, listens, load)
    except PyprofError as error:
        code = error.exit_code
        if is_json:
            from pyprof.cli.terminal_output import log_failure

            log_failure(error)
        else:
            refuse(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _with_alarm(end: Callable[[], None]) -> Callable[[], None]:
    """Return a function that ends the server, and arms a timer of the kernel (alarm) that kills this process if that
    takes too long. The main thread calls it.

    A timer in Python would wait for the GIL, which a call of the database may keep.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))

    def end_in_time() -> None:
        signal.setitimer(signal.ITIMER_REAL, _MAX_S)
        end()

    return end_in_time
