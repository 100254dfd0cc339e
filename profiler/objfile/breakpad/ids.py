"""The identifier by which Breakpad identifies a module: its build ID as a GUID, or a hash of its code.

Source: src/common/linux/file_id.cc and src/common/module.cc of Breakpad.
"""

from __future__ import annotations

from pyprof.model.arch import find_arch
from pyprof.model.modules import StatedId
from pyprof.objfile.base import ObjectFile

GUID_SIZE = 16
HASHED = 4096
"""Number of bytes of .text that are hashed for a Breakpad identifier if there is no build ID."""


def breakpad_id(file: ObjectFile) -> str:
    """Return a file's Breakpad identifier: 33 upper-case hex digits (a GUID and the age 0), "" if the file has neither
    a build ID nor a .text.

    For a missing file, the identifier is the one that a crash dump or the module's memory states.
    """
    if file.debug_id:
        return file.debug_id
    identifier = bytes.fromhex(file.build_id)[:GUID_SIZE] if file.build_id else hash_text(file)
    if not identifier:
        return ""
    return format_guid(identifier, file.byteorder) + "0"


def format_guid(identifier: bytes, byteorder: str) -> str:
    """Return the first 16 bytes of an identifier as the hex digits of a GUID.

    Args:
        identifier: The bytes of the identifier; shorter ones are padded with zeros.
        byteorder: Byte order of the target, "little" or "big".
    """
    identifier = identifier[:GUID_SIZE].ljust(GUID_SIZE, b"\0")
    if byteorder == "little":
        identifier = identifier[3::-1] + identifier[5:3:-1] + identifier[7:5:-1] + identifier[8:]
    return identifier.hex().upper()


def hash_text(file: ObjectFile) -> bytes:
    """Return the XOR of the first 4096 bytes of .text in blocks of 16 bytes; b"" if there is no .text.

    The last block is read completely, past the end of a short .text, as dump_syms does.
    """
    section = next((s for s in file.section_list if s.name == ".text" and s.stored), None)
    if section is None or not section.size:
        return b""
    code = bytes(file.read(section.offset, -(-min(section.size, HASHED) // GUID_SIZE) * GUID_SIZE))
    value = 0
    for at in range(0, len(code), GUID_SIZE):
        value ^= int.from_bytes(code[at : at + GUID_SIZE].ljust(GUID_SIZE, b"\0"), "big")
    return value.to_bytes(GUID_SIZE, "big")


def is_same_id(first: str, second: str) -> bool:
    """Return True if two Breakpad identifiers are equal, ignoring case and the age after the GUID.

    Symbol files of one build may state different ages. Shorter identifiers (PDB 2.0: time stamp and age) are compared
    completely.
    """
    if len(first) < 2 * GUID_SIZE:
        return bool(first) and first.upper() == second.upper()
    return first[: 2 * GUID_SIZE].upper() == second[: 2 * GUID_SIZE].upper()


def is_stated(file: ObjectFile, stated: StatedId) -> bool:
    """Return True if the object file is the one that a crash dump identifies."""
    if file.arch is None or file.arch is not find_arch(stated.elf_machine, stated.elf_class, stated.byteorder):
        return False
    if stated.build_id and file.build_id:
        return file.build_id.startswith(stated.build_id)
    return is_same_id(breakpad_id(file), stated.debug_id)
