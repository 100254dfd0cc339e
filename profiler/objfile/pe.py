"""Windows modules that Wine has mapped, read from memory.

Their unwind tables are not used, because symbol files have them.

find_windows_module() returns the module around an address and its identity (GUID, age and name of its PDB). PeImage
gives its sections as an ObjectFile. Wine maps the headers of a file and, if the file's layout allows it, its sections.
Otherwise it copies the sections into anonymous memory.
Source: "PE Format" of Microsoft; dlls/ntdll/unix/virtual.c of Wine (map_image_into_view).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator

from pyprof.model.modules import AddressSpace, Mapping, Module, ReadMemory, StatedId
from pyprof.objfile.base import Section, Segment
from pyprof.objfile.missing_file import AbsentFile

MACHINES = {
    0x14C: (3, 32, "little"),
    0x8664: (62, 64, "little"),
    0x1C4: (40, 32, "little"),
    0xAA64: (183, 64, "little"),
}
"""Architecture of a Windows module by the machine of its COFF header: (ELF machine, ELF class, byte order)."""

MAX_STEPS = 256
"""Maximum number of mappings below an address that are searched for the headers of its Windows module."""
MAX_HEADERS = 1 << 16
MAX_DEBUG_ENTRIES = 64
MAX_RECORD = 1 << 10
MAX_SECTION = 1 << 30
DEBUG, ENTRY, CODEVIEW = 6, 28, 2
SECTION, SECTION_LAYOUT = 40, "<8sIIII12xI"
EXECUTE, DISCARDABLE = 0x2000_0000, 0x0200_0000
"""Flags of a section of a Windows module (IMAGE_SECTION_HEADER)."""


class PeImage(AbsentFile):
    """A Windows module in memory. Addresses are relative to its base; its file is not read.

    Attributes:
        sections: The sections that stay in memory. DWARF sections do not, and they state addresses for another base.
    """

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
            self.section_list = tuple(_sections(read, module.start, self.size))
        except (LookupError, ValueError, struct.error):
            self.oddities.append("pe_section_headers_broken")
        for section in self.section_list:
            self.sections.setdefault(section.name, section)
        code: list[Segment] = [
            Segment(0, s.addr, 0, s.size, s.executable, writable=False) for s in self.section_list if s.executable
        ]
        self.loads = tuple(code) or self.loads

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        found = self.sections.get(name)
        return self.at_svma(found.addr, found.size) if found is not None and found.size else None


def find_windows_module(space: AddressSpace, avma: int) -> tuple[Module, StatedId] | None:
    """Return the complete Windows module around an address and its identity, or None if it is not a Windows module.

    Never raises.
    """
    header = _header_mapping(space, avma)
    if header is None:
        return None
    try:
        size, stated = _identity(space.read, header.start, header.path)
    except (LookupError, ValueError, struct.error):
        return None
    if not header.start <= avma < header.start + size:
        return None
    end = header.start + size
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


def _identity(read: ReadMemory, start: int, path: str) -> tuple[int, StatedId]:
    """Return (size of the image in bytes, identity) of a Windows module, from its headers.

    Raises:
        LookupError, ValueError, struct.error: The headers are broken or missing.
    """
    head = read(start + _header_offset(read, start), 24 + 240)
    from pyprof.objfile.minidump import read_modules

    machine = MACHINES[struct.unpack_from("<H", head, 4)[0]]
    wide = struct.unpack_from("<H", head, 24)[0] == 0x20B
    (size,) = struct.unpack_from("<I", head, 24 + 56)
    directory, length = struct.unpack_from("<II", head, 24 + (112 if wide else 96) + 8 * DEBUG)
    module = read_modules(start, size, path, _record(read, start, directory, length), "windows")[0]
    return size, StatedId(module.debug_id, "", module.debug_name, *machine)


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


def _sections(read: ReadMemory, start: int, size: int) -> Iterator[Section]:
    """Yield the sections of a Windows module that stay in memory.

    Raises:
        ValueError, struct.error: The headers are broken.
    """
    at = start + _header_offset(read, start)
    count, optional = struct.unpack_from("<H12xH", read(at, 24), 6)
    table = read(at + 24 + optional, SECTION * count)
    for name, length, rva, stored, offset, flags in struct.iter_unpack(SECTION_LAYOUT, table[: SECTION * count]):
        if flags & DISCARDABLE or rva >= size:
            continue
        text = name.rstrip(b"\0").decode("ascii", "replace")
        length = min(length or stored, size - rva, MAX_SECTION)
        yield Section(text, rva, offset, length, 0, bool(flags & EXECUTE), stored=True, stated=True)


def _record(read: ReadMemory, start: int, directory: int, length: int) -> bytes:
    """Return the CodeView record of a Windows module, b"" if there is none."""
    table = read(start + directory, min(length, ENTRY * MAX_DEBUG_ENTRIES)) if directory else b""
    for at in range(0, len(table) - ENTRY + 1, ENTRY):
        kind, size, rva = struct.unpack_from("<III", table, at + 12)
        if kind == CODEVIEW and rva:
            return read(start + rva, min(size, MAX_RECORD))
    return b""
