"""A writer of .ARM.exidx and .ARM.extab within an ELF file, independent of the reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

TEXT, TABLES = 0x10000, 0x80000
TEXT_OFFSET, TABLES_OFFSET = 0x1000, 0x2000
CANT, INLINE, COMPACT, GENERIC = "cannot unwind", "inline", "compact", "generic"


@dataclass(frozen=True)
class Written:
    """A function.

    Attributes:
        size: Size in bytes.
        kind: Kind of its entry.
        code: Unwind instructions, of the length that the kind holds.
        personality: Index of the personality routine.
        thumb: Whether bit 0 of the key is set.
    """

    size: int
    kind: str
    code: bytes = b""
    personality: int = 0
    thumb: bool = False


def prel31(place: int, target: int) -> int:
    return (target - place) & 0x7FFF_FFFF


def words(code: bytes) -> list[int]:
    assert len(code) % 4 == 0
    return [int.from_bytes(code[at : at + 4], "big") for at in range(0, len(code), 4)]


def table_entry(function: Written, place: int) -> list[int]:
    code = function.code
    if function.kind == GENERIC:
        head = (len(code) - 3) // 4 << 24 | int.from_bytes(code[:3], "big")
        return [prel31(place, function.personality), head, *words(code[3:])]
    if function.personality == 0:
        return [0x8000_0000 | int.from_bytes(code, "big")]
    head = 0x8000_0000 | function.personality << 24 | (len(code) - 2) // 4 << 16 | int.from_bytes(code[:2], "big")
    return [head, *words(code[2:])]


def elf_file(functions: Sequence[Written], order: str = "<", text_size: int | None = None) -> bytes:
    """Return an ELF file whose functions are adjacent from TEXT on."""
    table: list[int] = []
    index: list[tuple[int, int]] = []  # (start, second word or svma of a table entry)
    start = TEXT
    for function in functions:
        if function.kind == CANT:
            second = 1
        elif function.kind == INLINE:
            second = 0x8000_0000 | int.from_bytes(function.code, "big")
        else:
            second = -(TABLES + 4 * len(table))
            table += table_entry(function, TABLES + 4 * len(table))
        index.append((start | function.thumb, second))
        start += function.size
    index_at = TABLES + 4 * len(table)
    rows = []
    for number, (key, second) in enumerate(index):
        place = index_at + 8 * number
        rows += [prel31(place, key), second if second > 0 else prel31(place + 4, -second)]
    tables = struct.pack(f"{order}{len(table) + len(rows)}I", *table, *rows)
    return wrap(tables, index_at, 4 * len(rows), start - TEXT if text_size is None else text_size, order)


def wrap(tables: bytes, index_at: int, index_size: int, text_size: int, order: str = "<") -> bytes:
    """Return an ELF file with these tables.

    Args:
        tables: Contents at TABLES.
        index_at: Address of the index within the tables.
        index_size: Size of the index in bytes.
        text_size: Size of the text segment in bytes.
        order: Byte order as in struct.
    """
    segments = [
        (1, TEXT_OFFSET, TEXT, TEXT, 0, text_size, 5, 4),
        (1, TABLES_OFFSET, TABLES, TABLES, len(tables), len(tables), 4, 4),
        (0x70000001, TABLES_OFFSET + index_at - TABLES, index_at, index_at, index_size, index_size, 4, 4),
    ]
    ident = b"\x7fELF\x01" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    head = ident + struct.pack(f"{order}HHIIIIIHHHHHH", 3, 40, 1, 0, 52, 0, 0x5000000, 52, 32, len(segments), 40, 0, 0)
    image = head + b"".join(struct.pack(f"{order}8I", *segment) for segment in segments)
    return image.ljust(TABLES_OFFSET, b"\0") + tables
