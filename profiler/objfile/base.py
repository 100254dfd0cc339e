"""The interface of an object file, independent of its format.

The implementations are ElfFile (files, and images rebuilt from memory), PeFile and PeImage (Windows modules in files
and in memory) and AbsentFile (modules whose file is missing). All addresses are file addresses (svma).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, Protocol

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import Module, ReadMemory, StatedId
from pyprof.model.arch import Arch, find_arch


@dataclass(frozen=True, slots=True)
class Segment:
    """An address range of an object file that is loaded into memory.

    Attributes:
        offset: Offset of the segment's bytes in the file.
        vaddr: First address.
        filesz: Number of bytes in the file.
        memsz: Number of bytes in memory.
        executable: The range contains code.
        writable: The range is writable.
    """

    offset: int
    vaddr: int
    filesz: int
    memsz: int
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A named range of an object file.

    Attributes:
        name: Name of the section.
        addr: First address.
        offset: Offset of the section's bytes in the file.
        size: Size in bytes.
        entsize: Size of one entry in bytes, 0 if the format does not state it.
        executable: The section contains code.
        stored: The file contains the section's bytes.
        stated: The file itself has this section. If False, it was derived from other tables and may be too long.
    """

    name: str
    addr: int
    offset: int
    size: int
    entsize: int
    executable: bool
    stored: bool
    stated: bool


@dataclass(frozen=True, slots=True)
class UnwindTable:
    """The place of one unwind table in an object file.

    Attributes:
        name: Name of the table in messages.
        section: Name of the table's section, "" if no section holds it.
        svma: First address of the table.
        size: Size in bytes in the file.
        open_ended: Other bytes may follow the table in the data.
        read: Returns the data. Raises FormatError if it is incomplete or broken.
    """

    name: str
    section: str
    svma: int
    size: int
    open_ended: bool
    read: Callable[[], memoryview]


class ObjectFile(Protocol):
    """One object file, shared by all places where it is loaded. It is compared by identity.

    Broken input raises FormatError only.

    Attributes:
        name: Name of the file in messages.
        oddities: Descriptions of tolerated errors, for counters.
    """

    name: str
    oddities: list[str]

    def __hash__(self) -> int: ...

    @property
    def arch(self) -> Arch | None:
        """The architecture of the object file, None if it is not supported."""
        ...

    @property
    def machine_name(self) -> str:
        """The name of the object file's machine in the terms of the format, for messages."""
        ...

    @property
    def byteorder(self) -> Literal["little", "big"]:
        """The byte order of an object file's data."""
        ...

    @property
    def order(self) -> Literal["<", ">"]:
        """The byte order of an object file in the notation of struct and numpy."""
        ...

    @property
    def address_size(self) -> int:
        """The size of an address in bytes, as the object file states it."""
        ...

    @property
    def is_here(self) -> bool:
        """False if the object file is missing, so that only its identity and its memory are available."""
        ...

    @property
    def build_id(self) -> str:
        """The build ID of the object file in lower-case hex, "" if there is none."""
        ...

    @property
    def debug_id(self) -> str:
        """GUID and age in upper-case hex if the object file or a crash dump states them, else ""."""
        ...

    @property
    def identity(self) -> Hashable:
        """A key that is equal for two ObjectFile objects that describe the same file.

        The key is the build ID and the size. Without a build ID, it is the file's identity in the file system (device
        and inode).
        """
        ...

    @property
    def entry(self) -> int:
        """The entry point of the program, 0 if it is not stated."""
        ...

    @property
    def min_vaddr(self) -> int:
        """The lowest loaded address of the object file, rounded down to its page. Relative addresses (rel) count from
        here.
        """
        ...

    @property
    def loads(self) -> Sequence[Segment]:
        """The segments of the object file that are loaded. A file that was not linked has none."""
        ...

    @property
    def sections(self) -> Mapping[str, Section]:
        """The sections of the object file by name; the first one of each name."""
        ...

    @property
    def section_list(self) -> Sequence[Section]:
        """All sections of the object file by index, empty if the file has no section table."""
        ...

    @property
    def missing(self) -> int:
        """The number of bytes that are missing at the end of the object file because it was truncated, 0 if it is
        complete.
        """
        ...

    @property
    def lost_tables(self) -> bool:
        """True if the object file's headers state an unwind table whose bytes are not available."""
        ...

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        """Return the content of a section, or None if it is absent, empty or without content in this file.

        Args:
            name: Name of the section.
            enough: Number of bytes from the section's beginning that the caller needs, to save decompression.

        Raises:
            FormatError: The content is broken.
        """
        ...

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes of the object file as it is stored; fewer or none at its end."""
        ...

    def forget(self, name: str) -> None:
        """Drop a section's bytes from memory. The next call of section() reads them again."""
        ...

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Return the object file's bytes from an address on; fewer at the end of the segment or file, none outside."""
        ...

    def unwind_table(self, name: str) -> UnwindTable | None:
        """Return an unwind table of the object file, or None if there is none.

        Args:
            name: ".eh_frame", ".eh_frame_hdr", ".debug_frame", ".sframe", ".ARM.exidx", ".gopclntab" or ".pdata".

        Raises:
            FormatError: The place of the table is stated wrongly.
        """
        ...

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        """Return the addresses of the defined symbols among `names`, of data as well as functions.

        A broken table is skipped.
        """
        ...

    def prefixed_symbols(self, prefixes: Sequence[bytes]) -> dict[bytes, int]:
        """Return the addresses of the defined symbols whose names begin with one of `prefixes`.

        A broken table is skipped.
        """
        ...

    def embedded(self) -> ObjectFile | None:
        """Return the object file inside the section .gnu_debugdata of this object file, which has more symbols, or
        None.

        Raises:
            FormatError: The section is broken.
        """
        ...


class AbsentFile:
    """An object file without its file: one segment from address 0 on. Implements pyprof.objfile.base.ObjectFile."""

    is_here = False
    min_vaddr = 0
    missing = 0
    lost_tables = False
    section_list: tuple[Section, ...] = ()

    def __init__(self, module: Module, stated: StatedId, read: ReadMemory) -> None:
        """Create the object file of a module from its identity alone.

        Args:
            module: The module.
            stated: Identity of the module, as a crash dump or its headers state it.
            read: Function that reads the memory of the target or of the dump.
        """
        self.name = module.path
        self.oddities: list[str] = []
        self.arch: Arch | None = find_arch(stated.elf_machine, stated.elf_class, stated.byteorder)
        self.machine_name = self.arch.name if self.arch else f"ELF machine {stated.elf_machine}"
        self.byteorder: Literal["little", "big"] = "little" if stated.byteorder == "little" else "big"
        self.order: Literal["<", ">"] = "<" if self.byteorder == "little" else ">"
        self.address_size = stated.elf_class // 8
        self.build_id = stated.build_id
        self.debug_id = stated.debug_id
        self.entry = stated.entry
        self.size = module.end - module.start
        self.loads: tuple[Segment, ...] = (Segment(0, 0, 0, self.size, executable=True, writable=False),)
        self.sections: dict[str, Section] = {}
        self._start = module.start
        self._read = read

    @property
    def identity(self) -> Hashable:
        """The object itself, because no other object describes the same missing file."""
        return self

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        """Return None, because a missing file has no readable sections."""
        return None

    def read(self, offset: int, size: int) -> memoryview:
        """Return no bytes, because a missing file has no contents."""
        return memoryview(b"")

    def forget(self, name: str) -> None:
        """Ignore the request to drop a section, because no section of a missing file is cached."""

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Return the bytes of a missing file at a file address, from the memory of the process or dump. A small dump
        has mostly code around pcs.
        """
        if not 0 <= svma < self.size:
            return memoryview(b"")
        return memoryview(self._read(self._start + svma, min(size, self.size - svma)))

    def unwind_table(self, name: str) -> UnwindTable | None:
        """Return None, because the unwind tables of a missing file are not read."""
        return None

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        """Return no symbols, because a missing file has no symbol table."""
        return {}

    def prefixed_symbols(self, prefixes: Sequence[bytes]) -> dict[bytes, int]:
        """Return no symbols, because a missing file has no symbol table."""
        return {}

    def embedded(self) -> ObjectFile | None:
        """Return None, because a missing file contains no compressed debug file."""
        return None
