"""`pyprof query`: what the agent's spool says about a span of time, in any format, or as tables in the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import add_criteria, chosen, chosen_format, positive_int
from pyprof.cli.diff import add_comparing, compared
from pyprof.cli.terminal_output import HelpFormatter, line, printable
from pyprof.errors import PyprofError, UsageError
from pyprof.exporters import registry
from pyprof.options import SIMPLE_MODES

if TYPE_CHECKING:
    from pyprof.exporters.base import Exporter
    from pyprof.fleet.toml_config_files import TimeSpan
    from pyprof.model.profile import Profile

TOP = "top"
_ROWS = 30
_IN_A_GROUP = 3

DESCRIPTION = """\
Show what a service did, or what changed. Reads the segments that `pyprof agent` keeps in its
spool; the agent may run meanwhile, or be gone. Without -o and -f it prints the functions
that cost most.
"""

EPILOG = """\
examples:
  pyprof query --since 2h --service checkout
  pyprof query --since "today 14:00" --until "today 14:30" --service checkout -o checkout.html
  pyprof query --since 1d --service checkout --by version
  pyprof query --service checkout --diff "yesterday 14:00-15:00" "today 14:00-15:00"
  pyprof query --since 1h --service 'web-*' --thread worker -o web.pb.gz
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "query",
        help="show what the agent recorded in a time span, or what changed between two",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    what = parser.add_argument_group("windows (each counts by the time at which it ended)")
    what.add_argument("--spool", metavar="DIR", help="folder of the spool (default: that of this user's agent)")
    what.add_argument(
        "--since",
        default="1h",
        metavar="TIME",
        help='start of the span: 2h, 30m or 7d ago; "14:00", "yesterday 14:00", "2026-11-22 14:00" local time '
        "(default: 1h)",
    )
    what.add_argument(
        "--until", default="now", metavar="TIME", help="end of the span, in the same forms (default: now)"
    )
    what.add_argument(
        "--service", action="append", default=[], metavar="NAME", help="or a pattern, 'web-*'; may be repeated"
    )
    what.add_argument("--mode", choices=SIMPLE_MODES, default="cpu", help="(default: %(default)s)")
    add_criteria(parser.add_argument_group("samples (all options that are given must match)"))
    comparing = parser.add_argument_group("what changed (as `pyprof diff`)")
    comparing.add_argument(
        "--diff",
        nargs=2,
        metavar="SPAN",
        help='two spans of time: "yesterday 14:00-15:00" "today 14:00-15:00"; in place of --since and --until',
    )
    add_comparing(comparing)
    how = parser.add_argument_group("output")
    how.add_argument("--by", metavar="WHAT", help="thread, process, pid, or a label: each value, and what it costs")
    how.add_argument("-o", "--output", metavar="FILE", help="- is standard output for text formats")
    how.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help=f"{TOP}, {', '.join(registry.format_names())} (default: by the suffix of -o; {TOP} without -o)",
    )
    how.add_argument("-n", "--rows", type=positive_int, default=_ROWS, metavar="N", help="(default: %(default)d)")
    how.add_argument("--sort", choices=("self", "total"), default="self", help="of --diff (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import datetime

    from pyprof.fleet.toml_config_files import TimeSpan, moment, span
    from pyprof.fleet.wire.segment_names import default_spool

    arguments.spool = arguments.spool or default_spool()
    now = datetime.datetime.now()
    if arguments.diff is not None:
        if arguments.by is not None or arguments.format is not None:
            raise UsageError(
                "--diff writes a table, a page (.html) or data (.json, .csv)", "leave out --by and --format"
            )
        spans = [span(text, now) for text in arguments.diff]
        return compared(
            arguments,
            lambda: [_read(each, words, arguments) for each, words in zip(spans, arguments.diff, strict=True)],
        )
    found = TimeSpan(moment(arguments.since, now), moment(arguments.until, now))
    if found.start_ns >= found.end_ns:
        raise UsageError("--since is not before --until")
    exporter = _exporter(arguments)
    until = "" if arguments.until == "now" else f" until {arguments.until}"
    profile = _read(found, f"since {arguments.since}{until}", arguments)
    if exporter is not None:
        _write(profile, exporter, arguments)
    else:
        for text in _table(profile, arguments):
            line(text)
    return 0


def _exporter(arguments: argparse.Namespace) -> Exporter | None:
    """Return the exporter of the format that the options choose, or None for a table in the terminal."""
    if arguments.format == TOP or (arguments.format is None and arguments.output is None):
        if arguments.output not in (None, "-"):
            raise UsageError(f"{TOP} is a table for the terminal", f"pyprof query … > {arguments.output}")
        return None
    return chosen_format(arguments.format, arguments.output or "-")


def _read(span: TimeSpan, words: str, arguments: argparse.Namespace) -> Profile:
    from pyprof.fleet.agent import spool_query

    names = spool_query.segments(arguments.spool, span, arguments.service)
    if not names:
        known = spool_query.services(arguments.spool)
        about = (
            f"the services are {', '.join(known[:8])}{', …' if len(known) > 8 else ''}"
            if known
            else "start pyprof agent"
        )
        raise PyprofError(f"{arguments.spool} has no window of this service and time, {words}", about)
    services = list(dict.fromkeys(name.service for name in names))
    title = f"{', '.join(services[:3])}{', …' if len(services) > 3 else ''}, {words}"
    whole = spool_query.profile_of(arguments.spool, names, arguments.mode, title, arguments.diff is not None)
    profile = chosen(whole, arguments)
    if len(whole.stack) and not len(profile.stack):
        raise PyprofError(f"none of the {len(whole.stack):,} samples matches", "leave out --thread, --function, …")
    for note in whole.summary.notes:
        if note.reason == "segments_unreadable":
            line(f"pyprof: {note.text}", sys.stderr)
    return profile


def _table(profile: Profile, arguments: argparse.Namespace) -> Iterator[str]:
    from pyprof.cli.terminal_tables import bar, heading, share, top

    width = min(max(shutil.get_terminal_size().columns, 60), 120)
    if arguments.by is None:
        yield from top(profile, width, arguments.rows, shows_gap=True)
        return
    from pyprof.fleet.agent.spool_query import parts

    yield heading(profile, profile.total)
    yield ""
    for value, part in parts(profile, arguments.by)[: arguments.rows]:
        functions = ", ".join(cost.name for cost in part.top(_IN_A_GROUP) if cost.own)
        head = f"{share(part.total, profile.total)} {bar(part.total, profile.total)} {printable(value)}"
        yield f"{head}  {printable(functions)}"[:width].rstrip()


def _write(profile: Profile, exporter: Exporter, arguments: argparse.Namespace) -> None:
    from pyprof.cli.output_files import check_writable, write
    from pyprof.exporters import output_file
    from pyprof.exporters.base import ExportOptions
    from pyprof.fleet.agent.spool_query import rooted

    place = arguments.output or "-"
    shown = rooted(profile, arguments.by) if arguments.by else profile
    check_writable(place)
    options = ExportOptions(evidence=True)
    place = write(place, lambda out: exporter.write(shown, out, options))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    if place != "-":
        line(f"pyprof: wrote {place}", sys.stderr)
