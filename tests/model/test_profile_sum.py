"""Tests of merging the summaries of several recordings or windows."""

from __future__ import annotations

from typing import Any, get_type_hints

from pyprof.model.loss_reason_texts import Note
from pyprof.model.summary import Stops, Summary, summed


def test_summaries_are_added() -> None:
    one = Summary(
        duration_s=1, rate_reached=10, skipped=1, errors={"a": 1}, stops=Stops(1, 10, 20, 30, 0.5), notes=(Note("x"),)
    )
    two = Summary(duration_s=3, rate_reached=50, skipped=2, errors={"a": 2, "b": 1}, stops=Stops(3, 20, 25, 26, 0.25))
    both = summed([one, two])
    assert (both.duration_s, both.rate_reached, both.skipped, both.notes) == (4, 40, 3, (Note("x"),))
    assert both.errors == {"a": 3, "b": 1}
    assert both.stops == Stops(4, 17.5, 25, 30, 0.3125)


def test_processor_time_of_windows_adds_up_and_the_most_memory_is_that_of_one() -> None:
    parts = [
        Summary(profiler_cpu_s=0.5, profiler_max_rss_kb=900),
        Summary(profiler_cpu_s=0.25, profiler_max_rss_kb=800),
    ]
    both = summed(parts)
    assert (both.profiler_cpu_s, both.profiler_max_rss_kb) == (0.75, 900)


def test_no_number_of_a_summary_is_forgotten() -> None:
    """Check that every number is added, except for those that are derived from the samples."""
    numbers = [name for name, kind in get_type_hints(Summary).items() if kind in (int, float)]
    assert len(numbers) > 10
    given: dict[str, Any] = dict.fromkeys(numbers, 1)
    one = summed([Summary(**given)])
    assert [name for name in numbers if not getattr(one, name)] == ["samples", "threads"]
