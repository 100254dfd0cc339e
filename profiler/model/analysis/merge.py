"""Merges profiles of several processes or machines, or parts of one recording.

Samples keep their times. Threads, modules, frames and stacks that are equal in two profiles become one, with new
indices. Profiles may overlap in time. A sample that is in two of them is in the result twice. A profile's gaps are the
parts of its time in which nothing was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.stack_quality import summary_of_part
from pyprof.model.integer_array_operations import MAX_SUM, distinct, largest_sum
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, ModuleInfo, Profile, Span, ThreadInfo
from pyprof.model.summary import Summary, summed


class JoinedTables:
    """The common tables of several profiles that are merged: modules, frames, stacks and threads, with equal entries
    stored once.

    Attributes:
        frames: Number of each distinct frame.
        tree: The stacks.
        threads: Threads by number.
    """

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.tree = Tree()
        self.threads: list[ThreadInfo] = []
        self._modules: dict[ModuleInfo, int] = {}
        self._named: list[tuple[bool, bool]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def add_profile(self, profile: Profile) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Add the modules, frames, stacks and threads of a profile to the common tables.

        Returns:
            (node, number of the thread) of each sample.
        """
        modules = [self._module(info) for info in profile.modules]
        frames = [self._frame(frame, modules) for frame in profile.frames]
        frame_of = profile.frame.tolist()
        leaves = distinct(profile.stack).tolist()
        nodes = rewrite(profile.parent.tolist(), lambda node: (frames[frame_of[node]],), self.tree, leaves)
        threads = np.array([self._thread(info) for info in profile.threads], np.int32)
        return np.array(nodes, np.int32)[profile.stack], threads[profile.thread]

    def _module(self, info: ModuleInfo) -> int:
        """Return the number of a profile's module in the common table. The flags has_functions and has_lines of the
        entry are True if they are in one of the profiles.
        """
        number = self._modules.setdefault(replace(info, has_functions=False, has_lines=False), len(self._modules))
        functions, lines = self._named[number] if number < len(self._named) else (False, False)
        self._named[number : number + 1] = [(functions or info.has_functions, lines or info.has_lines)]
        return number

    def _frame(self, frame: Frame, modules: Sequence[int]) -> int:
        """Return the number of a profile's frame in the common table.

        Numbers of interpreter functions are dropped, because each recording has its own.
        """
        module = modules[frame.module] if frame.module >= 0 else -1
        if module != frame.module or frame.place is not None:
            frame = replace(frame, module=module, place=None)
        return self.frames.setdefault(frame, len(self.frames))

    def _thread(self, info: ThreadInfo) -> int:
        """Return the number of a profile's thread in the common table.

        A thread with a known start time has one entry even if profiles give it different names. The last name is kept.
        """
        key = (info.key, info.process_key, info.labels) if info.started and info.process_started else (info,)
        number = self._numbers.setdefault(key, len(self._numbers))
        self.threads[number : number + 1] = [info]
        return number

    def modules(self) -> tuple[ModuleInfo, ...]:
        """Return the modules of all profiles added so far, each once. A frame's module is an index of this tuple."""
        return tuple(
            replace(info, has_functions=functions, has_lines=lines)
            for info, (functions, lines) in zip(self._modules, self._named, strict=True)
        )

    def threads_in_order(self) -> tuple[tuple[ThreadInfo, ...], npt.NDArray[np.int32]]:
        """Return the threads of all profiles sorted by their keys, and an array with the position of each thread number
        in that order.
        """
        order = sorted(range(len(self.threads)), key=lambda number: (self.threads[number].key, number))
        index = np.zeros(len(order), np.int32)
        index[order] = np.arange(len(order), dtype=np.int32)
        return tuple(self.threads[number] for number in order), index


_NO_PROCESSOR = -1
_MIN_NS = 100_000_000
"""Minimum length of a gap in a merged profile, in nanoseconds. Shorter gaps come from rounding: parts of one recording
follow each other directly.
"""


def merge(profiles: Iterable[Profile]) -> Profile:
    """Merge profiles of several processes or machines into one.

    Times are those of the recording machines' clocks. A profile without a date starts with the first of the others.
    Numbers of the summary are added up. Options that differ are left out.

    Raises:
        UsageError: There is no profile, or values differ in type or are too large together.
    """
    parts = _at_one_time(list(profiles))
    if not parts:
        raise UsageError("there is nothing to merge", "pyprof merge A.pyprof B.pyprof -o both.pyprof")
    first = parts[0]
    for part in parts[1:]:
        if part.value_types != first.value_types:
            raise UsageError(
                f"the profiles measure different things: {_kinds(first)} in one, {_kinds(part)} in another"
            )
    values = _values(parts)
    tables = JoinedTables()
    stacks, threads = zip(*map(tables.add_profile, parts), strict=True)
    order, thread = tables.threads_in_order()
    time_ns = np.concatenate([part.time_ns for part in parts])
    sorted_ = np.argsort(time_ns, kind="stable")
    start_ns = min(part.start_ns for part in parts)
    end_ns = max(part.start_ns + part.duration_ns for part in parts)
    whole = Profile(
        value_types=first.value_types,
        period_ns=first.period_ns,
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        title=" + ".join(dict.fromkeys(part.title for part in parts)),
        frames=tuple(tables.frames),
        parent=np.array(tables.tree.parent, np.int32),
        frame=np.array(tables.tree.frame, np.int32),
        modules=tables.modules(),
        threads=order,
        time_ns=time_ns[sorted_],
        stack=np.concatenate(stacks)[sorted_],
        thread=thread[np.concatenate(threads)][sorted_],
        values=values[sorted_],
        summary=Summary(),
        state=_column(parts, "state", 0, sorted_),
        cpu=_column(parts, "cpu", _NO_PROCESSOR, sorted_),
        options=_agreed(parts),
        gaps=find_gaps(parts),
    )
    summary = replace(summed([part.summary for part in parts]), duration_s=round(whole.duration_ns / 1e9, 6))
    return replace(whole, summary=summary_of_part(summary, whole))


def _at_one_time(parts: list[Profile]) -> list[Profile]:
    first = min((part.start_ns for part in parts if part.start_ns), default=0)
    return [part if part.start_ns else replace(part, start_ns=first, time_ns=part.time_ns + first) for part in parts]


def _values(parts: Sequence[Profile]) -> npt.NDArray[np.int64]:
    values = np.concatenate([part.values for part in parts])
    if largest_sum(values) >= MAX_SUM:
        raise UsageError("the sum of their values does not fit into 64 bits")
    return values


def _kinds(profile: Profile) -> str:
    return ", ".join(each.type for each in profile.value_types)


def _column(
    parts: Sequence[Profile], name: str, unknown: int, order: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32] | None:
    """Concatenate one column of several profiles. Return None if the column is unknown in all of them."""
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    filled = [
        np.full(len(part.stack), unknown, np.int32) if column is None else column
        for part, column in zip(parts, columns, strict=True)
    ]
    found: npt.NDArray[np.int32] = np.concatenate(filled)[order]
    return found


def _agreed(parts: Sequence[Profile]) -> dict[str, str]:
    """Return the recording options that have the same value in all profiles."""
    first, *others = [part.options for part in parts]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def recent(profile: Profile, seconds: float) -> Profile:
    """Return the part of a profile with its last seconds, as if the recording had begun then.

    Facts about the recording stay the same.
    """
    cut_ns = round(seconds * 1e9)
    if profile.duration_ns <= cut_ns:
        return profile
    part = profile.filter(start=(profile.duration_ns - cut_ns) / 1e9)
    begin_ns = profile.start_ns + profile.duration_ns - cut_ns
    summary: Mapping[str, Any] = {"duration_s": round(cut_ns / 1e9, 6)}
    kept = clip_gaps(part.gaps, begin_ns, begin_ns + cut_ns)
    return replace(part, start_ns=begin_ns, duration_ns=cut_ns, gaps=kept, summary=replace(part.summary, **summary))


def find_gaps(profiles: Iterable[Profile]) -> tuple[Span, ...]:
    """Return the times that none of several profiles has recorded, from the first beginning to the last end."""
    found: list[Span] = []
    recorded = sorted(span for each in profiles for span in _recorded(each))
    until = recorded[0][0] if recorded else 0
    for begin, end in recorded:
        if begin - until >= _MIN_NS:
            found.append((until, begin))
        until = max(until, end)
    return tuple(found)


def _recorded(profile: Profile) -> Iterable[Span]:
    begin = profile.start_ns
    for gap_begin, gap_end in profile.gaps:
        yield begin, gap_begin
        begin = gap_end
    yield begin, profile.start_ns + profile.duration_ns


def clip_gaps(gaps: Iterable[Span], begin: int, end: int) -> tuple[Span, ...]:
    """Return the parts of a profile's gaps that lie between two times."""
    parts = ((max(one, begin), min(two, end)) for one, two in gaps)
    return tuple((one, two) for one, two in parts if one < two)


def recorded_until(profile: Profile) -> npt.NDArray[np.int64]:
    """Return the recorded time before each sample, in nanoseconds since the profile's beginning, without gaps. The
    shape is (n,).
    """
    since = profile.time_ns - profile.start_ns
    for begin, end in profile.gaps:
        since = since - np.clip(profile.time_ns - begin, 0, end - begin)
    return since
