"""Where an object file keeps its SFrame section: by name, by type, by segment, in that order.

Sections of V1 and early V2 are plain PROGBITS named .sframe; later ones have SHT_GNU_SFRAME and may bear any name;
an image in memory and a file without section headers have the segment only, which may be longer than the section.
In a relocatable file (.o) the starts of functions are relocations: they are applied to a copy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyprof.errors import FormatError
from pyprof.objfile.elf.file import (
    ET_REL,
    MAX_SECTION,
    PT_GNU_SFRAME,
    SHT_GNU_SFRAME,
    SHT_NOBITS,
    SHT_RELA,
    ElfFile,
    Section,
)

MAX_RELOCATIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class Located:
    """Bytes of a section (maybe more behind it), its svma, its name for messages."""

    data: memoryview
    svma: int
    name: str


def locate(elf: ElfFile) -> Located | None:
    """The SFrame section of elf, None if it has none or an empty one. Raises FormatError where it is cut off."""
    named = elf.sections.get(".sframe")
    candidates = [named] if named is not None and named.index >= 0 else []
    candidates += [section for section in elf.section_list if section.type == SHT_GNU_SFRAME]
    for section in candidates:
        data = elf.content(section) if section.type != SHT_NOBITS else None
        if data is not None:
            name = section.name or "SFrame section"
            if elf.type == ET_REL:
                data = _relocated(elf, section, data)
            return Located(data, section.addr, name)
    for segment in elf.segments:
        if segment.type == PT_GNU_SFRAME and segment.filesz:
            data = elf.source.read(segment.offset, min(segment.filesz, MAX_SECTION))
            return Located(data, segment.vaddr, "PT_GNU_SFRAME")
    return None


def _relocated(elf: ElfFile, section: Section, data: memoryview) -> memoryview:
    """data with its relocations applied. All that assemblers emit here are relative to their place (S + A - P).

    Sections of a relocatable file all begin at svma 0, so functions of different sections may coincide.
    """
    width = 8 if len(data) > 2 and data[2] == 3 else 4
    out = bytearray(data)
    entry = struct.Struct(elf.order + "QQq")
    symbol = struct.Struct(elf.order + "IBBHQQ")
    for rela in elf.section_list:
        if rela.type != SHT_RELA or rela.info != section.index or elf.elf_class != 64:
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
