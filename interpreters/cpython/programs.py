"""Does CPython run in a process? A quick look, without its threads or names: each file is read once.

What a file's CPython is like is known from the first process in which it ran on: that of another process need not have
begun, and the process need not be there any more.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.interpreters.base import NotBegun
from pyprof.interpreters.cpython.locate import Located, candidates, in_image
from pyprof.interpreters.cpython.memory import Memory
from pyprof.interpreters.cpython.runtime import Refused, Runtime, Unsettled, open_runtime
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import ImageStore
from pyprof.records import replace

_MOST_FILES = 4096


_File = tuple[str, int, str]
"""Device, inode, path."""


class Programs:
    """What is known of files: where their interpreter is, None if they have none; what it is like, if one was seen."""

    def __init__(self) -> None:
        self._known: dict[_File, Located | None] = {}
        self._seen: dict[_File, Runtime] = {}

    def learn(self, runtime: Runtime) -> None:
        """It was seen to run in a process."""
        if len(self._seen) >= _MOST_FILES:
            self._seen.clear()
        self._seen[_file(runtime.located.module)] = runtime

    def expected(self, space: AddressSpace) -> Runtime | None:
        """What runs in a process, or will, going by its modules alone; None if no file of them was seen to run one."""
        for module in space.modules:
            seen = self._seen.get(_file(module))
            if seen is not None and module.has_file and _anchor(module):
                located = _moved(seen.located, module)
                return Runtime(located, seen.layout, located.runtime)
        return None

    def runtime(self, space: AddressSpace, tasks: Callable[[int], bool]) -> Runtime | None:
        """The interpreter that runs in a process, None if there is none that we can read. tasks: is this a tid of the
        process, as its pid namespace counts? Raises NotBegun.
        """
        located = self.locate(space, ImageStore(Diagnostics()))
        found = _opened(located, space, tasks) if located is not None else None
        if found is not None:
            self.learn(found)
        return found

    def locate(self, space: AddressSpace, images: ImageStore) -> Located | None:
        """Where a process has an interpreter. Files that other processes have, too, are not read again."""
        for module in candidates(space):
            if any(mapping.executable for mapping in module.mappings):
                located = self._located(module, space, images)
                if located is not None:
                    return located
        return None

    def _located(self, module: Module, space: AddressSpace, files: ImageStore) -> Located | None:
        key = _file(module)
        if key not in self._known:
            image = files.image(space, module.start)
            if image is None:
                return None
            try:
                found = in_image(module, image) if image.file.address_size == 8 else None
            except FormatError:
                found = None
            if len(self._known) >= _MOST_FILES:
                self._known.clear()
            self._known[key] = found
        known = self._known[key]
        if known is None:
            return None
        return _moved(known, module)


def _file(module: Module) -> _File:
    return module.dev, module.inode, module.path


def _anchor(module: Module) -> int:
    """Where the file's first byte would be, going by its code: the other mappings may not be known. 0: no code."""
    return next((mapping.start - mapping.offset for mapping in module.mappings if mapping.executable), 0)


def _moved(known: Located, module: Module) -> Located:
    """The same where another process has mapped the file."""
    by = _anchor(module) - _anchor(known.module)
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
    except Unsettled:
        raise NotBegun from None
    except Refused:
        return None
    if found is None:
        raise NotBegun
    return found
