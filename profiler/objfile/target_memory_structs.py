"""Structures in a target's memory, read with checks, and the dynamic loader's list of objects.

Every read may fail, and every number may be wrong. The loader's list (struct r_debug, struct link_map in <link.h>) has
a bounded length, because the target controls it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import ReadMemory
from pyprof.model.arch import Arch
from pyprof.objfile.mapped_file_search import DT_DEBUG, MAX_TABLE, read_dynamic_entries

_CHUNK = 1 << 16
MAX_TEXT = 1 << 12


@dataclass
class TargetStructs:
    """A reader of structures in a target's memory.

    Attributes:
        read: Function that reads the memory.
        arch: The architecture.
        name: Name of the structures in messages.
        budget: Number of bytes that may still be read.
        order: Byte order in the notation of struct.
        word: Size of an address in bytes.
    """

    read: ReadMemory
    arch: Arch
    name: str
    budget: int
    order: str = field(init=False)
    word: int = field(init=False)

    def __post_init__(self) -> None:
        self.order = "<" if self.arch.byteorder == "little" else ">"
        self.word = self.arch.word

    def layout(self, fields: str) -> struct.Struct:
        """Return the struct layout of a structure in the target, from a format in which "P" is an address-sized word.
        The format must contain the padding.
        """
        return struct.Struct(self.order + fields.replace("P", "Q" if self.word == 8 else "I"))

    def read_exactly(self, avma: int, size: int) -> bytes:
        """Return exactly `size` bytes of the target's memory.

        Raises:
            FormatError: The bytes are not readable or exceed the budget. The error's offset is the address.
        """
        if not 0 <= avma <= self.arch.mask - size:
            raise FormatError(self.name, avma, f"points to {size} bytes at {avma:#x}")
        if size > self.budget:
            raise FormatError(self.name, avma, f"{size} bytes are more than is read of all together")
        data = bytearray()
        while len(data) < size:
            chunk = self.read(avma + len(data), min(size - len(data), _CHUNK))
            if not chunk:
                raise FormatError(self.name, avma, f"{size} bytes are not readable")
            data += chunk
        self.budget -= size
        return bytes(data)

    def read_available(self, avma: int, size: int) -> bytes:
        """Return the readable part of `size` bytes at an address of the target.

        The target may have chosen any address: the result is b"" if it is invalid.
        """
        return self.read(avma, size) if 0 <= avma <= self.arch.mask - size else b""

    def unpack(self, avma: int, layout: struct.Struct) -> tuple[int, ...]:
        """Unpack a structure in the target's memory.

        Raises:
            FormatError: The structure is not readable.
        """
        return layout.unpack(self.read_exactly(avma, layout.size))

    def read_c_string(self, avma: int) -> str:
        """Return the NUL-terminated string at an address of the target, "" if there is none.

        Unreadable text is no error, because it only costs a name.
        """
        found = bytearray()
        while avma and len(found) < MAX_TEXT and b"\0" not in found:
            chunk = self.read_available(avma + len(found), 256 - (avma + len(found)) % 256)
            if not chunk:
                break
            found += chunk
        return bytes(found[:MAX_TEXT]).partition(b"\0")[0].decode("utf-8", "backslashreplace")


MAX_OBJECTS = 1 << 14
MAX_NAMESPACES = 64
MAX_NAME = 4096


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """An object that the dynamic loader has loaded.

    Attributes:
        bias: Difference avma - svma.
        name: Path of the object as the loader names it, "" for the program.
        dynamic: Address (avma) of the object's dynamic table.
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
