"""Names, lines and inlined functions from a Breakpad symbol file.

SymbolFileNames takes addresses relative to the module's load address and returns NamedPlace values. No content of the
file makes it raise.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.breakpad_records import FuncRecord, InlineRecord, LineRecord
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.symbolize.dwarf_source_lines import SourcePlace

MAX_UNSIZED = 1 << 16
"""Maximum number of bytes of code that a Breakpad PUBLIC record covers. The record itself states no size."""
MAX_INLINED = 256
"""Maximum number of nested inlined calls at one address in a Breakpad symbol file."""
MAX_OWN = 16
"""Maximum number of line records that are examined to find the source file of a function in a Breakpad symbol file."""
MAX_KEPT = 1 << 12
"""Maximum number of functions of a Breakpad symbol file whose lines are cached."""


class NamedPlace(NamedTuple):
    """The function, file and line that a Breakpad symbol file has for an address.

    Attributes:
        name: Name of the function.
        start: Start address of the function.
        sized: True if a FUNC record states the function's end.
        places: Source places, the innermost inlined function first and the function itself last; [] if only the name is
            known.
    """

    name: str
    start: int
    sized: bool
    places: list[SourcePlace]


@dataclass(frozen=True, slots=True)
class _Body:
    """The lines of a Breakpad function in ascending order with their start addresses, and its inlined calls."""

    starts: list[int]
    lines: list[LineRecord]
    inlines: list[InlineRecord]


class SymbolFileNames:
    """A lookup of names and lines in one Breakpad symbol file."""

    def __init__(self, file: SymbolFile) -> None:
        self._file = file
        self._bodies: dict[int, _Body] = {}

    def find(self, address: int, with_lines: bool = True) -> NamedPlace | None:
        function = self._file.function_at(address)
        if function is not None:
            places = self._places(function, address) if with_lines else []
            return NamedPlace(function.name, function.address, True, places)
        public = self._file.public_at(address)
        if public is None or address - public.address >= MAX_UNSIZED:
            return None
        return NamedPlace(public.name, public.address, False, [])

    def _places(self, function: FuncRecord, address: int) -> list[SourcePlace]:
        body = self._body(function)
        at = bisect_right(body.starts, address) - 1
        line = body.lines[at] if at >= 0 and address < body.lines[at].address + body.lines[at].size else None
        chain = _chain(body.inlines, address)
        if line is None and not chain:
            return []
        name = self._file.file_name
        file, number = (name(line.file), line.line) if line else (None, 0)
        places = []
        for depth in range(len(chain) - 1, -1, -1):
            inlined = chain[depth]
            places.append(SourcePlace(self._file.origin(inlined.origin)[0], file, number))
            call_file = inlined.file
            if call_file is None:  # the old form: the call is in the file of the enclosing function
                call_file = self._file.origin(chain[depth - 1].origin)[1] if depth else _own_file(body)
            file = name(call_file) if call_file is not None else None
            number = inlined.line
        places.append(SourcePlace(function.name, file, number))
        return places

    def _body(self, function: FuncRecord) -> _Body:
        if function.address not in self._bodies:
            if len(self._bodies) >= MAX_KEPT:
                self._bodies.clear()
            lines, inlines = self._file.body_at(function.address)
            lines = sorted((line for line in lines if line.size), key=lambda line: line.address)
            self._bodies[function.address] = _Body([line.address for line in lines], lines, inlines)
        return self._bodies[function.address]


def _own_file(body: _Body) -> int | None:
    """Return the number of the source file (FILE record) in which a Breakpad function is defined: that of its first
    line outside of inlined code.
    """
    inlined = [span for inline in body.inlines for span in inline.ranges]
    for line in body.lines[:MAX_OWN]:
        if not any(start <= line.address < end for start, end in inlined):
            return line.file
    return None


def _chain(inlines: list[InlineRecord], address: int) -> list[InlineRecord]:
    """Return the inlined calls at an address of a Breakpad function, the outermost first. The list ends where no call
    of the next nesting depth covers the address.
    """
    chain: list[InlineRecord] = []
    for inline in inlines:
        if len(chain) >= MAX_INLINED:
            break
        if inline.depth == len(chain) and any(start <= address < end for start, end in inline.ranges):
            chain.append(inline)
    return chain
