"""The files of a core's process on this machine, which also supply what the core's memory lacks.

Candidates for a module, best first: the user's choice (--exe for the program, --sysroot for all), a file with the same
build ID, the same path on this machine. objfile.mapped_file decides which of them was mapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from pyprof.collectors.linux.link_map import read_string
from pyprof.errors import FormatError
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.byte_source import FileSource, open_regular
from pyprof.objfile.core.memory import CoreMemory
from pyprof.objfile.core.notes import AT_ENTRY, AT_EXECFN, AT_PHDR, CoreNotes
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.memory_image import read_build_id
from pyprof.objfile.file_access import debuginfod_cache, open_below
from pyprof.objfile.mapped_file import find_bias, find_candidates, identify, is_accepted
from pyprof.records import dataclass, field

BUILD_ID_DIR = "/usr/lib/debug/.build-id"


@dataclass
class CoreFiles:
    """The files of a core's process.

    Attributes:
        core: The core file.
        notes: The core's notes.
        memory: Memory of the process in the core.
        exe: The user's file of the program, or "".
        sysroot: The user's sysroot, or "".
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
        """Yield candidates for the file of a module of a core file, as (path, trusted). See model.modules.FindFiles."""
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
        """Return True if a module is the program and not a library."""
        auxv = self.notes.auxv
        return any(module.start <= auxv.get(kind, 0) < module.end for kind in (AT_PHDR, AT_ENTRY))

    @property
    def program_path(self) -> str:
        """Path of a core file's program if no note names its file: as executed if that is absolute, else the user's
        file.
        """
        executed = read_string(self.memory.read, self.notes.auxv.get(AT_EXECFN, 0))
        if executed.startswith("/"):
            return executed
        if self.exe:
            return os.path.abspath(self.exe)
        return "/" + os.path.basename(executed) if executed else "/[program]"

    def program(self) -> tuple[ElfFile, bool] | None:
        """Return (file, whether the user named it) of a core file's program if nothing in the core identifies it."""
        if self.exe:
            found = self._read(self.exe, partial(open_regular, self.exe))
            return None if found is None else (found, True)
        for elf in self.open_path(self.program_path):
            return elf, bool(self.sysroot)
        return None

    def open_path(self, name: str) -> Iterator[ElfFile]:
        """Yield files of the core's architecture with this path: below the sysroot, then on this machine."""
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
        """Use a file in read() for addresses that the core file lacks."""
        self._believed.append((elf, bias))

    def read(self, avma: int, size: int) -> bytes:
        """Read the memory of a core file's process, from the core or else from its files.

        Parts of read-only mappings that the core lacks come from files that are proved to be the mapped ones.
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
        for candidate in find_candidates(space, module, self._opened, silent=lambda: None):
            bias = find_bias(module, candidate.elf, at)
            if bias is not None and is_accepted(candidate, identify(space, module, candidate.elf, bias)):
                return candidate.elf
        return None


def is_same_machine(elf: ElfFile, core: ElfFile) -> bool:
    return (elf.machine, elf.elf_class, elf.byteorder) == (core.machine, core.elf_class, core.byteorder)


def check_program(path: str, core: ElfFile) -> str:
    """Return the reason why a file cannot be the core's program, or "" if it can."""
    try:
        elf = ElfFile.open(path)
    except OSError as error:
        return error.strerror or str(error)
    except FormatError as error:
        return error.problem
    return "" if is_same_machine(elf, core) else "of another architecture than the core"
