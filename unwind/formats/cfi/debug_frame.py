""".debug_frame: the same as .eh_frame for debuggers, often compressed, often in a separate file.

It has no search table. It is read, inflated and indexed when an address is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.walk import Trust
from pyprof.objfile.elf.file import PF_X, SHT_NOBITS, ElfFile
from pyprof.unwind.base import Extents
from pyprof.unwind.formats.cfi.source import CfiTable, cfi_section
from pyprof.unwind.rules import FunctionRows

NAME = ".debug_frame"


class DebugFrame:
    """Source of rules from .debug_frame. Implements pyprof.unwind.base.Source."""

    name = "debug_frame"
    trust = Trust.DEBUG_FRAME
    exact = True

    def __init__(self, elf: ElfFile, arch: Arch, diagnostics: Diagnostics) -> None:
        self._elf = elf
        self._arch = arch
        self._diagnostics = diagnostics
        self._table: CfiTable | FormatError | None = None

    def function_at(self, svma: int) -> FunctionRows | None:
        """Raises FormatError where the section's bytes or the function's entry are broken."""
        table = self._load()
        return table.rows_at(table.find(svma), svma)

    def extents(self) -> Extents:
        index = self._load().index
        return index.start, index.end

    def functions(self) -> Iterator[FunctionRows]:
        return self._load().functions()

    def _load(self) -> CfiTable:
        if self._table is None:
            try:
                data = self._elf.section(NAME)
                section = cfi_section(self._elf, NAME, memoryview(b"") if data is None else data)
                self._table = CfiTable(section, self._arch, self._diagnostics, live=executable_ranges(self._elf))
            except FormatError as error:
                self._table = error
        if isinstance(self._table, FormatError):
            raise self._table.with_traceback(None)
        return self._table


def executable_ranges(elf: ElfFile) -> tuple[tuple[int, int], ...]:
    """svma ranges that may hold code, address 0 left out: a linker leaves the entries of functions that it dropped in
    .debug_frame, and has them start at 0 or at a tombstone (-1, -2), where they cover what is not theirs.
    """
    ranges = [(max(s.vaddr, 1), s.vaddr + s.memsz) for s in elf.loads if s.flags & PF_X and s.memsz]
    return tuple(ranges) or ((1, (1 << 64) - 2),)


def debug_frame_source(elf: ElfFile, arch: Arch, diagnostics: Diagnostics) -> DebugFrame | None:
    """The file's .debug_frame, None if it has none."""
    section = elf.sections.get(NAME) or elf.sections.get(".zdebug_frame")
    if section is None or section.type == SHT_NOBITS or not section.size:
        return None
    return DebugFrame(elf, arch, diagnostics)
