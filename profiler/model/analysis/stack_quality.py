"""Totals over the samples of a profile: how stacks ended, how frames were found, in which modules.

They are a part of the summary of a recording, and of each profile that is derived from another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.integer_array_operations import distinct
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.marker_frames import UNSAMPLED, MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.summary import (
    NOT_SAMPLED_LABEL,
    PARTLY_READ,
    FunctionsMissing,
    Language,
    ModuleSummary,
    Shown,
    Summary,
    lacks,
)
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.problem_counters import Problem

FRAMES_MISSING = SampleState.BROKEN_CHAIN | SampleState.LONG_CHAIN | SampleState.NO_RUN
"""Flags (SampleState) of a sample in whose stack some functions of the interpreter are missing."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Totals over the samples of a profile for its summary: how stacks ended, how frames were found, in which modules
    they are.

    Attributes:
        samples: Number of samples, without the blocks of time that was not sampled.
        blocks: Number of the blocks of time that was not sampled.
        ends: Number of samples by label of their stack's end.
        trust: Number of frames by label of their source.
        shown: How stacks ended, weighted by the primary value.
        functions_missing: Processes whose interpreter functions are missing.
        frames: Number of frames by module (path, build id).
        own: The primary value of samples whose innermost frame is in a module, by (path, build id).
    """

    samples: int
    blocks: int
    ends: Mapping[str, int]
    trust: Mapping[str, int]
    shown: Shown
    functions_missing: tuple[FunctionsMissing, ...]
    frames: Mapping[tuple[str, str], int]
    own: Mapping[tuple[str, str], int]

    def modules(self, problems: Mapping[str, Iterable[Problem]]) -> tuple[ModuleSummary, ...]:
        """Return the module totals for a summary: one entry for each path and build id, most frames first.

        Args:
            problems: Problems of modules by path.
        """
        without = {(path, ""): 0 for path in problems if not any(known == path for known, _ in self.frames)}
        entries = [
            ModuleSummary(key[0], key[1], count, tuple(sorted(problems.get(key[0], ()))), self.own.get(key, 0))
            for key, count in {**self.frames, **without}.items()
        ]
        return tuple(sorted(entries, key=lambda m: (-m.frames, m.path)))


def contents(profile: Profile, languages: Sequence[Language]) -> Contents:
    """Count how the stacks of a profile ended and how its frames were found.

    Args:
        profile: The profile.
        languages: Languages whose functions may be missing.
    """
    samples = np.bincount(profile.stack, minlength=len(profile.parent)).astype(np.int64)
    values = np.zeros(len(profile.parent), np.int64)
    np.add.at(values, profile.stack, profile.values[:, -1])
    counts = _Inclusive.compute(profile, samples)
    trust, frames = _shares(profile, counts)
    shown, missing = _shown(profile, values, languages)
    ends = counts.by_end(profile, samples)
    blocks = ends.pop(NOT_SAMPLED_LABEL, 0)
    innermost: Counter[int] = Counter()
    for leaf in np.flatnonzero(values[1:]) + 1:
        innermost[profile.frames[profile.frame[leaf]].module] += int(values[leaf])
    return Contents(
        samples=len(profile.stack) - blocks,
        blocks=blocks,
        ends=ends,
        trust=trust,
        shown=shown,
        functions_missing=missing,
        frames=_by_identity(profile, frames),
        own=_by_identity(profile, innermost),
    )


def summary_of_part(summary: Summary, profile: Profile) -> Summary:
    """Return the summary of a profile that has only a part of another one's samples.

    Facts about the recording itself stay the same. Totals that the original does not know stay unknown.
    """
    found = contents(profile, summary.languages)
    kernel = any(missing.kernel for missing in summary.functions_missing)
    problems = {module.path: module.problems for module in summary.modules}
    part = replace(
        summary,
        samples=found.samples,
        threads=len(profile.threads),
        ends=found.ends,
        trust=found.trust,
        shown=found.shown,
        functions_missing=tuple(replace(each, kernel=kernel) for each in found.functions_missing),
        modules=tuple(module for module in found.modules(problems) if module.frames),
    )
    return without_evidence(part) if summary.samples and not (summary.ends or summary.trust) else part


def without_evidence(summary: Summary) -> Summary:
    """Return a copy of a summary without its counts of stack ends and frame sources, for a profile from a file format
    that does not state them.
    """
    return replace(summary, ends={}, trust={}, shown=replace(summary.shown, ends={}))


def _by_identity(profile: Profile, counts: Mapping[int, int]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for index, info in enumerate(profile.modules):
        found[info.path, info.build_id] += counts.get(index, 0)
    return found


@dataclass(frozen=True, slots=True)
class _Inclusive:
    """Inclusive sums of a profile's primary value (such as nanoseconds), by node of the stack tree (`at`): over the
    node and all nodes below it.
    """

    at: list[int]

    @classmethod
    def compute(cls, profile: Profile, own: npt.NDArray[np.int64]) -> _Inclusive:
        """Compute the sums over each node of the stack tree and all nodes below it.

        Parents come before children, so one pass from the end suffices.

        Args:
            profile: The profile.
            own: (nodes,) Value of each node alone.
        """
        total: list[int] = own.tolist()
        parents = profile.parent.tolist()
        for node in range(len(total) - 1, 0, -1):
            total[parents[node]] += total[node]
        return cls(total)

    def by_end(self, profile: Profile, own: npt.NDArray[np.int64]) -> dict[str, int]:
        """Sum the values by the label of their stack's end. A stack without a frame was unreadable."""
        ends: Counter[str] = Counter({StackEnd.UNREADABLE.label: int(own[0])})
        for node in np.flatnonzero(profile.parent == 0).tolist():
            unseen = profile.frames[profile.frame[node]].mark in UNSAMPLED
            ends[NOT_SAMPLED_LABEL if unseen else _end(profile, node).label] += self.at[node]
        return {label: count for label, count in ends.items() if count}


def _end(profile: Profile, node: int) -> StackEnd:
    """Return how a stack ended, as its outermost frame says: the reason in the marker of a truncated stack, otherwise
    ROOT.
    """
    mark = profile.frames[profile.frame[node]].mark
    return mark.end if mark is not None and mark.kind is MarkKind.CUT else StackEnd.ROOT


def _shares(profile: Profile, counts: _Inclusive) -> tuple[dict[str, int], Counter[int]]:
    """Count the frames of all samples by Trust (how they were found) and by module index."""
    trust: Counter[str] = Counter()
    modules: Counter[int] = Counter()
    by_frame = np.zeros(len(profile.frames) + 1, np.int64)  # the last is the root's, which is no frame
    np.add.at(by_frame, profile.frame, np.array(counts.at, np.int64))
    for frame, count in zip(profile.frames, by_frame.tolist(), strict=False):
        if frame.kind != FrameKind.MARKER and count:
            trust[Trust(frame.trust).label] += count
            modules[frame.module] += count
    return dict(trust), modules


def _shown(
    profile: Profile, own: npt.NDArray[np.int64], languages: Sequence[Language]
) -> tuple[Shown, tuple[FunctionsMissing, ...]]:
    """Sum the primary value of a profile, such as nanoseconds, by how its stacks ended. A stack that lacks expected
    interpreter functions does not count as complete.

    Args:
        profile: The profile.
        own: (nodes,) Value of each node alone.
        languages: Languages whose functions may be missing.
    """
    values = profile.values[:, -1]
    ends = _Inclusive.compute(profile, own).by_end(profile, own)
    kind_of = profile.value_types[-1]
    if not languages and profile.state is None:  # a foreign file: nothing is known to be missing
        return Shown(kind_of.type, kind_of.unit, int(values.sum()), ends), ()
    nodes, from_root, with_functions = _evaluators(profile, languages)
    whole, is_read = from_root[profile.stack], with_functions[profile.stack]
    lacking = nodes[profile.stack]
    if profile.state is not None:
        is_read = is_read | ((profile.state & SampleState.INTERPRETED) != 0)
        lacking[is_read] = -1
    pids = np.array([thread.pid for thread in profile.threads], np.int64)
    starting = _before_first(profile, pids, is_read)
    missing = []
    for at, kind in enumerate(languages):
        lacks_it = lacking == at
        if lacks_it.any():
            later = lacks_it & ~starting
            if later.any():
                where = tuple(distinct(pids[profile.thread[later]]).tolist())
                missing.append(FunctionsMissing(kind.name, where, int(values[later].sum()), kind.hint))
            _cut(ends, lacks(kind.name), int(values[lacks_it & whole].sum()))
    if profile.state is not None:
        partly = ((profile.state & FRAMES_MISSING) != 0) & (lacking < 0) & whole
        _cut(ends, PARTLY_READ, int(values[partly].sum()))
    total = int(values.sum())
    shown = Shown(kind_of.type, kind_of.unit, total, {label: part for label, part in ends.items() if part})
    return shown, tuple(missing)


def _before_first(
    profile: Profile, pids: npt.NDArray[np.int64], is_read: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which samples of a profile were taken before the first sample of their process in which interpreter
    functions were read.
    """
    process = np.searchsorted(distinct(pids), pids)[profile.thread]
    never = np.iinfo(np.int64).max
    first = np.full(len(pids), never, np.int64)
    np.minimum.at(first, process[is_read], profile.time_ns[is_read])
    found: npt.NDArray[np.bool_] = (profile.time_ns < first[process]) & (first[process] != never)
    return found


def _cut(ends: dict[str, int], label: str, value: int) -> None:
    """Move an amount in `ends` from the label for complete stacks to another label.

    Args:
        ends: Amounts by label.
        label: The other label.
        value: The amount.
    """
    if value:
        ends[StackEnd.ROOT.label] -= value
        ends[label] = value


def _evaluators(
    profile: Profile, languages: Sequence[Language]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Find out for the stack of each node of the tree whether it runs an interpreter's evaluator but has no functions
    of the language.

    Returns:
        (nodes,) index of the language whose evaluator is on the stack without any interpreter function, -1 for none;
        (nodes,) True if the stack is not truncated; (nodes,) True if an interpreter function is on the stack.
    """
    kinds = [_evaluator(frame, languages) for frame in profile.frames]
    nodes = len(profile.parent)
    from_root, lacking = np.ones(nodes, np.bool_), np.full(nodes, -1, np.int64)
    from_root[0] = False  # a stack without any frame was unreadable
    evaluated, interpreted = [-1] * nodes, [False] * nodes
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    for node in range(1, nodes):
        parent, frame = parents[node], frames[node]
        from_root[node] = from_root[parent] if parent else _end(profile, node) == StackEnd.ROOT
        evaluated[node] = evaluated[parent] if evaluated[parent] >= 0 else kinds[frame]
        interpreted[node] = interpreted[parent] or profile.frames[frame].kind == FrameKind.INTERPRETER
        lacking[node] = -1 if interpreted[node] else evaluated[node]
    return lacking, from_root, np.array(interpreted, np.bool_)


def _evaluator(frame: Frame, languages: Sequence[Language]) -> int:
    """Return the index of the language whose evaluator function a frame is, -1 for none."""
    if frame.kind != FrameKind.NATIVE:
        return -1
    names = [line.system_name or line.function for line in frame.lines] or [frame.title]
    return next(
        (at for at, kind in enumerate(languages) if any(name.startswith(kind.evaluators) for name in names)), -1
    )
