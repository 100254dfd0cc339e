"""Statistics of a window. Shares refer to the primary value of the profile, which the flame graph shows."""

from __future__ import annotations

import numpy as np

from pyprof.collectors.base import CollectorStats
from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.registry import KINDS
from pyprof.model.interpreter_state import PARTIAL
from pyprof.model.profile import Profile
from pyprof.model.stack_quality import contents
from pyprof.model.summary import Children, Language, Stops, Summary
from pyprof.records import replace
from pyprof.session.own_cost import OwnCost, own_cost
from pyprof.session.sample_windows import Window, WindowStatistics
from pyprof.session.unsampled_time import processor_time

LANGUAGES = tuple(Language(kind.language, kind.evaluators, kind.remedy) for kind in KINDS)


def effort(counted: WindowStatistics, rate_hz: float, own: OwnCost) -> Summary:
    """Summarize the collector's work and the counters of a window: everything that does not depend on samples.

    Args:
        counted: Statistics of the window.
        rate_hz: The requested sampling rate.
        own: Cost of the profiler.
    """
    before, after = counted.before, counted.after
    pauses = after.pauses - before.pauses
    p50, p99, longest = (round(pauses.percentile_ns(percent) / 1000, 1) for percent in (50, 99, 100))
    share = min(pauses.total_ns / counted.duration_ns, 1.0) if counted.duration_ns else 0.0
    return Summary(
        duration_s=round(counted.duration_ns / 1e9, 6),
        rate_wanted=rate_hz,
        rate_reached=_rate_reached(before, after),
        skipped=after.skipped - before.skipped,
        errors=dict(sorted(counted.errors.items())),
        stops=Stops(len(pauses), p50, p99, longest, round(share, 6)),
        unchanged=after.unchanged - before.unchanged,
        blocked=after.blocked - before.blocked,
        profiler_cpu_s=round(own.cpu_s, 3),
        profiler_max_rss_kb=own.max_rss_kb,
        notes=after.notes,
        languages=LANGUAGES,
    )


def summarize(window: Window, profile: Profile, diagnostics: Diagnostics, rate_hz: float) -> Summary:
    """Return the summary of a window of a recording.

    Args:
        window: The window.
        profile: Its profile.
        diagnostics: Problems of files.
        rate_hz: The requested sampling rate.
    """
    children = window.unfollowed
    processor = processor_time(window)
    if any(account.all_or_nothing for account in window.after.accounts.values()):
        # processes that started and ended between two readings have samples, but no account
        processor = replace(processor, spent=round(profile.total / 1e9, 3))
    found = contents(profile, LANGUAGES)
    errors = {**window.errors, **_partial(window)}
    done = effort(WindowStatistics(window.before, window.after, errors, window.duration_ns), rate_hz, own_cost())
    return replace(
        done,
        samples=found.samples,
        threads=len(profile.threads),
        ends=found.ends,
        trust=found.trust,
        modules=found.modules(diagnostics.problems),
        notes=(*done.notes, *(processor.sentences if found.blocks else ()), *processor.missed),
        shown=found.shown,
        functions_missing=found.functions_missing,
        processor_s=processor.spent,
        not_sampled_s=processor.not_sampled if found.blocks else 0.0,
        lost_s=processor.lost if found.blocks else 0.0,
        kernel_s=processor.kernel if found.blocks else 0.0,
        late_s=processor.late,
        children=Children(round(children.own_ns / 1e9, 3), round(children.children_ns / 1e9, 3)),
    )


def _rate_reached(before: CollectorStats, after: CollectorStats) -> float:
    """Return the reached sampling rate: sampling times per second of the time in which they were due, 0 if none were
    due.
    """
    due_ns = after.ticking_ns - before.ticking_ns
    return round(max(after.ticks - before.ticks, 0) / due_ns * 1e9, 3) if due_ns > 0 else 0.0


def _partial(window: Window) -> dict[str, int]:
    """Count samples whose interpreter frames and native frames could not be merged completely, by reason."""
    counts = {text: int(np.count_nonzero(window.state & reason)) for reason, text in PARTIAL.items()}
    return {text: count for text, count in counts.items() if count}
