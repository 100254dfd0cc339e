"""Tables in the terminal: functions and source lines with their shares.

The tables of functions have the most expensive ones, or their callers and callees. The choice of functions to show
differs for native programs and interpreters. The tables of source lines have the most expensive lines, or the lines of
one function with its instructions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from pyprof.cli.terminal_output import printable
from pyprof.cli.text_format import duration, function_names, module_names, percent, shorten, shorten_middle
from pyprof.errors import UsageError
from pyprof.model.analysis.call_tree import NOBODY, FunctionWords, Neighbours, neighbours
from pyprof.model.analysis.confidence_interval import profile_basis
from pyprof.model.analysis.function_costs import (
    START_UP,
    Cost,
    Costs,
    are_application,
    costs,
    is_of_runtime,
    lock_costs,
)
from pyprof.model.analysis.idle_waits import MODES as IDLE_MODES
from pyprof.model.analysis.line_costs import CodeCost, code_costs, line_costs
from pyprof.model.marker_frames import NO_SAMPLE
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.thread_identity import shown
from pyprof.records import dataclass, replace
from pyprof.session.pipeline.shown_frames import with_frames
from pyprof.symbolize.resymbolize import Places
from pyprof.symbolize.source_files import SourceFiles
from pyprof.tools.disassembly_and_frame_names import CodeOf, FunctionCode

NATIVE_INCLUDED = ", native code included"
"""Addition to the heading of the first table of functions, in programs with an interpreter."""


@dataclass(frozen=True, slots=True)
class FunctionTables:
    """The costs of all functions, and those of native functions that an interpreter's functions call.

    Attributes:
        functions: Native code of libraries is part of the interpreter's or the application's function that calls it.
        native: Sorted by own cost, largest first. The own cost is the part that `functions` counts in the callers.
        is_interpreted: True if an interpreter's function is among them.
    """

    functions: Costs
    native: tuple[Cost, ...] = ()
    is_interpreted: bool = False


def function_tables(profile: Profile) -> FunctionTables:
    """Return the tables of functions of a profile's primary value."""
    found = costs(profile)
    if not is_interpreted(profile):
        return FunctionTables(found)
    shown = costs(by_caller(profile))
    counted = {cost.function: cost.own for cost in shown.functions}
    native = (
        replace(cost, own=cost.own - counted.get(cost.function, 0))
        for cost in found.functions
        if is_native(cost.function.kind)
    )
    dearest = sorted((cost for cost in native if cost.own > 0), key=lambda cost: (-cost.own, cost.function))
    return FunctionTables(shown, tuple(dearest), True)


def is_interpreted(profile: Profile) -> bool:
    """Return True if a profile has functions of an interpreter or of a just-in-time compiler (is_of_runtime())."""
    return any(is_of_runtime(profile, frame) for frame in profile.frames)


def is_native(kind: FrameKind) -> bool:
    """Return True for a native function, by the kind that functions_of() gives it."""
    return kind != FrameKind.INTERPRETER


def by_caller(profile: Profile) -> Profile:
    """Return a profile in which the stacks of an interpreter have only its functions and the application's native
    functions.
    """
    frames, shown = list(profile.frames), list[int | None]()
    for at, frame in enumerate(profile.frames):
        inner = _of_application(profile, frame)
        if inner is not None and inner is not frame:
            at = len(frames)
            frames.append(inner)
        shown.append(None if inner is None else at)
    indices = profile.frame.tolist()
    return with_frames(
        replace(profile, frames=tuple(frames)), lambda node: shown[indices[node]], partial(is_of_runtime, profile)
    )


def _of_application(profile: Profile, frame: Frame) -> Frame | None:
    """Return a frame with only those of its functions that the tables of functions show, None if they show none of
    them.
    """
    if frame.kind == FrameKind.MARKER or is_of_runtime(profile, frame):
        return frame
    are_own = are_application(profile, frame)
    if not any(are_own) or all(are_own):
        return frame if any(are_own) else None
    lines = zip(frame.lines, reversed(are_own), strict=True)
    return replace(frame, lines=tuple(line for line, is_own in lines if is_own))


SHARE, _MODULE, _BAR = 8, 24, 10
_LEAST = 20
"""Minimum number of characters for a function's name in a table."""
_BLOCKS = " ▏▎▍▌▋▊▉█"


MIN_UNSAMPLED = 0.01
"""Share of time without samples above which a table has a row for it."""


MIN_HALF_WIDTH = 0.05
"""Half width of the confidence interval of shares from which on a table states it."""


def top(profile: Profile, width: int, count: int, by_frames: bool = False, shows_gap: bool = False) -> Iterator[str]:
    """Yield the lines of the table of functions with their own and total costs.

    Args:
        by_frames: Keep frames as they are: native code is not counted in the interpreter's function that calls it.
        shows_gap: Begin with a row for time without samples, if it is more than MIN_UNSAMPLED, and end with the
            accuracy of shares if it is worse than MIN_HALF_WIDTH.
    """
    found = FunctionTables(costs(profile)) if by_frames else function_tables(profile)
    value = found.functions.value
    yield heading(profile, value)
    if profile.labels:
        yield printable(f"labels: {shown(tuple(profile.labels.items()))}")
    yield ""
    if locks := lock_costs(profile)[:count]:
        yield f"{'lock':>{SHARE}} {'':{_BAR}} waited for; below: of who waited, and who gave it up"
        for title, waited in locks:
            yield f"{share(waited, value)} {bar(waited, value)} {printable(title)}"
        yield ""
    callees = NATIVE_INCLUDED if found.is_interpreted else ""
    yield f"{'self':>{SHARE}} {'total':>{SHARE}} {'':{_BAR}} function{callees}"
    basis = profile_basis(profile) if shows_gap else None
    if basis is not None and basis.sampled < 1 - MIN_UNSAMPLED:
        unsampled = round((1 - basis.sampled) * value)
        yield f"{share(unsampled, value)} {'':>{SHARE}} {bar(unsampled, value)} {NO_SAMPLE.title}"
    # Among rows without own cost, the program's own functions come first, and those that do more than call another one.
    rows = sorted(
        found.functions.functions,
        key=lambda cost: (-cost.own, cost.name in START_UP, cost.wraps, not cost.application, -cost.total),
    )
    yield from _costs(rows[:count], value, width)
    if found.native:
        yield ""
        what = "wait" if profile.value_types[-1].type in IDLE_MODES else "native function"
        yield f"{'self':>{SHARE}} {'total':>{SHARE}} {'':{_BAR}} {what}"
        yield from _costs(found.native[: max(count // 3, 1)], value, width)
    if basis is not None and basis.half_width >= MIN_HALF_WIDTH:
        yield ""
        yield f"by {round(basis.samples):,} samples: the true shares are within ± {100 * basis.half_width:.0f} %"


def _costs(rows: Sequence[Cost], value: int, width: int) -> Iterator[str]:
    heads = [f"{share(cost.own, value)} {share(cost.total, value)}" for cost in rows]
    bars = [f"{head} {bar(cost.own, value)}" for head, cost in zip(heads, rows, strict=True)]
    yield from _rows(bars, [(cost.name, cost.module) for cost in rows], width)


def functions_of(profile: Profile, text: str) -> tuple[Neighbours, str]:
    """Return the functions that a text names, and their names for a heading.

    Raises:
        UsageError: The text names no function.
    """
    try:
        found = neighbours(profile.tree(), text)
    except re.error as error:
        raise UsageError(f"{text} is neither a function nor a regular expression: {error}") from None
    if not found.names:
        raise UsageError(f"no function has {text} in its name", "pyprof report FILE -f collapsed has all names in full")
    names = ", ".join(sorted(found.names)[:3]) + (", …" if len(found.names) > 3 else "")
    return found, names


def relations(profile: Profile, text: str, callers: bool, width: int, count: int) -> Iterator[str]:
    """Yield the lines of the table of callers or callees of the functions that a text names.

    Raises:
        UsageError: The text names no function.
    """
    found, names = functions_of(profile, text)
    yield f"{'callers' if callers else 'callees'} of {names}: {amount(profile, found.total)}"
    yield from _neighbours(found, callers, width, count)


def _neighbours(found: Neighbours, callers: bool, width: int, count: int) -> Iterator[str]:
    rows = (found.callers if callers else found.callees)[:count]
    nobody = ("[nobody: outermost]" if callers else "[in itself]", "")
    heads = [f"{share(value, found.total)} {bar(value, found.total)}" for _, value in rows]
    yield from _rows(heads, [nobody if row == NOBODY else row for row, _ in rows], width)


def heading(profile: Profile, value: int) -> str:
    """Return the heading of a table: the title of the profile, its total and, if known, the recorded time."""
    elapsed = f" in {duration(profile.recorded_ns)}" if profile.duration_ns else ""
    return printable(f"{profile.title}: {amount(profile, value)}{elapsed}")


def amount(profile: Profile, value: int) -> str:
    kind = profile.value_types[-1]
    return f"{duration(value)} ({kind.type})" if kind.unit == "nanoseconds" else f"{value:,} {kind.type}"


def _rows(heads: Sequence[str], functions: Sequence[FunctionWords], width: int) -> Iterator[str]:
    """Yield a table line for each function: the given beginning, the function's name, its file."""
    room = max(width - max(map(len, heads), default=0) - _MODULE - 2, _LEAST)
    names = function_names([printable(name) for name, _ in functions], room)
    modules = module_names([printable(module) for _, module in functions], _MODULE)
    for head, name, module in zip(heads, names, modules, strict=True):
        yield f"{head} {name:<{room}} {module}".rstrip()


def share(value: int, total: int) -> str:
    return f"{percent(value, total):>{SHARE}}"


def bar(value: int, total: int) -> str:
    """Draw a value's share of the whole as a bar, in steps of an eighth of a character."""
    eighths = round(8 * _BAR * value / total) if total > 0 else 0
    eighths = min(max(eighths, 0), 8 * _BAR)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(_BAR)


_AROUND = 3
"""Number of source lines or instructions that are shown before and after one with samples."""
_MARGIN = 12
_MIN_LINE_SHARE = 24
"""Minimum number of characters of a source line or its place in the terminal."""
_NO_LINE = "[no line is known]"
_HEAD = f"{'self':>{SHARE}} {'total':>{SHARE}}"

Sums = dict[int, tuple[int, int]]
"""Costs (own value, total value) by source line or by address."""
LineRow = tuple[int, str]
"""Row of source code: a line or an address, and its text."""


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
        files: Source texts.
        places: Places of object files whose instructions are shown, None for source only.
        code_of: Reads the instructions of a function.
        width: Width of the terminal.
    """

    files: SourceFiles
    places: Places | None
    code_of: Callable[[CodeOf], FunctionCode]
    width: int


def annotated(profile: Profile, text: str, how: Annotation) -> Iterator[str]:
    """Yield the annotated source lines of the functions that a text names.

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
    """Yield table lines for the instructions, with their shares, of all functions with one of these names.

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
    """Return the rows of source code with samples, and some around them. None marks a gap."""
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
