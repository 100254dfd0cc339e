"""The dynamic table (gABI, "Dynamic Section") in a file and in memory, and a comparison of the two."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyprof.model.modules import ReadMemory
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.headers import PT_DYNAMIC

DT_DEBUG = 21
MAX_TABLE = 1 << 16
MIN_EQUAL_ENTRIES = 8
"""Minimum number of equal entries of two dynamic tables that prove a match, because they contain sizes and addresses of
tables.
"""


def read_dynamic_entries(data: bytes | memoryview, elf_class: int, order: str) -> Iterator[tuple[int, int]]:
    """Yield (tag, value) of each entry of an ELF dynamic table before DT_NULL."""
    pair = struct.Struct(order + ("QQ" if elf_class == 64 else "II"))
    for tag, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if tag == 0:
            return
        yield tag, value


def is_same_dynamic_table(elf: ElfFile, bias: int, read: ReadMemory) -> bool | None:
    """Compare the file's dynamic table with the one in memory, for an assumed load bias.

    The loader fills in DT_DEBUG and adds the bias to some addresses in place.

    Returns:
        True if they are equal, False if not, None if there is nothing to compare.
    """
    mask = (1 << elf.elf_class) - 1
    for segment in elf.segments:
        if segment.type != PT_DYNAMIC or not 0 <= bias + segment.vaddr <= mask:
            continue
        size = min(segment.filesz, MAX_TABLE)
        there = read(bias + segment.vaddr, size)
        if len(there) < size:
            return None
        stated = list(read_dynamic_entries(elf.source.read(segment.offset, size), elf.elf_class, elf.order))
        loaded = list(read_dynamic_entries(there, elf.elf_class, elf.order))
        if len(stated) < MIN_EQUAL_ENTRIES:
            return None
        return len(stated) == len(loaded) and all(
            tag == tag_there and (tag == DT_DEBUG or value_there in (value, value + bias & mask))
            for (tag, value), (tag_there, value_there) in zip(stated, loaded, strict=True)
        )
    return None
