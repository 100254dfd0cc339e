r"""A reader of jitdump, the binary log in which a JIT compiler records its code with names, lines and unwind tables.

JitdumpReader takes the bytes of the file in pieces, and returns Loaded and Moved records in the order of the file. It
skips the bytes of the code.
Source: tools/perf/Documentation/jitdump-specification.txt of Linux, and the files of real writers. Lines name their
code by its address. The addresses of V8, Julia and LLVM include the ELF header that perf's injected object has before
the code.

    header    u32 magic "JiTD", version, total_size, elf_mach, pad, pid, u64 timestamp, flags
    record    u32 id, total_size, u64 timestamp, then by id
    LOAD      u32 pid, tid, u64 vma, code_addr, code_size, code_index, name\0, code
    MOVE      u32 pid, tid, u64 vma, old_code_addr, new_code_addr, code_size, code_index
    DEBUG     u64 code_addr, nr_entry, then u64 addr, u32 line, u32 discriminator, file\0 ("\xff\0": as before)
    UNWINDING u64 unwinding_size, eh_frame_hdr_size, mapped_size, then the tables, see jitdump_tables

The unwind tables of a jitdump's UNWINDING_INFO, in the order and at the address of each writer.

read_tables() takes the record's body, and returns the .eh_frame and the address at which it is assumed to stand.
Sources:
jitdump-specification.txt (.eh_frame_hdr first); tools/perf/util/genelf.c (.eh_frame first, after the code at the next
multiple of 8); V8's perf-jit.cc and CPython's perf_jit_trampoline.c (as genelf); LLVM's PerfSupportPlugin.cpp
(.eh_frame_hdr first, with the address of .eh_frame in memory, for all pieces of code that follow).
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass

SECTION = "jitdump"

_HDR_VERSION = 1
_ABSOLUTE = {0x00, 0x04, 0x0C}
"""Encodings of absolute addresses in .eh_frame: DW_EH_PE_absptr, udata8 and sdata8."""


@dataclass(frozen=True, slots=True)
class JitTables:
    """The unwind tables of a piece of JIT code.

    Attributes:
        eh_frame: The .eh_frame, b"" if there is none.
        avma: Address of the .eh_frame in the process, None if the .eh_frame is assumed to follow the code.
    """

    eh_frame: bytes = b""
    avma: int | None = None

    def assumed_address(self, start: int, size: int) -> int:
        """Return the address in the process at which the .eh_frame of a piece of JIT code is assumed to be."""
        return start + (size + 7 & ~7) if self.avma is None else self.avma

    @property
    def for_next_code(self) -> JitTables:
        """The unwind tables that also apply to the next piece of JIT code: those that state an address in the process
        (LLVM). Otherwise none apply.
        """
        return NO_TABLES if self.avma is None else self


NO_TABLES = JitTables()


def read_tables(body: bytes, order: str) -> JitTables:
    """Parse the unwind tables in an UNWINDING_INFO record of a jitdump.

    Args:
        body: The body of the record.
        order: Byte order, "<" or ">".

    Raises:
        struct.error, ValueError: The body is broken.
    """
    size, header_size, _ = struct.unpack_from(order + "QQQ", body)
    if header_size > size or 24 + size > len(body):
        raise ValueError(f"{size} bytes of unwinding tables")
    tables = body[24 : 24 + size]
    eh_frame, header = tables[: size - header_size], tables[size - header_size :]
    if _is_header(tables[:header_size], order) and not _is_header(header, order):
        header, eh_frame = tables[:header_size], tables[header_size:]
        if header_size >= 12 and header[1] in _ABSOLUTE:
            return JitTables(eh_frame, struct.unpack_from(order + "Q", header, 4)[0])
    return JitTables(eh_frame)


def _is_header(data: bytes, order: str) -> bool:
    """Return True if unwind data of a jitdump begins like .eh_frame_hdr.

    An .eh_frame begins with a CIE's length, a multiple of 4, or with 0.
    """
    return len(data) >= 8 and data[0] == _HDR_VERSION and struct.unpack_from(order + "I", data)[0] % 4 != 0


MAGIC = 0x4A695444
ARCH_TIMESTAMP = 1
LOAD, MOVE, DEBUG_INFO, CLOSE, UNWINDING_INFO = range(5)

MAX_RECORD = 64 << 20
MAX_NAME = 4096
MAX_LINES = 1 << 16
REPEATED = b"\xff"
"""The file name in a jitdump's line entry that means: the same file as in the previous entry."""
MAX_WAITING = 1 << 20
"""Maximum number of entries of line tables in a jitdump that wait for the record of their code."""

ELF_HEADER, ELF32_HEADER = 0x40, 0x34
EM_32 = (3, 40)
"""ELF machines with 32-bit addresses: EM_386 and EM_ARM."""

Lines = tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A piece of code that a JIT compiler loaded, as a jitdump records it.

    Attributes:
        time_ns: CLOCK_MONOTONIC time, None if the file uses another clock.
        start: First address of the code in the process.
        size: Size of the code in bytes.
        index: Number of the code in the file.
        name: Name of the function.
        lines: (address, file, line), ascending.
        tables: Unwind tables of the code.
    """

    time_ns: int | None
    start: int
    size: int
    index: int
    name: str
    lines: Lines = ()
    tables: JitTables = NO_TABLES


@dataclass(frozen=True, slots=True)
class Moved:
    """A piece of JIT code that was moved to another address, as a jitdump records it."""

    time_ns: int | None
    old_start: int
    new_start: int
    size: int
    index: int


@dataclass(frozen=True, slots=True)
class JitdumpClosed:
    """The record by which the writer of a jitdump states its end. Its code may have been discarded."""


Record = Loaded | Moved | JitdumpClosed


class JitdumpReader:
    """A reader of a jitdump file in pieces. An incomplete record is kept until the rest arrives."""

    def __init__(self) -> None:
        self._rest = b""
        self._offset = 0
        self._order = ""
        self._foreign_clock = False
        self._header_size = ELF_HEADER
        self._headless = False
        self._lines: dict[int, Lines] = {}
        self._waiting = 0
        self._tables = NO_TABLES

    def read(self, data: bytes) -> list[Record]:
        """Return the jitdump records that are complete with this piece.

        Raises:
            FormatError: The file is broken. It cannot be read any further.
        """
        text = self._rest + data
        at = 0
        found: list[Record] = []
        if not self._order:
            at = self._read_header(text)
            if not at:
                self._rest = text
                return found
        head = struct.Struct(self._order + "IIQ")
        while at + head.size <= len(text):
            kind, size, time_ns = head.unpack_from(text, at)
            if not head.size <= size <= MAX_RECORD:
                raise FormatError(SECTION, self._offset + at, f"a record of {size} bytes")
            if at + size > len(text):
                break
            try:
                record = self._record(kind, time_ns, text[at + head.size : at + size])
            except (struct.error, ValueError) as error:
                raise FormatError(SECTION, self._offset + at, f"broken record: {error}") from None
            if record is not None:
                found.append(record)
            at += size
        self._rest = text[at:]
        self._offset += at
        return found

    def _read_header(self, text: bytes) -> int:
        """Return the size of the jitdump's header, 0 while it is incomplete."""
        if len(text) < 40:
            return 0
        order = next((o for o in "<>" if struct.unpack_from(o + "I", text)[0] == MAGIC), "")
        if not order:
            raise FormatError(SECTION, 0, "not a jitdump file")
        _, version, size, machine, _, _, _, flags = struct.unpack_from(order + "IIIIIIQQ", text)
        if version != 1 or not 40 <= size <= 1 << 16:
            raise FormatError(SECTION, 4, f"unknown version {version}, header of {size} bytes")
        if len(text) < size:
            return 0
        self._order, self._foreign_clock = order, bool(flags & ARCH_TIMESTAMP)
        self._header_size = ELF32_HEADER if machine in EM_32 else ELF_HEADER
        return int(size)

    def _record(self, kind: int, time_ns: int, body: bytes) -> Record | None:
        time = None if self._foreign_clock else min(time_ns, (1 << 63) - 2)
        if kind == LOAD:
            _, _, _, start, size, index = struct.unpack_from(self._order + "IIQQQQ", body)
            name, _ = _text(body, 40)
            tables, self._tables = self._tables, self._tables.for_next_code
            lines = self._lines.pop(start, ())
            self._waiting -= len(lines)
            if not size or start + size >= 1 << 64:
                return None
            inside = tuple(line for line in lines if start <= line[0] < start + size)
            return Loaded(time, start, size, index, name, inside, tables)
        if kind == MOVE:
            _, _, _, old, new, size, index = struct.unpack_from(self._order + "IIQQQQQ", body)
            return Moved(time, old, new, size, index) if size and new + size < 1 << 64 else None
        if kind == DEBUG_INFO:
            self._debug_info(body)
        elif kind == UNWINDING_INFO:
            self._tables = read_tables(body, self._order)
        return JitdumpClosed() if kind == CLOSE else None

    def _debug_info(self, body: bytes) -> None:
        """Store the line entries of a jitdump's debug record until the record of their code arrives.

        If a line falls into the place of the ELF header, the writer's addresses do not include that header.
        """
        start, count = struct.unpack_from(self._order + "QQ", body)
        found = self._entries(body, start, count)
        self._waiting -= len(self._lines.pop(start, ()))
        if not found:
            return
        self._headless = self._headless or any(0 <= entry[0] - start < self._header_size for entry in found)
        shift = 0 if self._headless else self._header_size
        self._waiting += len(found)
        self._lines[start] = tuple(sorted((address - shift, file, line) for address, file, line in found))
        while self._waiting > MAX_WAITING:
            self._waiting -= len(self._lines.pop(next(iter(self._lines))))

    def _entries(self, body: bytes, start: int, count: int) -> list[tuple[int, str, int]]:
        """Return (address, file, line) of each line entry of a jitdump's debug record.

        Node 20 writes file names of arbitrary bytes, with NULs among them. Such a name ends where the next valid entry
        of this code begins, and counts as unknown.
        """
        entry = struct.Struct(self._order + "QII")
        found: list[tuple[int, str, int]] = []
        at, file = 16, ""
        for left in range(min(count, MAX_LINES) - 1, -1, -1):
            address, line, _ = entry.unpack_from(body, at)
            name_at = at + entry.size
            end = body.index(b"\0", name_at)
            if left and 0 <= address - start < MAX_RECORD:
                while 0 <= end <= len(body) - entry.size and not 0 <= self._word(body, end + 1) - start < MAX_RECORD:
                    end = body.find(b"\0", end + 1)
                if not 0 <= end < len(body) - entry.size:
                    return found
            name, at = body[name_at : min(end, name_at + MAX_NAME)], end + 1
            file = file if name == REPEATED else _file_name(name)
            found.append((address, file, line))
        return found

    def _word(self, body: bytes, at: int) -> int:
        return int(struct.unpack_from(self._order + "Q", body, at)[0])


def _file_name(name: bytes) -> str:
    """Return a file name of a jitdump as text, "" if the bytes are not text."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


def _text(body: bytes, at: int) -> tuple[str, int]:
    """Return (the NUL-terminated string at an offset of a jitdump record, the offset after it).

    Raises:
        ValueError: The string is not terminated.
    """
    end = body.index(b"\0", at)
    return body[at : min(end, at + MAX_NAME)].decode("utf-8", "backslashreplace"), end + 1
