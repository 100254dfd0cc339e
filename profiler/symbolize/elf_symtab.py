"""Symbol tables of ELF files as columns: .symtab, .dynsym, .gnu_debugdata, a separate debug file.

Source: gABI "Symbol Table". The preference among the names of one address is that of perf's choose_best_symbol.

Entries of procedure linkage tables (PLT) get names such as "malloc@plt". An entry jumps to the address in a GOT slot
(PltCode). The relocation of that slot names the function. This works only for 64-bit files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch.definition import PltCode
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.elf_file import symbol_layout
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
    """Return the names of the functions that PLT entries call: by the address of the GOT slot, and by the number of the
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


MAX_SYMBOLS = 1 << 23
STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 0, 1, 2, 10
DEBUG_FILE = "debug file"
"""Text in SymbolSources.names that stands for a separate debug file."""
SHN_UNDEF, SHN_LORESERVE, SHN_XINDEX = 0, 0xFF00, 0xFFFF


def read_symbol_rows(file: ObjectFile, table: str, strings: str, shift: int = 0) -> SymbolRows | None:
    """Return the functions of one ELF symbol table, or None if it is absent.

    Args:
        file: The file.
        table: Name of the section with the symbols.
        strings: Name of the section with the strings.
        shift: Number that is added to the addresses.

    Raises:
        FormatError: The table is broken.
    """
    data, names = file.section(table), file.section(strings)
    if data is None or names is None:
        return None
    if table == ".symtab":
        file.forget(table)  # no other reader needs it
    layout = symbol_layout(file)
    count = len(data) // layout.itemsize
    if count > MAX_SYMBOLS:
        raise FormatError(table, 0, f"{count} symbols")
    symbols = np.frombuffer(data, layout, count)
    kind = symbols["info"] & 15
    wanted = ((kind == STT_FUNC) | (kind == STT_GNU_IFUNC) | (kind == STT_NOTYPE)) & (symbols["shndx"] != SHN_UNDEF)
    symbols = symbols[wanted & (symbols["name"] < len(names))]
    limit = _code_limits(file, symbols["shndx"], symbols["value"].astype(np.uint64))
    text = np.frombuffer(names, np.uint8)
    at = symbols["name"].astype(np.int64)
    first, second = text[at], text[np.minimum(at + 1, len(text) - 1)]
    # Leave out mapping symbols of ARM and RISC-V ($x, $d) and compiler labels (.L).
    good = (
        (limit > symbols["value"]) & (first != 0) & (first != ord("$")) & ~((first == ord(".")) & (second == ord("L")))
    )
    symbols, limit, at = symbols[good], limit[good], at[good]
    start = symbols["value"].astype(np.uint64)
    if file.arch is not None:
        start &= np.uint64(file.arch.pc_mask)  # ARM: the lowest bit marks Thumb code
    with np.errstate(over="ignore"):
        start = start + np.uint64(shift & 2**64 - 1)
        limit = limit + np.uint64(shift & 2**64 - 1)
    return SymbolRows(start, symbols["size"].astype(np.uint64), limit, _rank(symbols["info"], at, text), at, names)


class SymbolSources(NamedTuple):
    """The symbol tables of an ELF file and of its debug file.

    Attributes:
        rows: The symbols of each table that was found.
        names: Description of each table, for users.
        complete: True if functions that are not exported have names too.
        broken: Errors of tables that could not be read.
    """

    rows: list[SymbolRows]
    names: list[str]
    complete: bool
    broken: list[FormatError]


def read_symbol_sources(file: ObjectFile, debug: Callable[[], ObjectFile | None]) -> SymbolSources:
    """Return all symbols in the tables of an ELF file, and for a stripped file those in other places. Never raises.

    Args:
        file: The file.
        debug: Finds the separate debug file. It is called only if the file is stripped.
    """
    rows: list[SymbolRows] = []
    names: list[str] = []
    broken: list[FormatError] = []

    def add(name: str, read: Callable[[], SymbolRows | None]) -> bool:
        try:
            found = read()
        except FormatError as error:
            broken.append(error)
            return False
        if found is None or not len(found.start):
            return False
        rows.append(found)
        names.append(name)
        return True

    def elsewhere(other: ObjectFile | None) -> SymbolRows | None:
        return read_symbol_rows(other, ".symtab", ".strtab", file.min_vaddr - other.min_vaddr) if other else None

    complete = add(".symtab", lambda: read_symbol_rows(file, ".symtab", ".strtab"))
    add(".dynsym", lambda: read_symbol_rows(file, ".dynsym", ".dynstr"))
    add("plt", lambda: read_plt_symbols(file))
    if not complete:
        complete = add(DEBUG_FILE, lambda: elsewhere(debug()))
    if not complete:
        complete = add(".gnu_debugdata", lambda: elsewhere(file.embedded()))
    return SymbolSources(rows, names, complete, broken)


def _code_limits(file: ObjectFile, shndx: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return for each symbol the end of the executable section that contains its address, of shape (n,) uint64. It is 0
    for a symbol that is not in code.
    """
    limit = np.zeros(len(value), np.uint64)
    sections = file.section_list
    mask = (1 << 8 * file.address_size) - 1
    if sections:
        start = np.array([s.addr for s in sections], np.uint64)
        code = [min(s.addr + s.size, mask) if s.executable else 0 for s in sections]
        ends = np.array(code, np.uint64)
        known = np.flatnonzero(shndx < min(len(sections), SHN_LORESERVE))
        index = shndx[known]
        limit[known] = np.where(value[known] >= start[index], ends[index], 0)
        open_ = shndx == SHN_XINDEX
    else:
        open_ = shndx < SHN_LORESERVE
    for load in file.loads:
        if load.executable:
            inside = open_ & (value >= load.vaddr) & (value < min(load.vaddr + load.memsz, mask))
            limit[inside] = min(load.vaddr + load.memsz, mask)
    return limit


def _rank(info: np.ndarray, at: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Return the rank of each symbol as the name of its address, of shape (n,) int64; lower is better.

    The order is: global before weak before local, function before label, fewer underscores, shorter.
    """
    binding = np.full(256, 2, np.int64)
    binding[[STB_GLOBAL, STB_GNU_UNIQUE]] = 0
    binding[STB_WEAK] = 1
    rank = binding[info >> 4] << 1 | ((info & 15) == STT_NOTYPE)
    underscores = np.zeros(len(at), np.int64)
    going = np.ones(len(at), np.bool_)
    for step in range(4):
        going = going & (text[np.minimum(at + step, len(text) - 1)] == ord("_"))
        underscores += going
    zeros = np.append(np.flatnonzero(text == 0), len(text))
    length = zeros[np.searchsorted(zeros, at)] - at
    ranked: np.ndarray = (rank << 3 | underscores) << 32 | length
    return ranked
