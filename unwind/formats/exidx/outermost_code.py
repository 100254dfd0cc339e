"""Code without a caller although its table says "cannot unwind": the start of a process and of its threads.

    the entry point         the first ENTRY_POINT_SIZE bytes from e_entry, if they begin as _start does: a shared
                            library's entry point may be any function
    clone, __clone          its call of the thread's function and the code after it (before, it still has its caller)

The C libraries mark both CANTUNWIND, like much code that merely lacks a table. Only at these two is the stack complete.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile

ENTRY_POINT_SIZE = 48
"""Size in bytes of the entry code of an ARM program. glibc's _start has 44 bytes on A32 and T32, without its
literals.
"""
ENTRY_CODE = tuple(
    bytes.fromhex(code)
    for code in (
        "4ff0000b4ff0000e",  # T32 mov fp, #0; mov lr, #0 (glibc, musl)
        "00b0a0e300e0a0e3",  # A32, the same
        "6846",  # T32 mov r0, sp (the dynamic linker)
        "0d00a0e1",  # A32, the same
    )
)
THREAD_STARTS = (b"clone", b"__clone")
MAX_CLONE = 128
AFTER_CALL = 12
"""Size in bytes of the ARM code that ends a thread: it passes the exit status to a system call."""


def find_roots(file: ObjectFile, arch: Arch) -> list[tuple[int, int]]:
    """Return the sorted (start, end) ranges of file addresses of ARM code without a caller: the start of a process and
    of its threads.

    If the symbol table is broken, the starts of threads are missing.
    """
    found = set()
    entry = file.entry & arch.pc_mask
    if bytes(file.at_svma(entry, 8)).startswith(ENTRY_CODE):
        found.add((entry, entry + ENTRY_POINT_SIZE))
    try:
        functions = _symbols(file)
    except FormatError:
        functions = []
    for value in functions:
        start = value & arch.pc_mask
        call = _thread_call(bytes(file.at_svma(start, MAX_CLONE)), thumb=bool(value & 1))
        if call is not None:
            found.add((start + call[0], start + call[1] + AFTER_CALL))
    return sorted(found)


def _thread_call(code: bytes, thumb: bool) -> tuple[int, int] | None:
    """Return the (start, end) offsets of the first call through a register after the first system call in ARM code, or
    None.
    """
    step, called = (2 if thumb else 4), False
    for at in range(0, len(code) - step + 1, step):
        word = int.from_bytes(code[at : at + step], "little")
        called = called or (word == 0xDF00 if thumb else word >> 24 == 0xEF)
        if called and (word & 0xFF87 == 0x4780 if thumb else word & 0xFFFF_FFF0 == 0xE12F_FF30):
            return at, at + step
    return None


def _symbols(file: ObjectFile) -> list[int]:
    """Return the values of the symbols in THREAD_STARTS of a 32-bit ELF file. Bit 0 of a value marks Thumb code.

    Raises:
        FormatError: A symbol table is broken.
    """
    found: set[int] = set()
    for table, strings in ((".dynsym", ".dynstr"), (".symtab", ".strtab")):
        symbols, names = file.section(table), file.section(strings)
        if symbols is None or names is None:
            continue
        text = bytes(names)
        name = np.frombuffer(symbols[: len(symbols) & ~15], f"{file.order}u4")[0::4]
        for wanted in THREAD_STARTS:
            at = text.find(b"\0" + wanted + b"\0")
            # Linkers let names share their ends: "clone" may be the end of "__clone".
            tail = text.find(wanted + b"\0")
            for place in {at + 1 if at >= 0 else -1, tail} - {-1}:
                for row in np.flatnonzero(name == place)[:4].tolist():
                    (value,) = struct.unpack_from(file.order + "I", symbols, 16 * row + 4)
                    if value:
                        found.add(value)
        if found:
            break
    return sorted(found)
