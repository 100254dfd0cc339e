"""A comparison as a page: the flame graph of both recordings in one, with each function's values before and after.

The page's profile has two values, before and after. The page divides them by the scale of the comparison.
"""

from __future__ import annotations

from typing import BinaryIO

from pyprof.comparison.combined_profile import both
from pyprof.comparison.result import Comparison
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.flamegraph import write_page
from pyprof.model.functions import Function


def write(comparison: Comparison, out: BinaryIO) -> None:
    """Write a comparison of two profiles as a flame graph page."""

    def beside(functions: list[Function]) -> dict[str, object]:
        return {"changes": _changes(comparison, functions)}

    write_page(both(comparison), out, ExportOptions(), beside)


def _changes(comparison: Comparison, functions: list[Function]) -> dict[str, object]:
    """Return the compared values of each of the page's functions, in their order; markers have zeros."""
    known = {
        Function(change.function.place, change.name, change.function.kind): change for change in comparison.functions
    }
    rows = [known.get(function) for function in functions]
    document: dict[str, object] = {
        "titles": [comparison.before.title, comparison.after.title],
        "words": f"{comparison.value_type.type} {comparison.scale.words}",
        "factors": [1 / comparison.scale.before, 1 / comparison.scale.after],
        "drift": comparison.drift,
        "doubt": comparison.doubt,
    }
    for column in ("own", "total"):
        amounts = [None if row is None else row.own if column == "own" else row.total for row in rows]
        document[column] = {
            "before": [amount.before if amount else 0 for amount in amounts],
            "after": [amount.after if amount else 0 for amount in amounts],
            "sure": [int(amount.significant) if amount else 0 for amount in amounts],
        }
    return document
