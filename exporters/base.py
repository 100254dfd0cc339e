"""What an exporter is: a pure function from a profile to bytes. Sorted, no clock, no random. And what a sink is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Frame, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.model.source_text import SourceText


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """threads: each stack begins with its thread as root frame, below its process where there are several; processes:
    with its process, where there are several. full_paths: modules by path. sources: source files by their names in the
    profile, dearest first, that a page shows. evidence: in pprof, how each frame was found and what the recording did,
    in fields that others pass over. thread_labels: in pprof, threads and labels are labels of samples.
    """

    threads: bool = False
    processes: bool = False
    full_paths: bool = False
    sources: Mapping[str, SourceText] = field(default_factory=dict)
    evidence: bool = False
    thread_labels: bool = True


class Exporter(Protocol):
    """One output format; exporters/registry.py has the list.

    name: as in --format. suffixes: file names that mean it, longest match wins (".speedscope.json" before ".json").
    text: may go to a terminal.
    """

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    @property
    def text(self) -> bool: ...

    def write(self, profile: Profile, out: BinaryIO, options: ExportOptions) -> None: ...


@dataclass(frozen=True, slots=True)
class JournalBeginning:
    """What is known of a window before its first sample."""

    title: str
    start_ns: int
    period_ns: int
    value_types: tuple[ValueType, ...]
    options: Mapping[str, str]

    @classmethod
    def of(cls, profile: Profile) -> JournalBeginning:
        return cls(profile.title, profile.start_ns, profile.period_ns, profile.value_types, profile.options)


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """Columns as Profile has them; thread and stack are indices of what a journal, or a file, has by then."""

    time_ns: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int32]
    stack: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    state: npt.NDArray[np.int32] | None
    cpu: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, profile: Profile) -> SampleColumns:
        return cls(profile.time_ns, profile.thread, profile.stack, profile.values, profile.state, profile.cpu)


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What came to a window since the last part. Indices are of all that came so far. renamed: threads by index that
    have another name by now. parent, frame: new nodes of the tree, as in Profile. named: parts by number, from 0 on,
    with all their frames as they are called by now. summary: of what was done so far; None: as before.
    """

    modules: Sequence[ModuleInfo]
    threads: Sequence[ThreadInfo]
    renamed: Mapping[int, ThreadInfo]
    frames: Sequence[Frame]
    parent: Sequence[int]
    frame: Sequence[int]
    samples: SampleColumns
    named: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    summary: Summary | None = None


class Journal(Protocol):
    """Keeps a window that is under way, so that little is lost if we are killed. Never raises."""

    def add(self, part: JournalPart) -> None: ...

    def close(self) -> None:
        """Returns when all parts are kept."""
        ...


class Sink(Protocol):
    """What receives profile after profile: files, a spool, a server, a terminal."""

    def journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        """Where the window of that number is kept while it is under way, until take() gets all of it; None: nowhere."""
        ...

    def take(self, profile: Profile, number: int) -> None:
        """number: of the window, from 0. May run in another process than the recording: what a sink keeps in memory
        stays there. Raises OutputError.
        """
        ...
