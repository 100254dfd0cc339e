"""The common part of .eh_frame and .debug_frame as unwind sources."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile, UnwindTable
from pyprof.unwind.formats.cfi.entries import CfiEntries, CfiSection, Fde
from pyprof.unwind.formats.cfi.fde_index import CfiIndex, build_index
from pyprof.unwind.formats.cfi.pointers import Bases
from pyprof.unwind.formats.cfi.program import CfiPrograms
from pyprof.unwind.rules import FunctionRows


def cfi_section(file: ObjectFile, table: UnwindTable) -> CfiSection:
    """Return the CFI section of a file with the bases of its relative pointers.

    Raises:
        FormatError: The table cannot be read.
    """
    sections = file.sections
    text, got = sections.get(".text"), sections.get(".got.plt") or sections.get(".got")
    return CfiSection(
        name=table.name,
        data=table.read(),
        svma=table.svma,
        eh=table.name == ".eh_frame",
        byteorder=file.byteorder,
        address_size=file.address_size,
        bases=Bases(text.addr if text else 0, got.addr if got else 0),
    )


class CfiTable:
    """The functions of one CFI section. Their index is built when it is first needed."""

    def __init__(
        self,
        section: CfiSection,
        arch: Arch,
        diagnostics: Diagnostics,
        *,
        stop_at_terminator: bool = False,
        live: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Create an unwind source from a CFI section, without reading it.

        Args:
            section: The section.
            arch: The architecture.
            diagnostics: Counters of the recording.
            stop_at_terminator: The section's end is uncertain, so that a terminator ends it.
            live: (start, end) ranges of file addresses outside of which no function starts; () stands for everywhere.
        """
        self.entries = CfiEntries(section)
        self.programs = CfiPrograms(self.entries, arch)
        self._diagnostics = diagnostics
        self._stop_at_terminator = stop_at_terminator
        self._live = live
        self._index: CfiIndex | None = None

    @property
    def index(self) -> CfiIndex:
        if self._index is None:
            self._index = build_index(self.entries, stop_at_terminator=self._stop_at_terminator, live=self._live)
            for oddity, times in self._index.oddities.items():
                self._diagnostics.count(oddity, times)
        return self._index

    def find(self, svma: int) -> Fde | None:
        """Return the FDE that covers a file address by the index, or None."""
        offset = self.index.offset_at(svma)
        return None if offset is None else self.entries.fde(offset)

    def rows_at(self, fde: Fde | None, svma: int) -> FunctionRows | None:
        """Return the unwind rows of an FDE's function if they cover a file address, else None.

        Raises:
            FormatError: The function's instructions are broken.
        """
        if fde is None:
            return None
        rows = self.programs.rows(fde)
        return rows if rows.start <= svma < rows.end else None

    def functions(self) -> Iterator[FunctionRows]:
        """Yield the unwind rows of all functions in the CFI section, ascending by start. Functions with unreadable rows
        are counted.
        """
        for offset in self.index.offset.tolist():
            try:
                yield self.programs.rows(self.entries.fde(offset))
            except FormatError:
                self._diagnostics.count(f"cfi_function_broken:{self.entries.section.name}")
