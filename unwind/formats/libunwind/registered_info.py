"""Unwind info that a process has registered by _U_dyn_register, read from its memory.

DynReader takes the address of `_U_dyn_info_list` in the process and returns complete DynInfo values. Later reads of the
target concern only tables that an info points to. region_interpreter.py (procedures) and registered_tables.py (tables)
interpret the values. Source: libunwind-dynamic(3); include/libunwind-dynamic.h of libunwind 1.1 to 1.8;
src/mi/Gdyn-remote.c, which reads a list while it changes.

    list      u32 version (0), u32 generation, first*
    info      next*, prev*, start_ip, end_ip, gp, i32 format, i32 pad, [load_offset,] union of four words
    proc      name*, handler, u32 flags, i32 pad, regions*         table     name*, segbase, table_len, table_data*
    region    next*, i32 insn_count, u32 op_count, op[op_count]    op        i8 tag, i8 qp, i16 reg, i32 when, val

Only programs built with the headers of libunwind 1.6 to 1.8 have load_offset. Nothing says which layout a program has:
both are tried, and the one with plausible content is used.
"""

from __future__ import annotations

from enum import IntEnum

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.objfile.target_structs import TargetStructs
from pyprof.records import dataclass, replace

SECTION = "libunwind list"

MAX_INFOS = 1 << 16
MAX_REGIONS = 256
MAX_OPS = 4096
MAX_CODE = 1 << 40
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
    """A region of a libunwind procedure: its length in instructions (bytes here), and its directives."""

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
        sure: True if the info's own content determined its layout, not that of its neighbours.
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
            usual: Prefer the layout with load_offset if both layouts are plausible.

        Raises:
            FormatError: Neither layout is plausible.
        """
        if not 0 < head.end - head.start <= MAX_CODE:
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
        """Return (plausibility, info) of registered unwind info in one of the two layouts.

        Raises:
            FormatError: The content is not plausible.
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
