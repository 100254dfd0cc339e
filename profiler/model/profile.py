"""A finished profile: everything that an exporter needs, and nothing that it could change.

Stacks are a prefix tree over frames (parents first, node 0 is no frame), samples are columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyprof.errors import UsageError
from pyprof.model.interpreter import FunctionPlace
from pyprof.model.keys import ProcessKey, ThreadKey
from pyprof.model.labels import Labels, common, fit
from pyprof.model.markers import Mark
from pyprof.model.modules import base_name
from pyprof.model.summary import Summary
from pyprof.model.walk import Trust
from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.comparison.result import Comparison
    from pyprof.model.call_tree import Call
    from pyprof.model.functions import Cost

Span: TypeAlias = tuple[int, int]
"""From and to, in nanoseconds."""
DataFrame: TypeAlias = Any
"""pandas.DataFrame or polars.DataFrame: neither needs to be installed."""


class FrameKind(IntEnum):
    NATIVE = 0
    INLINE = 1
    INTERPRETER = 2
    KERNEL = 3
    MARKER = 4  # no code: says that the stack is cut off here


@dataclass(frozen=True, slots=True)
class Line:
    """One function at one address. function: demangled; system_name: as the symbol table has it, "" of a function that
    has no name but a known start ("libcrypto.so.3!0x1a2b40").

    file: None where not known; line: 0 where not known. offset: bytes from the function's start. later: looked up after
    the recording (pyprof report --symbols).
    """

    function: str
    system_name: str
    offset: int = 0
    file: str | None = None
    line: int = 0
    later: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One address and its names.

    pc: avma as found on the stack, of the kernel's frames too, 0 of an interpreter's and of a marker; lookup: avma
    looked up (pc, or pc - 1 of a return address); rel: pc minus the base of its module, or, from files that know
    mappings only, its place in the module's file. module: index into Profile.modules, -1 if none. lines: innermost
    inline function first, () if no name is known. title: what to show for the whole frame: function, "module!0xstart",
    "module+0xrel", or a marker's text. mark: what a marker says. place: of an interpreter's frame, as the recording
    numbers functions.
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
    """A module as the profile names it. start, end, offset: avma span of its executable mapping and its file offset.

    build_id: lower-case hex, "" if none. has_functions, has_lines: at least one frame got a name, a line.
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
        return base_name(self.path)


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """process: name of the thread's process. started: see ThreadKey; process_started: of the process's first thread.
    labels: of the recording that it is from.
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
        """Tells it from other threads that had its number."""
        return ThreadKey(self.pid, self.tid, self.started)

    @property
    def process_key(self) -> ProcessKey:
        """Tells its process from others that had its number."""
        return ProcessKey(self.pid, self.process_started)


@dataclass(frozen=True, slots=True)
class ValueType:
    """type and unit as in pprof: ("samples", "count"), ("cpu", "nanoseconds")."""

    type: str
    unit: str


@dataclass(frozen=True, repr=False)
class Profile:
    """n samples over t threads.

    parent, frame: (nodes,) int32, the prefix tree; frame[0] is -1. time_ns: (n,) int64 since the epoch; stack: (n,)
    int32 node of the leaf; thread: (n,) int32 index into threads; values: (n, len(value_types)) int64, the primary
    value last. Samples of one thread are in time order. start_ns: since the epoch. state: (n,) int32 SampleState; cpu:
    (n,) int32, the processor, -1 where nobody said; None: known of no sample. options: fields of RecordOptions as text.
    gaps: when nothing was recorded in between, since the epoch, in order.
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
        """What a notebook shows: the flame graph's page in a frame, or one line if the page has more than 8 MiB."""
        from pyprof.exporters.notebook import of_profile

        return of_profile(self)

    @property
    def total(self) -> int:
        """The primary value of all samples together, such as nanoseconds on processors."""
        return int(self.values[:, -1].sum())

    def top(self, count: int = 10, by: Literal["own", "total"] = "own") -> list[Cost]:
        """The functions that cost most, in themselves ("own") or with what they call ("total"), dearest first. Costs
        are in the unit of `total`, of which they are a part. Raises UsageError.
        """
        if count < 0 or by not in ("own", "total"):
            raise UsageError(f"there are no top {count!r} by {by!r}", 'profile.top(10, by="own") or by="total"')
        from pyprof.model.functions import costs

        found = costs(self)
        return found.by_own(count) if by == "own" else found.by_total(count)

    def tree(self) -> Call:
        """Who calls what at which cost. Its root stands for the whole profile."""
        from pyprof.model.call_tree import call_tree

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
        """A profile of the samples that meet every criterion given; this one stays as it is.

        pid, tid: one or several. process, thread: found in the name, as re.search() does. function, module: found in
        the name of one anywhere on the stack; the module of a Python function is its script. label: the value of each
        label, or several of which one is enough. exclude: a function that must be nowhere on the stack. start, end:
        seconds since the profile's beginning; end itself is outside. Raises UsageError.
        """
        from pyprof.model import selected as s

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
        """A profile of a part of the time only: it begins at start and lasts until end, seconds since the beginning of
        this one. Raises UsageError where no time is between them.
        """
        from pyprof.model.selected import cut

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
        """What changed from this profile to another one, function by function, and which changes are more than chance.

        normalize: "time": costs per second of recording; "samples": shares of all; "none": as they are; None: by time
        where both last some. per: instead of it the units of work that the program did in either, such as requests.
        least: a change by a smaller part is never significant. drift: a change of nearly all functions together by up
        to this part is the machine's or the load's, and functions are judged beside it; 0: there is none. Raises
        UsageError where they cannot be compared.
        """
        from pyprof.comparison.compare import compare

        return compare(self, after, normalize, per, least, drift)

    def save(
        self,
        path: str | PathLike[str],
        format: str | None = None,
        *,
        threads: bool = False,
        processes: bool = False,
        full_paths: bool = False,
    ) -> None:
        """Write the profile to a file, in one step: what was there stays until the new one is whole.

        format: a name that `record -f` takes (exporters/registry.py); None: by the suffix of the file.
        threads, processes: the thread, the process as root frame, the latter where there are several. full_paths:
        modules by path. Raises UsageError for a format that there is not, OutputError.
        """
        from pyprof.exporters.save import save

        save(self, path, format, threads=threads, processes=processes, full_paths=full_paths)

    def to_dataframe(self, library: Literal["pandas", "polars"] | None = None) -> DataFrame:
        """One row a sample: time (UTC), pid, tid, process, thread, function and module where it was taken, stack (all
        functions from the outermost on, joined by ";"), and a column for each value, such as samples and cpu_ns.

        library: None: pandas if it is installed, else polars. Raises MissingLibrary.
        """
        from pyprof.model.table import data_frame

        return data_frame(self, library)

    @property
    def recorded_ns(self) -> int:
        """How long it was recorded: its duration without gaps."""
        return self.duration_ns - sum(end - begin for begin, end in self.gaps)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels that all threads have. Those of one are in `threads`."""
        return dict(common(thread.labels for thread in self.threads))

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The pids, ascending."""
        return tuple(sorted({thread.pid for thread in self.threads}))

    @cached_property
    def has_processes(self) -> bool:
        """Is there more than one?"""
        return len({thread.process_key for thread in self.threads}) > 1

    def path(self, node: int) -> list[Frame]:
        """Frames from the outermost to the leaf."""
        frames = []
        while node > 0:
            frames.append(self.frames[self.frame[node]])
            node = int(self.parent[node])
        return frames[::-1]

    def totals(self) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
        """(thread index, leaf node, summed values) of each distinct pair, in a stable order."""
        if not len(self.stack):
            return
        order = np.lexsort((self.stack, self.thread))
        thread, stack = self.thread[order], self.stack[order]
        first = np.flatnonzero(np.append(True, (thread[1:] != thread[:-1]) | (stack[1:] != stack[:-1])))
        sums = np.add.reduceat(self.values[order], first, axis=0)
        yield from zip(thread[first].tolist(), stack[first].tolist(), sums, strict=True)
