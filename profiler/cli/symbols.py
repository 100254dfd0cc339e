"""`pyprof symbols`: write a Breakpad symbol file."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import IO, Any

from pyprof.cli.arguments import add_sandbox
from pyprof.cli.terminal_output import HelpFormatter

DESCRIPTION = """\
Write the Breakpad symbol file of an ELF file: functions, lines and inlined functions from
its DWARF, symbols, and unwind rules from its unwind tables; a separate debug file is used
where there is one. What the format cannot express is left out and counted on standard error.
"""

EPILOG = """\
A store is a folder of NAME/ID/NAME.sym; --store creates missing folders. Without -o and
--store the text goes to standard output. --upload sends it to a pyprof server, which then
names code of this build-id in its responses.

exit status:
  0 written, 1 error, 2 wrong usage.

examples:
  pyprof symbols ./server -o server.sym
  pyprof symbols /usr/lib/libfoo.so --store symbols
  pyprof record -p 1234 --symbols symbols
  pyprof symbols ./server --upload http://127.0.0.1:4242 --token-file write.token
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "symbols",
        help="write a Breakpad symbol file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", metavar="ELF", help="an executable or a library, not stripped or with its debug file")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("-o", "--output", metavar="FILE", default="-", help="- is standard output (default)")
    place.add_argument("--store", metavar="DIR", help="write DIR/NAME/ID/NAME.sym and print its path")
    place.add_argument("--upload", metavar="URL", help="send it to the pyprof server there")
    parser.add_argument("--token-file", metavar="FILE", default="", help="with a writer's token, for --upload")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print what was left out")
    add_sandbox(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli import output_files, terminal_output
    from pyprof.options import is_confined
    from pyprof.session.worker.file_broker import KnownFiles
    from pyprof.session.worker.worker_client import Examiner
    from pyprof.session.worker.worker_process import forked
    from pyprof.tools.breakpad_writer import SymbolsOf, SymbolText

    path = arguments.output
    with Examiner(forked, is_confined(arguments.sandbox)) as examiner:
        examiner.notify(KnownFiles((arguments.file,)))
        pieces = examiner.pieces(SymbolsOf(arguments.file, name(arguments.file)), SymbolText)
        last = next(pieces)
        if arguments.store:
            path = in_store(arguments.store, last.store_path)

        def write(out: IO[bytes]) -> None:
            nonlocal last
            for last in pieces:
                out.write(last.text)

        if arguments.upload:
            upload = import_module("pyprof.fleet.wire.push_client").upload
            upload(arguments.upload, arguments.token_file, write)
        else:
            output_files.check_writable(path)
            output_files.write(path, write)
    if arguments.store:
        terminal_output.line(path)
    if not arguments.quiet:
        kinds = ", ".join(f"{count} {kind}" for kind, count in last.records.items() if kind != "MODULE")
        terminal_output.complain(f"{arguments.file}: {kinds or 'nothing but its id'}")
        for reason, count in sorted(last.left_out.items()):
            terminal_output.complain(f"left out: {reason}: {count}")
    return 0


def name(path: str) -> str:
    return os.path.basename(os.path.realpath(path))


def in_store(store: str, store_path: str) -> str:
    """Return the path of a Breakpad symbol file in a symbol store, and create its folder.

    Args:
        store_path: Relative path, made of the file's name and its id. It comes from the worker and is checked, because
            it must not leave the store.
    """
    from pyprof.errors import OutputError

    path = os.path.join(store, store_path)
    if os.path.isabs(store_path) or ".." in store_path.split("/"):
        raise OutputError(f"{store_path!r} is not a valid path in a symbol store")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise OutputError(f"{store}: {error.strerror}", "--store DIR with a folder that you may write") from error
    return path
