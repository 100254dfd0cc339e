"""A writer of a Breakpad symbol file from the DWARF, the symbol tables and the unwind tables of an ELF file.

It takes an object file and its separate debug file, and returns the text and counters of what was left out.
Source: docs/symbol_files.md of Breakpad; src/common/linux/dump_symbols.cc, src/common/module.cc.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from typing import IO

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError, PyprofError, UnsupportedArchitecture
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad.ids import breakpad_id
from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.formats import open_object_file
from pyprof.records import dataclass, field
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.name_cache import has_dwarf
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.tools.breakpad_func_records import Functions
from pyprof.unwind.formats.breakpad.stack_cfi_text import CfiText
from pyprof.unwind.module_sources import READERS
from pyprof.unwind.rules import Source

TABLES = ("eh_frame", "debug_frame", "exidx", "sframe")
"""Unwind tables in the order in which a Breakpad symbol file gets them. A later one is used only for functions that no
earlier one covers. SFrame is last, because it describes the fewest registers.
"""

PIECE = 1 << 13
"""Size in bytes of one piece of a symbol file's text. A larger piece would need a memory file; hundreds of pieces may
be in transit.
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
        records: Number of written records by kind, see Written. Only the last piece has it.
        left_out: Number of records that were left out by reason. Only the last piece has it.
    """

    store_path: str
    text: bytes
    records: dict[str, int]
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True)
class SymbolsOf:
    """A one-shot task that returns the Breakpad symbol file of an object file.

    Attributes:
        path: Path of the object file.
        name: Name of the file, which the path may not show because symbolic links are resolved.
    """

    path: str
    name: str

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SymbolText]:
        """Yield the text of a Breakpad symbol file. The first piece has no text, and is sent when only the file's
        identity has been read.
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
        id: Its Breakpad identifier.
    """

    def __init__(self, path: str, name: str = "") -> None:
        """Open an ELF file for which a symbol file is to be written.

        Args:
            path: Path of the file.
            name: Name of the file, "" for that in the path.

        Raises:
            OSError: The file cannot be opened.
            FormatError: Its format is unknown or it is broken.
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
        """The path of the symbol file in a symbol store."""
        return os.path.join(self.name, self.id, f"{self.name}.sym")

    def write(self, out: IO[bytes]) -> Written:
        """Write the Breakpad symbol file.

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
        """Row of each symbol in the symbol table by the symbol's start address."""
        rel = self._table.start - np.uint64(self.file.min_vaddr)
        return {start: row for row, start in enumerate(rel.tolist())}

    def _symbol(self, address: int) -> str:
        row = self._row_at.get(address)
        return "" if row is None else self._table.name(row)

    def _publics(self, functions: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the Breakpad PUBLIC records of symbols that no FUNC covers."""
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
    """Return a function that demangles names for a symbol file and replaces control characters, which would end a
    record.
    """
    readable = demangle(names)
    return lambda name: readable[name].translate(NO_CONTROLS)


def _line(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"
