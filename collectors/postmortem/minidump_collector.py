"""A collector for a minidump or a microdump: one sample of each thread at the time of the dump."""

from __future__ import annotations

import numpy as np

from pyprof.collectors.postmortem.minidump_mappings import read_mappings
from pyprof.collectors.postmortem.minidump_module_files import DumpFiles
from pyprof.collectors.postmortem.saved_threads import SavedCollector, SavedThread, SavedThreads, choose_first_copy
from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError, PyprofError
from pyprof.model.arch import Arch, find_arch
from pyprof.model.modules import AddressSpace, base_name
from pyprof.model.profile import ThreadInfo
from pyprof.objfile.byte_source import ByteSource, FileSource, open_regular
from pyprof.objfile.minidump.crash_dump import ELF_MACHINES, CrashDump, DumpException, DumpThread
from pyprof.objfile.minidump.file import is_minidump, read_minidump
from pyprof.objfile.minidump.microdump import MAX_SIZE, is_microdump, read_microdump

REQUESTED = 0xFFFFFFFF
"""Exception code in a minidump that was requested without a crash."""
MAX_TID = 1 << 31
"""Upper bound of thread and process ids (PID_MAX_LIMIT of the kernel)."""


class MinidumpCollector(SavedCollector):
    """A collector of one sample of each thread in a crash dump.

    Args:
        path: The minidump or microdump.
        exe: The user's file of the program, or "".
        sysroot: The user's sysroot, or "".
        copy: Size of the first copy of each stack in bytes.
        diagnostics: Counts problems.

    Raises:
        FormatError: The file is not a valid dump.
        PyprofError: There is no such file.
    """

    def __init__(self, path: str, exe: str, sysroot: str, copy: int, diagnostics: Diagnostics) -> None:
        try:
            source = FileSource(open_regular(path))
        except OSError as error:
            raise PyprofError(f"{path}: {error.strerror}") from error
        self.dump: CrashDump = read_dump(source)
        arch = find_arch(*ELF_MACHINES[self.dump.processor])
        assert arch is not None
        self.arch: Arch = arch
        super().__init__(diagnostics)
        self._tolerated.update(self.dump.oddities)
        crashed = self.dump.exception.tid if self.dump.exception else self.dump.requested_by
        ordered = sorted(self.dump.threads, key=lambda thread: thread.tid != crashed)
        self._infos = _with_ids_of_their_own(ordered, self.dump)
        rows = [_row(arch, thread) for thread in ordered]
        size = choose_first_copy(copy, len(ordered))
        threads = [SavedThread(tid, row, size) for tid, row in zip(self._infos, rows, strict=True)]
        self.pid = self.dump.pid if 0 < self.dump.pid < MAX_TID else next(iter(self._infos))
        files = DumpFiles(self.dump, exe, sysroot)
        mappings = read_mappings(self.dump)
        memory = self.dump.memory
        self.space = AddressSpace(0, self.pid, 0, mappings, memory.read, sysroot, files.find_file, files.find_stated)
        self.saved = SavedThreads(threads, arch, self.pid, memory, self.space)
        self.exe = files.program

    @property
    def order(self) -> list[int]:
        """Tids of a crash dump: the thread that crashed or requested the dump first, then as in the dump."""
        return list(self._infos)

    @property
    def crashed(self) -> DumpException | None:
        """The exception of a crash dump, or None if the dump was requested without a crash."""
        exception = self.dump.exception
        return exception if exception is not None and exception.code not in (0, REQUESTED) else None

    @property
    def states(self) -> dict[int, str]:
        """State of each thread of a crash dump by its tid: "crashed", "asked for the dump", "wrote the dump" or
        "stopped".
        """
        states = dict.fromkeys(self._infos, "stopped")
        special = {self.dump.dumped_by: "wrote the dump", self.dump.requested_by: "asked for the dump"}
        if self.dump.exception:
            special[self.dump.exception.tid] = "crashed" if self.crashed else "asked for the dump"
        states.update((tid, state) for tid, state in special.items() if tid in states)
        return states

    def threads(self) -> list[ThreadInfo]:
        process = base_name(self.exe)
        return [ThreadInfo(self.pid, tid, thread.name, process) for tid, thread in self._infos.items()]


def looks_like_dump(path: str) -> bool:
    """Return True if a file is a minidump by its first bytes, False if it cannot be read."""
    try:
        return is_minidump(bytes(FileSource(open_regular(path)).read(0, 4)))
    except (OSError, FormatError):
        return False


def read_dump(source: ByteSource) -> CrashDump:
    """Read a minidump, or the first microdump in a log.

    Raises:
        FormatError: The file is neither.
    """
    if is_minidump(bytes(source.read(0, 4))):
        return read_minidump(source)
    if is_microdump(bytes(source.read(0, MAX_SIZE))):
        return read_microdump(source)
    raise FormatError("dump", 0, "neither a minidump nor a microdump")


def _with_ids_of_their_own(threads: list[DumpThread], dump: CrashDump) -> dict[int, DumpThread]:
    """Return the threads of a dump by tid, in their order. An invalid or repeated tid is replaced by the lowest free
    one.
    """
    found: dict[int, DumpThread] = {}
    lowest = 1
    for thread in threads:
        tid = thread.tid
        if not 0 < tid < MAX_TID or tid in found:
            dump.oddities["thread_without_id"] += 1
            while lowest in found:
                lowest += 1
            tid = lowest
        found[tid] = thread
    return found


def _row(arch: Arch, thread: DumpThread) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    row = np.array([thread.registers[name] for name in arch.registers], np.uint64)
    row[arch.pc] &= np.uint64(arch.pc_mask)
    return row
