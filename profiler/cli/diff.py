"""`pyprof diff`: compare two recordings function by function, as a table, a page or data."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from pyprof.cli.arguments import add_criteria, chosen, moment, percentage, positive_int, seconds_since
from pyprof.cli.terminal_output import HelpFormatter, line
from pyprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyprof.comparison.result import Comparison
    from pyprof.model.profile import Profile

_ROWS, OTHERS = 20, 3
"""Maximum number of rows of the comparison table, and maximum number of rows without a significant change in a table
that has significant ones.
"""
_RANGE = re.compile(r"(?P<file>.+)@(?P<from>[^@-]*)-(?P<to>[^@-]*)", re.DOTALL)
GREW = 3
"""Exit code of `pyprof diff` if a function grew by more than --fail-over."""

DESCRIPTION = """\
Compare two recordings, or two ranges of time of one, function by function. Functions are
matched by name and file, so the program may have been rebuilt in between. A change
that is not significant may be noise: it is grey, or has no mark.
"""

EPILOG = """\
examples:
  pyprof diff before.pyprof after.pyprof
  pyprof diff a.pyprof@0-10 a.pyprof@10-20      two ranges of one recording, in seconds
  pyprof diff before.pyprof after.pyprof -o change.html
  pyprof diff before.pyprof after.pyprof --per 118000,121500     requests that were served
  pyprof diff before.pyprof after.pyprof --fail-over 5%          exit code 3 if one grew by more

How costs are scaled decides what the comparison says. By time: does it take more of the
processors? By samples: does it have another share? Per unit of work, or of two runs that
did the same work (--normalize none): did it become slower?
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "diff",
        help="compare two recordings: which functions changed",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    for name, meaning in (("before", "a recording, or another file that `pyprof report` reads"), ("after", "another")):
        parser.add_argument(name, metavar=name.upper(), help=f"{meaning}; FILE@FROM-TO is a range of its time")
    add_criteria(parser.add_argument_group("samples of both (all options that are given must match)"))
    add_comparing(parser.add_argument_group("comparison"))
    out = parser.add_argument_group("output")
    out.add_argument("-o", "--output", metavar="FILE", help="a page (.html) or data (.json, .csv)")
    out.add_argument(
        "-n",
        "--rows",
        type=positive_int,
        metavar="N",
        help=f"maximum number of rows (default: {_ROWS}, at most {OTHERS} of them not significant)",
    )
    out.add_argument("--sort", choices=("self", "total"), default="self", help="(default: %(default)s)")
    parser.set_defaults(run=run)


def add_comparing(how: argparse._ArgumentGroup) -> None:
    scale = how.add_mutually_exclusive_group()
    scale.add_argument(
        "--normalize",
        choices=("time", "samples", "none"),
        help="how costs are scaled: per second of recording, as shares of the total, or not (default: time, "
        "if it is known)",
    )
    scale.add_argument(
        "--per", type=_units, metavar="N,M", help="units of work that the program did in BEFORE, in AFTER"
    )
    how.add_argument(
        "--least",
        type=percentage,
        default=0.01,
        metavar="PERCENT",
        help="smallest relative change that counts; smaller ones are noise (default: 1%%)",
    )
    how.add_argument(
        "--drift",
        type=percentage,
        default=0.2,
        metavar="PERCENT",
        help="largest change of all functions together that is attributed to the machine or its load (default: 20%%)",
    )
    how.add_argument(
        "--fail-over",
        type=percentage,
        metavar="PERCENT",
        help=f"exit code {GREW} if a function grew significantly by more than this",
    )


def run(arguments: argparse.Namespace) -> int:
    return compared(arguments, lambda: [_side(text, arguments) for text in (arguments.before, arguments.after)])


def compared(arguments: argparse.Namespace, sides: Callable[[], Sequence[Profile]]) -> int:
    """Compare two profiles by the options of add_comparing(), and print or write the result by --output, --rows and
    --sort.
    """
    from pyprof.comparison.compare import compare

    if arguments.output is not None:
        from pyprof.cli.output_files import check_writable
        from pyprof.exporters.comparison_file import find_writer

        find_writer(arguments.output)
        check_writable(arguments.output)
    before, after = sides()
    how = arguments.normalize, arguments.per, arguments.least, arguments.drift
    found = compare(before, after, *how)
    if arguments.fail_over is not None and found.doubt:
        raise UsageError(
            f"--fail-over cannot decide: {found.doubt}",
            "record for longer with pyprof record, or leave out --fail-over",
        )
    if arguments.output is None:
        _show(found, lambda one, other: compare(one, other, *how), arguments)
    else:
        _write(found, arguments.output)
    if arguments.fail_over is None:
        return 0
    grown = found.grown(arguments.fail_over)
    for change in grown:
        line(f"pyprof: {change.name} ({change.module}) grew by more than {100 * arguments.fail_over:g} %", sys.stderr)
    return GREW if grown else 0


def _show(found: Comparison, compare: Callable[[Profile, Profile], Comparison], arguments: argparse.Namespace) -> None:
    """Print the tables of a comparison of two profiles. `compare` is a function that compares two other profiles by the
    same settings.
    """
    from pyprof.cli.comparison_table import by_callers, native_table, sensitivity, table

    width = min(max(shutil.get_terminal_size().columns, 60), 120)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    rows, others = (arguments.rows, arguments.rows) if arguments.rows else (_ROWS, _ROWS if found.doubt else OTHERS)
    by: Literal["own", "total"] = "own" if arguments.sort == "self" else "total"
    shown = by_callers(found, compare)
    tables = table(shown, by, (rows, others), width, colour), native_table(found, shown, by, width, colour)
    for text in chain(*tables, sensitivity(shown, width)):
        print(text)


def _write(found: Comparison, place: str) -> None:
    from pyprof.cli.output_files import write
    from pyprof.exporters.comparison_file import find_writer

    writer = find_writer(place)
    place = write(place, lambda out: writer(found, out))
    if place != "-":
        line(f"pyprof: wrote {place}", sys.stderr)


def _side(text: str, arguments: argparse.Namespace) -> Profile:
    """Load one of the two profiles of a comparison: FILE, or FILE@FROM-TO for a part of it if no file has that whole
    name.
    """
    from pyprof.importers.registry import load

    match = None if os.path.exists(text) else _RANGE.fullmatch(text)
    profile = load(match["file"] if match else text)
    if match:
        edges = [_edge(match[name], profile) for name in ("from", "to")]
        profile = profile.cut(edges[0], edges[1])
    return chosen(profile, arguments)


def _edge(text: str, profile: Profile) -> float | None:
    if not text:
        return None
    try:
        return seconds_since(moment(text), profile.start_ns, profile.duration_ns)
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error), "FILE@FROM-TO, such as a.pyprof@10-20") from None


def _units(text: str) -> tuple[float, float]:
    try:
        before, after = (float(each) for each in text.split(","))
    except ValueError:
        before = after = 0.0
    if not all(0 < each < float("inf") for each in (before, after)):
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers above 0 with a comma between")
    return before, after
