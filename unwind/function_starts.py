"""Where functions begin, as the tables say that have an entry for each: what names a function that has no symbol.

.ARM.exidx is not asked: neighbours with equal rules share an entry there. Nor does UnwindOptions.sources matter: a
function is the same one however its frames are found.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import find_arch
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.images import Image
from pyprof.unwind.base import Source
from pyprof.unwind.index import MAX_FILES, FileTables
from pyprof.unwind.sources import READERS, Reader, open_sources

TABLES = ("sframe", "eh_frame", "breakpad", "debug_frame")


class FunctionStarts:
    """Answers of one recording; keeps the tables of the files that it was asked about.

    What is broken is counted by the walk, which reads the same tables.
    """

    def __init__(self, readers: Mapping[str, Reader] = READERS) -> None:
        self._readers = readers
        self._files: dict[int, tuple[ElfFile, FileTables]] = {}

    def __call__(self, image: Image, avma: int) -> int | None:
        """svma of the start of the function that holds a lookup pc; None where no table has it."""
        found = self._tables(image).function(image.svma(avma), exact=False)
        return None if found is None else found[0].start

    def _tables(self, image: Image) -> FileTables:
        elf = image.elf
        found = self._files.get(id(elf))
        if found is None:
            if len(self._files) >= MAX_FILES:
                self._files.clear()
            unheard = Diagnostics()

            def opened(file: ElfFile | None) -> list[Source]:
                arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
                return open_sources(file, arch, TABLES, unheard, self._readers) if file and arch else []

            tables = FileTables(elf.name, opened(elf), unheard, lambda: opened(image.debug))
            found = self._files[id(elf)] = (elf, tables)
        return found[1]
