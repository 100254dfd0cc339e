"""`pyprof report`: show or convert a recording, as a table in the terminal or in any output format."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import (
    CRITERIA,
    NATIVE_HELP,
    add_criteria,
    chosen,
    chosen_format,
    moment,
    positive_int,
    seconds_since,
)
from pyprof.cli.terminal_output import HelpFormatter, line, printable
from pyprof.errors import PyprofError, UsageError
from pyprof.exporters import registry
from pyprof.options import NATIVE_VIEWS

if TYPE_CHECKING:
    from pyprof.exporters.base import Exporter
    from pyprof.model.profile import Profile
    from pyprof.session.worker.messages import OneShotTask
    from pyprof.session.worker.response_codec import Value
    from pyprof.symbolize.resymbolize import Places

TOP = "top"
"""Name of the default format of `pyprof report`, a table in the terminal."""
_ROWS = 30
_NOTES = 4
_FETCH_S = 60.0
_LINES_S = 60.0
"""Maximum time in seconds for reading source lines in `pyprof report`."""

DESCRIPTION = """\
Read a recording (pyprof record -o NAME.pyprof), or another profiler's file (pprof,
speedscope, collapsed, perf.data, what perf script prints), and write it in any format,
whole or in part.
Without -o and -f it prints the functions that cost most.
"""

EPILOG = """\
examples:
  pyprof report a.pyprof
  pyprof report a.pyprof -o a.html
  pyprof report a.pyprof --from 10 --to 20 --thread worker -o part.pb.gz
  pyprof report a.pyprof --callers malloc
  pyprof report a.pyprof --lines
  pyprof report a.pyprof --annotate parse --source ~/src/server --asm
  pyprof report a.pyprof --source ~/src/server -o a.html
  pyprof report a.pyprof --exclude '^idle_' -f collapsed | sort -k2 -n
  pyprof report a.pyprof --missing
  pyprof report a.pyprof --sysroot ./rootfs --debuginfod -o named.pyprof
  pyprof report cpu.pb.gz -o cpu.html
  pyprof report perf.data
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "report",
        help="print a recording, or write it in another format",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording (NAME.pyprof), or a pprof, speedscope, collapsed or perf.data file, or perf script's text",
    )
    what = parser.add_argument_group("samples (all options that are given must match)")
    for name, meaning in (("from", "from this moment on"), ("to", "before this moment")):
        what.add_argument(
            f"--{name}",
            dest=f"{name}_",
            type=moment,
            metavar="TIME",
            help=f"{meaning}: seconds since the beginning, or a time of day (14:03, 14:03:20.5)",
        )
    add_criteria(what)
    names = parser.add_argument_group("names that the recording lacks (files are matched by build-id)")
    names.add_argument(
        "--symbols",
        action="append",
        default=[],
        metavar="PATH",
        help="an object file, a debug file, or a folder of them; may be repeated",
    )
    names.add_argument(
        "--sysroot",
        action="append",
        default=[],
        metavar="DIR",
        help="folder with the root file system of the recorded machine",
    )
    names.add_argument(
        "--debuginfod", action="store_true", help=f"query the servers in DEBUGINFOD_URLS, for at most {_FETCH_S:g} s"
    )
    how = parser.add_argument_group("output")
    how.add_argument("-o", "--output", metavar="FILE", help="- is standard output for text formats")
    how.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help=f"{TOP}, {', '.join(registry.format_names())} (default: by the suffix of -o; {TOP} without -o)",
    )
    how.add_argument(
        "-n", "--rows", type=positive_int, default=_ROWS, metavar="N", help="of tables (default: %(default)d)"
    )
    _add_tables(how)
    how.add_argument(
        "-i", "--idle", action="store_true", help="include waits of idle threads (recordings of --mode offcpu and lock)"
    )
    how.add_argument("--native", choices=NATIVE_VIEWS, help=f"of the recorded frames, {NATIVE_HELP}")
    how.add_argument("--collapse-recursion", action="store_true", help="show direct recursion as one frame")
    how.add_argument("-t", "--threads", action="store_true", help="add the thread as root frame")
    how.add_argument("--processes", action="store_true", help="add the process as root frame, if there are several")
    how.add_argument("--full-paths", action="store_true", help="show modules by path instead of by name")
    parser.set_defaults(run=run)


def _add_tables(how: argparse._ArgumentGroup) -> None:
    """Add the options of `pyprof report` for further tables, such as callers and source lines, to a parser."""
    table = how.add_mutually_exclusive_group()
    table.add_argument("--callers", metavar="NAME", help="print the callers of this function: a name or a REGEX")
    table.add_argument("--callees", metavar="NAME", help="print the callees of this function")
    table.add_argument("--lines", action="store_true", help="print source lines instead of functions")
    table.add_argument(
        "--annotate", metavar="NAME", help="print the source of this function with the cost of each line"
    )
    table.add_argument("--sql", metavar="QUERY", help="print the rows of an SQL query, separated by tabs (docs/sql.md)")
    table.add_argument(
        "--missing",
        action="store_true",
        help="print modules without names or unwind tables, and the command that helps",
    )
    how.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="DIR",
        help="where source files are, for --annotate and for a page, which then has a source view; others are shown if "
        "everybody may read them; may be repeated",
    )
    how.add_argument("--asm", action="store_true", help="with --annotate: also print its instructions (needs objdump)")


def run(arguments: argparse.Namespace) -> int:
    from pyprof.importers.registry import is_recording, load
    from pyprof.recording.reader import INTERRUPTED

    exporter = _exporter(arguments)
    if arguments.sql is not None:
        return _query(arguments)
    whole = load(arguments.file)
    profile = _chosen(_named(whole, arguments), arguments)
    if len(whole.stack) and not len(profile.stack):
        raise PyprofError(f"none of the {len(whole.stack):,} samples matches", "pyprof report FILE shows all samples")
    if not is_recording(arguments.file):
        # these notes say what is not known about the file, and what was left out
        for note in whole.summary.notes[-_NOTES:]:
            line(f"pyprof: {note.text}", sys.stderr)
    ended = INTERRUPTED not in whole.summary.notes
    if not ended:
        line(f"pyprof: {INTERRUPTED.text}", sys.stderr)
        if not len(whole.stack):
            line(f"  hint: its data may be in {arguments.file}-wal, which must be in the same folder", sys.stderr)
    if exporter is not None:
        _write(profile, exporter, arguments)
    else:
        for warning in profile.summary.warnings:
            line(f"pyprof: {warning.text}", sys.stderr)
        for text in _lines(profile, ended, arguments):
            line(text)
    return 0


def _exporter(arguments: argparse.Namespace) -> Exporter | None:
    """Return the exporter of the format that the options of `pyprof report` choose, or None for a table in the
    terminal.
    """
    tables = [name for name in _TABLES if getattr(arguments, name)]
    if arguments.asm and arguments.annotate is None:
        raise UsageError("--asm shows the instructions of one function", "--annotate NAME --asm")
    if arguments.format == TOP or (arguments.format is None and arguments.output is None):
        if arguments.output not in (None, "-"):
            raise UsageError(f"{TOP} is a table for the terminal", f"pyprof report … > {arguments.output}")
        return None
    if tables:
        raise UsageError(f"--{tables[0]} is a table for the terminal", "leave out -o and -f")
    exporter = chosen_format(arguments.format, arguments.output or "-")
    if arguments.source and exporter.name != registry.DEFAULT.name:
        raise UsageError(f"--source: no source lines in {exporter.name} files", "--annotate NAME, or -o NAME.html")
    return exporter


def _named(profile: Profile, arguments: argparse.Namespace) -> Profile:
    """Return a profile whose missing names are resolved with files of this machine, if the options request that."""
    from pyprof.symbolize.resymbolize import Places, find_unnamed_modules

    places = Places(tuple(arguments.symbols), tuple(arguments.sysroot))
    places.check_exists()
    if arguments.debuginfod:
        from pyprof.objfile.symbol_servers import download_debug_files, server_urls

        if not (urls := server_urls()):
            raise UsageError(
                "the variable DEBUGINFOD_URLS names no server", "export DEBUGINFOD_URLS=https://debuginfod.debian.net"
            )
        profile = _by_worker(profile, places)
        for text in download_debug_files((info.build_id for info in find_unnamed_modules(profile)), urls, _FETCH_S):
            line(f"pyprof: debuginfod: {text}", sys.stderr)
    elif not (places.symbols or places.sysroots):
        return profile
    return _by_worker(profile, places)


def _by_worker(profile: Profile, places: Places) -> Profile:
    """Resolve a profile's missing names in a worker process, because files are foreign data."""
    from pyprof.lazy_dataclasses import replace
    from pyprof.model.profile import Profile
    from pyprof.tools.report_tasks import NamesOf, drop_samples

    found = _answer(NamesOf(drop_samples(profile), places, _LINES_S), Profile)
    return replace(profile, frames=found.frames, modules=found.modules, summary=found.summary)


def _answer(errand: OneShotTask, kind: type[Value]) -> Value:
    from pyprof.session.worker.worker_client import Examiner
    from pyprof.session.worker.worker_process import forked

    with Examiner(forked, confined=False) as examiner:
        return examiner.one(errand, kind)


def _chosen(profile: Profile, arguments: argparse.Namespace) -> Profile:
    """Return a profile with only the samples that the options of `pyprof report` select."""
    from pyprof.model.analysis.call_tree import without_recursion
    from pyprof.model.analysis.sample_filter import timed

    start, end = (
        None if when is None else seconds_since(when, profile.start_ns, profile.duration_ns)
        for when in (arguments.from_, arguments.to_)
    )
    if start is not None and end is not None and start >= end:
        raise UsageError("--from is not before --to")
    if not (start is None and end is None):
        if not timed(profile):
            raise UsageError("the samples of this file have no times", "leave out --from and --to")
        profile = profile.cut(start, end)
    profile = chosen(profile, arguments)
    if not arguments.idle and arguments.format != registry.RECORDING:
        from pyprof.model.analysis.idle_waits import without_idle

        profile = without_idle(profile)
    if arguments.native is not None:
        from pyprof.session.pipeline.native_frame_views import viewed

        profile = viewed(profile, arguments.native)
    return without_recursion(profile) if arguments.collapse_recursion else profile


_TABLES = ("callers", "callees", "lines", "annotate", "sql", "missing")
_NOTHING_MISSING = "Nothing is missing: every file has names and unwind tables."
_NOT_KNOWN = "What is missing is not known: a recording says it at its end."


def _lines(profile: Profile, ended: bool, arguments: argparse.Namespace) -> Iterable[str]:
    from pyprof.cli.terminal_summary import lacking_modules
    from pyprof.cli.terminal_tables import relations, top

    width = min(max(shutil.get_terminal_size().columns, 60), 120)
    if arguments.missing:
        known = ended and (profile.summary.trust or not profile.summary.samples)
        return lacking_modules(profile.summary) or [_NOTHING_MISSING if known else _NOT_KNOWN]
    if arguments.lines or arguments.annotate is not None:
        return _source(profile, arguments, width)
    name = arguments.callers or arguments.callees
    if name is not None:
        return relations(profile, name, arguments.callers is not None, width, arguments.rows)
    return top(profile, width, arguments.rows, by_frames=arguments.native is not None)


def _source(profile: Profile, arguments: argparse.Namespace, width: int) -> Iterable[str]:
    from pyprof.cli.source_line_shares import Annotation, annotated, dearest_lines
    from pyprof.symbolize.resymbolize import Places
    from pyprof.symbolize.source_files import SourceFiles
    from pyprof.tools.report_tasks import FunctionCode

    if arguments.lines:
        return dearest_lines(profile, width, arguments.rows)
    places = Places(tuple(arguments.symbols), tuple(arguments.sysroot)) if arguments.asm else None
    how = Annotation(SourceFiles(arguments.source), places, lambda errand: _answer(errand, FunctionCode), width)
    return annotated(profile, arguments.annotate, how)


def _query(arguments: argparse.Namespace) -> int:
    """Print the result rows of an SQL query of a recording. Filter options are refused, because the query states its
    own conditions.
    """
    import sqlite3

    from pyprof.recording.reader import INTERRUPTED
    from pyprof.recording.sql_views import open_query

    given = [name.rstrip("_") for name in (*CRITERIA, "from_", "to_") if getattr(arguments, name) is not None]
    given += [name for name in ("symbols", "sysroot", "debuginfod") if getattr(arguments, name)]
    if given:
        raise UsageError(f"--sql and --{given[0]} exclude each other", "put a WHERE clause in the query")
    with open_query(arguments.file) as database:
        try:
            if not database.execute('SELECT 1 FROM "end"').fetchone():
                line(f"pyprof: {INTERRUPTED.text}", sys.stderr)
            cursor = database.execute(arguments.sql)
            if cursor.description:
                print("\t".join(printable(name) for name, *_ in cursor.description))
            for row in cursor:
                print("\t".join("" if cell is None else printable(str(cell)) for cell in row))
        except sqlite3.Error as error:
            raise UsageError(f"the query fails: {error}", "see docs/sql.md, which has the tables") from None
    return 0


def _write(profile: Profile, exporter: Exporter, arguments: argparse.Namespace) -> None:
    from pyprof.cli.output_files import check_writable, write
    from pyprof.exporters import output_file
    from pyprof.exporters.base import ExportOptions
    from pyprof.symbolize.source_files import SourceFiles, read_source_texts

    place = arguments.output or "-"
    sources = read_source_texts(profile, SourceFiles(arguments.source)) if arguments.source else {}
    options = ExportOptions(arguments.threads, arguments.processes, arguments.full_paths, sources)
    check_writable(place)
    place = write(place, lambda out: exporter.write(profile, out, options))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    if place != "-":
        line(f"pyprof: wrote {place}", sys.stderr)
