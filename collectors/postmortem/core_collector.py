"""A collector for a core file: one sample of each thread, as it was when the process died."""

from __future__ import annotations

import numpy as np

from pyprof.collectors.postmortem.core_module_files import CoreFiles, check_program
from pyprof.collectors.postmortem.core_modules import CoreModules
from pyprof.collectors.postmortem.saved_threads import (
    RegisterRow,
    SavedCollector,
    SavedThread,
    SavedThreads,
    choose_first_copy,
)
from pyprof.diagnostics import Diagnostics
from pyprof.errors import PyprofError, UnsupportedArchitecture, UsageError
from pyprof.model.arch import Arch, find_arch
from pyprof.model.modules import AddressSpace
from pyprof.model.profile import ThreadInfo
from pyprof.objfile.core.memory import CoreMemory
from pyprof.objfile.core.notes import AT_ENTRY, AT_PHDR, CoreNotes, CoreThread, read_notes, register_word_size
from pyprof.objfile.elf.file import ElfFile
from pyprof.records import replace

_FS_BASE = 21
"""Index of the thread pointer in user_regs_struct (x86-64)."""

CORE_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 11, 24, 25, 31})
"""Signals that write a core (signal(7)): QUIT ILL TRAP ABRT BUS FPE SEGV XCPU XFSZ SYS."""


class CoreFileCollector(SavedCollector):
    """A collector of one core file.

    Args:
        path: The core file.
        exe: The user's file of the program, or "".
        sysroot: The user's sysroot, or "".
        copy: Size of the first copy of each stack in bytes.
        diagnostics: Counts problems.

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
        super().__init__(diagnostics)
        self._tolerated.update(self._notes.oddities)
        self._memory = CoreMemory(core)
        self._files = CoreFiles(core, self._notes, self._memory, exe, sysroot)
        self._signal = 0
        threads, unknown = self._take_threads(core, choose_first_copy(copy, len(self._notes.threads)))
        self._threads, self.unknown = threads, unknown
        self.pid = self._process_id()
        self.space = self._make_space(core, sysroot)
        self.saved = SavedThreads(threads, self.arch, self.pid, self._memory, self.space, unknown)

    def _take_threads(self, core: ElfFile, copy: int) -> tuple[list[SavedThread], frozenset[int]]:
        arch, word = self.arch, register_word_size(core)
        threads: list[SavedThread] = []
        seen: set[int] = set()
        unknown: set[int] = set()
        slots = {column: slot for column, slot in enumerate(arch.kernel.prstatus) if slot >= 0}
        for thread in self._notes.threads:
            words = np.frombuffer(thread.registers, np.dtype(f"{core.order}u{word}"))
            if max(slots.values()) >= len(words):
                self._tolerated["thread_without_registers"] += 1
                continue
            row = np.zeros(len(arch.registers), np.uint64)
            row[list(slots)] = words[list(slots.values())]
            row[arch.pc] &= np.uint64(arch.pc_mask)
            unknown |= _fp_registers(arch, core, thread, row)
            tid = thread.tid
            if tid <= 0 or tid in seen:
                self._tolerated["thread_without_id"] += 1
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
        self._tolerated.update(modules.oddities)
        if self._memory.lost:
            self._tolerated["core_truncated"] += self._memory.lost
        self._files.space = AddressSpace(0, self.pid, 0, mappings, self._memory.read, sysroot, self._files.find_file)
        return replace(self._files.space, read=self._files.read)

    @property
    def exe(self) -> str:
        """Path of the program as the core states it."""
        for kind in (AT_PHDR, AT_ENTRY):
            mapping = self.space.mapping_at(self._notes.auxv.get(kind, 0))
            if mapping is not None and mapping.path.startswith("/"):
                return mapping.path.removesuffix(" (deleted)")
        return self._files.program_path

    @property
    def crashed(self) -> tuple[int, int, int | None] | None:
        """The signal that killed the core file's process: (signal, its si_code or 0, the address in question).

        It is None if no signal did: a debugger wrote the core of a living process.
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
        """Tids in the order of the core file: the thread that received the signal is the first."""
        return [thread.tid for thread in self._threads]

    def threads(self) -> list[ThreadInfo]:
        """Return the threads of a core file. It names its process (NT_PRPSINFO), but not its threads."""
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
