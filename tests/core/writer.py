"""A writer of synthetic core files with given notes, threads and memory, in any class and byte order."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

NT_PRSTATUS, NT_FPREGSET, NT_PRPSINFO, NT_AUXV = 1, 2, 3, 6
NT_FILE, NT_SIGINFO, NT_ARM_PAC_MASK = 0x46494C45, 0x53494749, 0x406
R, W, X = 4, 2, 1


@dataclass(frozen=True)
class Load:
    """A PT_LOAD segment.

    Attributes:
        memory: p_memsz if it is greater than p_filesz, or None.
        promised: p_filesz, or None for the length of the data.
    """

    vaddr: int
    data: bytes
    flags: int
    memory: int | None = None
    promised: int | None = None


@dataclass
class CoreWriter:
    """A core file under construction.

    Attributes:
        order: Byte order as in struct: "<" or ">".
        wide_registers: Whether a core of class 32 has registers of 8 bytes (x32).
    """

    machine: int
    elf_class: int = 64
    order: str = "<"
    wide_registers: bool = False
    notes: list[tuple[bytes, int, bytes]] = field(default_factory=list)

    @property
    def word(self) -> str:
        return "Q" if self.elf_class == 64 else "I"

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.order + form, *values)

    def note(self, kind: int, content: bytes, name: bytes = b"CORE\0") -> None:
        self.notes.append((name, kind, content))

    def thread(self, tid: int, registers: Sequence[int], signal: int = 0) -> None:
        """Add an NT_PRSTATUS note with this user_regs_struct."""
        form = "Q" if self.elf_class == 64 or self.wide_registers else "I"
        head = self.pack("iiihxx", signal, 0, 0, signal) + self.pack(2 * self.word, 0, 0)
        head += self.pack("iiii", tid, 1, tid, tid) + bytes(64 if self.elf_class == 64 else 32)
        tail = bytes(8 if form == "Q" else 4)
        self.note(NT_PRSTATUS, head + self.pack(f"{len(registers)}{form}", *registers) + tail)

    def process(self, pid: int, name: str, arguments: str = "") -> None:
        """Add an NT_PRPSINFO note."""
        ids = "QIIiiii" if self.elf_class == 64 else "IHHiiii"
        head = b"\0R\0\0" + (bytes(4) if self.elf_class == 64 else b"") + self.pack(ids, 0, 0, 0, pid, 1, pid, pid)
        self.note(NT_PRPSINFO, head + name.encode().ljust(16, b"\0")[:16] + arguments.encode().ljust(80, b"\0")[:80])

    def auxv(self, *pairs: tuple[int, int]) -> None:
        self.note(NT_AUXV, b"".join(self.pack(2 * self.word, *pair) for pair in [*pairs, (0, 0)]))

    def files(self, *rows: tuple[int, int, int, str], page: int = 4096) -> None:
        """Add an NT_FILE note with rows of (start, end, offset in bytes, path)."""
        table = b"".join(self.pack(3 * self.word, start, end, offset // page) for start, end, offset, _ in rows)
        names = b"".join(path.encode() + b"\0" for *_, path in rows)
        self.note(NT_FILE, self.pack(2 * self.word, len(rows), page) + table + names)

    def build(self, loads: Sequence[Load], note_size: int | None = None) -> bytes:
        notes = b""
        for name, kind, content in self.notes:
            notes += self.pack("III", len(name), len(content), kind) + name + bytes(-len(name) % 4)
            notes += content + bytes(-len(content) % 4)
        wide = self.elf_class == 64
        entry, header = (56, 64) if wide else (32, 52)
        notes_at = header + entry * (1 + len(loads))
        ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if self.order == "<" else 2, 1]) + bytes(9)
        fields = self.pack(
            "HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH",
            *(4, self.machine, 1, 0, header, 0, 0, header, entry, 1 + len(loads), 0, 0, 0),
        )
        headers = self._header(4, 0, notes_at, 0, len(notes) if note_size is None else note_size, 0)
        at = notes_at + len(notes) + 0xFFF & ~0xFFF
        body = b""
        for load in loads:
            size = len(load.data) if load.promised is None else load.promised
            memory = max(size, load.memory or 0)
            headers += self._header(1, load.flags, at + len(body), load.vaddr, size, memory)
            body += load.data + bytes(-len(load.data) % 16)
        return (ident + fields + headers + notes).ljust(at, b"\0") + body

    def _header(self, kind: int, flags: int, offset: int, vaddr: int, size: int, memory: int) -> bytes:
        if self.elf_class == 64:
            return self.pack("IIQQQQQQ", kind, flags, offset, vaddr, 0, size, memory, 1)
        return self.pack("IIIIIIII", kind, offset, vaddr, 0, size, memory, flags, 1)
