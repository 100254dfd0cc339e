"""Tables for the terminal that list functions with their shares of the time.

A table has the most expensive functions, or the callers or callees of one. Which functions it shows depends on whether
the program is native or interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from pyprof.cli.number_and_name_format import duration, function_names, module_names, percent
from pyprof.cli.terminal_output import printable
from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass, replace
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
from pyprof.model.marker_frames import NO_SAMPLE
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.thread_identity import shown
from pyprof.session.pipeline.native_frame_views import with_frames

NATIVE_INCLUDED = ", native code included"
"""Words in the heading of a table of functions, for programs with an interpreter: a function includes the native code
that it calls.
"""


@dataclass(frozen=True, slots=True)
class FunctionTables:
    """The costs of all functions, and separately those of native functions that an interpreter's functions call.

    Attributes:
        functions: Costs of functions. Native code of libraries counts for the interpreter's or the application's
            function that calls it.
        native: Costs of native functions of libraries, largest own cost first. `functions` counts this cost for the
            callers.
        is_interpreted: True if the profile has functions of an interpreter.
    """

    functions: Costs
    native: tuple[Cost, ...] = ()
    is_interpreted: bool = False


def function_tables(profile: Profile, by_samples: bool = False) -> FunctionTables:
    """Return the costs of a profile's functions. In an interpreted program, native functions have a separate table, and
    their time counts for the interpreter's function that called them.

    Args:
        profile: The profile.
        by_samples: True for numbers of samples, False for the primary value.
    """
    costs_of = _count_samples if by_samples else costs
    found = costs_of(profile)
    if not is_interpreted(profile):
        return FunctionTables(found)
    shown = costs_of(by_caller(profile))
    counted = {cost.function: cost.own for cost in shown.functions}
    native = (
        replace(cost, own=cost.own - counted.get(cost.function, 0))
        for cost in found.functions
        if is_native(cost.function.kind)
    )
    dearest = sorted((cost for cost in native if cost.own > 0), key=lambda cost: (-cost.own, cost.function))
    return FunctionTables(shown, tuple(dearest), True)


def _count_samples(profile: Profile) -> Costs:
    """Return the costs of functions as numbers of samples, without the rows of unsampled time."""
    return replace(costs(profile, 0), value=profile.summary.samples)


def is_interpreted(profile: Profile) -> bool:
    """Return True if a profile has functions of an interpreter or of a just-in-time compiler (is_of_runtime())."""
    return any(is_of_runtime(profile, frame) for frame in profile.frames)


def is_native(kind: FrameKind) -> bool:
    """Return True if a function is native code, not an interpreter's function."""
    return kind != FrameKind.INTERPRETER


def by_caller(profile: Profile) -> Profile:
    """Return a profile for programs with an interpreter: its stacks have only the interpreter's functions and the
    application's native functions.
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
    """Return a frame with only those of its functions that the tables show: the interpreter's and the application's.
    None if it has no such function.
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
"""Minimum number of characters for a function's name in a table in the terminal."""
_BLOCKS = " ▏▎▍▌▋▊▉█"


MIN_UNSAMPLED = 0.01
"""Share of time without samples above which a table of functions has a row for it."""


MIN_HALF_WIDTH = 0.05
"""Half width of the confidence interval of shares from which on a table of functions states the interval."""


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
    """Find the functions whose names match a text. Return them, and their names for a heading.

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
    """Yield the lines of the table of callers or callees of the functions whose names match a text.

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
    """Yield a table line for each function: the text of `heads` for it, the function's name, and its file."""
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
