"""The object file of a module whose file is missing. Its identity is known, and parts of its memory may be available.

Symbol files and separate debug files are found by the identity. Its unwind tables are not read.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from pyprof.model.address_space import Module, ReadMemory, StatedId
from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.base import ObjectFile, Section, Segment, UnwindTable


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
        return self

    def section(self, name: str, enough: int | None = None) -> memoryview | None:
        return None

    def read(self, offset: int, size: int) -> memoryview:
        return memoryview(b"")

    def forget(self, name: str) -> None:
        """Ignore the request to drop a section, because no section of a missing file is cached."""

    def at_svma(self, svma: int, size: int) -> memoryview:
        """Return the bytes in memory of a missing file: mostly code around pcs in a small dump, all bytes in a live
        process.
        """
        if not 0 <= svma < self.size:
            return memoryview(b"")
        return memoryview(self._read(self._start + svma, min(size, self.size - svma)))

    def unwind_table(self, name: str) -> UnwindTable | None:
        return None

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        return {}

    def prefixed_symbols(self, prefixes: Sequence[bytes]) -> dict[bytes, int]:
        return {}

    def embedded(self) -> ObjectFile | None:
        return None
