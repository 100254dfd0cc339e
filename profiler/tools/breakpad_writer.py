"""A writer of a Breakpad symbol file from DWARF, the symbol tables and the unwind tables of an ELF file.

Functions with their lines and inlined calls are written unit by unit as FUNC records. The bodies of functions are
written to a temporary file until all units are read, so that memory does not grow with the binary. Files and inlined
functions are numbered in the order of their use.

The writer takes an object file and its separate debug file, and returns the text and counters of what was left out.
Source: docs/symbol_files.md of Breakpad; src/common/linux/dump_symbols.cc, src/common/module.cc.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from typing import IO, NamedTuple

import numpy as np

from pyprof.errors import FormatError, PyprofError, UnsupportedArchitecture
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad_records import breakpad_id
from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.objfile.untrusted_file_access import current_opener
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.dwarf_attribute_forms import Deadline
from pyprof.symbolize.dwarf_inlined_functions import Inlined, Inlines, Subprogram
from pyprof.symbolize.dwarf_source_lines import LineTable
from pyprof.symbolize.dwarf_units import Dwarf, Ranges
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.name_cache import has_dwarf
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.unwind.formats.breakpad_stack_cfi import CfiText
from pyprof.unwind.module_unwind_sources import READERS
from pyprof.unwind.rules import Source

MAX_RANGES = 200
"""Maximum number of address ranges in one Breakpad INLINE record. Breakpad reads at most 512 words of a record."""

NO_FILE = -1
NO_DEADLINE = Deadline(None)


class _Body(NamedTuple):
    """A function of a Breakpad symbol file that is being written.

    Attributes:
        address: Address relative to the load address.
        size: Size in bytes.
        name: Number of the function's name in Functions.names.
        own: Number of the name that DWARF states for the function.
        offset: Offset of its lines and calls in the temporary file.
        length: Length of its lines and calls in bytes.
    """

    address: int
    size: int
    name: int
    own: int
    offset: int
    length: int


class Functions:
    """All functions that a file's DWARF describes, in the form of a Breakpad symbol file. Addresses are relative to the
    load address.

    Attributes:
        files: Paths by number.
        origins: Names of inlined functions by number.
        names: Names of functions by number.
        left_out: Number of functions and units that were left out, by reason.
    """

    def __init__(
        self,
        file: ObjectFile,
        symbol: Callable[[int], str],
        find_alternate: Callable[[ObjectFile], ObjectFile | None] | None = None,
    ) -> None:
        """Read all functions of an object file's DWARF.

        Args:
            file: The file with the DWARF.
            symbol: Function that returns the name of the symbol that begins at an address, "" if there is none. This
                name has priority over DWARF's, which is not qualified for functions without a linkage name.
            find_alternate: Function that finds the file to which dwz has moved shared DWARF.
        """
        self._symbol = symbol
        self._base = file.min_vaddr
        self._code = [(s.vaddr, s.vaddr + s.memsz) for s in file.loads if s.executable]
        self._numbers: dict[str, int] = {}
        self._origin_numbers: dict[str, int] = {}
        self._name_numbers: dict[str, int] = {}
        self._bodies: list[_Body] = []
        self._spool = os.fdopen(current_opener().create_scratch_file(), "w+b")
        self.left_out: Counter[str] = Counter()
        dwarf = Dwarf(file, find_alternate)
        for offset in dwarf.offsets:
            try:
                self._read_unit(dwarf, offset)
            except FormatError:
                self.left_out["units with broken DWARF"] += 1
        self._bodies.sort(key=lambda body: body.address)

    def close(self) -> None:
        self._spool.close()

    @property
    def files(self) -> list[str]:
        return list(self._numbers)

    @property
    def origins(self) -> list[str]:
        return list(self._origin_numbers)

    @property
    def names(self) -> list[str]:
        return list(self._name_numbers)

    def records(self, shown: Callable[[str], str]) -> Iterator[bytes]:
        """Yield the Breakpad FUNC records of all functions by ascending address, each with its line and INLINE records.

        If several functions begin at one address, the first one is written and marked "m".
        """
        names = self.names
        bodies = self._bodies
        at = 0
        while at < len(bodies):
            body, same = bodies[at], at + 1
            while same < len(bodies) and bodies[same].address == body.address:
                same += 1
            multiple = "m " * any(other.own != body.own for other in bodies[at + 1 : same])
            head = f"FUNC {multiple}{body.address:x} {body.size:x} 0 {shown(names[body.name])}\n"
            self._spool.seek(body.offset)
            yield head.encode("utf-8", "backslashreplace") + self._spool.read(body.length)
            at = same

    def extents(self) -> list[tuple[int, int]]:
        """Return (start, end) of all functions that the file's DWARF describes, ascending."""
        return [(body.address, body.address + body.size) for body in self._bodies]

    def _read_unit(self, dwarf: Dwarf, offset: int) -> None:
        unit = dwarf.unit(offset)
        lines, inlines = LineTable(unit, NO_DEADLINE), Inlines(unit, NO_DEADLINE)
        for start, end, function in inlines.functions():
            if not any(low <= start and end <= high for low, high in self._code):
                continue  # the linker dropped the function
            own = _text(inlines.name(function, NO_DEADLINE))
            name = self._symbol(start - self._base) or own
            if not name:
                self.left_out["functions without a name"] += 1
                continue
            body = "".join(
                [*self._calls(inlines, lines, function, start, end), *self._lines(lines, start, end)]
            ).encode()
            place = self._spool.tell()
            self._spool.write(body)
            number, own_number = (self._name_numbers.setdefault(n, len(self._name_numbers)) for n in (name, own))
            self._bodies.append(_Body(start - self._base, end - start, number, own_number, place, len(body)))

    def _lines(self, lines: LineTable, start: int, end: int) -> Iterator[str]:
        """Yield the Breakpad line records of a function. Adjacent records of the same line become one."""
        pending: tuple[int, int, int, int] | None = None
        for low, high, file, line in sorted(lines.rows_between(start, end)):
            number = self._file(lines.file(file))
            if line <= 0 or number == NO_FILE:
                continue
            if pending and pending[1] == low and pending[2:] == (line, number):
                pending = (pending[0], high, line, number)
                continue
            if pending:
                yield self._line(*pending)
            pending = (low, high, line, number)
        if pending:
            yield self._line(*pending)

    def _line(self, low: int, high: int, line: int, file: int) -> str:
        return f"{low - self._base:x} {high - low:x} {line} {file}\n"

    def _calls(self, inlines: Inlines, lines: LineTable, function: Subprogram, start: int, end: int) -> Iterator[str]:
        """Yield the Breakpad INLINE records of a function in the order of the DWARF entries: an inlined call follows
        the call that contains it.
        """
        depths: list[int] = []
        for call in inlines.calls(function, NO_DEADLINE):
            depth = depths[call.parent] + 1 if call.parent >= 0 else 0
            depths.append(depth)
            ranges = _clipped(call.ranges, start, end)
            for at in range(0, len(ranges), MAX_RANGES):
                yield self._call(call, depth, lines, ranges[at : at + MAX_RANGES])

    def _call(self, call: Inlined, depth: int, lines: LineTable, ranges: Ranges) -> str:
        origin = self._origin_numbers.setdefault(_text(call.name) or "[inlined]", len(self._origin_numbers))
        file = self._file(lines.file(call.call_file))
        words = " ".join(f"{low - self._base:x} {high - low:x}" for low, high in ranges)
        return f"INLINE {depth} {call.call_line} {file} {origin} {words}\n"

    def _file(self, path: str | None) -> int:
        return NO_FILE if path is None else self._numbers.setdefault(path, len(self._numbers))


def _clipped(ranges: Ranges, start: int, end: int) -> Ranges:
    return [(max(low, start), min(high, end)) for low, high in ranges if low < end and high > start]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


TABLES = ("eh_frame", "debug_frame", "exidx", "sframe")
"""Unwind tables in the order in which they are written to a Breakpad symbol file. A table is used only for functions
that no earlier one covers. SFrame is last, because it describes the fewest registers.
"""

PIECE = 1 << 13
"""Size in bytes of one piece of a symbol file's text. A larger piece would need a memory file, and hundreds of pieces
may be on their way from the worker.
"""
NO_CONTROLS = dict.fromkeys((*range(32), 127), "?")


@dataclass(slots=True)
class Written:
    """Numbers of records that were written to a symbol file, by kind, and of records that were left out, by reason."""

    records: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SymbolText:
    """A piece of the text of a Breakpad symbol file.

    Attributes:
        store_path: Path of the file in a symbol store.
        text: The text.
        records: Number of written records by kind (Written.records). Only the last piece has it.
        left_out: Number of records that were left out by reason. Only the last piece has it.
    """

    store_path: str
    text: bytes
    records: dict[str, int]
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True)
class SymbolsOf:
    """A one-shot task for a worker that returns the Breakpad symbol file of an object file.

    Attributes:
        path: Path of the object file.
        name: Name of the file as the user gave it. The path may have another name, because symbolic links are resolved
            in it.
    """

    path: str
    name: str

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SymbolText]:
        """Yield the text of a Breakpad symbol file in pieces. The first piece has no text: it is sent as soon as the
        file's identity is known.
        """
        written = Written()
        try:
            writer = SymbolWriter(self.path, self.name)
            path = writer.store_path
            yield SymbolText(path, b"", {}, {})
            lines = writer.lines(written)
            while text := b"".join(_some(lines)):
                yield SymbolText(path, text, {}, {})
        except OSError as error:
            raise PyprofError(f"{self.path}: {error.strerror}") from error
        except FormatError as error:
            raise PyprofError(f"{self.path}: {error.message}") from error
        written.left_out += diagnostics.counts
        yield SymbolText(path, b"", dict(written.records), dict(written.left_out))


def _some(lines: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for line in lines:
        yield line
        size += len(line)
        if size >= PIECE:
            return


class SymbolWriter:
    """A writer of the Breakpad symbol file of one ELF file.

    Attributes:
        name: Name of the file, as in the MODULE record.
        id: Breakpad identifier of the file.
    """

    def __init__(self, path: str, name: str = "") -> None:
        """Open an ELF file whose symbol file is to be written.

        Args:
            path: Path of the file.
            name: Name of the file, "" for the name in the path.

        Raises:
            OSError: The file cannot be opened.
            FormatError: The format of the file is unknown, or the file is broken.
            UnsupportedArchitecture: Breakpad does not support the architecture.
            PyprofError: The file has no identifier.
        """
        self.file = open_object_file(path)
        self.name = name or os.path.basename(os.path.realpath(path))
        arch = self.file.arch
        if arch is None or not arch.breakpad:
            raise UnsupportedArchitecture(f"{path}: Breakpad has no symbol files for {self.file.machine_name}")
        self.arch: Arch = arch
        self.id = breakpad_id(self.file)
        if not self.id:
            raise PyprofError(f"{path} has neither a build-id nor a .text to identify it by", "link with --build-id")
        self._debug_files = DebugFiles(Diagnostics(), ("/usr/lib/debug",))
        self._debug = self._debug_files.find(self.file, os.path.abspath(path), "")

    @property
    def store_path(self) -> str:
        """The relative path of the symbol file in a symbol store."""
        return os.path.join(self.name, self.id, f"{self.name}.sym")

    def write(self, out: IO[bytes]) -> Written:
        """Write the complete Breakpad symbol file of the object file.

        Raises:
            FormatError: The object file is broken.
            OSError: Writing failed.
        """
        written = Written()
        for line in self.lines(written):
            out.write(line)
        return written

    def lines(self, written: Written) -> Iterator[bytes]:
        """Yield the lines of the Breakpad symbol file, and count them in `written`.

        Raises:
            FormatError: The object file is broken.
        """
        for kind, lines in self._parts(written):
            for line in lines:
                yield line
                written.records[kind] += 1

    def _parts(self, written: Written) -> Iterator[tuple[str, Iterator[bytes]]]:
        yield "MODULE", self._head()
        dwarf = next((file for file in (self.file, self._debug) if file and has_dwarf(file)), None)
        extents: list[tuple[int, int]] = []
        if dwarf is not None:
            with closing(Functions(dwarf, self._symbol, self._alternate)) as functions:
                shown = _shown([*functions.names, *functions.origins])
                yield "FILE", (_line(f"FILE {at} {name}") for at, name in enumerate(functions.files))
                origins = enumerate(functions.origins)
                yield "INLINE_ORIGIN", (_line(f"INLINE_ORIGIN {at} {shown(name)}") for at, name in origins)
                yield "FUNC", functions.records(shown)
                extents = functions.extents()
                written.left_out += functions.left_out
        yield "PUBLIC", self._publics(extents)
        text = CfiText(self.arch, self.file.min_vaddr)
        yield "STACK CFI", self._cfi(text, written.left_out)
        written.left_out += text.left_out

    def _head(self) -> Iterator[bytes]:
        yield _line(f"MODULE Linux {self.arch.breakpad[0]} {self.id} {self.name}")
        if self.file.build_id:
            yield _line(f"INFO CODE_ID {self.file.build_id.upper()}")
        for load in self.file.loads:
            if load.filesz:
                yield _line(f"INFO LOAD {load.offset:x} {load.vaddr - self.file.min_vaddr:x} {load.filesz:x}")

    def _alternate(self, debug: ObjectFile) -> ObjectFile | None:
        return self._debug_files.find_alternate(debug, "")

    @cached_property
    def _table(self) -> SymbolTable:
        return SymbolTable(read_symbol_sources(self.file, lambda: self._debug).rows)

    @cached_property
    def _row_at(self) -> dict[int, int]:
        """Index of each symbol in the symbol table, by the symbol's start address relative to the load address."""
        rel = self._table.start - np.uint64(self.file.min_vaddr)
        return {start: row for row, start in enumerate(rel.tolist())}

    def _symbol(self, address: int) -> str:
        row = self._row_at.get(address)
        return "" if row is None else self._table.name(row)

    def _publics(self, functions: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the Breakpad PUBLIC records of symbols that no FUNC record covers."""
        table = self._table
        starts = np.array([start for start, _ in functions], np.uint64)
        reach = (
            np.maximum.accumulate(np.array([min(end, (1 << 64) - 1) for _, end in functions], np.uint64))
            if functions
            else starts
        )
        rel = table.start - np.uint64(self.file.min_vaddr)
        at = np.searchsorted(starts, rel, "right") - 1
        covered = (at >= 0) & (rel < reach[at]) if functions else np.zeros(len(rel), np.bool_)
        rows = np.flatnonzero(~covered & (rel > 0)).tolist()
        names = [table.name(row) for row in rows]
        shown = _shown(names)
        for row, name in zip(rows, names, strict=True):
            yield _line(f"PUBLIC {int(rel[row]):x} 0 {shown(name)}")

    def _cfi(self, text: CfiText, left_out: Counter[str]) -> Iterator[bytes]:
        starts: list[int] = []
        ends: list[int] = []
        for source in self._sources(left_out):
            fresh = []
            for function in source.functions():
                at = bisect_right(starts, function.start) - 1
                if (at >= 0 and function.start < ends[at]) or (at + 1 < len(starts) and starts[at + 1] < function.end):
                    continue
                fresh.append((function.start, function.end))
                for line in text.write_records(function):
                    yield _line(line)
            both = sorted([*zip(starts, ends, strict=True), *fresh])
            starts, ends = [start for start, _ in both], [end for _, end in both]

    def _sources(self, left_out: Counter[str]) -> Iterator[Source]:
        diagnostics = Diagnostics()
        for name in TABLES:
            for file in (self.file, self._debug):
                if file is None or (file is not self.file and name != "debug_frame"):
                    continue
                try:
                    source = READERS[name](file, self.arch, diagnostics)
                    if source is not None:
                        source.extents()
                        yield source
                except FormatError:
                    left_out[f"{name}: broken"] += 1


def _shown(names: list[str]) -> Callable[[str], str]:
    """Return a function that demangles names for a symbol file. It also replaces control characters, which would end a
    record.
    """
    readable = demangle(names)
    return lambda name: readable[name].translate(NO_CONTROLS)


def _line(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"
