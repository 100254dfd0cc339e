"""The ARM exception index (.ARM.exidx, .ARM.extab) as an unwind source.

An entry states the code that it covers, and its unwinding instructions:

    index entry   prel31 of a function's start, then  1: cannot unwind | bit 31: compact entry | prel31 of extab entry
    extab entry   bit 31: compact entry | prel31 of a personality routine, then its data
    compact       bits 24-27: 0: three instruction bytes; 1, 2: bits 16-23 = further words, then two bytes and those
    personality   its data's layout is its own; GCC's and LLVM's __gxx_personality_v0 and __gcc_personality_v0 have
                  bits 24-31 = further words, three bytes and those

Source: ehabi32, "Index table entries", "Exception-handling table entries", "Arm-defined personality routines".

The rules of the index hold at call sites only (ehabi32: tables serve exceptions, not prologues). So .debug_frame is
used first for a pc that is not a return address, and prologues and epilogues get their rows from the code
(exidx_prologue_rows.py). A function that cannot be unwound (CANTUNWIND, "refuse to unwind") counts as not covered,
because another source, or the link register of an innermost frame, may still find its caller. The start of a process
and of its threads is different: it has no caller.

Two kinds of code have no caller, although their table says "cannot unwind":

    the entry point         the first ENTRY_POINT_SIZE bytes from e_entry, if they begin as _start does: a shared
                            library's entry point may be any function
    clone, __clone          its call of the thread's function and the code after it (before, it still has its caller)

The C libraries mark both CANTUNWIND, like much code that merely lacks a table. Only at these two is the stack complete.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import ReadMemory
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.exidx_prologue_rows import RowReader
from pyprof.unwind.formats.exidx_unwind_instructions import compile_rule, decode_opcodes
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, Rule

SECTION, TABLE = ".ARM.exidx", ".ARM.extab"
CANT_UNWIND = 1
MAX_INDEX = 1 << 28
_ADDRESS = 0xFFFF_FFFF


class Model(Enum):
    """The form of an entry of .ARM.exidx: where its unwinding instructions are."""

    CANT_UNWIND = "cannot unwind"
    INLINE = "inline"
    COMPACT = "compact"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of .ARM.exidx.

    Attributes:
        start: First address of its code in the file (svma).
        end: Address after its code.
        model: The place of its instructions.
        code: Its unwinding instructions, most significant byte first.
        personality: Number (compact) or file address (generic) of the personality routine, -1 if there is none.
        table: File address of its .ARM.extab entry, -1 if there is none.
    """

    start: int
    end: int
    model: Model
    code: bytes
    personality: int
    table: int


class IndexedFile(Protocol):
    """The protocol of the file or memory image that contains an ARM exception index."""

    @property
    def order(self) -> str: ...

    @property
    def loads(self) -> Sequence[Segment]: ...

    def at_svma(self, svma: int, size: int) -> memoryview: ...


class ExidxIndex:
    """The .ARM.exidx of one file, sorted by start.

    Attributes:
        starts: File addresses (svma) of the functions, without the Thumb bit.
        oddities: Descriptions of tolerated errors.
    """

    def __init__(self, file: IndexedFile, addr: int, data: bytes | memoryview) -> None:
        """Read an .ARM.exidx section.

        Args:
            file: The file.
            addr: File address (svma) of the index.
            data: Bytes of the section.

        Raises:
            FormatError: The index is invalid.
        """
        if len(data) > MAX_INDEX:
            raise FormatError(SECTION, 0, f"{len(data)} bytes long")
        self.oddities: list[str] = []
        if len(data) % 8:
            self.oddities.append("exidx_index_truncated")
        words = np.frombuffer(data, f"{file.order}u4", len(data) // 8 * 2).reshape(-1, 2)
        place = (addr + 8 * np.arange(len(words), dtype=np.int64)) & _ADDRESS
        starts = (place + _prel31(words[:, 0])) & (_ADDRESS - 1)  # bit 0: Thumb
        if bool((words[:, 0] >> 31).any()):
            raise FormatError(SECTION, 8 * int((words[:, 0] >> 31).argmax()), "bit 31 of a key is set")
        order = np.arange(len(words))
        if bool((np.diff(starts) < 0).any()):
            self.oddities.append("exidx_index_not_sorted")
            order = np.argsort(starts, kind="stable")
        self.starts: list[int] = starts[order].tolist()
        self._order: list[int] = order.tolist()
        self._words: list[int] = words[:, 1].tolist()
        self._addr = addr
        self._file = file
        self._text = sorted((s.vaddr, s.vaddr + s.memsz) for s in file.loads if s.executable and s.memsz)
        self._text_starts = [start for start, _ in self._text]

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, svma: int) -> int:
        """Return the position of the .ARM.exidx entry that covers a file address, -1 if there is none."""
        at = bisect_right(self.starts, svma) - 1
        return at if at >= 0 and svma < self.end(at) else -1

    def end(self, position: int) -> int:
        """Return the end of the code that an .ARM.exidx entry covers: the next entry's start, but at most the end of
        the text segment.

        The result is the entry's start if that is not executable.
        """
        start = self.starts[position]
        at = bisect_right(self._text_starts, start) - 1
        end = self._text[at][1] if at >= 0 else start
        if position + 1 < len(self.starts):
            end = min(end, self.starts[position + 1])
        return max(start, end)

    def extents(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return arrays (start, end) of the .ARM.exidx entries that do not say "cannot unwind": file addresses of shape
        (n,).
        """
        words = np.array(self._words, np.uint64)[self._order]
        known = np.flatnonzero(words != CANT_UNWIND)
        ends = [self.end(position) for position in known.tolist()]
        return np.array(self.starts, np.uint64)[known], np.array(ends, np.uint64)

    def offset(self, position: int) -> int:
        """Return the offset of an entry in .ARM.exidx, for messages."""
        return 8 * self._order[position]

    def entry(self, position: int) -> Entry:
        """Return the EXIDX entry at a position.

        Raises:
            FormatError: The entry or its table is broken.
        """
        start, end, at = self.starts[position], self.end(position), self.offset(position)
        word = self._words[self._order[position]]
        if word == CANT_UNWIND:
            return Entry(start, end, Model.CANT_UNWIND, b"", -1, -1)
        if word >> 31:
            if word >> 24 != 0x80:
                raise FormatError(SECTION, at, f"inline entry of personality routine {word >> 24 & 0x7F}")
            return Entry(start, end, Model.INLINE, word.to_bytes(4, "big")[1:], 0, -1)
        table = (self._addr + at + 4 + _signed31(word)) & _ADDRESS
        return self._table_entry(start, end, table)

    def code(self, svma: int, size: int) -> bytes:
        """Return the bytes of the file's code at a file address, `size` bytes or fewer."""
        return bytes(self._file.at_svma(svma, size))

    def _table_entry(self, start: int, end: int, table: int) -> Entry:
        word = self._read(table, 1)[0]
        if not word >> 31:
            personality = (table + _signed31(word)) & (_ADDRESS - 1)
            head = self._read(table + 4, 1)[0]
            more = self._read(table + 8, head >> 24)
            return Entry(start, end, Model.GENERIC, _instructions(head, 3, more), personality, table)
        number = word >> 24 & 0x7F
        if number > 2:
            raise FormatError(TABLE, table, f"personality routine {number} is reserved")
        if number == 0:
            return Entry(start, end, Model.COMPACT, _instructions(word, 3, ()), 0, table)
        more = self._read(table + 4, word >> 16 & 0xFF)
        return Entry(start, end, Model.COMPACT, _instructions(word, 2, more), number, table)

    def _read(self, svma: int, count: int) -> tuple[int, ...]:
        data = self._file.at_svma(svma, 4 * count)
        if len(data) < 4 * count:
            raise FormatError(TABLE, svma, f"entry of {count} words at svma {svma:#x} lies outside of the file")
        return tuple(np.frombuffer(data, f"{self._file.order}u4").tolist())


def read_entries(index: ExidxIndex) -> Iterator[Entry | FormatError]:
    """Yield all .ARM.exidx entries that cover code, ascending. An error takes the place of a broken entry."""
    for position in range(len(index)):
        if index.end(position) > index.starts[position]:
            try:
                yield index.entry(position)
            except FormatError as error:
                yield error


def _prel31(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    low = words.astype(np.int64) & 0x7FFF_FFFF
    return low - ((low & 0x4000_0000) << 1)


def _signed31(word: int) -> int:
    low = word & 0x7FFF_FFFF
    return low - ((low & 0x4000_0000) << 1)


def _instructions(head: int, count: int, more: tuple[int, ...]) -> bytes:
    """Return an EXIDX entry's instructions: the last `count` bytes of head and then the words of `more`, each with its
    most significant byte first.
    """
    return head.to_bytes(4, "big")[4 - count :] + b"".join(word.to_bytes(4, "big") for word in more)


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
    """Return the (start, end) offsets of the call by which `clone` runs a new thread's function: the first call through
    a register after the first system call in ARM code. None if there is none.
    """
    step, called = (2 if thumb else 4), False
    for at in range(0, len(code) - step + 1, step):
        word = int.from_bytes(code[at : at + step], "little")
        called = called or (word == 0xDF00 if thumb else word >> 24 == 0xEF)
        if called and (word & 0xFF87 == 0x4780 if thumb else word & 0xFFFF_FFF0 == 0xE12F_FF30):
            return at, at + step
    return None


def _symbols(file: ObjectFile) -> list[int]:
    """Return the values of the symbols `clone` and `__clone` of a 32-bit ELF file, in which threads start. Bit 0 of a
    value marks Thumb code.

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
