"""Detection of CPython in a process, and the search for its runtime, repeated when its modules change.

Each file is read once. The first process in which a file's CPython ran shows its layout. The layout then holds for
every process with the same file, even if its CPython has not started or has ended.

The input is address spaces and tids from the collector. The output is a Runtime that was checked against the live
process, or the reason why there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyprof.interpreters.base import NotBegun
from pyprof.interpreters.cpython.object_reader import Memory
from pyprof.interpreters.cpython.runtime_location import (
    WANTED,
    Located,
    find_old_python,
    list_candidates,
    locate_in_file,
)
from pyprof.interpreters.cpython.runtime_validation import Runtime, UnreadRuntime, UnsettledRuntime, open_runtime
from pyprof.interpreters.detection_symbols import KnownSymbols, find_anchor
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import VDSO, AddressSpace, Module

_MAX_FILES = 4096


_File = tuple[str, int, str]
"""Key of a mapped file in caches: (device, inode, path)."""


class CPythonFileCache:
    """A cache of the place and the layout of CPython in each file, as learned from processes that run it.

    Attributes:
        keys: Last known address, by text, of each str that PythonThreadNames looks up as a key of a dict.
    """

    def __init__(self, symbols: KnownSymbols) -> None:
        self._symbols = symbols
        self._seen: dict[_File, Runtime] = {}
        self.keys: dict[str, int] = {}

    def record_runtime(self, runtime: Runtime) -> None:
        """Record the CPython runtime of a process, so that other processes with the same file need no search."""
        if len(self._seen) >= _MAX_FILES:
            self._seen.clear()
        self._seen[_file(runtime.located.module)] = runtime

    def expected_runtime(self, space: AddressSpace) -> Runtime | None:
        """Return the CPython runtime that runs or will run in a process, by its modules alone. None if no earlier
        process has shown the CPython of one of their files.
        """
        for module in space.modules:
            seen = self._seen.get(_file(module))
            if seen is not None and module.has_file and find_anchor(module):
                located = _moved(seen.located, module)
                return Runtime(located, seen.layout, located.runtime)
        return None

    def find_runtime(self, space: AddressSpace, tasks: Callable[[int], bool]) -> Runtime | None:
        """Return the CPython that runs in a process, or None if there is none that can be read.

        Args:
            tasks: Returns True for a tid of the process, in its own pid namespace.

        Raises:
            NotBegun: The interpreter has not finished its start-up.
        """
        located = self.locate(space)
        found = _opened(located, space, tasks) if located is not None else None
        if found is not None:
            self.record_runtime(found)
        return found

    def locate(self, space: AddressSpace) -> Located | None:
        """Return the place of CPython in the modules of a process. A file that was searched for another process is not
        read again.
        """
        modules = [m for m in list_candidates(space) if any(mapping.executable for mapping in m.mappings)]
        found = self._symbols.find_first(space, modules, WANTED)
        return locate_in_file(*found) if found is not None else None


def _file(module: Module) -> _File:
    return module.dev, module.inode, module.path


def _moved(known: Located, module: Module) -> Located:
    """Return the place of CPython in a process, computed from its place in another process that has mapped the same
    file at another address.
    """
    by = find_anchor(module) - find_anchor(known.module)
    return replace(
        known,
        module=module,
        runtime=known.runtime + by,
        version=known.version and known.version + by,
        code_type=known.code_type and known.code_type + by,
        evaluators=tuple(avma + by for avma in known.evaluators),
    )


def _opened(located: Located, space: AddressSpace, tasks: Callable[[int], bool]) -> Runtime | None:
    try:
        found = open_runtime(located, Memory(space.read), tasks)
    except UnsettledRuntime:
        raise NotBegun from None
    except UnreadRuntime:
        return None
    if found is None:
        raise NotBegun
    return found


_SOON_NS, _WAIT_NS = 4_000_000, 50_000_000
"""Wait before a CPython runtime that has not started is opened again, in nanoseconds: first and maximum. The wait
doubles.
"""
_MAX_TRIES = 20
_GREENLET = "_greenlet."
"""Part of the name of the greenlet extension module. With it, a C stack may hold frames of several greenlets."""


class RuntimeFinder:
    """The search for the CPython runtime of one process, which is repeated until the runtime has started and when
    modules change.

    Attributes:
        runtime: The runtime, None if there is none or it has not started.
        expected: The runtime that the process has or will have, by other processes with the same file; None if no
            process has run the file.
        refusal: Reason why the runtime cannot be read, "" if it can be.
        memory: Reads the process as it is now.
        greenlets: True if the threads' C stacks may hold frames of several greenlets.
    """

    def __init__(self, programs: CPythonFileCache, refused: Callable[[str], None]) -> None:
        """Create a search for the CPython runtime of one process.

        Args:
            refused: Function that is called with each reason why a runtime cannot be read.
        """
        self.runtime: Runtime | None = None
        self.expected: Runtime | None = None
        self._programs = programs
        self.refusal = ""
        self.memory = Memory(lambda avma, size: b"")
        self.greenlets = False
        self.space: AddressSpace | None = None
        self._refused = refused
        self._modules: frozenset[tuple[int, str]] = frozenset()
        self._vdso: frozenset[int] = frozenset()
        self._pending: Located | None = None
        self._tries = self._open_at = 0
        self._wait_ns = _SOON_NS

    @property
    def undecided(self) -> bool:
        """True if there is a CPython runtime that has not started or whose state is not consistent yet."""
        return self._pending is not None

    def find_runtime(self, space: AddressSpace, inner_tids: Callable[[], set[int]]) -> bool:
        """Look for the CPython runtime in the current modules, and return True if the modules have changed.

        Args:
            inner_tids: Returns the tids of the process in its own pid namespace.
        """
        changed = space is not self.space
        if changed:
            self._look_at_modules(space)
        if self._pending is not None:
            self._open(self._pending, inner_tids)
        return changed

    def _look_at_modules(self, space: AddressSpace) -> None:
        """Look for the CPython runtime again after the process's modules have changed: dlopen may bring a runtime or
        keep the old one, exec replaces the program.

        After exec, a program that is not position-independent has the same address. The new address of the vDSO then
        shows that there was an exec.
        """
        self.space = space
        self.greenlets = any(_GREENLET in module.name for module in space.modules)
        runtime = self.runtime
        if runtime is None:
            self.memory = Memory(space.read)
        else:
            self.memory.change_space(space.read)
        modules = frozenset((module.start, module.path) for module in space.modules if module.has_file)
        vdso = frozenset(module.start for module in space.modules if module.path == VDSO)
        if vdso == self._vdso:
            if runtime is not None and (runtime.located.module.start, runtime.located.module.path) in modules:
                return
            if runtime is None and modules == self._modules:
                return
        self.runtime = self._pending = None
        self._open_at = self._tries = 0
        self._wait_ns = _SOON_NS
        self._modules, self._vdso = modules, vdso
        self.refusal = ""
        self.expected = self._programs.expected_runtime(space)
        known = self.expected
        self._pending = known.located if known is not None else self._programs.locate(space)
        if self._pending is None and (old := find_old_python(space)):
            self._refuse(f"{old} is older than CPython 3.8")

    def _open(self, located: Located, inner_tids: Callable[[], set[int]]) -> None:
        """Open the CPython runtime at a known place. A runtime that has not started is tried again later."""
        now = time.monotonic_ns()
        if now < self._open_at:
            return
        self._open_at = now + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, _WAIT_NS)
        try:
            self.runtime = open_runtime(located, self.memory, inner_tids().__contains__)
        except UnsettledRuntime as refused:
            self._tries += 1
            if self._tries >= _MAX_TRIES:
                self._refuse(str(refused))
        except UnreadRuntime as refused:
            self._refuse(str(refused))
        if self.runtime is not None:
            self._pending = None
            self._programs.record_runtime(self.runtime)

    def _refuse(self, why: str) -> None:
        self.refusal, self._pending, self.expected = why, None, None
        self._refused(why)
