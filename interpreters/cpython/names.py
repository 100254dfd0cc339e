"""Names of threads as Python gave them: threading._active, whose keys are idents and whose values Thread objects.

Read while the process runs, between samples: a dict that changes meanwhile gives a name less, never a crash; a name
belongs to an ident that is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.objects import Objects
from pyprof.interpreters.cpython.runtime import Runtime

_LONGEST = 256


class PythonThreadNames:
    """Of one process."""

    def __init__(self, runtime: Runtime, memory: Memory, keys: dict[str, int]) -> None:
        """keys: where a process had the str of a name last, to be shared by all of a recording. A child that was forked
        has it there, too: looking at each module's name takes a new process 4 ms.
        """
        self._runtime = runtime
        self._memory = memory
        self._keys = keys
        self._objects = Objects(memory, runtime.layout.object, runtime.layout.minor)
        self._active: dict[int, int] = {}
        self._without: dict[int, bytes] = {}
        """State of sys.modules when threading was not there."""

    def read(self) -> dict[int, str]:
        """ident (PyThread.ident) -> name, as far as they could be read."""
        names: dict[int, str] = {}
        try:
            for interpreter, _ in self._runtime.interpreters(self._memory):
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
                ident = self._objects.integer(key)
                name = self._attribute(thread, "_name")
                if name:
                    names[ident] = self._objects.text(name, _LONGEST)
            except Unreadable:
                continue

    def _find_active(self, interpreter: int) -> int:
        """The dict threading._active, 0 where threading is not imported."""
        layout = self._runtime.layout
        modules = self._memory.u64(interpreter + layout.interpreter.modules)
        if not modules:
            return 0
        state = self._objects.dict_state(modules)
        if self._without.get(interpreter) == state:
            return 0
        module = self._item(modules, "threading")
        if not module:
            self._without[interpreter] = state
            return 0
        attributes = self._memory.u64(module + layout.object.type + 8)
        return self._item(attributes, "_active") if attributes else 0

    def _item(self, mapping: int, name: str) -> int:
        return self._named(self._objects.dict_items(mapping), name)

    def _attribute(self, instance: int, name: str) -> int:
        return self._named(self._objects.attributes(instance), name)

    def _named(self, items: Iterator[tuple[int, int]], name: str) -> int:
        """The value of a key, 0 if there is none."""
        likely = self._keys.get(name)
        for key, value in sorted(items, key=lambda item: item[0] != likely):
            if self._is(key, name):
                self._keys[name] = key
                return value
        return 0

    def _is(self, key: int, name: str) -> bool:
        """Is the str at key this name?"""
        try:
            length = self._memory.u64(key + self._objects.layout.text_length)
            return length == len(name) and self._objects.text(key) == name
        except Unreadable:
            return False
