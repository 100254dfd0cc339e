"""Sections of ELF files: headers, compressed contents, sections without headers, and the unwind tables.

Source: the gABI, "Object Files"; elf.h for the GNU and ARM constants.

Files and memory images without section headers get some that are derived from program headers. These are .eh_frame_hdr
(PT_GNU_EH_FRAME), .eh_frame (from the header's pointer to the end of its PT_LOAD; a reader stops at the zero
terminator), .sframe (PT_GNU_SFRAME), .ARM.exidx (PT_ARM_EXIDX), and .dynamic, .dynsym, .dynstr (PT_DYNAMIC; the number
of symbols comes from the hash table). ElfFile.section() works with them as with others.

Compressed sections are those with SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older) and .gnu_debugdata.
Their sizes are limited.

The unwind tables are found in these places:

    .eh_frame, .eh_frame_hdr   the section of that name (derived if there are no headers)
    .debug_frame               likewise, .zdebug_frame too
    .sframe                    by name, by type, by segment, in that order
    .ARM.exidx                 by segment, by name, by type, in that order
    .gopclntab                 by name (.data.rel.ro.gopclntab, too), else in Go programs by its header

SFrame V1 and early V2 sections are plain PROGBITS named .sframe. Later ones have SHT_GNU_SFRAME and may have any name.
An image in memory, or a file without section headers, has only the segment, which may be longer than the section. In a
relocatable file (.o), the starts of functions are relocations, which are applied to a copy.
"""

from __future__ import annotations

import importlib
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.base import Section, Segment, UnwindTable
from pyprof.objfile.byte_source import hold_bytes

if TYPE_CHECKING:
    from pyprof.objfile.elf_file import ElfFile


ET_REL, ET_CORE = 1, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_PHDR = 1, 2, 3, 4, 6
PT_GNU_EH_FRAME, PT_GNU_SFRAME, PT_ARM_EXIDX = 0x6474E550, 0x6474E554, 0x70000001
PF_X, PF_W, PF_R = 1, 2, 4
SHT_PROGBITS, SHT_STRTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 1, 3, 4, 6, 7, 8, 11
SHT_GNU_SFRAME, SHT_ARM_EXIDX = 0x6FFFFFF4, 0x70000001
SHF_ALLOC, SHF_EXECINSTR, SHF_COMPRESSED = 2, 4, 0x800
PN_XNUM, SHN_XINDEX = 0xFFFF, 0xFFFF
NT_GNU_BUILD_ID = 3

PAGE = 4096


@dataclass(frozen=True, slots=True)
class ProgramHeader(Segment):
    """An ELF program header. `type` is PT_*, `flags` is PF_*."""

    type: int
    flags: int


@dataclass(frozen=True, slots=True)
class SectionHeader(Section):
    """A section header of an ELF file.

    Attributes:
        type: SHT_*.
        flags: SHF_*.
        link: The field sh_link.
        info: The field sh_info.
        index: Index in the header table, -1 if the section is synthetic.
    """

    type: int
    flags: int
    link: int = 0
    info: int = 0
    index: int = -1


def make_program_header(kind: int, flags: int, offset: int, vaddr: int, filesz: int, memsz: int) -> ProgramHeader:
    """Create an ELF program header. `kind` is PT_*, `flags` is PF_*."""
    return ProgramHeader(offset, vaddr, filesz, memsz, bool(flags & PF_X), bool(flags & PF_W), kind, flags)


def make_section_header(
    name: str,
    kind: int,
    flags: int,
    addr: int,
    offset: int,
    size: int,
    entsize: int = 0,
    link: int = 0,
    info: int = 0,
    index: int = -1,
) -> SectionHeader:
    """Create the section header of an ELF file.

    Args:
        name: Name of the section.
        kind: SHT_*.
        flags: SHF_*.
        addr: First address.
        offset: Offset of its bytes in the file.
        size: Size in bytes.
        entsize: Size of one entry in bytes.
        link: sh_link.
        info: sh_info.
        index: Index in the header table, -1 for a section that the file does not have.
    """
    stored = kind != SHT_NOBITS
    code = bool(flags & SHF_EXECINSTR)
    return SectionHeader(name, addr, offset, size, entsize, code, stored, index >= 0, kind, flags, link, info, index)


DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
MAX_DYNAMIC = 1 << 16
MAX_SYMBOLS = 1 << 24
MAX_CHAIN = 1 << 12

DIRECT = {
    PT_GNU_EH_FRAME: (".eh_frame_hdr", SHT_PROGBITS),
    PT_GNU_SFRAME: (".sframe", SHT_GNU_SFRAME),
    PT_ARM_EXIDX: (".ARM.exidx", SHT_ARM_EXIDX),
    PT_DYNAMIC: (".dynamic", SHT_DYNAMIC),
}


def derive_sections(elf: ElfFile) -> dict[str, SectionHeader]:
    """Return the sections that can be derived from program headers, by name. Never raises: a section that is not found
    is left out.
    """
    sections: dict[str, SectionHeader] = {}
    for segment in elf.segments:
        if segment.type in DIRECT and segment.filesz:
            name, kind = DIRECT[segment.type]
            sections.setdefault(name, _make_header(name, kind, segment.vaddr, segment.offset, segment.filesz))
    if ".eh_frame_hdr" in sections:
        frames = _eh_frame(elf, sections[".eh_frame_hdr"])
        if frames is not None:
            sections[".eh_frame"] = frames
    if ".dynamic" in sections:
        sections |= _dynamic_symbols(elf, sections[".dynamic"])
    return sections


def _make_header(name: str, kind: int, addr: int, offset: int, size: int, entsize: int = 0) -> SectionHeader:
    return make_section_header(name, kind, SHF_ALLOC, addr, offset, size, entsize)


def _eh_frame(elf: ElfFile, header: SectionHeader) -> SectionHeader | None:
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
    return _make_header(".eh_frame", SHT_PROGBITS, svma, svma - load.vaddr + load.offset, size)


def _dynamic_symbols(elf: ElfFile, dynamic: SectionHeader) -> dict[str, SectionHeader]:
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
        ".dynsym": _make_header(
            ".dynsym", SHT_DYNSYM, tags[DT_SYMTAB], tags[DT_SYMTAB] - symbols.vaddr + symbols.offset, size, entsize
        ),
        ".dynstr": _make_header(
            ".dynstr", SHT_STRTAB, tags[DT_STRTAB], tags[DT_STRTAB] - strings.vaddr + strings.offset, strings_size
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


MAX_SIZE = 1 << 30
MAX_DEBUGDATA = 256 << 20
MAX_RATIO = 128
"""Maximum ratio by which debug information may expand. Compilers' output expands fourfold; more is a decompression
bomb.
"""
ALWAYS_ALLOWED = 8 << 20
"""Size in bytes to which any compressed section may expand."""

ELFCOMPRESS_ZLIB = 1
ELFCOMPRESS_ZSTD = 2


def inflate_section(
    name: str, data: memoryview, elf_class: int, byteorder: str, enough: int | None = None
) -> memoryview:
    """Return the decompressed content of a section after its Elf32_Chdr or Elf64_Chdr.

    Args:
        name: Name of the section, for messages.
        data: Bytes of the section.
        elf_class: 32 or 64.
        byteorder: "little" or "big".
        enough: Number of bytes from the beginning that suffice.

    Raises:
        FormatError: The section is broken, too large, or its compression is not supported.
    """
    order = "<" if byteorder == "little" else ">"
    header = struct.Struct(order + ("IIQQ" if elf_class == 64 else "III"))
    if len(data) < header.size:
        raise FormatError(name, 0, "compression header cut off")
    fields = header.unpack_from(data)
    kind, size = fields[0], fields[2] if elf_class == 64 else fields[1]
    body = data[header.size :]
    if kind == ELFCOMPRESS_ZLIB:
        return _unpacked(name, body, size, _deflated, enough)
    if kind == ELFCOMPRESS_ZSTD:
        return _unpacked(name, body, size, _zstd)
    raise FormatError(name, 0, f"unknown compression {kind}")


def inflate_zdebug(name: str, data: memoryview) -> memoryview:
    """Return the content of a .zdebug_ section: "ZLIB", size as 8 bytes big-endian, deflate data.

    Raises:
        FormatError: The section is broken or too large.
    """
    if len(data) < 12 or bytes(data[:4]) != b"ZLIB":
        raise FormatError(name, 0, "no ZLIB header")
    return _unpacked(name, data[12:], int.from_bytes(data[4:12], "big"), _deflated)


def inflate_debugdata(data: memoryview) -> memoryview:
    """Return the ELF file in .gnu_debugdata, decompressed.

    Raises:
        FormatError: The section is broken or too large.
    """
    name, most = ".gnu_debugdata", _most(data, MAX_DEBUGDATA)

    def unpack() -> bytes:
        unpacker = lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA)
        try:
            content = unpacker.decompress(data, most)
        except lzma.LZMAError as error:
            raise FormatError(name, 0, str(error)) from None
        if not unpacker.eof:
            raise FormatError(name, 0, f"cut off, or over {most} bytes out of {len(data)}")
        return content

    return hold_bytes(name, most, unpack)


def _most(body: memoryview, size: int) -> int:
    """Return the maximum size in bytes to which compressed data may expand: by the limits of the compression format,
    and at most `size`.
    """
    return min(size, max(MAX_RATIO * len(body), ALWAYS_ALLOWED))


def _unpacked(
    name: str, body: memoryview, size: int, unpack: Callable[[memoryview, int], bytes], enough: int | None = None
) -> memoryview:
    """Return the decompressed data of a section, after a check of its stated size.

    Args:
        name: Name of the section, for messages.
        body: The compressed data.
        size: Size of the content in bytes.
        unpack: Function that takes compressed data and the wanted size, and returns the content. It may raise any
            exception.
        enough: Number of bytes from the beginning that suffice.
    """
    if size > _most(body, MAX_SIZE):
        raise FormatError(name, 0, f"claims {size} bytes out of {len(body)}")
    size = size if enough is None else min(size, enough)

    def checked() -> bytes:
        try:
            data = unpack(body, size) if size else b""
        except FormatError:
            raise
        except Exception as error:  # noqa: BLE001 - each library has a separate error class
            raise FormatError(name, 0, str(error)) from None
        if len(data) != size:
            raise FormatError(name, 0, f"{len(data)} bytes where {size} were promised")
        return data

    return hold_bytes(name, size, checked)


def _deflated(body: memoryview, size: int) -> bytes:
    return zlib.decompressobj().decompress(body, size)


def _zstd(body: memoryview, size: int) -> bytes:
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14
    except ImportError:
        zstd = None
    if zstd is not None:
        content: bytes = zstd.ZstdDecompressor().decompress(bytes(body), size)
        return content
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise FormatError("zstd", 0, "compressed with zstd: needs Python 3.14 or the package zstandard") from None
    read: bytes = zstandard.ZstdDecompressor().stream_reader(bytes(body)).read(size)
    return read


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
        s.type in DIRECT and s.type != PT_DYNAMIC and DIRECT[s.type][0] not in elf.sections for s in elf.segments
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
    candidates += [section for section in elf.section_list if section.type == SHT_GNU_SFRAME]
    for section in candidates:
        if section.stored and section.size:
            name = section.name or "SFrame section"
            read = partial(_sframe_section, elf, section)
            yield UnwindTable(name, section.name, section.addr, section.size, False, read)
    for segment in elf.segments:
        if segment.type == PT_GNU_SFRAME and segment.filesz:
            size = min(segment.filesz, MAX_SFRAME)
            read = partial(elf.source.read, segment.offset, size)
            yield UnwindTable("PT_GNU_SFRAME", "", segment.vaddr, size, True, read)


def _sframe_section(elf: ElfFile, section: SectionHeader) -> memoryview:
    data = elf.content(section) or memoryview(b"")
    return _relocated(elf, section, data) if elf.type == ET_REL else data


def _exidx(elf: ElfFile) -> Iterator[UnwindTable]:
    for segment in elf.segments:
        if segment.type == PT_ARM_EXIDX and segment.filesz:
            size = min(segment.filesz, MAX_EXIDX + 1)
            yield UnwindTable(EXIDX, EXIDX, segment.vaddr, size, False, partial(_loaded, elf, segment, size))
    named = elf.sections.get(EXIDX)
    for section in [named] if named else [s for s in elf.section_list if s.type == SHT_ARM_EXIDX]:
        if section.stored and section.size:
            read = partial(_section_content, elf, section)
            yield UnwindTable(EXIDX, section.name, section.addr, section.size, False, read)


def _gopclntab(elf: ElfFile) -> Iterator[UnwindTable]:
    """Yield the place of Go's function table in an ELF file. Without a section its size is that of the rest of its
    segment.
    """
    for name in GO_SECTIONS:
        section = elf.sections.get(name)
        if section is not None and section.stored and section.size:
            yield UnwindTable(GO, name, section.addr, section.size, False, partial(_section_content, elf, section))
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
    notes = (segment for segment in elf.segments if segment.type == PT_NOTE)
    if not any(GO_NOTE in bytes(elf.source.read(note.offset, min(note.filesz, MAX_NOTES))) for note in notes):
        return None
    from pyprof.objfile import gopclntab

    return gopclntab.search_go_table(elf)


def _section_content(elf: ElfFile, section: SectionHeader) -> memoryview:
    return elf.content(section) or memoryview(b"")


def _loaded(elf: ElfFile, segment: ProgramHeader, size: int) -> memoryview:
    data = elf.at_svma(segment.vaddr, size)
    if len(data) < size:
        raise FormatError(EXIDX, segment.offset, "past the end of its segment")
    return data


def _relocated(elf: ElfFile, section: SectionHeader, data: memoryview) -> memoryview:
    """Return the data of an unwind table in a relocatable file (.o) with its relocations applied. In these tables,
    assemblers emit only relative relocations (S + A - P).

    All sections of a relocatable file begin at address 0, so functions of different sections may coincide.
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
