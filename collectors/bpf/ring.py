"""The ring buffer that the programs fill (Documentation/bpf/ringbuf.rst), read without a copy.

The data pages are mapped twice in a row, so a record that wraps is contiguous. release_records() releases a record's
room; until then arrays may refer to it.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.sampled_arch import order_reads

_PAGE = mmap.PAGESIZE
_BUSY, _DISCARD = 1 << 31, 1 << 30
_HEAD = 8
FOREVER_NS = 2**63 - 1


class RecordRing:
    """The ring buffer that the BPF programs fill with records.

    A record begins with its time. Records of several processors are nearly in order of time.

    Attributes:
        words: All data, twice, as 64-bit words.
        size: Size of the data in bytes.
        fd: Descriptor of the map.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the BPF ring buffer into memory; `size` is a power of two."""
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

    def take_records(self, until_ns: int = FOREVER_NS, max_records: int = 1 << 20) -> tuple[list[int], int]:
        """Return the next records of the BPF ring buffer.

        Args:
            until_ns: Stop at the first record after this time.
            max_records: Maximum number of records.

        Returns:
            (words at which the records begin, position to pass to release_records()).
        """
        found, self._at = self._scan(until_ns, max_records)
        return found, self._at

    def find_later_records(self, max_records: int = 1 << 20) -> list[int]:
        """Return the positions (in words) of the ring buffer's records that take_records() has left there."""
        return self._scan(FOREVER_NS, max_records)[0]

    def _scan(self, until_ns: int, most: int) -> tuple[list[int], int]:
        at, end, mask, heads = self._at, int(self._producer[0]), self._mask, self._heads
        order_reads()
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
        order_reads()
        return found, at

    def release_records(self, until: int) -> None:
        """Release all ring buffer records before a position, so that the kernel may overwrite them."""
        order_reads()
        struct.pack_into("=Q", self._consumer, 0, until)

    @property
    def used(self) -> int:
        """Number of bytes in the BPF ring buffer that the reader has not released."""
        return int(self._producer[0]) - int(struct.unpack_from("=Q", self._consumer)[0])
