"""A comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pyprof.cli.short_names import function_names
from pyprof.cli.terminal import printable
from pyprof.cli.words import duration, many, shorten
from pyprof.comparison.result import Amount, Change, Comparison

_MODULE, _LEAST = 20, 16
_CELL = 9
_SHOWN_DRIFT = 0.005
_GREY, _RED, _GREEN, _END = "\x1b[90m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
SURE = "*"
"""Marks what is more than chance."""


def table(found: Comparison, by: Literal["own", "total"], count: int, width: int, colour: bool) -> Iterator[str]:
    """Functions whose change is significant first, the largest change first. colour: the terminal shows it."""
    for name, profile in (("before", found.before), ("after", found.after)):
        elapsed = f", {duration(profile.recorded_ns)}" if profile.duration_ns else ""
        yield printable(f"{name + ':':8}{profile.title}{elapsed}")
    yield f"{found.value_type.type} {found.scale.words}: {_pair(found.whole, found)}{_mark(found.whole)}"
    yield _verdict(found)
    if abs(found.drift) >= _SHOWN_DRIFT:
        yield f"All functions together: {100 * found.drift:+.1f} %, as by another machine or load; {SURE}: beside it."
    rows = found.top(count, by)
    if not rows:
        return
    yield ""
    head = "".join(f"{name:>{_CELL}}" for name in ("before", "after", "change"))
    yield f"{'in itself':>{3 * _CELL}} {'with what it calls':>{3 * _CELL + 1}}"
    yield f"{head}  {head}  function"
    cells = [f"{_cells(row.own, found)}{_cells(row.total, found)}" for row in rows]
    room = max(width - max(map(len, cells)) - _MODULE - 1, _LEAST)
    names = function_names([printable(row.name) for row in rows], room)
    for cell, name, row in zip(cells, names, rows, strict=True):
        text = f"{cell}{name:<{room}} {shorten(printable(row.module), _MODULE)}".rstrip()
        yield _coloured(text, row, by) if colour else text


def amount(value: float, found: Comparison) -> str:
    """As people read it."""
    if found.scale.way == "samples":
        return f"{100 * value:.2f} %"
    return duration(value) if found.value_type.unit == "nanoseconds" else f"{value:,.4g}"


def relative(each: Amount) -> str:
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


def _pair(each: Amount, found: Comparison) -> str:
    return f"{amount(each.before, found)} → {amount(each.after, found)} ({relative(each) or 'the same'})"


def _cells(each: Amount, found: Comparison) -> str:
    texts = amount(each.before, found), amount(each.after, found), relative(each)
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
