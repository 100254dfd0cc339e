"""An object file that is not here: of a module of a crash dump nothing but its identity is known, and what the dump
holds of its memory. It stands where an ElfFile stands, so that symbol files and separate debug files are found for it.
"""

from __future__ import annotations

import struct

from pyprof.model.modules import Module, ReadMemory, StatedId
from pyprof.objfile.elf.file import PF_R, PF_X, PT_LOAD, ElfFile
from pyprof.objfile.source import BytesSource

ET_DYN = 3


class AbsentFile(ElfFile):
    """One segment from 0 on, without a byte in the file. debug_id: StatedId.debug_id."""

    def __init__(self, module: Module, stated: StatedId, read: ReadMemory) -> None:
        """read: the dump's memory."""
        self.debug_id = stated.debug_id
        self.size = module.end - module.start
        self._start = module.start
        self._read = read
        super().__init__(BytesSource(_headers(stated, self.size)), module.path, with_sections=False)
        self.build_id = stated.build_id

    def at_svma(self, svma: int, size: int) -> memoryview:
        """What the dump holds there: code around the pc mostly, all of a full dump."""
        if not 0 <= svma < self.size:
            return memoryview(b"")
        return memoryview(self._read(self._start + svma, min(size, self.size - svma)))


def _headers(stated: StatedId, size: int) -> bytes:
    wide = stated.elf_class == 64
    order = "<" if stated.byteorder == "little" else ">"
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    header, entry = (64, 56) if wide else (52, 32)
    fields = struct.pack(
        order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"),
        *(ET_DYN, stated.elf_machine, 1, stated.entry, header, 0, 0, header, entry, 1, 0, 0, 0),
    )
    flags = PF_R | PF_X
    if wide:
        return ident + fields + struct.pack(order + "IIQQQQQQ", PT_LOAD, flags, 0, 0, 0, 0, size, 1)
    return ident + fields + struct.pack(order + "IIIIIIII", PT_LOAD, 0, 0, 0, 0, size, flags, 1)
