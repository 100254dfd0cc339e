"""The tables that registered unwind info points to, as rows. All addresses are those in the process.

    TABLE             table_data -> unw_debug_frame_list: start, end, debug_frame*, size, index*, ...: a .debug_frame in
                      the target's memory, its addresses relative to segbase
    REMOTE_TABLE      (i32 start, i32 FDE) pairs, both relative to segbase; FDEs as in .eh_frame
    REMOTE_TABLE_64   the same with i64
    IP_OFFSET         the starts are relative to start_ip
    ARM_EXIDX         an .ARM.exidx in the target's memory

libunwind requires sorted pairs, but Julia does not guarantee the order, so they are sorted here. A table is read once.
FDEs are read when a pc needs them.
Source: include/dwarf.h and src/dwarf/Gfind_proc_info-lsb.c of libunwind 1.8.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.objfile.target_structs import TargetStructs
from pyprof.unwind.formats.cfi.entries import CfiEntries, CfiSection
from pyprof.unwind.formats.cfi.program import CfiPrograms
from pyprof.unwind.formats.cfi.source import CfiTable
from pyprof.unwind.formats.libunwind.registered_info import MAX_TABLE_BYTES, SECTION, DynInfo, RegionFormat, table_size
from pyprof.unwind.rules import FunctionRows

MAX_ENTRY = 1 << 16
"""Maximum size in bytes of one CIE or FDE of a registered table."""

MAX_KNOWN = 1 << 12


class RegionTable(Protocol):
    """The protocol of a registered unwind table in the target's memory."""

    def function_at(self, avma: int) -> FunctionRows | None:
        """Return the unwind rows of the function that covers an address in the process, or None.

        Raises:
            FormatError: The table is broken there.
        """
        ...


def open_table(
    info: DynInfo, read: ReadMemory, arch: Arch, diagnostics: Diagnostics, max_bytes: int = MAX_TABLE_BYTES
) -> RegionTable | None:
    """Return the table of registered unwind info, or None if such a table does not exist on this architecture.

    Args:
        info: The registered unwind info.
        read: Function that reads the target's memory.
        arch: The architecture.
        diagnostics: Counters of the recording.
        max_bytes: Maximum number of bytes that may be kept of the table.

    Raises:
        FormatError: The table is broken or larger than `max_bytes`.
    """
    structs = TargetStructs(read, arch, SECTION, 2 * MAX_TABLE_BYTES)
    if info.head.format == RegionFormat.TABLE:
        return DebugFrameInMemory(info, structs, diagnostics, max_bytes)
    _check_size(info, table_size(info.head.format, info.table_len, arch.word), max_bytes)
    if info.head.format == RegionFormat.ARM_EXIDX:
        from pyprof.unwind.formats.exidx.section import open_memory_exidx

        return open_memory_exidx(
            info.table_data, structs.read_exactly(info.table_data, info.table_len), read, arch, diagnostics
        )
    return PairTable(info, structs)


def count_held_bytes(info: DynInfo, table: RegionTable | None, arch: Arch) -> int:
    """Return the number of bytes that an open registered unwind table keeps of the target's memory."""
    if table is None:
        return 0
    if isinstance(table, DebugFrameInMemory):
        return table.size
    return table_size(info.head.format, info.table_len, arch.word)


def _check_size(info: DynInfo, size: int, most: int) -> None:
    if size > most:
        raise FormatError(SECTION, info.table_data, f"a table of {size} bytes: more tables than are read")


class DebugFrameInMemory:
    """A registered unwind table in the target's memory, of the format TABLE.

    Attributes:
        size: Size of the .debug_frame in bytes.
    """

    def __init__(self, info: DynInfo, structs: TargetStructs, diagnostics: Diagnostics, max_bytes: int) -> None:
        start, end, debug_frame, size = structs.unpack(info.table_data, structs.layout("PPPP"))
        if not start <= info.head.start < end:
            raise FormatError(SECTION, info.table_data, f"a table of {start:#x} to {end:#x}")
        if not 0 < size <= MAX_TABLE_BYTES:
            raise FormatError(SECTION, info.table_data, f".debug_frame of {size} bytes")
        _check_size(info, size, max_bytes)
        data = structs.read_exactly(debug_frame, size)
        self.size = size
        section = CfiSection(
            ".debug_frame", memoryview(data), debug_frame, False, structs.arch.byteorder, structs.arch.word
        )
        self._shift = info.segbase + info.load_offset
        self._mask = structs.arch.mask
        self._table = CfiTable(section, structs.arch, diagnostics)

    def function_at(self, avma: int) -> FunctionRows | None:
        svma = avma - self._shift & self._mask
        rows = self._table.rows_at(self._table.find(svma), svma)
        return None if rows is None else shift_rows(rows, avma - svma)


class PairTable:
    """A registered unwind table in the target's memory, of one of the formats REMOTE_TABLE, REMOTE_TABLE_64 and
    IP_OFFSET.
    """

    def __init__(self, info: DynInfo, structs: TargetStructs) -> None:
        size = table_size(info.head.format, info.table_len, structs.word)
        width = 8 if info.head.format == RegionFormat.REMOTE_TABLE_64 else 4
        data = structs.read_exactly(info.table_data, size - size % (2 * width))
        pairs = np.frombuffer(data, f"{structs.order}i{width}").reshape(-1, 2).astype(f"i{width}")
        order = np.argsort(pairs[:, 0], kind="stable")
        self._starts = pairs[order, 0]  # arrays: as lists of numbers they would be ten times as large as the table
        self._fdes = pairs[order, 1]
        self._segbase = info.segbase
        self._load_offset = info.load_offset
        self._base = info.head.start if info.head.format == RegionFormat.IP_OFFSET else info.segbase
        self._mask = structs.arch.mask
        self._reader = FdeReader(structs)

    def function_at(self, avma: int) -> FunctionRows | None:
        wrapped = avma - self._base - self._load_offset & self._mask
        offset = wrapped - (self._mask + 1) if wrapped > self._mask >> 1 else wrapped
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return None
        rows = self._reader.rows(self._segbase + int(self._fdes[at]) & self._mask)
        if self._load_offset:
            rows = shift_rows(rows, self._load_offset)
        return rows if rows.start <= avma < rows.end else None


class FdeReader:
    """A reader of single FDEs of an .eh_frame in the target's memory, which caches their rows."""

    def __init__(self, structs: TargetStructs) -> None:
        self._structs = structs
        self._length = structs.layout("I")
        self._known: dict[int, FunctionRows] = {}

    def rows(self, avma: int) -> FunctionRows:
        """Return the unwind rows of the FDE at an address in the process.

        Raises:
            FormatError: The FDE cannot be read.
        """
        if avma not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[avma] = self._read(avma)
        return self._known[avma]

    def _read(self, avma: int) -> FunctionRows:
        """Read an FDE and its CIE from the target's memory into one section.

        The FDE keeps its own address, so that its relative pointers stay valid.
        """
        structs = self._structs
        fde = self._entry(avma)
        (back,) = self._length.unpack_from(fde, 4)
        if not back:
            raise FormatError(SECTION, avma, "a CIE where an FDE must stand")
        cie = self._entry(avma + 4 - back & structs.arch.mask)
        data = cie + fde[:4] + self._length.pack(len(cie) + 4) + fde[8:]
        svma = avma - len(cie) & structs.arch.mask
        section = CfiSection(".eh_frame", memoryview(data), svma, True, structs.arch.byteorder, structs.arch.word)
        entries = CfiEntries(section)
        return CfiPrograms(entries, structs.arch).rows(entries.fde(len(cie)))

    def _entry(self, avma: int) -> bytes:
        (length,) = self._structs.unpack(avma, self._length)
        if not 4 <= length <= MAX_ENTRY:
            raise FormatError(SECTION, avma, f"a CIE or FDE of {length} bytes")
        return self._structs.read_exactly(avma, 4 + length)


def shift_rows(rows: FunctionRows, by: int) -> FunctionRows:
    return rows._replace(start=rows.start + by, end=rows.end + by, starts=tuple(start + by for start in rows.starts))
