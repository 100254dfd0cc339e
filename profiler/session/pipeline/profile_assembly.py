"""Assembly of a Profile from a closed window: names, values and statistics. Only the symbolizer does I/O.

Inlined functions are shown inside their frame, and so are the interpreter frames that an evaluator runs. In a frame
that has both, the innermost interpreter frame has called the inlined function. So the frame is split, and its inlined
functions follow the interpreter frames.

Shares in the statistics refer to the primary value of the profile, which the flame graph shows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats
from pyprof.interpreters.registry import KINDS
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.stack_quality import contents
from pyprof.model.integer_array_operations import distinct
from pyprof.model.interpreter_frames import PARTIAL
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import FrameKind, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Children, Language, Stops, Summary
from pyprof.model.thread_identity import ProcessKey
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.session.own_cpu_and_memory import OwnCost, own_cost
from pyprof.session.pipeline.sample_windows import Window, WindowStatistics
from pyprof.session.pipeline.unsampled_time import processor_time, scale_to_accounts
from pyprof.session.pipeline.window_row_store import Rows
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import DescribedCode, FunctionStart, InterpreterName, Symbolizer

if TYPE_CHECKING:
    from pyprof.symbolize.name_cache import SettledFrameCache


def inlined_inside(profile: Profile) -> Profile:
    """Return a profile in which a frame with both inlined functions and interpreter frames inside it is split into two
    frames.

    Returns:
        The changed profile, or the same object if no frame was split.
    """
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    split = {
        parents[node]
        for node in range(1, len(parents))
        if profile.frames[frames[node]].kind == FrameKind.INTERPRETER and _has_inlined(profile, frames[parents[node]])
    }
    return _Split(profile, split).rebuilt() if split else profile


def _has_inlined(profile: Profile, frame: int) -> bool:
    return frame >= 0 and profile.frames[frame].kind == FrameKind.NATIVE and len(profile.frames[frame].lines) > 1


class _Split:
    """A function for rewrite() that splits frames with inlined functions into two frames, at chosen nodes of a stack
    tree.

    Args:
        profile: The profile.
        split: Nodes whose frames are split.
    """

    def __init__(self, profile: Profile, split: set[int]) -> None:
        self._profile = profile
        self._split = split
        self._parent, self._frame = profile.parent.tolist(), profile.frame.tolist()
        self._inside = [-1] * len(self._parent)
        self._parts: dict[int, tuple[int, int]] = {}
        self.frames = list(profile.frames)

    def rebuilt(self) -> Profile:
        tree = Tree()
        place = rewrite(self._parent, self._frames_of, tree)
        for leaf in distinct(self._profile.stack).tolist():
            if self._inside[leaf] >= 0:
                place[leaf] = tree.child(place[leaf], self._inside[leaf])
        return replace(
            self._profile,
            frames=tuple(self.frames),
            parent=np.array(tree.parent, np.int32),
            frame=np.array(tree.frame, np.int32),
            stack=np.array(place, np.int32)[self._profile.stack],
        )

    def _frames_of(self, node: int) -> list[int]:
        """Return the frames that replace a node of the stack tree, with inlined functions as separate frames."""
        frame, waiting = self._frame[node], self._inside[self._parent[node]]
        if self._profile.frames[frame].kind == FrameKind.INTERPRETER:
            self._inside[node] = waiting
            return [frame]
        before = [waiting] if waiting >= 0 else []
        if node in self._split:
            outer, self._inside[node] = self._taken_apart(frame)
            return [*before, outer]
        return [*before, frame]

    def _taken_apart(self, frame: int) -> tuple[int, int]:
        """Return two frames in place of one: the function itself, and the functions that were inlined into it."""
        if frame not in self._parts:
            whole = self._profile.frames[frame]
            outer = replace(whole, lines=whole.lines[-1:])
            inlined = replace(whole, kind=FrameKind.INLINE, lines=whole.lines[:-1], title=whole.lines[-2].function)
            self._parts[frame] = len(self.frames), len(self.frames) + 1
            self.frames += [outer, inlined]
        return self._parts[frame]


LANGUAGES = tuple(Language(kind.language, kind.evaluators, kind.hint) for kind in KINDS)


def effort(counted: WindowStatistics, rate_hz: float, own: OwnCost) -> Summary:
    """Return a summary of those statistics of a window that do not depend on its samples: the collector's work, and
    counters.

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
        threads=len({thread.key for thread in profile.threads}),
        ends=found.ends,
        trust=found.trust,
        modules=found.modules(diagnostics.problems),
        notes=(*done.notes, *(processor.notes if found.blocks else ()), *processor.missed),
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
    """Return how many samples have interpreter frames that were merged only partly with native frames, by reason."""
    counts = {text: int(np.count_nonzero(window.state & reason)) for reason, text in PARTIAL.items()}
    return {text: count for text, count in counts.items() if count}


SOURCE_BUDGET_S = 3.0
"""Maximum processor time in seconds for source lines and inlined functions of a profile.

Frames that are not reached in this time have no source line, and the summary reports their number.
"""
WAITED_FOR_S = 0.4
"""Maximum processor time in seconds for source lines and inlined functions while the user waits for the end of the
recording. It replaces SOURCE_BUDGET_S.

It is less than the time that the worker then has for all names (worker/worker_client.py), because names are more
important than lines.
"""


def assemble(
    window: Window,
    images: ImageStore,
    names: NameCache,
    name: InterpreterName,
    *,
    title: str,
    rate_hz: float,
    mode: str,
    code: DescribedCode | None = None,
    starts: FunctionStart | None = None,
    known_only: bool = False,
    lines_s: float = SOURCE_BUDGET_S,
    settled: SettledFrameCache | None = None,
) -> Profile:
    """Resolve the frames of a window and make a profile of it.

    Args:
        window: The closed window.
        images: Object files that were read.
        names: Cache of names that outlives the window.
        name: Resolves frames of interpreters.
        title: Title of the profile.
        rate_hz: The requested sampling rate.
        mode: "cpu", "wall" or "offcpu".
        code: Names of code that no file describes.
        starts: Finds the start of a function that has no name.
        known_only: True to use only names that are in the cache, and read no file.
        lines_s: Maximum processor time for source lines, in seconds.
        settled: Cache of frames for which no later lookup finds more names. It is used and extended.
    """
    period_ns = round(1e9 / rate_hz)
    before = names.counts
    symbolizer = Symbolizer(images, names, window.spaces, lines_s, code, name, starts, known_only, None, settled)
    resolved = symbolizer.resolve(window.stacks.frames)
    threads, thread = list_threads(window)
    parent = np.array(window.stacks.parent, np.int32)
    frame = np.array(window.stacks.frame, np.int32)
    values = scale_to_accounts(window, amounts(window, period_ns))
    if mode != "cpu":
        values = limit_to_window(window, values)
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
        cpu=window.cpu,
        summary=Summary(),
    )
    summary = replace(summarize(window, profile, names.diagnostics, rate_hz), names=names.counts - before)
    return inlined_inside(without_tracepoint_frames(replace(profile, summary=summary)))


def without_tracepoint_frames(profile: Profile) -> Profile:
    """Return a profile without the kernel's `__traceiter_sched_*` functions at the inner end of stacks. They call the
    tracers of a tracepoint.

    The stack of a context switch or wakeup begins in such a function while two programs trace it. With one tracer the
    kernel calls the tracer directly (static_call), and the stack begins in the scheduler.
    """
    frames = profile.frames
    traced = [f.kind == FrameKind.KERNEL and f.title.startswith("__traceiter_sched_") for f in frames]
    if not any(traced):
        return profile
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    calls = {above for node, above in enumerate(parent) if node and frames[frame[node]].pc}
    tree = Tree()
    hidden = [node not in calls and traced[frame[node]] for node in range(len(parent))]
    place = np.array(rewrite(parent, lambda node: () if hidden[node] else (frame[node],), tree), np.int32)
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=place[profile.stack],
    )


def amounts(window: Window | Rows, period_ns: int) -> npt.NDArray[np.int64]:
    """Return the two values of each sample of a window, as int64 of shape (n, 2): its number of sampling periods, and
    its nanoseconds.

    A sample with a known length counts as the number of sampling periods in it. The rest of a period is carried over to
    the next sample of the thread, so the sum over a thread matches its time. If all rows are equal, they share one row
    in memory.

    Returns:
        int64 array of shape (n, 2): number of samples, nanoseconds.
    """
    rows = np.flatnonzero(window.length_ns >= 0)
    weight = window.weight
    if len(weight) and not len(rows) and weight.min() == weight.max():
        return np.broadcast_to(np.array([1, int(weight[0]) * period_ns], np.int64), (len(weight), 2))
    values = np.empty((len(weight), 2), np.int64)
    values[:, 0], values[:, 1] = 1, weight * period_ns
    rows = rows[np.argsort(window.thread[rows], kind="stable")]
    if len(rows):
        thread, length_ns = window.thread[rows], window.length_ns[rows]
        total = np.cumsum(length_ns)
        first = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))
        before = np.concatenate([[0], total])[first]
        own = total - np.repeat(before, np.diff(np.append(first, len(rows))))
        periods = (own + period_ns // 2) // period_ns
        values[rows, 1] = length_ns
        values[rows, 0] = np.diff(periods, prepend=0)
        values[rows[first], 0] = periods[first]
    return values


def limit_to_window(window: Window, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values of a window's rows (n, 2), reduced so that no thread has more time than the window is long.

    In recordings by perf_events, waits have their exact lengths, but each sample on a processor stands for one sampling
    period. The number of these samples is random, so a thread's sum may be too large.
    """
    counted = np.flatnonzero(window.length_ns < 0)
    measured = np.flatnonzero((window.length_ns >= 0) & (window.thread >= 0))
    if not (len(counted) and len(measured)):
        return values
    size = int(window.thread.max()) + 1
    thread, ns = window.thread[counted], values[counted, 1]
    room = window.duration_ns - np.bincount(window.thread[measured], values[measured, 1], size)
    share = np.minimum(np.maximum(room, 0) / np.maximum(np.bincount(thread, ns, size), 1), 1)
    limited = values.copy()
    limited[counted, 1] = np.floor(ns * share[thread])
    return limited


def list_threads(window: Window) -> tuple[tuple[ThreadInfo, ...], npt.NDArray[np.int32]]:
    """Return the threads of a window in order of their keys, and for each row (sample) the index of its thread.

    A thread whose samples have several sets of labels is listed once for each set.
    """
    known = {thread.key: thread for thread in window.threads}
    numbers = distinct(window.thread)
    keys = [window.keys[number] for number in numbers.tolist()]
    infos = [known.get(key) or ThreadInfo(key.pid, key.tid, str(key.tid), str(key.tid), key.started) for key in keys]
    order = sorted(range(len(infos)), key=lambda i: infos[i].key)
    place = np.zeros(len(infos), np.int32)
    place[order] = np.arange(len(infos), dtype=np.int32)
    threads, thread = _numbered([infos[i] for i in order]), place[np.searchsorted(numbers, window.thread)]
    if not window.labels.any():
        return threads, thread
    pairs, which = np.unique(np.stack([thread, window.labels]), axis=1, return_inverse=True)
    labelled = [replace(threads[at], labels=window.label_sets[labels]) for at, labels in pairs.T.tolist()]
    return tuple(labelled), which.ravel().astype(np.int32)


def _numbered(threads: list[ThreadInfo]) -> tuple[ThreadInfo, ...]:
    """Return the threads with unique names: #2, #3, ... is appended to the name of a thread, or process, whose tid or
    pid and name another one had before.
    """
    lives: dict[tuple[int, str], list[ProcessKey]] = {}
    for thread in sorted(threads, key=lambda thread: thread.process_started):
        of_name = lives.setdefault((thread.pid, thread.process), [])
        if thread.process_key not in of_name:
            of_name.append(thread.process_key)
    found: list[ThreadInfo] = []
    taken: Counter[tuple[int, int, str]] = Counter()
    for thread in threads:
        nth = lives[thread.pid, thread.process].index(thread.process_key)
        taken[thread.pid, thread.tid, thread.name] += 1
        again = taken[thread.pid, thread.tid, thread.name]
        found.append(replace(thread, name=_nth(thread.name, again), process=_nth(thread.process, nth + 1)))
    return tuple(found)


def _nth(name: str, nth: int) -> str:
    return name if nth == 1 else f"{name} #{nth}"
