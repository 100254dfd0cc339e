"""The interpreters of a recording's processes: their readers and their names.

The collector gets a reader for each process, the symbolizer the names.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Set

from pyprof.collectors.linux import procfs
from pyprof.diagnostics import Diagnostics, Finding
from pyprof.errors import FormatError
from pyprof.interpreters.base import Detected, InterpreterContext, LiveProcess, NotBegun
from pyprof.interpreters.code_book import CodeBook, NamedCode
from pyprof.interpreters.registry import Interpreters, KernelReaders, ProcessReaders
from pyprof.interpreters.symbols import KnownSymbols, ReadSymbols
from pyprof.model.interpreter import FunctionPlace, KernelReader, StackReader
from pyprof.model.modules import Module
from pyprof.model.profile import Line, ThreadInfo
from pyprof.options import DEFAULT_STACK_SIZE
from pyprof.records import dataclass, field, replace

_MAP_HEAD = 1 << 20
_NEVER_SAMPLED = -(1 << 40)
"""From here down count the address spaces that are looked at, and never sampled."""


_OWN = 1 << 30
"""Where another process reads the frames, numbers of functions that are found here begin here; its own are below."""


@dataclass(frozen=True, slots=True)
class InterpreterNews:
    """What the process that reads interpreters' frames sends to the one that names them, each time what is new. codes:
    by number; gone: numbers that no frame will have again. modules: paths of those that hold an interpreter. lockless:
    see Runtimes.
    """

    codes: Mapping[int, NamedCode] = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    modules: frozenset[str] = frozenset()
    lockless: bool = False


class Runtimes:
    """One recording's. processes: by pid. book: what the functions of all of them are called; sent: those that another
    process has sent, see update(). follow_tasks: see interpreters.base.InterpreterContext.
    """

    def __init__(
        self,
        symbols: ReadSymbols,
        diagnostics: Diagnostics,
        follow_tasks: bool = False,
        stack_size: int = DEFAULT_STACK_SIZE,
    ) -> None:
        """symbols: reads those of files. follow_tasks, stack_size: see interpreters.base.InterpreterContext."""
        self.processes: dict[int, ProcessReaders] = {}
        self.book = CodeBook()
        self.follow_tasks = follow_tasks
        recording = InterpreterContext(KnownSymbols(symbols), diagnostics, self.book, follow_tasks, stack_size)
        self._interpreters = Interpreters(recording)
        self._ids = itertools.count(_NEVER_SAMPLED, -1)
        self._news = InterpreterNews()
        self.sent: dict[int, NamedCode] = {}

    def update(self, news: InterpreterNews) -> None:
        """Another process reads the frames, and has found this."""
        self.book.begin_at(_OWN)
        self.sent.update(news.codes)
        for number in news.gone:
            self.sent.pop(number, None)
        self._news = news

    def reader(self, pid: int) -> StackReader:
        """For the collector, when it begins with a process."""
        readers = self.processes[pid] = self._interpreters.readers(self._live(pid))
        return readers

    def retire(self) -> None:
        """A window was closed: forget the processes that have ended."""
        self.processes = {pid: p for pid, p in self.processes.items() if os.path.exists(f"/proc/{pid}")}

    def kernel_reader(self, pid: int) -> KernelReader:
        """For the collector whose program in the kernel copies the frames."""
        self.reader(pid)
        return KernelReaders(self.processes[pid])

    def needs_stops(self, pid: int) -> str | None:
        """Why a process is better sampled by stops, "" if it has no frames that only stops can copy, None if it has an
        interpreter that has not begun yet.
        """
        try:
            return next(filter(None, (found.stops for found in self._interpreters.detect(self._live(pid)))), "")
        except NotBegun:
            return None
        except (OSError, FormatError):
            return ""

    def rehearse(self, pid: int) -> None:
        """A program with an interpreter of the kind that runs us is to begin. pid: a process of ours. What it takes to
        look at one is loaded now; where the program's file is ours, what it is like is known before it begins.
        """
        self.needs_stops(pid)
        KernelReaders(self._interpreters.readers(self._live(pid)))

    def unread(self, pid: int) -> list[Detected]:
        """The interpreters in a process whose functions cannot be read."""
        return self._interpreters.unread(self._live(pid))

    def describe(self, pid: int) -> Iterator[Finding]:
        """What `pyprof doctor` says of the interpreters in a process."""
        return self._interpreters.describe(self._live(pid))

    def own_modules(self) -> Callable[[Module], bool]:
        """Is a module part of an interpreter, or the program that holds one?"""
        paths = self.module_paths
        return lambda module: module.path in paths or self._interpreters.is_own(module.name)

    @property
    def module_paths(self) -> frozenset[str]:
        """Of the modules that hold an interpreter."""
        own = frozenset(reader.module for readers in self.processes.values() for reader in readers.readers)
        return own | self._news.modules

    @property
    def lockless(self) -> bool:
        """Does one of the interpreters work without a global lock?"""
        return self._news.lockless or any(readers.current.lockless for readers in self.processes.values())

    def read_names(self) -> None:
        """What threads are called now. Where a process is sampled, that is read now and then, too."""
        for readers in self.processes.values():
            readers.current.read_names()

    def named(self, threads: tuple[ThreadInfo, ...]) -> tuple[ThreadInfo, ...]:
        """Threads by the names that their interpreters gave them. Of several that had one number the last one is meant:
        those before it got their names when they ended (StackReader.left).
        """
        last: dict[tuple[int, int], int] = {}
        for t in threads:
            last[t.pid, t.tid] = max(t.started, last.get((t.pid, t.tid), 0))
        names = {(pid, tid): name for pid, p in self.processes.items() for tid, name in p.current.names.items()}
        return tuple(
            replace(t, name=names.get((t.pid, t.tid), t.name)) if t.started == last[t.pid, t.tid] else t
            for t in threads
        )

    def local_values(self, pid: int, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """Of the frames that a thread has now, innermost first, with name -> bounded repr."""
        readers = self.processes.get(pid)
        return readers.current.local_values(tid, redact) if readers else []

    def keep(self, functions: Set[int]) -> None:
        """Forget the names of code that has not run for long. functions: numbers of those in a closed window."""
        self.book.keep(functions)

    def compiled(self, name: str) -> FunctionPlace | None:
        """The function that generated code of this name runs, None if it is no interpreter's."""
        code = self._interpreters.compiled(name) if name else None
        return FunctionPlace(self.book.add(code)) if code is not None else None

    def line(self, place: FunctionPlace) -> Line:
        """The name of an interpreter's frame."""
        return self._code(place.function).line(place.instruction)

    def language(self, place: FunctionPlace) -> str:
        """Of an interpreter's frame: what users call the interpreter."""
        return self._code(place.function).language

    def settled(self, place: FunctionPlace) -> FunctionPlace:
        """The same for all instructions of a source line."""
        return FunctionPlace(place.function, self._code(place.function).settled(place.instruction))

    def _code(self, function: int) -> NamedCode:
        return self.sent.get(function) or self.book.code(function)

    def _live(self, pid: int) -> LiveProcess:
        return LiveProcess(
            pid,
            lambda: procfs.tasks(pid),
            _tids(pid),
            lambda: procfs.address_space(pid, next(self._ids), generation=0),
            lambda: _perf_map_head(pid),
        )


def _perf_map_head(pid: int) -> bytes:
    from pyprof.runtime_code.process import perf_map_head

    return perf_map_head(pid, _MAP_HEAD)


def _tids(pid: int) -> Callable[[int], int]:
    """Tids as the process's own pid namespace counts them."""

    def inner(tid: int) -> int:
        try:
            return int(procfs.thread_status(tid)["NSpid"].split()[-1])
        except (OSError, KeyError, ValueError, IndexError):
            return tid

    try:
        nested = len(procfs.thread_status(pid)["NSpid"].split()) > 1
    except (OSError, KeyError):
        nested = False
    return inner if nested else int
