""".eh_frame, the unwind table of nearly all native code, found through .eh_frame_hdr.

If the search table of .eh_frame_hdr is absent or broken, the section is indexed once, and that is counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.walk import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.unwind.formats.cfi.eh_frame_hdr import NAME as HDR_NAME
from pyprof.unwind.formats.cfi.eh_frame_hdr import SearchTable, read_search_table
from pyprof.unwind.formats.cfi.entries import CfiSection, Fde
from pyprof.unwind.formats.cfi.source import CfiTable, cfi_section
from pyprof.unwind.rules import Extents, FunctionRows

MAX_NESTED = 8
"""Maximum number of entries of .eh_frame_hdr's search table that are examined for one address. FDEs may overlap or be
empty.
"""

NO_TABLE = "eh_frame_hdr_without_table"
BROKEN_TABLE = "eh_frame_hdr_table_broken"


class EhFrame:
    """An unwind source from .eh_frame. Implements pyprof.unwind.rules.Source."""

    name = "eh_frame"
    trust = Trust.EH_FRAME
    exact = True

    def __init__(
        self,
        section: CfiSection,
        header: tuple[memoryview, int] | None,
        arch: Arch,
        diagnostics: Diagnostics,
        *,
        stop_at_terminator: bool = False,
    ) -> None:
        """Create an unwind source from an .eh_frame section and its search table.

        Args:
            section: The .eh_frame.
            header: Bytes and file address (svma) of .eh_frame_hdr, or None.
            arch: The architecture.
            diagnostics: Counters of the recording.
            stop_at_terminator: The section's end is uncertain, so that a terminator ends it.
        """
        self._table = CfiTable(section, arch, diagnostics, stop_at_terminator=stop_at_terminator)
        self._diagnostics = diagnostics
        self._search: SearchTable | None = None
        self._uncounted = NO_TABLE
        try:
            self._search = read_search_table(*header, section) if header else None
        except FormatError:
            self._uncounted = BROKEN_TABLE

    def expect_no_table(self) -> None:
        """Stop counting the absence of an .eh_frame_hdr search table. Only a linker writes one, and no linker has seen
        this file.
        """
        self._uncounted = ""

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the .eh_frame rows of the function that covers a file address, or None.

        Raises:
            FormatError: The function's own entry is broken.
        """
        return self._table.rows_at(self._find(svma), svma)

    def extents(self) -> Extents:
        return self._table.index.start, self._table.index.end

    def functions(self) -> Iterator[FunctionRows]:
        return self._table.functions()

    def _find(self, svma: int) -> Fde | None:
        if self._search is not None:
            try:
                return self._find_in(self._search, svma)
            except FormatError:
                self._search = None
                self._uncounted = BROKEN_TABLE
        if self._uncounted and len(self._table.index.start):
            self._diagnostics.count(self._uncounted)
        self._uncounted = ""
        return self._table.find(svma)

    def _find_in(self, search: SearchTable, svma: int) -> Fde | None:
        """Return the smallest FDE that covers a file address, by the search table of .eh_frame_hdr.

        Raises:
            FormatError: The table does not agree with the FDEs.
        """
        starts, offsets, fde_at = search.start, search.offset, self._table.entries.fde
        found: Fde | None = None
        last = search.last_at(svma)
        for at in range(last, max(last - MAX_NESTED, -1), -1):
            if found is not None and starts[at] != found.start:
                break
            fde = fde_at(offsets[at])
            if fde.start != starts[at]:
                raise FormatError(HDR_NAME, at, f"says {starts[at]:#x}, the FDE says {fde.start:#x}")
            if svma < fde.end and (found is None or (fde.end, fde.offset) < (found.end, found.offset)):
                found = fde
        return found


def open_eh_frame(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> EhFrame | None:
    """Return the .eh_frame of a file, or None if it has none.

    Raises:
        FormatError: The section cannot be read.
    """
    table, search = file.unwind_table(".eh_frame"), file.unwind_table(HDR_NAME)
    if table is None:
        return None
    section = cfi_section(file, table)
    header = None
    try:
        if search is not None:
            header = search.read(), search.svma
    except FormatError:
        header = memoryview(b""), 0
    source = EhFrame(section, header, arch, diagnostics, stop_at_terminator=table.open_ended)
    if not file.loads:
        source.expect_no_table()
    return source
