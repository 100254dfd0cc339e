"""`pyprof top`: show live in the terminal, or in tables for scripts, which functions of a process use time."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import (
    DEFAULT_SPAN_S,
    EVERY_S,
    SORTS,
    TABLES,
    add_python,
    add_selection,
    chosen_format,
    positive,
    positive_int,
    regex,
    target_options,
)
from pyprof.cli.recording_options import add_sampling, add_unwinding, format_unwind_sources, record_options
from pyprof.cli.terminal_output import HelpFormatter
from pyprof.errors import UsageError

if TYPE_CHECKING:
    from pyprof.cli.top_view_state import View
    from pyprof.options import RecordOptions, TargetOptions

_WAYS = "-p PID, -a, --name REGEX (--user, --cgroup), or a command"

DESCRIPTION = """\
Show what a process does now, by function, thread, process, module or source line, updated
each second. Samples are taken as by `pyprof record`. If standard output is not a terminal, a
table is printed for each interval; --once prints one table and sets the exit code.
"""

EPILOG = """\
SOURCES
exit status:
  0 done, 1 error (with --once: also if nothing was sampled), 2 wrong usage.

examples:
  pyprof top -p 1234
  sudo pyprof top -a --by process
  pyprof top --name postgres --mode offcpu
  pyprof top -p 1234 --once --interval 5 --by thread
  pyprof top -- ./server --port 80
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "top",
        help="watch what a process does, live",
        description=DESCRIPTION,
        epilog=EPILOG.replace("SOURCES", format_unwind_sources()),
        formatter_class=HelpFormatter,
        usage="pyprof top [options] (-p PID ... | -a | --name REGEX | [--] CMD ...)",
    )
    add_selection(parser, "watch")
    how = parser.add_argument_group("display")
    how.add_argument("--by", choices=TABLES, default=TABLES[0], help="one row for each of these (default: %(default)s)")
    how.add_argument("--sort", choices=SORTS, default=SORTS[0], help="sort by this column (default: %(default)s)")
    how.add_argument(
        "--span",
        type=positive,
        metavar="S",
        help=f"of the last S seconds (default: {DEFAULT_SPAN_S:g}; without a terminal: of each interval)",
    )
    how.add_argument("--search", type=regex, metavar="REGEX", help="only rows whose name matches")
    how.add_argument(
        "--interval",
        type=positive,
        default=EVERY_S,
        metavar="S",
        help="seconds between two tables (default: %(default)g)",
    )
    how.add_argument("-o", "--output", metavar="FILE", help="save all samples at the end, also if the terminal is lost")
    how.add_argument("--once", action="store_true", help="print one table after one interval, for scripts")
    how.add_argument(
        "-n",
        "--rows",
        type=positive_int,
        default=30,
        metavar="N",
        help="number of rows with --once (default: %(default)d)",
    )
    add_sampling(parser)
    add_unwinding(parser)
    add_python(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    targets = target_options(arguments)
    if len(command) == 1 and command[0].isdigit() and not targets:
        raise UsageError(f"{command[0]} is not a command", f"a process is given with -p {command[0]}")
    if bool(command) == bool(targets):
        raise UsageError(
            f"give exactly one way to choose what is shown: {_WAYS}", "pyprof top -p PID, or pyprof top -- CMD ..."
        )
    if arguments.idle and arguments.mode == "cpu":
        raise UsageError("-i includes sleeping threads, --mode cpu excludes them", "give one of them")
    from pyprof.cli.output_files import check_writable
    from pyprof.cli.top_screen import usable

    options = record_options(arguments)
    if arguments.output:
        chosen_format(None, arguments.output)
        check_writable(arguments.output)
    if not arguments.once and usable():
        return _live(arguments, targets, command, options)
    return _tables(arguments, targets, command, options)


def _tables(
    arguments: argparse.Namespace, targets: TargetOptions | None, command: list[str], options: RecordOptions
) -> int:
    from pyprof.cli.signal_thread import EndBySignals, listen
    from pyprof.cli.top_session import Printed, WatchedTargets, print_tables
    from pyprof.collectors.targets.command_launch import launch
    from pyprof.session.worker.worker_process import exit_at_once

    launched = launch(command, arguments.environment) if command else None
    watched = WatchedTargets(targets, launched, options)
    listen(EndBySignals(watched.stop, lambda: exit_at_once(1)))
    columns = shutil.get_terminal_size().columns
    width = min(max(columns, 40), 200)
    how = Printed(arguments.interval, arguments.once, width, arguments.rows, arguments.output, arguments.idle)
    try:
        return print_tables(watched, _view(arguments, arguments.interval), how)
    finally:
        watched.close()


def _live(
    arguments: argparse.Namespace, targets: TargetOptions | None, command: list[str], options: RecordOptions
) -> int:
    from pyprof.cli.top_session import LiveOptions, LiveSession

    wanted = LiveOptions(
        targets,
        tuple(command),
        arguments.environment,
        options,
        arguments.interval,
        arguments.output,
        arguments.idle,
    )
    return LiveSession(wanted).run(_view(arguments, DEFAULT_SPAN_S))


def _view(arguments: argparse.Namespace, span_s: float) -> View:
    from pyprof.cli.top_view_state import View

    search = arguments.search.pattern if arguments.search else ""
    return View(table=arguments.by, sort=arguments.sort, span_s=arguments.span or span_s, search=search)
