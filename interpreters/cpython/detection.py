"""Detection of CPython in a process, without its threads or names. Each file is read once.

The first process in which a file's CPython ran shows its layout. Another process with the same file need not have
started, and may have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.interpreters.base import NotBegun
from pyprof.interpreters.cpython.memory import Memory
from pyprof.interpreters.cpython.runtime_address import WANTED, Located, list_candidates, locate_in_file
from pyprof.interpreters.cpython.runtime_state import Runtime, UnreadRuntime, UnsettledRuntime, open_runtime
from pyprof.interpreters.detection_symbols import KnownSymbols, find_anchor
from pyprof.model.modules import AddressSpace, Module
from pyprof.records import replace

_MAX_FILES = 4096


_File = tuple[str, int, str]
"""Key of a file: device, inode, path."""


class Programs:
    """A cache of the files that hold a CPython: where the interpreter is, and its layout if it was seen in a process.

    Attributes:
        keys: See PythonThreadNames.
    """

    def __init__(self, symbols: KnownSymbols) -> None:
        self._symbols = symbols
        self._seen: dict[_File, Runtime] = {}
        self.keys: dict[str, int] = {}

    def record_runtime(self, runtime: Runtime) -> None:
        """Record that a CPython runtime was seen in a process, for other processes with the same file."""
        if len(self._seen) >= _MAX_FILES:
            self._seen.clear()
        self._seen[_file(runtime.located.module)] = runtime

    def expected_runtime(self, space: AddressSpace) -> Runtime | None:
        """Return the CPython runtime that runs or will run in a process, from its modules alone; None if none of their
        files is known.
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
        """Return where a process has a CPython. Files that other processes have mapped too are not read again."""
        modules = [m for m in list_candidates(space) if any(mapping.executable for mapping in m.mappings)]
        found = self._symbols.find_first(space, modules, WANTED)
        return locate_in_file(*found) if found is not None else None


def _file(module: Module) -> _File:
    return module.dev, module.inode, module.path


def _moved(known: Located, module: Module) -> Located:
    """Return the location of CPython for another process that has mapped the file elsewhere."""
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
