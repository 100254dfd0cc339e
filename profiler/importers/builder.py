"""From frames and stacks in any order to a Profile."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.columns import MOST_SUM, largest_sum
from pyprof.model.contents import summary_of_part, without_evidence
from pyprof.model.labels import Labels
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.model.tree import Tree
from pyprof.model.walk import Trust
from pyprof.records import dataclass, replace

_MOST_NS = 1 << 62
MOST_NODES = 1 << 22
"""Of the tree of stacks: about a gigabyte."""
_COLUMNS = 3
NOBODY = ThreadInfo(0, 0, "", "")
"""Of files that name no thread."""


@dataclass(frozen=True, slots=True)
class About:
    """What a file says as a whole. start_ns: since the epoch; 0 where it does not say. note: for the reader. done: what
    the recording did, where the file says so. evidence: does it say how stacks ended, and how frames were found?
    """

    title: str
    value_types: tuple[ValueType, ...]
    note: str
    start_ns: int = 0
    duration_ns: int = 0
    period_ns: int = 1
    done: Summary = Summary()
    evidence: bool = True

    def check(self) -> None:
        """Raises OverflowError for numbers that no Profile holds."""
        if not all(0 <= number < _MOST_NS for number in (self.start_ns, self.duration_ns, self.period_ns)):
            raise OverflowError("a time below 0, or too large")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a Builder has. tree: of frames, by their indices. Columns of the samples: time_ns since the file's
    beginning, stack (what the Builder's stack() gives), thread (an index), values (samples, types).
    """

    frames: tuple[Frame, ...]
    tree: Tree
    modules: tuple[ModuleInfo, ...]
    threads: tuple[ThreadInfo, ...]
    time_ns: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]


def named(name: str, file: str | None = None, line: int = 0, kind: FrameKind = FrameKind.NATIVE) -> Frame:
    """A frame of which only the function is known."""
    return Frame(kind, 0, 0, 0, -1, (Line(name, name, 0, file, line),), Trust.CONTEXT, name)


class KnownDigests(Protocol):
    """Numbers of stacks by their digests; a dict is one."""

    def get(self, digest: bytes, /) -> int | None: ...
    def __setitem__(self, digest: bytes, stack: int, /) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LittleWork:
    """Samples (and other rows of one kind), different threads, stacks that are not known, their calls, and frames that
    are not, of which a reader reads no more.
    """

    samples: int
    threads: int
    unknown: int
    calls: int
    frames: int


class MuchWork(Exception):
    """A file has more than a reader was to read. of_frames: more frames that are not known."""

    def __init__(self, of_frames: bool = False) -> None:
        super().__init__()
        self.of_frames = of_frames


class ReadFrame(NamedTuple):
    """A frame of a file, of the first one that had it: in others its module may have another number, and be elsewhere.
    digest: see model/stack_digest.py. letters: of all its texts. memory: bytes that it needs, an estimate.
    """

    frame: Frame
    digest: bytes
    letters: int
    memory: int


class Builder:
    """Takes frames and samples of one file or of several with the same value types; build() is the Profile. modules:
    those that frames refer to, each once. samples, nodes: how many there are so far. labels: of threads. known, stacks:
    for a reader of several files: numbers of frames and of stacks by what tells them apart in such files. digests: of
    frames by their numbers; by_digest: stacks (model/stack_digest.py). read: frames by what files say of them, which
    other builders may share; met: those of them that this one has, None if nobody asks. little: what its reader may do;
    None: all.
    """

    def __init__(self) -> None:
        self.modules: list[ModuleInfo] = []
        self._threads: dict[ThreadInfo, int] = {}
        self.labels: set[Labels] = set()
        self.known: dict[Hashable, int] = {}
        self.stacks: dict[bytes, int] = {}
        self.digests: dict[int, bytes] = {}
        self.by_digest: KnownDigests = {}
        self.read: dict[Hashable, ReadFrame] = {}
        self.met: dict[Hashable, ReadFrame] | None = None
        self.little: LittleWork | None = None
        self._module_of: dict[tuple[object, ...], int] = {}
        self._frames: dict[Frame, int] = {}
        self._tree = Tree()
        self._columns = array("q")
        self._values = array("q")

    def check_work(self, threads: int = 0, unknown: int = 0, calls: int = 0, frames: int = 0) -> None:
        """Of one file, so far: see LittleWork. Raises MuchWork."""
        most = self.little
        if most is not None and frames > most.frames:
            raise MuchWork(of_frames=True)
        if most is not None and (threads > most.threads or unknown > most.unknown or calls > most.calls):
            raise MuchWork

    @property
    def samples(self) -> int:
        return len(self._columns) // _COLUMNS

    @property
    def nodes(self) -> int:
        return len(self._tree.parent)

    def module(self, info: ModuleInfo) -> int:
        """Its index. It has names and lines if it has any in one of the files."""
        key = (info.path, info.build_id, info.start, info.end, info.offset)
        index = self._module_of.setdefault(key, len(self.modules))
        if index == len(self.modules):
            self.modules.append(info)
        elif (known := self.modules[index]) != info:
            functions, lines = known.has_functions or info.has_functions, known.has_lines or info.has_lines
            self.modules[index] = replace(known, has_functions=functions, has_lines=lines)
        return index

    def frame(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))

    def stack(self, frames: Iterable[int], below: int = 0) -> int:
        """The node of frames, outermost first, below a node. Raises OverflowError where there are too many."""
        for frame in frames:
            below = self._tree.child(below, frame)
        if self.nodes > MOST_NODES:
            raise OverflowError(f"more than {MOST_NODES:,} different calls")
        return below

    def sample(self, stack: int, values: Sequence[int], thread: ThreadInfo = NOBODY, time_ns: int = 0) -> None:
        """time_ns: since the file's beginning. Raises OverflowError for numbers that no Profile holds."""
        self._columns.extend((stack, self.thread(thread), time_ns))
        self._values.extend(values)

    def add(self, stacks: Sequence[int], threads: Sequence[int], time_ns: int, values: npt.NDArray[np.int64]) -> None:
        """Many samples at once, of one time. threads: numbers of thread()."""
        rows = np.empty((len(stacks), _COLUMNS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = stacks, threads, time_ns
        self._columns.frombytes(rows.tobytes())
        self._values.frombytes(np.ascontiguousarray(values).tobytes())

    def thread(self, thread: ThreadInfo) -> int:
        return self._threads.setdefault(thread, len(self._threads))

    def parts(self, about: About) -> Parts:
        """Raises OverflowError for numbers that no Profile holds."""
        about.check()
        stack, thread, time_ns = np.array(self._columns, np.int64).reshape(-1, _COLUMNS).T
        values = np.array(self._values, np.int64).reshape(-1, len(about.value_types))
        if largest_sum(values) >= MOST_SUM:
            raise OverflowError("values that are too large together")
        tables = tuple(self._frames), self._tree, tuple(self.modules), tuple(self._threads)
        return Parts(*tables, time_ns, stack.astype(np.int32), thread.astype(np.int32), values)

    def build(self, about: About) -> Profile:
        """Raises OverflowError for numbers that no Profile holds."""
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
        known = replace(about.done, duration_s=round(about.duration_ns / 1e9, 6), notes=(*about.done.notes, about.note))
        summary = summary_of_part(known, profile)
        return replace(profile, summary=summary if about.evidence else without_evidence(summary))
