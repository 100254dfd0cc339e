"""A finished profile: an immutable value with everything that an exporter needs.

Stacks are a prefix tree of frames (parents first, node 0 is no frame), and samples are columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.address_space import base_name
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.marker_frames import Mark
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import Labels, ProcessKey, ThreadKey, common, fit
from pyprof.model.unwind_result import Trust

if TYPE_CHECKING:
    from pyprof.comparison.result import Comparison
    from pyprof.model.analysis.call_tree import Call
    from pyprof.model.analysis.function_costs import Cost

_FUNCTIONS = {
    "compare": "pyprof.comparison.compare",
    "render_comparison": "pyprof.exporters.comparison_file",
    "render_profile": "pyprof.exporters.flamegraph",
    "save_comparison": "pyprof.exporters.comparison_file",
    "save_profile": "pyprof.exporters.registry",
}
"""Modules of the functions in higher layers that methods of Profile call, by the function's name. They are imported on
demand, because model/ imports no higher layer.
"""


def find_function(name: str) -> Callable[..., Any]:
    """Import a function of a higher layer and return it, by its name in _FUNCTIONS."""
    function: Callable[..., Any] = getattr(import_module(_FUNCTIONS[name]), name)
    return function


Span: TypeAlias = tuple[int, int]
"""Beginning and end of a time interval, in nanoseconds."""
DataFrame: TypeAlias = Any
"""Type of a data frame: pandas.DataFrame or polars.DataFrame. Neither library needs to be installed."""


class FrameKind(IntEnum):
    """The kind of a frame's code."""

    NATIVE = 0
    INLINE = 1
    INTERPRETER = 2
    KERNEL = 3
    MARKER = 4  # no code: tells what is missing in the stack


@dataclass(frozen=True, slots=True)
class Line:
    """A function at a code address, with its source file and line. An address with inlined functions has several.

    Attributes:
        function: Demangled name.
        system_name: Name in the symbol table, "" for a function without a name but with a known start
            ("libcrypto.so.3!0x1a2b40").
        offset: Bytes from the function's start.
        file: Source file, None if unknown.
        line: Source line, 0 if unknown.
        later: True if it was resolved after the recording (pyprof report --symbols).
    """

    function: str
    system_name: str
    offset: int = 0
    file: str | None = None
    line: int = 0
    later: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One code address of a profile, and the functions at it.

    Attributes:
        kind: Kind of the frame.
        pc: Address (avma) as found on the stack, also for kernel frames; 0 for interpreter frames and markers.
        lookup: Address that names were looked up for: pc, or pc - 1 of a return address.
        rel: pc minus the base of its module. In a profile from a format that states only mappings, the offset in the
            module's file.
        module: Index into Profile.modules, -1 if none.
        lines: Functions, innermost inlined function first; empty if no name is known.
        trust: The source that found the frame.
        title: Text for the whole frame: function, "module!0xstart", "module+0xrel", or the text of a marker.
        mark: The contents of a marker.
        place: For an interpreter frame its function's number in the recording.
    """

    kind: FrameKind
    pc: int
    lookup: int
    rel: int
    module: int
    lines: tuple[Line, ...]
    trust: Trust
    title: str
    mark: Mark | None = None
    place: FunctionPlace | None = None


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """An object file of a profile.

    Attributes:
        path: Path of its file.
        build_id: Lower-case hex, "" if none.
        start: First address (avma) of its executable mapping.
        end: End address of that mapping.
        offset: File offset of that mapping.
        has_functions: True if at least one frame got a name from it.
        has_lines: True if at least one frame got a line from it.
    """

    path: str
    build_id: str
    start: int
    end: int
    offset: int
    has_functions: bool
    has_lines: bool

    @property
    def name(self) -> str:
        """Last part of the path."""
        return base_name(self.path)


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread of a profile, with its process and its labels.

    Attributes:
        pid: Pid of the thread's process.
        tid: The thread's tid.
        name: Name of the thread.
        process: Name of its process.
        started: Start time of the thread in nanoseconds of CLOCK_MONOTONIC, 0 if unknown (see ThreadKey).
        process_started: Start time of the process's first thread.
        labels: Labels that the user or the program gave to the thread's samples.
    """

    pid: int
    tid: int
    name: str
    process: str
    started: int = 0
    process_started: int = 0
    labels: Labels = ()

    @property
    def key(self) -> ThreadKey:
        """The key that distinguishes the thread from other threads with the same tid."""
        return ThreadKey(self.pid, self.tid, self.started)

    @property
    def process_key(self) -> ProcessKey:
        """The key that distinguishes the thread's process from others with the same pid."""
        return ProcessKey(self.pid, self.process_started)


def rename_threads(threads: tuple[ThreadInfo, ...], names: Mapping[tuple[int, int], str]) -> tuple[ThreadInfo, ...]:
    """Return the threads with other names.

    If several threads had the same tid, only the last one is renamed.

    Args:
        threads: The threads.
        names: Names that programs gave to their threads, by (pid, tid).
    """
    last: dict[tuple[int, int], int] = {}
    for t in threads:
        last[t.pid, t.tid] = max(t.started, last.get((t.pid, t.tid), 0))
    return tuple(
        replace(t, name=names.get((t.pid, t.tid), t.name)) if t.started == last[t.pid, t.tid] else t for t in threads
    )


@dataclass(frozen=True, slots=True)
class ValueType:
    """Type and unit of a profile's value, as in pprof: ("samples", "count"), ("cpu", "nanoseconds")."""

    type: str
    unit: str


@dataclass(frozen=True, repr=False)
class Profile:
    """A finished profile: n samples with their stacks, threads and values.

    Attributes:
        value_types: Types of the values of a sample.
        period_ns: Sampling period in nanoseconds.
        start_ns: Beginning in nanoseconds since the epoch.
        duration_ns: Length in nanoseconds.
        title: Title for users.
        frames: The frames.
        parent: (nodes,) int32 parent of each node of the stack tree.
        frame: (nodes,) int32 frame of each node; frame[0] is -1.
        modules: The modules.
        threads: The threads.
        time_ns: (n,) int64 nanoseconds since the epoch. Samples of one thread are in time order.
        stack: (n,) int32 node of the innermost frame.
        thread: (n,) int32 index into threads.
        values: (n, len(value_types)) int64, the primary value last.
        summary: Facts about the recording.
        state: (n,) int32 SampleState, None if it is unknown for all samples.
        cpu: (n,) int32 processor, -1 if unknown; None if it is unknown for all samples.
        options: Fields of RecordOptions as text.
        gaps: Times in which nothing was recorded, since the epoch, in order.
    """

    value_types: tuple[ValueType, ...]
    period_ns: int
    start_ns: int
    duration_ns: int
    title: str
    frames: tuple[Frame, ...]
    parent: npt.NDArray[np.int32]
    frame: npt.NDArray[np.int32]
    modules: tuple[ModuleInfo, ...]
    threads: tuple[ThreadInfo, ...]
    time_ns: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    summary: Summary
    state: npt.NDArray[np.int32] | None = None
    cpu: npt.NDArray[np.int32] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Span, ...] = ()

    def __repr__(self) -> str:
        samples, threads = (
            f"{count:,} {noun}{'s' * (count != 1)}"
            for count, noun in ((len(self.stack), "sample"), (len(self.threads), "thread"))
        )
        return f"<Profile {self.title!r}: {samples} of {threads} in {self.duration_ns / 1e9:.3f} s>"

    def _repr_html_(self) -> str:
        """Return the HTML that Jupyter shows for this profile: the flame graph's page in an <iframe>.

        A page of more than 8 MiB is left out. The HTML is then the repr() of the profile and a sentence about save().
        """
        page: str = find_function("render_profile")(self)
        return page

    @property
    def total(self) -> int:
        """The sum of the primary value (the last value of each sample), such as nanoseconds on processors."""
        return int(self.values[:, -1].sum())

    def top(self, count: int = 10, by: Literal["own", "total"] = "own") -> list[Cost]:
        """Return the most expensive functions, by own cost or by total cost with callees.

        Args:
            count: Maximum number of functions.
            by: "own" or "total".

        Returns:
            Costs in the unit of `total`, most expensive first.

        Raises:
            UsageError: An argument is invalid.
        """
        if count < 0 or by not in ("own", "total"):
            raise UsageError(f"cannot sort the top {count!r} by {by!r}", 'profile.top(10, by="own") or by="total"')
        from pyprof.model.analysis.function_costs import costs

        found = costs(self)
        return found.by_own(count) if by == "own" else found.by_total(count)

    def tree(self) -> Call:
        """Return the tree of calls with their costs. Its root stands for the whole profile."""
        from pyprof.model.analysis.call_tree import call_tree

        return call_tree(self)

    def filter(
        self,
        *,
        pid: int | Iterable[int] | None = None,
        tid: int | Iterable[int] | None = None,
        process: str | re.Pattern[str] | None = None,
        thread: str | re.Pattern[str] | None = None,
        function: str | re.Pattern[str] | None = None,
        module: str | re.Pattern[str] | None = None,
        label: Mapping[str, str | Collection[str]] | None = None,
        exclude: str | re.Pattern[str] | None = None,
        start: float | None = None,
        end: float | None = None,
    ) -> Profile:
        """Return a profile of the samples that meet all given criteria. This profile stays unchanged.

        Args:
            pid: One or several pids.
            tid: One or several tids.
            process: Pattern that re.search() finds in the name of the process.
            thread: Pattern that re.search() finds in the name of the thread.
            function: Pattern in the name of a function anywhere on the stack.
            module: Pattern in the name of a module anywhere on the stack. The module of a Python function is its
                script.
            label: Value of each label, or several values of which one must match.
            exclude: Pattern of a function that must not be on the stack.
            start: Seconds since the profile's beginning.
            end: Seconds since the profile's beginning; `end` itself is excluded.

        Raises:
            UsageError: A pattern is not a regular expression.
        """
        from pyprof.model.analysis import sample_filter as s

        pids, tids = (None if each is None else s.ids(each) for each in (pid, tid))
        names = [(s.compiled(p), field) for p, field in ((process, "process"), (thread, "name")) if p is not None]
        wanted = s.of_threads(
            self,
            lambda info: (
                (pids is None or info.pid in pids)
                and (tids is None or info.tid in tids)
                and all(pattern.search(getattr(info, field)) for pattern, field in names)
                and fit(info.labels, label or {})
            ),
        )
        wanted &= s.between(self, start, end)
        if function is not None:
            wanted &= s.in_function(self, function)
        if exclude is not None:
            wanted &= ~s.in_function(self, exclude)
        if module is not None:
            wanted &= s.in_module(self, module)
        return s.selected(self, wanted)

    def cut(self, start: float | None = None, end: float | None = None) -> Profile:
        """Return a profile of a part of the time.

        Args:
            start: Beginning in seconds since the beginning of this profile.
            end: End in seconds since the beginning of this profile.

        Raises:
            UsageError: There is no time between them.
        """
        from pyprof.model.analysis.sample_filter import cut

        return cut(self, start, end)

    def diff(
        self,
        after: Profile,
        *,
        normalize: Literal["time", "samples", "none"] | None = None,
        per: tuple[float, float] | None = None,
        least: float = 0.01,
        drift: float = 0.2,
    ) -> Comparison:
        """Compare this profile with a later one, function by function, and test which changes are significant.

        Args:
            after: The later profile.
            normalize: "time": costs per second of recording; "samples": shares of all; "none": unchanged. None selects
                time if both have a length.
            per: Units of work, such as requests, that the program did in each profile; instead of `normalize`.
            least: Minimum relative change that is significant.
            drift: Maximum relative change of nearly all functions together that is attributed to machine or load.
                Functions are compared with it. 0 disables it.

        Raises:
            UsageError: The profiles cannot be compared.
        """
        comparison: Comparison = find_function("compare")(self, after, normalize, per, least, drift)
        return comparison

    def save(
        self,
        path: str | PathLike[str],
        format: str | None = None,
        *,
        threads: bool = False,
        processes: bool = False,
        full_paths: bool = False,
    ) -> None:
        """Write the profile to a file atomically: an existing file stays until the new one is complete.

        Args:
            path: Path of the file.
            format: A name for `record -f` (exporters/registry.py); None selects it by the file's suffix.
            threads: True to use the thread as root frame.
            processes: True to use the process as root frame if there are several.
            full_paths: True to name modules by path.

        Raises:
            UsageError: There is no such format.
            OutputError: The file cannot be written.
        """
        save = find_function("save_profile")
        save(self, path, format, threads=threads, processes=processes, full_paths=full_paths)

    def to_dataframe(self, library: Literal["pandas", "polars"] | None = None) -> DataFrame:
        """Return a data frame with one row for each sample.

        The columns are time (UTC), pid, tid, process, thread, function, module, stack, and one for each value, such as
        samples and cpu_ns. Function and module are those in which the sample was taken. `stack` has all functions from
        the outermost on, joined by ";".

        Args:
            library: None selects pandas if it is installed, else polars.

        Raises:
            MissingLibrary: The library is not installed.
        """
        from pyprof.model.analysis.data_frame import data_frame

        return data_frame(self, library)

    @property
    def recorded_ns(self) -> int:
        """The recorded time in nanoseconds: the duration without gaps."""
        return self.duration_ns - sum(end - begin for begin, end in self.gaps)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels that all threads have in common. `threads` has those of each thread."""
        return dict(common(thread.labels for thread in self.threads))

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The pids of all sampled processes, ascending."""
        return tuple(sorted({thread.pid for thread in self.threads}))

    @cached_property
    def has_processes(self) -> bool:
        """True if the profile has more than one process."""
        return len({thread.process_key for thread in self.threads}) > 1

    def path(self, node: int) -> list[Frame]:
        """Return the frames of a stack, from the outermost to the leaf."""
        frames = []
        while node > 0:
            frames.append(self.frames[self.frame[node]])
            node = int(self.parent[node])
        return frames[::-1]

    def totals(self) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
        """Yield (thread index, leaf node, summed values) for each distinct pair of thread and stack, in a stable
        order.
        """
        if not len(self.stack):
            return
        order = np.lexsort((self.stack, self.thread))
        thread, stack = self.thread[order], self.stack[order]
        first = np.flatnonzero(np.append(True, (thread[1:] != thread[:-1]) | (stack[1:] != stack[:-1])))
        sums = np.add.reduceat(self.values[order], first, axis=0)
        yield from zip(thread[first].tolist(), stack[first].tolist(), sums, strict=True)
