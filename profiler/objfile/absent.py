"""An object file that is not here: of a module nothing but its identity is known, and what is held of its memory.

Symbol files and separate debug files are found by the identity. No unwind table of it is read.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from pyprof.model.arch import Arch, find_arch
from pyprof.model.modules import Module, ReadMemory, StatedId
from pyprof.objfile.base import ObjectFile, Section, Segment, UnwindTable


class AbsentFile:
    """One segment from 0 on, without a byte in the file. Implements pyprof.objfile.base.ObjectFile."""

    is_here = False
    min_vaddr = 0
    missing = 0
    lost_tables = False
    section_list: tuple[Section, ...] = ()

    def __init__(self, module: Module, stated: StatedId, read: ReadMemory) -> None:
        """read: the target's memory, or a dump's."""
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
        """Nothing is kept."""

    def at_svma(self, svma: int, size: int) -> memoryview:
        """What is held there: of a dump mostly code around the pc, all of a full dump or a live process."""
        if not 0 <= svma < self.size:
            return memoryview(b"")
        return memoryview(self._read(self._start + svma, min(size, self.size - svma)))

    def unwind_table(self, name: str) -> UnwindTable | None:
        return None

    def named_symbols(self, names: Sequence[bytes]) -> dict[bytes, int]:
        return {}

    def embedded(self) -> ObjectFile | None:
        return None
