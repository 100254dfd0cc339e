"""The interpreters of a recording's processes: readers of their frames, and names of their functions.

The collector gets a reader for each process, and the symbolizer gets the names. A recording
of a command that is likely to start a Python interpreter prepares its inspection before the command starts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Set

from pyprof.collectors.linux import procfs
from pyprof.errors import FormatError
from pyprof.interpreters.base import Detected, InterpreterContext, LiveProcess, NotBegun
from pyprof.interpreters.detection_symbols import KnownSymbols, ReadSymbols
from pyprof.interpreters.function_table import FunctionTable, NamedCode
from pyprof.interpreters.registry import Interpreters, KernelReaders, ProcessReaders
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import Module
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.interpreter_reader_protocols import KernelReader, StackReader
from pyprof.model.profile import Line, ThreadInfo, rename_threads
from pyprof.objfile.byte_source import open_regular
from pyprof.options import DEFAULT_STACK_SIZE
from pyprof.problem_counters import Diagnostics, Finding

_MAP_HEAD = 1 << 20
_NEVER_SAMPLED = -(1 << 40)
"""First AddressSpace.id of address spaces that are inspected but never sampled. Further ones count downwards."""


_OWN = 1 << 30
"""First number of the interpreter functions that this process finds, if another process reads frames, too. The
functions of the other process have lower numbers.
"""


_FIRST_LINE = 256
"""Number of bytes of a script's first line ("#!") that the kernel reads."""


@dataclass(frozen=True, slots=True)
class InterpreterNews:
    """The changes of a recording's interpreters that the sampler, which reads interpreter frames, sends to the worker,
    which resolves names.

    Attributes:
        codes: New interpreter functions (code objects), by number.
        gone: Numbers of functions that occur in no later frame.
        modules: Paths of all modules that contain an interpreter.
        lockless: True if one of the interpreters works without a global lock.
    """

    codes: Mapping[int, NamedCode] = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    modules: frozenset[str] = frozenset()
    lockless: bool = False


class Runtimes:
    """The interpreters of the processes of one recording: readers of their frames, and names of their functions.

    Attributes:
        processes: Readers by pid.
        book: Names of all functions.
        follow_tasks: True to show the asyncio tasks that await the running one.
        sent: Functions that another process has found and sent by update().
    """

    def __init__(
        self,
        symbols: ReadSymbols,
        diagnostics: Diagnostics,
        follow_tasks: bool = False,
        stack_size: int = DEFAULT_STACK_SIZE,
    ) -> None:
        """Create an empty set of the interpreters in a recording's processes.

        Args:
            symbols: Reads interpreter symbols of files.
            diagnostics: Counters.
            follow_tasks: True to show the asyncio tasks that await the running one.
            stack_size: Maximum size of a stack copy in bytes.
        """
        self.processes: dict[int, ProcessReaders] = {}
        self.book = FunctionTable()
        self.follow_tasks = follow_tasks
        recording = InterpreterContext(KnownSymbols(symbols), diagnostics, self.book, follow_tasks, stack_size)
        self._interpreters = Interpreters(recording)
        self._ids = itertools.count(_NEVER_SAMPLED, -1)
        self._news = InterpreterNews()
        self.sent: dict[int, NamedCode] = {}

    def update(self, news: InterpreterNews) -> None:
        """Apply changes of interpreters that the sampler has sent to this process."""
        self.book.start_numbers_at(_OWN)
        self.sent.update(news.codes)
        for number in news.gone:
            self.sent.pop(number, None)
        self._news = news

    def reader(self, pid: int) -> StackReader:
        """Return the interpreter reader of a process. The collector calls this when it starts to sample the process."""
        readers = self.processes[pid] = self._interpreters.open_readers(self._live(pid))
        return readers

    def retire(self) -> None:
        """Forget the interpreters of processes that have ended. The caller does this when it has closed a window."""
        self.processes = {pid: p for pid, p in self.processes.items() if os.path.exists(f"/proc/{pid}")}

    def kernel_reader(self, pid: int) -> KernelReader:
        """Return the interpreter reader of a process for a collector whose BPF program copies the frames."""
        self.reader(pid)
        return KernelReaders(self.processes[pid])

    def needs_stops(self, pid: int) -> str | None:
        """Return why a process must be stopped for samples of its interpreter frames.

        Returns:
            The reason, "" if stops are not needed, or None if an interpreter has not finished its start-up.
        """
        try:
            return next(filter(None, (found.stops for found in self._interpreters.detect(self._live(pid)))), "")
        except NotBegun:
            return None
        except (OSError, FormatError):
            return ""

    def rehearse(self, pid: int) -> None:
        """Load the modules of pyprof that inspect an interpreter, because a Python program is about to start. They are
        loaded by inspecting a process of pyprof.

        If the program uses the same interpreter file, the layout of that interpreter is then known before the program
        starts.

        Args:
            pid: A process of pyprof.
        """
        self.needs_stops(pid)
        process = self._live(pid)
        readers = self._interpreters.open_readers(process)
        readers.find_goroutines(process.space)
        KernelReaders(readers)

    def unread(self, pid: int) -> list[Detected]:
        """Return the interpreters in a process that pyprof detects, but whose functions it cannot read."""
        return self._interpreters.find_unread(self._live(pid))

    def describe(self, pid: int) -> Iterator[Finding]:
        """Yield the findings of `pyprof doctor` about the interpreters in a process."""
        return self._interpreters.describe(self._live(pid))

    def own_modules(self) -> Callable[[Module], bool]:
        """Return a predicate on modules: True for files of an interpreter, and for programs that contain an
        interpreter.
        """
        paths = self.module_paths
        return lambda module: module.path in paths or self._interpreters.is_own(module.name)

    @property
    def module_paths(self) -> frozenset[str]:
        """The paths of the modules that contain an interpreter."""
        own = frozenset(reader.module for readers in self.processes.values() for reader in readers.readers)
        return own | self._news.modules

    @property
    def lockless(self) -> bool:
        """True if one of the interpreters works without a global lock."""
        return self._news.lockless or any(readers.current.lockless for readers in self.processes.values())

    def read_names(self) -> None:
        """Read the current names that interpreters gave to threads. Sampling a process also reads them from time to
        time.
        """
        for readers in self.processes.values():
            readers.current.read_names()

    def named(self, threads: tuple[ThreadInfo, ...]) -> tuple[ThreadInfo, ...]:
        """Return the threads of a profile with the names that the program gave them through its interpreter.

        If several threads had the same tid, only the last one is renamed. Earlier ones got their names when they ended
        (StackReader.left).
        """
        names = {(pid, tid): name for pid, p in self.processes.items() for tid, name in p.current.names.items()}
        return rename_threads(threads, names)

    def local_values(self, pid: int, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """Read the local variables of a thread's current interpreter frames.

        Returns:
            (frame, {variable name: bounded repr}) for each frame, innermost first.
        """
        readers = self.processes.get(pid)
        return readers.current.local_values(tid, redact) if readers else []

    def retain_functions(self, functions: Set[int]) -> None:
        """Keep the names of these interpreter functions, and forget names of functions that were in no window for a
        long time.

        Args:
            functions: Numbers of the functions in the window that was just closed.
        """
        self.book.drop_unused(functions)

    def compiled(self, name: str) -> FunctionPlace | None:
        """Return the interpreter function for which JIT code with this symbol name was generated, None if it is not
        code of an interpreter.
        """
        code = self._interpreters.find_compiled_code(name) if name else None
        return FunctionPlace(self.book.add_code(code)) if code is not None else None

    def line(self, place: FunctionPlace) -> Line:
        """Return function name, file and line of an interpreter frame."""
        return self._code(place.function).line(place.instruction)

    def language(self, place: FunctionPlace) -> str:
        """Return the language of an interpreter frame, as users call it."""
        return self._code(place.function).language

    def settled(self, place: FunctionPlace) -> FunctionPlace:
        """Return an interpreter frame with its instruction replaced by the first one on the same source line, so that
        all samples of a line share one frame.
        """
        return FunctionPlace(place.function, self._code(place.function).line_key(place.instruction))

    def _code(self, function: int) -> NamedCode:
        return self.sent.get(function) or self.book.code(function)

    def _live(self, pid: int) -> LiveProcess:
        return LiveProcess(
            pid,
            lambda: procfs.list_tasks(pid),
            _tids(pid),
            lambda: procfs.read_address_space(pid, next(self._ids), generation=0),
            lambda: _perf_map_head(pid),
        )


def _perf_map_head(pid: int) -> bytes:
    from pyprof.runtime_code.process_code import perf_map_head

    return perf_map_head(pid, _MAP_HEAD)


def _tids(pid: int) -> Callable[[int], int]:
    """Return a function that translates a tid to the pid namespace of a process.

    Args:
        pid: The process.
    """

    def inner(tid: int) -> int:
        try:
            return int(procfs.read_thread_status(tid)["NSpid"].split()[-1])
        except (OSError, KeyError, ValueError, IndexError):
            return tid

    try:
        nested = len(procfs.read_thread_status(pid)["NSpid"].split()) > 1
    except (OSError, KeyError):
        nested = False
    return inner if nested else int


def runs_python(program: str) -> bool:
    """Return True if a program's name, or the interpreter in a script's first line, contains "python".

    Args:
        program: Path of the program as the user gave it.
    """
    path = os.path.realpath(program)
    try:
        fd = open_regular(path)
    except (OSError, FormatError):
        return False
    try:
        line = os.read(fd, _FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return False
    finally:
        os.close(fd)
    return b"python" in (line if line.startswith(b"#!") else os.fsencode(os.path.basename(path)))
