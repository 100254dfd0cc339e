"""A comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pyprof.cli.number_and_name_format import duration, function_names, many, module_names, shorten_apart
from pyprof.cli.terminal_output import printable
from pyprof.cli.terminal_summary import NATIVE, wrapped
from pyprof.cli.terminal_tables import NATIVE_INCLUDED, by_caller, is_interpreted, is_native
from pyprof.comparison.function_matching import MatchedFunction
from pyprof.comparison.result import Amount, Change, Comparison, both
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import START_UP, Function, costs
from pyprof.model.profile import Profile

_MODULE, _LEAST = 20, 16
_CELL = 9
_SHOWN_DRIFT = 0.005
_NAMED, _NAME = 3, 40
"""Number of functions for which the comparison table states the smallest detectable change, and the maximum number of
characters of their names.
"""
_GREY, _RED, _GREEN, _END = "\x1b[90m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
SURE = "*"
"""Character that marks a significant change in the comparison table."""


def by_callers(found: Comparison, compare: Callable[[Profile, Profile], Comparison]) -> Comparison:
    """Return a comparison in which the cost of native code is added to the interpreter's function that calls it, as in
    the tables of `pyprof record`.

    Args:
        found: The comparison of all functions, which is returned for programs without an interpreter.
        compare: Function that compares two other profiles by the same settings.
    """
    if not _is_interpreted(found):
        return found
    return compare(*(by_caller(side.original) for side in found.sides))


def _is_interpreted(found: Comparison) -> bool:
    return is_interpreted(found.before) or is_interpreted(found.after)


def table(
    found: Comparison, by: Literal["own", "total"], count: tuple[int, int], width: int, colour: bool
) -> Iterator[str]:
    """Yield the lines of a comparison table: the largest significant changes first.

    Args:
        found: The comparison.
        by: The column by which rows are sorted.
        count: Maximum number of rows, and how many of them may be changes that are not significant.
        width: Width of the terminal in columns.
        colour: True if the terminal shows colours.
    """
    sides = ("before", found.before), ("after", found.after)
    elapsed = [f", {duration(profile.recorded_ns)}" if profile.duration_ns else "" for _, profile in sides]
    titles = shorten_apart([printable(profile.title) for _, profile in sides], width - 8 - max(map(len, elapsed)))
    for (name, _), title, seconds in zip(sides, titles, elapsed, strict=True):
        yield f"{name + ':':8}{title}{seconds}"
    for warning in dict.fromkeys(warning.text for _, profile in sides for warning in profile.summary.warnings):
        yield from wrapped(warning, width, "")
    if found.load:
        yield from wrapped(_load(found), width, "")
    else:
        yield f"{found.value_type.type} {found.scale.words}: {_pair(found.whole, found)}{_mark(found.whole)}"
    if words := _sampled(found):
        yield from wrapped(words, width, "")
    yield _verdict(found)
    if found.caution:
        yield from wrapped(f"{found.caution[0].upper()}{found.caution[1:]}.", width, "")
    if abs(found.drift) >= _SHOWN_DRIFT:
        yield f"All functions together: {100 * found.drift:+.1f} %, as by another machine or load; {SURE}: beside it."
    every = _ordered(found, by)
    sure, chance = ([row for row in every if row.significant == significant] for significant in (True, False))
    rows = [*sure, *chance[: count[1]]][: count[0]]
    if rows:
        callees = NATIVE_INCLUDED if _is_interpreted(found) else ""
        yield from _lines(rows, f"function{callees}", found, by, width, colour)


def native_table(
    found: Comparison, shown: Comparison, by: Literal["own", "total"], width: int, colour: bool
) -> Iterator[str]:
    """Yield the lines of a table of native functions with significant changes. The main table counts these changes in
    the interpreter's functions that call them.

    Args:
        found: The comparison of all functions.
        shown: The comparison of by_callers(), which the main table shows.
    """
    if shown is found:
        return
    above = {row.function for row in shown.functions}
    rows = [
        row
        for row in found.sorted_by(by)
        if row.significant and is_native(row.function.kind) and row.function not in above
    ]
    if rows:
        yield from _lines(rows[:NATIVE], "native function", found, by, width, colour)


def sensitivity(found: Comparison, width: int) -> Iterator[str]:
    """Yield lines about the sensitivity of a comparison: how large a change of the most expensive functions must be to
    be detected.
    """
    if words := _sensitivity(found):
        yield ""
        yield from wrapped(words, width, "")


def _ordered(found: Comparison, by: Literal["own", "total"]) -> list[Change]:
    """Return the functions of a comparison in the order of the table, with significant changes first.

    Among changes of total cost, those of the application's functions come first. A function is left out if its total
    equals that of another function that is listed: it changed only because that one did.
    """
    whole = costs(replace(profile := both(found), values=profile.values.sum(axis=1, keepdims=True)))
    cost_of = {cost.function: cost for cost in whole.functions}
    keys: list[tuple[tuple[int, tuple[int, bool], float, MatchedFunction], Change]] = []
    for row in found.functions:
        first, second = (row.own, row.total) if by == "own" else (row.total, row.own)
        group, each = (0, first) if first.significant else (1, second) if second.significant else (2, first)
        rank = 0, False
        if each is row.total:
            function = row.function
            cost = cost_of[Function(function.place, function.name, function.kind)]
            rank = whole.rank_by_total(cost)
        if each.change and not (each is row.total and row.name in START_UP):
            keys.append(((group, rank, -abs(each.change), row.function), row))
    telling = [each for each in keys if not each[0][1][0]]
    return [row for _, row in sorted(telling or keys, key=lambda each: each[0])]


def _lines(
    rows: Sequence[Change], heading: str, found: Comparison, by: Literal["own", "total"], width: int, colour: bool
) -> Iterator[str]:
    yield ""
    head = "".join(f"{name:>{_CELL}}" for name in ("before", "after", "change"))
    yield f"{'self':>{3 * _CELL}} {'total':>{3 * _CELL + 1}}"
    yield f"{head}  {head}  {heading}"
    cells = [f"{_cells(row.own, found)}{_cells(row.total, found)}" for row in rows]
    room = max(width - max(map(len, cells)) - _MODULE - 1, _LEAST)
    names = function_names([printable(row.name) for row in rows], room)
    modules = module_names([printable(row.module) for row in rows], _MODULE)
    for cell, name, module, row in zip(cells, names, modules, rows, strict=True):
        text = f"{cell}{name:<{room}} {module}".rstrip()
        yield _coloured(text, row, by) if colour else text


def amount(value: float, found: Comparison) -> str:
    """Format an amount of a compared profile with its unit."""
    if found.scale.way == "samples":
        return f"{100 * value:.2f} %"
    return duration(value) if found.value_type.unit == "nanoseconds" else f"{value:,.4g}"


def relative(each: Amount) -> str:
    if each.is_unknown:
        return "unknown"
    if not each.before:
        return "new" if each.after else ""
    return (
        "gone"
        if not each.after
        else f"{100 * each.relative:+.1f} %"
        if each.relative < 10
        else f"×{each.after / each.before:,.0f}"
    )


def _verdict(found: Comparison) -> str:
    if found.doubt:
        return f"Nothing is marked: {found.doubt}."
    sure = sum(change.significant for change in found.functions)
    if not sure:
        return f"No change is more than chance ({many(len(found.functions), 'function')})."
    return f"{SURE}: more than chance, {many(sure, 'function')} of {len(found.functions):,}; the rest is noise."


def _sampled(found: Comparison) -> str:
    """Return a sentence about the part of the processor time in each profile that has no samples, "" if it is
    negligible.
    """
    if not any(side.is_partial for side in found.sides):
        return ""
    parts = [
        f"{100 * (1 - side.basis.sampled):.0f} % of {name} (shares ± {100 * side.basis.half_width:.0f} %)"
        for name, side in zip(("before", "after"), found.sides, strict=True)
        if side.basis is not None
    ]
    before, after = found.unsampled.before, found.unsampled.after
    without = f" {amount(before, found)} → {amount(after, found)} has no function." if before or after else ""
    return f"[not sampled]: {', '.join(parts)}; functions have it by their samples.{without}"


def _load(found: Comparison) -> str:
    more = f"{100 * abs(found.load):.1f} % {'more' if found.load > 0 else 'less'}"
    return (
        f"After has {more} {found.value_type.type} time a second than before, in all functions alike, as by another "
        "load or a busier machine: shares of all are compared (--normalize time compares times)."
    )


def _sensitivity(found: Comparison) -> str:
    dearest = sorted(found.functions, key=lambda row: -(row.own.before + row.own.after))[:_NAMED]
    named = [row for row in dearest if row.own.detectable < float("inf")]
    if found.doubt or not dearest:
        return ""
    if not named:
        return "No function has enough samples to find any change: record longer."
    names = function_names([printable(row.name) for row in named], _NAME)
    parts = [f"{_percentage(row.own.detectable)} of {name}" for row, name in zip(named, names, strict=True)]
    longer = "4 times as many windows" if found.caution else "recordings 4 times as long"
    return (
        f"An increase by {', '.join(parts)}, or more, would be found in four of five cases; {longer} find half of that."
    )


def _percentage(part: float) -> str:
    return f"{100 * part:.{int(part < 0.1)}f} %"


def _pair(each: Amount, found: Comparison) -> str:
    return f"{amount(each.before, found)} → {amount(each.after, found)} ({relative(each) or 'the same'})"


def _cells(each: Amount, found: Comparison) -> str:
    before, after = ("?" if side is None else amount(side, found) for side in each.known)
    texts = before, after, relative(each)
    return "".join(f"{text:>{_CELL}}" for text in texts) + f"{_mark(each) or ' '} "


def _mark(each: Amount) -> str:
    return SURE if each.significant else ""


def _coloured(text: str, row: Change, by: Literal["own", "total"]) -> str:
    each = row.own if by == "own" else row.total
    if not row.significant:
        return f"{_GREY}{text}{_END}"
    if not each.significant:
        return text
    return f"{_RED if each.change > 0 else _GREEN}{text}{_END}"
