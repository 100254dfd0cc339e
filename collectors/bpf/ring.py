"""The ring in which programs leave their records (Documentation/bpf/ringbuf.rst), read without a copy.

The data pages are mapped twice in a row, so a record that wraps lies in one piece. A record's room is released when
give_back() is called: until then arrays may look at it.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.perf_arch import settle

_PAGE = mmap.PAGESIZE
_BUSY, _DISCARD = 1 << 31, 1 << 30
_HEAD = 8
FOREVER_NS = 2**63 - 1


class RecordRing:
    """words: all data, twice, as 64-bit words. size: bytes of it, once. fd: of the map.

    A record begins with its time. Records of several processors are nearly in order of time.
    """

    def __init__(self, fd: int, size: int) -> None:
        """fd: of the map; size: its bytes, a power of two."""
        self.size = size
        self.fd = fd
        self._mask = size - 1
        self._consumer = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._memory = mmap.mmap(fd, _PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        everything = np.frombuffer(self._memory, np.uint64)
        self._producer = everything[:1]
        self.words: npt.NDArray[np.uint64] = everything[_PAGE // 8 :]
        self._heads = everything[_PAGE // 8 :].view(np.uint32)
        self._at = struct.unpack_from("=Q", self._consumer)[0]

    def take(self, until_ns: int = FOREVER_NS, most: int = 1 << 20) -> tuple[list[int], int]:
        """(where records begin, in words; what to give back when they are done with). At most so many records, those
        before the first one that is later than until_ns.
        """
        found, self._at = self._scan(until_ns, most)
        return found, self._at

    def later(self, most: int = 1 << 20) -> list[int]:
        """Return where the records begin that take() has left, in words. They stay in the ring."""
        return self._scan(FOREVER_NS, most)[0]

    def _scan(self, until_ns: int, most: int) -> tuple[list[int], int]:
        at, end, mask, heads = self._at, int(self._producer[0]), self._mask, self._heads
        settle()
        found: list[int] = []
        while at < end and len(found) < most:
            place = at & mask
            head = int(heads[place >> 2])
            if head & _BUSY:
                break
            size = head & ~(_BUSY | _DISCARD)
            if not head & _DISCARD:
                word = (place + _HEAD) >> 3
                if int(self.words[word]) > until_ns:
                    break
                found.append(word)
            at += (size + _HEAD + 7) & ~7
        settle()
        return found, at

    def give_back(self, until: int) -> None:
        """The kernel may overwrite everything before."""
        settle()
        struct.pack_into("=Q", self._consumer, 0, until)

    @property
    def used(self) -> int:
        """Bytes that wait to be released."""
        return int(self._producer[0]) - int(struct.unpack_from("=Q", self._consumer)[0])
