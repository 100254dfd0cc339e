"""Source lines in the terminal, with their shares: the most expensive ones, or those of one function with its
instructions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from pyprof.cli.number_and_name_format import shorten, shorten_middle
from pyprof.cli.terminal_output import printable
from pyprof.cli.terminal_tables import SHARE, amount, bar, functions_of, heading, share
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.line_costs import CodeCost, code_costs, line_costs
from pyprof.model.profile import Profile
from pyprof.symbolize.resymbolize import Places
from pyprof.symbolize.source_files import SourceFiles
from pyprof.tools.report_tasks import CodeOf, FunctionCode

_AROUND = 3
"""Number of source lines or instructions without samples that are shown before and after one with samples."""
_MARGIN = 12
_NO_LINE = "[no line is known]"
_HEAD = f"{'self':>{SHARE}} {'total':>{SHARE}}"
Sums = dict[int, tuple[int, int]]
"""Costs (own value, total value) by the number of the source line or by address."""
LineRow = tuple[int, str]
"""A row of source code or instructions: line number or address, and text."""
_MIN_LINE_SHARE = 24
"""Minimum number of characters in a table row for the text of a source line, or for its file and line number."""


def dearest_lines(profile: Profile, width: int, count: int) -> Iterator[str]:
    """Yield table lines for the most expensive source lines, with their functions."""
    yield heading(profile, profile.total)
    yield ""
    yield f"{'self':>{SHARE}} {'total':>{SHARE}} {'':10} line"
    room = max((width - 2 * SHARE - _MARGIN) // 2, _MIN_LINE_SHARE)
    for cost in line_costs(profile)[:count]:
        head = f"{share(cost.own, profile.total)} {share(cost.total, profile.total)} {bar(cost.own, profile.total)}"
        file, line = cost.place.file, cost.place.line
        place = printable(f"{file}:{line}" if file else cost.place.module or _NO_LINE)
        place = shorten_middle(place, room)
        yield f"{head} {place:<{room}} {shorten(printable(cost.place.function.name), room)}"


@dataclass(frozen=True, slots=True)
class Annotation:
    """The options for a function's source lines and instructions in the terminal.

    Attributes:
        files: Reader of source files.
        places: Files and folders in which object files are searched to show their instructions, None to show source
            lines only.
        code_of: Function that reads the instructions of a function.
        width: Width of the terminal.
    """

    files: SourceFiles
    places: Places | None
    code_of: Callable[[CodeOf], FunctionCode]
    width: int


def annotated(profile: Profile, text: str, how: Annotation) -> Iterator[str]:
    """Yield the source lines, with their shares, of the functions whose names match a text.

    Raises:
        UsageError: The text names no function.
        PyprofError: An object file cannot be read.
    """
    found, names = functions_of(profile, text)
    yield f"{names}: {amount(profile, found.total)}, {share(found.total, profile.total).strip()} of all"
    files: defaultdict[str, Sums] = defaultdict(dict)
    for cost in line_costs(profile):
        if cost.place.function.name in found.names:
            own, total = files[cost.place.file].get(cost.place.line, (0, 0))
            files[cost.place.file][cost.place.line] = own + cost.own, total + cost.total
    for file, sums in sorted(files.items(), key=lambda each: (-_whole(each[1]), each[0])):
        yield ""
        yield from _file(profile, file, sums, how)
    if how.places is not None:
        yield from _code(profile, found.names, how.places, how)


def _whole(sums: Sums) -> int:
    return max(total for _, total in sums.values())


def _file(profile: Profile, file: str, sums: Sums, how: Annotation) -> Iterator[str]:
    if not file:
        yield _NO_LINE
    else:
        text = how.files.source_text(file, max(sums))
        yield file if text is None or text.path == file else f"{file}, which is {text.path} here"
        if text is None:
            yield "  the source is not here, or not for everybody to read: --source DIR says where it is"
        elif text.changed_ns > profile.start_ns + profile.duration_ns:
            yield "  it was changed after the recording: lines may be others"
    yield _HEAD
    lines = [*enumerate(text.lines, 1)] if file and text is not None else [(line, "") for line in sorted(sums)]
    yield from _source_rows(profile, _nearby(lines, sums), sums, how.width, lambda line: f"{line:>6}" if line else "")


def _code(profile: Profile, names: Collection[str], places: Places, how: Annotation) -> Iterator[str]:
    """Yield table lines for the instructions of all functions with one of these names, with their shares.

    Raises:
        PyprofError: An object file cannot be read.
    """
    functions: defaultdict[tuple[int, int, str], list[CodeCost]] = defaultdict(list)
    for cost in code_costs(profile, names):
        functions[cost.place.module, cost.place.start, cost.place.name].append(cost)
    if not functions:
        yield from ("", "no instructions: this is not code of an object file")
    for (module, start, name), found in functions.items():
        info = profile.modules[module]
        yield from ("", f"{name} in {info.path}")
        rels = [cost.place.rel for cost in found]
        code = how.code_of(CodeOf(info, places, start, max(rels)))
        if code.base is None:
            yield f"  no file here has its build-id ({info.build_id or 'none'}): --symbols and --sysroot say where"
            continue
        addresses = [code.base + rel for rel in rels]
        if not code.instructions:
            yield "  the file does not have the code"
            continue
        begins = [instruction.address for instruction in code.instructions]
        sums: Sums = {}
        for address, cost in zip(addresses, found, strict=True):
            begin = begins[max(bisect_right(begins, address) - 1, 0)]
            own, total = sums.get(begin, (0, 0))
            sums[begin] = own + cost.own, total + cost.total
        yield _HEAD
        rows = _nearby([(each.address, each.text) for each in code.instructions], sums)
        yield from _source_rows(profile, rows, sums, how.width, lambda address: f"{address:>10x}")


def _nearby(rows: Sequence[LineRow], sums: Sums) -> list[LineRow | None]:
    """Return the rows of source code that have samples, and some rows around them. None marks a gap."""
    shown: list[LineRow | None] = []
    last = -1
    hits = [at for at, (number, _) in enumerate(rows) if number in sums]
    for hit in hits:
        for at in range(max(hit - _AROUND, last + 1), min(hit + _AROUND + 1, len(rows))):
            if shown and at != last + 1:
                shown.append(None)
            shown.append(rows[at])
            last = at
    return shown


def _source_rows(
    profile: Profile, rows: Sequence[LineRow | None], sums: Sums, width: int, label: Callable[[int], str]
) -> Iterator[str]:
    for row in rows:
        if row is None:
            yield f"{'⋮':>{2 * SHARE + 1}}"
            continue
        number, text = row
        shares = [f"{share(value, profile.total) if value else '':>{SHARE}}" for value in sums.get(number, (0, 0))]
        head = f"{' '.join(shares)} {label(number)}"
        text = shorten(printable(text.expandtabs(4)), max(width - len(head) - 3, _MIN_LINE_SHARE))
        yield f"{head} │ {text}".rstrip(" │")
