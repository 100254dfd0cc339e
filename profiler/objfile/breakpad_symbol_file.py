"""A Breakpad symbol file whose records are read on demand.

It is opened from a ByteSource of text or from a path (objfile/breakpad_symbol_search.py opens compressed files). Only a
file without a MODULE record raises FormatError. Other malformed records are counted and reported with their line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.loss_reason_texts import problem
from pyprof.objfile.breakpad_index import CHUNK, Ranges, RecordIndex, build_index
from pyprof.objfile.breakpad_records import (
    FuncRecord,
    InlineRecord,
    LineRecord,
    ModuleRecord,
    WinRecord,
    decode_text,
    parse_file,
    parse_func,
    parse_inline,
    parse_line,
    parse_module,
    parse_number,
    parse_origin,
    parse_public,
    parse_rules,
    parse_win,
)
from pyprof.objfile.byte_source import ByteSource, FileSource, open_regular
from pyprof.problem_counters import Diagnostics

MAX_BODY = 1 << 18
"""Maximum number of lines of one function that are read in a Breakpad symbol file, and of deltas of one STACK CFI
INIT.
"""
MAX_LINE = 1 << 20
MAX_OVERLAP = 64
"""Maximum number of overlapping Breakpad records that are examined for one address."""
MAX_NAMED = 8
"""Maximum number of malformed lines of a Breakpad symbol file that are reported. All of them are counted."""
BLOCK = 1 << 12

T = TypeVar("T")
Rules = dict[str, str]
"""Postfix expressions of a STACK CFI record by register name."""


class SymbolFile:
    """One Breakpad symbol file. Addresses are relative to the module's load address.

    Attributes:
        module: The MODULE record of the file.
        code_id: The INFO CODE_ID in lower-case hex, "" if there is none.
        name: Name for messages.
    """

    def __init__(self, source: ByteSource, name: str, diagnostics: Diagnostics) -> None:
        """Read the header of a Breakpad symbol file. The index is built at the first lookup.

        Raises:
            FormatError: The file has no MODULE record.
        """
        self.name = name
        self._source = source
        self._diagnostics = diagnostics
        self._named = 0
        self._files: dict[int, str | None] = {}
        self._origins: dict[int, tuple[str, int | None]] = {}
        self.module, self.code_id = _header(source, name)

    @classmethod
    def open(cls, path: str, diagnostics: Diagnostics) -> SymbolFile:
        """Open a Breakpad symbol file that is not compressed.

        Raises:
            OSError: The file cannot be opened.
            FormatError: The file has no MODULE record, or is not a regular file.
        """
        return cls(FileSource(open_regular(path)), path, diagnostics)

    @cached_property
    def index(self) -> RecordIndex:
        return build_index(self._source, self._tolerate)

    def function_at(self, address: int) -> FuncRecord | None:
        """Return the Breakpad FUNC record that covers an address, or None. Of several records, the one with the highest
        start is returned.
        """
        found = self._covering(self.index.functions, address)
        return None if found is None else self._parsed(found, "FUNC", parse_func)

    def public_at(self, address: int) -> FuncRecord | None:
        """Return the last Breakpad PUBLIC record at or below an address, or None if there is none. The result is also
        None if a FUNC record begins at or after the PUBLIC record, up to the address.
        """
        if not 0 <= address < 1 << 64:
            return None
        publics, functions = self.index.publics, self.index.functions
        at = int(np.searchsorted(publics.address, np.uint64(address), "right")) - 1
        if at < 0:
            return None
        before = int(np.searchsorted(functions.address, np.uint64(address), "right")) - 1
        if before >= 0 and functions.address[before] >= publics.address[at]:
            return None
        return self._parsed(int(publics.offset[at]), "PUBLIC", parse_public)

    def body_at(self, address: int) -> tuple[list[LineRecord], list[InlineRecord]]:
        """Return the lines and inlined calls of the Breakpad FUNC that covers an address, in the order of the file."""
        lines: list[LineRecord] = []
        inlines: list[InlineRecord] = []
        found = self._covering(self.index.functions, address)
        for place, line in self._lines(found, MAX_BODY) if found is not None else ():
            if place == found or not line:
                continue
            if line.startswith(b"INLINE "):
                inline = self._try(parse_inline, line, place, "INLINE")
                if inline is not None:
                    inlines.append(inline)
            elif line.startswith((b"FUNC ", b"PUBLIC ", b"STACK ", b"MODULE ")):
                break
            elif not line[:1].isupper():
                record = self._try(parse_line, line, place, "line record")
                if record is not None:
                    lines.append(record)
        return lines, inlines

    def file_name(self, number: int) -> str | None:
        """Return the path in a Breakpad FILE record, or None if there is no such record."""
        if number not in self._files:
            offset = self.index.files.offset_of(number)
            self._files[number] = None if offset is None else self._parsed(offset, "FILE", parse_file)
        return self._files[number]

    def origin(self, number: int) -> tuple[str, int | None]:
        """Return (name, FILE number or None) of an INLINE_ORIGIN record. The name is "" if there is no such record."""
        if number not in self._origins:
            offset = self.index.origins.offset_of(number)
            known = None if offset is None else self._parsed(offset, "INLINE_ORIGIN", parse_origin)
            self._origins[number] = known or ("", None)
        return self._origins[number]

    def cfi_at(self, address: int) -> tuple[int, int, list[tuple[int, Rules]]] | None:
        """Return the STACK CFI INIT record that covers an address with its deltas, or None.

        Returns:
            (start, end, [(address, rules that change there)]), ascending. The first entry is that of INIT. Entries
            outside of start..end are left out.
        """
        at = int(np.searchsorted(self.index.cfi.address, np.uint64(address & 2**64 - 1), "right")) - 1
        found = self._cfi(at) if at >= 0 else None
        return found if found and address < found[1] else None

    def cfi_ranges(self) -> Iterator[tuple[int, int, list[tuple[int, Rules]]]]:
        """Yield all STACK CFI INIT records of a Breakpad symbol file as cfi_at() returns them, ascending."""
        for at in range(len(self.index.cfi)):
            found = self._cfi(at)
            if found is not None:
                yield found

    def win_at(self, address: int) -> WinRecord | None:
        """Return the STACK WIN record that covers an address, or None. Type 4 has priority over type 0."""
        for kind in (4, 0):
            found = self._covering(self.index.win[kind], address)
            record = None if found is None else self._parsed(found, "STACK WIN", parse_win)
            if record is not None:
                return record
        return None

    def named_records(self) -> Iterator[FuncRecord]:
        """Yield all FUNC records of a Breakpad symbol file, then all PUBLIC records."""
        for ranges, what, parse in (
            (self.index.functions, "FUNC", parse_func),
            (self.index.publics, "PUBLIC", parse_public),
        ):
            for offset in ranges.offset.tolist():
                record = self._parsed(offset, what, parse)
                if record is not None:
                    yield record

    def win_records(self) -> Iterator[WinRecord]:
        """Yield all STACK WIN records of a Breakpad symbol file, frame data first."""
        for kind in (4, 0):
            for offset in self.index.win[kind].offset.tolist():
                record = self._parsed(offset, "STACK WIN", parse_win)
                if record is not None:
                    yield record

    def _cfi(self, at: int) -> tuple[int, int, list[tuple[int, Rules]]] | None:
        """Return the STACK CFI INIT record with this index, cut at the start of the next one."""
        ranges = self.index.cfi
        offset = int(ranges.offset[at])
        limit = int(ranges.address[at + 1]) if at + 1 < len(ranges) else 1 << 64
        start = end = 0
        entries: list[tuple[int, Rules]] = []
        for place, line in self._lines(offset, MAX_BODY):
            first = place == offset
            if not line.startswith(b"STACK CFI ") or line.startswith(b"STACK CFI INIT ") != first:
                break
            fields = line.split(None, 5 if first else 3)
            try:
                address = parse_number(fields[3 if first else 2])
                if first:
                    start, end = address, min(address + parse_number(fields[4]), limit)
                entry = address, parse_rules(fields[-1] if len(fields) > (5 if first else 3) else b"")
            except (ValueError, IndexError):
                self._malformed("STACK CFI", place)
                if first:
                    return None
                break  # later deltas depend on this one
            if not start <= address < end or (entries and address < entries[-1][0]):
                self._malformed("STACK CFI out of order", place)
                continue
            entries.append(entry)
        return (start, end, entries) if entries else None

    def _covering(self, ranges: Ranges, address: int) -> int | None:
        """Return the offset of the Breakpad record with the highest start that covers an address, or None."""
        if not 0 <= address < 1 << 64:
            return None
        last = int(np.searchsorted(ranges.address, np.uint64(address), "right")) - 1
        for at in range(last, max(last - MAX_OVERLAP, -1), -1):
            if address < int(ranges.address[at]) + int(ranges.size[at]):
                return int(ranges.offset[at])
        return None

    def _parsed(self, offset: int, what: str, parse: Callable[[bytes], T]) -> T | None:
        for place, line in self._lines(offset, 1):
            return self._try(parse, line, place, what)
        return None

    def _try(self, parse: Callable[[bytes], T], line: bytes, place: int, what: str) -> T | None:
        try:
            return parse(line)
        except (ValueError, IndexError):
            self._malformed(what, place)
            return None

    def _lines(self, offset: int, most: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line without its end) of a Breakpad symbol file from an offset on."""
        at, size, rest = offset, BLOCK, b""
        while most > 0:
            data = bytes(self._source.read(at + len(rest), size))
            block = rest + data
            lines = block.split(b"\n")
            rest = lines.pop()
            for line in lines[:most]:
                yield at, line.rstrip(b"\r")
                at += len(line) + 1
            most -= len(lines)
            if not data or len(rest) > MAX_LINE:
                if rest and most > 0:
                    yield at, rest[:MAX_LINE].rstrip(b"\r")
                return
            size = min(2 * size, CHUNK)

    def _malformed(self, what: str, place: int) -> None:
        self._tolerate(f"malformed {what}", self._line_number(place) if self._named < MAX_NAMED else 0, 1)

    def _tolerate(self, what: str, line: int, times: int) -> None:
        self._diagnostics.count(f"symbol_file_line_invalid:{what}", times)
        if self._named < MAX_NAMED:
            self._named += 1
            self._diagnostics.problem(
                self.name,
                problem("symbol_file_line", line=line, what=what)
                if line
                else problem("symbol_file_lines", what=what, times=times),
            )

    def _line_number(self, offset: int) -> int:
        marks = self.index.marks
        at, line = marks[bisect_right(marks, (offset, 1 << 62)) - 1]
        return line + bytes(self._source.read(at, offset - at)).count(b"\n")


def _header(source: ByteSource, name: str) -> tuple[ModuleRecord, str]:
    """Return the MODULE record of a Breakpad symbol file and the code ID after it."""
    lines = bytes(source.read(0, BLOCK)).split(b"\n")
    try:
        module = parse_module(lines[0].rstrip(b"\r"))
    except ValueError:
        raise FormatError(name, 0, "not a Breakpad symbol file: no MODULE record") from None
    code_id = ""
    for line in lines[1:]:
        fields = line.split()
        if fields[:1] != [b"INFO"]:
            break
        if fields[1:2] == [b"CODE_ID"] and len(fields) > 2:
            code_id = decode_text(fields[2]).lower()
    return module, code_id
