"""Section headers derived from program headers, for files and memory images that have none.

The sections are .eh_frame_hdr (PT_GNU_EH_FRAME), .eh_frame (from the header's pointer to the end of its PT_LOAD; a
reader stops at the zero terminator), .sframe (PT_GNU_SFRAME), .ARM.exidx (PT_ARM_EXIDX), and .dynamic, .dynsym, .dynstr
(PT_DYNAMIC; the number of symbols comes from the hash table). ElfFile.section() works with them as with others.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pyprof.objfile.elf import headers as e

if TYPE_CHECKING:
    from pyprof.objfile.elf.file import ElfFile

DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
MAX_DYNAMIC = 1 << 16
MAX_SYMBOLS = 1 << 24
MAX_CHAIN = 1 << 12

DIRECT = {
    e.PT_GNU_EH_FRAME: (".eh_frame_hdr", e.SHT_PROGBITS),
    e.PT_GNU_SFRAME: (".sframe", e.SHT_GNU_SFRAME),
    e.PT_ARM_EXIDX: (".ARM.exidx", e.SHT_ARM_EXIDX),
    e.PT_DYNAMIC: (".dynamic", e.SHT_DYNAMIC),
}


def derive_sections(elf: ElfFile) -> dict[str, e.SectionHeader]:
    """Return the sections that can be derived from program headers, by name. Never raises: a section that is not found
    is left out.
    """
    sections: dict[str, e.SectionHeader] = {}
    for segment in elf.segments:
        if segment.type in DIRECT and segment.filesz:
            name, kind = DIRECT[segment.type]
            sections.setdefault(name, _section(name, kind, segment.vaddr, segment.offset, segment.filesz))
    if ".eh_frame_hdr" in sections:
        frames = _eh_frame(elf, sections[".eh_frame_hdr"])
        if frames is not None:
            sections[".eh_frame"] = frames
    if ".dynamic" in sections:
        sections |= _dynamic_symbols(elf, sections[".dynamic"])
    return sections


def _section(name: str, kind: int, addr: int, offset: int, size: int, entsize: int = 0) -> e.SectionHeader:
    return e.make_section_header(name, kind, e.SHF_ALLOC, addr, offset, size, entsize)


def _eh_frame(elf: ElfFile, header: e.SectionHeader) -> e.SectionHeader | None:
    """Return the section .eh_frame that an .eh_frame_hdr points to, or None.

    The header has: version 1, eh_frame_ptr_enc, fde_count_enc, table_enc, then the pointer (LSB core, 10.6.2).
    """
    data = elf.source.read(header.offset, 12)
    if len(data) < 12 or data[0] != 1:
        return None
    form = {0x0B: "i", 0x03: "I", 0x0C: "q", 0x04: "Q", 0x0A: "h", 0x02: "H"}.get(data[1] & 0x0F)
    if data[1] & 0x0F == 0:
        form = "Q" if elf.elf_class == 64 else "I"
    base = {0x00: 0, 0x10: header.addr + 4, 0x30: header.addr}.get(data[1] & 0xF0)
    if form is None or base is None:
        return None
    svma = base + struct.unpack_from(elf.order + form, data, 4)[0] & (1 << elf.elf_class) - 1
    load = elf.load_at(svma)
    if load is None:
        return None
    size = load.vaddr + load.filesz - svma
    return _section(".eh_frame", e.SHT_PROGBITS, svma, svma - load.vaddr + load.offset, size)


def _dynamic_symbols(elf: ElfFile, dynamic: e.SectionHeader) -> dict[str, e.SectionHeader]:
    word = elf.elf_class // 8
    data = elf.source.read(dynamic.offset, min(dynamic.size, MAX_DYNAMIC))
    tags: dict[int, int] = {}
    for tag, value in struct.iter_unpack(
        elf.order + ("QQ" if word == 8 else "II"), data[: len(data) // (2 * word) * (2 * word)]
    ):
        if tag == 0:
            break
        tags.setdefault(tag, value)
    if DT_SYMTAB not in tags or DT_STRTAB not in tags:
        return {}
    symbols = elf.load_at(tags[DT_SYMTAB])
    strings = elf.load_at(tags[DT_STRTAB])
    count = _symbol_count(elf, tags)
    if symbols is None or strings is None or not count:
        return {}
    entsize = 24 if word == 8 else 16
    size = min(count * entsize, symbols.vaddr + symbols.filesz - tags[DT_SYMTAB])
    strings_size = min(tags.get(DT_STRSZ, 0), strings.vaddr + strings.filesz - tags[DT_STRTAB])
    return {
        ".dynsym": _section(
            ".dynsym", e.SHT_DYNSYM, tags[DT_SYMTAB], tags[DT_SYMTAB] - symbols.vaddr + symbols.offset, size, entsize
        ),
        ".dynstr": _section(
            ".dynstr", e.SHT_STRTAB, tags[DT_STRTAB], tags[DT_STRTAB] - strings.vaddr + strings.offset, strings_size
        ),
    }


def _symbol_count(elf: ElfFile, tags: dict[int, int]) -> int:
    """Return the number of dynamic symbols of an ELF file.

    Only the hash tables give it: nchain of DT_HASH, or the end of DT_GNU_HASH.
    """
    if DT_HASH in tags:
        head = elf.at_svma(tags[DT_HASH], 8)
        if len(head) == 8:
            count: int = struct.unpack(elf.order + "II", head)[1]
            return min(count, MAX_SYMBOLS)
    if DT_GNU_HASH not in tags:
        return 0
    table = tags[DT_GNU_HASH]
    head = elf.at_svma(table, 16)
    if len(head) < 16:
        return 0
    buckets, first, bloom, _ = struct.unpack(elf.order + "IIII", head)
    at = table + 16 + bloom * (elf.elf_class // 8)
    row = elf.at_svma(at, 4 * min(buckets, MAX_SYMBOLS))
    last = max((b for (b,) in struct.iter_unpack(elf.order + "I", row[: len(row) & ~3])), default=0)
    if last < first:
        return int(first)
    chain = elf.at_svma(at + 4 * buckets + 4 * (last - first), 4 * MAX_CHAIN)
    for (link,) in struct.iter_unpack(elf.order + "I", chain[: len(chain) & ~3]):
        last += 1
        if link & 1:
            break
    return min(last, MAX_SYMBOLS)
