"""Adds up the summaries of several recordings, or of windows of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyprof.diagnostics import Problem
from pyprof.model.summary import Children, ModuleSummary, NameCounts, Stops, Summary
from pyprof.records import field_names, replace

_SUMS = (
    "skipped",
    "unchanged",
    "blocked",
    "profiler_cpu_s",
    "processor_s",
    "not_sampled_s",
    "lost_s",
    "kernel_s",
    "late_s",
)
"""Names of the numbers of a Summary that are added up when recordings are merged."""


def summed(parts: Sequence[Summary]) -> Summary:
    """Add up the facts about several recordings. summary_of_part() adds what follows from samples."""
    seconds = sum(part.duration_s for part in parts) or 1.0
    return replace(
        Summary(),
        duration_s=round(sum(part.duration_s for part in parts), 6),
        **{name: round(sum(getattr(part, name) for part in parts), 6) for name in _SUMS},
        rate_wanted=max(part.rate_wanted for part in parts),
        rate_reached=round(sum(part.rate_reached * part.duration_s for part in parts) / seconds, 3),
        errors=dict(sum((Counter(part.errors) for part in parts), Counter[str]())),
        stops=_stops(parts, seconds),
        modules=_problems(parts),
        profiler_max_rss_kb=max(part.profiler_max_rss_kb for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        functions_missing=tuple(missing for part in parts for missing in part.functions_missing),
        children=_added(Children, [part.children for part in parts]),
        languages=tuple(dict.fromkeys(language for part in parts for language in part.languages)),
        names=replace(
            _added(NameCounts, [part.names for part in parts]), kept_bytes=max(part.names.kept_bytes for part in parts)
        ),
    )


def _added(kind: Any, values: Sequence[Any]) -> Any:
    return kind(*(sum(getattr(value, name) for value in values) for name in field_names(kind)))


def _stops(parts: Sequence[Summary], seconds: float) -> Stops:
    """Combine the pauses of the target in several recordings.

    The median is the mean of the recordings' medians, weighted by their stops; the maximum is exact.
    """
    count = sum(part.stops.count for part in parts)
    middle = sum(part.stops.p50_us * part.stops.count for part in parts) / max(count, 1)
    share = sum(part.stops.share * part.duration_s for part in parts) / seconds
    most = {name: max(getattr(part.stops, name) for part in parts) for name in ("p99_us", "max_us")}
    return Stops(count, round(middle, 3), share=round(share, 9), **most)


def _problems(parts: Sequence[Summary]) -> tuple[ModuleSummary, ...]:
    """Return one entry for each module path, with its problems in all recordings."""
    found: dict[str, dict[Problem, None]] = {}
    for part in parts:
        for module in part.modules:
            found.setdefault(module.path, {}).update(dict.fromkeys(module.problems))
    return tuple(ModuleSummary(path, "", 0, tuple(problems)) for path, problems in found.items())
