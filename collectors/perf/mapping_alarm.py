"""Events on all processors that wake the collector when a process of the machine maps code.

An exec and a dlopen map code, and a process may need another source of samples then. The rings of samples cannot wake
the collector for that, because each sample would wake it as well. So these events have separate rings. Their records
are never read: the collector looks for new processes in the rings of samples, which have the same records.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable

from pyprof.collectors.linux import libc
from pyprof.collectors.perf.attr import mapping_reporter, refusal

_EVERY_THREAD = -1
_RING_BYTES = 2 * mmap.PAGESIZE
"""One page for the head of a ring, and one for its records, in bytes."""


class MappingAlarm:
    """One event on each processor, whose descriptor becomes readable after a new executable mapping.

    A processor that comes online later has none. Mappings there are found when the next batch is read.

    Attributes:
        fds: The descriptors.
    """

    def __init__(self, cpus: Iterable[int]) -> None:
        """Open the events.

        Args:
            cpus: The processors.

        Raises:
            PerfNotAllowed: The kernel permits no such event or ring.
        """
        self.fds: list[int] = []
        self._rings: list[mmap.mmap] = []
        attr = mapping_reporter()
        try:
            for cpu in cpus:
                self._open(attr, cpu)
        except BaseException:
            self.close()
            raise

    def _open(self, attr: bytes, cpu: int) -> None:
        fd = libc.perf_event_open(attr, _EVERY_THREAD, cpu)
        if -fd == errno.ENODEV:  # the processor went offline
            return
        if fd < 0:
            raise refusal(-fd, _EVERY_THREAD)
        self.fds.append(fd)
        try:
            # a ring that may not be written to is never full: the kernel overwrites its oldest records
            self._rings.append(mmap.mmap(fd, _RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ))
        except OSError as error:
            raise refusal(error.errno or errno.EPERM, _EVERY_THREAD) from None

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self.fds:
            os.close(fd)
        self._rings.clear()
        self.fds.clear()
