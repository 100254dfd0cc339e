"""Does CPython run in a process? A quick look, without its threads or names: each file is read once."""

from __future__ import annotations

from collections.abc import Callable

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.interpreters.base import NotBegun
from pyprof.interpreters.cpython.locate import Located, in_image
from pyprof.interpreters.cpython.memory import Memory
from pyprof.interpreters.cpython.runtime import Refused, Runtime, Unsettled, open_runtime
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import ImageStore
from pyprof.records import replace

_MOST_FILES = 4096


class Programs:
    """What is known of files, by device, inode and path: where their interpreter is, None if they have none."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], Located | None] = {}

    def runtime(self, space: AddressSpace, tasks: Callable[[int], bool]) -> Runtime | None:
        """The interpreter that runs in a process, None if there is none that we can read. tasks: is this a tid of the
        process, as its pid namespace counts? Raises NotBegun.
        """
        files = ImageStore(Diagnostics())
        for module in space.modules:
            if module.has_file and any(mapping.executable for mapping in module.mappings):
                located = self._located(module, space, files)
                if located is not None:
                    return _opened(located, space, tasks)
        return None

    def _located(self, module: Module, space: AddressSpace, files: ImageStore) -> Located | None:
        key = (module.dev, module.inode, module.path)
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
        moved = module.start - known.module.start
        return replace(
            known,
            module=module,
            runtime=known.runtime + moved,
            version=known.version and known.version + moved,
            evaluators=tuple(avma + moved for avma in known.evaluators),
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
