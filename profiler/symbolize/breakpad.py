"""Names, lines and inlined functions from a Breakpad symbol file.

In: addresses relative to the module's load address. Out: NamedPlace. Never raises for what the file contains.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from pyprof.objfile.breakpad.records import FuncRecord, InlineRecord, LineRecord
from pyprof.objfile.breakpad.symbol_file import SymbolFile
from pyprof.records import dataclass
from pyprof.symbolize.dwarf.lines import SourcePlace

MAX_UNSIZED = 1 << 16
"""Most bytes that a PUBLIC, which has no size, reaches."""
MAX_INLINED = 256
"""Most calls inlined into each other at one address."""
MAX_OWN = 16
"""Lines that are looked at for the file of a function itself."""
MAX_KEPT = 1 << 12
"""Functions whose lines are kept."""


class NamedPlace(NamedTuple):
    """start: address of the function. sized: a FUNC says where it ends. places: innermost first, the last is the
    function itself; [] where the file knows the name only.
    """

    name: str
    start: int
    sized: bool
    places: list[SourcePlace]


@dataclass(frozen=True, slots=True)
class _Body:
    """Lines ascending by address with their starts, and inlined calls."""

    starts: list[int]
    lines: list[LineRecord]
    inlines: list[InlineRecord]


class SymbolFileNames:
    """What one symbol file says of addresses."""

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
            if call_file is None:  # the old form: the call stands in the file of the function around it
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
    """FILE of the function itself: of its first line outside of what was inlined."""
    inlined = [span for inline in body.inlines for span in inline.ranges]
    for line in body.lines[:MAX_OWN]:
        if not any(start <= line.address < end for start, end in inlined):
            return line.file
    return None


def _chain(inlines: list[InlineRecord], address: int) -> list[InlineRecord]:
    """Calls inlined at an address, the outermost first; a depth that is left out ends the chain."""
    chain: list[InlineRecord] = []
    for inline in inlines:
        if len(chain) >= MAX_INLINED:
            break
        if inline.depth == len(chain) and any(start <= address < end for start, end in inline.ranges):
            chain.append(inline)
    return chain
