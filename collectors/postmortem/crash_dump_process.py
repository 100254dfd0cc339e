"""The process in a minidump or a microdump: its threads, mappings and their files.

The mappings are the modules, other mappings that the dump states, and regions of stacks. Unlike a core file,
a dump does not contain the modules' memory. The file of a module is the right one if it has the build ID that
the dump states.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pyprof.collectors.postmortem.saved_thread_collector import SavedThread, SavedThreads, choose_first_copy
from pyprof.errors import FormatError, PyprofError
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, Mapping, Module, StatedId, base_name
from pyprof.model.arch import Arch, find_arch
from pyprof.model.profile import ThreadInfo
from pyprof.objfile.byte_source import ByteSource, FileSource, open_regular
from pyprof.objfile.minidump import MAX_SIZE, is_microdump, is_minidump, read_microdump, read_minidump
from pyprof.objfile.minidump_content import ELF_MACHINES, CrashDump, DumpException, DumpModule, DumpRegion, DumpThread
from pyprof.objfile.untrusted_file_access import debuginfod_cache
from pyprof.problem_counters import Diagnostics

DEVICE = "dump"
UNKNOWN_PERMS = "r-xp"
"""Permissions that a module's mapping gets if the crash dump states no executable mapping of the module."""

AT_SYSINFO_EHDR = 33


def read_mappings(dump: CrashDump) -> tuple[Mapping, ...]:
    """Return the mappings of a crash dump's process, ascending and without overlaps. The file offset of a
    module's mapping is its distance from the module's base.
    """
    regions = _ascending(dump.regions)
    starts = [region.start for region in regions]
    found: list[Mapping] = []
    end = 0
    modules = sorted(dump.modules, key=lambda module: (module.base, -module.size))
    for number, module in enumerate(modules, 1):
        if module.base < end:
            dump.oddities["module_overlap"] += 1
            continue
        following = modules[number].base if number < len(modules) else module.base + module.size
        end = min(module.base + module.size, following) if following > module.base else module.base + module.size
        found += _of_module(module, end, number, regions, starts)
    stacks = [
        DumpRegion(start, start + size, "rw-p") for start, size in (thread.stack for thread in dump.threads) if size
    ]
    for others in (regions, _ascending(stacks)):
        found = sorted([*found, *_between(others, found, dump)], key=lambda mapping: mapping.start)
    return tuple(found)


def _ascending(regions: Iterable[DumpRegion]) -> list[DumpRegion]:
    """Return the memory regions of a crash dump in ascending order, without those that overlap a lower one."""
    kept: list[DumpRegion] = []
    for region in sorted(regions, key=lambda region: (region.start, -region.end)):
        if region.end <= 1 << 64 and (not kept or region.start >= kept[-1].end):
            kept.append(region)
    return kept


def _of_module(
    module: DumpModule, end: int, number: int, regions: Sequence[DumpRegion], starts: Sequence[int]
) -> Iterator[Mapping]:
    first = max(bisect_right(starts, module.base) - 1, 0)
    inside = [
        region
        for region in regions[first : bisect_left(starts, end)]
        if region.end > module.base and region.start < end
    ]
    if not any("x" in region.perms for region in inside):
        inside = [DumpRegion(module.base, end, UNKNOWN_PERMS)]
    path = module.path or "[module]"
    for region in inside:
        low, high = max(region.start, module.base), min(region.end, end)
        yield Mapping(low, high, region.perms, low - module.base, DEVICE, number, path)


def _between(regions: Sequence[DumpRegion], taken: Sequence[Mapping], dump: CrashDump) -> Iterator[Mapping]:
    """Yield the parts of memory regions of a crash dump that no mapping in `taken` covers."""
    vdso = dump.auxv.get(AT_SYSINFO_EHDR, 0)
    at = 0
    for region in regions:
        start = region.start
        while at < len(taken) and taken[at].end <= start:
            at += 1
        place = at
        while start < region.end:
            end = min(region.end, taken[place].start) if place < len(taken) else region.end
            if start < end:
                name = "[vdso]" if start <= vdso < end else region.path if region.path.startswith("[") else ""
                yield Mapping(start, end, region.perms, 0, "00:00", 0, name)
            if place >= len(taken) or taken[place].end >= region.end:
                break
            start = taken[place].end
            place += 1


WINDOWS = "windows"
"""Value of CrashDump.os for a dump that Windows or Wine wrote."""
BUILD_ID_DIR = "/usr/lib/debug/.build-id"
TRIPLETS = {
    "x86": "i386-linux-gnu",
    "amd64": "x86_64-linux-gnu",
    "arm": "arm-linux-gnueabihf",
    "arm64": "aarch64-linux-gnu",
}
AT_PHDR, AT_ENTRY = 3, 9


class DumpFiles:
    """The finder of local files for the modules in a crash dump. `exe` and `sysroot` are the paths of --exe
    and --sysroot, or "".
    """

    def __init__(self, dump: CrashDump, exe: str, sysroot: str) -> None:
        self._os = dump.os
        self._processor = dump.processor
        self._exe = exe
        self._root = sysroot.rstrip("/")
        self._modules = {module.base: module for module in dump.modules}
        self._program = _program(dump)
        self._entry = dump.auxv.get(AT_ENTRY, 0)

    @property
    def program(self) -> str:
        """Path of the program as the crash dump states it."""
        return self._program.path if self._program else ""

    def find_stated(self, module: Module) -> StatedId | None:
        """Return the identity of a module's file that a crash dump states, such as its build ID (see
        AddressSpace.stated). Return None if the dump's list of modules lacks the module.
        """
        known = self._modules.get(module.start)
        if known is None:
            return None
        entry = self._entry - known.base if known.base <= self._entry < known.base + known.size else 0
        stated = StatedId(known.debug_id, known.build_id, known.debug_name, *ELF_MACHINES[self._processor], entry)
        if self._os != WINDOWS:
            return stated
        return replace(stated, time_stamp=known.time_stamp, image_size=known.size)

    def find_file(self, module: Module) -> Iterator[tuple[str, bool]]:
        """Yield candidates for the file of a crash dump's module, as (path, trusted). See
        model.address_space.FindFiles.
        """
        known = self._modules.get(module.start)
        if known is None:
            return
        if self._exe and known is self._program:
            yield self._exe, True
        path = known.path.removesuffix(" (deleted)")
        roots = dict.fromkeys((self._root, ""))
        if path.startswith("/"):
            yield from ((root + path, bool(root)) for root in roots)
        elif path and self._os == WINDOWS:
            yield from ((found, True) for found in self._windows_paths(path))
        elif path and "\\" not in path:  # Crashpad names libraries by their DT_SONAME
            for root in roots:
                for folder in (f"/lib/{TRIPLETS[self._processor]}", "/lib64", "/lib", "/usr/lib"):
                    yield f"{root}{folder}/{path}", False
        if len(known.build_id) > 4:
            for root in roots:
                yield f"{root}{BUILD_ID_DIR}/{known.build_id[:2]}/{known.build_id[2:]}", False
            yield f"{debuginfod_cache()}/{known.build_id}/executable", False

    def _windows_paths(self, path: str) -> Iterator[str]:
        """Yield paths below the user's sysroot at which a Windows module's file may be: those of a Wine
        prefix, of a copied drive, and of a folder of modules. Windows ignores case, so names in lower case
        are tried, too.
        """
        drive, _, rest = path.replace("\\", "/").rpartition(":")
        folders = (f"/drive_{drive.lower()}", f"/{drive}", "") if drive else ("",)
        if self._root:
            names = [rest.lstrip("/"), base_name(rest)]
            for name in dict.fromkeys([*names, *(name.lower() for name in names)]):
                yield from (f"{self._root}{folder}/{name}" for folder in folders)


def _program(dump: CrashDump) -> DumpModule | None:
    """Return the module that is the program of a crash dump: the one that auxv refers to, else the first one."""
    for kind in (AT_PHDR, AT_ENTRY):
        avma = dump.auxv.get(kind, 0)
        for module in dump.modules:
            if module.base <= avma < module.base + module.size:
                return module
    return dump.modules[0] if dump.modules else None


REQUESTED = 0xFFFFFFFF
"""Exception code of a minidump that a program requested without a crash."""
MAX_TID = 1 << 31
"""Upper bound of thread and process ids (PID_MAX_LIMIT of the kernel)."""


class DumpedProcess:
    """The process in a crash dump (minidump or microdump). `saved` is the collector that yields its threads.

    Args:
        path: Path of the minidump or microdump.
        exe: Path of the program's file that the user gave by --exe, or "".
        sysroot: Path that the user gave by --sysroot, or "".
        copy: Size of the first copy of each stack in bytes.
        diagnostics: The recording's counters of problems.

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
        self.exe = files.program
        process = base_name(self.exe)
        infos = [ThreadInfo(self.pid, tid, thread.name, process) for tid, thread in self._infos.items()]
        self.saved = SavedThreads(threads, arch, memory, self.space, diagnostics, infos, self.dump.oddities)

    @property
    def order(self) -> list[int]:
        """Tids of the threads in a crash dump: first the thread that crashed or requested the dump, then the
        others as in the dump.
        """
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


def looks_like_dump(path: str) -> bool:
    """Return True if a file is a minidump by its first bytes, False if it cannot be read."""
    try:
        return is_minidump(bytes(FileSource(open_regular(path)).read(0, 4)))
    except (OSError, FormatError):
        return False


def read_dump(source: ByteSource) -> CrashDump:
    """Read a minidump, or the first microdump in a log.

    Raises:
        FormatError: The file is neither of them, or not valid.
    """
    if is_minidump(bytes(source.read(0, 4))):
        return read_minidump(source)
    if is_microdump(bytes(source.read(0, MAX_SIZE))):
        return read_microdump(source)
    raise FormatError("dump", 0, "neither a minidump nor a microdump")


def _with_ids_of_their_own(threads: list[DumpThread], dump: CrashDump) -> dict[int, DumpThread]:
    """Return the threads of a dump by unique tids, in their order. An invalid or repeated tid is replaced by
    the lowest free one.
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
