"""`pyprof symbols`: write a Breakpad symbol file."""

from __future__ import annotations

import argparse
import os
from typing import Any

DESCRIPTION = """\
Write the Breakpad symbol file of an ELF file: functions, lines and inlined functions from
its DWARF, symbols, and unwind rules from its unwind tables; a separate debug file is used
where there is one. What the format cannot say is left out and counted on standard error.
"""

EPILOG = """\
A store is a folder of NAME/ID/NAME.sym; --store makes what is missing of it. Without -o
and --store the text goes to standard output.

exit status:
  0 written, 1 error, 2 wrong usage.

examples:
  pyprof symbols ./server -o server.sym
  pyprof symbols /usr/lib/libfoo.so --store symbols
  pyprof record -p 1234 --symbols symbols
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "symbols",
        help="write a Breakpad symbol file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="ELF", help="an executable or a library, not stripped or with its debug file")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("-o", "--output", metavar="FILE", default="-", help="- is standard output (default)")
    place.add_argument("--store", metavar="DIR", help="write DIR/NAME/ID/NAME.sym and print its path")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say what was left out")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli import output, terminal
    from pyprof.errors import FormatError, OutputError, PyprofError
    from pyprof.tools.symbol_writer import SymbolWriter, Written

    try:
        writer = SymbolWriter(arguments.file)
    except OSError as error:
        raise PyprofError(f"{arguments.file}: {error.strerror}") from error
    except FormatError as error:
        raise PyprofError(f"{arguments.file}: {error.message}") from error
    path = arguments.output
    if arguments.store:
        path = os.path.join(arguments.store, writer.store_path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise OutputError(f"{arguments.store}: {error.strerror}", "--store DIR in a place that is yours") from error
    output.check_writable(path)
    written = Written()

    def write(out: Any) -> None:
        nonlocal written
        written = writer.write(out)

    output.write(path, write)
    if arguments.store:
        terminal.line(path)
    if not arguments.quiet:
        kinds = ", ".join(f"{count} {kind}" for kind, count in written.records.items() if kind != "MODULE")
        terminal.complain(f"{arguments.file}: {kinds or 'nothing but its id'}")
        for reason, count in sorted(written.left_out.items()):
            terminal.complain(f"left out: {reason}: {count}")
    return 0
