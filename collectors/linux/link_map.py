"""The dynamic loader's list of loaded objects (struct r_debug, struct link_map in <link.h>), read from memory.

The length of the list is bounded, because the target controls it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from pyprof.model.modules import ReadMemory
from pyprof.objfile.mapped_file import DT_DEBUG, MAX_TABLE, read_dynamic_entries
from pyprof.records import dataclass

MAX_OBJECTS = 1 << 14
MAX_NAMESPACES = 64
MAX_NAME = 4096


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """An object that the dynamic loader has loaded.

    Attributes:
        bias: Difference avma - svma.
        name: Its path as the loader names it, "" for the program.
        dynamic: Address (avma) of its dynamic table.
    """

    bias: int
    name: str
    dynamic: int


def find_debug_address(read: ReadMemory, dynamic: int, size: int, elf_class: int, order: str) -> int:
    """Return DT_DEBUG of a program's dynamic table in memory, which is the avma of r_debug; 0 if it is not set yet."""
    for tag, value in read_dynamic_entries(read(dynamic, min(size, MAX_TABLE)), elf_class, order):
        if tag == DT_DEBUG:
            return value
    return 0


def read_linked_objects(read: ReadMemory, r_debug: int, elf_class: int, order: str) -> Iterator[LinkedObject]:
    """Yield all loaded objects of all link-map namespaces, in the loader's order, up to the first link that cannot be
    read.
    """
    word = elf_class // 8
    fields = struct.Struct(order + ("QQQQ" if word == 8 else "IIII"))
    one = struct.Struct(order + ("Q" if word == 8 else "I"))
    seen: set[int] = set()
    for _ in range(MAX_NAMESPACES):
        head = read(r_debug, 6 * word)  # version, r_map, r_brk, r_state, r_ldbase, r_next (version 2)
        if len(head) < 2 * word:
            return
        (version,) = struct.unpack_from(order + "i", head)
        (link,) = one.unpack_from(head, word)
        while link and link not in seen and len(seen) < MAX_OBJECTS:
            seen.add(link)
            data = read(link, fields.size)
            if len(data) < fields.size:
                break
            bias, name, dynamic, following = fields.unpack(data)
            yield LinkedObject(bias, read_string(read, name), dynamic)
            link = following
        r_debug = one.unpack_from(head, 5 * word)[0] if version >= 2 and len(head) == 6 * word else 0
        if not r_debug:
            return


def read_string(read: ReadMemory, avma: int) -> str:
    """Return the text at avma up to its NUL, or "" if there is none within MAX_NAME bytes."""
    data = read(avma, MAX_NAME) if avma else b""
    text, end, _ = data.partition(b"\0")
    return os.fsdecode(text) if end else ""
