"""Minidumps and microdumps: crash dumps of Windows, Breakpad and Crashpad.

A module is a MINIDUMP_MODULE with the CodeView record that identifies it. PDB 7.0 ("RSDS") has a GUID, the age and the
name of the PDB. Crashpad writes it for ELF modules too, with the first 16 bytes of their build ID. PDB 2.0 ("NB10") has
a time stamp and the age. "BpEL" (reversed in the file) of Linux has the build ID.

read_minidump() takes a ByteSource and returns a CrashDump. The streams are read one by one. A broken or incomplete
stream is counted as an oddity if there is a list of threads. Otherwise FormatError is raised. Only little-endian dumps
are supported, because no current target writes others.
Sources: minidumpapiset.h of Windows; src/google_breakpad/common/minidump_format.h of Breakpad.

Breakpad writes a microdump into a log if it cannot write a file. It contains one thread and its stack.

read_microdump() takes text, with or without the log's prefix on each line, and returns a CrashDump. The first letter of
a line gives its content: O system, processor and version; R signal, its name, address; S stack; C registers; M a
module. V, P and G are not used. Numbers are hexadecimal.
Sources: src/client/linux/microdump_writer/microdump_writer.cc and src/processor/microdump.cc of Breakpad.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import base_name
from pyprof.objfile.breakpad_records import format_guid
from pyprof.objfile.byte_source import ByteSource, BytesSource
from pyprof.objfile.core_file import make_saved_memory
from pyprof.objfile.minidump_content import (
    CrashDump,
    DumpException,
    DumpModule,
    DumpRegion,
    DumpThread,
    address_mask,
    read_context,
)

MAX_MODULES = 1 << 16
ELF_SYSTEMS = frozenset({"linux", "android"})


def read_modules(base: int, size: int, path: str, record: bytes, system: str) -> list[DumpModule]:
    """Return the module of one entry of a minidump's module list, or an empty list if its size is 0.

    Args:
        base: Address of the module in the process.
        size: Size in bytes.
        path: Path, as the target names it.
        record: CodeView record of the module, b"" if there is none.
        system: Operating system, as in CrashDump.os.
    """
    if not size or base + size > 1 << 64:
        return []
    debug_id = build_id = ""
    name = base_name(path)
    if record[:4] == b"RSDS" and len(record) >= 24:
        (age,) = struct.unpack_from("<I", record, 20)
        identifier = record[4:20]
        if any(identifier):
            debug_id = format_guid(identifier, "little") + f"{age:X}"
        if system in ELF_SYSTEMS:
            build_id = identifier.hex() if any(identifier) else ""
        name = base_name(_text(record[24:])) or name
    elif record[:4] == b"NB10" and len(record) >= 16:
        stamp, age = struct.unpack_from("<II", record, 8)
        debug_id = f"{stamp:08X}{age:X}"
        name = base_name(_text(record[16:])) or name
    elif record[:4] == b"LEpB" and any(record[4:]):
        build_id = record[4:].hex()
        debug_id = format_guid(record[4:], "little") + "0"
    return [DumpModule(base, size, path, debug_id, build_id, name)]


def infer_modules(regions: Sequence[DumpRegion], objects: Sequence[tuple[int, str]]) -> list[DumpModule]:
    """Return modules for a crash dump without a module list. Each is made of adjacent mappings of one file.

    The dynamic loader's list gives better names than the mappings. The identities of the modules are unknown.

    Args:
        regions: The mappings.
        objects: (load bias, name) of the loader's objects.
    """
    found: list[DumpModule] = []
    named = {bias: name for bias, name in objects if name}
    for region in regions[:MAX_MODULES]:
        if not region.path or region.path.startswith("["):
            continue
        last = found[-1] if found else None
        if last is not None and last.path == region.path:
            found[-1] = DumpModule(last.base, region.end - last.base, last.path, debug_name=last.debug_name)
            continue
        path = named.get(region.start, region.path)
        found.append(DumpModule(region.start, region.end - region.start, region.path, debug_name=base_name(path)))
    return found


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")


MAX_REGIONS = 1 << 18
MAX_OBJECTS = 1 << 14


def read_pid(status: bytes) -> int:
    """Return the process ID from a copy of /proc/PID/status, 0 if it is missing."""
    for line in status.splitlines():
        if line.startswith(b"Pid:") and line[4:].strip().isdigit():
            return int(line[4:])
    return 0


def read_auxv(data: bytes, wide: bool) -> dict[int, int]:
    """Return the values of a copy of /proc/PID/auxv by type (AT_*)."""
    pair = struct.Struct("<QQ" if wide else "<II")
    found: dict[int, int] = {}
    for kind, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if kind == 0:
            break
        found.setdefault(kind, value)
    return found


def read_maps(data: bytes) -> list[DumpRegion]:
    """Return the mappings in a dump's copy of /proc/PID/maps, ascending. An invalid line is left out."""
    found = []
    for line in data.split(b"\n", MAX_REGIONS)[:MAX_REGIONS]:
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        low, _, high = fields[0].partition(b"-")
        try:
            start, end = int(low, 16), int(high, 16)
        except ValueError:
            continue
        if 0 <= start < end <= 1 << 64:
            path = fields[5].decode("utf-8", "surrogateescape").strip() if len(fields) > 5 else ""
            found.append(DumpRegion(start, end, fields[1].decode("ascii", "replace"), path))
    return sorted(found, key=lambda region: region.start)


def read_objects(data: bytes, source: ByteSource, wide: bool, string: Callable[[int], str]) -> list[tuple[int, str]]:
    """Return (load bias, name) of each object in the link map of a dump (MDRawDebug).

    Args:
        data: Bytes of the stream MDRawDebug.
        source: The whole dump.
        wide: Addresses have 64 bits.
        string: Reads a MINIDUMP_STRING at an offset.
    """
    head = struct.Struct("<III")
    if len(data) < head.size:
        return []
    _, rva, count = head.unpack_from(data)
    # address, name, address of the dynamic table, with the padding of the target's compiler
    entry = struct.Struct("<QI4xQ" if wide else "<III")
    table = source.read(rva, entry.size * min(count, MAX_OBJECTS))
    whole = len(table) // entry.size * entry.size
    return [(bias, string(name)) for bias, name, _ in entry.iter_unpack(table[:whole])]


SIGNATURE = b"MDMP"
THREADS, MODULES, MEMORY, EXCEPTION, SYSTEM, MEMORY_64, MISC, MEMORY_INFO, THREAD_NAMES = 3, 4, 5, 6, 7, 9, 15, 16, 24
BREAKPAD, LINUX_STATUS, LINUX_AUXV, LINUX_MAPS, LINUX_DSO = 0x47670001, 0x47670004, 0x47670008, 0x47670009, 0x4767000A

MAX_STREAMS = 1 << 10
MAX_THREADS = 1 << 16
MAX_RANGES = 1 << 20
MAX_STREAM = 1 << 26
MAX_CONTEXT = 1 << 14
MAX_STRING = 1 << 12
MAX_PARAMETERS = 15

PROCESSORS = {0: "x86", 10: "x86", 9: "amd64", 5: "arm", 12: "arm64", 0x8003: "arm64"}
"""Names of processors in CrashDump, by the field processor_architecture of a minidump's system information."""

SYSTEMS = {1: "windows", 2: "windows", 0x8101: "mac", 0x8102: "ios", 0x8201: "linux", 0x8203: "android"}
"""Names of operating systems in CrashDump, by the field platform_id of a minidump's system information."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """One stream of a minidump: the stream's bytes, and their offset `at` in the file."""

    source: ByteSource
    at: int

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        """Unpack fields of a minidump stream at an offset.

        Raises:
            FormatError: The fields pass the end of the stream.
        """
        layout = struct.Struct("<" + form)
        data = self.source.read(offset, layout.size)
        if len(data) < layout.size:
            raise FormatError("minidump", self.at + offset, "cut off")
        return layout.unpack(data)

    def entries(self, form: str, count: int, first: int, max_entries: int, size: int = 0) -> Iterator[tuple[int, ...]]:
        """Yield the entries of a list in a minidump stream that are inside the stream.

        Args:
            form: Format of an entry.
            count: Number of entries, as stated.
            first: Offset of the first entry.
            max_entries: Maximum number of entries.
            size: Size of an entry in bytes, 0 for that of the format.
        """
        layout = struct.Struct("<" + form)
        size = size or layout.size
        data = self.source.read(first, size * min(count, max_entries))
        for at in range(0, len(data) - layout.size + 1, size):
            yield layout.unpack_from(data, at)


def is_minidump(head: bytes) -> bool:
    return head.startswith(SIGNATURE)


def read_minidump(source: ByteSource) -> CrashDump:
    """Read a minidump as a CrashDump.

    Raises:
        FormatError: The file is not a minidump, its processor is not supported, or it has no thread.
    """
    reader = _Reader(source)
    dump = reader.dump
    for kind, take in reader.takers().items():
        stream = reader.stream(kind)
        if stream is None:
            continue
        try:
            take(stream)
        except FormatError as error:
            dump.oddities[f"minidump_stream_invalid:{error.problem} in stream {kind:#x}"] += 1
    if not dump.threads:
        raise FormatError("minidump", 0, "no thread")
    if not dump.modules:
        dump.modules = infer_modules(dump.regions, reader.objects)
        dump.oddities["minidump_without_modules"] += 1
    dump.memory = make_saved_memory(source, reader.pieces)
    return dump


class _Reader:
    """The state of reading one minidump: its streams, and the parts of the CrashDump that were read so far.

    Attributes:
        pieces: (address, size, offset) of memory in the file.
        objects: (load bias, name) of the dynamic loader's objects.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.file = _Stream(source, 0)
        self.pieces: list[tuple[int, int, int]] = []
        self.objects: list[tuple[int, str]] = []
        self._streams: dict[int, tuple[int, int]] = {}
        signature, version, count, at = self.file.unpack("IIII", 0)
        if signature != int.from_bytes(SIGNATURE, "little") or version & 0xFFFF != 0xA793:
            raise FormatError("minidump", 0, "not a minidump")
        for kind, size, rva in self.file.entries("III", count, at, MAX_STREAMS):
            if kind and kind not in self._streams:
                self._streams[kind] = (rva, size)
        self.dump = self._system()

    def takers(self) -> dict[int, Callable[[_Stream], None]]:
        """Return the functions that read each kind of minidump stream, in the order of reading."""
        return {
            MISC: self._misc,
            BREAKPAD: self._breakpad,
            LINUX_STATUS: self._status,
            LINUX_AUXV: self._auxv,
            MEMORY_INFO: self._memory_info,
            LINUX_MAPS: self._maps,
            LINUX_DSO: self._objects,
            MEMORY: self._memory,
            MEMORY_64: self._memory_64,
            MODULES: self._modules,
            THREADS: self._threads,
            THREAD_NAMES: self._names,
            EXCEPTION: self._exception,
        }

    def stream(self, kind: int) -> _Stream | None:
        """Return a stream of the minidump by its kind, or None if the file has no such stream."""
        if kind not in self._streams:
            return None
        rva, size = self._streams[kind]
        return _Stream(BytesSource(self.source.read(rva, min(size, MAX_STREAM))), rva)

    def _system(self) -> CrashDump:
        stream = self.stream(SYSTEM)
        if stream is None:
            raise FormatError("minidump", 0, "no system information")
        architecture, _, _, _, _, major, minor, build, platform, rva = stream.unpack("HHHBBIIIII", 0)
        processor = PROCESSORS.get(architecture)
        if processor is None:
            raise FormatError("minidump", stream.at, f"processor architecture {architecture:#x} is not supported")
        system = SYSTEMS.get(platform, "")
        version = f"{major}.{minor}.{build} {self.string(rva)}".strip()
        return CrashDump(system, processor, make_saved_memory(self.source, ()), version)

    def string(self, rva: int) -> str:
        """Return a MINIDUMP_STRING at an offset, "" if there is none."""
        if not rva:
            return ""
        data = self.source.read(rva, 4)
        size = int.from_bytes(data, "little") if len(data) == 4 else 0
        return bytes(self.source.read(rva + 4, min(size, MAX_STRING) & ~1)).decode("utf-16-le", "replace")

    def _misc(self, stream: _Stream) -> None:
        _, flags, pid = stream.unpack("III", 0)
        if flags & 1:
            self.dump.pid = pid

    def _breakpad(self, stream: _Stream) -> None:
        valid, dumped_by, requested_by = stream.unpack("III", 0)
        self.dump.dumped_by = dumped_by if valid & 1 else 0
        self.dump.requested_by = requested_by if valid & 2 else 0

    def _status(self, stream: _Stream) -> None:
        self.dump.pid = self.dump.pid or read_pid(_all(stream))

    def _auxv(self, stream: _Stream) -> None:
        self.dump.auxv = read_auxv(_all(stream), self.dump.processor in ("amd64", "arm64"))

    def _maps(self, stream: _Stream) -> None:
        self.dump.regions = read_maps(_all(stream))

    def _objects(self, stream: _Stream) -> None:
        wide = self.dump.processor in ("amd64", "arm64")
        self.objects = read_objects(_all(stream), self.source, wide, self.string)

    def _memory_info(self, stream: _Stream) -> None:
        header, size, count = stream.unpack("IIQ", 0)
        if not 48 <= size <= MAX_STRING:
            raise FormatError("minidump", stream.at, f"entries of {size} bytes")
        self.dump.regions = read_regions(stream.entries("QQIIQIII", count, header, MAX_RANGES, size))

    def _memory(self, stream: _Stream) -> None:
        (count,) = stream.unpack("I", 0)
        for start, size, rva in stream.entries("QII", count, _first(stream, count, 16), MAX_RANGES):
            self.pieces.append((start, size, rva))

    def _memory_64(self, stream: _Stream) -> None:
        count, rva = stream.unpack("QQ", 0)
        for start, size in stream.entries("QQ", count, 16, MAX_RANGES):
            self.pieces.append((start, size, rva))
            rva += size
            if rva > self.source.size:
                self.dump.oddities["minidump_truncated"] += 1
                break

    def _modules(self, stream: _Stream) -> None:
        (count,) = stream.unpack("I", 0)
        entries = stream.entries("QIIII52xII", count, _first(stream, count, 108), MAX_RANGES, 108)
        for base, size, _, stamp, name, cv_size, cv_rva in entries:
            record = bytes(self.source.read(cv_rva, min(cv_size, MAX_STRING)))
            modules = read_modules(base, size, self.string(name), record, self.dump.os)
            self.dump.modules += [replace(module, time_stamp=stamp) for module in modules]

    def _threads(self, stream: _Stream) -> None:
        (count,) = stream.unpack("I", 0)
        first = _first(stream, count, 48)
        for tid, *_, start, size, rva, context_size, context in stream.entries("IIIIQQIIII", count, first, MAX_THREADS):
            registers = self._context(context, context_size)
            if registers is None:
                self.dump.oddities["thread_without_registers"] += 1
                continue
            if size:
                self.pieces.append((start, size, rva))
            self.dump.threads.append(DumpThread(tid, registers, (start, size)))

    def _context(self, rva: int, size: int) -> dict[str, int] | None:
        return read_context(self.dump.processor, self.source.read(rva, min(size, MAX_CONTEXT)))

    def _names(self, stream: _Stream) -> None:
        (count,) = stream.unpack("I", 0)
        names = dict[int, int](stream.entries("IQ", count, 4, MAX_THREADS))  # type: ignore[arg-type]
        self.dump.threads = [
            replace(thread, name=self.string(names[thread.tid])) if thread.tid in names else thread
            for thread in self.dump.threads
        ]

    def _exception(self, stream: _Stream) -> None:
        tid, _, code, flags, _, address, count, _ = stream.unpack("IIIIQQII", 0)
        mask = address_mask(self.dump.processor)
        words = stream.entries("Q", min(count, MAX_PARAMETERS), 40, MAX_PARAMETERS)
        parameters = tuple(word & mask for (word,) in words)
        self.dump.exception = DumpException(tid, code, flags, address & mask, parameters)
        size, context = stream.unpack("II", 160)
        registers = self._context(context, size) if size else None
        if registers is None:
            return
        self.dump.threads = [
            replace(thread, registers=registers) if thread.tid == tid else thread for thread in self.dump.threads
        ]


def _all(stream: _Stream) -> bytes:
    return bytes(stream.source.read(0, stream.source.size))


def _first(stream: _Stream, count: int, size: int) -> int:
    """Return the offset of the first entry of a list in a minidump. Some writers align the first entry to 8 bytes."""
    return 8 if stream.source.size == 8 + count * size else 4


COMMITTED = 0x1000
READABLE, WRITABLE, EXECUTABLE = 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80, 0x04 | 0x08 | 0x40 | 0x80, 0xF0
"""Masks of the Windows PAGE_* bits that grant each permission."""


def read_regions(entries: Iterable[tuple[int, ...]]) -> list[DumpRegion]:
    """Return the committed memory regions of a minidump, in ascending order.

    Args:
        entries: (base, allocation base, its protection, padding, size, state, protection, type) of each entry.
    """
    found = []
    for base, _, _, _, size, state, protection, _ in entries:
        if not size or base + size > 1 << 64 or not state & COMMITTED:
            continue
        bits = (("r", READABLE), ("w", WRITABLE), ("x", EXECUTABLE))
        found.append(DumpRegion(base, base + size, "".join(c if protection & bit else "-" for c, bit in bits) + "p"))
    return sorted(found, key=lambda region: region.start)


BEGIN, END, TAG = "-----BEGIN BREAKPAD MICRODUMP-----", "-----END BREAKPAD MICRODUMP-----", "google-breakpad"
MAX_SIZE = 1 << 26
"""Maximum number of bytes of a log in which a microdump is searched."""

MICRODUMP_PROCESSORS = {"x86": "x86", "x86_64": "amd64", "arm": "arm", "arm64": "arm64"}
MICRODUMP_SYSTEMS = {"L": "linux", "A": "android"}
TID = 1
"""Thread ID that a microdump's only thread gets, because microdumps state no thread IDs."""


def is_microdump(data: bytes) -> bool:
    return BEGIN.encode() in data


def read_microdump(source: ByteSource) -> CrashDump:
    """Read the first microdump in a log.

    Raises:
        FormatError: The log has no microdump, its processor is not supported, or it has no registers.
    """
    data = bytes(source.read(0, MAX_SIZE))
    begin = data.find(BEGIN.encode())
    if begin < 0:
        raise FormatError("microdump", 0, "no microdump")
    return _MicrodumpReader(data[begin:].decode("utf-8", "backslashreplace").splitlines()[1:], begin).dump()


class _MicrodumpReader:
    def __init__(self, lines: list[str], at: int) -> None:
        self._at = at
        self._system = self._processor = self._version = ""
        self._stack: list[tuple[int, bytes]] = []
        self._registers: dict[str, int] | None = None
        self._modules: list[DumpModule] = []
        self._exception: DumpException | None = None
        self._malformed = 0
        takers = {"O": self._os, "R": self._reason, "S": self._stack_part, "C": self._cpu, "M": self._module}
        for line in lines:
            if END in line:
                break
            kind, _, rest = _content(line).partition(" ")
            if kind in takers:
                try:
                    takers[kind](rest)
                except (ValueError, IndexError):
                    self._malformed += 1

    def dump(self) -> CrashDump:
        if not self._processor:
            raise FormatError("microdump", self._at, "no processor that is supported")
        if self._registers is None:
            raise FormatError("microdump", self._at, "no registers")
        data = b"".join(part for _, part in self._stack)
        at, pieces = 0, []
        for avma, part in self._stack:
            pieces.append((avma, len(part), at))
            at += len(part)
        low = min((avma for avma, _ in self._stack), default=0)
        high = max((avma + len(part) for avma, part in self._stack), default=0)
        dump = CrashDump(
            self._system,
            self._processor,
            make_saved_memory(BytesSource(data), pieces),
            self._version,
            threads=[DumpThread(TID, self._registers, (low, high - low))],
            modules=self._modules,
            exception=self._exception
            and replace(self._exception, address=self._exception.address & address_mask(self._processor)),
            requested_by=TID,
        )
        if self._malformed:
            dump.oddities["microdump_line_invalid"] += self._malformed
        return dump

    def _os(self, rest: str) -> None:
        fields = rest.split(None, 4)
        self._system = MICRODUMP_SYSTEMS.get(fields[0], "")
        self._processor = MICRODUMP_PROCESSORS.get(fields[1], "")
        self._version = fields[4] if len(fields) > 4 else ""

    def _reason(self, rest: str) -> None:
        fields = rest.split()
        address = int(fields[2], 16) if len(fields) > 2 else 0
        self._exception = DumpException(TID, int(fields[0], 16), 0, address, name=fields[1])

    def _stack_part(self, rest: str) -> None:
        """Read a line of stack bytes of a microdump. The first line has four numbers and gives sp, which the registers
        contain too.
        """
        fields = rest.split()
        if len(fields) != 2:
            return
        avma = int(fields[0], 16)
        if avma >= 1 << 64:
            raise ValueError(rest)
        self._stack.append((avma, bytes.fromhex(fields[1])))

    def _cpu(self, rest: str) -> None:
        """Read the line with the registers of a microdump.

        The writer cuts lines at 2047 bytes. On x86_64, the registers that unwinding needs are before the cut, and the
        line may end in half a byte.
        """
        registers = read_context(self._processor, bytes.fromhex(rest[: len(rest) & ~1]))
        if registers is None:
            raise ValueError(rest)
        self._registers = registers

    def _module(self, rest: str) -> None:
        """Read a module line of a microdump: start, offset in the file, size, identifier, file name."""
        start, _, size, identifier, path = rest.split(None, 4)
        int(identifier, 16)
        base, length = int(start, 16), int(size, 16)
        if not length or base + length > 1 << 64:
            raise ValueError(rest)
        self._modules.append(DumpModule(base, length, path, identifier.upper(), "", base_name(path)))


def _content(line: str) -> str:
    """Return a line of a microdump without the prefix of the log."""
    _, tagged, rest = line.partition(TAG)
    return (rest.partition(": ")[2] if tagged else line).strip()
