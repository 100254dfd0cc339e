"""Thread names from threading._active, a dict with idents as keys and Thread objects as values.

They are read between samples, while the process runs. If a dict changes meanwhile, a name may be missing. A name
belongs to an ident, which the reader compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.objects import Objects
from pyprof.interpreters.cpython.runtime_state import Runtime

_LONGEST = 256


class PythonThreadNames:
    """A reader of the names that Python code gave to the threads of one process."""

    def __init__(self, runtime: Runtime, memory: Memory, keys: dict[str, int]) -> None:
        """Create a reader of the names that Python code gave to its threads.

        Args:
            keys: Last known address of the str of each name, shared by all readers of a recording. A forked child has
                it at
                the same address. Without it, a look at each module's name takes 4 ms in a new process.
        """
        self._runtime = runtime
        self._memory = memory
        self._keys = keys
        self._objects = Objects(memory, runtime.layout.object, runtime.layout.minor)
        self._active: dict[int, int] = {}
        self._without: dict[int, bytes] = {}
        """State of sys.modules when it did not contain the module threading, by interpreter."""

    def read_names(self) -> dict[int, str]:
        """Return {ident: name} of the Python threads (PyThread.ident), as far as the names can be read."""
        names: dict[int, str] = {}
        try:
            for interpreter, _ in self._runtime.read_interpreters(self._memory):
                self._read(interpreter, names)
        except Unreadable:
            pass
        return names

    def _read(self, interpreter: int, names: dict[int, str]) -> None:
        active = self._active.get(interpreter) or self._find_active(interpreter)
        if not active:
            return
        self._active[interpreter] = active
        for key, thread in self._objects.dict_items(active):
            try:
                ident = self._objects.read_int(key)
                name = self._attribute(thread, "_name")
                if name:
                    names[ident] = self._objects.read_str(name, _LONGEST)
            except Unreadable:
                continue

    def _find_active(self, interpreter: int) -> int:
        """Return the address of the dict threading._active, 0 if threading is not imported."""
        layout = self._runtime.layout
        modules = self._memory.read_u64(interpreter + layout.interpreter.modules)
        if not modules:
            return 0
        state = self._objects.dict_state(modules)
        if self._without.get(interpreter) == state:
            return 0
        module = self._item(modules, "threading")
        if not module:
            self._without[interpreter] = state
            return 0
        attributes = self._memory.read_u64(module + layout.object.type + 8)
        return self._item(attributes, "_active") if attributes else 0

    def _item(self, mapping: int, name: str) -> int:
        return self._named(self._objects.dict_items(mapping), name)

    def _attribute(self, instance: int, name: str) -> int:
        return self._named(self._objects.attributes(instance), name)

    def _named(self, items: Iterator[tuple[int, int]], name: str) -> int:
        """Return the address of the value of a key among the items of a Python dict, 0 if there is none."""
        likely = self._keys.get(name)
        for key, value in sorted(items, key=lambda item: item[0] != likely):
            if self._is(key, name):
                self._keys[name] = key
                return value
        return 0

    def _is(self, key: int, name: str) -> bool:
        """Return True if the Python str at this address is the given name."""
        try:
            length = self._memory.read_u64(key + self._objects.layout.text_length)
            return length == len(name) and self._objects.read_str(key) == name
        except Unreadable:
            return False
