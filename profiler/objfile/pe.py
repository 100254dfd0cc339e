"""Windows modules (PE): files, and modules that Wine has mapped, read from memory.

PeFile is an object file. Its addresses are those that the linker stated, so that DWARF of MinGW fits. PeImage is a
module in memory whose file is missing; its addresses are relative to its base. find_windows_module() returns the module
around an address and its identity. Wine maps the headers of a file and, if the file's layout allows it, its sections.
Otherwise it copies the sections into anonymous memory.

Names come from the COFF symbol table, which MinGW writes, and from the export table. Both are given as the sections of
ELF's symbol tables (.symtab and .dynsym), so that one reader serves both formats.
Source: "PE Format" of Microsoft; dlls/ntdll/unix/virtual.c of Wine (map_image_into_view).
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace, Mapping, Module, ReadMemory, StatedId
from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.base import AbsentFile, Section, Segment, UnwindTable
from pyprof.objfile.byte_source import ByteSource, BytesSource, FileSource, open_regular
from pyprof.objfile.elf_file import find_named_symbols, find_prefixed_symbols, symbol_layout

MACHINES = {
    0x14C: (3, 32, "little"),
    0x8664: (62, 64, "little"),
    0x1C4: (40, 32, "little"),
    0xAA64: (183, 64, "little"),
}
"""Architecture of a Windows module by the machine of its COFF header: (ELF machine, ELF class, byte order)."""

MAX_STEPS = 256
"""Maximum number of mappings below an address that are searched for the headers of the Windows module at the
address.
"""
MAX_HEADERS = 1 << 16
MAX_DEBUG_ENTRIES = 64
MAX_RECORD = 1 << 10
MAX_SECTION = 1 << 30
MAX_SYMBOLS = 1 << 20
MAX_SECTIONS = 512
MAX_EXPORT_BYTES = 1 << 24
EXPORT, EXCEPTION, DEBUG = 0, 3, 6
"""Positions of data directories in the optional header."""
ENTRY, CODEVIEW = 28, 2
SECTION, SECTION_LAYOUT = 40, "<8sIIII12xI"
EXECUTE, DISCARDABLE, WRITE = 0x2000_0000, 0x0200_0000, 0x8000_0000
"""Flags of a section of a Windows module (IMAGE_SECTION_HEADER)."""
PDATA = ".pdata"

_COFF_SYMBOL = np.dtype(
    [("name", "V8"), ("value", "<u4"), ("section", "<i2"), ("type", "<u2"), ("storage", "u1"), ("more", "u1")]
)
_X86_64, _CHAINED = 62, 4 << 3
"""The ELF machine of x86-64, and the flag in the first byte of a Windows unwind info that continues another unwind
info.
"""
_FUNCTION_TYPE, _EXTERNAL, _STATIC = 0x20, 2, 3
_STT_NOTYPE, _STT_FUNC, _GLOBAL, _SHN_XINDEX = 0, 2, 1 << 4, 0xFFFF


class PeHeaders(NamedTuple):
    """The headers of a Windows module.

    Attributes:
        machine: (ELF machine, ELF class, byte order).
        time_stamp: Time stamp of the COFF header.
        image_size: Size of the module in memory in bytes.
        image_base: Address that the linker chose. Wine replaces it in memory.
        entry: Entry point relative to the base.
        checksum: Checksum of the optional header.
        symbols: (offset of the COFF symbol table in the file, number of its entries).
        directories: (address relative to the base, size in bytes) of each data directory.
        section_table: (offset of the section headers, their number).
    """

    machine: tuple[int, int, str]
    time_stamp: int
    image_size: int
    image_base: int
    entry: int
    checksum: int
    symbols: tuple[int, int]
    directories: tuple[tuple[int, int], ...]
    section_table: tuple[int, int]

    def directory(self, position: int) -> tuple[int, int]:
        return self.directories[position] if position < len(self.directories) else (0, 0)

    def is_same_module(self, other: PeHeaders) -> bool:
        """Return True if all header fields are equal that Wine does not change in memory."""
        return self._replace(image_base=0) == other._replace(image_base=0)


def read_headers(read: ReadMemory, start: int) -> PeHeaders:
    """Return the headers of a Windows module. They are at the same place in a file and in memory.

    Args:
        read: Reads the memory or the file.
        start: Address of the module, 0 in a file.

    Raises:
        LookupError, ValueError, struct.error: The headers are broken or missing.
    """
    at = _header_offset(read, start)
    head = read(start + at, 24 + 240)
    machine, count, stamp, symbols, entries, optional = struct.unpack_from("<HHIIIH", head, 4)
    magic, entry = struct.unpack_from("<H14xI", head, 24)
    wide = magic == 0x20B
    (base,) = struct.unpack_from("<Q" if wide else "<I", head, 24 + (24 if wide else 28))
    image_size, checksum = struct.unpack_from("<I4xI", head, 24 + 56)
    place = 24 + (112 if wide else 96)
    (number,) = struct.unpack_from("<I", head, place - 4)
    number = min(number, 16, (len(head) - place) // 8, max(optional + 24 - place, 0) // 8)
    directories = tuple(struct.iter_unpack("<II", head[place : place + 8 * number]))
    table = (at + 24 + optional, count)
    return PeHeaders(
        MACHINES[machine], stamp, image_size, base, entry, checksum, (symbols, entries), directories, table
    )


class _PeTables(ABC):
    """The tables that a Windows module has in its file as well as in memory. Subclasses read the bytes."""

    headers: PeHeaders
    min_vaddr: int
    address_size: int
    order: Literal["<", ">"]
    sections: dict[str, Section]

    @abstractmethod
    def at_svma(self, svma: int, size: int) -> memoryview: ...

    def unwind_table(self, name: str) -> UnwindTable | None:
        """Return the function table (.pdata, x64 only) or the .debug_frame of a Windows module, or None."""
        if name == PDATA and self.headers.machine[0] == _X86_64:
            rva, size = self.headers.directory(EXCEPTION)
            start = self.min_vaddr + rva
            size = min(size, MAX_SECTION)
            return UnwindTable(name, name, start, size, False, lambda: self.at_svma(start, size)) if size else None
        section = self.sections.get(name) if name == ".debug_frame" else None
        if section is None or self.section(name) is None:
            return None
        return UnwindTable(name, name, section.addr, section.size, False, lambda: self._content(name))

    def _content(self, name: str) -> memoryview:
        return self.section(name) or memoryview(b"")

    @abstractmethod
    def section(self, name: str, enough: int | None = None) -> memoryview | None: ...

    @cached_property
    def exports(self) -> tuple[memoryview, memoryview]:
        """The functions of the export table as (ELF symbol table, string table). Forwarded exports are left out."""
        rva, size = self.headers.directory(EXPORT)
        data = bytes(self.at_svma(self.min_vaddr + rva, min(size, MAX_EXPORT_BYTES))) if rva else b""
        if len(data) < 40:
            return memoryview(b""), memoryview(b"")
        count, named, functions, names, ordinals = struct.unpack_from("<IIIII", data, 20)

        def table(at: int, number: int, kind: str) -> np.ndarray:
            size = np.dtype(kind).itemsize
            part = self.at_svma(self.min_vaddr + at, min(number, MAX_SYMBOLS) * size)
            return np.frombuffer(part, kind, len(part) // size)

        targets = table(functions, count, "<u4")
        name, ordinal = table(names, named, "<u4"), table(ordinals, named, "<u2")
        shared = min(len(name), len(ordinal))
        name, ordinal = name[:shared].astype(np.int64) - rva, ordinal[:shared].astype(np.int64)
        good = (name > 0) & (name < len(data)) & (ordinal < len(targets))
        name, ordinal = name[good], ordinal[good]
        target = targets[ordinal].astype(np.int64)
        good = (target > 0) & ((target < rva) | (target >= rva + size))
        return self._symbols(name[good], target[good], np.uint8(_GLOBAL | _STT_FUNC)), memoryview(data + b"\0")

    def _symbols(self, name: np.ndarray, rva: np.ndarray, info: np.ndarray | np.uint8) -> memoryview:
        """Return an ELF symbol table.

        Args:
            name: Offset of each name in the string table, of shape (n,).
            rva: Address of each symbol relative to the base, of shape (n,).
            info: Binding and type of each symbol in ELF's numbers.
        """
        found = np.zeros(len(name), symbol_layout(self))  # type: ignore[arg-type]
        found["name"], found["info"], found["shndx"] = name, info, _SHN_XINDEX
        found["value"] = rva.astype(np.uint64) + np.uint64(self.min_vaddr)
        found["size"] = self._sizes(rva)
        return memoryview(found.tobytes())

    def _sizes(self, rva: np.ndarray) -> np.ndarray:
        """Return the size in bytes of each exported or COFF symbol. A Windows module does not state these sizes.

        A symbol ends with its function in the function table, or where the next symbol begins. Otherwise a function
        without a symbol would get the name of the symbol before it.

        Args:
            rva: Addresses relative to the base, of shape (n,).
        """
        at, size = self.headers.directory(EXCEPTION)
        data = self.at_svma(self.min_vaddr + at, min(size, MAX_SECTION)) if self.headers.machine[0] == _X86_64 else b""
        rows = np.frombuffer(data, "<u4", len(data) // 12 * 3).reshape(-1, 3).astype(np.int64)
        rows = rows[(rows[:, 1] > rows[:, 0]) & (rows[:, 2] > 0)]
        if not len(rows):
            return np.zeros(len(rva), np.int64)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        first = int(rows[:, 2].min())
        info = np.frombuffer(
            self.at_svma(self.min_vaddr + first, min(int(rows[:, 2].max()) - first + 1, MAX_EXPORT_BYTES)), np.uint8
        )
        place = np.minimum(rows[:, 2] - first, max(len(info) - 1, 0))
        chained = (info[place] & _CHAINED != 0) if len(info) else np.zeros(len(rows), np.bool_)
        parts = np.append(False, chained[1:] & (rows[1:, 0] == rows[:-1, 1]))  # of the function before
        last = np.append(np.flatnonzero(~parts)[1:] - 1, len(rows) - 1)
        ends = rows[last[np.cumsum(~parts) - 1], 1]
        covered = np.searchsorted(rows[:, 0], rva, side="right") - 1
        inside = (covered >= 0) & (rva < ends[covered])
        following = np.append(rows[:, 0], self.headers.image_size)[covered + 1]
        sizes: np.ndarray = np.maximum(np.where(inside, ends[covered], following) - rva, 0)
        return sizes


class PeFile(_PeTables):
    """A Windows module in a file. Implements pyprof.objfile.base.ObjectFile.

    Attributes:
        headers: The headers.
        debug_id: GUID and age of the module's PDB in upper-case hex, "" if the file states none.
        debug_name: Name of the module's PDB, "" if the file states none.
    """

    is_here = True
    lost_tables = False
    build_id = ""

    def __init__(self, source: ByteSource, name: str) -> None:
        """Read the headers of a Windows module.

        Args:
            source: Bytes of the file.
            name: Name for messages.

        Raises:
            FormatError: The headers are broken.
        """
        self.name = name
        self.source = source
        self.oddities: list[str] = []
        try:
            self.headers = read_headers(self._read, 0)
            self.min_vaddr = self.headers.image_base
            found = list(_sections(self._read, 0, self.headers, self._long_name, discardable=True))
        except (LookupError, ValueError, struct.error) as error:
            raise FormatError("PE header", 0, f"broken ({error})") from error
        machine, size, order = self.headers.machine
        self.arch: Arch | None = find_arch(machine, size, order)
        self.machine_name = f"{self.arch.name if self.arch else f'ELF machine {machine}'} (PE)"
        self.byteorder: Literal["little", "big"] = "little"
        self.order: Literal["<", ">"] = "<"
        self.address_size = size // 8
        self.entry = self.min_vaddr + self.headers.entry if self.headers.entry else 0
        self._found = found
        self.section_list = tuple(
            Section(s.name, self.min_vaddr + s.rva, s.offset, s.size, 0, s.executable, bool(s.stored), stated=True)
            for s in found
        )
        self.sections: dict[str, Section] = {}
        for section in self.section_list:
            self.sections.setdefault(section.name, section)
        self.loads: tuple[Segment, ...] = tuple(
            Segment(s.offset, self.min_vaddr + s.rva, min(s.stored, s.size), s.size, s.executable, s.writable)
            for s in found
            if not s.discardable
        )
        self.debug_id, self.debug_name = self._identify()

    @classmethod
    def open(cls, path: str | int) -> PeFile:
        """Open a Windows module by its path.

        Args:
            path: File name, or a file descriptor, which is duplicated.

        Raises:
            OSError: The file cannot be opened.
            FormatError: The file is not a Windows module.
        """
        return cls(FileSource(os.dup(path) if isinstance(path, int) else open_regular(path)), str(path))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, name: str) -> PeFile:
        """Read a Windows module from memory.

        Raises:
            FormatError: The data is not a Windows module.
        """
        return cls(BytesSource(data), name)

    @property
    def identity(self) -> Hashable:
        return getattr(self.source, "identity", None) or self, self.source.size

    @property
    def missing(self) -> int:
        """The number of bytes that are missing at the end of the Windows module's file because it was truncated, 0 if
        it is complete.
        """
        return max(max((s.offset + s.stored for s in self._found), default=0) - self.source.size, 0)

    def is_stated(self, stated: StatedId) -> bool:
        """Return True if a crash dump states the time stamp and size of this file for a module."""
        known = (self.headers.time_stamp, self.headers.image_size)
        return bool(stated.time_stamp) and known == (stated.time_stamp, stated.image_size)

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        """Return the content of a section, or None if it is absent, empty or without content in this file.

        .symtab and .dynsym with their strings are made from the COFF symbols and the exports.
        """
        if name in (".dynsym", ".dynstr"):
            return self.exports[name == ".dynstr"] or None
        if name in (".symtab", ".strtab"):
            return self._coff_symbols[name == ".strtab"] or None
        found = self.sections.get(name)
        if found is None:
            return None
        stored = self._found[self.section_list.index(found)]
        return self.source.read(stored.offset, min(stored.stored, stored.size)) or None

    def read(self, offset: int, size: int) -> memoryview:
        return self.source.read(offset, size)

    def forget(self, name: str) -> None:
        """Drop the COFF symbols from memory. The next call of section() reads them again."""
        if name == ".symtab":
            self.__dict__.pop("_coff_symbols", None)

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Return bytes of the file from an address on; fewer at the end of the section or file, none outside."""
        for load in self.loads:
            if load.vaddr <= svma < load.vaddr + load.filesz:
                return self.source.read(svma - load.vaddr + load.offset, min(size, load.vaddr + load.filesz - svma))
        return memoryview(b"")

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        return find_named_symbols(self, names)

    def prefixed_symbols(self, prefixes: Sequence[bytes]) -> dict[bytes, int]:
        return find_prefixed_symbols(self, prefixes)

    def embedded(self) -> None:
        return None

    def _read(self, offset: int, size: int) -> bytes:
        return bytes(self.source.read(offset, size))

    @property
    def _strings_offset(self) -> int:
        offset, count = self.headers.symbols
        return offset + _COFF_SYMBOL.itemsize * count if offset else 0

    def _long_name(self, name: str) -> str:
        """Return the complete name of a section. "/4" stands for the name at offset 4 of the string table."""
        if not name.startswith("/") or not name[1:].isdigit() or not self._strings_offset:
            return name
        text = self._read(self._strings_offset + int(name[1:]), 64)
        return text.partition(b"\0")[0].decode("ascii", "replace") or name

    def _identify(self) -> tuple[str, str]:
        """Return (identifier, name) of the PDB that the debug directory states, or ("", "") if it states none."""
        from pyprof.objfile.minidump import read_modules

        def read(svma: int, size: int) -> bytes:
            return bytes(self.at_svma(svma, size))

        record = _record(read, self.min_vaddr, *self.headers.directory(DEBUG))
        module = read_modules(0, 1, "", record, "windows")[0]
        return module.debug_id, module.debug_name

    @cached_property
    def _coff_symbols(self) -> tuple[memoryview, memoryview]:
        """The functions and labels of the COFF symbol table as (ELF symbol table, string table)."""
        offset, count = self.headers.symbols
        data = self.source.read(offset, min(count, MAX_SYMBOLS) * _COFF_SYMBOL.itemsize) if offset else b""
        symbols = np.frombuffer(data, _COFF_SYMBOL, len(data) // _COFF_SYMBOL.itemsize)
        positions, at = [], 0
        for at_next, more in enumerate(symbols["more"].tolist()):
            if at_next == at:  # others are auxiliary entries
                positions.append(at)
                at += 1 + more
        symbols = symbols[positions]
        section = symbols["section"].astype(np.int64)
        function = symbols["type"] == _FUNCTION_TYPE
        label = ((symbols["storage"] == _EXTERNAL) | (symbols["storage"] == _STATIC)) & (symbols["more"] == 0)
        good = (section > 0) & (section <= len(self._found)) & (function | label)
        symbols, section, function = symbols[good], section[good] - 1, function[good]
        strings = self._read(self._strings_offset, int.from_bytes(self._read(self._strings_offset, 4), "little"))
        # names of at most 8 bytes stand in the symbol itself: they are added to the strings
        words = np.frombuffer(symbols["name"].tobytes(), "<u4").reshape(-1, 2).astype(np.int64)
        short = np.zeros((len(symbols), 9), np.uint8)
        short[:, :8] = np.frombuffer(symbols["name"].tobytes(), np.uint8).reshape(-1, 8)
        name = np.where(words[:, 0] == 0, words[:, 1], len(strings) + 1 + 9 * np.arange(len(symbols)))
        starts = np.array([s.rva for s in self._found] or [0], np.int64)
        info = np.where(symbols["storage"] == _EXTERNAL, _GLOBAL, 0) + np.where(function, _STT_FUNC, _STT_NOTYPE)
        table = self._symbols(name, starts[section] + symbols["value"].astype(np.int64), info)
        return table, memoryview(strings + b"\0" + short.tobytes() + b"\0")


class PeImage(_PeTables, AbsentFile):
    """A Windows module in memory. Addresses are relative to its base; its file is not read.

    Attributes:
        sections: The sections that stay in memory. DWARF sections do not, and they state addresses for another base.
    """

    headers = PeHeaders((0, 0, ""), 0, 0, 0, 0, 0, (0, 0), (), (0, 0))

    def __init__(self, module: Module, stated: StatedId, read: ReadMemory) -> None:
        """Read the section headers of a Windows module. This never raises.

        Args:
            module: The module.
            stated: Identity of the module.
            read: Reads the target's memory.
        """
        super().__init__(module, stated, read)
        self.machine_name = f"{self.machine_name} (PE)"
        try:
            self.headers = read_headers(read, module.start)._replace(image_size=self.size)
            self.section_list = tuple(
                Section(s.name, s.rva, s.offset, s.size, 0, s.executable, stored=True, stated=True)
                for s in _sections(read, module.start, self.headers, str, discardable=False)
            )
        except (LookupError, ValueError, struct.error):
            self.oddities.append("pe_section_headers_broken")
        for section in self.section_list:
            self.sections.setdefault(section.name, section)
        code: list[Segment] = [
            Segment(0, s.addr, 0, s.size, s.executable, writable=False) for s in self.section_list if s.executable
        ]
        self.loads = tuple(code) or self.loads

    def at_svma(self, svma: int, size: int) -> memoryview:
        return AbsentFile.at_svma(self, svma, size)

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        if name in (".dynsym", ".dynstr"):
            return self.exports[name == ".dynstr"] or None
        found = self.sections.get(name)
        return self.at_svma(found.addr, found.size) if found is not None and found.size else None


def find_windows_module(space: AddressSpace, avma: int) -> tuple[Module, StatedId] | None:
    """Return (the Windows module around an address with all its mappings, its identity), or None if no Windows module
    is there.

    Never raises.
    """
    header = _header_mapping(space, avma)
    if header is None:
        return None
    try:
        stated = _identity(space.read, header.start, header.path)
    except (LookupError, ValueError, struct.error):
        return None
    end = header.start + stated.image_size
    if not header.start <= avma < end:
        return None
    mappings = tuple(m for m in space.mappings if m.start < end and m.end > header.start)
    return Module(header.start, end, header.path, header.dev, header.inode, False, mappings), stated


def _header_mapping(space: AddressSpace, avma: int) -> Mapping | None:
    """Return the nearest mapping of a file's first bytes at or below an address, or None. It holds the headers of a
    Windows module.
    """
    at = bisect_right(space.mappings, avma, key=lambda mapping: mapping.start) - 1
    for mapping in reversed(space.mappings[max(at - MAX_STEPS, 0) : at + 1]):
        if mapping.path.startswith("/") and not mapping.offset:
            return mapping
    return None


def _identity(read: ReadMemory, start: int, path: str) -> StatedId:
    """Return the identity of a Windows module from its headers.

    Raises:
        LookupError, ValueError, struct.error: The headers are broken or missing.
    """
    from pyprof.objfile.minidump import read_modules

    headers = read_headers(read, start)
    record = _record(read, start, *headers.directory(DEBUG))
    module = read_modules(start, headers.image_size, path, record, "windows")[0]
    return StatedId(module.debug_id, "", module.debug_name, *headers.machine, 0, headers.time_stamp, headers.image_size)


def _header_offset(read: ReadMemory, start: int) -> int:
    """Return the offset of the PE header of a Windows module.

    Raises:
        ValueError, struct.error: The header is missing.
    """
    dos = read(start, 64)
    if dos[:2] != b"MZ":
        raise ValueError("no DOS header")
    at: int = struct.unpack_from("<I", dos, 60)[0]
    if at > MAX_HEADERS:
        raise ValueError("headers too far away")
    if read(start + at, 4) != b"PE\0\0":
        raise ValueError("no PE header")
    return at


class _PeSection(NamedTuple):
    """A section header of a Windows module. `stored` is the number of its bytes in the file."""

    name: str
    rva: int
    size: int
    offset: int
    stored: int
    flags: int

    @property
    def executable(self) -> bool:
        return bool(self.flags & EXECUTE)

    @property
    def writable(self) -> bool:
        return bool(self.flags & WRITE)

    @property
    def discardable(self) -> bool:
        return bool(self.flags & DISCARDABLE)


def _sections(
    read: ReadMemory, start: int, headers: PeHeaders, full_name: Callable[[str], str], *, discardable: bool
) -> Iterator[_PeSection]:
    """Yield the sections of a Windows module, without those that do not stay in memory. If `discardable` is set, yield
    these too.
    """
    at, count = headers.section_table
    table = read(start + at, SECTION * min(count, MAX_SECTIONS))
    whole = len(table) // SECTION * SECTION
    for name, length, rva, stored, offset, flags in struct.iter_unpack(SECTION_LAYOUT, table[:whole]):
        if rva >= headers.image_size or (flags & DISCARDABLE and not discardable):
            continue
        text = full_name(name.rstrip(b"\0").decode("ascii", "replace"))
        length = min(length or stored, headers.image_size - rva, MAX_SECTION)
        yield _PeSection(text, rva, length, offset, stored, flags)


def _record(read: ReadMemory, start: int, directory: int, length: int) -> bytes:
    """Return the CodeView record of a Windows module, b"" if there is none."""
    table = read(start + directory, min(length, ENTRY * MAX_DEBUG_ENTRIES)) if directory else b""
    for at in range(0, len(table) - ENTRY + 1, ENTRY):
        kind, size, rva = struct.unpack_from("<III", table, at + 12)
        if kind == CODEVIEW and rva:
            return read(start + rva, min(size, MAX_RECORD))
    return b""
