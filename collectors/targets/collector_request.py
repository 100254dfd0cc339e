"""The request for a collector: the processes, the options, and what collectors of a recording share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyprof.collectors.targets.selection import Selection
from pyprof.collectors.thread_start_times import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.model.interpreter_state import KernelReader, StackReader
from pyprof.options import CollectOptions
from pyprof.records import dataclass, field, replace


class InterpreterReaders(Protocol):
    """The readers of interpreters in the recorded processes, which a collector calls.

    Attributes:
        follow_tasks: See interpreters.base.InterpreterContext.
    """

    follow_tasks: bool

    def reader(self, pid: int) -> StackReader:
        """Return a reader that copies interpreter frames in stops."""
        ...

    def kernel_reader(self, pid: int) -> KernelReader:
        """Return a reader that locates interpreter frames, and decodes what a program in the kernel has copied."""
        ...

    def needs_stops(self, pid: int) -> str | None:
        """Return why a process needs stops, "" if it does not, None if that is not known yet."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A request to open a collector: the processes, the options, and what collectors share.

    Attributes:
        selection: The processes.
        options: Options of the recording.
        diagnostics: Counts problems.
        interpreters: Readers of interpreters, or None.
        program: Path of the program that the process will execute, "" for none. Only the new program is recorded.
        frames_note: Note for the summary if samples by stops have frames of an interpreter, "" for none.
        ids: Identifiers shared by all collectors of the recording.
    """

    selection: Selection
    options: CollectOptions
    diagnostics: Diagnostics
    interpreters: InterpreterReaders | None = None
    program: str = ""
    frames_note: str = ""
    ids: Identities = field(default_factory=Identities)

    @property
    def launched(self) -> bool:
        return bool(self.program)

    @property
    def readers(self) -> Callable[[int], StackReader] | None:
        """Function that returns the reader of a process's interpreter by pid; None if no interpreter is wanted."""
        return self.interpreters.reader if self.interpreters else None

    def with_processes(self, pids: tuple[int, ...]) -> Selection:
        """Return the selection of processes of this request, with other pids."""
        return replace(self.selection, pids=pids)
