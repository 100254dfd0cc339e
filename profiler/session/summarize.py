"""What a window of a recording did, as numbers. Shares are of what the picture shows: the profile's primary value."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats
from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.registry import KINDS
from pyprof.model.interpreter import PARTIAL, SampleState
from pyprof.model.markers import NOT_SAMPLED, MarkKind
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile
from pyprof.model.summary import (
    NOT_SAMPLED_LABEL,
    PARTLY_READ,
    Children,
    FunctionsMissing,
    ModuleSummary,
    Shown,
    Stops,
    Summary,
    lacks,
)
from pyprof.model.walk import StackEnd, Trust
from pyprof.session.recorder import Window
from pyprof.session.unseen import processor_time, sentence

FRAMES_MISSING = SampleState.BROKEN_CHAIN | SampleState.NO_RUN
"""Some functions of the interpreter's are not on the stack."""


def summarize(window: Window, profile: Profile, diagnostics: Diagnostics, rate_hz: float) -> Summary:
    """rate_hz: as wanted."""
    before, after, children = window.before, window.after, window.unfollowed
    spent_s, missing_s, late_s = processor_time(window)
    samples = np.bincount(profile.stack, minlength=len(profile.parent)).astype(np.int64)
    counts = _Inclusive.of(profile, samples)
    trust, modules = _shares(profile, counts)
    values = np.zeros(len(profile.parent), np.int64)
    np.add.at(values, profile.stack, profile.values[:, -1])
    shown, missing = _shown(profile, values)
    pauses = after.pauses - before.pauses
    seconds = window.duration_ns / 1e9
    p50, p99, longest = (round(pauses.percentile_ns(percent) / 1000, 1) for percent in (50, 99, 100))
    share = min(pauses.total_ns / window.duration_ns, 1.0) if window.duration_ns else 0.0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ends = counts.by_end(profile, samples)
    blocks = ends.pop(NOT_SAMPLED_LABEL, 0)
    return Summary(
        samples=len(window.node) - blocks,
        threads=len(profile.threads),
        duration_s=round(seconds, 6),
        rate_wanted=rate_hz,
        rate_reached=_rate_reached(before, after),
        skipped=after.skipped - before.skipped,
        errors=dict(sorted({**window.errors, **_partial(window)}.items())),
        ends=ends,
        trust=trust,
        stops=Stops(len(pauses), p50, p99, longest, round(share, 6)),
        unchanged=after.unchanged - before.unchanged,
        blocked=after.blocked - before.blocked,
        modules=_module_summaries(profile, modules, values, diagnostics),
        profiler_cpu_s=round(usage.ru_utime + usage.ru_stime, 3),
        profiler_max_rss_kb=usage.ru_maxrss,
        notes=(*after.notes, sentence(spent_s, missing_s)) if blocks else after.notes,
        shown=shown,
        functions_missing=missing,
        processor_s=spent_s,
        not_sampled_s=missing_s if blocks else 0.0,
        late_s=late_s,
        children=Children(round(children.own_ns / 1e9, 3), round(children.children_ns / 1e9, 3)),
    )


def _rate_reached(before: CollectorStats, after: CollectorStats) -> float:
    """Sampling times a second in which they were due; 0 where nothing was due."""
    due_ns = after.ticking_ns - before.ticking_ns
    return round(max(after.ticks - before.ticks, 0) / due_ns * 1e9, 3) if due_ns > 0 else 0.0


def _partial(window: Window) -> dict[str, int]:
    """Samples whose interpreter frames and native frames could not all be matched, by reason."""
    counts = {text: int(np.count_nonzero(window.state & reason)) for reason, text in PARTIAL.items()}
    return {text: count for text, count in counts.items() if count}


@dataclass(frozen=True, slots=True)
class _Inclusive:
    """at: what lies at or below each node of the tree."""

    at: list[int]

    @classmethod
    def of(cls, profile: Profile, own: npt.NDArray[np.int64]) -> _Inclusive:
        """own: of each node alone. Parents come first, so one pass from the end suffices."""
        total: list[int] = own.tolist()
        parents = profile.parent.tolist()
        for node in range(len(total) - 1, 0, -1):
            total[parents[node]] += total[node]
        return cls(total)

    def by_end(self, profile: Profile, own: npt.NDArray[np.int64]) -> dict[str, int]:
        """How the stacks ended, by label. Of a stack without any frame nothing could be read."""
        ends: Counter[str] = Counter({StackEnd.UNREADABLE.label: int(own[0])})
        for node in np.flatnonzero(profile.parent == 0).tolist():
            unseen = profile.frames[profile.frame[node]].mark == NOT_SAMPLED
            ends[NOT_SAMPLED_LABEL if unseen else _end(profile, node).label] += self.at[node]
        return {label: count for label, count in ends.items() if count}


def _end(profile: Profile, node: int) -> StackEnd:
    """Of the stacks at or below a node that has no parent."""
    mark = profile.frames[profile.frame[node]].mark
    return mark.end if mark is not None and mark.kind is MarkKind.CUT else StackEnd.ROOT


def _shares(profile: Profile, counts: _Inclusive) -> tuple[dict[str, int], Counter[int]]:
    """Frames by Trust and by module index, counted in samples."""
    trust: Counter[str] = Counter()
    modules: Counter[int] = Counter()
    frames = profile.frame.tolist()
    for node in range(1, len(frames)):
        frame = profile.frames[frames[node]]
        if frame.kind != FrameKind.MARKER:
            trust[Trust(frame.trust).label] += counts.at[node]
            modules[frame.module] += counts.at[node]
    return {k: v for k, v in trust.items() if v}, modules


def _shown(profile: Profile, own: npt.NDArray[np.int64]) -> tuple[Shown, tuple[FunctionsMissing, ...]]:
    """The primary value by how stacks ended. A stack that should have functions of an interpreter and has none is not
    whole. own: the value of each node alone.
    """
    values = profile.values[:, -1]
    ends = _Inclusive.of(profile, own).by_end(profile, own)
    nodes, from_root = _evaluators(profile)
    whole = from_root[profile.stack]
    lacking = nodes[profile.stack]
    if profile.state is not None:
        lacking[(profile.state & SampleState.INTERPRETED) != 0] = -1
    pids = np.array([thread.pid for thread in profile.threads], np.int64)
    missing = []
    for at, kind in enumerate(KINDS):
        lacks_it = lacking == at
        if lacks_it.any():
            where = tuple(np.unique(pids[profile.thread[lacks_it]]).tolist())
            missing.append(FunctionsMissing(kind.language, where, int(values[lacks_it].sum()), kind.remedy))
            _cut(ends, lacks(kind.language), int(values[lacks_it & whole].sum()))
    if profile.state is not None:
        partly = ((profile.state & FRAMES_MISSING) != 0) & (lacking < 0) & whole
        _cut(ends, PARTLY_READ, int(values[partly].sum()))
    total = int(values.sum())
    kind_of = profile.value_types[-1]
    shown = Shown(kind_of.type, kind_of.unit, total, {label: part for label, part in ends.items() if part})
    return shown, tuple(missing)


def _cut(ends: dict[str, int], label: str, value: int) -> None:
    """So much of what hangs on whole stacks is not whole."""
    if value:
        ends[StackEnd.ROOT.label] -= value
        ends[label] = value


def _evaluators(profile: Profile) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Of each node: which of KINDS has its evaluator on the stack where no interpreter's function stands, -1 for none;
    whether it hangs below no marker of a cut.
    """
    kinds = [_evaluator(frame) for frame in profile.frames]
    nodes = len(profile.parent)
    from_root, lacking = np.ones(nodes, np.bool_), np.full(nodes, -1, np.int64)
    from_root[0] = False  # of a stack without any frame nothing could be read
    evaluated, interpreted = [-1] * nodes, [False] * nodes
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    for node in range(1, nodes):
        parent, frame = parents[node], frames[node]
        from_root[node] = from_root[parent] if parent else _end(profile, node) == StackEnd.ROOT
        evaluated[node] = evaluated[parent] if evaluated[parent] >= 0 else kinds[frame]
        interpreted[node] = interpreted[parent] or profile.frames[frame].kind == FrameKind.INTERPRETER
        lacking[node] = -1 if interpreted[node] else evaluated[node]
    return lacking, from_root


def _evaluator(frame: Frame) -> int:
    """Of which of KINDS a frame is an evaluator, -1 for none."""
    if frame.kind != FrameKind.NATIVE:
        return -1
    names = [line.system_name for line in frame.lines]
    return next((at for at, kind in enumerate(KINDS) if any(name.startswith(kind.evaluators) for name in names)), -1)


def _module_summaries(
    profile: Profile, frames: Mapping[int, int], values: npt.NDArray[np.int64], diagnostics: Diagnostics
) -> tuple[ModuleSummary, ...]:
    """One entry a path and build-id, most frames first. values: of each node alone."""
    merged: Counter[tuple[str, str]] = Counter()
    own: Counter[tuple[str, str]] = Counter()
    innermost: Counter[int] = Counter()
    for leaf in np.flatnonzero(values[1:]) + 1:
        innermost[profile.frames[profile.frame[leaf]].module] += int(values[leaf])
    for index, info in enumerate(profile.modules):
        merged[_identity(info)] += frames.get(index, 0)
        own[_identity(info)] += innermost.get(index, 0)
    for path in diagnostics.problems:
        if not any(known == path for known, _ in merged):
            merged[path, ""] += 0
    entries = [
        ModuleSummary(path, build_id, count, tuple(sorted(diagnostics.problems.get(path, ()))), own[path, build_id])
        for (path, build_id), count in merged.items()
    ]
    return tuple(sorted(entries, key=lambda m: (-m.frames, m.path)))


def _identity(info: ModuleInfo) -> tuple[str, str]:
    return info.path, info.build_id
