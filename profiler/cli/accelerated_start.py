"""The start of a command on a busy machine: its priority, the garbage collector, and a reduced numpy.

numpy is loaded without rarely used parts, which take a third of its import time.

The command line installs the import hook before it imports numpy. A program that imports pyprof gets the complete
numpy. As soon as anything of a left-out part is used, all parts are loaded. Names in the list that a version of numpy
does not have are ignored; parts that are not in the list load as usual.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

from pyprof.cli import front_process
from pyprof.session import process_priority

LATER = (
    "_core._add_newdocs",  # texts for help()
    "_core._add_newdocs_scalars",
    "_typing",  # aliases for annotations
    "linalg",
    "lib._arraypad_impl",
    "lib._arrayterator_impl",
    "lib._datasource",
    "lib._format_impl",
    "lib._histograms_impl",
    "lib._iotools",
    "lib._nanfunctions_impl",
    "lib._npyio_impl",
    "lib._polynomial_impl",
    "lib._scimath_impl",
    "lib._ufunclike_impl",
    "lib._utils_impl",
    "lib._version",
    "lib.format",
    "lib.introspect",
    "lib.mixins",
    "lib.npyio",
    "lib.scimath",
    "typing",
)
"""Submodules of numpy that are loaded on first use."""


class _Finder:
    """An import finder that creates placeholders for rarely used parts of numpy.

    Attributes:
        waiting: Names of parts that have not been used yet.
    """

    def __init__(self) -> None:
        self.waiting = {f"numpy.{name}" for name in LATER}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cast(Any, self), is_package=True) if name in self.waiting else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Part(spec.name, self)

    def exec_module(self, part: ModuleType) -> None:
        """Execute nothing for a placeholder: the part of numpy that it stands for is loaded on first use."""

    def load(self) -> None:
        """Load all parts of numpy that were left out, because they import names from one another."""
        known = self.waiting & sys.modules.keys()
        self.waiting.clear()
        for name in known:
            parent, _, child = name.rpartition(".")
            if vars(sys.modules[parent]).get(child) is sys.modules[name]:
                delattr(sys.modules[parent], child)
        for name in known:
            del sys.modules[name]
        for name in known:
            import_module(name)


class _Part(ModuleType):
    """A placeholder for a module of numpy. Its attributes are placeholders for the module's attributes."""

    __all__: Sequence[str] = ()

    def __init__(self, name: str, finder: _Finder) -> None:
        super().__init__(name)
        self._finder = finder

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self, name)

    def _the_module(self) -> ModuleType:
        self._finder.load()
        return import_module(self.__name__)


class _Name:
    """A placeholder for a name in a left-out part of numpy. The part is loaded when the name is used."""

    def __init__(self, part: _Part, name: str) -> None:
        self._part = part
        self._name = name

    def _itself(self) -> Any:
        return getattr(self._part._the_module(), self._name)

    def __call__(self, *values: object, **named: object) -> Any:
        return self._itself()(*values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._itself(), name)

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        return (self._itself(),)

    def __instancecheck__(self, value: object) -> bool:
        """Return False as long as the part of numpy is not loaded, because no instance of its classes can exist."""
        return self._part.__name__ not in self._part._finder.waiting and isinstance(value, self._itself())

    def __getitem__(self, _: object) -> type:
        """Return a substitute type for a subscripted alias of numpy. Such aliases occur only in annotations."""
        return object


def leave_out() -> None:
    """Install the import hook that delays the import of rarely used parts of numpy.

    Nothing happens if numpy is loaded already, or if its version is below 2: the root module of such a version imports
    all names of its parts.
    """
    numpy = PathFinder.find_spec("numpy") if "numpy" not in sys.modules else None
    if numpy and os.path.exists(os.path.join(os.path.dirname(numpy.origin or ""), "lib", "_npyio_impl.py")):
        sys.meta_path.insert(0, _Finder())


_URGENT = {"record", "dump", "top"}
"""Commands for which the user waits for the first sample."""
_GARBAGE, _URGENT_GARBAGE = 20_000, 200_000
"""Thresholds of Python's cyclic garbage collector, in new objects, for usual and for urgent commands. Python's default
is 700.

Imports make many objects and few cycles. freeze_loaded_objects() ends the high threshold, which is meant for the
imports of urgent commands.
"""


def prepare(arguments: Sequence[str]) -> None:
    """Prepare this process for a command: set the threshold of the garbage collector, and raise the priority if the
    user waits for the first sample.

    Args:
        arguments: The command line from the subcommand on.
    """
    is_urgent = arguments[0] in _URGENT
    gc.set_threshold(_URGENT_GARBAGE if is_urgent else _GARBAGE)
    if is_urgent:
        process_priority.raise_startup_priority()
        if arguments[0] == "dump" or arguments[:2] == ["record", "-p"]:  # starts no program that needs the terminal
            front_process.begin_session_if_slowed()
