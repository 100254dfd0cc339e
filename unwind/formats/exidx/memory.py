"""An .ARM.exidx in the target's memory, together with its .ARM.extab and code.

All addresses are those in the process.
"""

from __future__ import annotations

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.objfile.base import Segment
from pyprof.unwind.formats.exidx.index import ExidxIndex
from pyprof.unwind.formats.exidx.section import Exidx

EVERYTHING = Segment(0, 0, 1 << 32, 1 << 32, executable=True, writable=False)


class MemoryFile:
    """An .ARM.exidx in the target's memory (implements IndexedFile)."""

    def __init__(self, read: ReadMemory, order: str) -> None:
        self._read = read
        self.order = order
        self.loads = (EVERYTHING,)

    def at_svma(self, svma: int, size: int) -> memoryview:
        return memoryview(self._read(svma, size))


def open_memory_exidx(
    address: int, data: bytes, read: ReadMemory, arch: Arch, diagnostics: Diagnostics
) -> Exidx | None:
    """Return the .ARM.exidx at an address in the process, or None if the architecture has no such index.

    Raises:
        FormatError: The index is invalid.
    """
    if arch.word != 4 or arch.lr < 0:
        return None
    index = ExidxIndex(MemoryFile(read, "<" if arch.byteorder == "little" else ">"), address, data)
    for oddity in index.oddities:
        diagnostics.count(oddity)
    return Exidx(index, arch, [], diagnostics)
