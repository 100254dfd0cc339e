"""Converts a Summary (model/summary.py) to rows of a recording file, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import field_names, replace
from pyprof.model.loss_reason_texts import Note, parse_note
from pyprof.model.summary import (
    Children,
    FunctionsMissing,
    Language,
    ModuleSummary,
    NameCounts,
    Shown,
    Stops,
    Summary,
)
from pyprof.problem_counters import Problem
from pyprof.recording.checked_rows import CellRow, TableRows, check_reference, encode_cell

Value = TypeVar("Value")
Number = TypeVar("Number", int, float)

_PARTS: dict[str, Any] = {"stops": Stops(), "children": Children(), "names": NameCounts(), "shown": Shown()}
"""Fields of a Summary that are separate records, with their default values."""

_VALUES = frozenset({"shown.total"})
"""Fields of a Summary that are sums of sample values. All other numbers are counts, seconds, microseconds or
kilobytes.
"""
_MAX_NUMBER = 1 << 40
"""Limit for the numbers of a Summary in a recording file, except sums of sample values. Sums over many recordings then
still fit into a file.
"""

_MAX_ARGUMENTS = 1 << 19
"""Maximum number of characters of the JSON text with a note's arguments. In JSON, one character may take six."""

SUMMARY_TABLES = (
    *("summary", "counters", "ends", "frame_sources", "module_sums", "problems", "notes", "languages", "evaluators"),
    *("functions_missing", "functions_missing_pids"),
)
"""Tables of a recording file that summary_rows() fills."""


def _numbers(value: Any) -> dict[str, int | float | str]:
    """Return the fields of a Summary, or of one part of it, that are a single number or text, by name."""
    fields = {name: getattr(value, name) for name in field_names(type(value))}
    return {name: each for name, each in fields.items() if isinstance(each, int | float | str)}


def summary_rows(summary: Summary) -> Iterator[tuple[str, CellRow]]:
    """Yield (table, row) for all facts of a Summary."""
    for name, value in _numbers(summary).items():
        yield "summary", (name, value)
    for part in _PARTS:
        for name, value in _numbers(getattr(summary, part)).items():
            yield "summary", (f"{part}.{name}", value)
    for name, count in sorted(summary.errors.items()):
        yield "counters", (encode_cell(name), count)
    shown = summary.shown.ends
    for label in sorted({*summary.ends, *shown}):
        yield "ends", (label, summary.ends.get(label), shown.get(label))
    for label, frames in sorted(summary.trust.items()):
        yield "frame_sources", (label, frames)
    yield from _module_rows(summary.modules)
    for at, note in enumerate(summary.notes, 1):
        yield "notes", note_row(at, note)
    yield from _language_rows(summary)


def note_row(at: int, note: Note) -> CellRow:
    """Return the row of a note in a recording file."""
    return at, encode_cell(note.reason), json.dumps(dict(note.arguments))


def _note(at: int, reason: str, arguments: str) -> Note:
    if len(arguments) > _MAX_ARGUMENTS:
        raise FormatError("notes", at, "more text than a note may have")
    try:
        return parse_note(reason, json.loads(arguments))
    except (ValueError, RecursionError) as error:
        raise FormatError("notes", at, str(error)) from None


def _module_rows(modules: Sequence[ModuleSummary]) -> Iterator[tuple[str, CellRow]]:
    number = 0
    for at, module in enumerate(modules, 1):
        yield "module_sums", (at, encode_cell(module.path), module.build_id or None, module.frames, module.own)
        for problem in module.problems:
            number += 1
            texts = (problem.reason, problem.text, problem.hint)
            yield "problems", (number, at, *map(encode_cell, texts))


def _language_rows(summary: Summary) -> Iterator[tuple[str, CellRow]]:
    number = 0
    for at, language in enumerate(summary.languages, 1):
        yield "languages", (at, language.name, language.hint)
        for prefix in language.evaluators:
            number += 1
            yield "evaluators", (number, at, prefix)
    for at, missing in enumerate(summary.functions_missing, 1):
        yield "functions_missing", (at, missing.language, missing.value, missing.hint, int(missing.kernel))
        for pid in missing.pids:
            yield "functions_missing_pids", (at, pid)


def read_summary(rows: TableRows) -> Summary | None:
    """Read the Summary of a recording file, None if the recording was interrupted before it was written.

    Raises:
        FormatError: A row is invalid.
    """
    stored = {str(key): value for key, value in rows("summary")}
    ends = rows("ends")
    shown = {label: value for label, _, value in ends if value is not None}
    whole = replace(
        _part(stored, "", Summary()),
        errors={name: _counted("counters", count) for name, count in rows("counters")},
        ends={label: samples for label, samples, _ in ends if samples is not None},
        trust=dict(rows("frame_sources")),
        modules=_modules(rows),
        notes=tuple(_note(*row) for row in rows("notes")),
        languages=_languages(rows),
        functions_missing=_missing(rows),
        stops=_part(stored, "stops.", _PARTS["stops"]),
        children=_part(stored, "children.", _PARTS["children"]),
        names=_part(stored, "names.", _PARTS["names"]),
        shown=replace(_part(stored, "shown.", Shown()), ends=shown),
    )
    return whole if stored else None


def _part(stored: dict[str, Any], prefix: str, usual: Value) -> Value:
    """Return one part of a recording's Summary, such as the stops, whose fields were stored as values by name.

    Args:
        stored: Values by name.
        prefix: Prefix of the names.
        usual: The default value, whose fields apply if a value is missing.
    """
    found = {}
    for name, default in _numbers(usual).items():
        value = stored.get(prefix + name, default)
        if isinstance(default, float) and isinstance(value, int):  # a caller of the library may pass an int
            value = float(value)
        if not isinstance(value, type(default)):
            raise FormatError("summary", 0, f"{prefix}{name} is of another type")
        if isinstance(value, int | float) and prefix + name not in _VALUES:
            _counted("summary", value)
        found[name] = value
    return replace(usual, **found)  # type: ignore[type-var]


def _counted(table: str, number: Number) -> Number:
    """Check that a number of a recording's Summary is within the limits, and return it.

    Raises:
        FormatError: The number is too large, or NaN.
    """
    if not -_MAX_NUMBER < number < _MAX_NUMBER:
        raise FormatError(table, 0, "a number that no recording has")
    return number


def _modules(rows: TableRows) -> tuple[ModuleSummary, ...]:
    stored = rows("module_sums")
    problems: list[list[Problem]] = [[] for _ in stored]
    for at, module, reason, text, hint in rows("problems"):
        problems[check_reference("problems", at, module, len(stored))].append(Problem(text, hint, reason))
    return tuple(
        ModuleSummary(path, build_id or "", frames, tuple(found), own)
        for (_, path, build_id, frames, own), found in zip(stored, problems, strict=True)
    )


def _languages(rows: TableRows) -> tuple[Language, ...]:
    stored = rows("languages")
    prefixes: list[list[str]] = [[] for _ in stored]
    for at, language, prefix in rows("evaluators"):
        prefixes[check_reference("evaluators", at, language, len(stored))].append(prefix)
    return tuple(Language(name, tuple(found), hint) for (_, name, hint), found in zip(stored, prefixes, strict=True))


def _missing(rows: TableRows) -> tuple[FunctionsMissing, ...]:
    stored = rows("functions_missing")
    pids: list[list[int]] = [[] for _ in stored]
    for missing, pid in rows("functions_missing_pids"):
        pids[check_reference("functions_missing_pids", missing, missing, len(stored))].append(pid)
    return tuple(
        FunctionsMissing(language, tuple(found), value, hint, bool(kernel))
        for (_, language, value, hint, kernel), found in zip(stored, pids, strict=True)
    )
