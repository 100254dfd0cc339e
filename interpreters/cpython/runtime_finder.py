"""Search for the CPython runtime of one process, repeated when its modules change.

The input is address spaces and tids from the collector. The output is a Runtime that was checked against the live
process, or the reason why there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyprof.interpreters.cpython.detection import Programs
from pyprof.interpreters.cpython.memory import Memory
from pyprof.interpreters.cpython.runtime_address import Located, find_old_python
from pyprof.interpreters.cpython.runtime_state import Runtime, UnreadRuntime, UnsettledRuntime, open_runtime
from pyprof.model.modules import VDSO, AddressSpace

_SOON_NS, _WAIT_NS = 4_000_000, 50_000_000
"""Wait before a CPython runtime that has not started is opened again, in nanoseconds: first and maximum. The wait
doubles.
"""
_MAX_TRIES = 20
_GREENLET = "_greenlet."
"""Part of the name of the greenlet extension module. With it, a C stack may hold frames of several greenlets."""


class RuntimeFinder:
    """Finder of the CPython runtime of one process.

    Attributes:
        runtime: The runtime, None if there is none or it has not started.
        expected: The runtime that the file holds in other processes, None if no process has run it.
        refusal: Why the runtime cannot be read, "" if it can be.
        memory: Reads the process as it is now.
        greenlets: True if the threads' C stacks may hold frames of several greenlets.
    """

    def __init__(self, programs: Programs, refused: Callable[[str], None]) -> None:
        """Create a search for the CPython runtime of one process.

        Args:
            refused: Called once for each refusal.
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
        """Look for the CPython runtime in a new set of modules: dlopen may bring a runtime or keep the old one, exec
        replaces the program.

        A program that is not position-independent keeps its address after exec. The vDSO moves then.
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
        """Open a CPython runtime; one that has not started stays pending."""
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
