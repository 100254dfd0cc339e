"""Where the running kernel has a field of a structure, by its own type information (/sys/kernel/btf/vmlinux).

Only what is asked for is looked at: the 5 MB are searched for the structure's name, not parsed.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.errors import FormatError

_PATH = "/sys/kernel/btf/vmlinux"
_STRUCT = 4
_MAGIC = 0xEB9F


def member_offset(structure: str, member: str, data: bytes | None = None) -> int:
    """Bytes from the start of the structure. data: the type information, else that of the running kernel. Raises
    OSError, FormatError.
    """
    if data is None:
        with open(_PATH, "rb") as file:
            data = file.read()
    if len(data) < 24 or struct.unpack_from("<H", data)[0] != _MAGIC:
        raise FormatError("BTF", 0, "another magic number")
    head, types, types_size, strings, strings_size = struct.unpack_from("<5I", data, 4)
    if max(head + types + types_size // 4 * 4, head + strings + strings_size) > len(data):
        raise FormatError("BTF", head, "past the end")
    text = data[head + strings : head + strings + strings_size]
    words = np.frombuffer(data[head + types : head + types + types_size // 4 * 4], "<u4")
    wanted, field = (text.find(f"\0{name}\0".encode()) + 1 for name in (structure, member))
    for at in np.flatnonzero(words[:-2] == wanted).tolist():
        info = int(words[at + 1])
        count = info & 0xFFFF
        if info >> 24 & 0x1F != _STRUCT or at + 3 + 3 * count > len(words):
            continue
        members = words[at + 3 : at + 3 + 3 * count].reshape(count, 3)
        found = np.flatnonzero(members[:, 0] == field)
        if len(found):
            bits = int(members[found[0], 2])
            return (bits & 0xFFFFFF if info >> 31 else bits) // 8
    raise FormatError("BTF", head, f"no {structure}.{member}")
