"""Which processes have a program or library that holds an interpreter: a quick look, file by file, each file once."""

from __future__ import annotations

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.interpreters.cpython.locate import in_image
from pyprof.model.modules import AddressSpace
from pyprof.objfile.images import ImageStore

_MOST_FILES = 4096


class Programs:
    """What is known of files, by device, inode and path."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], bool] = {}

    def may_interpret(self, space: AddressSpace) -> bool:
        """Does one of its modules hold an interpreter? Whether that runs is another question."""
        fresh = ImageStore(Diagnostics())
        found = False
        for module in space.modules:
            if not module.has_file or not any(mapping.executable for mapping in module.mappings):
                continue
            key = (module.dev, module.inode, module.path)
            known = self._known.get(key)
            if known is None:
                image = fresh.image(space, module.start)
                if image is None:
                    continue
                try:
                    known = image.elf.elf_class == 64 and in_image(module, image) is not None
                except FormatError:
                    known = False
                if len(self._known) >= _MOST_FILES:
                    self._known.clear()
                self._known[key] = known
            found = found or known
        return found
