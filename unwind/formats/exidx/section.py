"""The ARM exception index as an unwind source.

Its rules hold at call sites only (ehabi32: tables serve exceptions, not prologues). So .debug_frame is used first for a
pc that is not a return address, and prologues and epilogues get their rows from the code (prologue_rows.py). A function
that cannot be unwound (CANTUNWIND, "refuse to unwind") counts as not covered, because another source, or the link
register of an innermost frame, may still find its caller. The start of a process and of its threads is different: it
has no caller.

Code without a caller although its table says "cannot unwind": the start of a process and of its threads.

    the entry point         the first ENTRY_POINT_SIZE bytes from e_entry, if they begin as _start does: a shared
                            library's entry point may be any function
    clone, __clone          its call of the thread's function and the code after it (before, it still has its caller)

The C libraries mark both CANTUNWIND, like much code that merely lacks a table. Only at these two is the stack complete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.model.walk import Trust
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.formats.exidx.index import SECTION, TABLE, Entry, ExidxIndex, Model, read_entries
from pyprof.unwind.formats.exidx.opcodes import decode_opcodes
from pyprof.unwind.formats.exidx.prologue_rows import RowReader
from pyprof.unwind.formats.exidx.rules import compile_rule
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, Rule

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


EVERYTHING = Segment(0, 0, 1 << 32, 1 << 32, executable=True, writable=False)


class Exidx:
    """An unwind source from the exception index (.ARM.exidx) of one ELF file.

    Attributes:
        index: Entries of the index, for inspection.
        exact: False, because its rules hold at call sites only.
    """

    name = "exidx"
    trust = Trust.EXIDX
    exact = False

    def __init__(self, index: ExidxIndex, arch: Arch, roots: list[tuple[int, int]], diagnostics: Diagnostics) -> None:
        """Create an unwind source from an .ARM.exidx section.

        Args:
            index: The index.
            arch: The architecture.
            roots: (start, end) ranges of file addresses of code without a caller.
            diagnostics: Counters of the recording.
        """
        self.index = index
        self._arch = arch
        self._roots = roots
        self._rows_in_code = RowReader(arch, index.code)
        self._outermost = Rule(arch.sp, 0, UNDEFINED)
        self._diagnostics = diagnostics
        self._rules: dict[bytes, Rule | None] = {}

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the unwind rows of the function that covers a file address, by .ARM.exidx.

        Returns:
            None if no entry covers the address, or if the entry says that its function cannot be unwound.

        Raises:
            FormatError: The entry is broken.
        """
        position = self.index.find(svma)
        if position < 0:
            return None
        entry = self.index.entry(position)
        return self._rows(entry) or self._root_rows(entry, svma)

    def extents(self) -> Extents:
        return self.index.extents()

    def functions(self) -> Iterator[FunctionRows]:
        """Yield all functions with an unwind rule in .ARM.exidx, ascending. A broken entry is counted and left out."""
        for entry in read_entries(self.index):
            try:
                rows = self._rows(entry) if isinstance(entry, Entry) else None
            except FormatError as error:
                rows, entry = None, error
            if isinstance(entry, FormatError):
                self._diagnostics.count("exidx_entry_broken")
            if rows is not None:
                yield rows

    def _rows(self, entry: Entry) -> FunctionRows | None:
        rule = self._rule(entry)
        if rule is None:
            return None
        starts, rules = self._rows_in_code.rows(rule, entry.start, entry.end)
        return FunctionRows(entry.start, entry.end, starts, rules)

    def _rule(self, entry: Entry) -> Rule | None:
        if entry.model is Model.CANT_UNWIND:
            return None
        if entry.code not in self._rules:
            section, at = (SECTION, entry.start) if entry.table < 0 else (TABLE, entry.table)
            opcodes = decode_opcodes(entry.code, section, at)
            self._rules[entry.code] = compile_rule(opcodes, self._arch, section, at)
        return self._rules[entry.code]

    def _root_rows(self, entry: Entry, svma: int) -> FunctionRows | None:
        for start, end in self._roots:
            if start <= svma < end:
                start, end = max(start, entry.start), min(end, entry.end)
                return FunctionRows(start, end, (start,), (self._outermost,))
        return None


def open_exidx(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> Exidx | None:
    """Return the .ARM.exidx of a file, or None if it has none.

    Raises:
        FormatError: The index as a whole is broken.
    """
    table = file.unwind_table(SECTION)
    if table is None or arch.word != 4 or arch.lr < 0:
        return None
    index = ExidxIndex(file, table.svma, table.read())
    for oddity in index.oddities:
        diagnostics.count(oddity)
    return Exidx(index, arch, find_roots(file, arch), diagnostics)


class MemoryFile:
    """An .ARM.exidx in the target's memory (implements IndexedFile)."""

    def __init__(self, read: ReadMemory, order: str) -> None:
        self._read = read
        self.order = order
        self.loads = (EVERYTHING,)

    def at_svma(self, svma: int, size: int) -> memoryview:
        return memoryview(self._read(svma, size))


def open_memory_exidx(
    address: int, data: bytes, read: ReadMemory, arch: Arch, diagnostics: Diagnostics
) -> Exidx | None:
    """Return the .ARM.exidx at an address in the process, or None if the architecture has no such index.

    Raises:
        FormatError: The index is invalid.
    """
    if arch.word != 4 or arch.lr < 0:
        return None
    index = ExidxIndex(MemoryFile(read, "<" if arch.byteorder == "little" else ">"), address, data)
    for oddity in index.oddities:
        diagnostics.count(oddity)
    return Exidx(index, arch, [], diagnostics)
