"""Start addresses of functions, from unwind tables that have an entry for each function, and from analysed code.

They serve to name functions that have no symbol.

.ARM.exidx is not used, because its neighbours with equal rules share an entry. UnwindOptions.sources is not used
either, because the name of a function does not depend on the rule that found its frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Protocol

from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.module_unwind_sources import READERS, Reader, open_sources
from pyprof.unwind.rule_lookup import MAX_FILES, FileTables
from pyprof.unwind.rules import Source

TABLES = ("sframe", "eh_frame", "go", "breakpad", "debug_frame")


class Walked(Protocol):
    """The protocol of an object that knows the functions which unwinding has already decoded."""

    def known_start(self, image: Image, svma: int, names: Collection[str]) -> int | None:
        """Return the start of the function that covers a file address, if its unwind rows are already decoded. Else
        return None. The rows may come from the named tables or from the analysis of the function's code.
        """
        ...


class FunctionStarts:
    """A lookup of function starts for one recording. It caches the tables of each file that it has opened.

    Broken tables are not counted here, because the unwinder counts them.

    Attributes:
        walked: The functions whose rows unwinding already knows, which are not decoded again; None if there are none.
    """

    def __init__(self, readers: Mapping[str, Reader] = READERS) -> None:
        self.walked: Walked | None = None
        self._readers = readers
        self._files: dict[int, tuple[ObjectFile, FileTables]] = {}

    def __call__(self, image: Image, avma: int, known_only: bool = False) -> int | None:
        """Return the start address in the file of the function that covers a lookup pc.

        Args:
            image: The module at the pc.
            avma: The lookup pc in the process.
            known_only: Use only functions whose rows unwinding already knows.

        Returns:
            The address (svma), or None if no table covers the pc and its code was not analysed.
        """
        svma = image.svma(avma)
        walked = self.walked.known_start(image, svma, TABLES) if self.walked is not None else None
        if walked is not None or known_only:
            return walked
        found = self._tables(image).function(svma, exact=False)
        return None if found is None else found[0].start

    def retire(self, files: Set[ObjectFile]) -> None:
        """Drop the unwind tables of files that no process maps any more."""
        for file in files:
            self._files.pop(id(file), None)

    def _tables(self, image: Image) -> FileTables:
        file = image.file
        found = self._files.get(id(file))
        if found is None:
            if len(self._files) >= MAX_FILES:
                self._files.clear()
            unheard = Diagnostics()

            def opened(tables: ObjectFile | None) -> list[Source]:
                arch = file.arch
                return open_sources(tables, arch, TABLES, unheard, self._readers) if tables and arch else []

            tables = FileTables(file.name, opened(file), unheard, lambda: opened(image.debug))
            found = self._files[id(file)] = (file, tables)
        return found[1]
