"""The headers of ELF files as values, and their constants.

Source: the gABI, "Object Files"; elf.h for the GNU and ARM constants.
"""

from __future__ import annotations

from pyprof.objfile.base import Section, Segment
from pyprof.records import dataclass

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
