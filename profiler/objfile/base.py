"""What an object file is to everybody who reads one, whatever its format.

In: nothing; the formats implement it: elf/ (files and images rebuilt from memory), pe (Windows modules in memory),
absent (modules of which only the identity is known). Out: ObjectFile. All addresses are svma.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, Protocol

from pyprof.model.arch import Arch
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A range that is loaded. vaddr, memsz: where it stands; offset, filesz: its bytes in the file."""

    offset: int
    vaddr: int
    filesz: int
    memsz: int
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A named range. size: bytes. entsize: bytes of one entry, 0 where the format does not say.

    stored: its bytes are in this file. stated: the file itself has this section; False where it was made up from other
    tables, so that it may be longer than what was meant.
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
    """One unwind table of a file. name: for messages. section: as in Section.name, "" where no section holds it.

    svma: where it stands. size: bytes in the file. open_ended: bytes that do not belong to it may follow in the data.
    read: gives the data; raises FormatError where they are cut off or broken.
    """

    name: str
    section: str
    svma: int
    size: int
    open_ended: bool
    read: Callable[[], memoryview]


class ObjectFile(Protocol):
    """One object file, shared by every place where it is loaded. Compared by identity.

    name: for messages. oddities: what was tolerated, for a counter. Only FormatError is raised for broken input.
    """

    name: str
    oddities: list[str]

    def __hash__(self) -> int: ...

    @property
    def arch(self) -> Arch | None:
        """None where the architecture is not supported."""
        ...

    @property
    def machine_name(self) -> str:
        """The machine as the format names it, for messages."""
        ...

    @property
    def byteorder(self) -> Literal["little", "big"]:
        """Of data."""
        ...

    @property
    def order(self) -> Literal["<", ">"]:
        """byteorder as struct and numpy write it."""
        ...

    @property
    def address_size(self) -> int:
        """Bytes of an address that the file states."""
        ...

    @property
    def is_here(self) -> bool:
        """False: the file was not found; this object knows its identity and what memory holds."""
        ...

    @property
    def build_id(self) -> str:
        """Lower-case hex, "" if there is none."""
        ...

    @property
    def debug_id(self) -> str:
        """GUID and age in upper-case hex, where the file or a crash dump states them; else ""."""
        ...

    @property
    def identity(self) -> Hashable:
        """Equal for two objects of one file: build-id and size; without a build-id what the file system knows it by."""
        ...

    @property
    def entry(self) -> int:
        """Where the program begins, 0 if that is not stated."""
        ...

    @property
    def min_vaddr(self) -> int:
        """svma of rel 0: the lowest segment, rounded down to its page."""
        ...

    @property
    def loads(self) -> Sequence[Segment]:
        """The segments that are loaded; empty in a file that no linker saw."""
        ...

    @property
    def sections(self) -> Mapping[str, Section]:
        """By name, the first of a name."""
        ...

    @property
    def section_list(self) -> Sequence[Section]:
        """All sections by index, empty where the file has no such table."""
        ...

    @property
    def missing(self) -> int:
        """Bytes that the file should have and does not: it was cut off."""
        ...

    @property
    def lost_tables(self) -> bool:
        """Is there an unwind table, by the headers, whose bytes cannot be had?"""
        ...

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        """Content of a section; None where it is absent, empty or without content in this file. Raises FormatError.
        enough: so many bytes of its beginning do, where all of it has to be unpacked.
        """
        ...

    def read(self, offset: int, size: int) -> memoryview:
        """Bytes of the file as it is stored; shorter or empty where it ends."""
        ...

    def forget(self, name: str) -> None:
        """Drop a section's bytes from memory; the next section() reads them again."""
        ...

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Bytes of svma .. svma + size; shorter where the segment or the file ends, empty outside."""
        ...

    def unwind_table(self, name: str) -> UnwindTable | None:
        """name: ".eh_frame", ".eh_frame_hdr", ".debug_frame", ".sframe" or ".ARM.exidx". None if there is none.

        Raises FormatError where the table's place is stated wrongly.
        """
        ...

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        """svma of the defined symbols among names: data as well as functions. A broken table is passed over."""
        ...

    def embedded(self) -> ObjectFile | None:
        """The object file that a section of this one holds (.gnu_debugdata): more symbols. Raises FormatError."""
        ...
