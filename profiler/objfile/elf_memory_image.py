"""ELF images in a target's memory: rebuilt ones, and objects that a JIT compiler keeps there.

The rebuilt images are the vDSO, memfd and deleted files, and files replaced on disk. All loaded segments are read at
once, so that the image stays usable after the target has ended. They are placed at their file offsets. Section headers
are not loaded, so objfile/elf_sections.py derives the sections that unwinding and exported names need.

LLVM and others register compiled code as a relocatable object. Its section headers say where the sections are loaded,
but its relocations are not applied, and its symbols are relative to their sections. This module applies the relocations
to unwind tables and DWARF, and turns symbols into addresses. The result is an ordinary ELF file whose addresses are
those in the process.
Source: gABI "Relocation"; the psABIs of x86-64 and AArch64 for the types.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.address_space import VDSO, AddressSpace, Mapping, Module, ReadMemory
from pyprof.objfile.byte_source import BytesSource, PiecesSource
from pyprof.objfile.elf_file import SHN_ABS, SHN_UNDEF, ElfFile, build_id_in_notes, symbol_layout
from pyprof.objfile.elf_sections import (
    ET_REL,
    PAGE,
    PT_DYNAMIC,
    PT_NOTE,
    PT_PHDR,
    SHF_ALLOC,
    SHF_COMPRESSED,
    SHT_NOBITS,
    SHT_RELA,
    ProgramHeader,
    SectionHeader,
)
from pyprof.objfile.mapped_file_search import read_target

MAX_IMAGE = 256 << 20
MAX_VDSO = 1 << 20
CHUNK = 1 << 20
MAX_NOTE = 1 << 16
ADDRESS_TAGS = frozenset({3, 4, 5, 6, 7, 12, 13, 17, 23, 25, 26, 32, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE})
"""Dynamic tags whose value is an address (gABI "Dynamic Section"). glibc's loader adds the load bias to them in
place.
"""


def read_headers(page: bytes) -> ElfFile | None:
    """Return an ELF file's headers from the first page of its image, or None if it is not an ELF image."""
    if page[:4] != b"\x7fELF":
        return None
    try:
        return ElfFile(BytesSource(page), "[memory]", with_sections=False)
    except FormatError:
        return None


def find_bias_by_headers(elf: ElfFile, at: int) -> int | None:
    """Return the load bias of a file whose program headers are at an address in the process.

    Returns:
        Address in the process minus address in the file, or None if the file does not load its program headers.
    """
    for segment in elf.segments:
        if segment.type == PT_PHDR:
            return at - segment.vaddr
    for load in elf.loads:
        if load.offset <= elf.phoff < load.offset + load.filesz:
            return at - (load.vaddr + elf.phoff - load.offset)
    return None


def find_header_mapping(space: AddressSpace, module: Module, avma: int) -> Mapping | None:
    """Return the mapping with the first page of the file that is mapped at an address, or None.

    It is the nearest mapping of the same file at or below an address with offset 0. It need not belong to the module:
    lld's layout maps the first page a second time, together with the code.
    """
    best = None
    for mapping in space.mappings:
        if mapping.start > avma:
            break
        if mapping.file == module.mappings[0].file and mapping.offset == 0:
            best = mapping
    return best


def read_vdso_image(space: AddressSpace, module: Module) -> tuple[ElfFile, int] | None:
    """Return (image, load bias) of a module without a file that starts with an ELF header, such as the vDSO, or None.

    If a process of this machine has ended, this process's vDSO is used: the kernel maps the same pages into all
    processes of one ABI. 32-bit and x32 processes have another vDSO, which lies below 4 GiB.

    Raises:
        FormatError: The image is broken.
    """
    size = module.end - module.start
    data = space.read(module.start, min(size, MAX_VDSO)) if space.read(module.start, 4) == b"\x7fELF" else b""
    here = space.image is not None and space.files is None
    if not data and here and module.path == VDSO and module.start >> 32 and len(read_own_vdso()) == size:
        data = read_own_vdso()
    if not data:
        return None
    elf = ElfFile(BytesSource(data), module.path)
    first = next((s for s in elf.loads if s.offset == 0), None)
    return (elf, module.start - first.vaddr) if first else None


@cache
def read_own_vdso() -> bytes:
    """Return all pages of this process's vDSO, b"" if there is none or /proc is not accessible."""
    try:
        with open("/proc/self/maps", "rb") as maps, open("/proc/self/mem", "rb", 0) as memory:
            line = next((line for line in maps if line.endswith(b" [vdso]\n")), b"")
            start, end = (int(part, 16) for part in line.split(b" ")[0].split(b"-")) if line else (0, 0)
            memory.seek(start)
            return memory.read(end - start)
    except OSError:
        return b""


def read_build_id(read: ReadMemory, start: int) -> str:
    """Return the build ID of a file whose first page is at `start`, "" if it is not readable or has none."""
    page = read(start, PAGE)
    try:
        headers = ElfFile(BytesSource(page), "[memory]", with_sections=False)
    except FormatError:
        return ""
    first = next((s for s in headers.loads if s.offset == 0), None)
    for segment in headers.segments if first is not None else ():
        at = start + segment.vaddr - first.vaddr if first is not None else 0
        if segment.type == PT_NOTE and 0 <= at < 1 << 64:
            found = build_id_in_notes(memoryview(read(at, min(segment.filesz, MAX_NOTE))), headers.order)
            if found:
                return found
    return ""


def rebuild_image(space: AddressSpace, module: Module, avma: int) -> tuple[ElfFile, int] | None:
    """Return (image, load bias) of a module's ELF file, rebuilt from memory, or None if no ELF header is mapped.

    Raises:
        FormatError: The image is broken or too large.
    """
    mapping = find_header_mapping(space, module, avma)
    if mapping is None:
        return None
    head = space.read(mapping.start, 4096)
    if head[:4] != b"\x7fELF":
        return None
    headers = ElfFile(BytesSource(head), module.path, with_sections=False)
    first = next((s for s in headers.loads if s.offset < 4096), None)
    if first is None:
        return None
    bias = mapping.start + first.offset - first.vaddr
    if not any(s.vaddr <= avma - bias < s.vaddr + s.memsz for s in headers.loads):
        return None
    pieces = [(0, memoryview(head))]
    budget = MAX_IMAGE
    for load in headers.loads:
        if load.filesz > budget:
            raise FormatError("program headers", load.offset, f"image in memory larger than {MAX_IMAGE >> 20} MiB")
        budget -= load.filesz
        pieces.append((load.offset, memoryview(_read(space, bias + load.vaddr, load.filesz))))
    pieces.sort(key=lambda piece: -len(piece[1]))  # of pieces with the same start, the longest is used
    for segment in headers.segments:
        if segment.type == PT_DYNAMIC:
            pieces = [_unrelocated(headers, segment, bias, at, data) for at, data in pieces]
    elf = ElfFile(PiecesSource(pieces), module.path, with_sections=False)
    for name, section in list(elf.sections.items()):
        if len(elf.source.read(section.offset, section.size)) < section.size:
            del elf.sections[name]  # not in memory, as in most core files
    return elf, bias


def _read(space: AddressSpace, avma: int, size: int) -> bytearray:
    """Return the bytes at an address of the target's memory, up to the first unreadable byte."""
    data = bytearray()
    while len(data) < size:
        want = min(CHUNK, size - len(data))
        chunk = read_target(space, avma + len(data), want)
        data += chunk
        if len(chunk) < want:
            break
    return data


def _unrelocated(
    elf: ElfFile, dynamic: ProgramHeader, bias: int, offset: int, data: memoryview
) -> tuple[int, memoryview]:
    """Return (offset, bytes) of the dynamic table with addresses as the file states them, before the loader added the
    bias.
    """
    start, end = dynamic.offset - offset, dynamic.offset - offset + dynamic.filesz
    if not 0 <= start < end <= len(data):
        return offset, data
    changed = bytearray(data)
    pair = struct.Struct(elf.order + ("QQ" if elf.elf_class == 64 else "II"))
    for at in range(start, end - pair.size + 1, pair.size):
        tag, value = pair.unpack_from(changed, at)
        if tag == 0:
            break
        if tag in ADDRESS_TAGS and elf.load_at(value) is None and elf.load_at(value - bias) is not None:
            pair.pack_into(changed, at, tag, value - bias)
    return offset, memoryview(changed)


ET_EXEC = 2
SHN_LORESERVE = 0xFF00
RELOCATED = (".eh_frame", ".debug_", ".sframe")
"""Prefixes of the names of sections in a JIT compiler's object file whose relocations are applied, because their
content is read later.
"""

KINDS = {
    62: {1: (8, False), 2: (4, True), 10: (4, False), 11: (4, False), 24: (8, True)},
    183: {257: (8, False), 258: (4, False), 260: (8, True), 261: (4, True)},
}
"""Relocation types by ELF machine: for each type, (size in bytes, True if the value is relative to the relocated
place).
"""

MAX_RELOCATIONS = 1 << 22


def relocate_memory_object(data: bytes, name: str) -> ElfFile:
    """Return a readable ELF file from the bytes of an object file in memory.

    Raises:
        FormatError: The object file is broken.
    """
    elf = ElfFile.from_bytes(data, name)
    if elf.type != ET_REL:
        return elf
    changed = bytearray(data)
    struct.pack_into(elf.order + "H", changed, 16, ET_EXEC)
    symbols = next((s for s in elf.section_list if s.name == ".symtab"), None)
    if symbols is not None:
        values = _place_symbols(elf, symbols, changed)
        for section in elf.section_list:
            if section.type == SHT_RELA:
                _apply(elf, section, values, changed)
    return ElfFile.from_bytes(changed, name)


def _place_symbols(elf: ElfFile, section: SectionHeader, changed: bytearray) -> np.ndarray:
    """Replace the symbol values in a JIT compiler's object file by addresses in the process, in place.

    Returns:
        A structured array of shape (n,) with the fields `known` (the symbol has an address) and `value` (the address)
        of each symbol.
    """
    layout = symbol_layout(elf)
    count = section.size // layout.itemsize
    if section.offset + count * layout.itemsize > len(changed):
        raise FormatError(".symtab", section.offset, "past the end of the file")
    symbols = np.frombuffer(changed, layout, count, section.offset)
    index = symbols["shndx"]
    addresses = np.array([s.addr for s in elf.section_list], np.uint64)
    inside = (index != SHN_UNDEF) & (index < min(len(addresses), SHN_LORESERVE))
    mask = np.uint64((1 << elf.elf_class) - 1)
    with np.errstate(over="ignore"):
        shift = np.where(inside, addresses[np.where(inside, index, 0)], np.uint64(0))
        symbols["value"] = (symbols["value"].astype(np.uint64) + shift) & mask
    values = np.zeros(count, [("known", "?"), ("value", "u8")])
    values["known"] = inside | (index == SHN_ABS)
    values["value"] = symbols["value"]
    return values


def _apply(elf: ElfFile, section: SectionHeader, symbols: np.ndarray, changed: bytearray) -> None:
    """Apply one section of relocations with addends to an object file in memory, in place. Unknown relocations and
    symbols are skipped.
    """
    kinds = KINDS.get(elf.machine, {})
    target = elf.section_list[section.info] if 0 < section.info < len(elf.section_list) else None
    if target is None or not target.name.startswith(RELOCATED) or target.type == SHT_NOBITS:
        return
    if target.flags & SHF_COMPRESSED or elf.elf_class != 64 or target.offset + target.size > len(changed):
        return
    count = section.size // 24
    if count > MAX_RELOCATIONS or section.offset + 24 * count > len(changed):
        raise FormatError(section.name, section.offset, f"{count} relocations")
    order = elf.order
    entries = struct.iter_unpack(order + "QQq", bytes(changed[section.offset : section.offset + 24 * count]))
    known, values = symbols["known"].tolist(), symbols["value"].tolist()
    base = target.addr if target.flags & SHF_ALLOC else 0
    for offset, info, addend in entries:
        kind, symbol = kinds.get(info & 0xFFFFFFFF), info >> 32
        if kind is None or symbol >= len(known) or not known[symbol] or offset + kind[0] > target.size:
            continue
        value = values[symbol] + addend - (base + offset if kind[1] else 0)
        size = kind[0]
        at = target.offset + offset
        changed[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, elf.byteorder)
