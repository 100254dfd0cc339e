"""The address spaces of a stub's target over time. Reading them takes at most a tenth of the time."""

from __future__ import annotations

import time

from pyprof.collectors.gdb.memory import RemoteMemory
from pyprof.collectors.gdb.modules import RemoteModules
from pyprof.collectors.gdb.target_files import RemoteFiles
from pyprof.errors import FormatError, RemoteError
from pyprof.model.modules import AddressSpace, Mapping

_LOOK_SHARE = 10
_MIN_LOOK_NS, _MAX_LOOK_NS = 20_000_000, 2_000_000_000


class RemoteSpaces:
    """The address spaces of a GDB stub's target over time; `current` is the last one, or None before the first
    reading.
    """

    def __init__(self, modules: RemoteModules, memory: RemoteMemory, files: RemoteFiles, sysroot: str) -> None:
        self.current: AddressSpace | None = None
        self._modules = modules
        self._memory = memory
        self._files = files
        self._sysroot = sysroot
        self._looked_ns = self._look_ns = 0

    def refresh_space(self) -> AddressSpace:
        """Return the current address space of the GDB stub's target, after a reading if one is due. The target must be
        stopped.

        Raises:
            RemoteError: The stub's answers are not usable.
        """
        if self.current is not None and time.monotonic_ns() < self._look_ns:
            return self.current
        return self._look()

    def find_space(self, pc: int) -> AddressSpace:
        """Return the address space of a sample of the GDB stub's target. The mappings are read again if nothing is
        known at pc.
        """
        space = self.current or self._look()
        if space.mapping_at(pc) is None and time.monotonic_ns() - self._looked_ns > _MIN_LOOK_NS:
            space = self._look()
        return space

    def _look(self) -> AddressSpace:
        now = time.monotonic_ns()
        try:
            mappings = self._modules.read_mappings()
        except FormatError as error:
            raise RemoteError(f"the stub's description of the target's mappings is broken: {error.message}") from None
        self._looked_ns = time.monotonic_ns()
        pause = min(max(_LOOK_SHARE * (self._looked_ns - now), _MIN_LOOK_NS), _MAX_LOOK_NS)
        self._look_ns = self._looked_ns + pause
        if self.current is None or mappings != self.current.mappings:
            self.current = self._new(mappings)
        return self.current

    def _new(self, mappings: tuple[Mapping, ...]) -> AddressSpace:
        number = self.current.id + 1 if self.current is not None else 1
        self._memory.forget_pages()
        # pid 0: no process of this machine
        space = AddressSpace(
            number,
            0,
            number,
            mappings,
            self._memory.read,
            self._sysroot,
            self._files.find,
            complete=self._modules.is_complete,
        )
        self._files.fetch_missing(mappings, self._memory.read)
        for mapping in mappings:
            if mapping.executable and mapping.inode:
                # its first page identifies the file: read it now, not by a stop later
                self._memory.read(mapping.start, 1)
        return space
