"""The identifier by which Breakpad knows a module: its build-id as a GUID, or a hash of its code.

Source: src/common/linux/file_id.cc and src/common/module.cc of Breakpad.
"""

from __future__ import annotations

from pyprof.objfile.elf import SHT_PROGBITS, ElfFile

GUID_SIZE = 16
HASHED = 4096
"""Bytes of .text that are hashed where there is no build-id."""


def breakpad_id(elf: ElfFile) -> str:
    """33 upper-case hex digits (a GUID and the age 0), "" where the file has neither a build-id nor a .text."""
    identifier = bytes.fromhex(elf.build_id)[:GUID_SIZE] if elf.build_id else hashed_text(elf)
    if not identifier:
        return ""
    identifier = identifier.ljust(GUID_SIZE, b"\0")
    if elf.byteorder == "little":
        identifier = identifier[3::-1] + identifier[5:3:-1] + identifier[7:5:-1] + identifier[8:]
    return identifier.hex().upper() + "0"


def hashed_text(elf: ElfFile) -> bytes:
    """The first 4096 bytes of .text, XORed in lanes of 16; b"" where there is no .text.

    The last lane is read whole, past the end of a short .text, as dump_syms does.
    """
    section = next((s for s in elf.section_list if s.name == ".text" and s.type == SHT_PROGBITS), None)
    if section is None or not section.size:
        return b""
    code = bytes(elf.source.read(section.offset, -(-min(section.size, HASHED) // GUID_SIZE) * GUID_SIZE))
    value = 0
    for at in range(0, len(code), GUID_SIZE):
        value ^= int.from_bytes(code[at : at + GUID_SIZE].ljust(GUID_SIZE, b"\0"), "big")
    return value.to_bytes(GUID_SIZE, "big")


def same_id(first: str, second: str) -> bool:
    """Equal but for case and the age behind the GUID, which symbol files of one build may write differently."""
    return len(first) >= 2 * GUID_SIZE and first[: 2 * GUID_SIZE].upper() == second[: 2 * GUID_SIZE].upper()
