""".ARM.exidx and .ARM.extab: the code that an entry covers, and its unwinding instructions.

    index entry   prel31 of a function's start, then  1: cannot unwind | bit 31: compact entry | prel31 of extab entry
    extab entry   bit 31: compact entry | prel31 of a personality routine, then its data
    compact       bits 24-27: 0: three instruction bytes; 1, 2: bits 16-23 = further words, then two bytes and those
    personality   its data's layout is its own; GCC's and LLVM's __gxx_personality_v0 and __gcc_personality_v0 have
                  bits 24-31 = further words, three bytes and those

Source: ehabi32, "Index table entries", "Exception-handling table entries", "Arm-defined personality routines".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.objfile.base import Segment
from pyprof.records import dataclass

SECTION, TABLE = ".ARM.exidx", ".ARM.extab"
CANT_UNWIND = 1
MAX_INDEX = 1 << 28
_ADDRESS = 0xFFFF_FFFF


class Model(Enum):
    """The place of the unwinding instructions of an entry of .ARM.exidx."""

    CANT_UNWIND = "cannot unwind"
    INLINE = "inline"
    COMPACT = "compact"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of .ARM.exidx.

    Attributes:
        start: First address of its code in the file (svma).
        end: Address after its code.
        model: The place of its instructions.
        code: Its unwinding instructions, most significant byte first.
        personality: Number (compact) or file address (generic) of the personality routine, -1 if there is none.
        table: File address of its .ARM.extab entry, -1 if there is none.
    """

    start: int
    end: int
    model: Model
    code: bytes
    personality: int
    table: int


class IndexedFile(Protocol):
    """The protocol of the file or memory that an .ARM.exidx belongs to."""

    @property
    def order(self) -> str: ...

    @property
    def loads(self) -> Sequence[Segment]: ...

    def at_svma(self, svma: int, size: int) -> memoryview: ...


class ExidxIndex:
    """The .ARM.exidx of one file, sorted by start.

    Attributes:
        starts: File addresses (svma) of the functions, without the Thumb bit.
        oddities: Descriptions of tolerated errors.
    """

    def __init__(self, file: IndexedFile, addr: int, data: bytes | memoryview) -> None:
        """Read an .ARM.exidx section.

        Args:
            file: The file.
            addr: File address (svma) of the index.
            data: Bytes of the section.

        Raises:
            FormatError: The index is invalid.
        """
        if len(data) > MAX_INDEX:
            raise FormatError(SECTION, 0, f"{len(data)} bytes long")
        self.oddities: list[str] = []
        if len(data) % 8:
            self.oddities.append("exidx_index_truncated")
        words = np.frombuffer(data, f"{file.order}u4", len(data) // 8 * 2).reshape(-1, 2)
        place = (addr + 8 * np.arange(len(words), dtype=np.int64)) & _ADDRESS
        starts = (place + _prel31(words[:, 0])) & (_ADDRESS - 1)  # bit 0: Thumb
        if bool((words[:, 0] >> 31).any()):
            raise FormatError(SECTION, 8 * int((words[:, 0] >> 31).argmax()), "bit 31 of a key is set")
        order = np.arange(len(words))
        if bool((np.diff(starts) < 0).any()):
            self.oddities.append("exidx_index_not_sorted")
            order = np.argsort(starts, kind="stable")
        self.starts: list[int] = starts[order].tolist()
        self._order: list[int] = order.tolist()
        self._words: list[int] = words[:, 1].tolist()
        self._addr = addr
        self._file = file
        self._text = sorted((s.vaddr, s.vaddr + s.memsz) for s in file.loads if s.executable and s.memsz)
        self._text_starts = [start for start, _ in self._text]

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, svma: int) -> int:
        """Return the position of the .ARM.exidx entry that covers a file address, -1 if there is none."""
        at = bisect_right(self.starts, svma) - 1
        return at if at >= 0 and svma < self.end(at) else -1

    def end(self, position: int) -> int:
        """Return the end of the code that an .ARM.exidx entry covers: the next entry's start, but at most the end of
        the text segment.

        The result is the entry's start if that is not executable.
        """
        start = self.starts[position]
        at = bisect_right(self._text_starts, start) - 1
        end = self._text[at][1] if at >= 0 else start
        if position + 1 < len(self.starts):
            end = min(end, self.starts[position + 1])
        return max(start, end)

    def extents(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return arrays (start, end) of the .ARM.exidx entries that do not say "cannot unwind": file addresses of shape
        (n,).
        """
        words = np.array(self._words, np.uint64)[self._order]
        known = np.flatnonzero(words != CANT_UNWIND)
        ends = [self.end(position) for position in known.tolist()]
        return np.array(self.starts, np.uint64)[known], np.array(ends, np.uint64)

    def offset(self, position: int) -> int:
        """Return the offset of an entry in .ARM.exidx, for messages."""
        return 8 * self._order[position]

    def entry(self, position: int) -> Entry:
        """Return the EXIDX entry at a position.

        Raises:
            FormatError: The entry or its table is broken.
        """
        start, end, at = self.starts[position], self.end(position), self.offset(position)
        word = self._words[self._order[position]]
        if word == CANT_UNWIND:
            return Entry(start, end, Model.CANT_UNWIND, b"", -1, -1)
        if word >> 31:
            if word >> 24 != 0x80:
                raise FormatError(SECTION, at, f"inline entry of personality routine {word >> 24 & 0x7F}")
            return Entry(start, end, Model.INLINE, word.to_bytes(4, "big")[1:], 0, -1)
        table = (self._addr + at + 4 + _signed31(word)) & _ADDRESS
        return self._table_entry(start, end, table)

    def code(self, svma: int, size: int) -> bytes:
        """Return the bytes of the file's code at a file address, `size` bytes or fewer."""
        return bytes(self._file.at_svma(svma, size))

    def _table_entry(self, start: int, end: int, table: int) -> Entry:
        word = self._read(table, 1)[0]
        if not word >> 31:
            personality = (table + _signed31(word)) & (_ADDRESS - 1)
            head = self._read(table + 4, 1)[0]
            more = self._read(table + 8, head >> 24)
            return Entry(start, end, Model.GENERIC, _instructions(head, 3, more), personality, table)
        number = word >> 24 & 0x7F
        if number > 2:
            raise FormatError(TABLE, table, f"personality routine {number} is reserved")
        if number == 0:
            return Entry(start, end, Model.COMPACT, _instructions(word, 3, ()), 0, table)
        more = self._read(table + 4, word >> 16 & 0xFF)
        return Entry(start, end, Model.COMPACT, _instructions(word, 2, more), number, table)

    def _read(self, svma: int, count: int) -> tuple[int, ...]:
        data = self._file.at_svma(svma, 4 * count)
        if len(data) < 4 * count:
            raise FormatError(TABLE, svma, f"entry of {count} words at svma {svma:#x} lies outside of the file")
        return tuple(np.frombuffer(data, f"{self._file.order}u4").tolist())


def read_entries(index: ExidxIndex) -> Iterator[Entry | FormatError]:
    """Yield all .ARM.exidx entries that cover code, ascending. An error takes the place of a broken entry."""
    for position in range(len(index)):
        if index.end(position) > index.starts[position]:
            try:
                yield index.entry(position)
            except FormatError as error:
                yield error


def _prel31(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    low = words.astype(np.int64) & 0x7FFF_FFFF
    return low - ((low & 0x4000_0000) << 1)


def _signed31(word: int) -> int:
    low = word & 0x7FFF_FFFF
    return low - ((low & 0x4000_0000) << 1)


def _instructions(head: int, count: int, more: tuple[int, ...]) -> bytes:
    """Return an EXIDX entry's instructions: the last `count` bytes of head and then the words of `more`, each with its
    most significant byte first.
    """
    return head.to_bytes(4, "big")[4 - count :] + b"".join(word.to_bytes(4, "big") for word in more)
