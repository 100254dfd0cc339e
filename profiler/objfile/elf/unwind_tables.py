"""The places of the unwind tables in an ELF file.

    .eh_frame, .eh_frame_hdr   the section of that name (elf/synthetic_sections.py derives it if there are no headers)
    .debug_frame               likewise, .zdebug_frame too
    .sframe                    by name, by type, by segment, in that order
    .ARM.exidx                 by segment, by name, by type, in that order
    .gopclntab                 by name (.data.rel.ro.gopclntab, too), else in Go programs by its header

SFrame V1 and early V2 sections are plain PROGBITS named .sframe. Later ones have SHT_GNU_SFRAME and may have any name.
An image in memory, or a file without section headers, has only the segment, which may be longer than the section. In a
relocatable file (.o), the starts of functions are relocations, which are applied to a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyprof.errors import FormatError
from pyprof.objfile.base import UnwindTable
from pyprof.objfile.elf import headers as e
from pyprof.objfile.elf.synthetic_sections import DIRECT

if TYPE_CHECKING:
    from pyprof.objfile.elf.file import ElfFile

SFRAME, EXIDX, GO = ".sframe", ".ARM.exidx", ".gopclntab"
GO_SECTIONS = (GO, ".data.rel.ro.gopclntab")
GO_NOTE = b"Go\0\0"
"""Name of the ELF note with the build ID of Go's linker."""
MAX_SFRAME = 1 << 30
MAX_EXIDX = 1 << 28
MAX_RELOCATIONS = 1 << 24
MAX_NOTES = 1 << 16


def find_unwind_table(elf: ElfFile, name: str) -> UnwindTable | None:
    """Return an unwind table of an ELF file by name, as ObjectFile.unwind_table does."""
    find = {SFRAME: _sframe, EXIDX: _exidx, GO: _gopclntab}.get(name, partial(_named, name=name))
    return next(find(elf), None)


def has_lost_tables(elf: ElfFile) -> bool:
    """Return True if an ELF file states an unwind table whose bytes are not available (ObjectFile.lost_tables). A
    memory image has no section if its segment's bytes are not in memory.
    """
    return any(
        s.type in DIRECT and s.type != e.PT_DYNAMIC and DIRECT[s.type][0] not in elf.sections for s in elf.segments
    )


def _named(elf: ElfFile, name: str) -> Iterator[UnwindTable]:
    section = elf.sections.get(name) or elf.sections.get(name.replace(".debug_", ".zdebug_"))
    if section is not None and section.stored and section.size:
        read = partial(_whole_section, elf, name)
        yield UnwindTable(name, section.name, section.addr, section.size, not section.stated, read)


def _whole_section(elf: ElfFile, name: str) -> memoryview:
    return elf.section(name) or memoryview(b"")


def _sframe(elf: ElfFile) -> Iterator[UnwindTable]:
    named = elf.sections.get(SFRAME)
    candidates = [named] if named is not None and named.stated else []
    candidates += [section for section in elf.section_list if section.type == e.SHT_GNU_SFRAME]
    for section in candidates:
        if section.stored and section.size:
            name = section.name or "SFrame section"
            read = partial(_sframe_section, elf, section)
            yield UnwindTable(name, section.name, section.addr, section.size, False, read)
    for segment in elf.segments:
        if segment.type == e.PT_GNU_SFRAME and segment.filesz:
            size = min(segment.filesz, MAX_SFRAME)
            read = partial(elf.source.read, segment.offset, size)
            yield UnwindTable("PT_GNU_SFRAME", "", segment.vaddr, size, True, read)


def _sframe_section(elf: ElfFile, section: e.SectionHeader) -> memoryview:
    data = elf.content(section) or memoryview(b"")
    return _relocated(elf, section, data) if elf.type == e.ET_REL else data


def _exidx(elf: ElfFile) -> Iterator[UnwindTable]:
    for segment in elf.segments:
        if segment.type == e.PT_ARM_EXIDX and segment.filesz:
            size = min(segment.filesz, MAX_EXIDX + 1)
            yield UnwindTable(EXIDX, EXIDX, segment.vaddr, size, False, partial(_loaded, elf, segment, size))
    named = elf.sections.get(EXIDX)
    for section in [named] if named else [s for s in elf.section_list if s.type == e.SHT_ARM_EXIDX]:
        if section.stored and section.size:
            read = partial(_section, elf, section)
            yield UnwindTable(EXIDX, section.name, section.addr, section.size, False, read)


def _gopclntab(elf: ElfFile) -> Iterator[UnwindTable]:
    """Yield the place of Go's function table in an ELF file. Without a section its size is that of the rest of its
    segment.
    """
    for name in GO_SECTIONS:
        section = elf.sections.get(name)
        if section is not None and section.stored and section.size:
            yield UnwindTable(GO, name, section.addr, section.size, False, partial(_section, elf, section))
            return
    svma = elf.searched_go_table
    load = elf.load_at(svma) if svma is not None else None
    if svma is not None and load is not None:
        size = load.vaddr + load.filesz - svma
        yield UnwindTable(GO, "", svma, size, True, partial(elf.at_svma, svma, size))


def search_go_table(elf: ElfFile) -> int | None:
    """Return the address of Go's function table in a file without a section for it, or None.

    Only files with a note of Go's linker are searched.
    """
    notes = (segment for segment in elf.segments if segment.type == e.PT_NOTE)
    if not any(GO_NOTE in bytes(elf.source.read(note.offset, min(note.filesz, MAX_NOTES))) for note in notes):
        return None
    from pyprof.objfile import gopclntab

    return gopclntab.search_go_table(elf)


def _section(elf: ElfFile, section: e.SectionHeader) -> memoryview:
    return elf.content(section) or memoryview(b"")


def _loaded(elf: ElfFile, segment: e.ProgramHeader, size: int) -> memoryview:
    data = elf.at_svma(segment.vaddr, size)
    if len(data) < size:
        raise FormatError(EXIDX, segment.offset, "past the end of its segment")
    return data


def _relocated(elf: ElfFile, section: e.SectionHeader, data: memoryview) -> memoryview:
    """Return the data of an unwind table with its relocations applied. Assemblers emit only relative ones here (S + A -
    P).

    All sections of a relocatable file begin at address 0, so functions of different sections may coincide.
    """
    width = 8 if len(data) > 2 and data[2] == 3 else 4
    out = bytearray(data)
    entry = struct.Struct(elf.order + "QQq")
    symbol = struct.Struct(elf.order + "IBBHQQ")
    for rela in elf.section_list:
        if rela.type != e.SHT_RELA or rela.info != section.index or elf.elf_class != 64:
            continue
        if not 0 <= rela.link < len(elf.section_list) or rela.size // entry.size > MAX_RELOCATIONS:
            raise FormatError(rela.name, 0, "relocations without symbols")
        table, symbols = elf.content(rela), elf.content(elf.section_list[rela.link])
        if table is None or symbols is None:
            continue
        for at in range(0, len(table) - entry.size + 1, entry.size):
            place, info, addend = entry.unpack_from(table, at)
            number = info >> 32
            if place + width > len(out) or (number + 1) * symbol.size > len(symbols):
                raise FormatError(rela.name, at, "relocation outside its section")
            _, _, _, home, value, _ = symbol.unpack_from(symbols, number * symbol.size)
            if home < len(elf.section_list):
                value += elf.section_list[home].addr
            value = value + addend - section.addr - place
            out[place : place + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, elf.byteorder)
    return memoryview(out)
