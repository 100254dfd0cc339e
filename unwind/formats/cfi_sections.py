""".eh_frame and .debug_frame as unwind sources.

Nearly all native code has .eh_frame, found through .eh_frame_hdr. If the search table of .eh_frame_hdr is absent or
broken, the section is indexed once, and that is counted.

The debuggers' form of .eh_frame, .debug_frame, is often compressed and in a separate file. It has no search table. It
is read, decompressed and indexed at the first lookup.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile, UnwindTable
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_cie_and_fde import Bases, CfiEntries, CfiSection, Fde
from pyprof.unwind.formats.cfi_fde_index import NAME as HDR_NAME
from pyprof.unwind.formats.cfi_fde_index import CfiIndex, SearchTable, build_index, read_search_table
from pyprof.unwind.formats.cfi_instructions import CfiPrograms
from pyprof.unwind.rules import Extents, FunctionRows


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
            stop_at_terminator: The section's end is uncertain, so that an entry with length zero ends it.
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
        """Return the FDE that covers a file address, or None. It is found by the index of the section."""
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
            stop_at_terminator: The section's end is uncertain, so that an entry with length zero ends it.
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
        """Stop counting a missing .eh_frame_hdr as a problem. Only linkers write one, and no linker has made this
        object file, for example that of a JIT compiler.
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
        """Return the smallest FDE that covers a file address, found by the search table of .eh_frame_hdr. None if there
        is none.

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


NAME = ".debug_frame"


class DebugFrame:
    """An unwind source from .debug_frame. Implements pyprof.unwind.rules.Source."""

    name = "debug_frame"
    trust = Trust.DEBUG_FRAME
    exact = True

    def __init__(self, file: ObjectFile, section: UnwindTable, arch: Arch, diagnostics: Diagnostics) -> None:
        self._file = file
        self._section = section
        self._arch = arch
        self._diagnostics = diagnostics
        self._table: CfiTable | FormatError | None = None
        # the rules of gopclntab.py are for x86-64 only
        self._is_go = arch.name == "x86_64" and ".gopclntab" in file.sections

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the .debug_frame rows of the function that covers a file address, or None.

        Raises:
            FormatError: The section or the function's entry is broken.
        """
        table = self._load()
        rows = table.rows_at(table.find(svma), svma)
        return self._as_go(rows) if rows is not None and self._is_go else rows

    def extents(self) -> Extents:
        index = self._load().index
        return index.start, index.end

    def functions(self) -> Iterator[FunctionRows]:
        found = self._load().functions()
        return map(self._as_go, found) if self._is_go else found

    def _as_go(self, rows: FunctionRows) -> FunctionRows:
        from pyprof.unwind.formats.gopclntab import MAX_CODE, correct_rows  # most programs are not written in Go

        size = rows.end - rows.start
        return correct_rows(rows, bytes(self._file.at_svma(rows.start, size))) if size <= MAX_CODE else rows

    def _load(self) -> CfiTable:
        if self._table is None:
            try:
                section = cfi_section(self._file, self._section)
                self._table = CfiTable(section, self._arch, self._diagnostics, live=find_executable_ranges(self._file))
            except FormatError as error:
                self._table = error
        if isinstance(self._table, FormatError):
            raise self._table.with_traceback(None)
        return self._table


def find_executable_ranges(file: ObjectFile) -> tuple[tuple[int, int], ...]:
    """Return the (start, end) ranges of file addresses that may hold code, without address 0.

    A linker leaves the entries of functions that it dropped in .debug_frame. Their start becomes 0 or a tombstone (-1,
    -2), so that they would cover code of other functions.
    """
    ranges = [(max(s.vaddr, 1), s.vaddr + s.memsz) for s in file.loads if s.executable and s.memsz]
    return tuple(ranges) or ((1, (1 << 64) - 2),)


def open_debug_frame(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> DebugFrame | None:
    """Return the .debug_frame of a file, or None if it has none."""
    section = file.unwind_table(NAME)
    return None if section is None else DebugFrame(file, section, arch, diagnostics)
