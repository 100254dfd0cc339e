"""Unwind info that a process has registered with libunwind: its list, its entries and its tables, read from memory.

`_U_dyn_info_list` is hidden: only a symbol table that was not stripped has it, of the file or of its debug file. A
shared libunwind exports the function `_U_dyn_info_list_addr`, which only returns the list's address. The address is
decoded from its code.

    x86-64    [endbr64] [push %rbp; mov %rsp,%rbp] lea rel32(%rip),%rax [pop %rbp] ret      or mov from a GOT slot
    AArch64   [bti c] adrp x0, page; add x0, x0, #offset (or ldr x0, [x0, #slot]); ret

DynReader takes the address of `_U_dyn_info_list` in the process and returns complete DynInfo values. Later reads of the
target concern only tables that an info points to. libunwind_regions.py interprets procedures. Source:
libunwind-dynamic(3); include/libunwind-dynamic.h of libunwind 1.1 to 1.8; src/mi/Gdyn-remote.c, which reads a list
while it changes.

    list      u32 version (0), u32 generation, first*
    info      next*, prev*, start_ip, end_ip, gp, i32 format, i32 pad, [load_offset,] union of four words
    proc      name*, handler, u32 flags, i32 pad, regions*         table     name*, segbase, table_len, table_data*
    region    next*, i32 insn_count, u32 op_count, op[op_count]    op        i8 tag, i8 qp, i16 reg, i32 when, val

Only programs built with the headers of libunwind 1.6 to 1.8 have load_offset. Nothing says which layout a program has:
both are tried, and the one with plausible content is used.

    TABLE             table_data -> unw_debug_frame_list: start, end, debug_frame*, size, index*, ...: a .debug_frame in
                      the target's memory, its addresses relative to segbase
    REMOTE_TABLE      (i32 start, i32 FDE) pairs, both relative to segbase; FDEs as in .eh_frame
    REMOTE_TABLE_64   the same with i64
    IP_OFFSET         the starts are relative to start_ip
    ARM_EXIDX         an .ARM.exidx in the target's memory

libunwind requires sorted pairs, but Julia does not guarantee the order, so they are sorted here. A table is read once.
An FDE is read when a pc first needs it.
Source: include/dwarf.h and src/dwarf/Gfind_proc_info-lsb.c of libunwind 1.8.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from enum import IntEnum
from typing import Protocol

import numpy as np

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import ReadMemory
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.target_memory_structs import TargetStructs
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_cie_and_fde import CfiEntries, CfiSection
from pyprof.unwind.formats.cfi_instructions import CfiPrograms
from pyprof.unwind.formats.cfi_sections import CfiTable
from pyprof.unwind.rules import FunctionRows

LIST, LIST_ADDR = b"_U_dyn_info_list", b"_U_dyn_info_list_addr"
SYMBOLS = (LIST, LIST_ADDR)
MAX_GETTER_BYTES = 32

_PROLOGUES = (b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", b"\x55\x48\x89\xe5", b"\xf3\x0f\x1e\xfa", b"")


def find_list(file: ObjectFile, arch: Arch, debug: ObjectFile | None) -> tuple[int, bool] | None:
    """Return where an object file has libunwind's list of registered unwind infos.

    Returns:
        (file address of the list, False), or (file address of a word that holds its address in the process, True), or
        None.
    """
    found = file.named_symbols(SYMBOLS)
    if LIST in found:
        return found[LIST], False
    if LIST_ADDR in found:
        known = decode_getter(bytes(file.at_svma(found[LIST_ADDR], MAX_GETTER_BYTES)), found[LIST_ADDR], arch)
        if known is not None:
            return known
    if debug is not None:
        separate = debug.named_symbols((LIST,))
        if LIST in separate:
            return separate[LIST] + file.min_vaddr - debug.min_vaddr, False
    return None


def decode_getter(code: bytes, svma: int, arch: Arch) -> tuple[int, bool] | None:
    """Decode the code of `_U_dyn_info_list_addr`, a function of libunwind that only returns the address of its list.

    Args:
        code: The function's code.
        svma: File address (svma) of the function.
        arch: The architecture.

    Returns:
        (file address of the list, False), or (file address of a word that holds the list's address, True). None if the
        code has another form.
    """
    if arch.name == "x86_64":
        return _decode_x86_64(code, svma)
    return _decode_aarch64(code, svma) if arch.name == "aarch64" else None


def _decode_x86_64(code: bytes, svma: int) -> tuple[int, bool] | None:
    skipped = next(len(start) for start in _PROLOGUES if code.startswith(start))
    body = code[skipped : skipped + 9]
    if len(body) < 8 or body[:1] != b"\x48" or body[2:3] != b"\x05" or body[1:2] not in (b"\x8d", b"\x8b"):
        return None
    if body[7:8] != b"\xc3" and body[7:9] not in (b"\x5d\xc3", b"\xc9\xc3"):
        return None
    target = svma + skipped + 7 + int.from_bytes(body[3:7], "little", signed=True)
    return target & (1 << 64) - 1, body[1:2] == b"\x8b"


def _decode_aarch64(code: bytes, svma: int) -> tuple[int, bool] | None:
    words = list(struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4]))
    if words[:1] == [0xD503245F]:  # bti c
        words, svma = words[1:], svma + 4
    if len(words) < 3 or words[0] & 0x9F00001F != 0x90000000 or words[2] != 0xD65F03C0:  # adrp x0; ret
        return None
    pages = (words[0] >> 5 & 0x7FFFF) << 2 | words[0] >> 29 & 3
    pages -= (pages & 1 << 20) << 1
    page = (svma & -4096) + (pages << 12)
    if words[1] & 0xFFC003FF == 0x91000000:  # add x0, x0, #imm12
        return page + (words[1] >> 10 & 0xFFF) & (1 << 64) - 1, False
    if words[1] & 0xFFC003FF == 0xF9400000:  # ldr x0, [x0, #imm12 * 8]
        return page + 8 * (words[1] >> 10 & 0xFFF) & (1 << 64) - 1, True
    return None


SECTION = "libunwind list"

MAX_INFOS = 1 << 16
MAX_REGIONS = 256
MAX_OPS = 4096
MAX_PROCEDURE_BYTES = 1 << 40
MAX_TABLE_BYTES = 64 << 20
MAX_BYTES = 64 << 20
"""Maximum number of bytes that one pass over a libunwind list reads, without its tables."""


class RegionFormat(IntEnum):
    """The format of registered unwind info (unw_dyn_info_format_t)."""

    DYNAMIC = 0
    TABLE = 1
    REMOTE_TABLE = 2
    ARM_EXIDX = 3
    IP_OFFSET = 4
    REMOTE_TABLE_64 = 5


class Tag(IntEnum):
    """The kind of an unwind directive (unw_dyn_operation_t)."""

    STOP = 0
    SAVE_REG = 1
    SPILL_FP_REL = 2
    SPILL_SP_REL = 3
    ADD = 4
    POP_FRAMES = 5
    LABEL_STATE = 6
    COPY_STATE = 7
    ALIAS = 8


@dataclass(frozen=True, slots=True)
class Op:
    """An unwind directive of registered unwind info. `val` is signed."""

    tag: int
    reg: int
    when: int
    val: int


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a libunwind procedure: its length in instructions, which pyprof takes as bytes, and its
    directives.
    """

    insn_count: int
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The common part of registered unwind info, before its union.

    Attributes:
        info: Address of the info in the process.
        start: First address of the code.
        end: Address after its code.
        gp: Value of the global pointer.
        format: A RegionFormat.
    """

    info: int
    start: int
    end: int
    gp: int
    format: int


@dataclass(frozen=True, slots=True)
class DynInfo:
    """One piece of code whose unwind info was registered.

    Attributes:
        head: The common part.
        name: Name of the code.
        with_offset: The info was read in the layout with load_offset.
        load_offset: Value of load_offset.
        regions: Regions of a procedure.
        segbase: Segment base of a table, as stated.
        table_len: Length of a table, as stated.
        table_data: Address of a table, as stated.
        sure: True if the info's own content determined its layout. False if the layout of other infos decided.
    """

    head: Head
    name: str
    with_offset: bool
    load_offset: int = 0
    regions: tuple[Region, ...] = ()
    segbase: int = 0
    table_len: int = 0
    table_data: int = 0
    sure: bool = True


@dataclass(frozen=True, slots=True)
class DynList:
    """The list of unwind infos that a process registered, without their details.

    Attributes:
        generation: Generation of the list.
        heads: The infos, in the order of the list.
        whole: True if the list was read to its end.
    """

    generation: int
    heads: tuple[Head, ...]
    whole: bool


class DynReader:
    """A reader of one process's list of registered unwind infos."""

    def __init__(self, read: ReadMemory, arch: Arch) -> None:
        self._structs = TargetStructs(read, arch, SECTION, MAX_BYTES)
        structs = self._structs
        self._list = structs.layout("IIP")
        self._head = structs.layout("PPPPPii")
        self._word = structs.layout("P")
        self._union = structs.layout("PPPP")
        self._flags = structs.layout("Ii")
        self._region = structs.layout("PiI")
        self._op = structs.layout("bbhi" + ("q" if structs.word == 8 else "i"))

    def read_generation(self, avma: int) -> tuple[int, int]:
        """Return (generation, address of the first info) of a list of registered unwind infos.

        Raises:
            FormatError: The list is not readable, or its version is unknown.
        """
        version, generation, first = self._structs.unpack(avma, self._list)
        if version != 0:
            raise FormatError(SECTION, avma, f"unknown version {version}")
        return generation, first

    def read_heads(self, avma: int) -> DynList:
        """Return the list of registered unwind infos without their details.

        Raises:
            FormatError: The list is not readable, or its version is unknown.
        """
        generation, at = self.read_generation(avma)
        found: list[Head] = []
        seen: set[int] = set()
        whole = True
        while at:
            if at in seen or len(found) >= MAX_INFOS:
                whole = False
                break
            seen.add(at)
            try:
                following, _, start, end, gp, kind, _ = self._structs.unpack(at, self._head)
            except FormatError:
                whole = False
                break
            found.append(Head(at, start, end, gp, kind))
            at = following
        return DynList(generation, tuple(found), whole)

    def read_info(self, head: Head, usual: bool) -> DynInfo:
        """Return a registered unwind info with its details.

        Args:
            head: Common part of the info.
            usual: True to prefer the layout with load_offset if both layouts are plausible.

        Raises:
            FormatError: Neither layout is plausible.
        """
        if not 0 < head.end - head.start <= MAX_PROCEDURE_BYTES:
            raise FormatError(SECTION, head.info, f"code from {head.start:#x} to {head.end:#x}")
        readings: list[tuple[int, DynInfo]] = []
        problem = FormatError(SECTION, head.info, "no layout fits")
        for with_offset in (True, False):
            try:
                readings.append(self._reading(head, with_offset))
            except FormatError as error:
                problem = error
        if not readings:
            raise problem
        if len(readings) == 1 and readings[0][0] == 0 and readings[0][1].with_offset != usual:
            raise problem  # in the wrong layout, a broken info looks like an empty one
        best = max(readings, key=lambda reading: (reading[0], reading[1].with_offset == usual))
        sure = len({score for score, _ in readings}) == len(readings)
        return replace(best[1], sure=sure)

    def _reading(self, head: Head, with_offset: bool) -> tuple[int, DynInfo]:
        """Read registered unwind info by one of the two possible layouts. Return a measure of how plausible the content
        is, and the info.

        Returns:
            (plausibility, info); a larger number is more plausible.

        Raises:
            FormatError: The content is not plausible at all.
        """
        at = head.info + self._head.size
        info = DynInfo(head, "", with_offset)
        if with_offset:
            info = replace(info, load_offset=self._structs.unpack(at, self._word)[0])
            at += self._word.size
        if head.format == RegionFormat.DYNAMIC:
            return self._procedure(info, at)
        if head.format not in list(RegionFormat):
            raise FormatError(SECTION, head.info, f"unknown format {head.format}")
        return self._table(info, at)

    def _procedure(self, info: DynInfo, at: int) -> tuple[int, DynInfo]:
        word, head = self._word.size, info.head
        name, handler = (self._structs.unpack(at + k * word, self._word)[0] for k in (0, 1))
        flags, pad = self._structs.unpack(at + 2 * word, self._flags)
        (first,) = self._structs.unpack(at + 2 * word + 8, self._word)
        if flags or pad:
            raise FormatError(SECTION, head.info, f"flags {flags:#x}")
        regions = tuple(self._regions(first))
        text = self._structs.read_c_string(name)
        if handler and not self._readable(handler):
            raise FormatError(SECTION, head.info, f"personality routine at {handler:#x}")
        score = 2 * bool(regions) + bool(text)
        return score, replace(info, name=text, regions=regions)

    def _regions(self, at: int) -> list[Region]:
        found: list[Region] = []
        seen: set[int] = set()
        ops = 0
        while at:
            if at in seen or len(found) >= MAX_REGIONS:
                raise FormatError(SECTION, at, "regions without an end")
            seen.add(at)
            following, insn_count, op_count = self._structs.unpack(at, self._region)
            if op_count > MAX_OPS - ops:
                raise FormatError(SECTION, at, f"{op_count} directives")
            ops += op_count
            data = self._structs.read_exactly(at + self._region.size, op_count * self._op.size)
            found.append(Region(insn_count, tuple(self._ops(data, at))))
            at = following
        return found

    def _ops(self, data: bytes, at: int) -> list[Op]:
        """Return the directives of a region before STOP. The rest of the array is allocated but not filled."""
        found = []
        for tag, _, reg, when, val in self._op.iter_unpack(data):
            if tag == Tag.STOP:
                break
            if not Tag.STOP < tag <= Tag.ALIAS:
                raise FormatError(SECTION, at, f"directive {tag}")
            found.append(Op(tag, reg, when, val))
        return found

    def _table(self, info: DynInfo, at: int) -> tuple[int, DynInfo]:
        head = info.head
        name, segbase, table_len, table_data = self._structs.unpack(at, self._union)
        size = table_size(head.format, table_len, self._word.size)
        if not 0 < size <= MAX_TABLE_BYTES or not table_data:
            raise FormatError(SECTION, head.info, f"a table of {table_len} units at {table_data:#x}")
        if not (self._readable(table_data) and self._readable(table_data + size - 1)):
            raise FormatError(SECTION, head.info, f"table at {table_data:#x} is not readable")
        text = self._structs.read_c_string(name)
        score = bool(text) + (name == 0) + self._readable(segbase)
        return score, replace(info, name=text, segbase=segbase, table_len=table_len, table_data=table_data)

    def _readable(self, avma: int) -> bool:
        return avma > 0 and len(self._structs.read_available(avma, 1)) == 1


def table_size(kind: int, table_len: int, word: int) -> int:
    """Return the size of a registered unwind table in bytes. table_len counts bytes for ARM_EXIDX and words
    otherwise.
    """
    return table_len if kind == RegionFormat.ARM_EXIDX else table_len * word


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
        max_bytes: Maximum size in bytes of the part of the table that is kept in memory.

    Raises:
        FormatError: The table is broken or larger than `max_bytes`.
    """
    structs = TargetStructs(read, arch, SECTION, 2 * MAX_TABLE_BYTES)
    if info.head.format == RegionFormat.TABLE:
        return DebugFrameInMemory(info, structs, diagnostics, max_bytes)
    _check_size(info, table_size(info.head.format, info.table_len, arch.word), max_bytes)
    if info.head.format == RegionFormat.ARM_EXIDX:
        from pyprof.unwind.formats.exidx_section import open_memory_exidx

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
