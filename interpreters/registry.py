"""The list of supported interpreters and of runtimes that are only detected, and objects that combine all of them.

Some runtimes are only detected, by the file name of their program or library; their functions are not read. Each such
runtime is a small class of data: `evaluators` tells which stacks lack functions, the file names tell where the runtime
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

from pyprof.errors import FormatError
from pyprof.interpreters.base import Detected, Interpreter, InterpreterContext, LiveProcess, NotBegun, ProcessReader
from pyprof.interpreters.cpython.interpreter import CPython
from pyprof.interpreters.function_table import NamedCode
from pyprof.interpreters.goroutines import GoroutineFinder
from pyprof.interpreters.ruby_detection import Ruby
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain
from pyprof.model.interpreter_reader_protocols import (
    FrameOffsets,
    FrameReadPlan,
    FrameRows,
    Gather,
    GoroutineOffsets,
    KernelReader,
    ThreadPlace,
)
from pyprof.problem_counters import Finding


class RecognisedRuntime(Interpreter):
    """A runtime of any version that is detected by file name.

    Attributes:
        programs: File name prefixes of programs that are the runtime.
        libraries: File name prefixes of libraries that embed the runtime in other programs.
    """

    programs: ClassVar[tuple[str, ...]]
    libraries: ClassVar[tuple[str, ...]] = ()

    def detect(self, process: LiveProcess) -> Detected | None:
        files = (module for module in process.space.modules if module.has_file)
        for nth, module in enumerate(files):
            if module.name.startswith(self.libraries if nth else self.programs + self.libraries):
                return Detected(self.language, "", module.path, unread="pyprof does not read them")
        return None


class PHP(RecognisedRuntime):
    language = "PHP"
    evaluators = ("execute_ex", "zend_execute")
    programs, libraries = ("php",), ("libphp",)


class Perl(RecognisedRuntime):
    language = "Perl"
    evaluators = ("Perl_runops_", "perl_run")
    programs = ("perl",)


class LuaJIT(RecognisedRuntime):
    language = "LuaJIT"
    evaluators = ("lj_vm_", "lj_BC_", "lj_cont_", "[JIT code of luajit")
    programs, libraries = ("luajit",), ("libluajit",)


class Lua(RecognisedRuntime):
    language = "Lua"
    evaluators = ("luaV_execute", "lua_call", "lua_pcall")  # luaV_execute has no exported name
    programs, libraries = ("lua5", "lua-5"), ("liblua5", "liblua.")


class Erlang(RecognisedRuntime):
    language = "Erlang"
    evaluators = ("process_main", "_Z12process_main", "[JIT code of beam.smp")
    programs = ("beam",)


class DotNet(RecognisedRuntime):
    language = ".NET"
    evaluators = ("[JIT code of dotnet", "coreclr_execute_assembly")
    programs, libraries = ("dotnet",), ("libcoreclr.so",)


RUNTIMES: tuple[type[RecognisedRuntime], ...] = (PHP, Perl, LuaJIT, Lua, Erlang, DotNet)


KINDS: tuple[type[Interpreter], ...] = (CPython, Ruby, *RUNTIMES)
"""Classes of the supported interpreters, in the order in which a process is examined for them."""


@dataclass
class ProcessReaders:
    """The interpreter readers of one process, combined into one model.interpreter_reader_protocols.StackReader.

    Calls go to the first reader whose interpreter runs in the process, or to the first reader if none runs.

    Attributes:
        readers: The readers.
        find_goroutines: Returns the offsets of the Go runtime of an address space, or None.
        goroutines: Offsets of the process's Go runtime, None if it has none.
    """

    readers: list[ProcessReader]
    find_goroutines: Callable[[AddressSpace], GoroutineOffsets | None]
    goroutines: GoroutineOffsets | None = None

    def __post_init__(self) -> None:
        self._current = self.readers[0]

    @property
    def current(self) -> ProcessReader:
        return self._current

    @property
    def reads(self) -> bool:
        return self._current.reads

    def inspect_process(self, space: AddressSpace, tids: Collection[int]) -> None:
        for reader in self.readers:
            reader.inspect_process(space, tids)
        self._current = next((reader for reader in self.readers if reader.module), self.readers[0])
        self.goroutines = self.find_goroutines(space)

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        self._current.copy(tid, stack, base, gather)

    def learn(self) -> None:
        self._current.learn()

    def ahead(self, tid: int) -> FrameReadPlan | None:
        return self._current.ahead(tid)

    def copied_ahead(
        self, tid: int, ahead: FrameReadPlan, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> None:
        self._current.copied_ahead(tid, ahead, stack, base, gather, now)

    def left(self, tid: int) -> str:
        return next(filter(None, [reader.left(tid) for reader in self.readers]), "")

    def take_chain(self) -> Chain | None:
        return self._current.take_chain()


class KernelReaders:
    """The readers of all interpreters of one process for a BPF program, combined into one
    model.interpreter_reader_protocols.KernelReader.
    """

    def __init__(self, readers: ProcessReaders) -> None:
        self._readers = readers
        self._parts = {id(reader): reader.kernel_reader() for reader in readers.readers}

    @property
    def _current(self) -> KernelReader | None:
        return self._parts[id(self._readers.current)]

    def inspect_process(
        self, space: AddressSpace, tids: Collection[int], parent: KernelReader | None = None
    ) -> str | None:
        self._readers.inspect_process(space, tids)
        if self._current is None:
            return ""
        return self._current.inspect_process(
            space, tids, parent._current if isinstance(parent, KernelReaders) else None
        )

    def offsets(self) -> tuple[int, FrameOffsets] | None:
        return self._current.offsets() if self._current is not None else None

    def goroutines(self) -> GoroutineOffsets | None:
        return self._readers.goroutines

    def places(self) -> list[ThreadPlace]:
        return self._current.places() if self._current is not None else []

    def chains(self, rows: FrameRows) -> Sequence[Chain | None]:
        return self._current.chains(rows) if self._current is not None else [None] * (len(rows.start) - 1)

    def finish_batch(self) -> None:
        if self._current is not None:
            self._current.finish_batch()


class Interpreters:
    """All supported interpreters in one recording, combined into one object."""

    def __init__(self, recording: InterpreterContext, kinds: tuple[type[Interpreter], ...] = KINDS) -> None:
        self._kinds = [kind(recording) for kind in kinds]
        self._goroutines = GoroutineFinder(recording.symbols)

    def open_readers(self, process: LiveProcess) -> ProcessReaders:
        found = (kind.open_reader(process) for kind in self._kinds)
        return ProcessReaders([reader for reader in found if reader is not None], self._goroutines.find_offsets)

    def detect(self, process: LiveProcess) -> Iterator[Detected]:
        """Return the interpreters that run in a process.

        Raises:
            NotBegun: An interpreter has not finished its start-up.
            OSError: The process has ended.
            FormatError: An interpreter's own description of itself is broken.
        """
        found = (kind.detect(process) for kind in self._kinds)
        return (detected for detected in found if detected is not None)

    def find_unread(self, process: LiveProcess) -> list[Detected]:
        """Return the interpreters that run in a process and whose functions cannot be read; none if the process has
        ended.
        """
        try:
            return [found for found in self.detect(process) if found.unread]
        except (NotBegun, OSError, FormatError):
            return []

    def describe(self, process: LiveProcess) -> Iterator[Finding]:
        """Yield what `pyprof doctor` reports about the interpreters of a process."""
        for kind in self._kinds:
            try:
                yield from kind.describe(process)
            except (OSError, FormatError):
                continue

    def is_own(self, module: str) -> bool:
        """Return True if a module with this file name is part of an interpreter whose functions can be read."""
        return any(kind.is_own(module) for kind in self._kinds)

    def find_compiled_code(self, name: str) -> NamedCode | None:
        """Return the function that generated code with this symbol name runs, or None if no interpreter named it."""
        return next((code for kind in self._kinds if (code := kind.find_compiled_code(name)) is not None), None)
