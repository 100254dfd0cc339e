"""A writer of synthetic minidumps and microdumps with given threads, modules, memory and streams."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ARCHITECTURES = {"x86": 0, "arm": 5, "amd64": 9, "arm64": 12}
PLATFORMS = {"windows": 2, "mac": 0x8101, "ios": 0x8102, "linux": 0x8201, "android": 0x8203}

X86_ORDER = ("edi", "esi", "ebx", "edx", "ecx", "eax", "ebp", "eip")
AMD64_ORDER = (
    *("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"),
    *(f"r{n}" for n in range(8, 16)),
    "rip",
)


def context(processor: str, registers: Mapping[str, int]) -> bytes:
    """Return a CPU context as defined in winnt.h and Breakpad's minidump_cpu_*.h."""

    def words(form: str, *names: str) -> bytes:
        return struct.pack(f"<{len(names)}{form}", *(registers.get(name, 0) for name in names))

    if processor == "x86":
        head = struct.pack("<I", 0x10007) + bytes(24 + 112) + bytes(16)
        tail = struct.pack("<II", 0x23, 0x10246) + words("I", "esp") + struct.pack("<I", 0x2B)
        return (head + words("I", *X86_ORDER) + tail).ljust(716, b"\0")
    if processor == "amd64":
        head = bytes(48) + struct.pack("<II", 0x10000B, 0x1F80) + bytes(64)
        return (head + words("Q", *AMD64_ORDER)).ljust(1232, b"\0")
    if processor == "arm":
        names = (*(f"r{n}" for n in range(13)), "sp", "lr", "pc")
        return (struct.pack("<I", 0x40000006) + words("I", *names) + bytes(4)).ljust(368, b"\0")
    names = (*(f"x{n}" for n in range(31)), "sp", "pc")
    return (struct.pack("<II", 0x400006, 0) + words("Q", *names)).ljust(912, b"\0")


def pdb70(guid: bytes, age: int, name: str) -> bytes:
    """Return a CodeView record of a PDB with the GUID in memory order."""
    return b"RSDS" + guid + struct.pack("<I", age) + name.encode() + b"\0"


def elf_record(build_id: str) -> bytes:
    """Return Breakpad's CodeView record of an ELF module."""
    return struct.pack("<I", 0x4270454C) + bytes.fromhex(build_id)


@dataclass
class MinidumpWriter:
    """A minidump under construction. A thread's stack is written once and is part of the memory list, too.

    Attributes:
        streams: Further streams. A function receives the Body into which its stream points.
    """

    processor: str
    system: str = "linux"
    threads: list[tuple[int, bytes, int, bytes]] = field(default_factory=list)
    modules: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    memory: list[tuple[int, bytes]] = field(default_factory=list)
    streams: dict[int, bytes | Callable[[Body], bytes]] = field(default_factory=dict)
    crash: tuple[int, int, int, int, Sequence[int], bytes] | None = None
    names: dict[int, str] = field(default_factory=dict)
    wide_memory: bool = False
    version: str = "made by hand"

    def thread(self, tid: int, registers: Mapping[str, int], stack_at: int = 0, stack: bytes = b"") -> None:
        self.threads.append((tid, context(self.processor, registers), stack_at, stack))

    def module(self, base: int, size: int, path: str, record: bytes = b"") -> None:
        self.modules.append((base, size, path, record))

    def exception(
        self, tid: int, code: int, flags: int, address: int, registers: Mapping[str, int], *parameters: int
    ) -> None:
        self.crash = (tid, code, flags, address, parameters, context(self.processor, registers))

    def build(self) -> bytes:
        streams = 6 + len(self.streams)
        body = Body(32 + 12 * streams)
        directory: list[tuple[int, int, int]] = []

        def add(kind: int, content: bytes) -> None:
            directory.append((kind, len(content), body.add(content)))

        add(7, self._system(body))
        stacks = [(at, data, body.add(data)) for _, _, at, data in self.threads]
        rows = b""
        for (tid, registers, at, data), (_, _, where) in zip(self.threads, stacks, strict=True):
            rows += struct.pack("<IIIIQQII", tid, 0, 0, 0, 0, at, 0 if self.wide_memory else len(data), where)
            rows += struct.pack("<II", len(registers), body.add(registers))
        add(3, struct.pack("<I", len(self.threads)) + rows)
        rows = b""
        for base, size, path, record in self.modules:
            rows += struct.pack("<QIIII", base, size, 0, 0, body.string(path)) + bytes(52)
            rows += struct.pack("<IIII", len(record), body.add(record), 0, 0) + bytes(16)
        add(4, struct.pack("<I", len(self.modules)) + rows)
        if self.names:
            entries = b"".join(struct.pack("<IQ", tid, body.string(name)) for tid, name in self.names.items())
            add(24, struct.pack("<I", len(self.names)) + entries)
        if self.crash:
            tid, code, flags, address, parameters, registers = self.crash
            words = [*parameters, *[0] * (15 - len(parameters))]
            head = struct.pack("<IIIIQQII15Q", tid, 0, code, flags, 0, address, len(parameters), 0, *words)
            add(6, head + struct.pack("<II", len(registers), body.add(registers)))
        for kind, content in self.streams.items():
            add(kind, content if isinstance(content, bytes) else content(body))
        if self.wide_memory:
            pieces = [(at, data) for at, data, _ in stacks if data] + self.memory
            first = body.add(b"".join(data for _, data in pieces))
            table = b"".join(struct.pack("<QQ", at, len(data)) for at, data in pieces)
            add(9, struct.pack("<QQ", len(pieces), first) + table)
        else:
            ranges = [*stacks, *[(at, data, body.add(data)) for at, data in self.memory]]
            table = b"".join(struct.pack("<QII", at, len(data), where) for at, data, where in ranges)
            add(5, struct.pack("<I", len(ranges)) + table)
        header = struct.pack("<4sIIIIIQ", b"MDMP", 0xA793, len(directory), 32, 0, 0, 0)
        table = b"".join(struct.pack("<III", *entry) for entry in directory)
        return (header + table).ljust(body.start, b"\0") + bytes(body.data)

    def _system(self, body: Body) -> bytes:
        head = struct.pack("<HHHBB", ARCHITECTURES[self.processor], 6, 0, 1, 0)
        where = body.string(self.version)
        return head + struct.pack("<IIIIIHH", 5, 1, 2600, PLATFORMS[self.system], where, 0, 0) + bytes(24)


class Body:
    """Data that streams point to.

    Attributes:
        start: Offset of the data in the file.
        data: The data.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.data = bytearray()

    def add(self, content: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        at = self.start + len(self.data)
        self.data += content
        return at

    def string(self, text: str) -> int:
        encoded = text.encode("utf-16-le")
        return self.add(struct.pack("<I", len(encoded)) + encoded + b"\0\0")


@dataclass(frozen=True)
class Microdump:
    """A microdump.

    Attributes:
        modules: (start, size, 33 hex digits, name) of each module.
        before: Text that the log writes before each line.
    """

    processor: str
    registers: Mapping[str, int]
    stack_at: int
    stack: bytes
    modules: Sequence[tuple[int, int, str, str]] = ()
    reason: str = "0000000B SIGSEGV 00000045"
    before: str = "W/google-breakpad( 4462): "
    line_end: str = "\n"

    def text(self) -> str:
        name = {"amd64": "x86_64"}.get(self.processor, self.processor)
        lines = ["-----BEGIN BREAKPAD MICRODUMP-----", "V WebView:1.2.3", f"O A {name} 04 {name} 3.4.0+ #1 SMP"]
        lines += [f"R {self.reason}", "P Browser", "G UNKNOWN"]
        lines += [f"S 0 {self.stack_at:08X} {self.stack_at & -4096:08X} {len(self.stack):08X}"]
        for at in range(0, len(self.stack), 384):
            lines.append(f"S {self.stack_at + at:08X} {self.stack[at : at + 384].hex().upper()}")
        lines.append(f"C {context(self.processor, self.registers).hex().upper()}")
        lines += [f"M {start:08X} 00000000 {size:08X} {ident} {path}" for start, size, ident, path in self.modules]
        lines.append("-----END BREAKPAD MICRODUMP-----")
        return "".join(f"{self.before}{line}{self.line_end}" for line in lines)
