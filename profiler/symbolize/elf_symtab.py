"""Symbol tables of ELF files as columns: .symtab, .dynsym, .gnu_debugdata, a separate debug file.

Source: gABI "Symbol Table". The preference among the names of one address is that of perf's choose_best_symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.elf.named_symbols import symbol_layout
from pyprof.symbolize.plt import read_plt_symbols
from pyprof.symbolize.symbol_table import SymbolRows

MAX_SYMBOLS = 1 << 23
STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 0, 1, 2, 10
DEBUG_FILE = "debug file"
"""Name of the separate debug file in SymbolSources.names."""
SHN_UNDEF, SHN_LORESERVE, SHN_XINDEX = 0, 0xFF00, 0xFFFF


def read_symbol_rows(file: ObjectFile, table: str, strings: str, shift: int = 0) -> SymbolRows | None:
    """Return the functions of one ELF symbol table, or None if it is absent.

    Args:
        file: The file.
        table: Name of the section with the symbols.
        strings: Name of the section with the strings.
        shift: Number to add to addresses.

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
    """Return the end of the executable section that contains each symbol's address, of shape (n,) uint64; 0 if it is
    not code.
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
