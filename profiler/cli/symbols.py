"""`pyprof symbols`: write a Breakpad symbol file."""

from __future__ import annotations

import argparse
import os
from typing import IO, Any

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
    parser.add_argument("--sandbox", action="store_true", help="see record")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli import output, terminal
    from pyprof.session.worker.errands import Examiner
    from pyprof.session.worker.keeper import KnownFiles
    from pyprof.session.worker.process import forked
    from pyprof.tools.symbol_writer import SymbolsOf, SymbolText

    path = arguments.output
    with Examiner(forked, arguments.sandbox) as examiner:
        examiner.notify(KnownFiles((arguments.file,)))
        pieces = examiner.pieces(SymbolsOf(arguments.file, name(arguments.file)), SymbolText)
        last = next(pieces)
        if arguments.store:
            path = in_store(arguments.store, last.store_path)
        output.check_writable(path)

        def write(out: IO[bytes]) -> None:
            nonlocal last
            for last in pieces:
                out.write(last.text)

        output.write(path, write)
    if arguments.store:
        terminal.line(path)
    if not arguments.quiet:
        kinds = ", ".join(f"{count} {kind}" for kind, count in last.records.items() if kind != "MODULE")
        terminal.complain(f"{arguments.file}: {kinds or 'nothing but its id'}")
        for reason, count in sorted(last.left_out.items()):
            terminal.complain(f"left out: {reason}: {count}")
    return 0


def name(path: str) -> str:
    return os.path.basename(os.path.realpath(path))


def in_store(store: str, store_path: str) -> str:
    """The path of the file, whose folder is made. store_path: the worker's word, from the name that it was told and an
    id.
    """
    from pyprof.errors import OutputError

    path = os.path.join(store, store_path)
    if os.path.isabs(store_path) or ".." in store_path.split("/"):
        raise OutputError(f"{store_path!r} is no place in a store")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise OutputError(f"{store}: {error.strerror}", "--store DIR in a place that is yours") from error
    return path
