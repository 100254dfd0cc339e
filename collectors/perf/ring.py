"""The kernel's ring buffers, one for each processor, adjacent in one range of memory.

So all rings of a collector are one array, and a batch refers to records of several rings without a copy. Spare room
follows each ring. The rest of a record that wraps around the ring's end is copied there, so that the record is
contiguous.

See linux/perf_event.h, struct perf_event_mmap_page: data_head at 1024, data_tail at 1032.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.sampled_arch import order_reads
from pyprof.collectors.perf.attr import PerfNotAllowed, refusal, ring_owner

_PAGE = mmap.PAGESIZE
_HEAD, _TAIL = 1024 // 8, 1032 // 8
_SPILL = (1 << 16) + _PAGE
MIN_RING = 64 << 10
_MUCH = 4
"""A perf ring should be read when more than 1/_MUCH of it is used."""


class Ring:
    """The perf ring buffer of one processor.

    Attributes:
        first: Index of the ring's first data word in Rings.words.
        size: Bytes of data, a power of two.
        discarded: Position up to which records were discarded, in bytes; -1 if none were. A record of losses that
            follows there is about discarded records.
    """

    discarded = -1

    def __init__(self, words: npt.NDArray[np.uint64], control: int, size: int) -> None:
        self._words = words
        self._control = control
        self.first = control + _PAGE // 8
        self.size = size

    @property
    def head(self) -> int:
        """Number of bytes that the kernel has written to the perf ring since the beginning. They may be read after this
        call.
        """
        head = int(self._words[self._control + _HEAD])
        order_reads()
        return head

    @property
    def tail(self) -> int:
        """Number of bytes that the reader of the perf ring has released."""
        return int(self._words[self._control + _TAIL])

    def release_records(self, tail: int) -> None:
        """Release all data of a perf ring before `tail`, so that the kernel may overwrite it."""
        order_reads()
        self._words[self._control + _TAIL] = tail

    def make_contiguous(self, at: int, size: int) -> None:
        """Make a perf record contiguous that wraps around the ring's end.

        Args:
            at: Offset of the record in the data.
            size: Its size in bytes.
        """
        over = at + size - self.size
        if over > 0:
            end = self.first + self.size // 8
            self._words[end : end + over // 8] = self._words[self.first : self.first + over // 8]


class Rings:
    """The perf ring buffers of several processors.

    Attributes:
        words: Memory of all rings as 64-bit words; see Ring.first.
        rings: Rings by processor.
        owners: Descriptor of the event that owns each processor's ring.
    """

    def __init__(self, cpus: Sequence[int], size: int, wakes: bool = False, more: Sequence[int] = ()) -> None:
        """Map the perf ring buffers of processors into memory.

        Args:
            cpus: Processors that get a ring now.
            size: Bytes of each ring, a power of two.
            wakes: True if the kernel should wake a poll on an owner when much of its ring is used.
            more: Processors that may get a ring later (ring_on).

        Raises:
            PerfNotAllowed: The kernel permits no ring.
            RingTooLarge: A smaller ring may be permitted.
        """
        self.size = size
        self._owner = ring_owner(size // _MUCH if wakes else 0)
        self._stride = _PAGE + size + _SPILL
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | libc.MAP_NORESERVE
        places = dict.fromkeys([*cpus, *more])
        self._memory = mmap.mmap(-1, self._stride * len(places), flags=flags)
        self._address = libc.address_of(self._memory)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)
        self._places = {cpu: place * self._stride for place, cpu in enumerate(places)}
        self.rings: dict[int, Ring] = {}
        self.owners: dict[int, int] = {}
        try:
            for cpu in cpus:
                self._map(cpu)
        except BaseException:
            self.close()
            raise

    def _map(self, cpu: int) -> None:
        """Map a processor's perf ring. Its owner is an event that counts nothing, so that the ring outlives the events
        that fill it.
        """
        fd = libc.perf_event_open(self._owner, 0, cpu)
        if -fd == errno.ENODEV:  # the processor went offline
            return
        if fd < 0:
            raise refusal(-fd, 0)
        self.owners[cpu] = fd
        place = self._places[cpu]
        error = -libc.map_over(self._address + place, _PAGE + self.size, fd)
        if error:
            raise _refused(error, self.size)
        self.rings[cpu] = Ring(self.words, place // 8, self.size)

    def ring_on(self, cpu: int) -> int:
        """Return the descriptor of the event that owns a processor's perf ring, and map the ring if it does not exist
        yet. The result is negative if that fails.

        Raises:
            PerfNotAllowed: The kernel permits no ring.
        """
        if cpu not in self.owners and cpu in self._places:
            try:
                self._map(cpu)
            except PerfNotAllowed:
                os.close(self.owners.pop(cpu, -1))
                raise
        return self.owners.get(cpu, -1)

    @property
    def much_used(self) -> bool:
        """True if perf's rings should be read now."""
        return any(ring.head - ring.tail > self.size // _MUCH for ring in self.rings.values())

    def close(self) -> None:
        """Unmap the perf rings. Arrays that still refer to them then contain zeros."""
        for cpu in self.rings:
            libc.map_over(self._address + self._places[cpu], _PAGE + self.size, -1)
        for fd in self.owners.values():
            os.close(fd)
        self.rings.clear()
        self.owners.clear()


class RingTooLarge(PerfNotAllowed):
    """The kernel refuses a perf ring of this size; a smaller one may be permitted."""


def _refused(error: int, size: int) -> PerfNotAllowed:
    if error in (errno.EPERM, errno.ENOMEM):
        return RingTooLarge(
            f"The kernel gives no ring of {size >> 10} KB for each processor.",
            "sudo sysctl kernel.perf_event_mlock_kb=4096, or: ulimit -l unlimited",
        )
    return PerfNotAllowed(f"The ring of perf_events cannot be mapped: errno {error}.", "--collector ptrace")


def list_online_cpus() -> list[int]:
    """Return the numbers of the processors on which a thread may run.

    Raises:
        OSError: The kernel does not list them.
    """
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        return _listed(file.read())


def list_present_cpus() -> list[int]:
    """Return the numbers of the processors of the machine, including offline ones."""
    with open("/sys/devices/system/cpu/present", encoding="ascii") as file:
        return _listed(file.read())


def _listed(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def open_rings(cpus: list[int], size: int, exactly: bool, wakes: bool) -> Rings:
    """Open the largest perf rings up to `size` bytes that the kernel permits. See Rings for `wakes`."""
    while True:
        try:
            return Rings(cpus, size, wakes, list_present_cpus())
        except RingTooLarge:
            if exactly or size <= MIN_RING:
                raise
            size //= 2
