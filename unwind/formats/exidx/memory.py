"""An .ARM.exidx that stands in the target's memory, with its .ARM.extab and code there too; addresses are avma."""

from __future__ import annotations

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.objfile.base import Segment
from pyprof.unwind.formats.exidx.index import ExidxIndex
from pyprof.unwind.formats.exidx.section import Exidx

EVERYTHING = Segment(0, 0, 1 << 32, 1 << 32, executable=True, writable=False)


class MemoryFile:
    """What ExidxIndex asks of a file, answered from memory."""

    def __init__(self, read: ReadMemory, order: str) -> None:
        self._read = read
        self.order = order
        self.loads = (EVERYTHING,)

    def at_svma(self, svma: int, size: int) -> memoryview:
        return memoryview(self._read(svma, size))


def memory_exidx(address: int, data: bytes, read: ReadMemory, arch: Arch, diagnostics: Diagnostics) -> Exidx | None:
    """The index that stands at an avma; None where the architecture has none. Raises FormatError."""
    if arch.word != 4 or arch.lr < 0:
        return None
    index = ExidxIndex(MemoryFile(read, "<" if arch.byteorder == "little" else ">"), address, data)
    for oddity in index.oddities:
        diagnostics.count(oddity)
    return Exidx(index, arch, [], diagnostics)
