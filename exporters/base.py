"""The interfaces of exporters, journals and sinks.

An exporter is a pure function from a profile to bytes: its output is sorted and depends on no clock or random number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.profile import Frame, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary

if TYPE_CHECKING:
    from pyprof.model.analysis.line_costs import SourceText


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options that all exporters share.

    Attributes:
        threads: Let each stack begin with its thread as root frame, below its process if there are several processes.
        processes: Let each stack begin with its process as root frame if there are several processes.
        full_paths: Name modules by their paths instead of their file names.
        sources: Source files by their names in the profile, heaviest first, for a page to show.
        evidence: Write into pprof how each frame was found and what the recording did, in fields that other readers
            skip.
        thread_labels: Write threads and labels as labels of pprof samples.
    """

    threads: bool = False
    processes: bool = False
    full_paths: bool = False
    sources: Mapping[str, SourceText] = field(default_factory=dict)
    evidence: bool = False
    thread_labels: bool = True


class Exporter(Protocol):
    """The interface of one output format. exporters/registry.py has the list of formats.

    Attributes:
        name: Name of the format for --format.
        suffixes: File name suffixes; the longest match wins (".speedscope.json" before ".json").
        text: True if the format may be written to a terminal.
    """

    @property
    def name(self) -> str:
        """Name of the format for --format."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name suffixes that select the format."""
        ...

    @property
    def text(self) -> bool:
        """True if the format may be written to a terminal."""
        ...

    def write(self, profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
        """Write a profile in this format to an open binary file."""
        ...


@dataclass(frozen=True, slots=True)
class JournalBeginning:
    """The first entry of the journal of a profile window: all that is known about the window before its first
    sample.
    """

    title: str
    start_ns: int
    period_ns: int
    value_types: tuple[ValueType, ...]
    options: Mapping[str, str]

    @classmethod
    def from_profile(cls, profile: Profile) -> JournalBeginning:
        """Return the facts about a profile with which its journal begins."""
        return cls(profile.title, profile.start_ns, profile.period_ns, profile.value_types, profile.options)


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """Columns of samples for a journal or a recording file, as in Profile. The columns `thread` and `stack` have
    indices into all threads and stacks that were written so far.
    """

    time_ns: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int32]
    stack: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    state: npt.NDArray[np.int32] | None
    cpu: npt.NDArray[np.int32] | None

    @classmethod
    def from_profile(cls, profile: Profile) -> SampleColumns:
        """Return the columns of all samples of a profile."""
        return cls(profile.time_ns, profile.thread, profile.stack, profile.values, profile.state, profile.cpu)


@dataclass(frozen=True, slots=True)
class JournalPart:
    """The samples, stacks and names that a profile window has gained since the previous part of its journal. Indices
    count all entries of the window from its beginning.

    Attributes:
        renamed: New values of threads whose name or other properties have changed, by index.
        parent: Parents of the new nodes of the stack tree, as in Profile.
        frame: Frames of the new nodes, as in Profile.
        named: All frames of an earlier part with their current names, by the number of that part, from 0 on.
        summary: Summary of the window so far; None means unchanged.
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
    """A store for an unfinished profile window, so that little is lost if the process is killed. Its methods never
    raise.
    """

    def add_part(self, part: JournalPart) -> None:
        """Store another part of the window's data."""
        ...

    def close(self) -> None:
        """Wait until all parts of the window are stored, and close the journal."""
        ...


class Sink(Protocol):
    """A receiver of profiles, one for each window: files, a spool, a server, or a terminal."""

    def open_journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        """Open the journal that stores an unfinished window until receive_profile() gets the finished one. Return None
        if no journal is kept.
        """
        ...

    def receive_profile(self, profile: Profile, number: int) -> None:
        """Receive the profile of a finished window.

        The process may be another one than that of the recording. What a sink keeps in memory stays in the process.

        Args:
            number: Number of the window, from 0.

        Raises:
            OutputError: The profile cannot be delivered.
        """
        ...
