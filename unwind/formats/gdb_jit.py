"""The GDB JIT interface: a list of object files that a process keeps in its memory for debuggers.

In: the avma of `__jit_debug_descriptor`. Out: where the object files stand now. What they contain is read by
pyprof.objfile.elf.memory_object.
Source: GDB manual, "JIT Compilation Interface"; gdb/jit.h.

    jit_descriptor  u32 version (1), u32 action_flag, jit_code_entry *relevant_entry, *first_entry
    jit_code_entry  *next_entry, *prev_entry, const char *symfile_addr, u64 symfile_size
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.objfile.target_structs import TargetStructs
from pyprof.records import dataclass

DESCRIPTOR = b"__jit_debug_descriptor"
SECTION = "gdb jit list"

MAX_ENTRIES = 1 << 14
MAX_BYTES = 16 << 20
MAX_OBJECT = 64 << 20

NO_U64_ALIGNMENT = frozenset({"i386"})
"""32-bit architectures whose u64 is aligned to 4 bytes in a structure."""


@dataclass(frozen=True, slots=True)
class JitEntry:
    """One registered object file. entry: avma of its list entry; address, size: of the object file."""

    entry: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class JitList:
    """descriptor: its bytes, to be compared. relevant: the entry of the last action. whole: the list was read to its
    end.
    """

    descriptor: bytes
    relevant: int
    entries: tuple[JitEntry, ...]
    whole: bool


def descriptor_layout(structs: TargetStructs) -> struct.Struct:
    return structs.layout("IIPP")


def read_descriptor(read: ReadMemory, arch: Arch, avma: int) -> bytes:
    """Raises FormatError where it is not readable or of an unknown version."""
    structs = TargetStructs(read, arch, SECTION, MAX_BYTES)
    layout = descriptor_layout(structs)
    data = structs.exactly(avma, layout.size)
    version = layout.unpack(data)[0]
    if version != 1:
        raise FormatError(SECTION, avma, f"unknown version {version}")
    return data


def read_list(read: ReadMemory, arch: Arch, avma: int) -> JitList:
    """The list as it stands. Raises FormatError where the descriptor cannot be read; a list that ends in the middle
    of nowhere or bites its own tail has whole False.
    """
    structs = TargetStructs(read, arch, SECTION, MAX_BYTES)
    data = read_descriptor(read, arch, avma)
    _, _, relevant, at = descriptor_layout(structs).unpack(data)
    entries: list[JitEntry] = []
    seen: set[int] = set()
    whole = True
    while at:
        if at in seen or len(entries) >= MAX_ENTRIES:
            whole = False
            break
        seen.add(at)
        try:
            at, entry = _entry(structs, at)
        except FormatError:
            whole = False
            break
        entries.append(entry)
    return JitList(data, relevant, tuple(entries), whole)


def read_entry(read: ReadMemory, arch: Arch, avma: int) -> tuple[int, JitEntry]:
    """(avma of the next entry, the entry at avma). Raises FormatError."""
    return _entry(TargetStructs(read, arch, SECTION, MAX_BYTES), avma)


def _entry(structs: TargetStructs, avma: int) -> tuple[int, JitEntry]:
    tight = structs.word == 8 or structs.arch.name in NO_U64_ALIGNMENT
    following, _, address, size = structs.unpack(avma, structs.layout("PPPQ" if tight else "PPP4xQ"))
    return following, JitEntry(avma, address, size)


def read_object(read: ReadMemory, arch: Arch, entry: JitEntry) -> bytes:
    """The bytes of a registered object file. Raises FormatError."""
    if not 0 < entry.size <= MAX_OBJECT:
        raise FormatError(SECTION, entry.entry, f"an object file of {entry.size} bytes")
    return TargetStructs(read, arch, SECTION, MAX_OBJECT).exactly(entry.address, entry.size)
