"""What is asked of a collector: which processes, how, and what it shares with others of the same recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyprof.collectors.targets.selection import Selection
from pyprof.collectors.thread_lives import Identities
from pyprof.diagnostics import Diagnostics
from pyprof.errors import PyprofError
from pyprof.model.interpreter import KernelReader, StackReader
from pyprof.options import CollectOptions
from pyprof.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class CollectorTarget:
    """What a collector is asked about before it is opened. pid: one of the processes, 0 for this machine in general.
    everything: all processes are recorded.
    """

    pid: int = 0
    everything: bool = False


class InterpreterReaders(Protocol):
    """What is known of the interpreters in processes. follow_tasks: see interpreters.base.InterpreterContext."""

    follow_tasks: bool

    def reader(self, pid: int) -> StackReader:
        """Copies their frames in stops."""
        ...

    def kernel_reader(self, pid: int) -> KernelReader:
        """Says where their frames are, and what a program in the kernel has copied of them."""
        ...

    def needs_stops(self, pid: int) -> str | None:
        """Why stops are wanted, "" if they are not, None if that is not known yet."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """selection: the processes. program: path of the program that the process is to become, when batches() is asked for
    at the latest, "" if it is to become none; that one is recorded. by_name: the user asked for this collector: it does
    what it can, and no other takes its place for a program's sake. refusals: why collectors that come before it are not
    used. ids: shared by all collectors of the recording.
    """

    selection: Selection
    options: CollectOptions
    diagnostics: Diagnostics
    interpreters: InterpreterReaders | None = None
    program: str = ""
    by_name: bool = False
    refusals: tuple[PyprofError, ...] = ()
    ids: Identities = field(default_factory=Identities)

    @property
    def launched(self) -> bool:
        return bool(self.program)

    @property
    def pid(self) -> int:
        """The first of the processes."""
        return self.selection.pids[0]

    @property
    def target(self) -> CollectorTarget:
        return CollectorTarget(self.pid, self.selection.everything)

    @property
    def readers(self) -> Callable[[int], StackReader] | None:
        """Makes the reader of a process's interpreter, by pid."""
        return self.interpreters.reader if self.interpreters else None

    def of(self, pids: tuple[int, ...]) -> Selection:
        """The selection as if it had been of these."""
        return replace(self.selection, pids=pids)
