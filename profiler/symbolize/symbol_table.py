"""A symbol table in columns, for lookups of the function at an address, and names for code without a symbol.

SymbolTable takes rows from symbol tables (elf_symtab.py). It is sorted, with one row for each address range.

A name for code without a symbol consists of the module, and the start of the function (after `!`) or the address itself
(after `+`). It is valid for one file only. If several files of a profile have the same name, the build ID or the inode
is added: `libssl.so.3[1f2e3d4c]!0x3b40`. Code that no file contains and no source describes counts as one function of
its program, because nothing says where its functions begin: `[JIT code of node]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

MAX_UNSIZED = 1 << 16
"""Maximum number of bytes that a symbol without a size covers. Functions in assembler, which may lack a size, are
shorter.
"""

MAX_NESTED = 1000
MAX_NESTING_ROWS = 1 << 18
"""Maximum number of symbols whose overlap with earlier symbols is examined. Real files have hundreds."""


@dataclass(frozen=True)
class SymbolRows:
    """The n symbols of one symbol table, in columns.

    Attributes:
        start: (n,) uint64, address in the file (svma).
        size: (n,) uint64, size in bytes, 0 if it is not stated.
        limit: (n,) uint64, the latest end of a symbol without a size (the end of its section).
        rank: (n,) int64; of several names of one address, the one with the lowest rank is used.
        name: (n,) int64, offset of the NUL-terminated name in strings.
        strings: The strings.
    """

    start: U64
    size: U64
    limit: U64
    rank: I64
    name: I64
    strings: memoryview


class SymbolTable:
    """A symbol table: address ranges with names. The innermost range that covers an address names it."""

    def __init__(self, tables: Sequence[SymbolRows]) -> None:
        self._strings = [rows.strings for rows in tables]
        start = _u64([rows.start for rows in tables])
        size = _u64([rows.size for rows in tables])
        limit = _u64([rows.limit for rows in tables])
        rank = _i64([rows.rank for rows in tables])
        name = _i64([rows.name for rows in tables])
        table = np.repeat(np.arange(len(tables)), [len(rows.start) for rows in tables])
        order = np.lexsort((name, table, rank, size == 0, start))
        start = start[order]
        first = np.ones(len(start), np.bool_)
        first[1:] = start[1:] != start[:-1]
        order, start = order[first], start[first]
        size, limit = size[order], limit[order]
        with np.errstate(over="ignore"):
            end = start + size
        end[end < start] = start[end < start]
        inside = np.zeros(len(start), np.bool_)
        if len(start) > 1:
            inside[1:] = np.maximum.accumulate(end)[:-1] > start[1:]
        keep = (size != 0) | ~inside  # a label inside a function is not a function
        start, end, size, limit, order = start[keep], end[keep], size[keep], limit[keep], order[keep]
        unsized = np.flatnonzero(size == 0)
        following = np.append(start[1:], np.uint64(2**64 - 1))
        far = start[unsized] + np.uint64(MAX_UNSIZED)
        far[far < start[unsized]] = np.uint64(2**64 - 1)
        end[unsized] = np.minimum(np.minimum(following[unsized], limit[unsized]), far)
        self.start: U64 = start
        self.end: U64 = end
        self._name = name[order]
        self._table = table[order]
        self._parent = _parents(start, end)

    def __len__(self) -> int:
        return len(self.start)

    def find(self, svmas: U64) -> I64:
        """Return the row of the symbol table that covers each address, of shape (n,), -1 if none does."""
        if not len(self.start):
            return np.full(len(svmas), -1, np.int64)
        row = np.searchsorted(self.start, svmas, "right").astype(np.int64) - 1
        for _ in range(MAX_NESTED):
            past = (row >= 0) & (svmas >= self.end[row])
            if not past.any():
                return row
            row[past] = self._parent[row[past]]
        row[(row >= 0) & (svmas >= self.end[row])] = -1
        return row

    def name(self, row: int) -> str:
        """Return the symbol name in a row of the table. Bytes that are not UTF-8 are escaped."""
        strings = self._strings[self._table[row]]
        at = int(self._name[row])
        size = 256
        while True:
            text = bytes(strings[at : at + size])
            end = text.find(b"\0")
            if end >= 0 or at + size >= len(strings):
                return text[: end if end >= 0 else None].decode("utf-8", "backslashreplace")
            size *= 4


def _u64(columns: Sequence[U64]) -> U64:
    return np.concatenate(columns) if columns else np.zeros(0, np.uint64)


def _i64(columns: Sequence[I64]) -> I64:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def _parents(start: U64, end: U64) -> I64:
    """Return for each address range the nearest earlier one that reaches past its start, of shape (n,), -1 if none
    does.
    """
    parent = np.full(len(start), -1, np.int64)
    if len(start) < 2:
        return parent
    reach = np.maximum.accumulate(end)
    nested = np.flatnonzero(reach[:-1] > start[1:]) + 1
    for row in nested[:MAX_NESTING_ROWS].tolist():
        outer = row - 1
        at = int(start[row])
        while outer >= 0 and int(end[outer]) <= at:
            outer = int(parent[outer])
        parent[row] = outer
    return parent


_SHOWN = 8
"""Number of digits of a build ID that are shown in the name of code without a symbol."""

MADE = "[JIT code"
_NAME_IT = {
    "node": "node --perf-basic-prof …",
    "chrom": "chromium --js-flags=--perf-basic-prof --no-sandbox …",
    "python": "python3 -X perf …",
    "java": "java -XX:+PreserveFramePointer … and jcmd PID Compiler.perfmap",
}
"""Commands that make a program describe its JIT code, by prefix of the program's name."""
_CANNOT = ("luajit",)
"""Prefixes of the names of programs that have no option to describe their JIT code."""

_MADE_IN = ("/memfd:", "/dev/zero", "/anon_hugepage")
"""Prefixes of the names of mappings that have an inode but no real file. Code in them was generated at run time."""


class Labels:
    """Texts that name modules in the names of code without a symbol, such as "libssl.so.3[1f2e3d4c]"."""

    def __init__(self, modules: Iterable[tuple[Module, str]]) -> None:
        """Create labels for code without symbols, from (module, build ID) of all modules."""
        self._files: dict[str, set[object]] = {}
        for module, build_id in modules:
            self._files.setdefault(module.name, set()).add(_file(module, build_id))

    def module_label(self, module: Module, build_id: str) -> str:
        if not module.has_file or len(self._files.get(module.name, ())) < 2:
            return module.name
        return f"{module.name}[{build_id[:_SHOWN] or f'inode {module.inode}'}]"


def _file(module: Module, build_id: str) -> object:
    return build_id or (module.dev, module.inode, module.path)


def name_by_start(label: str, start_rel: int) -> str:
    """Return the name of a function of which only the start is known, relative to the module's first loaded byte."""
    return f"{label}!{start_rel:#x}"


def name_runtime_code(space: AddressSpace, module: Module) -> str:
    """Return the name that stands for all code of a module that is in no file, "" for a module with a file.

    If the program named the memory, that name is included: `[JIT code of java: memfd:jit]`.
    """
    path = module.path
    if module.has_file and not path.startswith(_MADE_IN):
        return ""
    if not module.has_file and not path.startswith("[anon"):
        return path
    region = path[1:-1].partition(":")[2] if path.startswith("[") else module.name
    program = _program(space)
    return MADE + (f" of {program}" if program else "") + (f": {region}]" if region else "]")


def naming_command(region: str) -> str:
    """Return the command with which a program must be started so that it describes its JIT code. If the program is
    unknown, all known commands are returned.

    The result is empty if there is none.

    Args:
        region: Name that stands for the program's JIT code.
    """
    program = region.removeprefix(f"{MADE} of ")
    if program.startswith(_CANNOT):
        return ""
    return next((text for name, text in _NAME_IT.items() if program.startswith(name)), ", ".join(_NAME_IT.values()))


def _program(space: AddressSpace) -> str:
    """Return the name of a process's program: the file with the lowest mapping. It is "" if that is a library."""
    name = next((module.name for module in space.modules if module.has_file), "")
    return "" if ".so" in name else name
