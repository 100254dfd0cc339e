"""Core files: the memory by address, and the notes with threads, signal and mapped files.

The PT_LOAD segments are the memory. Memory that the kernel or a debugger left out (p_memsz beyond p_filesz, code that
its file still has) reads as empty, and so does memory that is missing in a truncated core file.

read_notes() takes an ElfFile of type ET_CORE and returns CoreNotes. It reads only notes that are used. Broken or
incomplete notes are counted as oddities if there is at least one thread. Otherwise FormatError is raised.
Sources: the kernel's include/linux/elfcore.h, elfcore-compat.h and fs/binfmt_elf.c (fill_files_note), core(5).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.objfile.byte_source import ByteSource
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_sections import ET_CORE, PF_R, PF_W, PF_X, PT_NOTE

MAX_READ = 1 << 30


def format_perms(flags: int) -> str:
    """Return PF_* flags of a segment in the notation of /proc/PID/maps."""
    return "".join(c if flags & bit else "-" for c, bit in (("r", PF_R), ("w", PF_W), ("x", PF_X))) + "p"


@dataclass(frozen=True, slots=True)
class SavedRange:
    """One range of memory in a core file or crash dump.

    Attributes:
        start: First address in the process.
        end: Address after the range.
        stored_end: Address up to which the file has its bytes.
        offset: Offset of the bytes in the file.
        flags: PF_* permissions.
    """

    start: int
    end: int
    stored_end: int
    offset: int
    flags: int

    @property
    def perms(self) -> str:
        """The permissions of a memory range in the notation of /proc/PID/maps."""
        return format_perms(self.flags)


class SavedMemory:
    """The memory in a core file or crash dump. Its ranges are ascending and do not overlap."""

    def __init__(self, source: ByteSource, regions: list[SavedRange]) -> None:
        self._source = source
        self.regions = regions
        self._starts = [region.start for region in self.regions]

    def region_at(self, avma: int) -> SavedRange | None:
        at = bisect_right(self._starts, avma) - 1
        return self.regions[at] if at >= 0 and avma < self.regions[at].end else None

    def ranges_between(self, start: int, end: int) -> list[SavedRange]:
        """Return the memory ranges of a core file or crash dump that begin at an address in start..end."""
        return self.regions[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def read(self, avma: int, size: int) -> bytes:
        """Return bytes of the saved memory from an address on, `size` bytes or fewer, up to the first byte that the
        file does not have.
        """
        size = min(size, MAX_READ)
        region = self.region_at(avma)
        parts: list[memoryview] = []
        while region is not None and size > 0 and avma < region.stored_end:
            part = self._source.read(region.offset + avma - region.start, min(size, region.stored_end - avma))
            if not part:
                break
            parts.append(part)
            avma += len(part)
            size -= len(part)
            if avma < region.end:
                break
            region = self.region_at(avma)
        return b"".join(parts)


class CoreMemory(SavedMemory):
    """The memory in a core file.

    Attributes:
        lost: Number of bytes that the headers place past the end of the file.
    """

    def __init__(self, elf: ElfFile) -> None:
        regions: list[SavedRange] = []
        self.lost = 0
        top = 1 << elf.elf_class
        end = 0
        for load in sorted(elf.loads, key=lambda s: (s.vaddr, -s.filesz)):
            start, stop = load.vaddr, load.vaddr + max(load.memsz, load.filesz)
            if start < end or start >= stop or stop > top:
                continue
            stored = min(load.filesz, max(0, elf.source.size - load.offset))
            self.lost += load.filesz - stored
            regions.append(SavedRange(start, stop, start + stored, load.offset, load.flags))
            end = stop
        super().__init__(elf.source, regions)


def make_saved_memory(source: ByteSource, pieces: Iterable[tuple[int, int, int]]) -> SavedMemory:
    """Create a SavedMemory from the pieces of a core file or crash dump: (address, size, offset in the file) of each,
    in any order.

    Where pieces overlap, the piece with the lower address is used.
    """
    regions: list[SavedRange] = []
    end = 0
    for start, size, offset in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
        size = min(size, max(source.size - offset, 0))
        skipped = max(end - start, 0)
        if skipped < size and start + size <= 1 << 64:
            end = start + size
            regions.append(SavedRange(start + skipped, end, end, offset + skipped, PF_R | PF_W))
    return SavedMemory(source, regions)


NT_PRSTATUS, NT_FPREGSET, NT_PRPSINFO, NT_AUXV = 1, 2, 3, 6
NT_FILE, NT_SIGINFO, NT_ARM_PAC_MASK = 0x46494C45, 0x53494749, 0x406
AT_PHDR, AT_BASE, AT_ENTRY, AT_EXECFN, AT_SYSINFO, AT_SYSINFO_EHDR = 3, 7, 9, 31, 32, 33

MAX_NOTES = 1 << 20
MAX_THREADS = 1 << 16
MAX_NAME = 64
MAX_REGSET = 1 << 12
MAX_AUXV = 1 << 13
MAX_FILE_NOTE = 16 << 20
MAX_OFFSET = 1 << 63
EM_X86_64 = 62

ADDRESS_SIGNALS = frozenset({4, 5, 7, 8, 11})
"""Signals whose siginfo in a core file has an address: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV."""


@dataclass(slots=True)
class CoreThread:
    """One thread of a core file.

    Attributes:
        tid: Thread ID.
        signal: Number of the signal that the thread received (pr_cursig), 0 if there is none.
        registers: Bytes of the kernel's user_regs_struct.
        fp_registers: Bytes of the note NT_FPREGSET, b"" if the core file has none.
        pac_mask: Bits of a return address that are its signature, None if they are unknown.
    """

    tid: int
    signal: int
    registers: bytes
    fp_registers: bytes = b""
    pac_mask: int | None = None


@dataclass(frozen=True, slots=True)
class CoreProcess:
    """The process of a core file, from its note NT_PRPSINFO.

    Attributes:
        pid: Process ID.
        name: At most 15 bytes.
        arguments: At most 79 bytes of the command line.
    """

    pid: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CoreSignal:
    """The signal that killed a core file's process, from NT_SIGINFO. The address is None unless the signal has one
    (SIGSEGV and similar).
    """

    number: int
    code: int
    address: int | None


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A mapped file in a core file's NT_FILE note: start and end address, offset in bytes, path."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(slots=True)
class CoreNotes:
    """The content of all notes of a core file.

    Attributes:
        threads: The threads; the one that received the signal is first.
        process: The process, None if it is not stated.
        signal: The signal, None if it is not stated.
        auxv: Values of the auxiliary vector by type (AT_*).
        files: Mapped files, None if the core has no NT_FILE.
        oddities: Descriptions of tolerated errors.
    """

    threads: list[CoreThread] = field(default_factory=list)
    process: CoreProcess | None = None
    signal: CoreSignal | None = None
    auxv: dict[int, int] = field(default_factory=dict)
    files: list[MappedFile] | None = None
    oddities: list[str] = field(default_factory=list)


def read_notes(elf: ElfFile) -> CoreNotes:
    """Read the notes of a core file.

    Raises:
        FormatError: The file is not a core file, or has no thread.
    """
    if elf.type != ET_CORE:
        raise FormatError("ELF header", 16, f"type {elf.type}: not a core file")
    notes = CoreNotes()
    for kind, at, size in _notes(elf, notes):
        try:
            _take(elf, notes, kind, at, size)
        except FormatError as error:
            notes.oddities.append(f"core_note_invalid:{error.problem}")
    if not notes.threads:
        raise FormatError("notes", 0, "no thread (NT_PRSTATUS)")
    return notes


def _notes(elf: ElfFile, notes: CoreNotes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, file offset, size) of the contents of all CORE and LINUX notes of a core file."""
    header = struct.Struct(elf.order + "III")
    budget = MAX_NOTES
    for segment in elf.segments:
        if segment.type != PT_NOTE:
            continue
        at, end = segment.offset, min(segment.offset + segment.filesz, elf.source.size)
        if end < segment.offset + segment.filesz:
            notes.oddities.append("core_notes_truncated")
        while at + header.size <= end and budget:
            budget -= 1
            data = elf.source.read(at, header.size + MAX_NAME)
            if len(data) < header.size:
                break
            name_size, size, kind = header.unpack_from(data)
            content = at + header.size + (name_size + 3 & ~3)
            if content + size > end:
                notes.oddities.append("core_note_truncated")
                break
            if name_size <= 6 and bytes(data[header.size : header.size + name_size]).rstrip(b"\0") in (
                b"CORE",
                b"LINUX",
            ):
                yield kind, content, size
            at = content + (size + 3 & ~3)


def _take(elf: ElfFile, notes: CoreNotes, kind: int, at: int, size: int) -> None:
    """Read one note of a core file and store its content in `notes`.

    Raises:
        FormatError: The note is broken.
    """
    thread = notes.threads[-1] if notes.threads else None
    if kind == NT_PRSTATUS:
        if len(notes.threads) < MAX_THREADS:
            notes.threads.append(_prstatus(elf, at, elf.source.read(at, min(size, MAX_REGSET))))
    elif kind == NT_PRPSINFO and notes.process is None:
        notes.process = _prpsinfo(elf, at, elf.source.read(at, min(size, MAX_REGSET)))
    elif kind == NT_SIGINFO and notes.signal is None:
        notes.signal = _siginfo(elf, at, elf.source.read(at, min(size, MAX_REGSET)))
    elif kind == NT_AUXV and not notes.auxv:
        notes.auxv = _auxv(elf, elf.source.read(at, min(size, MAX_AUXV)))
    elif kind == NT_FILE and notes.files is None:
        if size > MAX_FILE_NOTE:
            raise FormatError("NT_FILE", at, f"{size} bytes")
        notes.files = _files(elf, at, bytes(elf.source.read(at, size)))
    elif kind == NT_FPREGSET and thread is not None:
        thread.fp_registers = bytes(elf.source.read(at, min(size, MAX_REGSET)))
    elif kind == NT_ARM_PAC_MASK and thread is not None and size >= 16:
        thread.pac_mask = struct.unpack_from(elf.order + "Q", elf.source.read(at + 8, 8))[0]


def register_word_size(elf: ElfFile) -> int:
    """Return the size in bytes of a word in a core file's user_regs_struct. x32 has the registers of x86_64."""
    return 8 if elf.elf_class == 64 or elf.machine == EM_X86_64 else 4


def _prstatus(elf: ElfFile, at: int, data: memoryview) -> CoreThread:
    """Read a thread from struct elf_prstatus of a core file.

    Its fields: siginfo (12 bytes), cursig, sigpend, sighold, four pids, four timevals, registers, fpvalid.
    """
    wide = elf.elf_class == 64
    pid_at, registers_at = (32, 112) if wide else (24, 72)
    end = (len(data) - 4) // register_word_size(elf) * register_word_size(elf)
    if end <= registers_at:
        raise FormatError("NT_PRSTATUS", at, f"{len(data)} bytes")
    (signal,) = struct.unpack_from(elf.order + "H", data, 12)
    (tid,) = struct.unpack_from(elf.order + "i", data, pid_at)
    return CoreThread(tid, signal, bytes(data[registers_at:end]))


def _prpsinfo(elf: ElfFile, at: int, data: memoryview) -> CoreProcess:
    """Read the process from struct elf_prpsinfo of a core file, which has 136 bytes (64 bits), 124 (32 bits, 16-bit
    uids) or 128 (32 bits).
    """
    places = {136: (24, 40), 124: (12, 28), 128: (16, 32)}.get(len(data))
    if places is None:
        raise FormatError("NT_PRPSINFO", at, f"{len(data)} bytes")
    pid_at, name_at = places
    (pid,) = struct.unpack_from(elf.order + "i", data, pid_at)
    name, arguments = bytes(data[name_at : name_at + 16]), bytes(data[name_at + 16 : name_at + 96])
    return CoreProcess(pid, _text(name), _text(arguments).rstrip())


def _siginfo(elf: ElfFile, at: int, data: memoryview) -> CoreSignal:
    """Read the signal from siginfo_t in a core file: signo, errno, code, then fields that depend on the signal. If the
    signal has an address, it is the first of these fields.
    """
    form, address_at = ("Q", 16) if elf.elf_class == 64 else ("I", 12)
    if len(data) < 24:
        raise FormatError("NT_SIGINFO", at, f"{len(data)} bytes")
    number, _, code = struct.unpack_from(elf.order + "iii", data)
    (address,) = struct.unpack_from(elf.order + form, data, address_at)
    return CoreSignal(number, code, address if number in ADDRESS_SIGNALS and code > 0 else None)


def _auxv(elf: ElfFile, data: memoryview) -> dict[int, int]:
    pair = struct.Struct(elf.order + ("QQ" if elf.elf_class == 64 else "II"))
    found: dict[int, int] = {}
    for kind, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if kind == 0:
            break
        found.setdefault(kind, value)
    return found


def _files(elf: ElfFile, at: int, data: bytes) -> list[MappedFile]:
    """Read the mapped files from a core file's NT_FILE note: long count, long page size, count * (start, end, offset in
    pages), then NUL-terminated names.
    """
    form = "Q" if elf.elf_class == 64 else "I"
    word = struct.calcsize(form)
    if len(data) < 2 * word:
        raise FormatError("NT_FILE", at, f"{len(data)} bytes")
    count, page = struct.unpack_from(elf.order + 2 * form, data)
    names_at = 2 * word + 3 * word * count
    if names_at > len(data):
        raise FormatError("NT_FILE", at, f"{count} files in {len(data)} bytes")
    names = data[names_at:].split(b"\0")
    if len(names) <= count:
        raise FormatError("NT_FILE", at + names_at, f"{len(names) - 1} names of {count} files")
    rows = struct.Struct(elf.order + 3 * form).iter_unpack(data[2 * word : names_at])
    return [
        MappedFile(start, end, offset * page, os.fsdecode(name))
        for (start, end, offset), name in zip(rows, names, strict=False)
        if start < end and offset * page < MAX_OFFSET
    ]


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
