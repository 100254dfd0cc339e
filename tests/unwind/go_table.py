"""Writes small .gopclntab tables of each version, and ELF files of Go programs that have one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyprof.objfile.gopclntab import GO_1_2, GO_1_16, GO_1_18, GO_1_20
from tests.unwind.cfi_elf import Content, elf_bytes

TEXT, TABLE, DATA, FUNCDATA = 0x1000, 0x20000, 0x30000, 0x38000
VERSIONS = {"1.2": GO_1_2, "1.16": GO_1_16, "1.18": GO_1_18, "1.20": GO_1_20}
TOP_FRAME = 1


@dataclass
class GoCode:
    """One function: its values are lists of (value, length in bytes)."""

    name: str
    size: int = 0x40
    frame: Sequence[tuple[int, int]] = ((0, 4), (16, 0x38), (0, 4))
    lines: Sequence[tuple[int, int]] = ((10, 0x20), (12, 0x20))
    inlined: Sequence[tuple[int, int]] = ()
    tree: Sequence[tuple[str, int]] = ()
    flags: int = 0
    funcdata: int = 4
    code: bytes = b""


PROGRAM = (
    GoCode("runtime.goexit", frame=((0, 0x40),), flags=TOP_FRAME),
    GoCode(
        "main.main",
        inlined=((-1, 0x10), (1, 0x10), (0, 0x10), (-1, 0x10)),
        tree=(("main.outer", 4), ("main.inner", 0x24)),
    ),
    GoCode("main.leaf", frame=((0, 0x40),)),
)


def varint(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def values(steps: Sequence[tuple[int, int]]) -> bytes:
    found, last = b"", -1
    for value, length in steps:
        change = value - last
        found += varint(change << 1 if change >= 0 else (-change << 1) - 1) + varint(length)
        last = value
    return found + b"\0"


@dataclass
class _Blob:
    data: bytearray = field(default_factory=lambda: bytearray(1))

    def add(self, data: bytes) -> int:
        at = len(self.data)
        self.data += data
        return at


def table(functions: Sequence[GoCode] = PROGRAM, version: str = "1.20", text: int = TEXT) -> tuple[bytes, bytes]:
    """Return (the table, the FUNCDATA to which its inline trees refer)."""
    magic = VERSIONS[version]
    wide = version in ("1.2", "1.16")
    names, pctab, funcdata = _Blob(), _Blob(), _Blob()
    place = {name: names.add(name.encode() + b"\0") for f in functions for name in (f.name, *(n for n, _ in f.tree))}
    source = b"/src/main.go\0"
    starts = [text + sum(f.size for f in functions[:i]) for i in range(len(functions) + 1)]
    records = []
    for start, f in zip(starts, functions, strict=False):
        tree = 0xFFFFFFFF
        if f.tree:
            entries = b"".join(
                struct.pack("<iiiii", 0, 0, 0, place[name], pc)
                if version == "1.18"
                else struct.pack("<iiii", 0, place[name], pc, 0)
                for name, pc in f.tree
            )
            tree = funcdata.add(entries)
        tables = [pctab.add(values(steps)) for steps in (f.frame, ((1 if version == "1.2" else 0, f.size),), f.lines)]
        inlined = pctab.add(values(f.inlined)) if f.inlined else 0
        head = struct.pack("<Q" if wide else "<I", start if wide else start - text)
        head += struct.pack("<Iii3II", place[f.name], 0, 0, *tables, 3)
        if version != "1.2":
            head += struct.pack("<I", 0)
        if version == "1.20":
            head += struct.pack("<I", 1)
        head += bytes([0, f.flags, 0, f.funcdata]) + struct.pack("<3I", 0, 0, inlined)
        records.append(head + struct.pack("<4I", *[0xFFFFFFFF] * 3, tree))
    return _assembled(magic, version, starts, records, bytes(names.data), bytes(pctab.data), source), bytes(
        funcdata.data
    )


def _assembled(
    magic: int, version: str, starts: list[int], records: list[bytes], names: bytes, pctab: bytes, source: bytes
) -> bytes:
    count = len(records)
    entry = "<QQ" if version in ("1.2", "1.16") else "<II"
    size = struct.calcsize(entry)
    index_size = count * size + size // 2
    base = starts[0] if entry == "<II" else 0

    def index(records_at: int) -> bytes:
        places = [records_at + sum(map(len, records[:i])) for i in range(count)]
        body = b"".join(struct.pack(entry, start - base, at) for start, at in zip(starts, places, strict=False))
        return body + struct.pack(entry, starts[-1] - base, 0)[: size // 2]

    head = struct.pack("<IHBBQ", magic, 0, 1, 8, count)
    if version == "1.2":  # everything is relative to the table's start
        at = 16 + index_size + 4
        shift = [at + sum(map(len, records)), 0]
        shift[1] = shift[0] + len(names)
        files_at = shift[1] + len(pctab)
        moved = [_shifted(record, shift[0], shift[1]) for record in records]
        files = struct.pack("<2I", 2, files_at + 8)
        return head + index(at) + struct.pack("<I", files_at) + b"".join(moved) + names + pctab + files + source
    header = 72 if version != "1.16" else 64
    units = struct.pack("<I", 0)
    parts = [bytes(names), units, source, bytes(pctab)]
    offsets = [header + sum(map(len, parts[:i])) for i in range(len(parts) + 1)]
    head += struct.pack("<Q", 1)
    if version != "1.16":
        head += struct.pack("<Q", starts[0])
    head += struct.pack("<5Q", *offsets)
    return head + b"".join(parts) + index(index_size) + b"".join(records)


def _shifted(record: bytes, names: int, pctab: int) -> bytes:
    fields = list(struct.unpack_from("<Iii3I", record, 8))
    fields[0] += names
    fields[3:] = [offset + pctab for offset in fields[3:]]
    return record[:8] + struct.pack("<Iii3I", *fields) + record[32:]


def go_elf(
    data: bytes,
    funcdata: bytes = b"",
    functions: Sequence[GoCode] = PROGRAM,
    section: str = ".gopclntab",
    headers: bool = True,
) -> bytes:
    """Return an x86-64 program with this table, and a moduledata with the address of its FUNCDATA."""
    code = b"".join(f.code.ljust(f.size, b"\xcc") for f in functions)
    module = bytearray(400)
    struct.pack_into("<Q", module, 0, TABLE)
    struct.pack_into("<Q", module, 176, TEXT)
    struct.pack_into("<Q", module, 320 if data[:1] == b"\xf1" else 304, FUNCDATA)
    sections = {
        ".text": Content(code, TEXT, 2),
        section: Content(data, TABLE),
        ".noptrdata": Content(bytes(module), DATA),
        "go:func.*": Content(funcdata + bytes(8), FUNCDATA),
    }
    made = bytearray(elf_bytes(sections, (TEXT, TEXT + 0x1000), headers))
    for at in range(64, 64 + 56 * 8, 56):
        if struct.unpack_from("<Q", made, at + 16)[0] == DATA:
            struct.pack_into("<I", made, at + 4, 6)
    return bytes(made)
