"""The memory in a core file or a crash dump, by address. In a core file these are the PT_LOAD segments.

Memory that the kernel or a debugger left out (p_memsz beyond p_filesz, code that its file still has) reads as empty,
and so does memory that is missing in a truncated core file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from pyprof.objfile.byte_source import ByteSource
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.headers import PF_R, PF_W, PF_X
from pyprof.records import dataclass

MAX_READ = 1 << 30


def format_perms(flags: int) -> str:
    """Return PF_* flags of a segment in the notation of /proc/PID/maps."""
    return "".join(c if flags & bit else "-" for c, bit in (("r", PF_R), ("w", PF_W), ("x", PF_X))) + "p"


@dataclass(frozen=True, slots=True)
class SavedRange:
    """One range of memory in a core file or crash dump.

    Attributes:
        start: First address in the process.
        end: Address after the range.
        stored_end: Address up to which the file has its bytes.
        offset: Offset of the bytes in the file.
        flags: PF_* permissions.
    """

    start: int
    end: int
    stored_end: int
    offset: int
    flags: int

    @property
    def perms(self) -> str:
        """The permissions of a memory range in the notation of /proc/PID/maps."""
        return format_perms(self.flags)


class SavedMemory:
    """The memory in a core file or crash dump. Its ranges are ascending and do not overlap."""

    def __init__(self, source: ByteSource, regions: list[SavedRange]) -> None:
        self._source = source
        self.regions = regions
        self._starts = [region.start for region in self.regions]

    def region_at(self, avma: int) -> SavedRange | None:
        at = bisect_right(self._starts, avma) - 1
        return self.regions[at] if at >= 0 and avma < self.regions[at].end else None

    def ranges_between(self, start: int, end: int) -> list[SavedRange]:
        """Return the memory ranges of the file whose start lies in start..end."""
        return self.regions[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def read(self, avma: int, size: int) -> bytes:
        """Return bytes of the saved memory from an address on, `size` bytes or fewer, up to the first byte that the
        file does not have.
        """
        size = min(size, MAX_READ)
        region = self.region_at(avma)
        parts: list[memoryview] = []
        while region is not None and size > 0 and avma < region.stored_end:
            part = self._source.read(region.offset + avma - region.start, min(size, region.stored_end - avma))
            if not part:
                break
            parts.append(part)
            avma += len(part)
            size -= len(part)
            if avma < region.end:
                break
            region = self.region_at(avma)
        return b"".join(parts)


class CoreMemory(SavedMemory):
    """The memory in a core file.

    Attributes:
        lost: Number of bytes that the headers place past the end of the file.
    """

    def __init__(self, elf: ElfFile) -> None:
        regions: list[SavedRange] = []
        self.lost = 0
        top = 1 << elf.elf_class
        end = 0
        for load in sorted(elf.loads, key=lambda s: (s.vaddr, -s.filesz)):
            start, stop = load.vaddr, load.vaddr + max(load.memsz, load.filesz)
            if start < end or start >= stop or stop > top:
                continue
            stored = min(load.filesz, max(0, elf.source.size - load.offset))
            self.lost += load.filesz - stored
            regions.append(SavedRange(start, stop, start + stored, load.offset, load.flags))
            end = stop
        super().__init__(elf.source, regions)


def make_saved_memory(source: ByteSource, pieces: Iterable[tuple[int, int, int]]) -> SavedMemory:
    """Return saved memory from (address, size, offset in the file) of pieces in any order.

    Where pieces overlap, the one with the lower address is used.
    """
    regions: list[SavedRange] = []
    end = 0
    for start, size, offset in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
        size = min(size, max(source.size - offset, 0))
        skipped = max(end - start, 0)
        if skipped < size and start + size <= 1 << 64:
            end = start + size
            regions.append(SavedRange(start + skipped, end, end, offset + skipped, PF_R | PF_W))
    return SavedMemory(source, regions)
