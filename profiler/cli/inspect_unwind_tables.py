"""`pyprof inspect`: show the unwind tables of a file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal_output
from pyprof.cli.arguments import add_sandbox
from pyprof.cli.terminal_output import HelpFormatter
from pyprof.errors import UsageError
from pyprof.options import DEFAULT_SOURCES, FALLBACK

if TYPE_CHECKING:
    from pyprof.session.worker.worker_client import Examiner
    from pyprof.tools.inspect_tasks import FileOverview, FileToInspect
    from pyprof.tools.unwind_table_inspection import Difference
    from pyprof.unwind.rule_text import RuleWords

DESCRIPTION = """\
Show what the unwind tables of an object file say: which sections it has, how many
functions each source covers and what is wrong with it; with --rows the rows themselves as
formulas; with --compare where two sources disagree. For a Breakpad symbol file it shows the
records, and STACK CFI and STACK WIN as rows.
"""

EPILOG = """\
Rows read as
  0x1040..0x1045  cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]
addresses are those of the file (svma). With --json each row is one object on a line of
its own (JSON Lines).

exit status:
  0 done, with --compare: no difference; 1 error, or the file was cut off; 2 wrong usage; 3 --compare found some.

examples:
  pyprof inspect /usr/lib/x86_64-linux-gnu/libc.so.6
  pyprof inspect ./server --rows --function main
  pyprof inspect ./server --rows --pc 0x1234 --json
  pyprof inspect ./server --compare sframe,eh_frame
  pyprof inspect ./server --compare eh_frame,breakpad --symbols server.sym
  pyprof inspect server.sym --function main
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "inspect",
        help="show the unwind tables of a file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "file", metavar="FILE", help="an ELF or PE file of any architecture that pyprof knows, or a symbol file"
    )
    parser.add_argument("--rows", action="store_true", help="print the rows of the sources")
    tables = ", ".join(source for source in DEFAULT_SOURCES if source != FALLBACK)
    parser.add_argument("--source", metavar="NAME", help=f"only this source: {tables}")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--function", metavar="NAME", help="only the rows of this function")
    place.add_argument("--pc", type=address, metavar="0x…", help="only the row of this address (svma)")
    parser.add_argument("--compare", metavar="A,B", help="list where two sources disagree, and what only one covers")
    parser.add_argument(
        "--symbols", action="append", default=[], metavar="PATH|URL", help="see record: source breakpad"
    )
    parser.add_argument("--json", action="store_true", help="as JSON; rows and differences as one object a line")
    add_sandbox(parser)
    parser.set_defaults(run=run)


def address(text: str) -> int:
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address")
    return value


def run(arguments: argparse.Namespace) -> int:
    from pyprof.options import is_confined
    from pyprof.session.worker.file_broker import KnownFiles
    from pyprof.session.worker.worker_client import Examiner
    from pyprof.session.worker.worker_process import forked
    from pyprof.tools.inspect_tasks import FileToInspect

    file = FileToInspect(arguments.file, tuple(arguments.symbols))
    with Examiner(forked, is_confined(arguments.sandbox, arguments.symbols)) as examiner:
        examiner.notify(KnownFiles((file.path,)))
        code, missing = look(examiner, file, arguments)
    if missing:
        hint = "what it shows is not all; get the whole file"
        terminal_output.complain(f"{arguments.file}: cut off: {missing:,} bytes are missing", hint)
    return code or int(missing > 0)


def look(examiner: Examiner, file: FileToInspect, arguments: argparse.Namespace) -> tuple[int, int]:
    """Run the form of `pyprof inspect` that the options choose. Return (exit code, number of bytes that a truncated
    file lacks).
    """
    if arguments.compare:
        return compare(examiner, file, arguments)
    if arguments.rows or arguments.function or arguments.pc is not None:
        return rows(examiner, file, arguments)
    return overview(examiner, file, arguments.json)


def overview(examiner: Examiner, file: FileToInspect, as_json: bool) -> tuple[int, int]:
    from pyprof.tools.inspect_tasks import FileOverview, OverviewOf

    found = examiner.one(OverviewOf(file), FileOverview)
    if as_json:
        terminal_output.json(document(found))
        return 0, found.missing
    terminal_output.line(f"{found.name}: {found.arch}, {found.identity}")
    if found.records:
        print("\nrecords")
        for kind, number in found.records.items():
            terminal_output.line(f"  {number:>12,}  {kind}")
    else:
        print("\nsections")
    for section in found.sections:
        if section.size:
            terminal_output.line(f"  {section.addr:#018x} {section.size:>12,}  {section.name}")
    print("\nsources")
    for name, count in found.functions.items():
        terminal_output.line(f"  {name:<12} {'broken' if count is None else f'{count:,} functions'}")
    if not found.functions:
        print("  none: this file can be unwound only by frame pointers")
    if found.problems:
        print("\nproblems")
        for text in found.problems:
            terminal_output.line(f"  {text}")
    return 0, found.missing


def document(found: FileOverview) -> dict[str, object]:
    sections = [
        {"name": s.name, "addr": f"{s.addr:#x}", "offset": s.offset, "size": s.size} for s in found.sections
    ]  # fmt: skip
    return {
        "file": found.name,
        "arch": found.arch,
        "build_id": found.build_id or None,
        "sections": sections,
        **({"records": found.records, "identity": found.identity} if found.records else {}),
        "functions": found.functions,
        "problems": list(found.problems),
    }


def rows(examiner: Examiner, file: FileToInspect, arguments: argparse.Namespace) -> tuple[int, int]:
    from pyprof.tools.inspect_tasks import RowsOf, SomeRows

    source = (arguments.source or "").replace("-", "_")
    errand = RowsOf(file, source, arguments.function or "", arguments.pc)
    shown, last = 0, SomeRows((), {})
    header: tuple[str, int] | None = None
    for last in examiner.pieces(errand, SomeRows):
        shown += len(last.rows)
        for row in last.rows:
            if arguments.json:
                terminal_output.json(row.to_json())
                continue
            if (row.source, row.function_start) != header:
                header = (row.source, row.function_start)
                name = last.names.get(row.function_start, "")
                repeats = f" repeats each {row.repeat} bytes" if row.repeat else ""
                terminal_output.line(f"{row.source} {row.function_start:#x} {name}{repeats}".rstrip())
            terminal_output.line(f"  {row.start:#x}..{row.end:#x}  {row.words.text}")
    for name, text in (last.broken or {}).items():
        terminal_output.complain(f"{name}: {text}")
    if not shown:
        terminal_output.complain(f"no source covers this address: {', '.join(last.sources) or 'the file has none'}")
    return int(not shown), last.missing


def compare(examiner: Examiner, file: FileToInspect, arguments: argparse.Namespace) -> tuple[int, int]:
    from pyprof.tools.inspect_tasks import DifferencesOf, SomeDifferences

    names = [name.strip().replace("-", "_") for name in arguments.compare.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(f"--compare takes two sources, not {arguments.compare!r}", "--compare sframe,eh_frame")
    first, second = names
    kinds = {"differ": 0, "only in the first": 0, "only in the second": 0, "not comparable": 0}
    missing = 0
    for piece in examiner.pieces(DifferencesOf(file, first, second), SomeDifferences):
        missing = piece.missing
        for found in piece.differences:
            kinds[found.kind] += 1
            show(found, first, second, arguments.json)
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    print(f"{first} is the first, {second} the second: {counted}", file=sys.stderr)
    return 3 if any(number for kind, number in kinds.items() if kind != "not comparable") else 0, missing


def show(found: Difference, first: str, second: str, as_json: bool) -> None:
    """Print one difference between the unwind rules of two sources in a file. `first` and `second` are the names of the
    sources.
    """
    if as_json:
        sides = {first: text(found.first), second: text(found.second)}
        terminal_output.json({"start": f"{found.start:#x}", "end": f"{found.end:#x}", "kind": found.kind, **sides})
        return
    kind = found.kind.replace("the first", first).replace("the second", second)
    terminal_output.line(f"{found.start:#x}..{found.end:#x}  {kind}")
    for name, words in ((first, found.first), (second, found.second)):
        if words is not None:
            terminal_output.line(f"    {name:<12} {words.text}")


def text(words: RuleWords | None) -> str | None:
    return words.text if words else None
