"""The GDB JIT interface: a list of object files that a process keeps in its memory for debuggers.

read_list() takes the address of `__jit_debug_descriptor` in the process and returns where the object files are now.
pyprof.objfile.elf_memory_image reads their content.
Source: GDB manual, "JIT Compilation Interface"; gdb/jit.h.

    jit_descriptor  u32 version (1), u32 action_flag, jit_code_entry *relevant_entry, *first_entry
    jit_code_entry  *next_entry, *prev_entry, const char *symfile_addr, u64 symfile_size
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import ReadMemory
from pyprof.model.arch import Arch
from pyprof.objfile.target_memory_structs import TargetStructs

DESCRIPTOR = b"__jit_debug_descriptor"
SECTION = "gdb jit list"

MAX_ENTRIES = 1 << 14
MAX_BYTES = 16 << 20
MAX_OBJECT = 64 << 20

NO_U64_ALIGNMENT = frozenset({"i386"})
"""32-bit architectures that align a u64 in a structure of the GDB JIT interface to 4 bytes."""


@dataclass(frozen=True, slots=True)
class JitEntry:
    """One object file that a process registered with the GDB JIT interface.

    Attributes:
        entry: Address of its list entry in the process.
        address: Address of the object file in the process.
        size: Size of the object file in bytes.
    """

    entry: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class JitList:
    """The list of object files that a process registered with the GDB JIT interface.

    Attributes:
        descriptor: Bytes of the descriptor, to detect changes.
        relevant: Address of the entry of the last action.
        entries: The object files.
        whole: True if the list was read to its end.
    """

    descriptor: bytes
    relevant: int
    entries: tuple[JitEntry, ...]
    whole: bool


def descriptor_layout(structs: TargetStructs) -> struct.Struct:
    return structs.layout("IIPP")


def read_descriptor(read: ReadMemory, arch: Arch, avma: int) -> bytes:
    """Return the bytes of the GDB JIT interface's descriptor at an address in the process.

    Raises:
        FormatError: The descriptor is not readable, or its version is unknown.
    """
    structs = TargetStructs(read, arch, SECTION, MAX_BYTES)
    layout = descriptor_layout(structs)
    data = structs.read_exactly(avma, layout.size)
    version = layout.unpack(data)[0]
    if version != 1:
        raise FormatError(SECTION, avma, f"unknown version {version}")
    return data


def read_list(read: ReadMemory, arch: Arch, avma: int) -> JitList:
    """Read the current list of the GDB JIT interface. A list that is broken or cyclic is returned with whole = False.

    Raises:
        FormatError: The descriptor cannot be read.
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
    """Return (address of the next entry, the entry at an address) of the GDB JIT interface's list.

    Raises:
        FormatError: The entry cannot be read.
    """
    return _entry(TargetStructs(read, arch, SECTION, MAX_BYTES), avma)


def _entry(structs: TargetStructs, avma: int) -> tuple[int, JitEntry]:
    tight = structs.word == 8 or structs.arch.name in NO_U64_ALIGNMENT
    following, _, address, size = structs.unpack(avma, structs.layout("PPPQ" if tight else "PPP4xQ"))
    return following, JitEntry(avma, address, size)


def read_object(read: ReadMemory, arch: Arch, entry: JitEntry) -> bytes:
    """Return the bytes of an object file that is registered with the GDB JIT interface.

    Raises:
        FormatError: The file is too large or cannot be read.
    """
    if not 0 < entry.size <= MAX_OBJECT:
        raise FormatError(SECTION, entry.entry, f"an object file of {entry.size} bytes")
    return TargetStructs(read, arch, SECTION, MAX_OBJECT).read_exactly(entry.address, entry.size)
