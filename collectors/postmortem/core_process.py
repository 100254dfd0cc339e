"""The process in a core file: its threads, mappings and their files.

Files on this machine also supply what the core's memory lacks. Candidates for the file of a module are, the
best first: the user's choice (--exe for the program, --sysroot for all modules), a file with the same build
ID, the same path on this machine. objfile.mapped_file_search decides which of them was mapped.

The mappings come from NT_FILE or from the dynamic loader's list. They are named as in /proc/PID/maps. Device and inode
are synthetic: one number for each path, so that the mappings of one file belong together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from pyprof.collectors.postmortem.saved_thread_collector import (
    RegisterRow,
    SavedThread,
    SavedThreads,
    choose_first_copy,
)
from pyprof.errors import FormatError, PyprofError, UnsupportedArchitecture, UsageError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.address_space import AddressSpace, Mapping, Module
from pyprof.model.arch import Arch, find_arch
from pyprof.model.profile import ThreadInfo
from pyprof.objfile.byte_source import FileSource, open_regular
from pyprof.objfile.core_file import (
    AT_BASE,
    AT_ENTRY,
    AT_EXECFN,
    AT_PHDR,
    AT_SYSINFO,
    AT_SYSINFO_EHDR,
    CoreMemory,
    CoreNotes,
    CoreThread,
    format_perms,
    read_notes,
    register_word_size,
)
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import find_bias_by_headers, read_build_id, read_headers
from pyprof.objfile.elf_sections import PAGE, PT_DYNAMIC, PT_INTERP
from pyprof.objfile.mapped_file_search import find_bias, find_candidates, identify, is_accepted, is_same_dynamic_table
from pyprof.objfile.target_memory_structs import LinkedObject, find_debug_address, read_linked_objects, read_string
from pyprof.objfile.untrusted_file_access import debuginfod_cache, open_below
from pyprof.problem_counters import Diagnostics

BUILD_ID_DIR = "/usr/lib/debug/.build-id"


@dataclass
class CoreFiles:
    """The local files for the modules of a core file's process, and the process's memory from the core and
    from these files.

    Attributes:
        core: The core file.
        notes: The core's notes.
        memory: The process's memory that the core file contains.
        exe: Path of the program's file that the user gave by --exe, or "".
        sysroot: Path that the user gave by --sysroot, or "".
        space: The process's address space once the mappings are known. Its read function reads only the core's memory,
            so that a file is never compared with itself.
    """

    core: ElfFile
    notes: CoreNotes
    memory: CoreMemory
    exe: str
    sysroot: str
    space: AddressSpace | None = None
    _believed: list[tuple[ElfFile, int]] = field(default_factory=list)
    _proved: dict[Module, ElfFile | None] = field(default_factory=dict)
    _by_path: dict[str, ElfFile | None] = field(default_factory=dict)
    _opened: dict[tuple[int, int, int, int], ElfFile] = field(default_factory=dict)

    def find_file(self, module: Module) -> Iterator[tuple[str, bool]]:
        """Yield candidates for the file of a module of a core file, as (path, trusted). See
        model.address_space.FindFiles.
        """
        if self.exe and self.is_program(module):
            yield self.exe, True
        name = module.path
        if self.sysroot:
            yield self.sysroot.rstrip("/") + name, True
        build_id = read_build_id(self.memory.read, module.start)
        if len(build_id) > 4:
            for prefix in dict.fromkeys((self.sysroot.rstrip("/"), "")):
                yield f"{prefix}{BUILD_ID_DIR}/{build_id[:2]}/{build_id[2:]}", False
            yield f"{debuginfod_cache()}/{build_id}/executable", False
        if not module.deleted:
            yield name, False

    def is_program(self, module: Module) -> bool:
        """Return True if a module of a core file is the program and not a library."""
        auxv = self.notes.auxv
        return any(module.start <= auxv.get(kind, 0) < module.end for kind in (AT_PHDR, AT_ENTRY))

    @property
    def program_path(self) -> str:
        """Path of a core file's program if no note names its file: the path by which it was executed if that
        is absolute, else the path of --exe.
        """
        executed = read_string(self.memory.read, self.notes.auxv.get(AT_EXECFN, 0))
        if executed.startswith("/"):
            return executed
        if self.exe:
            return os.path.abspath(self.exe)
        return "/" + os.path.basename(executed) if executed else "/[program]"

    def program(self) -> tuple[ElfFile, bool] | None:
        """Return (file, True if --exe or --sysroot names it) for a core file's program that no memory in the
        core identifies, or None.
        """
        if self.exe:
            found = self._read(self.exe, partial(open_regular, self.exe))
            return None if found is None else (found, True)
        for elf in self.open_path(self.program_path):
            return elf, bool(self.sysroot)
        return None

    def open_path(self, name: str) -> Iterator[ElfFile]:
        """Yield the files with this path that have the core's architecture: below the sysroot, then on this machine."""
        for root in dict.fromkeys((self.sysroot.rstrip("/"), "")):
            found = self._read(root + name, partial(open_below, root, name)) if name.startswith("/") else None
            if found is not None:
                yield found

    def _read(self, path: str, way: Callable[[], int]) -> ElfFile | None:
        if path not in self._by_path:
            self._by_path[path] = None
            try:
                elf = ElfFile(FileSource(way()), path)
            except (OSError, ValueError):
                elf = None
            if elf is not None and is_same_machine(elf, self.core):
                self._by_path[path] = elf
        return self._by_path[path]

    def add_fallback_file(self, elf: ElfFile, bias: int) -> None:
        """Let read() take memory that the core file lacks from this file, whose load bias is `bias`."""
        self._believed.append((elf, bias))

    def read(self, avma: int, size: int) -> bytes:
        """Read the memory of a core file's process, from the core or else from its files.

        Parts of read-only mappings that the core lacks come from files that were proved to be the mapped
        ones, or that add_fallback_file() named.
        """
        data = self.memory.read(avma, size)
        while len(data) < size:
            more = self._from_file(avma + len(data), size - len(data))
            if not more:
                break
            data += more
            if len(data) < size:
                data += self.memory.read(avma + len(data), size - len(data))
        return data

    def _from_file(self, avma: int, size: int) -> bytes:
        for elf, bias in self._believed:
            load = elf.load_at(avma - bias)
            if load is not None and not load.writable:
                return bytes(elf.at_svma(avma - bias, size))
        mapping = self.space.mapping_at(avma) if self.space else None
        module = self.space.module_at(avma) if self.space else None
        if mapping is None or module is None or "w" in mapping.perms or mapping not in module.mappings:
            return b""
        elf_or_none = self._file_of(module)
        if elf_or_none is None:
            return b""
        return bytes(elf_or_none.source.read(mapping.offset + avma - mapping.start, min(size, mapping.end - avma)))

    def _file_of(self, module: Module) -> ElfFile | None:
        if module not in self._proved:
            self._proved[module] = self._prove(module)
        return self._proved[module]

    def _prove(self, module: Module) -> ElfFile | None:
        space = self.space
        if space is None or not module.has_file:
            return None
        at = next((m.start for m in module.mappings if m.executable), module.start)
        for candidate in find_candidates(space, module, self._opened, lambda: None, ElfFile.open):
            bias = find_bias(module, candidate.elf, at)
            if bias is not None and is_accepted(candidate, identify(space, module, candidate.elf, bias)):
                return candidate.elf
        return None


def is_same_machine(elf: ElfFile, core: ElfFile) -> bool:
    return (elf.machine, elf.elf_class, elf.byteorder) == (core.machine, core.elf_class, core.byteorder)


def check_program(path: str, core: ElfFile) -> str:
    """Return the reason why the file of --exe cannot be the core's program, or "" if it can."""
    try:
        elf = ElfFile.open(path)
    except OSError as error:
        return error.strerror or str(error)
    except FormatError as error:
        return error.problem
    return "" if is_same_machine(elf, core) else "of another architecture than the core"


DEVICE = "core"
UNKNOWN_PERMS = "r-xp"
"""Permissions that a mapping of a file gets if the core file has no PT_LOAD for it. Debuggers leave out
memory that the file has, above all code.
"""

MAX_PARTS = 16
"""Maximum number of a core file's memory regions that are used for one library whose file is missing."""

NO_PROGRAM = "core_without_file_list"
OTHER_PROGRAM = "core_program_differs"


class CoreModules:
    """A reader of a core file's mappings. `oddities` are the names of counters of tolerated irregularities."""

    def __init__(self, core: ElfFile, notes: CoreNotes, memory: CoreMemory, files: CoreFiles) -> None:
        self._core = core
        self._notes = notes
        self._memory = memory
        self._files = files
        self._inodes: dict[str, int] = {}
        self.oddities: list[str] = []

    def read_mappings(self) -> tuple[Mapping, ...]:
        """Return the mappings of a core file's process, ascending and without overlaps. They include mappings
        of files, and other memory regions without a path.
        """
        files = self._by_notes() if self._notes.files is not None else self._by_link_map()
        kept: list[Mapping] = []
        for mapping in sorted(files, key=lambda m: (m.start, -m.end)):
            if not kept or mapping.start >= kept[-1].end:
                kept.append(mapping)
        return tuple(sorted([*kept, *self._rest(kept)], key=lambda m: m.start))

    def _mapping(self, start: int, end: int, perms: str, offset: int, path: str) -> Mapping:
        inode = self._inodes.setdefault(path, len(self._inodes) + 1)
        return Mapping(start, end, perms, offset, DEVICE, inode, path)

    def _by_notes(self) -> Iterable[Mapping]:
        for file in self._notes.files or ():
            region = self._memory.region_at(file.start)
            yield self._mapping(file.start, file.end, region.perms if region else UNKNOWN_PERMS, file.offset, file.path)

    def _by_link_map(self) -> Iterable[Mapping]:
        """Yield the mappings of files in a core without NT_FILE, by the dynamic loader's list in the core's memory."""
        headers, bias = self._program()
        if headers is None:
            self.oddities.append(NO_PROGRAM)
            return
        path = self._files.program_path
        yield from self._of_file(headers, bias, path)
        objects = [o for o in self._objects(headers, bias) if o.bias != bias or o.name]
        base = self._notes.auxv.get(AT_BASE, 0)
        if not objects and base:  # the loader has not built its list yet
            objects.append(LinkedObject(base, self._interpreter(headers), 0))
        for linked in objects:
            if linked.name and not linked.name.startswith(("linux-vdso", "linux-gate")):
                yield from self._of_object(linked)

    def _program(self) -> tuple[ElfFile | None, int]:
        """Return (ELF headers, load bias) of the core's program, from the core's memory or else from a file.
        The headers are None if neither is known.
        """
        at = self._notes.auxv.get(AT_PHDR, 0)
        page = at & -PAGE
        first = read_headers(self._memory.read(page, PAGE))
        if first is not None:
            bias = find_bias_by_headers(first, at)
            return first, page if bias is None else bias
        named = self._files.program()
        if named is None:
            return None, 0
        elf, believed = named
        bias = find_bias_by_headers(elf, at)
        entry = self._notes.auxv.get(AT_ENTRY)
        if bias is None:
            bias = (entry - elf.entry) if entry is not None else 0
        same = is_same_dynamic_table(elf, bias, self._memory.read)
        if same is False or (same is None and not believed) or (entry not in (None, elf.entry + bias) and not believed):
            self.oddities.append(OTHER_PROGRAM)
            return None, 0
        self._files.add_fallback_file(elf, bias)
        return elf, bias

    def _objects(self, program: ElfFile, bias: int) -> list[LinkedObject]:
        elf_class, order = self._core.elf_class, self._core.order
        for segment in program.segments:
            if segment.type == PT_DYNAMIC:
                read = self._files.read
                at = find_debug_address(read, bias + segment.vaddr, segment.memsz, elf_class, order)
                return list(read_linked_objects(read, at, elf_class, order)) if at else []
        return []

    def _interpreter(self, program: ElfFile) -> str:
        for segment in program.segments:
            if segment.type == PT_INTERP:
                return (
                    bytes(program.source.read(segment.offset, min(segment.filesz, PAGE)))
                    .rstrip(b"\0")
                    .decode("utf-8", "surrogateescape")
                )
        return ""

    def _of_object(self, linked: LinkedObject) -> Iterable[Mapping]:
        """Yield the mappings of a library in the dynamic loader's list: by the segments of its file, or
        without a file by the core's memory regions around its dynamic table.
        """
        elf = read_headers(self._memory.read(linked.bias, PAGE))
        for candidate in () if elf is not None else self._files.open_path(linked.name):
            dynamic = next((s.vaddr for s in candidate.segments if s.type == PT_DYNAMIC), None)
            if linked.dynamic in (0, None if dynamic is None else dynamic + linked.bias):
                elf = candidate
                break
        if elf is not None:
            yield from self._of_file(elf, linked.bias, linked.name)
            return
        region = self._memory.region_at(linked.dynamic)
        first = self._memory.region_at(linked.bias)
        if region is None or first is None:
            return
        for part in self._memory.ranges_between(first.start, region.end)[:MAX_PARTS]:
            yield self._mapping(part.start, part.end, part.perms, part.start - linked.bias, linked.name)

    def _of_file(self, elf: ElfFile, bias: int, path: str) -> Iterable[Mapping]:
        """Yield the mappings that a loader makes of an ELF file, whose headers are in `elf`."""
        for load in elf.loads:
            start, end = bias + load.vaddr & -PAGE, bias + load.vaddr + load.filesz + PAGE - 1 & -PAGE
            if 0 <= start < end <= 1 << self._core.elf_class:
                yield self._mapping(start, end, format_perms(load.flags), load.offset & -PAGE, path)

    def _rest(self, files: Sequence[Mapping]) -> Iterable[Mapping]:
        """Yield the parts of the core file's memory regions that no mapping of a file in `files` covers."""
        vdso = self._notes.auxv.get(AT_SYSINFO_EHDR, 0)
        system_call = self._notes.auxv.get(AT_SYSINFO, 0)
        at = 0
        for region in self._memory.regions:
            start = region.start
            while at < len(files) and files[at].end <= start:
                at += 1
            while start < region.end:
                end = min(region.end, files[at].start) if at < len(files) else region.end
                if start < end:
                    name = "[vdso]" if start <= vdso < end or (not vdso and start <= system_call < end) else ""
                    yield Mapping(start, end, region.perms, 0, "00:00", 0, name)
                if at >= len(files) or files[at].end >= region.end:
                    break
                start = files[at].end
                at += 1


_FS_BASE = 21
"""Index of the thread pointer in user_regs_struct (x86-64)."""

CORE_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 11, 24, 25, 31})
"""Numbers of the signals that write a core (signal(7)): QUIT ILL TRAP ABRT BUS FPE SEGV XCPU XFSZ SYS."""


class CoreFileProcess:
    """The process in a core file. `saved` is the collector that yields its threads.

    Args:
        path: Path of the core file.
        exe: Path of the program's file that the user gave by --exe, or "".
        sysroot: Path that the user gave by --sysroot, or "".
        copy: Size of the first copy of each stack in bytes.
        diagnostics: The recording's counters of problems.

    Raises:
        FormatError: The file is not a valid core.
        UnsupportedArchitecture: The core's architecture is not supported.
        PyprofError: There is no such file.
        UsageError: exe cannot be the program.
    """

    def __init__(self, path: str, exe: str, sysroot: str, copy: int, diagnostics: Diagnostics) -> None:
        try:
            core = ElfFile.open(path)
        except OSError as error:
            raise PyprofError(f"{path}: {error.strerror}") from error
        self._notes: CoreNotes = read_notes(core)
        arch = find_arch(core.machine, core.elf_class, core.byteorder)
        if arch is None:
            raise UnsupportedArchitecture(
                f"{path}: cores of machine {core.machine} ({core.elf_class} bits) not supported"
            )
        wrong = check_program(exe, core) if exe else ""
        if wrong:
            raise UsageError(f"--exe {exe}: {wrong}")
        self.arch: Arch = _with_pac_mask(arch, self._notes)
        self._oddities = Counter(self._notes.oddities)
        self._memory = CoreMemory(core)
        self._files = CoreFiles(core, self._notes, self._memory, exe, sysroot)
        self._signal = 0
        self._threads, self.unknown = self._take_threads(core, choose_first_copy(copy, len(self._notes.threads)))
        self.pid = self._process_id()
        self.space = self._make_space(core, sysroot)
        self.saved = SavedThreads(
            self._threads,
            self.arch,
            self._memory,
            self.space,
            diagnostics,
            self._thread_infos(),
            self._oddities,
            self.unknown,
        )

    def _take_threads(self, core: ElfFile, copy: int) -> tuple[list[SavedThread], frozenset[int]]:
        arch, word = self.arch, register_word_size(core)
        threads: list[SavedThread] = []
        seen: set[int] = set()
        unknown: set[int] = set()
        slots = {column: slot for column, slot in enumerate(arch.kernel.prstatus) if slot >= 0}
        for thread in self._notes.threads:
            words = np.frombuffer(thread.registers, np.dtype(f"{core.order}u{word}"))
            if max(slots.values()) >= len(words):
                self._oddities["thread_without_registers"] += 1
                continue
            row = np.zeros(len(arch.registers), np.uint64)
            row[list(slots)] = words[list(slots.values())]
            row[arch.pc] &= np.uint64(arch.pc_mask)
            unknown |= _fp_registers(arch, core, thread, row)
            tid = thread.tid
            if tid <= 0 or tid in seen:
                self._oddities["thread_without_id"] += 1
                tid = next(n for n in range(1, len(seen) + 2) if n not in seen)
            seen.add(tid)
            if not threads:
                self._signal = thread.signal
            pointer = int(words[_FS_BASE]) if arch.name == "x86_64" and len(words) > _FS_BASE else 0
            threads.append(SavedThread(tid, row, copy, pointer))
        return threads, frozenset(unknown)

    def _process_id(self) -> int:
        process = self._notes.process
        if process is not None and process.pid > 0:
            return process.pid
        return self._threads[0].tid if self._threads else 0

    def _make_space(self, core: ElfFile, sysroot: str) -> AddressSpace:
        modules = CoreModules(core, self._notes, self._memory, self._files)
        mappings = modules.read_mappings()
        self._oddities.update(modules.oddities)
        if self._memory.lost:
            self._oddities["core_truncated"] += self._memory.lost
        self._files.space = AddressSpace(0, self.pid, 0, mappings, self._memory.read, sysroot, self._files.find_file)
        return replace(self._files.space, read=self._files.read)

    @property
    def exe(self) -> str:
        """Path of the program in the core file's process, as the core states it."""
        for kind in (AT_PHDR, AT_ENTRY):
            mapping = self.space.mapping_at(self._notes.auxv.get(kind, 0))
            if mapping is not None and mapping.path.startswith("/"):
                return mapping.path.removesuffix(" (deleted)")
        return self._files.program_path

    @property
    def crashed(self) -> tuple[int, int, int | None] | None:
        """The signal that killed the core file's process: (signal, its si_code or 0, the faulting address or
        None).

        It is None if no signal killed the process: a debugger wrote the core of a living process.
        """
        stated = self._notes.signal
        number = self._signal or (stated.number if stated else 0)
        if number not in CORE_SIGNALS:
            return None
        if stated is None or stated.number != number:
            return number, 0, None
        return number, stated.code, stated.address

    @property
    def order(self) -> list[int]:
        """Tids of the threads in the order of the core file: the thread that received the signal is the first."""
        return [thread.tid for thread in self._threads]

    def _thread_infos(self) -> list[ThreadInfo]:
        """Return descriptions of the threads of a core file. The core has the name of the process
        (NT_PRPSINFO), but not those of threads.
        """
        name = self._notes.process.name if self._notes.process else ""
        return [ThreadInfo(self.pid, t.tid, name if t.tid == self.pid else "", name) for t in self._threads]


def _with_pac_mask(arch: Arch, notes: CoreNotes) -> Arch:
    """Return the architecture with the pointer-authentication mask that the core file states for the process."""
    mask = next((thread.pac_mask for thread in notes.threads if thread.pac_mask), None)
    return arch if mask is None or not arch.pac_mask else replace(arch, pac_mask=mask)


def _fp_registers(arch: Arch, core: ElfFile, thread: CoreThread, row: RegisterRow) -> set[int]:
    """Set the register columns that are in the core's NT_FPREGSET note, and return those that the core does not
    contain.
    """
    if not arch.kernel.fpregset:
        return set()
    words = np.frombuffer(thread.fp_registers[: len(thread.fp_registers) & -8], np.dtype(f"{core.order}u8"))
    known = {column: slot for column, slot in arch.kernel.fpregset.items() if slot < len(words)}
    row[list(known)] = words[list(known.values())]
    return set(arch.kernel.fpregset) - set(known)
