"""From a closed window to a Profile: look names up, sum up, describe. No I/O but that of the symbolizer."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pyprof.diagnostics import Diagnostics
from pyprof.model.interpreter import PARTIAL
from pyprof.model.profile import FrameKind, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.stacks import MERGE_MARK
from pyprof.model.summary import ModuleSummary, Stops, Summary
from pyprof.model.walk import StackEnd, Trust
from pyprof.objfile.images import ImageStore
from pyprof.session.inlined import inlined_inside
from pyprof.session.recorder import Window
from pyprof.symbolize.described import DescribedCode
from pyprof.symbolize.symbolizer import InterpreterName, Symbolizer

SOURCE_BUDGET_S = 5.0
"""Most seconds spent on source lines and inlined functions; what is left then goes without, and the summary says so."""


def assemble(
    window: Window,
    images: ImageStore,
    diagnostics: Diagnostics,
    name: InterpreterName,
    *,
    title: str,
    rate_hz: float,
    mode: str,
    code: DescribedCode | None = None,
) -> Profile:
    """Resolve the window's frames and make it a profile. rate_hz: as wanted. mode: cpu, wall or offcpu.

    code: names of code that no file describes.
    """
    period_ns = round(1e9 / rate_hz)
    symbolizer = Symbolizer(images, diagnostics, window.spaces, SOURCE_BUDGET_S, code, name)
    resolved = symbolizer.resolve(window.stacks.frames)
    threads, thread = _threads(window)
    parent = np.array(window.stacks.parent, np.int32)
    frame = np.array(window.stacks.frame, np.int32)
    values = _values(window, period_ns)
    profile = Profile(
        value_types=(ValueType("samples", "count"), ValueType(mode, "nanoseconds")),
        period_ns=period_ns,
        start_ns=window.start_ns,
        duration_ns=window.duration_ns,
        title=title,
        frames=resolved.frames,
        parent=parent,
        frame=frame,
        modules=resolved.modules,
        threads=threads,
        time_ns=window.time_ns,
        stack=window.node,
        thread=thread,
        values=values,
        state=window.state,
        summary=Summary(),
    )
    summary = _summary(window, profile, diagnostics, rate_hz)
    return inlined_inside(replace(profile, summary=summary))


def _values(window: Window, period_ns: int) -> npt.NDArray[np.int64]:
    """(samples, nanoseconds) of each row. A stretch of known length has as many samples as sampling times were in it:
    what is left of a period counts for the thread's next one, so that a thread has as many as its time has periods.
    """
    known = window.length_ns >= 0
    length_ns = np.where(known, window.length_ns, window.weight * period_ns)
    samples = np.ones_like(length_ns)
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(window.tid[rows], kind="stable")]
    if len(rows):
        tid = window.tid[rows]
        total = np.cumsum(length_ns[rows])
        first = np.flatnonzero(np.diff(tid, prepend=tid[0] - 1))
        before = np.concatenate([[0], total])[first]
        own = total - np.repeat(before, np.diff(np.append(first, len(rows))))
        periods = (own + period_ns // 2) // period_ns
        samples[rows] = np.diff(periods, prepend=0)
        samples[rows[first]] = periods[first]
    return np.stack([samples, length_ns], axis=1)


def _threads(window: Window) -> tuple[tuple[ThreadInfo, ...], npt.NDArray[np.int32]]:
    """Threads in order of pid and tid, and the index of each row's thread."""
    known = {t.tid: t for t in window.threads}
    tids, inverse = np.unique(window.tid, return_inverse=True)
    infos = [known.get(tid, ThreadInfo(tid, tid, str(tid), str(tid))) for tid in tids.tolist()]
    order = sorted(range(len(infos)), key=lambda i: (infos[i].pid, infos[i].tid))
    place = np.zeros(len(infos), np.int32)
    place[order] = np.arange(len(infos), dtype=np.int32)
    return tuple(infos[i] for i in order), place[inverse].astype(np.int32)


def _summary(window: Window, profile: Profile, diagnostics: Diagnostics, rate_hz: float) -> Summary:
    before, after = window.before, window.after
    weights = _inclusive_weights(profile)
    ends, trust, modules = _shares(profile, weights)
    pauses = after.pauses - before.pauses
    seconds = window.duration_ns / 1e9
    p50, p99, longest = (round(pauses.percentile_ns(percent) / 1000, 1) for percent in (50, 99, 100))
    share = pauses.total_ns / window.duration_ns if window.duration_ns else 0.0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Summary(
        samples=len(window.node),
        threads=len(profile.threads),
        duration_s=round(seconds, 6),
        rate_wanted=rate_hz,
        rate_reached=round((after.ticks - before.ticks) / seconds, 3) if seconds > 0 else 0.0,
        skipped=after.skipped - before.skipped,
        errors=dict(sorted({**window.errors, **_partial(window)}.items())),
        ends=ends,
        trust=trust,
        stops=Stops(len(pauses), p50, p99, longest, round(share, 6)),
        unchanged=after.unchanged - before.unchanged,
        blocked=after.blocked - before.blocked,
        modules=_module_summaries(profile.modules, modules, diagnostics),
        profiler_cpu_s=round(usage.ru_utime + usage.ru_stime, 3),
        profiler_max_rss_kb=usage.ru_maxrss,
        notes=after.notes,
    )


def _partial(window: Window) -> dict[str, int]:
    """Samples whose interpreter frames and native frames could not all be matched, by reason."""
    counts = {text: int(np.count_nonzero(window.state & reason)) for reason, text in PARTIAL.items()}
    return {text: count for text, count in counts.items() if count}


def _inclusive_weights(profile: Profile) -> list[int]:
    """Samples at or below each node of the tree; parents come first, so one pass from the end suffices."""
    total: list[int] = np.bincount(profile.stack, minlength=len(profile.parent)).tolist()
    parents = profile.parent.tolist()
    for node in range(len(total) - 1, 0, -1):
        total[parents[node]] += total[node]
    return total


def _shares(profile: Profile, weights: list[int]) -> tuple[dict[str, int], dict[str, int], Counter[int]]:
    """Samples by StackEnd, frames by Trust, frames by module index."""
    ends: Counter[str] = Counter()
    trust: Counter[str] = Counter()
    modules: Counter[int] = Counter()
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    for node in range(1, len(weights)):
        frame = profile.frames[frames[node]]
        marker = frame.kind == FrameKind.MARKER
        if parents[node] == 0:
            end = StackEnd(frame.pc) if marker and frame.pc < MERGE_MARK else StackEnd.ROOT
            ends[end.label] += weights[node]
        if not marker:
            trust[Trust(frame.trust).label] += weights[node]
            modules[frame.module] += weights[node]
    return {k: v for k, v in ends.items() if v}, {k: v for k, v in trust.items() if v}, modules


def _module_summaries(
    infos: tuple[ModuleInfo, ...], frames: Mapping[int, int], diagnostics: Diagnostics
) -> tuple[ModuleSummary, ...]:
    """One entry a path and build-id, most frames first."""
    merged: Counter[tuple[str, str]] = Counter()
    for index, info in enumerate(infos):
        merged[info.path, info.build_id] += frames.get(index, 0)
    for path in diagnostics.problems:
        if not any(known == path for known, _ in merged):
            merged[path, ""] += 0
    entries = [
        ModuleSummary(path, build_id, count, tuple(sorted(diagnostics.problems.get(path, ()))))
        for (path, build_id), count in merged.items()
    ]
    return tuple(sorted(entries, key=lambda m: (-m.frames, m.path)))
