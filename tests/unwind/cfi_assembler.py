"""A builder of .eh_frame, .debug_frame and .eh_frame_hdr sections for tests, field by field.

frames = Frames(svma=0x9000)
cie = frames.cie()
frames.fde(cie, 0x1000, 0x20, advance(1), def_cfa_offset(16), offset(6, 2))
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pyprof.model.arch import X86_64, Arch
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_cie_and_fde import Bases, CfiSection
from pyprof.unwind.formats.cfi_sections import CfiTable, EhFrame
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows

PCREL_SDATA4 = 0x1B


def ra_column(arch: Arch) -> int:
    """Return the column of the register that is the usual return address of a CIE."""
    return arch.pc if arch.lr < 0 else arch.lr


def ra_register(arch: Arch) -> int:
    """Return the DWARF number of the usual return address register."""
    return next(number for number, column in arch.dwarf.items() if column == ra_column(arch))


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        value, byte = value >> 7, value & 0x7F
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


def advance(delta: int) -> bytes:
    return bytes([0x40 | delta])


def advance1(delta: int) -> bytes:
    return b"\x02" + struct.pack("<B", delta)


def offset(register: int, factored: int) -> bytes:
    return bytes([0x80 | register]) + uleb(factored)


def restore(register: int) -> bytes:
    return bytes([0xC0 | register])


def def_cfa(register: int, n: int) -> bytes:
    return b"\x0c" + uleb(register) + uleb(n)


def def_cfa_register(register: int) -> bytes:
    return b"\x0d" + uleb(register)


def def_cfa_offset(n: int) -> bytes:
    return b"\x0e" + uleb(n)


def undefined(register: int) -> bytes:
    return b"\x07" + uleb(register)


def same_value(register: int) -> bytes:
    return b"\x08" + uleb(register)


def in_register(register: int, source: int) -> bytes:
    return b"\x09" + uleb(register) + uleb(source)


REMEMBER, RESTORE_STATE = b"\x0a", b"\x0b"


def def_cfa_expression(expression: bytes) -> bytes:
    return b"\x0f" + uleb(len(expression)) + expression


def expression(register: int, expr: bytes) -> bytes:
    return b"\x10" + uleb(register) + uleb(len(expr)) + expr


def val_expression(register: int, expr: bytes) -> bytes:
    return b"\x16" + uleb(register) + uleb(len(expr)) + expr


X86_64_START = def_cfa(7, 8) + offset(16, 1)
"""The instructions that GNU as puts into each CIE of x86-64: cfa = rsp + 8, rip at cfa - 8."""


@dataclass
class Frames:
    """A section under construction.

    Attributes:
        svma: Address of the section.
        eh: Whether it is .eh_frame instead of .debug_frame.
        byteorder: "little" or "big".
        word: Size of an address in bytes.
        wide: Whether it has the 64-bit DWARF format.
        bases: Bases of textrel and datarel pointers.
        data: Contents.
        fdes: (start address, offset) of each FDE.
    """

    svma: int = 0x9000
    eh: bool = True
    byteorder: str = "little"
    word: int = 8
    wide: bool = False
    bases: Bases = field(default_factory=Bases)
    data: bytearray = field(default_factory=bytearray)
    fdes: list[tuple[int, int]] = field(default_factory=list)
    _cies: dict[int, tuple[int, str, int, int]] = field(default_factory=dict)

    @property
    def order(self) -> str:
        return "<" if self.byteorder == "little" else ">"

    def cie(
        self,
        initial: bytes = X86_64_START,
        *,
        augmentation: str | None = None,
        augmentation_data: bytes | None = None,
        encoding: int | None = None,
        version: int = 1,
        code_align: int = 1,
        data_align: int = -8,
        ra: int = 16,
        address_size: int | None = None,
        segment_size: int = 0,
    ) -> int:
        """Add a CIE and return its offset.

        Args:
            initial: Initial instructions.
            augmentation: Augmentation string, by default "zR" for .eh_frame and "" for .debug_frame.
            augmentation_data: Data whose length 'z' announces.
            encoding: DW_EH_PE encoding of pointers.
            version: Version of the CIE.
            code_align: Code alignment factor.
            data_align: Data alignment factor.
            ra: DWARF number of the return address register.
            address_size: Address size of version 4.
            segment_size: Segment selector size of version 4.
        """
        if augmentation is None:
            augmentation = "zR" if self.eh else ""
        if encoding is None:
            encoding = PCREL_SDATA4 if "R" in augmentation else 0
        body = bytes([version]) + augmentation.encode() + b"\0"
        size = self.word
        if version >= 4:
            size = address_size or self.word
            body += bytes([size, segment_size])
        if augmentation.startswith("eh"):
            body += bytes(size)
        body += uleb(code_align) + sleb(data_align) + (bytes([ra]) if version == 1 else uleb(ra))
        if augmentation.startswith("z"):
            given = bytes([encoding]) if augmentation_data is None else augmentation_data
            body += uleb(len(given)) + given
        at = self._entry(None, body + initial)
        self._cies[at] = (encoding, augmentation, size, segment_size)
        return at

    def fde(self, cie: int, start: int, size: int, *code: bytes, augmentation_data: bytes = b"") -> int:
        encoding, augmentation, word, segment_size = self._cies[cie]
        body = self._header_size()
        at = len(self.data)
        out = bytes(segment_size)
        out += self.pointer(start, encoding, self.svma + at + body + len(out), word)
        out += self.pointer(size, encoding & 0x0F, 0, word)
        if augmentation.startswith("z"):
            out += uleb(len(augmentation_data)) + augmentation_data
        self._entry(cie, out + b"".join(code))
        self.fdes.append((start, at))
        return at

    def terminator(self) -> None:
        self.data += bytes(4)

    def code_svma(self, cie: int, before: int = 0) -> int:
        """Return the address of the instruction at `before` of the next FDE, for DW_CFA_set_loc."""
        encoding, augmentation, word, segment_size = self._cies[cie]
        fields = segment_size + 2 * len(self.pointer(0, encoding, 0, word)) + augmentation.startswith("z")
        return self.svma + len(self.data) + self._header_size() + fields + before

    def pointer(self, value: int, encoding: int, here: int, word: int) -> bytes:
        """Return a value in a DW_EH_PE encoding.

        Args:
            value: The value.
            encoding: The encoding.
            here: Address of the field.
            word: Size of an address in bytes.
        """
        application = encoding & 0x70
        if application == 0x50:
            return bytes(-here % word) + struct.pack(self.order + {4: "I", 8: "Q"}[word], value)
        value -= {0: 0, 0x10: here, 0x20: self.bases.text, 0x30: self.bases.data}[application]
        kind = encoding & 0x0F
        if kind == 1:
            return uleb(value)
        if kind == 9:
            return sleb(value)
        size = {0: word, 8: word, 2: 2, 10: 2, 3: 4, 11: 4, 4: 8, 12: 8}[kind]
        return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little" if self.byteorder == "little" else "big")

    def _header_size(self) -> int:
        return 8 if not self.wide else 16 if self.eh else 20

    def _entry(self, cie: int | None, body: bytes) -> int:
        at = len(self.data)
        pointer_size = 8 if self.wide and not self.eh else 4
        body += bytes(-(len(body) + pointer_size) % 4)
        length = pointer_size + len(body)
        head = (
            struct.pack(self.order + "IQ", 0xFFFF_FFFF, length) if self.wide else struct.pack(self.order + "I", length)
        )
        if self.eh:
            value = 0 if cie is None else at + len(head) - cie
        else:
            value = (1 << (8 * pointer_size)) - 1 if cie is None else cie
        self.data += head + struct.pack(self.order + ("Q" if pointer_size == 8 else "I"), value) + body
        return at

    # ---- results of the readers

    def section(self) -> CfiSection:
        name = ".eh_frame" if self.eh else ".debug_frame"
        return CfiSection(name, memoryview(bytes(self.data)), self.svma, self.eh, self.byteorder, self.word, self.bases)

    def hdr(
        self, svma: int, encoding: int = 0x3B, entries: list[tuple[int, int]] | None = None, count: int = -1
    ) -> bytes:
        """Return .eh_frame_hdr with a table of (start, offset of the FDE), by default of all FDEs in order."""
        rows = sorted(self.fdes) if entries is None else entries
        out = bytearray([1, 0x1B, 0x03, encoding])
        out += self.pointer(self.svma, 0x1B, svma + 4, self.word)
        out += struct.pack(self.order + "I", len(rows) if count < 0 else count)
        bases, self.bases = self.bases, Bases(data=svma)
        for start, at in rows:
            out += self.pointer(start, encoding, svma + len(out), self.word)
            out += self.pointer(self.svma + at, encoding, svma + len(out), self.word)
        self.bases = bases
        return bytes(out)

    def table(self, arch: Arch = X86_64, diagnostics: Diagnostics | None = None) -> CfiTable:
        return CfiTable(self.section(), arch, diagnostics or Diagnostics())

    def eh_frame(self, hdr: bytes | None, hdr_svma: int, diagnostics: Diagnostics, arch: Arch = X86_64) -> EhFrame:
        header = None if hdr is None else (memoryview(hdr), hdr_svma)
        return EhFrame(self.section(), header, arch, diagnostics)

    def rows(self, at: int, arch: Arch = X86_64) -> list[str]:
        """Return the rows of the FDE at an offset as text: "+0x1 cfa = sp + 16; ra = [cfa - 8]"."""
        table = self.table(arch)
        return algebra(table.programs.rows(table.entries.fde(at)), arch)


def algebra(function: FunctionRows, arch: Arch = X86_64) -> list[str]:
    rows = zip(function.starts, function.rules, strict=True)
    return [f"+{at - function.start:#x} {describe_rule(rule, arch)}" for at, rule in rows]


def rows_of(*code: bytes, arch: Arch = X86_64, size: int = 0x1000, **cie: object) -> list[str]:
    """Return the rows of a function with these instructions."""
    frames = Frames(word=arch.word, byteorder=arch.byteorder)
    return frames.rows(frames.fde(frames.cie(**cie), 0x1000, size, *code), arch)  # type: ignore[arg-type]
