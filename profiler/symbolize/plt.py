"""Names for the entries of procedure linkage tables: "malloc@plt". x86-64.

An entry is `jmp *slot(%rip)`, after endbr64 and with or without a bnd prefix; the relocation of that slot names the
function. Entries of a lazy .plt beside a .plt.sec only push their relocation's number. Source: x86-64 psABI, 5.2.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.objfile.base import ObjectFile
from pyprof.symbolize.symbols import SymbolRows

R_GLOB_DAT, R_JUMP_SLOT, R_IRELATIVE = 6, 7, 37
MAX_ENTRIES = 1 << 16
ENDBR64, BND = b"\xf3\x0f\x1e\xfa", b"\xf2"
STEPS = {".plt": 16, ".plt.sec": 16, ".plt.bnd": 16, ".plt.got": 8, ".iplt": 16}


def plt_rows(file: ObjectFile) -> SymbolRows | None:
    """One symbol an entry; None where there are none or the architecture is another. Raises FormatError."""
    if file.arch is not X86_64 or not any(name in file.sections for name in STEPS):
        return None
    slots, numbered = _slots(file)
    starts, sizes, at, strings = [], [], [], bytearray()
    for name, step in STEPS.items():
        section = file.sections.get(name)
        code = file.section(name)
        if section is None or code is None:
            continue
        if section.entsize in (8, 16):
            step = section.entsize
        for offset in range(0, min(len(code), MAX_ENTRIES * step), step):
            target = _target(bytes(code[offset : offset + 16]), section.addr + offset, slots, numbered)
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


def _target(code: bytes, svma: int, slots: dict[int, bytes], numbered: list[bytes]) -> bytes | None:
    at = 4 if code.startswith(ENDBR64) else 0
    if code[at : at + 1] == b"\x68" and len(code) >= at + 5:  # push $number; jmp .plt
        number = struct.unpack_from("<I", code, at + 1)[0]
        return numbered[number] if number < len(numbered) else None
    if code[at : at + 1] == BND:
        at += 1
    if code[at : at + 2] != b"\xff\x25" or len(code) < at + 6:
        return None
    return slots.get(svma + at + 6 + struct.unpack_from("<i", code, at + 2)[0])


def _slots(file: ObjectFile) -> tuple[dict[int, bytes], list[bytes]]:
    """Names by address of the slot, and by the number of the relocation in .rela.plt."""
    slots: dict[int, bytes] = {}
    numbered: list[bytes] = []
    symbols, strings = file.section(".dynsym"), file.section(".dynstr")
    for name in (".rela.dyn", ".rela.plt"):
        if name not in file.sections:
            continue
        data = file.section(name) or memoryview(b"")
        relocations = np.frombuffer(data, "<u8", len(data) // 24 * 3).reshape(-1, 3)
        kinds = relocations[:, 1] & np.uint64(0xFFFFFFFF)
        wanted = relocations[(kinds == R_JUMP_SLOT) | (kinds == R_GLOB_DAT) | (kinds == R_IRELATIVE)]
        for slot, info, addend in wanted[:MAX_ENTRIES].tolist():
            target = b"*%#x" % addend if info & 0xFFFFFFFF == R_IRELATIVE else _name(symbols, strings, info >> 32)
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
