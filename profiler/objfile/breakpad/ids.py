"""The identifier by which Breakpad knows a module: its build-id as a GUID, or a hash of its code.

Source: src/common/linux/file_id.cc and src/common/module.cc of Breakpad.
"""

from __future__ import annotations

from pyprof.model.arch import find_arch
from pyprof.model.modules import StatedId
from pyprof.objfile.base import ObjectFile

GUID_SIZE = 16
HASHED = 4096
"""Bytes of .text that are hashed where there is no build-id."""


def breakpad_id(file: ObjectFile) -> str:
    """33 upper-case hex digits (a GUID and the age 0), "" where the file has neither a build-id nor a .text.

    Of a file that is not here: as a crash dump or the module's memory states it.
    """
    if file.debug_id:
        return file.debug_id
    identifier = bytes.fromhex(file.build_id)[:GUID_SIZE] if file.build_id else hashed_text(file)
    if not identifier:
        return ""
    return as_guid(identifier, file.byteorder) + "0"


def as_guid(identifier: bytes, byteorder: str) -> str:
    """The first 16 bytes of an identifier as the hex digits of a GUID. byteorder: of the target, "little" or "big"."""
    identifier = identifier[:GUID_SIZE].ljust(GUID_SIZE, b"\0")
    if byteorder == "little":
        identifier = identifier[3::-1] + identifier[5:3:-1] + identifier[7:5:-1] + identifier[8:]
    return identifier.hex().upper()


def hashed_text(file: ObjectFile) -> bytes:
    """The first 4096 bytes of .text, XORed in lanes of 16; b"" where there is no .text.

    The last lane is read whole, past the end of a short .text, as dump_syms does.
    """
    section = next((s for s in file.section_list if s.name == ".text" and s.stored), None)
    if section is None or not section.size:
        return b""
    code = bytes(file.read(section.offset, -(-min(section.size, HASHED) // GUID_SIZE) * GUID_SIZE))
    value = 0
    for at in range(0, len(code), GUID_SIZE):
        value ^= int.from_bytes(code[at : at + GUID_SIZE].ljust(GUID_SIZE, b"\0"), "big")
    return value.to_bytes(GUID_SIZE, "big")


def same_id(first: str, second: str) -> bool:
    """Equal but for case and the age behind the GUID, which symbol files of one build may write differently.

    Shorter ones (PDB 2.0: time stamp and age) are compared whole.
    """
    if len(first) < 2 * GUID_SIZE:
        return bool(first) and first.upper() == second.upper()
    return first[: 2 * GUID_SIZE].upper() == second[: 2 * GUID_SIZE].upper()


def is_stated(file: ObjectFile, stated: StatedId) -> bool:
    """Is it the file that a crash dump speaks of?"""
    if file.arch is None or file.arch is not find_arch(stated.elf_machine, stated.elf_class, stated.byteorder):
        return False
    if stated.build_id and file.build_id:
        return file.build_id.startswith(stated.build_id)
    return same_id(breakpad_id(file), stated.debug_id)
