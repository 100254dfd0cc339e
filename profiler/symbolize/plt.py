"""Names of the entries of procedure linkage tables: "malloc@plt".

An entry jumps to the address in a GOT slot (PltCode). The relocation of that slot names the function. Only 64-bit files
are supported.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch_parts import PltCode
from pyprof.objfile.base import ObjectFile
from pyprof.symbolize.symbol_table import SymbolRows

MAX_ENTRIES = 1 << 16


def read_plt_symbols(file: ObjectFile) -> SymbolRows | None:
    """Return one symbol for each PLT entry of a file, or None if there are none or the architecture is not supported.

    Raises:
        FormatError: A section is broken.
    """
    plt = file.arch.calls.plt if file.arch is not None else None
    if plt is None or not any(name in file.sections for name in plt.steps):
        return None
    slots, numbered = _slots(file, plt)
    starts, sizes, at, strings = [], [], [], bytearray()
    for name, step in plt.steps.items():
        section = file.sections.get(name)
        code = file.section(name)
        if section is None or code is None:
            continue
        if section.entsize in (8, 16):
            step = section.entsize
        for offset in range(0, min(len(code), MAX_ENTRIES * step), step):
            target = _target(plt, bytes(code[offset : offset + 16]), section.addr + offset, slots, numbered)
            if name == ".plt" and offset == 0 and target is None:
                target = b".plt"  # the entry that calls the resolver
            if target is not None:
                starts.append(section.addr + offset & 2**64 - 1)
                sizes.append(step)
                at.append(len(strings))
                strings += target + (b"\0" if target == b".plt" else b"@plt\0")
    if not starts:
        return None
    start = np.array(starts, np.uint64)
    size = np.array(sizes, np.uint64)
    rank = np.zeros(len(starts), np.int64)
    return SymbolRows(start, size, start + size, rank, np.array(at, np.int64), memoryview(bytes(strings)))


def _target(plt: PltCode, code: bytes, svma: int, slots: dict[int, bytes], numbered: list[bytes]) -> bytes | None:
    kind, value = plt.target(code, svma) or ("", 0)
    if kind == "number":
        return numbered[value] if value < len(numbered) else None
    return slots.get(value) if kind else None


def _slots(file: ObjectFile, plt: PltCode) -> tuple[dict[int, bytes], list[bytes]]:
    """Return the functions that PLT entries call: names by the address of their slot, and by the number of their
    relocation in .rela.plt.
    """
    slots: dict[int, bytes] = {}
    numbered: list[bytes] = []
    symbols, strings = file.section(".dynsym"), file.section(".dynstr")
    for name in (".rela.dyn", ".rela.plt"):
        if name not in file.sections:
            continue
        data = file.section(name) or memoryview(b"")
        relocations = np.frombuffer(data, "<u8", len(data) // 24 * 3).reshape(-1, 3)
        kinds = relocations[:, 1] & np.uint64(0xFFFFFFFF)
        wanted = relocations[(kinds == plt.jump_slot) | (kinds == plt.glob_dat) | (kinds == plt.irelative)]
        for slot, info, addend in wanted[:MAX_ENTRIES].tolist():
            target = b"*%#x" % addend if info & 0xFFFFFFFF == plt.irelative else _name(symbols, strings, info >> 32)
            if target:
                slots[slot] = target
            if name == ".rela.plt":
                numbered.append(target)
    return slots, numbered


def _name(symbols: memoryview | None, strings: memoryview | None, index: int) -> bytes:
    if symbols is None or strings is None:
        return b""
    if 24 * index + 24 > len(symbols):
        raise FormatError(".rela.plt", 0, f"symbol {index} does not exist")
    at = struct.unpack_from("<I", symbols, 24 * index)[0]
    return bytes(strings[at : at + 4096]).split(b"\0")[0]
