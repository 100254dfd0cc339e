"""`pyprof inspect`: one window into all unwind tables of a file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal
from pyprof.errors import FormatError, PyprofError, UsageError
from pyprof.frame_sources import FALLBACK
from pyprof.options import DEFAULT_SOURCES

if TYPE_CHECKING:
    from pyprof.tools.inspection import InspectedRow, Inspection
    from pyprof.unwind.columns import RuleWords

DESCRIPTION = """\
Show what the unwind tables of an object file say: which sections it has, how many
functions each source covers and what is wrong with it; with --rows the rows themselves in
algebra; with --compare where two sources disagree. Also of a Breakpad symbol file: its
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", metavar="FILE", help="an ELF file of any architecture that pyprof knows, or a symbol file"
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
    try:
        inspection = opened(arguments.file, arguments.symbols)
    except OSError as error:
        raise PyprofError(f"{arguments.file}: {error.strerror}") from error
    except FormatError as error:
        hint = (
            "FILE is a program, a shared library, an object file (.o), a separate debug file or a Breakpad symbol file"
        )
        raise PyprofError(f"{arguments.file}: {error.message}", hint) from error
    code = look(inspection, arguments)
    if inspection.missing:
        hint = "what it shows is not all; get the whole file"
        terminal.complain(f"{arguments.file}: cut off: {inspection.missing:,} bytes are missing", hint)
    return code or int(inspection.missing > 0)


def look(inspection: Inspection, arguments: argparse.Namespace) -> int:
    if arguments.compare:
        return compare(inspection, arguments)
    if arguments.rows or arguments.function or arguments.pc is not None:
        return rows(inspection, arguments)
    return overview(inspection, arguments.json)


def opened(path: str, symbols: list[str]) -> Inspection:
    """Raises OSError, FormatError, UnsupportedArchitecture, UsageError."""
    from pyprof.objfile.breakpad.symbol_store import is_symbol_file
    from pyprof.tools.inspection import Inspection
    from pyprof.tools.symbol_inspection import SymbolInspection

    if not is_symbol_file(path):
        return Inspection(path, symbols)
    if symbols:
        raise UsageError(f"--symbols: {path} is a symbol file itself")
    return SymbolInspection(path)


def _problems(inspection: Inspection) -> list[str]:
    wrong = [*inspection.broken.values(), *inspection.oddities]
    wrong += [f"{key} ({number})" for key, number in sorted(inspection.diagnostics.counts.items())]
    for problems in inspection.diagnostics.problems.values():
        wrong += [problem.text for problem in sorted(problems)]
    return wrong


def overview(inspection: Inspection, as_json: bool) -> int:
    counts = {name: inspection.count(name) for name in inspection.sources}
    wrong = _problems(inspection)
    if as_json:
        document = {
            "file": inspection.name,
            "arch": inspection.arch.name,
            "build_id": inspection.build_id or None,
            "sections": [
                {"name": s.name, "addr": f"{s.addr:#x}", "offset": s.offset, "size": s.size}
                for s in inspection.sections
            ],
            **({"records": inspection.records, "identity": inspection.identity} if inspection.records else {}),
            "functions": counts,
            "problems": wrong,
        }
        terminal.json(document)
        return 0
    terminal.line(f"{inspection.name}: {inspection.arch.name}, {inspection.identity}")
    if inspection.records:
        print("\nrecords")
        for kind, number in inspection.records.items():
            terminal.line(f"  {number:>12,}  {kind}")
    else:
        print("\nsections")
    for section in inspection.sections:
        if section.size:
            terminal.line(f"  {section.addr:#018x} {section.size:>12,}  {section.name}")
    print("\nsources")
    for name, count in counts.items():
        terminal.line(f"  {name:<12} {'broken' if count is None else f'{count:,} functions'}")
    if not counts:
        print("  none: only frame pointers can unwind this file")
    if wrong:
        print("\nproblems")
        for text in wrong:
            terminal.line(f"  {text}")
    return 0


def rows(inspection: Inspection, arguments: argparse.Namespace) -> int:
    names = [arguments.source.replace("-", "_")] if arguments.source else inspection.row_sources
    ranges: list[tuple[int, int]] | None = None
    if arguments.pc is not None:
        ranges = [(arguments.pc, arguments.pc + 1)]
    elif arguments.function:
        ranges = inspection.named(arguments.function)
        if not ranges:
            raise UsageError(
                f"{arguments.file} names no function {arguments.function!r}", "pyprof inspect FILE --pc 0x…"
            )
    shown = 0
    header: tuple[str, int] | None = None
    for row in inspection.rows(names, ranges):
        if arguments.pc is not None and not holds(row, arguments.pc):
            continue
        shown += 1
        if arguments.json:
            terminal.json(row.to_json())
            continue
        if (row.source, row.function_start) != header:
            header = (row.source, row.function_start)
            name = inspection.name_at(row.function_start) if ranges else ""
            repeats = f" repeats each {row.repeat} bytes" if row.repeat else ""
            terminal.line(f"{row.source} {row.function_start:#x} {name}{repeats}".rstrip())
        terminal.line(f"  {row.start:#x}..{row.end:#x}  {row.words.text}")
    for name, text in inspection.broken.items():
        terminal.complain(f"{name}: {text}")
    if not shown:
        terminal.complain(f"no source covers that: {', '.join(names) or 'the file has none'}")
        return 1
    return 0


def holds(row: InspectedRow, svma: int) -> bool:
    at = row.function_start + (svma - row.function_start) % row.repeat if row.repeat else svma
    return row.start <= at < row.end


def compare(inspection: Inspection, arguments: argparse.Namespace) -> int:
    names = [name.strip().replace("-", "_") for name in arguments.compare.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(f"--compare takes two sources, not {arguments.compare!r}", "--compare sframe,eh_frame")
    first, second = names
    kinds = {"differ": 0, "only in the first": 0, "only in the second": 0, "not comparable": 0}
    for found in inspection.compare(first, second):
        kinds[found.kind] += 1
        if arguments.json:
            sides = {first: text(found.first), second: text(found.second)}
            terminal.json({"start": f"{found.start:#x}", "end": f"{found.end:#x}", "kind": found.kind, **sides})
        else:
            kind = found.kind.replace("the first", first).replace("the second", second)
            terminal.line(f"{found.start:#x}..{found.end:#x}  {kind}")
            for name, words in ((first, found.first), (second, found.second)):
                if words is not None:
                    terminal.line(f"    {name:<12} {words.text}")
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    print(f"{first} is the first, {second} the second: {counted}", file=sys.stderr)
    return 3 if any(number for kind, number in kinds.items() if kind != "not comparable") else 0


def text(words: RuleWords | None) -> str | None:
    return words.text if words else None
