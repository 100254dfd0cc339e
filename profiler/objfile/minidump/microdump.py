"""Microdumps: crash dumps that Breakpad writes into a log if it cannot write a file.

They contain one thread and its stack.

read_microdump() takes text, with or without the log's prefix on each line, and returns a CrashDump. The first letter of
a line gives its content: O system, processor and version; R signal, its name, address; S stack; C registers; M a
module. V, P and G are not used. Numbers are hexadecimal.
Sources: src/client/linux/microdump_writer/microdump_writer.cc and src/processor/microdump.cc of Breakpad.
"""

from __future__ import annotations

from pyprof.errors import FormatError
from pyprof.model.modules import base_name
from pyprof.objfile.byte_source import ByteSource, BytesSource
from pyprof.objfile.core.memory import make_saved_memory
from pyprof.objfile.minidump.cpu_contexts import read_context
from pyprof.objfile.minidump.crash_dump import CrashDump, DumpException, DumpModule, DumpThread, address_mask
from pyprof.records import replace

BEGIN, END, TAG = "-----BEGIN BREAKPAD MICRODUMP-----", "-----END BREAKPAD MICRODUMP-----", "google-breakpad"
MAX_SIZE = 1 << 26
"""Maximum number of bytes of a log in which a microdump is searched."""

PROCESSORS = {"x86": "x86", "x86_64": "amd64", "arm": "arm", "arm64": "arm64"}
SYSTEMS = {"L": "linux", "A": "android"}
TID = 1
"""Thread ID in a microdump that stands for an unknown one."""


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
    return _Reader(data[begin:].decode("utf-8", "backslashreplace").splitlines()[1:], begin).dump()


class _Reader:
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
        self._system = SYSTEMS.get(fields[0], "")
        self._processor = PROCESSORS.get(fields[1], "")
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

        The writer cuts lines at 2047 bytes; x86_64 keeps its needed registers, and half a byte at the end.
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
    """Return a line of a microdump without the log's prefix."""
    _, tagged, rest = line.partition(TAG)
    return (rest.partition(": ")[2] if tagged else line).strip()
