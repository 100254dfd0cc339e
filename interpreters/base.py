"""The interface between an interpreter and the rest of the profiler, and the base class of runtimes that are detected
but not read.

An Interpreter object belongs to one recording. It detects its runtime in a process, creates the reader of its frames,
and identifies its own modules. A new interpreter is a folder next to cpython/ and a line in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar, Protocol

from pyprof.interpreters.detection_symbols import KnownSymbols
from pyprof.interpreters.function_table import FunctionTable, NamedCode
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.interpreter_reader_protocols import KernelReader, StackReader
from pyprof.problem_counters import Diagnostics, Finding


class NotBegun(Exception):
    """The process has an interpreter that has not finished its start-up."""


@dataclass(frozen=True)
class LiveProcess:
    """A live process as an interpreter sees it.

    Each callable raises OSError if the process has ended.

    Attributes:
        pid: Process id in pyprof's pid namespace.
        tasks: Returns the tids of the process's threads in pyprof's pid namespace.
        namespace_tid: Translates a tid to the process's own pid namespace.
        address_space: Returns the address space of the process with its current modules.
        perf_map: Returns the beginning of the perf map that the process writes, b"" if there is none.
    """

    pid: int
    tasks: Callable[[], list[int]]
    namespace_tid: Callable[[int], int]
    address_space: Callable[[], AddressSpace]
    perf_map: Callable[[], bytes]

    @cached_property
    def space(self) -> AddressSpace:
        """Return the address space of the process as it was at the first access."""
        return self.address_space()


@dataclass(frozen=True, slots=True)
class Detected:
    """The description of an interpreter that was found in a process.

    Attributes:
        language: Name of the language, as users call it.
        version: Version of the interpreter, "" if it is not known.
        module: Path of the file that holds the interpreter.
        unread: Reason why functions of the language are missing in stacks, "" if they are not.
        stops: Reason why its frames can only be read while a thread is stopped by ptrace (text of make_cause), "" if a
            BPF program can read them.
    """

    language: str
    version: str
    module: str
    unread: str = ""
    stops: str = ""

    @property
    def sentence(self) -> str:
        """One sentence for users that names the interpreter and its file. It gives the reason if functions of the
        language are missing in stacks.
        """
        missing = f": {self.language} functions are missing, {self.unread}" if self.unread else ""
        name = f"{self.language} {self.version}".rstrip()
        return f"it runs {name} in {self.module}{missing}"


class ProcessReader(StackReader, Protocol):
    """A reader of an interpreter's frames in one process. It remains usable after the process has called exec."""

    @property
    def module(self) -> str:
        """Path of the module that contains the interpreter, "" while none runs."""
        ...

    @property
    def lockless(self) -> bool:
        """True if the interpreter has no global lock (GIL)."""
        ...

    @property
    def names(self) -> dict[int, str]:
        """Names that the interpreter gave to threads of the process, by tid."""
        ...

    def read_names(self) -> None:
        """Read from the process the names that the interpreter gave to its threads, and store them in `names`."""
        ...

    def local_values(self, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """Read the local variables of a thread's current interpreter frames.

        Returns:
            (frame, {variable name: bounded repr}) for each frame, innermost first.
        """
        ...

    def kernel_reader(self) -> KernelReader | None:
        """Return the reader of frames that a BPF program copies in the kernel, or None if the kernel cannot copy
        them.
        """
        ...


@dataclass(frozen=True)
class InterpreterContext:
    """The context that an interpreter shares with the rest of a recording.

    Attributes:
        symbols: Cache of searches for interpreters' symbols in object files.
        diagnostics: Counters of the recording.
        book: Table of the interpreter functions that the recording has seen.
        follow_tasks: True to show below an asyncio task's own functions the coroutines of the tasks that await it
            (`--async`).
        stack_size: Maximum size of a stack copy in bytes (`--stack-size`).
    """

    symbols: KnownSymbols
    diagnostics: Diagnostics
    book: FunctionTable
    follow_tasks: bool = False
    stack_size: int = 1 << 20


class Interpreter:
    """One kind of interpreter in one recording. This base class detects a runtime whose functions are not read.

    Attributes:
        language: Name of the language, as users call it.
        evaluators: Symbol prefixes of the native functions that run the interpreter's code. A stack with such a
            function but without any function of the language is incomplete.
        hint: Command-line option that makes the functions appear, "" if there is none.
    """

    language: ClassVar[str]
    evaluators: ClassVar[tuple[str, ...]]
    hint: ClassVar[str] = ""

    def __init__(self, recording: InterpreterContext) -> None:
        self.recording = recording

    def detect(self, process: LiveProcess) -> Detected | None:
        """Return the description of this kind of interpreter if it runs in the process, else None.

        Raises:
            NotBegun: The interpreter has not finished its start-up.
            OSError: The process has ended.
            FormatError: The interpreter's own description of itself is broken.
        """
        raise NotImplementedError

    def open_reader(self, process: LiveProcess) -> ProcessReader | None:
        """Return a reader of the process's interpreter frames, or None if this kind of interpreter is never read."""
        return None

    def is_own(self, module: str) -> bool:
        """Return True if a module with this file name is part of the interpreter itself. Views may then hide its native
        frames.
        """
        return False

    def find_compiled_code(self, name: str) -> NamedCode | None:
        """Return the function that generated code with this symbol name runs, or None if the interpreter did not name
        it.
        """
        return None

    def describe(self, process: LiveProcess) -> Iterator[Finding]:
        """Yield what `pyprof doctor` reports about the interpreter; nothing if it does not run in the process.

        Raises:
            OSError: The process has ended.
            FormatError: The interpreter's own description of itself is broken.
        """
        try:
            found = self.detect(process)
        except NotBegun:
            return
        if found is not None:
            yield Finding(not found.unread, found.sentence)
