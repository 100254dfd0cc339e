"""The functions of WebAssembly code in V8: their numbers, read from the jump table of an instance.

Each frame of WebAssembly holds its instance, which refers to the jump table of its module. The table has a jump to the
current code of each function of the module. Functions that are compiled when they are first called have another entry
each: it pushes the number of the function, which counts the imported ones, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

MAX_TABLE = 1 << 20
"""Maximum number of bytes that are read of a WebAssembly module's jump table."""
MAX_FUNCTION = 1 << 20
"""Maximum distance in bytes from an address back to the start of its WebAssembly function."""
_INSTANCE = 512
"""Number of bytes of an instance in which the address of the jump table is searched."""
_LINE = 64
"""Size in bytes of a line of a WebAssembly jump table, and alignment of its code."""
_PAGE = 4096
_JUMP = 0xE9
_LAZY = re.compile(rb"\x68(....)\xe9....\x68(....)\xe9", re.DOTALL)
"""Pattern of two entries of functions that are not compiled yet: push number; jmp."""
_ENTRY = re.compile(rb"\x55\x48\x89\xe5\x6a\x08", re.DOTALL)
"""Pattern of the first instructions of a WebAssembly function: push %rbp; mov %rsp,%rbp; push the mark of its frame."""

Read = Callable[[int, int], bytes]


def read_wasm_functions(read: Read, instance: int) -> dict[int, int]:
    """Return the numbers of the functions of a WebAssembly instance by the address of their code.

    The numbers are -1 if V8 has compiled all functions at once (Node.js 18): nothing then says how many are imported.

    Args:
        read: Returns readable bytes from an address on, as many as there are.
        instance: Tagged pointer to the instance.
    """
    data = read(instance & ~3, _INSTANCE)
    for word in np.frombuffer(data[: len(data) & ~7], "<u8").tolist():
        if not word or word % _LINE or word >> 47:
            continue
        table = read(word, MAX_TABLE)
        if table[:1] == bytes((_JUMP,)):
            return _parse_table(word, table)
    return {}


def _parse_table(start: int, data: bytes) -> dict[int, int]:
    stride = 8 if data[5:6] != bytes((_JUMP,)) and data[8:9] == bytes((_JUMP,)) else 5
    lines = np.arange(0, len(data) - _LINE + 1, _LINE)[:, None]
    slots = (lines + np.arange(0, _LINE - stride + 1, stride)).ravel()
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets[slots] != _JUMP)
    slots = slots[: int(ends[0]) if len(ends) else len(slots)]
    if not len(slots):
        return {}
    jumps = np.ascontiguousarray(octets[slots[:, None] + np.arange(1, 5)]).view("<i4")[:, 0].astype(np.int64)
    lazy = next(
        (
            struct.unpack("<I", found[1])[0]
            for found in _LAZY.finditer(data, int(slots[-1]) + stride)
            if struct.unpack("<I", found[2])[0] == struct.unpack("<I", found[1])[0] + 1
        ),
        -1,
    )
    targets = (start + slots + 5 + jumps).tolist()
    return {target: lazy + at if lazy >= 0 else -1 for at, target in enumerate(targets)}


def find_wasm_function(read: Read, functions: dict[int, int], pc: int) -> tuple[int, int] | None:
    """Return (start, number) of the WebAssembly function at an address, None if its code is not that of the jump table.

    V8 may have compiled the function again since then. The number is -1 if it is unknown.
    """
    page, base = b"", -1
    for start in range(pc & -_LINE, max(pc - MAX_FUNCTION, 0), -_LINE):
        if start in functions:
            return start, functions[start]
        if start & -_PAGE != base:
            base = start & -_PAGE
            page = read(base, _PAGE)
        if not page or _ENTRY.match(page, start - base):
            return None
    return None
