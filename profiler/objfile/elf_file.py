"""ELF files, read only: header, segments, sections, build ID, and the lookup of symbols by name.

A lookup by name finds data as well as functions, hidden ones too if a symbol table has them. Symbol tables are not
decoded completely. The name is searched in the string table, and its offset then in the symbols.
Source: gABI, "Symbol Table".

Both classes and both byte orders are supported. An ElfFile is made from a path, a file descriptor or bytes. Its
section() returns a section's bytes whether or not the file has section headers (see objfile/elf_sections.py). Broken
input raises FormatError only; open() may raise OSError. Source: the gABI, "Object Files".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.base import ObjectFile, UnwindTable
from pyprof.objfile.byte_source import ByteSource, BytesSource, FileSource, hold_bytes, open_regular
from pyprof.objfile.elf_sections import (
    NT_GNU_BUILD_ID,
    PAGE,
    PN_XNUM,
    PT_LOAD,
    PT_NOTE,
    SHF_COMPRESSED,
    SHN_XINDEX,
    SHT_NOBITS,
    SHT_NOTE,
    ProgramHeader,
    SectionHeader,
    derive_sections,
    find_unwind_table,
    has_lost_tables,
    inflate_debugdata,
    inflate_section,
    inflate_zdebug,
    make_program_header,
    make_section_header,
    search_go_table,
)

TABLES = ((".dynsym", ".dynstr"), (".symtab", ".strtab"))
MAX_PLACES = 64
"""Maximum number of occurrences of a name in a string table that are examined. Linkers store a name once, or as the end
of a longer one.
"""

MAX_PREFIXED = 4096
"""Maximum number of symbol names that a search by prefix returns."""
MAX_NAME = 256

SHN_UNDEF, SHN_ABS = 0, 0xFFF1


def symbol_layout(file: ObjectFile) -> np.dtype[np.void]:
    """Return the layout of one entry of an ELF symbol table: name, info, other, shndx, value, size."""
    o = file.order
    if file.address_size == 8:
        fields = [("name", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2"), ("value", "u8"), ("size", "u8")]
    else:
        fields = [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2")]
    return np.dtype([(name, o + kind) for name, kind in fields])


def find_named_symbols(file: ObjectFile, names: Sequence[bytes]) -> dict[bytes, int]:
    """Return the addresses of the defined symbols among `names`, each from the first symbol table that has it.

    A broken table is skipped.
    """
    found: dict[bytes, int] = {}
    for table, strings in TABLES:
        if len(found) < len(names):
            try:
                here = _in_table(file, table, strings, names)
            except FormatError:
                continue
            found = {**here, **found}
    return found


def find_prefixed_symbols(file: ObjectFile, prefixes: Sequence[bytes]) -> dict[bytes, int]:
    """Return the addresses of the defined symbols whose names begin with one of `prefixes`, MAX_PREFIXED at most.

    A broken table is skipped. Names that a linker stores as the end of longer ones are not found.
    """
    found: dict[bytes, int] = {}
    for table, strings in TABLES:
        try:
            text = file.section(strings)
            places = _prefixed_places(bytes(text), prefixes) if text is not None else {}
            found = {**_find_by_name_offsets(file, table, places), **found}
        except FormatError:
            continue
    return found


def _in_table(file: ObjectFile, table: str, strings: str, names: Sequence[bytes]) -> dict[bytes, int]:
    text = file.section(strings)
    if text is None:
        return {}
    return _find_by_name_offsets(file, table, {name: _places(bytes(text), name) for name in names})


def _find_by_name_offsets(file: ObjectFile, table: str, places: Mapping[bytes, Sequence[int]]) -> dict[bytes, int]:
    """Return the values, by name, of those defined symbols whose names begin at the candidate offsets in the string
    table.

    Args:
        file: The file.
        table: Name of the section with the symbols.
        places: For each name, its candidate offsets in the string table.
    """
    if not any(places.values()):
        return {}
    data = file.section(table)
    if data is None:
        return {}
    layout = symbol_layout(file)
    symbols = np.frombuffer(data, layout, len(data) // layout.itemsize)
    names = {offset: name for name, offsets in places.items() for offset in offsets}
    hits = np.flatnonzero(np.isin(symbols["name"], list(names)) & (symbols["shndx"] != SHN_UNDEF))
    found: dict[bytes, int] = {}
    for offset, value in zip(symbols["name"][hits].tolist(), symbols["value"][hits].tolist(), strict=True):
        found.setdefault(names[offset], value)
    if table == ".symtab":
        file.forget(table)  # it is large, and the reader of function symbols reads it only once
    return found


def _prefixed_places(text: bytes, prefixes: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Return the names in a string table that begin with one of `prefixes`, and for each name its offsets in the
    table.
    """
    places: dict[bytes, list[int]] = {}
    for prefix in prefixes:
        at = text.find(b"\0" + prefix)
        while at >= 0 and len(places) < MAX_PREFIXED:
            end = text.find(b"\0", at + 1, at + MAX_NAME)
            if end > 0:
                places[text[at + 1 : end]] = [at + 1]
            at = text.find(b"\0" + prefix, at + 1)
    return places


def _places(text: bytes, name: bytes) -> list[int]:
    places: list[int] = []
    at = text.find(name + b"\0")
    while at >= 0 and len(places) < MAX_PLACES:
        places.append(at)
        at = text.find(name + b"\0", at + 1)
    return places


MAX_SECTION = 1 << 30
MAX_NOTES = 1 << 16
MAX_SEGMENTS = 1 << 16
MAX_SECTIONS = 1 << 18
MAX_ENTRY = 1 << 8
"""Maximum size in bytes of one entry of the ELF header tables. The gABI has at most 64."""


class ElfFile:
    """One ELF file, readable by section and segment. Implements pyprof.objfile.base.ObjectFile.

    Attributes:
        machine: e_machine of the ELF header.
        elf_class: 32 or 64.
        type: Type of the file, ET_*.
        segments: Program headers in the order of the file.
        sections: Sections by name. {} if the table is broken or absent and none can be derived from the segments.
    """

    is_here = True
    debug_id = ""

    def __init__(self, source: ByteSource, name: str, *, with_sections: bool = True) -> None:
        """Read the headers of an ELF file.

        Args:
            source: Bytes of the file.
            name: Name for messages.
            with_sections: Read the section headers. They are absent in memory images.

        Raises:
            FormatError: The header or the program headers are broken.
        """
        self.name = name
        self.source = source
        self.oddities: list[str] = []
        self._cache: dict[str, memoryview | None] = {}
        self._read_header()
        self.segments: tuple[ProgramHeader, ...] = tuple(self._read_segments())
        self.loads: tuple[ProgramHeader, ...] = tuple(s for s in self.segments if s.type == PT_LOAD)
        """The PT_LOAD segments of the ELF file."""
        self.section_list: tuple[SectionHeader, ...] = ()
        """All sections of the ELF file by index, () if there are no headers."""
        if with_sections:
            try:
                self.section_list = tuple(self._read_sections())
            except FormatError:
                self.oddities.append("section_headers_broken")
        self.sections: dict[str, SectionHeader] = {}
        for section in self.section_list:
            if section.name:
                self.sections.setdefault(section.name, section)
        if not self.sections and self.segments:
            self.sections = derive_sections(self)
        self.min_vaddr: int = min((s.vaddr for s in self.loads), default=0) & -PAGE
        """The lowest PT_LOAD address, rounded down to its page. Relative addresses (rel) count from here."""

    @classmethod
    def open(cls, path: str | int) -> ElfFile:
        """Open an ELF file by its path.

        Args:
            path: File name, or a file descriptor, which is duplicated.

        Raises:
            OSError: The file cannot be opened.
            FormatError: The file is not a readable ELF file.
        """
        return cls(FileSource(os.dup(path) if isinstance(path, int) else open_regular(path)), str(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, name: str) -> ElfFile:
        """Read an ELF file from memory.

        Raises:
            FormatError: The data is not a readable ELF file.
        """
        return cls(BytesSource(data), name)

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        """Return the decompressed content of a section, or None if it is absent, empty or without content in this file.

        ".debug_x" also finds the older ".zdebug_x".

        Raises:
            FormatError: The content is incomplete or broken.
        """
        if name not in self._cache:
            section = self._named(name)
            if section is not None and enough is not None and section.flags & SHF_COMPRESSED:
                return self.content(section, enough)
            self._cache[name] = None if section is None else self.content(section)
        return self._cache[name]

    def read(self, offset: int, size: int) -> memoryview:
        return self.source.read(offset, size)

    def forget(self, name: str) -> None:
        """Drop a section's bytes from memory. The next call of section() reads them again."""
        self._cache.pop(name, None)

    def load_at(self, svma: int) -> ProgramHeader | None:
        """Return the PT_LOAD segment whose bytes in the file hold an address, or None."""
        return next((load for load in self.loads if load.vaddr <= svma < load.vaddr + load.filesz), None)

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Return bytes of the file from an address on; fewer at the end of the PT_LOAD or file, none outside."""
        load = self.load_at(svma)
        if load is None:
            return memoryview(b"")
        return self.source.read(svma - load.vaddr + load.offset, min(size, load.vaddr + load.filesz - svma))

    @cached_property
    def build_id(self) -> str:
        """The GNU build ID of the ELF file in lower-case hex, "" if there is none."""
        for segment in self.segments:
            if segment.type == PT_NOTE:
                found = build_id_in_notes(self.source.read(segment.offset, min(segment.filesz, MAX_NOTES)), self.order)
                if found:
                    return found
        for section in self.section_list:
            if section.type == SHT_NOTE:
                found = build_id_in_notes(self.source.read(section.offset, min(section.size, MAX_NOTES)), self.order)
                if found:
                    return found
        return ""

    @property
    def order(self) -> Literal["<", ">"]:
        return "<" if self.byteorder == "little" else ">"

    @property
    def arch(self) -> Arch | None:
        return find_arch(self.machine, self.elf_class, self.byteorder)

    @property
    def machine_name(self) -> str:
        return f"ELF machine {self.machine}"

    @property
    def address_size(self) -> int:
        return self.elf_class // 8

    @property
    def identity(self) -> Hashable:
        known = getattr(self.source, "identity", None)
        return self.build_id or known or self, self.source.size

    @property
    def lost_tables(self) -> bool:
        return has_lost_tables(self)

    def unwind_table(self, name: str) -> UnwindTable | None:
        return find_unwind_table(self, name)

    @cached_property
    def searched_go_table(self) -> int | None:
        """The address of Go's function table in a Go program that has no section for it, else None."""
        return search_go_table(self)

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        return find_named_symbols(self, names)

    def prefixed_symbols(self, prefixes: Sequence[bytes]) -> dict[bytes, int]:
        return find_prefixed_symbols(self, prefixes)

    def embedded(self) -> ElfFile | None:
        """Return the ELF file in .gnu_debugdata ("MiniDebugInfo" in the GDB manual), or None."""
        data = self.section(".gnu_debugdata")
        return None if data is None else ElfFile.from_bytes(inflate_debugdata(data), f"{self.name} .gnu_debugdata")

    def _read_header(self) -> None:
        ident = self.source.read(0, 64)
        if len(ident) < 16 or bytes(ident[:4]) != b"\x7fELF":
            raise FormatError("ELF header", 0, "not an ELF file")
        if ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise FormatError("ELF header", 4, f"unknown class {ident[4]} or byte order {ident[5]}")
        self.elf_class: int = 32 * ident[4]
        self.byteorder: Literal["little", "big"] = "little" if ident[5] == 1 else "big"
        layout = struct.Struct(self.order + ("HHIQQQIHHHHHH" if self.elf_class == 64 else "HHIIIIIHHHHHH"))
        if len(ident) < 16 + layout.size:
            raise FormatError("ELF header", len(ident), "cut off")
        fields = layout.unpack_from(ident, 16)
        self.type: int = fields[0]
        self.machine: int = fields[1]
        self.entry: int = fields[3]
        self.phoff: int = fields[4]
        """File offset of the ELF program headers."""
        self._shoff = fields[5]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = fields[8:13]

    @property
    def headers_size(self) -> int:
        """The number of bytes from the file's start to the end of its program headers."""
        table_end: int = self.phoff + self._phnum * self._phentsize
        return max(64 if self.elf_class == 64 else 52, table_end)

    @property
    def missing(self) -> int:
        """The number of bytes that are missing at the end of the ELF file because it was truncated, 0 if it is
        complete.

        The section headers determine the expected size, because linkers write them last. Without them, the segments do.
        """
        ends: list[int] = [self._shoff + self._shnum * self._shentsize]
        ends += [s.offset + s.size for s in self.section_list if s.type != SHT_NOBITS]
        if not self._shoff:
            ends += [load.offset + load.filesz for load in self.loads]
        return max(max(ends) - self.source.size, 0)

    def _section_layout(self) -> struct.Struct:
        return struct.Struct(self.order + ("IIQQQQIIQQ" if self.elf_class == 64 else "IIIIIIIIII"))

    def _first_section(self) -> tuple[int, ...]:
        """Return the fields of ELF section 0, which holds counts that do not fit into the ELF header."""
        layout = self._section_layout()
        data = self.source.read(self._shoff, layout.size)
        if not self._shoff or len(data) < layout.size:
            raise FormatError("section headers", self._shoff, "past the end of the file")
        return layout.unpack(data)

    def _read_segments(self) -> Iterator[ProgramHeader]:
        count = self._phnum
        if count == PN_XNUM:
            count = self._first_section()[7]
        if not count:
            return
        layout = struct.Struct(self.order + ("IIQQQQQQ" if self.elf_class == 64 else "IIIIIIII"))
        if not layout.size <= self._phentsize <= MAX_ENTRY:
            raise FormatError("program headers", self.phoff, f"entry size {self._phentsize}")
        if count > MAX_SEGMENTS:
            raise FormatError("program headers", self.phoff, f"{count} segments")
        data = self.source.read(self.phoff, count * self._phentsize)
        if len(data) < count * self._phentsize:
            raise FormatError("program headers", self.phoff, "past the end of the file")
        for at in range(0, len(data), self._phentsize):
            if self.elf_class == 64:
                kind, flags, offset, vaddr, _, filesz, memsz, _ = layout.unpack_from(data, at)
            else:
                kind, offset, vaddr, _, filesz, memsz, flags, _ = layout.unpack_from(data, at)
            yield make_program_header(kind, flags, offset, vaddr, filesz, memsz)

    def _read_sections(self) -> Iterator[SectionHeader]:
        if not self._shoff:
            return
        count, names_index = self._shnum, self._shstrndx
        if not count or names_index == SHN_XINDEX:
            first = self._first_section()
            count = count or first[5]
            names_index = first[6] if names_index == SHN_XINDEX else names_index
        layout = self._section_layout()
        size = count * self._shentsize
        if not layout.size <= self._shentsize <= MAX_ENTRY or count > MAX_SECTIONS:
            raise FormatError("section headers", self._shoff, f"{count} entries of {self._shentsize} bytes")
        data = self.source.read(self._shoff, size)
        if len(data) < size:
            raise FormatError("section headers", self._shoff, "past the end of the file")
        rows = [layout.unpack_from(data, at) for at in range(0, size, self._shentsize)]
        if names_index >= len(rows):
            raise FormatError("section headers", self._shoff, f"no section {names_index} for the names")
        names = bytes(self.source.read(rows[names_index][4], min(rows[names_index][5], 1 << 24)))
        for index, (name, kind, flags, addr, offset, length, link, info, _, entsize) in enumerate(rows):
            end = names.find(b"\0", name, name + 512)
            text = names[name : end if end >= 0 else name + 512].decode("ascii", "replace")
            yield make_section_header(text, kind, flags, addr, offset, length, entsize, link, info, index)

    def _named(self, name: str) -> SectionHeader | None:
        section = self.sections.get(name)
        if section is None and name.startswith(".debug_"):
            section = self.sections.get(".z" + name[1:])
        return section

    def content(self, section: SectionHeader, enough: int | None = None) -> memoryview | None:
        """Return the content of an ELF section by its header, without caching.

        Raises:
            FormatError: The content is incomplete or broken.
        """
        if section.type == SHT_NOBITS or not section.size:
            return None
        if section.size > MAX_SECTION:
            raise FormatError(section.name, section.offset, f"{section.size} bytes long")
        data = hold_bytes(section.name, section.size, lambda: self.source.read(section.offset, section.size))
        if len(data) < section.size:
            raise FormatError(section.name, section.offset, "past the end of the file")
        if section.flags & SHF_COMPRESSED:
            data = inflate_section(section.name, data, self.elf_class, self.byteorder, enough)
        elif section.name.startswith(".zdebug_"):
            data = inflate_zdebug(section.name, data)
        return data if len(data) else None

    def __repr__(self) -> str:
        return f"ElfFile({self.name!r})"


def build_id_in_notes(notes: memoryview, order: str) -> str:
    """Return the build ID in ELF notes (NT_GNU_BUILD_ID) in lower-case hex, "" if there is none. Never raises.

    Args:
        notes: Bytes of the notes.
        order: "<" or ">".
    """
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(order + "III", notes, at)
        name_at = at + 12
        data_at = name_at + (name_size + 3 & ~3)
        if data_at + size > len(notes):
            return ""
        if kind == NT_GNU_BUILD_ID and bytes(notes[name_at : name_at + name_size]) == b"GNU\0":
            return notes[data_at : data_at + size].hex()
        at = data_at + (size + 3 & ~3)
    return ""
