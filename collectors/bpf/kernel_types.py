"""Offsets of fields in the running kernel's structures, from the kernel's type information (/sys/kernel/btf/vmlinux).

The 5 MB are searched for the structure's name and not parsed.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError

_PATH = "/sys/kernel/btf/vmlinux"
_STRUCT = 4
_MAGIC = 0xEB9F
_MAX_MEMBERS = 1000

U32 = npt.NDArray[np.uint32]


def read_kernel_types() -> bytes:
    """Return the running kernel's BTF type information.

    Raises:
        OSError: The type information cannot be read.
    """
    with open(_PATH, "rb") as file:
        return file.read()


def find_member_offset(data: bytes, structure: str, member: str) -> int:
    """Return the offset of a member in a structure or in an anonymous structure inside it, in bytes.

    Args:
        data: The kernel's BTF type information.
        structure: Name of the structure.
        member: Name of the member.

    Raises:
        FormatError: There is no such member, or the data is not valid.
    """
    if len(data) < 24 or struct.unpack_from("<H", data)[0] != _MAGIC:
        raise FormatError("BTF", 0, "another magic number")
    head, types, types_size, strings, strings_size = struct.unpack_from("<5I", data, 4)
    if max(head + types + types_size // 4 * 4, head + strings + strings_size) > len(data):
        raise FormatError("BTF", head, "past the end")
    begin, end = head + strings, head + strings + strings_size
    words = np.frombuffer(data, "<u4", types_size // 4, head + types)  # no copies: the kernel has megabytes of both
    found = (data.find(f"\0{name}\0".encode(), begin, end) for name in (structure, member))
    wanted, field = (max(at + 1 - begin, 0) for at in found)
    for at in np.flatnonzero(words[:-2] == wanted).tolist():
        members = _members(words, at)
        if field in members:
            return members[field]
        inner = _around(words, field) if 0 in members else None
        if inner is not None and words[inner + 2] <= words[at + 2]:
            return members[0] + _members(words, inner)[field]
    raise FormatError("BTF", head, f"no {structure}.{member}")


def _members(words: U32, at: int) -> dict[int, int]:
    """Return {name: offset in bytes} of the members of the BTF structure at a word index, or {} if it is no
    structure.
    """
    count, kind, has_bits = int(words[at + 1]) & 0xFFFF, words[at + 1] >> 24 & 0x1F, words[at + 1] >> 31
    if kind != _STRUCT or at + 3 + 3 * count > len(words):
        return {}
    rows = words[at + 3 : at + 3 + 3 * count].reshape(count, 3).tolist()
    return {name: (bits & 0xFFFFFF if has_bits else bits) // 8 for name, _, bits in reversed(rows)}


def _around(words: U32, field: int) -> int | None:
    """Return the start of the anonymous structure that contains a member, in the BTF type information."""
    for found in np.flatnonzero(words == field).tolist():
        for place, at in enumerate(range(found - 3, max(found - 3 * _MAX_MEMBERS, -1), -3)):
            head = int(words[at + 1])
            if words[at] == 0 and head >> 24 & 0x1F == _STRUCT and head & 0xFFFF > place:
                return at
    return None
