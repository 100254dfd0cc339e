"""An object file that a JIT compiler keeps in memory for debuggers, with its relocations applied.

LLVM and others register compiled code as a relocatable object. Its section headers say where the sections are loaded,
but its relocations are not applied, and its symbols are relative to their sections. This module applies the relocations
to unwind tables and DWARF, and turns symbols into addresses. The result is an ordinary ELF file whose addresses are
those in the process.
Source: gABI "Relocation"; the psABIs of x86-64 and AArch64 for the types.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.errors import FormatError
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.headers import ET_REL, SHF_ALLOC, SHF_COMPRESSED, SHT_NOBITS, SHT_RELA, SectionHeader
from pyprof.objfile.elf.named_symbols import SHN_ABS, SHN_UNDEF, symbol_layout

ET_EXEC = 2
SHN_LORESERVE = 0xFF00
RELOCATED = (".eh_frame", ".debug_", ".sframe")
"""Prefixes of the names of sections in a JIT compiler's object file that are read later, and so need their
relocations.
"""

KINDS = {
    62: {1: (8, False), 2: (4, True), 10: (4, False), 11: (4, False), 24: (8, True)},
    183: {257: (8, False), 258: (4, False), 260: (8, True), 261: (4, True)},
}
"""Properties of relocation types, by ELF machine: (size in bytes, relative to the place) of each type."""

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
    """Turn the symbol values of a JIT compiler's object file into addresses, in place.

    Returns:
        (known, value) of each symbol, an array of shape (n,).
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
    """Apply one section of relocations with addends of an object file in memory, in place. Unknown relocations and
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
