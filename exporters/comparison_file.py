"""A comparison of two profiles as a file: a page, JSON, or a table of comma-separated values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from os import PathLike, fspath
from typing import BinaryIO

from pyprof.comparison.result import Amount, Comparison, SampledSide, both
from pyprof.errors import OutputError, UsageError
from pyprof.exporters import output_file
from pyprof.model.analysis.function_costs import Function
from pyprof.model.untrusted_text import dump_json, encode_text

Writer = Callable[[Comparison, BinaryIO], None]


def find_writer(path: str, format: str | None = None) -> Writer:
    """Return the writer of a format for comparisons, by its name or by the file's suffix.

    Raises:
        UsageError: There is no such format for comparisons.
    """
    name = format or path.rsplit("/", 1)[-1].lower().rpartition(".")[2]
    if name not in WRITERS:
        raise UsageError(
            f"a comparison is not written as {name!r}" if format else f"the name {path} does not say what to write",
            f"one of {', '.join(WRITERS)}",
        )
    return WRITERS[name]


def save_comparison(comparison: Comparison, path: str | PathLike[str], format: str | None = None) -> None:
    """Write a comparison of two profiles into a file; see Comparison.save."""
    name = fspath(path)
    writer = find_writer(name, format)
    try:
        output_file.replace_file(name, lambda out: writer(comparison, out))
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{name} cannot be written: {error.strerror or error}") from error


def write_json(comparison: Comparison, out: BinaryIO) -> None:
    """Write a comparison of two profiles as one JSON object.

    Amounts are numbers in the unit of the value, divided by `scale`. `doubt` says why nothing is marked as significant,
    and `caution` what the test of significance leaves out. `load` is explained in Comparison. `detectable` is null if
    no change can be detected. `before` and `after` of a function are null if they are unknown. SamplingBasis explains
    `samples`, `sampled` and `half_width` of each profile.
    """
    scale = comparison.scale
    document = {
        "before": comparison.before.title,
        "after": comparison.after.title,
        "value": [comparison.value_type.type, comparison.value_type.unit],
        "scale": {"way": scale.way, "before": scale.before, "after": scale.after},
        "drift": comparison.drift,
        "load": comparison.load,
        "doubt": comparison.doubt,
        "caution": comparison.caution,
        "whole": _amount(comparison.whole),
        "unsampled": _amount(comparison.unsampled),
        "sampling": [_sampling(side) for side in comparison.sides],
        "functions": [
            {"name": row.name, "module": row.module, "own": _amount(row.own), "total": _amount(row.total)}
            for row in comparison.functions
        ],
    }
    out.write(dump_json(document) + b"\n")


def write_csv(comparison: Comparison, out: BinaryIO) -> None:
    """Write a comparison as comma-separated values: one row for each function, with the columns of
    Comparison.to_columns(). The field of an unknown cost is empty.

    A name that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    columns = comparison.to_columns()
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_cell(each) for each in row])
    out.write(encode_text(text.getvalue()))


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isnan(value):
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _amount(amount: Amount) -> dict[str, object]:
    detectable = amount.detectable if amount.detectable < float("inf") else None
    return {
        "before": amount.known[0],
        "after": amount.known[1],
        "significant": amount.significant,
        "detectable": detectable,
    }


def _sampling(side: SampledSide) -> dict[str, float] | None:
    if side.basis is None:
        return None
    return {"samples": side.basis.samples, "sampled": side.basis.sampled, "half_width": side.basis.half_width}


def write_html(comparison: Comparison, out: BinaryIO) -> None:
    """Write a comparison of two profiles as an HTML page: the flame graph of both profiles together, and each
    function's values before and after. The page divides the values by the scale of the comparison.
    """
    from pyprof.exporters.base import ExportOptions
    from pyprof.exporters.flamegraph import write_page

    def beside(functions: list[Function]) -> dict[str, object]:
        return {"changes": _changes(comparison, functions)}

    write_page(both(comparison), out, ExportOptions(), beside)


def render_comparison(comparison: Comparison) -> str:
    """Return the HTML of a comparison for a notebook (Comparison._repr_html_)."""
    from pyprof.exporters.flamegraph import render_iframe

    return render_iframe(lambda out: write_html(comparison, out), repr(comparison))


def _changes(comparison: Comparison, functions: list[Function]) -> dict[str, object]:
    """Return data for the page of a comparison: columns with each function's values before and after. Functions are in
    the order of the page's table; markers have zeros.
    """
    known = {
        Function(change.function.place, change.name, change.function.kind): change for change in comparison.functions
    }
    rows = [known.get(function) for function in functions]
    document: dict[str, object] = {
        "titles": [comparison.before.title, comparison.after.title],
        "words": f"{comparison.value_type.type} {comparison.scale.words}{_unsampled_words(comparison)}",
        "factors": [1 / comparison.scale.before, 1 / comparison.scale.after],
        "drift": comparison.drift,
        "doubt": comparison.doubt,
        "caution": comparison.caution,
    }
    for column in ("own", "total"):
        amounts = [None if row is None else row.own if column == "own" else row.total for row in rows]
        document[column] = {
            "before": [amount.before if amount else 0 for amount in amounts],
            "after": [amount.after if amount else 0 for amount in amounts],
            "unknown": [int(amount.is_unknown) if amount else 0 for amount in amounts],
            "sure": [int(amount.significant) if amount else 0 for amount in amounts],
        }
    return document


def _unsampled_words(comparison: Comparison) -> str:
    parts = [
        f"{100 * (1 - side.basis.sampled):.0f} % {name} (shares ± {100 * side.basis.half_width:.0f} %)"
        for name, side in zip(("before", "after"), comparison.sides, strict=True)
        if side.basis is not None and side.is_partial
    ]
    return f" · not sampled: {', '.join(parts)}" if parts else ""


WRITERS: dict[str, Writer] = {"html": write_html, "json": write_json, "csv": write_csv}
