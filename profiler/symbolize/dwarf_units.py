"""Units of .debug_info: their headers, entries by offset, strings, addresses and address ranges.

Source: DWARF 5, 7.5.1 and 7.28. The unit for an address is found in .debug_aranges (DWARF 5, 6.1.2). All sets of that
section are read in one pass: the headers one by one, all ranges at once.
"""

from __future__ import annotations

import struct
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.symbolize import dwarf_attribute_forms as f
from pyprof.symbolize.dwarf_attribute_forms import Data, Deadline

MAX_RANGES = 1 << 20
MAX_OVERLAP = 16
"""Maximum number of address ranges of .debug_aranges that a lookup examines, from the nearest start below the address
on.
"""


class Aranges(NamedTuple):
    """The address ranges of .debug_aranges, sorted by their start.

    Attributes:
        start: (n,) start addresses in the file (svma).
        end: (n,) addresses after the ranges.
        unit: (n,) offsets of the units in .debug_info.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    unit: npt.NDArray[np.uint64]

    def find(self, svma: int) -> int | None:
        """Return the unit of the nearest .debug_aranges range below an address that covers it, or None."""
        at = int(np.searchsorted(self.start, svma & (1 << 64) - 1, "right"))
        low = max(0, at - MAX_OVERLAP)
        for place in range(at - 1, low - 1, -1):
            if svma < int(self.end[place]):
                return int(self.unit[place])
        return None


_Set = tuple[int, int, int, int]
"""Header of one set of .debug_aranges: (size of an address in bytes, offset of the unit, offset of the ranges, maximum
number of ranges).
"""


def read_aranges(data: Data) -> Aranges:
    """Return the address ranges of all sets in .debug_aranges before the first broken one."""
    sets = _sets(data)
    parts = [_of_size(data, size, [each for each in sets if each[0] == size]) for size in (4, 8)]
    start, end, unit = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return Aranges(start[order], end[order], unit[order])


def _of_size(data: Data, size: int, sets: list[_Set]) -> Aranges:
    """Return the address ranges of .debug_aranges sets, unsorted.

    Args:
        data: The section.
        size: Size of an address in bytes.
        sets: Headers of sets with that size.
    """
    unit = np.array([each[1] for each in sets], np.uint64)
    ranges = np.array([each[2] for each in sets], np.int64)
    count = np.array([each[3] for each in sets], np.int64)
    which = np.repeat(np.arange(len(sets)), count)
    first = np.cumsum(count) - count
    at = ranges[which] + 2 * size * (np.arange(len(which)) - first[which])
    content = np.frombuffer(data.bytes, np.uint8)
    kind = np.dtype(f"u{size}").newbyteorder("<" if data.byteorder == "little" else ">")
    pairs = content[at[:, None] + np.arange(2 * size)].view(kind).astype(np.uint64).reshape(-1, 2)
    start, length = pairs[:, 0], pairs[:, 1]
    ends = np.concatenate(([0], np.cumsum((start == 0) & (length == 0))))
    kept = (ends[1:] == ends[first[which]]) & (length != 0)
    return Aranges(start[kept], start[kept] + length[kept], unit[which[kept]])


def _sets(data: Data) -> list[_Set]:
    """Return the headers of all sets in .debug_aranges."""
    head = struct.Struct(("<" if data.byteorder == "little" else ">") + "IHIB")
    content, whole, unpack, header = data.bytes, len(data), head.unpack_from, head.size
    found: list[_Set] = []
    at, left = 0, MAX_RANGES
    while at + header <= whole:
        begin = at
        length, _, unit, size = unpack(content, begin)
        at, stop = begin + header, begin + 4 + length
        if length >= 0xFFFFFFF0:
            try:
                length, offset_size, body = data.unit_length(begin)
                unit, at = data.fixed(body + 2, offset_size)
                size, at = data.fixed(at, 1)
            except FormatError:
                break
            stop = body + length
        if size not in (4, 8):
            break
        ranges = begin + -(-(at + 1 - begin) // (2 * size)) * 2 * size
        at = stop if stop < whole else whole
        pairs = (at - ranges) // (2 * size) if at > ranges else 0
        left -= pairs
        if left < 0:
            break
        found.append((size, unit, ranges, pairs))
    return found


SIBLING, NAME, STMT_LIST, LOW_PC, HIGH_PC, LANGUAGE, COMP_DIR = 0x01, 0x03, 0x10, 0x11, 0x12, 0x13, 0x1B
ABSTRACT_ORIGIN, SPECIFICATION, RANGES, LINKAGE_NAME, MIPS_LINKAGE_NAME = 0x31, 0x47, 0x55, 0x6E, 0x2007
STR_OFFSETS_BASE, ADDR_BASE, RNGLISTS_BASE, DWO_NAME, GNU_DWO_NAME = 0x72, 0x73, 0x74, 0x76, 0x2130
UT_TYPE, UT_SKELETON, UT_SPLIT_COMPILE, UT_SPLIT_TYPE = 2, 4, 5, 6
MAX_UNITS = 1 << 20
MAX_REFERENCES = 16

MAX_HEADER = 32
"""Maximum size of a DWARF unit header in bytes."""
_BEGINNING = 1 << 18

Ranges = list[tuple[int, int]]
"""Address ranges in an object file: (start, end) of each; the end is excluded."""


class Unit:
    """One unit of .debug_info.

    Attributes:
        offset: Offset of the unit.
        end: Offset after the unit.
        die: Offset of the unit's first entry.
        info: The section, at least up to the end of the unit.
        kind: DW_UT, 0 before DWARF 5.
        shape: Sizes of its attribute forms.
        abbrevs: Its abbreviations.
    """

    def __init__(self, dwarf: Dwarf, offset: int) -> None:
        """Read the header of the DWARF unit at an offset.

        Raises:
            FormatError: The header is broken.
        """
        info = dwarf.info_to(offset + MAX_HEADER)
        length, offset_size, at = info.unit_length(offset)
        self._dwarf = weakref.ref(dwarf)  # a weak reference, because Dwarf refers to its units
        self.offset = offset
        self.end = at + length
        self.info = info = dwarf.info_to(self.end)
        if self.end > len(info):
            raise FormatError(info.name, offset, "unit past the end")
        version, at = info.fixed(at, 2)
        if not 2 <= version <= 5:
            raise FormatError(info.name, offset, f"DWARF version {version}")
        self.kind = 0
        if version >= 5:
            self.kind, at = info.fixed(at, 1)
            address_size, at = info.fixed(at, 1)
            abbrevs, at = info.fixed(at, offset_size)
            if self.kind in (UT_SKELETON, UT_SPLIT_COMPILE):
                at += 8
            elif self.kind in (UT_TYPE, UT_SPLIT_TYPE):
                at += 8 + offset_size
        else:
            abbrevs, at = info.fixed(at, offset_size)
            address_size, at = info.fixed(at, 1)
        if address_size not in (4, 8):
            raise FormatError(info.name, offset, f"addresses of {address_size} bytes")
        self.die = at
        self.shape = f.FormSizes(version, offset_size, address_size)
        self.abbrevs = dwarf.abbrevs(abbrevs, self.shape)

    @property
    def dwarf(self) -> Dwarf:
        """The DWARF sections (Dwarf) that this unit belongs to. The owner of a unit must keep that object alive."""
        found = self._dwarf()
        assert found is not None
        return found

    @cached_property
    def top(self) -> dict[int, f.Attribute]:
        """The attributes of the DWARF unit's own entry. Raises FormatError."""
        entry = self.entry(self.die)
        return entry[1] if entry else {}

    def entry(self, at: int) -> tuple[f.Abbrev, dict[int, f.Attribute], int] | None:
        """Return (abbreviation, attributes, offset after it) of the DWARF entry at an offset, or None for a null
        entry.
        """
        if not self.die <= at < self.end:
            raise FormatError(self.info.name, at, "reference out of its unit")
        code, after = self.info.uleb(at)
        if code == 0:
            return None
        abbrev = self.abbrevs[code]
        attributes, after = f.read_attributes(self.info, after, abbrev, self.shape)
        return abbrev, attributes, after

    def constant(self, attributes: dict[int, f.Attribute], name: int) -> int:
        """Return the raw value of an attribute by its DW_AT number, 0 if the DWARF entry does not have it."""
        return attributes[name][1] if name in attributes else 0

    def string(self, attribute: f.Attribute | None) -> bytes:
        """Return the string of a DWARF attribute, b"" if it is absent or in a missing file.

        Raises:
            FormatError: The string is broken.
        """
        if attribute is None:
            return b""
        form, value = attribute
        dwarf = self.dwarf
        if form == f.STRING:
            return self.info.string(value)[0]
        if form == f.STRP:
            return dwarf.strings.string(value)[0]
        if form == f.LINE_STRP:
            return dwarf.line_str.string(value)[0]
        if form in f.STRX:
            size = self.shape.offset_size
            base = self.constant(self.top, STR_OFFSETS_BASE) or (8 if size == 4 else 16)
            return dwarf.strings.string(dwarf.str_offsets.fixed(base + value * size, size)[0])[0]
        if form in (f.STRP_SUP, f.GNU_STRP_ALT) and dwarf.alternate:
            return dwarf.alternate.strings.string(value)[0]
        return b""

    def address(self, attribute: f.Attribute) -> int | None:
        """Return the address of a DWARF attribute of class address, None if it is a constant.

        Raises:
            FormatError: The address is broken.
        """
        form, value = attribute
        if form == f.ADDR:
            return value
        if form in f.ADDRX:
            return self.indexed_address(value)
        return None

    def indexed_address(self, index: int) -> int:
        size = self.shape.address_size
        base = self.constant(self.top, ADDR_BASE) or 8
        return self.dwarf.addr.fixed(base + index * size, size)[0]

    @cached_property
    def low_pc(self) -> int:
        return (self.address(self.top[LOW_PC]) or 0) if LOW_PC in self.top else 0

    def ranges(self, attributes: dict[int, f.Attribute]) -> Ranges:
        """Return the address ranges of a DWARF entry: DW_AT_ranges, or low_pc and high_pc.

        Raises:
            FormatError: The ranges are broken.
        """
        if RANGES in attributes:
            form, value = attributes[RANGES]
            return list(self._rnglist(form, value) if self.shape.version >= 5 else self._debug_ranges(value))
        if LOW_PC not in attributes or HIGH_PC not in attributes:
            return []
        low = self.address(attributes[LOW_PC])
        if low is None:
            return []
        high = self.address(attributes[HIGH_PC])
        end = low + attributes[HIGH_PC][1] if high is None else high
        return [(low, end)] if end > low else []

    def _debug_ranges(self, at: int) -> Iterator[tuple[int, int]]:
        data, size = self.dwarf.ranges, self.shape.address_size
        base, top = self.low_pc, (1 << 8 * size) - 1
        for _ in range(MAX_RANGES):
            start, at = data.fixed(at, size)
            end, at = data.fixed(at, size)
            if start == end == 0:
                return
            if start == top:
                base = end
            elif start < end:
                yield base + start, base + end

    def _rnglist(self, form: int, at: int) -> Iterator[tuple[int, int]]:
        data, size = self.dwarf.rnglists, self.shape.address_size
        if form == f.RNGLISTX:
            table = self.constant(self.top, RNGLISTS_BASE) or (12 if self.shape.offset_size == 4 else 20)
            at = table + data.fixed(table + at * self.shape.offset_size, self.shape.offset_size)[0]
        base = self.low_pc
        for _ in range(MAX_RANGES):
            kind, at = data.fixed(at, 1)
            if kind == 0:
                return
            if kind in (1, 5):
                value, at = data.uleb(at) if kind == 1 else data.fixed(at, size)
                base = self.indexed_address(value) if kind == 1 else value
                continue
            if kind in (2, 3, 4):
                start, at = data.uleb(at)
                end, at = data.uleb(at)
                if kind == 4:
                    start, end = base + start, base + end
                else:
                    start = self.indexed_address(start)
                    end = self.indexed_address(end) if kind == 2 else start + end
            elif kind in (6, 7):
                start, at = data.fixed(at, size)
                end, at = data.fixed(at, size) if kind == 6 else data.uleb(at)
                end = start + end if kind == 7 else end
            else:
                raise FormatError(data.name, at, f"unknown range list entry {kind}")
            if start < end:
                yield start, end

    def function(self, attributes: dict[int, f.Attribute]) -> tuple[bytes, bool, tuple[Unit, int] | None]:
        """Return the name of the subprogram that a DWARF entry is or refers to.

        Returns:
            (name, whether it is the linkage name, unit and offset of its declaration or None)
        """
        unit, name = self, b""
        at: tuple[Unit, int] | None = None
        declared = None
        for _ in range(MAX_REFERENCES):
            linkage = unit.string(attributes.get(LINKAGE_NAME) or attributes.get(MIPS_LINKAGE_NAME))
            if linkage:
                return linkage, True, at
            here = unit.string(attributes.get(NAME))
            if here:
                name, declared = here, at
            reference = attributes.get(ABSTRACT_ORIGIN) or attributes.get(SPECIFICATION)
            at = unit.resolve(reference) if reference else None
            entry = at[0].entry(at[1]) if at else None
            if at is None or entry is None:
                break
            unit, attributes = at[0], entry[1]
        return name, False, declared

    def plain_name(self, attributes: dict[int, f.Attribute]) -> bytes:
        """Return the linkage name of a DWARF entry, else the name without its scopes, b"" if there is none."""
        return self.function(attributes)[0]

    def resolve(self, reference: f.Attribute) -> tuple[Unit, int] | None:
        """Return (unit, offset) of the DWARF entry that an attribute refers to, None if it is in a missing file."""
        form, value = reference
        if form in f.REF_UNIT:
            return self, self.offset + value
        dwarf: Dwarf | None = self.dwarf
        if form in (f.GNU_REF_ALT, f.REF_SUP4, f.REF_SUP8):
            dwarf = self.dwarf.alternate
        elif form != f.REF_ADDR:
            return None
        return (dwarf.unit_at(value), value) if dwarf else None


class Dwarf:
    """The DWARF sections of one file, and its units. `find_alternate` opens the file to which dwz moved common data."""

    def __init__(
        self, file: ObjectFile, find_alternate: Callable[[ObjectFile], ObjectFile | None] | None = None
    ) -> None:
        self.file = file
        self._find_alternate = find_alternate
        self._abbrevs: dict[tuple[int, f.FormSizes], f.Abbrevs] = {}
        self._units: dict[int, Unit] = {}

    def _section(self, name: str, enough: int | None = None) -> Data:
        try:
            data = self.file.section(name, enough)
        finally:
            self.file.forget(name)
        return Data(name, data, self.file.byteorder)

    @cached_property
    def info(self) -> Data:
        return self._section(".debug_info")

    def info_to(self, end: int) -> Data:
        """Return the section .debug_info up to `end` or further. Only the beginning of a compressed section is
        decompressed if that is enough.

        Decompression is most of the work of naming a few functions. In a libc, the functions that start a program come
        first.
        """
        return self._beginning if end <= _BEGINNING and "info" not in self.__dict__ else self.info

    @cached_property
    def _beginning(self) -> Data:
        return self._section(".debug_info", _BEGINNING)

    @cached_property
    def strings(self) -> Data:
        return self._section(".debug_str")

    @cached_property
    def line(self) -> Data:
        return self._section(".debug_line")

    @cached_property
    def line_str(self) -> Data:
        return self._section(".debug_line_str")

    @cached_property
    def str_offsets(self) -> Data:
        return self._section(".debug_str_offsets")

    @cached_property
    def addr(self) -> Data:
        return self._section(".debug_addr")

    @cached_property
    def ranges(self) -> Data:
        return self._section(".debug_ranges")

    @cached_property
    def rnglists(self) -> Data:
        return self._section(".debug_rnglists")

    @cached_property
    def _abbrev(self) -> Data:
        return self._section(".debug_abbrev")

    @cached_property
    def alternate(self) -> Dwarf | None:
        found = self._find_alternate(self.file) if self._find_alternate else None
        return Dwarf(found) if found else None

    def abbrevs(self, at: int, shape: f.FormSizes) -> f.Abbrevs:
        if (at, shape) not in self._abbrevs:
            self._abbrevs[at, shape] = f.Abbrevs(self._abbrev, at, shape)
        return self._abbrevs[at, shape]

    @cached_property
    def offsets(self) -> list[int]:
        """The offsets of all DWARF units in .debug_info. A broken length ends the list."""
        found: list[int] = []
        at = 0
        while at < len(self.info) and len(found) < MAX_UNITS:
            try:
                length, _, body = self.info.unit_length(at)
            except FormatError:
                break
            if body + length > len(self.info):
                break
            found.append(at)
            at = body + length
        return found

    def unit(self, offset: int) -> Unit:
        """Return the DWARF unit that starts at an offset.

        Raises:
            FormatError: The unit's header is broken.
        """
        if offset not in self._units:
            self._units[offset] = Unit(self, offset)
        return self._units[offset]

    def unit_at(self, at: int) -> Unit:
        """Return the DWARF unit that contains an offset.

        Raises:
            FormatError: No unit contains it, or its header is broken.
        """
        index = bisect_right(self.offsets, at) - 1
        if index < 0:
            raise FormatError(self.info.name, at, "reference out of every unit")
        return self.unit(self.offsets[index])

    @cached_property
    def aranges(self) -> Aranges:
        """The address ranges in .debug_aranges, empty if the section is broken."""
        try:
            return read_aranges(self._section(".debug_aranges"))
        except FormatError:
            return read_aranges(Data(".debug_aranges", None, self.file.byteorder))

    def other_ranges(self, deadline: Deadline) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, unit offset) of the code of DWARF units that .debug_aranges does not list."""
        named = set(self.aranges.unit.tolist())
        for offset in self.offsets:
            if offset in named:
                continue
            deadline.check()
            try:
                unit = self.unit(offset)
                for start, end in unit.ranges(unit.top):
                    yield start, end, offset
            except FormatError:
                continue


def skip_attributes(unit: Unit, at: int, abbrev: f.Abbrev) -> int:
    """Return the offset after the attributes of a DWARF entry."""
    info = unit.info
    data = info.bytes
    try:
        for step in abbrev.steps:
            if step >= 0:
                at += step
            elif step == f.STEP_LEB:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif step == f.STEP_STRING:
                at = data.index(b"\0", at) + 1
            elif step == f.STEP_BLOCK1:
                at += 1 + data[at]
            elif step == f.STEP_BLOCK:
                length, at = info.uleb(at)
                at += length
            else:
                return f.read_attributes(info, at, abbrev, unit.shape)[1]
    except (IndexError, ValueError):
        raise FormatError(info.name, at, "entry past the end") from None
    return at
