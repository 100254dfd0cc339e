"""Builds a Profile from frames and stacks in any order, and divides a profile that another profiler has pushed: by
service, labels and value type.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError, UsageError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.stack_quality import summary_of_part, without_evidence
from pyprof.model.integer_array_operations import MAX_SUM, largest_sum
from pyprof.model.loss_reason_texts import Note
from pyprof.model.prefix_tree import Tree
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import RESERVED, Labels, labels_of
from pyprof.model.unwind_result import Trust

_MAX_NS = 1 << 62
MAX_NODES = 1 << 22
"""Maximum number of nodes in the tree of stacks of a Builder. So many nodes need about a gigabyte."""
_COLUMNS = 3
NOBODY = ThreadInfo(0, 0, "", "")
"""The thread to which all samples are assigned if a file names no threads."""


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a whole profile that was read from a file of another profiler: title, times, value types.

    Attributes:
        title: Title of the profile.
        value_types: Types of the values.
        notes: Notes for the summary.
        start_ns: Start in nanoseconds since the epoch, 0 if the file does not state it.
        done: Summary of the recording, if the file has one.
        evidence: True if the file states how stacks ended and how frames were found.
    """

    title: str
    value_types: tuple[ValueType, ...]
    notes: tuple[Note, ...]
    start_ns: int = 0
    duration_ns: int = 0
    period_ns: int = 1
    done: Summary = Summary()
    evidence: bool = True

    def check(self) -> None:
        """Check that a Profile can hold the times that a foreign profile states; raise OverflowError otherwise."""
        if not all(0 <= number < _MAX_NS for number in (self.start_ns, self.duration_ns, self.period_ns)):
            raise OverflowError("a time below 0, or too large")


@dataclass(frozen=True, slots=True)
class Parts:
    """The columns of frames, stacks and samples that a Builder has collected, from which it builds a Profile.

    Attributes:
        tree: Tree whose frames are indices into `frames`.
        time_ns: Time of each sample since the profile's start.
        stack: Node of each sample's stack in the tree, as Builder.add_stack() returns it.
        thread: Thread index of each sample.
        values: (samples, value types) Values of each sample.
    """

    frames: tuple[Frame, ...]
    tree: Tree
    modules: tuple[ModuleInfo, ...]
    threads: tuple[ThreadInfo, ...]
    time_ns: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]


def function_frame(name: str, file: str | None = None, line: int = 0, kind: FrameKind = FrameKind.NATIVE) -> Frame:
    """Return a frame of which only the function is known, and no address."""
    return Frame(kind, 0, 0, 0, -1, (Line(name, name, 0, file, line),), Trust.CONTEXT, name)


class StackDigests(Protocol):
    """The protocol of a mapping from digests of stacks to nodes of the stack tree. A dict has it."""

    def get(self, digest: bytes, /) -> int | None: ...
    def __setitem__(self, digest: bytes, stack: int, /) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkLimit:
    """Limits of the work that a reader may do for one file.

    Attributes:
        samples: Maximum number of samples, and of other rows of one kind.
        threads: Maximum number of different threads.
        unknown: Maximum number of stacks that the reader does not know from earlier files.
        calls: Maximum number of calls in unknown stacks.
        frames: Maximum number of frames that the reader does not know from earlier files.
    """

    samples: int
    threads: int
    unknown: int
    calls: int
    frames: int


class WorkLimitExceeded(Exception):
    """A file exceeds the limits of its reader (WorkLimit).

    Attributes:
        of_frames: True if the file has too many unknown frames.
    """

    def __init__(self, of_frames: bool = False) -> None:
        super().__init__()
        self.of_frames = of_frames


class ReadFrame(NamedTuple):
    """A frame as decoded from the first file that has it. In other files its module may have another number or address.

    Attributes:
        digest: Digest that identifies the frame (model/stack_digest.py).
        letters: Number of characters in all texts of the frame.
        memory: Estimated size of this object in bytes.
    """

    frame: Frame
    digest: bytes
    letters: int
    memory: int


class Builder:
    """A collection of frames and samples from one or several files with the same value types; build() makes the
    Profile.

    Attributes:
        modules: Distinct modules of the frames.
        labels: Labels of the threads.
        known: Number of each frame by a key that a reader of several files uses for it in all of them.
        stacks: Node of each stack by a key that a reader of several files uses for it in all of them.
        digests: Digests of frames by their numbers.
        by_digest: Nodes of stacks by their digests (model/stack_digest.py).
        read: Decoded frames by what files state about them. Several builders may share this mapping.
        met: Frames of `read` that this builder has used, None if they are not collected.
        work_limit: Limit of the work that a file may cause, None for no limit.
    """

    def __init__(self) -> None:
        self.modules: list[ModuleInfo] = []
        self._threads: dict[ThreadInfo, int] = {}
        self.labels: set[Labels] = set()
        self.known: dict[Hashable, int] = {}
        self.stacks: dict[bytes, int] = {}
        self.digests: dict[int, bytes] = {}
        self.by_digest: StackDigests = {}
        self.read: dict[Hashable, ReadFrame] = {}
        self.met: dict[Hashable, ReadFrame] | None = None
        self.work_limit: WorkLimit | None = None
        self._module_of: dict[tuple[object, ...], int] = {}
        self._frames: dict[Frame, int] = {}
        self._tree = Tree()
        self._columns = array("q")
        self._values = array("q")

    def check_work(self, threads: int = 0, unknown: int = 0, calls: int = 0, frames: int = 0) -> None:
        """Raise WorkLimitExceeded if these numbers of one file exceed the limits (work_limit)."""
        most = self.work_limit
        if most is not None and frames > most.frames:
            raise WorkLimitExceeded(of_frames=True)
        if most is not None and (threads > most.threads or unknown > most.unknown or calls > most.calls):
            raise WorkLimitExceeded

    @property
    def samples(self) -> int:
        return len(self._columns) // _COLUMNS

    @property
    def nodes(self) -> int:
        return len(self._tree.parent)

    def add_module(self, info: ModuleInfo) -> int:
        """Add a module to the profile and return its index. If the profile has an equal module, return the index of
        that.

        Several imported files may describe the same module. The profile says that its functions and lines are known if
        one of the files had them.
        """
        key = (info.path, info.build_id, info.start, info.end, info.offset)
        index = self._module_of.setdefault(key, len(self.modules))
        if index == len(self.modules):
            self.modules.append(info)
        elif (known := self.modules[index]) != info:
            functions, lines = known.has_functions or info.has_functions, known.has_lines or info.has_lines
            self.modules[index] = replace(known, has_functions=functions, has_lines=lines)
        return index

    def add_frame(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))

    def add_stack(self, frames: Iterable[int], below: int = 0) -> int:
        """Add a stack to the tree below a node, and return the node of its innermost frame. The frames are given
        outermost first.

        Raises:
            OverflowError: The tree has too many nodes.
        """
        path = self.add_path(frames, below)
        return path[-1] if path else below

    def add_path(self, frames: Iterable[int], below: int = 0) -> list[int]:
        """Add a stack as add_stack() does, and return the nodes of all its frames."""
        path = self._tree.add_path(frames, below)
        if self.nodes > MAX_NODES:
            raise OverflowError(f"more than {MAX_NODES:,} different calls")
        return path

    def add_sample(self, stack: int, values: Sequence[int], thread: ThreadInfo = NOBODY, time_ns: int = 0) -> None:
        """Add a sample of one stack to the profile.

        Args:
            time_ns: Time since the profile's start in nanoseconds.

        Raises:
            OverflowError: A number is too large for a Profile.
        """
        self._columns.extend((stack, self.add_thread(thread), time_ns))
        self._values.extend(values)

    def add_samples(
        self, stacks: Sequence[int], threads: Sequence[int], time_ns: int, values: npt.NDArray[np.int64]
    ) -> None:
        """Add many samples to the profile, all of which have the same time.

        Args:
            stacks: Nodes from add_stack().
            threads: Numbers from add_thread().
            values: (samples, value types) Values of each sample.
        """
        rows = np.empty((len(stacks), _COLUMNS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = stacks, threads, time_ns
        self._columns.frombytes(rows.tobytes())
        self._values.frombytes(np.ascontiguousarray(values).tobytes())

    def add_thread(self, thread: ThreadInfo) -> int:
        return self._threads.setdefault(thread, len(self._threads))

    def parts(self, about: About) -> Parts:
        """Return the frames, stacks and samples that were added to the builder.

        Raises:
            OverflowError: A number is too large for a Profile.
        """
        about.check()
        stack, thread, time_ns = np.array(self._columns, np.int64).reshape(-1, _COLUMNS).T
        values = np.array(self._values, np.int64).reshape(-1, len(about.value_types))
        if largest_sum(values) >= MAX_SUM:
            raise OverflowError("values that are too large together")
        tables = tuple(self._frames), self._tree, tuple(self.modules), tuple(self._threads)
        return Parts(*tables, time_ns, stack.astype(np.int32), thread.astype(np.int32), values)

    def build(self, about: About) -> Profile:
        """Return the profile of all frames, stacks and samples that were added.

        Raises:
            OverflowError: A number is too large for a Profile.
        """
        parts = self.parts(about)
        profile = Profile(
            value_types=about.value_types,
            period_ns=max(about.period_ns, 1),
            start_ns=about.start_ns,
            duration_ns=about.duration_ns,
            title=about.title,
            frames=parts.frames,
            parent=np.array(parts.tree.parent, np.int32),
            frame=np.array(parts.tree.frame, np.int32),
            modules=parts.modules,
            threads=parts.threads,
            time_ns=parts.time_ns + about.start_ns,
            stack=parts.stack,
            thread=parts.thread,
            values=parts.values,
            summary=Summary(),
        )
        known = replace(
            about.done, duration_s=round(about.duration_ns / 1e9, 6), notes=(*about.done.notes, *about.notes)
        )
        summary = summary_of_part(known, profile)
        return replace(profile, summary=summary if about.evidence else without_evidence(summary))


SERVICE = ("service_name", "service.name", "service", "job", "app", "comm")
"""Names of labels that name the service of a pushed profile; the first one that is present counts."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PushedProfile:
    """A profile that another profiler has pushed. Its threads have the labels of the push.

    The last value type is the primary one. The first one is the number of samples, if the sender states it.
    """

    service: str
    profile: Profile


def split_labels(pairs: Iterable[tuple[str, str]]) -> tuple[str, Labels]:
    """Split the labels of a pushed profile into its service and all other labels. The sender's internal labels
    (`__name__`) and labels of threads are left out.

    Raises:
        FormatError: A label is not valid.
    """
    given = dict(pairs)
    service = next((given[name] for name in SERVICE if given.get(name)), UNKNOWN)
    kept = {
        name: value
        for name, value in given.items()
        if value and name not in RESERVED and name not in SERVICE[:3] and not name.startswith("__")
    }
    try:
        labels_of({"service": service})
        return service, labels_of(kept)
    except UsageError as error:
        raise FormatError("labels", 0, error.message) from None


def add_labels(profile: Profile, labels: Labels) -> Profile:
    """Add labels to all threads of a profile. An existing label with the same name is replaced.

    Raises:
        FormatError: A label is not valid.
    """
    try:
        threads = [replace(thread, labels=labels_of(dict(thread.labels) | dict(labels))) for thread in profile.threads]
    except UsageError as error:
        raise FormatError("labels", 0, error.message) from None
    return replace(profile, threads=tuple(threads))


def split_by_value_type(profile: Profile) -> Iterator[Profile]:
    """Yield a separate profile for each value type that is not a count. A count that precedes a value type stays with
    it.

    If there are only counts, each becomes a profile.
    """
    kinds = profile.value_types
    amounts = [at for at, kind in enumerate(kinds) if kind.unit != "count"]
    for at in amounts or range(len(kinds)):
        count = next((before for before in reversed(range(at)) if kinds[before].unit == "count"), None)
        columns = [count, at] if count is not None and amounts else [at]
        yield replace(
            profile, value_types=tuple(kinds[column] for column in columns), values=profile.values[:, columns]
        )
