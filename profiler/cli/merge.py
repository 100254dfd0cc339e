"""`pyprof merge`: merge several recordings, or other profilers' files, into one."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pyprof.cli.arguments import chosen_format
from pyprof.cli.terminal_output import HelpFormatter, line
from pyprof.exporters import registry

DESCRIPTION = """\
Write several recordings, or other profilers' files, as one. Samples keep their times,
which may overlap. All must measure the same (cpu, wall or offcpu).
"""

EPILOG = """\
examples:
  pyprof merge a.pyprof b.pyprof -o both.pyprof
  pyprof merge web-*.pyprof -o web.html
  pyprof merge pyprof-last-*/*.pyprof -o last.pyprof     what a killed flight recorder left
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "merge",
        help="write several recordings as one",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a recording (NAME.pyprof), or another profiler's file"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="- is standard output for text formats")
    parser.add_argument(
        "-f", "--format", metavar="FORMAT", help=f"{', '.join(registry.format_names())} (default: by the suffix of -o)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli.output_files import check_writable, write
    from pyprof.exporters import output_file
    from pyprof.exporters.base import ExportOptions
    from pyprof.importers.registry import load
    from pyprof.model.analysis.merge import merge

    exporter = chosen_format(arguments.format, arguments.output)
    check_writable(arguments.output)
    whole = merge(load(path) for path in arguments.files)
    place = write(arguments.output, lambda out: exporter.write(whole, out, ExportOptions()))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    if place != "-":
        line(f"pyprof: wrote {place}", sys.stderr)
    return 0
