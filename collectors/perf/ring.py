"""The kernel's ring buffers, one a processor, side by side in one range of memory.

So all rings of a collector are one array, and a batch refers to records of several of them without a copy. Behind
each ring stands spare room: a record that wraps around the ring's end is continued there, and lies in one piece.

linux/perf_event.h, struct perf_event_mmap_page: data_head at 1024, data_tail at 1032.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.perf_arch import settle
from pyprof.collectors.perf.attr import PerfNotAllowed, refusal, ring_owner

_PAGE = mmap.PAGESIZE
_HEAD, _TAIL = 1024 // 8, 1032 // 8
_SPILL = (1 << 16) + _PAGE
LEAST_RING = 64 << 10
_MUCH = 4
"""Such a part of a ring is much."""


class Ring:
    """One ring. first: index of its first data word in Rings.words; size: bytes of data, a power of two."""

    def __init__(self, words: npt.NDArray[np.uint64], control: int, size: int) -> None:
        self._words = words
        self._control = control
        self.first = control + _PAGE // 8
        self.size = size

    @property
    def head(self) -> int:
        """Bytes that the kernel has written since the beginning. They are there for whoever reads them after this."""
        head = int(self._words[self._control + _HEAD])
        settle()
        return head

    @property
    def tail(self) -> int:
        """Bytes that were released."""
        return int(self._words[self._control + _TAIL])

    def give_back(self, tail: int) -> None:
        """The kernel may overwrite everything before tail."""
        settle()
        self._words[self._control + _TAIL] = tail

    def mend(self, at: int, size: int) -> None:
        """Make the record of size bytes at byte `at` of the data lie in one piece."""
        over = at + size - self.size
        if over > 0:
            end = self.first + self.size // 8
            self._words[end : end + over // 8] = self._words[self.first : self.first + over // 8]


class Rings:
    """A ring on each of some processors. words: all of them, as words; see Ring.first. owners: processor -> fd."""

    def __init__(self, cpus: Sequence[int], size: int, wakes: bool = False, more: Sequence[int] = ()) -> None:
        """size: bytes of each ring, a power of two. wakes: whoever polls the owners is woken when much of a ring is
        used. more: processors that may come (ring_on). Raises PerfNotAllowed, RingTooLarge.
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
        """The ring belongs to an event that counts nothing, so that it outlives those that write into it."""
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
        """The owner of a processor's ring, which is made if there may be one; negative: there is none. Raises
        PerfNotAllowed.
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
        """Is it time to read them?"""
        return any(ring.head - ring.tail > self.size // _MUCH for ring in self.rings.values())

    def close(self) -> None:
        """Give the rings back to the kernel. Arrays that still look at them see zeros."""
        for cpu in self.rings:
            libc.map_over(self._address + self._places[cpu], _PAGE + self.size, -1)
        for fd in self.owners.values():
            os.close(fd)
        self.rings.clear()
        self.owners.clear()


class RingTooLarge(PerfNotAllowed):
    """A smaller ring may be allowed."""


def _refused(error: int, size: int) -> PerfNotAllowed:
    if error in (errno.EPERM, errno.ENOMEM):
        return RingTooLarge(
            f"The kernel gives no ring of {size >> 10} KB for each processor.",
            "sudo sysctl kernel.perf_event_mlock_kb=4096, or: ulimit -l unlimited",
        )
    return PerfNotAllowed(f"The ring of perf_events cannot be mapped: errno {error}.", "--collector ptrace")


def online_cpus() -> list[int]:
    """Processors on which a thread may run. Raises OSError where the kernel does not say."""
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        return _listed(file.read())


def present_cpus() -> list[int]:
    """Those that are there, offline ones included."""
    with open("/sys/devices/system/cpu/present", encoding="ascii") as file:
        return _listed(file.read())


def _listed(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def open_rings(cpus: list[int], size: int, exactly: bool, wakes: bool) -> Rings:
    """The largest rings up to size that the kernel gives. wakes: as of Rings."""
    while True:
        try:
            return Rings(cpus, size, wakes, present_cpus())
        except RingTooLarge:
            if exactly or size <= LEAST_RING:
                raise
            size //= 2
