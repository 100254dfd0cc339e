"""What an interpreter is to the rest of the profiler, and what one is that is only recognised.

An Interpreter belongs to one recording. It says whether it runs in a process, gives the reader of its frames, and says
which modules are its own. A new interpreter is a folder beside cpython/ and a line in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar, Protocol

from pyprof.diagnostics import Diagnostics, Finding
from pyprof.interpreters.code_book import CodeBook, NamedCode
from pyprof.interpreters.symbols import KnownSymbols
from pyprof.model.interpreter import FunctionPlace, KernelReader, StackReader
from pyprof.model.modules import AddressSpace
from pyprof.records import dataclass


class NotBegun(Exception):
    """There is an interpreter, and it has not begun to run, or not settled."""


@dataclass(frozen=True)
class LiveProcess:
    """A process as an interpreter asks for it. Each callable raises OSError where the process has ended.

    tasks: its tids. namespace_tid: a tid as the process's own pid namespace counts it. address_space: its modules now.
    perf_map: the head of the perf map that it writes, b"" if there is none.
    """

    pid: int
    tasks: Callable[[], list[int]]
    namespace_tid: Callable[[int], int]
    address_space: Callable[[], AddressSpace]
    perf_map: Callable[[], bytes]

    @cached_property
    def space(self) -> AddressSpace:
        """Its modules as they were at the first look."""
        return self.address_space()


@dataclass(frozen=True, slots=True)
class Detected:
    """An interpreter in a process.

    Attributes:
        version: "" if it is not known.
        module: Path of the file that holds it.
        unread: Why its functions are not in the stacks, "" if they are.
        stops: One sentence, why its functions need stops; "" if they do not.
    """

    language: str
    version: str
    module: str
    unread: str = ""
    stops: str = ""

    @property
    def sentence(self) -> str:
        """What it is, where it is, and that its functions are missing if they are."""
        missing = f": {self.language} functions are missing, {self.unread}" if self.unread else ""
        name = f"{self.language} {self.version}".rstrip()
        return f"it runs {name} in {self.module}{missing}"


class ProcessReader(StackReader, Protocol):
    """Reads an interpreter's frames in one process, whichever programs it comes to run."""

    @property
    def module(self) -> str:
        """Path of the module that holds the interpreter, "" while none runs."""
        ...

    @property
    def lockless(self) -> bool:
        """Does the interpreter work without a global lock?"""
        ...

    @property
    def names(self) -> dict[int, str]:
        """tid -> name, of the threads that the interpreter has named."""
        ...

    def read_names(self) -> None:
        """Learn the names of threads as they are now."""
        ...

    def local_values(self, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """(frame, name -> bounded repr) of the frames of a thread as they are now, innermost first."""
        ...

    def in_kernel(self) -> KernelReader | None:
        """Reads what a program in the kernel copies of its frames; None where none can."""
        ...


@dataclass(frozen=True)
class InterpreterContext:
    """What an interpreter shares with the rest of a recording. symbols: what files have. follow_tasks: a task's
    functions stand below those of the tasks that await it. stack_size: as --stack-size, bytes.
    """

    symbols: KnownSymbols
    diagnostics: Diagnostics
    book: CodeBook
    follow_tasks: bool = False
    stack_size: int = 1 << 20


class Interpreter:
    """One kind of interpreter in one recording. As it stands here it is recognised, and its functions are not read.

    language: what users call it. evaluators: beginnings of the symbols of the native functions that run its code: where
    one is on a stack and no function of the language is, functions are missing. remedy: the command that has them, ""
    if none has.
    """

    language: ClassVar[str]
    evaluators: ClassVar[tuple[str, ...]]
    remedy: ClassVar[str] = ""

    def __init__(self, recording: InterpreterContext) -> None:
        self.recording = recording

    def detect(self, process: LiveProcess) -> Detected | None:
        """None if it does not run there. Raises NotBegun, OSError, FormatError."""
        raise NotImplementedError

    def reader(self, process: LiveProcess) -> ProcessReader | None:
        """None where it has no frames to give, in whatever process."""
        return None

    def is_own(self, module: str) -> bool:
        """Is a module of this file name part of the interpreter? Its native frames then say less than its functions."""
        return False

    def compiled(self, name: str) -> NamedCode | None:
        """The function that generated code of this name runs, None if the name is not the interpreter's."""
        return None

    def describe(self, process: LiveProcess) -> Iterator[Finding]:
        """What `pyprof doctor` says of it. Nothing where it does not run. Raises OSError, FormatError."""
        try:
            found = self.detect(process)
        except NotBegun:
            return
        if found is not None:
            yield Finding(not found.unread, found.sentence)
