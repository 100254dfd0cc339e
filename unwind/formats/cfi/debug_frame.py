""".debug_frame, the debuggers' form of .eh_frame, often compressed and in a separate file.

It has no search table. It is read, decompressed and indexed at the first lookup.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.walk import Trust
from pyprof.objfile.base import ObjectFile, UnwindTable
from pyprof.unwind.formats.cfi.go_stacks import MAX_CODE, correct_rows, is_go
from pyprof.unwind.formats.cfi.source import CfiTable, cfi_section
from pyprof.unwind.rules import Extents, FunctionRows

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
        self._is_go = is_go(file, arch)

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
